"""Finds the change that breaks an experiment: the smallest set of keys, or the first version or commit.

Search, certainty and log are pure: they ask for runs of named candidates. `candidates` makes and runs one, `broken`
decides whether it is broken.
"""
