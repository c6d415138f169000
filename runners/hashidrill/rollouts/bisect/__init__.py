"""Finds the change that breaks an experiment: the smallest set of keys, or the first version or commit.

Search, certainty and log are pure: they request runs of named candidates. `candidates` makes a candidate, `broken`
decides whether a run of it is broken.
"""
