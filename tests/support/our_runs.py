"""Journals that this machine signed, as the runner and its engine write them."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from hashidrill.core.recording.journal import Clock, Journal
from hashidrill.core.recording.signed_runs import key_of, note_open
from hashidrill.core.util.files import JOURNAL_NAME


def began(folder: Path, run_id: str, **more: Any) -> Journal:
    """A journal that goes on, with its first line; `attached` notes the run as open."""
    resolved = folder / "resolved.json"
    if not resolved.exists():
        resolved.write_text("{}")
    key = key_of(run_id)
    if "attached" in more:
        key = replace(key, note=note_open(run_id, folder))
    journal = Journal(folder / JOURNAL_NAME, Clock(), key=key)
    digest = hashlib.sha256(resolved.read_bytes()).hexdigest()
    journal.write("run", sync=True, id=run_id, resolved=digest, **{"root": "", "experiment": "x", **more})
    return journal
