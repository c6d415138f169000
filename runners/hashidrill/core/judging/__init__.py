"""What a recording means: verdicts, doubts, and which seconds count. Pure functions of a recording, no clock.

Hypotheses themselves are in `hypotheses/` at the top of the repository; what they measure with is `measure.py`.
"""
