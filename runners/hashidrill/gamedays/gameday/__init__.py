"""A game day: its people, experiments, predictions, results, and the actions that follow.

`core/engine/` does a single run, and `core/judging/` judges it.
"""
