"""Judges a recording: verdicts, doubts, and which seconds count. Pure functions; no clock.

The hypotheses are in `hypotheses/` at the top of the repository; they measure with `measure.py`.
"""
