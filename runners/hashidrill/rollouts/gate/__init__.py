"""`hashidrill gate`: would this change of configuration or version survive a bad day?

It finds the differences, picks the experiments that test them, and compares the baseline's and the candidate's runs.
`core/compare/` compares two runs; `core/judging/` judges each run.
"""
