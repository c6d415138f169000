"""Writes a gate's result in every form, into one folder."""

from __future__ import annotations

from pathlib import Path

from hashidrill.core.errors import UsageError
from hashidrill.core.util.files import write_whole
from hashidrill.rollouts.gate.document import as_text
from hashidrill.rollouts.gate.machines import as_junit, as_sarif
from hashidrill.rollouts.gate.pages import as_markdown, pages
from hashidrill.rollouts.gate.result import Result

FILES = ("gate.json", "junit.xml", "gate.sarif", "summary.md", "report.html")
"""What is always there; each experiment that ran has a page too."""


def write_all(result: Result, folder: Path) -> list[Path]:
    """Returns what was written. Raises UsageError where that cannot be."""
    texts = {
        "gate.json": as_text(result),
        "junit.xml": as_junit(result),
        "gate.sarif": as_sarif(result),
        "summary.md": as_markdown(result),
        **{name: str(page) for name, page in pages(result).items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: cannot be written: {(error.strerror or '').lower()}") from None
    return [folder / name for name in texts]


def clear(folder: Path) -> None:
    """Takes away the result of an earlier gate: one that ends without a result must not leave the last one's.

    Raises UsageError where that cannot be.
    """
    try:
        if folder.is_dir():
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be cleared: {(error.strerror or '').lower()}") from None


def check_writable(folder: Path) -> None:
    """Raises UsageError before anything runs, rather than after ten minutes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be written: {(error.strerror or '').lower()}") from None
