"""gate: would this change of a configuration or a version survive a bad day?

What differs between a baseline and a candidate, which experiments matter for that, and what their paired runs say.
How two runs are measured against each other is not here (hashidrill.core.compare), nor what a run is worth (judging).
"""
