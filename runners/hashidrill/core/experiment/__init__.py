"""What YAML says: documents with positions, the models, conditions, selectors, and every check before anything starts.

Nothing here starts or measures anything.
"""
