"""Runs an experiment: `run` does it, and its docstring numbers the steps."""
