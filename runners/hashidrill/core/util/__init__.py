"""Helpers for every room: files, waiting, redaction, undo files. Nothing here knows an experiment."""
