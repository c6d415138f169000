"""Undos that hold secrets: their real values are kept outside of the journal, until the fault is proven gone.

A revert needs the whole configuration that an agent had before; a journal is kept, copied and sent around. So the
journal gets the undo without its secrets, and the path (`kept`) of a file that its owner alone may read. For a local
datacenter that file is in the sandbox's directory, which the janitor removes with everything else in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hashidrill.core.errors import FaultError
from hashidrill.core.util.files import private, private_folder
from hashidrill.core.util.foreign import parse
from hashidrill.core.util.redaction import Redactor

KEPT = "kept"


class Undos:
    """Keeps what the journal may not hold, in `folder`; None keeps nothing, and such an undo cannot be healed."""

    def __init__(self, folder: Path | None, redactor: Redactor) -> None:
        self._folder = folder
        self._redactor = redactor
        self._kept: dict[str, Path] = {}

    def for_journal(self, undo: Mapping[str, Any]) -> dict[str, Any]:
        """The undo as it may stand in the journal; when it returns, its secrets are on the disk. Raises FaultError."""
        self._redactor.learn(undo)
        shown: dict[str, Any] = self._redactor.data(undo)
        if json.dumps(shown) == json.dumps(undo):
            return dict(undo)
        if self._folder is None:
            return {**shown, KEPT: ""}
        fault_id = str(undo["fault_id"])
        path = self._folder / f"{fault_id}.json"
        try:
            private_folder(self._folder)
            with private(path, "wb") as file:
                file.write(json.dumps(undo).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FaultError(f"{fault_id}: its undo cannot be kept: {path}: {error.strerror or error}") from None
        self._kept[fault_id] = path
        return {**shown, KEPT: str(path)}

    def forget(self, fault_id: str) -> None:
        """The fault is gone, or its hosts are: nobody needs its undo any more."""
        path = self._kept.pop(fault_id, None)
        if path is not None:
            with contextlib.suppress(OSError):  # then the sandbox's end removes it
                path.unlink(missing_ok=True)

    def restored(self, undo: Mapping[str, Any]) -> dict[str, Any]:
        """The whole undo again, from what the journal holds. Raises FaultError where its secrets are gone."""
        whole = _restored(undo)
        if undo.get(KEPT):
            self._kept[str(undo["fault_id"])] = Path(undo[KEPT])
        self._redactor.learn(whole)
        return whole


def _restored(undo: Mapping[str, Any]) -> dict[str, Any]:
    if KEPT not in undo:
        return dict(undo)
    fault_id, path = undo["fault_id"], Path(str(undo[KEPT] or os.devnull))
    try:
        status = path.lstat()
        ours = status.st_uid == os.geteuid() and status.st_mode == stat.S_IFREG | 0o600
        whole = parse(path.read_bytes()) if ours else {}
    except (OSError, ValueError):
        whole = {}
    same = isinstance(whole, dict) and all(whole.get(name) == undo.get(name) for name in ("fault_id", "kind", "host"))
    if not whole or not same:
        where = undo[KEPT] or "nowhere"
        raise FaultError(
            f"{fault_id}: the journal holds its undo without secrets; they were kept in {where}, and are gone or not "
            "ours: put back by hand what the journal shows"
        )
    return dict(whole)
