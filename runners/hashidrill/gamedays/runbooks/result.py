"""What a rehearsal came to: its runs, its verdict, and the badge line that a runbook carries."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hashidrill.core.errors import UsageError
from hashidrill.core.judging.verdict import Verdict, merge
from hashidrill.core.util.files import write_whole
from hashidrill.gamedays.runbooks.judged import NOT_REVERTED, Drill
from hashidrill.gamedays.runbooks.model import Runbook

RESULT_NAME = "rehearsal.json"
BADGE = "> Rehearsed "
NEVER = "> Never rehearsed."
"""What stands in its place until then."""
ENOUGH_LOOK_ALIKES = 2
_PRODUCTS = ("consul", "nomad", "vault")


@dataclass(frozen=True)
class Rehearsal:
    """All runs of one rehearsal."""

    runbook: Runbook
    drills: Sequence[Drill]
    folder: Path

    @property
    def verdict(self) -> Verdict:
        return merge(drill.verdict for drill in self.drills)

    @property
    def exit_code(self) -> int:
        if any(not drill.reverted for drill in self.drills):
            return NOT_REVERTED
        return self.verdict.exit_code

    @property
    def notes(self) -> list[str]:
        """What the verdict does not say."""
        if any(drill.look_alike for drill in self.drills):
            return []
        return ["no look-alike was rehearsed, so nothing shows that this runbook can say no"]

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "runbook": str(self.runbook.path),
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "drills": [{**asdict(drill), "verdict": drill.verdict} for drill in self.drills],
            "notes": self.notes,
            "folder": str(self.folder),
        }

    def lines(self) -> Iterator[str]:
        """For a person."""
        for drill in self.drills:
            yield f"{drill.verdict:<8}{drill.experiment}{' (look-alike)' if drill.look_alike else ''}: {_course(drill)}"
            yield from (f"        harm: {text}" for text in drill.harm)
            yield from (f"        {text}" for text in [*drill.invalid, *drill.wrong])
            if not drill.reverted:
                yield f"        a fault could not be reverted: `hashidrill heal {drill.recording}`"
            if drill.verdict is not Verdict.PASS:
                yield f"        recording: {drill.recording}"
        yield from self.notes


def _course(drill: Drill) -> str:
    parts = [drill.reached or "no diagnosis"]
    if drill.diagnosed_s is not None:
        parts[0] += f" after {drill.diagnosed_s:.0f}s"
    if drill.acted_s is not None:
        parts.append(f"acted after {drill.acted_s:.0f}s")
    elif drill.look_alike:
        parts.append("did nothing")
    if drill.back_s is not None:
        parts.append(f"users back after {drill.back_s:.0f}s")
    return ", ".join(parts)


def badge_of(rehearsal: Rehearsal, today: dt.date) -> str:
    """The badge line. Raises UsageError for a rehearsal that earns none."""
    looks = list(dict.fromkeys(drill.experiment for drill in rehearsal.drills if drill.look_alike))
    real = list(dict.fromkeys(drill.experiment for drill in rehearsal.drills if not drill.look_alike))
    if rehearsal.verdict is not Verdict.PASS or not real or len(looks) < ENOUGH_LOOK_ALIKES:
        raise UsageError(
            f"{rehearsal.runbook.path}: no badge: it takes a PASS on an experiment and {ENOUGH_LOOK_ALIKES} look-alikes"
        )
    found = {name: version for drill in rehearsal.drills for name, version in drill.versions.items()}
    with_ = ", ".join(f"{name.capitalize()} {found[name]}" for name in _PRODUCTS if name in found)
    return f"{BADGE}{today.isoformat()} with {with_}: {', '.join(real)}; look-alikes {', '.join(looks)}."


def write_badge(path: Path, line: str) -> None:
    """Puts it in the place of the old one, or below the title. Raises UsageError."""
    text = path.read_text(encoding="utf-8")
    old = re.compile(rf"^(?:{re.escape(BADGE)}.*|{re.escape(NEVER)})$", re.MULTILINE)
    if old.search(text):
        new = old.sub(lambda _: line, text, count=1)
    else:
        new = re.sub(r"^# .*$", lambda found: f"{found[0]}\n\n{line}", text, count=1, flags=re.MULTILINE)
    try:
        mode = path.stat().st_mode & 0o777
        write_whole(path, new)
        path.chmod(mode)
    except OSError as error:
        raise UsageError(f"{path}: the badge cannot be written: {error.strerror}") from None
