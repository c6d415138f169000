"""Chooses the hypotheses that judge a recording, and reports whether its run used the same ones.

A recording keeps the source and the SHA-256 of every hypothesis that its experiment names, as text in
`hypotheses.json`. Judging compares the hypotheses and reports differences. A hypothesis that is not shipped is found by
its SHA-256 in a folder that the user names, or in the project whose experiment was just run; if it is not found, its
expectation is not judged. Judging runs no file of a recording unless the user asks for it: a recording is data, and
may be a stranger's.
"""

import shlex
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from hashidrill import __version__
from hashidrill.core import hypothesis
from hashidrill.core.errors import RecordingError, UnknownNameError, UsageError
from hashidrill.core.experiment.resolved import sha256
from hashidrill.core.hypothesis import Hypothesis
from hashidrill.core.hypothesis.files import from_source, is_shipped, source_of, with_digest
from hashidrill.core.util import safe_json

HYPOTHESES_NAME = "hypotheses.json"
_SHOWN = 12
"""Length of a SHA-256 in messages."""


class Lookup:
    """Finds the hypotheses for one judgement. `notes` then lists the hypotheses that differ from the run's.

    `near_to` is the experiment that was just run: its project's hypotheses count. `recorded` selects the run's own
    hypotheses: if it is a folder, from files there with the same SHA-256; if True, from the source in the recording.
    That is Python, only as trustworthy as the recording's author: ask the user first.
    """

    def __init__(self, path: Path, near_to: Path | None, *, recorded: bool | Path = False) -> None:
        """`path` is the path of a recording, or of a comparison of several recordings."""
        self._path = path
        self._get = hypothesis.getter(near_to)
        self._recorded = recorded
        self._used: dict[str, Hypothesis] = {}

    def __call__(self, name: str) -> Hypothesis:
        """Raises UnknownNameError, UsageError if a file does not load, RecordingError if a source is missing."""
        if name not in self._used:
            self._used[name] = self._from_recording(name) if self._recorded is True else self._from_here(name)
        return self._used[name]

    def is_missing(self, name: str) -> bool:
        """Whether the run resolved this hypothesis but it cannot be found here."""
        try:
            return self._about(name) is not None and not self(name)
        except UnknownNameError:
            return True
        except (RecordingError, UsageError):
            return False  # its source is damaged or does not load: a separate verdict says so

    def notes(self) -> list[str]:
        """Notes about the hypotheses for the verdict's reader."""
        if self._recorded is True:
            return ["judged with the hypotheses that the recording keeps: Python code from the recording was run"]
        notes = [note for name, used in self._used.items() if (note := self._difference(name, used))]
        then = self._kept.get("hashidrill")
        if self._used and isinstance(then, str) and then != __version__:
            notes.append(f"hashidrill {then} made this recording, {__version__} judges it: figures may differ")
        return notes

    def _from_here(self, name: str) -> Hypothesis:
        about = self._about(name) or {}
        then = str(about.get("sha256"))
        if isinstance(self._recorded, Path) and (found := with_digest(then, name, self._recorded)) is not None:
            return found
        try:
            used = self._get(name)
        except UnknownNameError:
            if not about:
                raise
            raise UnknownNameError(f"no hypothesis {name!r} ships; {self._lacks(about)}") from None
        if about.get("shipped") is False and is_shipped(used.path) and sha256(source_of(used)) != then:
            raise UnknownNameError(
                f"{name}: the shipped hypothesis differs from the one that the run used; {self._lacks(about)}"
            )
        return used

    def _lacks(self, about: Mapping[str, Any]) -> str:
        where = "" if self._recorded is False else f"; no file in {self._recorded} has that SHA-256"
        return (
            f"its run resolved it from {about.get('file')} (SHA-256 {str(about.get('sha256'))[:_SHOWN]}){where}: name"
            " the folder of that file with --hypotheses, or run the copy that the recording keeps with"
            " --recorded-hypotheses; pytest judges a recording with the hypotheses of your project as they are now"
        )

    def _from_recording(self, name: str) -> Hypothesis:
        where = self._path / HYPOTHESES_NAME
        about = self._about(name)
        source = self._kept.get("sources", {}).get(about.get("sha256")) if about else None
        if about is None or not isinstance(source, str):
            raise RecordingError(
                f"{where}: it holds no source of {name!r}; judge the recording without --recorded-hypotheses"
            )
        if sha256(source.encode()) != about["sha256"]:
            raise RecordingError(f"{where}: the source of {name!r} does not match its SHA-256; it was not run")
        found = [one for one in from_source(f"{where}:{about.get('file')}", source.encode()) if one.name == name]
        if not found:
            raise RecordingError(f"{where}: the source that is kept for {name!r} does not define it")
        return found[0]

    def _difference(self, name: str, used: Hypothesis) -> str:
        about = self._about(name)
        if about is None:
            return f"{name}: the run did not resolve it; judged with {used.path}" if self._kept else ""
        then, now = str(about.get("sha256")), sha256(source_of(used))
        if then == now:
            return ""
        return (
            f"{name}: judged with {used.path} (SHA-256 {now[:_SHOWN]}), which differs from the file that the run used:"
            f" {about.get('file')} ({then[:_SHOWN]}); --recorded-hypotheses runs that one"
        )

    def _about(self, name: str) -> dict[str, Any] | None:
        about = self._kept.get("hypotheses", {}).get(name)
        return about if isinstance(about, dict) else None

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return _kept_in(self._path)


def _kept_in(path: Path) -> dict[str, Any]:
    """The content of hypotheses.json; empty if it is missing, as in a recording that was made by hand."""
    try:
        kept = safe_json.parse((path / HYPOTHESES_NAME).read_bytes())
    except (OSError, ValueError):
        kept = None
    fits = isinstance(kept, dict) and all(isinstance(kept.get(key), dict) for key in ("hypotheses", "sources"))
    return kept if fits else {}


def judging_again(path: Path) -> str:
    """The command that judges a recording again. It names the folder of the run's own hypotheses if that exists."""
    resolved = [about for about in _kept_in(path).get("hypotheses", {}).values() if isinstance(about, dict)]
    files = [Path(str(about.get("file"))) for about in resolved if about.get("shipped") is False]
    here = [["--hypotheses", str(file.parent)] for file in files if file.is_file()]
    return shlex.join(["hashidrill", "check", str(path), *(here[0] if here else ())])
