"""Finds what still works in an experiment but is deprecated, and says what to write instead."""

from __future__ import annotations

from typing import Any

from hashidrill.experiment.documents import Document


def deprecations(document: Document) -> str:
    """Everything deprecated, with its place and what to write instead; empty if there is nothing."""
    method = document.data.get("method") if isinstance(document.data, dict) else None
    steps = enumerate(method if isinstance(method, list) else [])
    found = [(index, step) for index, step in steps if isinstance(step, dict) and step.get("fault") == "noop"]
    if not found:
        return ""
    noted = document.unmarked()  # notes in the document itself would make it an error
    for index, step in found:
        text = f"a noop that marks time is deprecated: write {_as_mark(step)}"
        noted.problem(("method", index, "fault"), f"{text}, and name the mark in the expectations that judge it")
    return noted.message()


def _as_mark(step: dict[str, Any]) -> str:
    said = {"mark": step.get("name", "NAME"), "at": step.get("at"), "for": step.get("for")}
    return "{" + ", ".join(f"{key}: {value}" for key, value in said.items() if value is not None) + "}"
