"""`hashidrill gate`: would this change of configuration or version survive a bad day?

It finds the differences, picks the experiments that matter for them, and reads their paired runs. `core/compare/`
compares two runs; `core/judging/` judges each.
"""
