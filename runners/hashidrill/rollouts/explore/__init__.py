"""Searches the faults that break a promise: which, in which order, at which moments.

`space` has what may be tried, `guidance` chooses the next trial, `trace` reduces a recording to the states that guide
it, `search` plays, confirms and shrinks, `lab_trials` runs a trial in a datacenter, and `report` says what was tried.
"""
