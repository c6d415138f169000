"""Reads and checks experiments: documents with positions, models, conditions, selectors."""
