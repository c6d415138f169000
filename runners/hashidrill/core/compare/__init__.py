"""Compares two sides of one experiment over several rounds: the differences, and how certain they are."""
