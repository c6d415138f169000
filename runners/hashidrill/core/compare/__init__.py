"""Compares two sides of one experiment over several rounds: what differs, and how certain that is.

It knows figures and rounds. The gate (`rollouts/gate/`) knows configurations and pipelines.
"""
