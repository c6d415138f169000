"""Runs an experiment: see `run.run`, whose docstring numbers the steps."""
