"""Schedules experiments and game days: writes a Nomad job, a GitHub workflow or a systemd timer.

`gamedays/history/` stores the results of those runs.
"""
