"""`hashidrill gate`: would this change of configuration or version survive a bad day?

It finds what differs, picks the experiments that matter for it, and reads their paired runs. `core/compare/` compares
two runs; `core/judging/` judges each.
"""
