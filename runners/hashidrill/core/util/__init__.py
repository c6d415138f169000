"""Helpers for every room: files, waiting, redaction, undo files. They do not import experiments."""
