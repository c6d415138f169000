"""Helpers for every room: files, waiting, redaction, undo files. These modules do not import experiments."""
