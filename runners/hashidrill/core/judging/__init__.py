"""Judges a recording: verdicts, doubts, and which seconds count. Pure functions; no clock."""
