"""Schedules experiments and game days: writes a Nomad job, a GitHub workflow or a systemd timer.

`gamedays/history/` keeps what came of those runs.
"""
