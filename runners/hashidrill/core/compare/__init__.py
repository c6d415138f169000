"""Compares two sides of one experiment over several rounds: what differs, and how certain that is."""
