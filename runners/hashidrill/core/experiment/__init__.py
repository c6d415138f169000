"""Reads and checks the YAML: documents with positions, models, conditions, selectors. Starts and measures nothing."""
