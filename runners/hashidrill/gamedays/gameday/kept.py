"""Days that were begun: where they are, and what they were begun with."""

from __future__ import annotations

from pathlib import Path

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.util.files import COMPARISON_NAME, JOURNAL_NAME
from hashidrill.gamedays.gameday.journal import DAY_JOURNAL, DayJournal
from hashidrill.gamedays.gameday.plan import Plan, Resolve, read_plan

DAY_FILE = "day.yaml"


def find_day(name: str | None, days: Path, *, open_only: bool = False) -> Path:
    """A day's folder. Raises UsageError."""
    there = sorted(path.parent for path in days.glob(f"*/{DAY_JOURNAL}"))
    if name is None or name == "last":
        for path in reversed(there):
            if not open_only or "end" not in DayJournal.read(path).done:
                return path.absolute()
        what = "no day that is not over" if open_only else "no days yet"
        raise UsageError(f"{days}: {what}; begin one with `hashidrill gameday run FILE`")
    for path in (Path(name), days / name):
        if (path / DAY_JOURNAL).is_file():
            return path.absolute()
    raise UsageError(f"there is no day {name!r}; those in {days}: {', '.join(path.name for path in there) or 'none'}")


def recordings_of(left: Path) -> list[Path]:
    """The recordings that a run left: itself, or those of a comparison."""
    if (left / JOURNAL_NAME).is_file():
        return [left]
    around = left.parent if (left / COMPARISON_NAME).is_file() else left
    return sorted(path.parent for path in around.glob(f"*/{JOURNAL_NAME}"))


def plan_of_day(folder: Path, journal: DayJournal, *, over: Resolve = resolve) -> Plan:
    """What the day was begun with. Raises ExperimentError for what does not read any more."""
    return read_plan(folder / DAY_FILE, folder=Path(str(journal.head["folder"])), over=over)


def changed(plan: Plan, journal: DayJournal) -> list[str]:
    """What is not as it was when the day began: the day's own file, and experiments by their names.

    Days of before there was a checksum are taken at their word.
    """
    own = [DAY_FILE] if journal.head.get("sha256", plan.sha256) != plan.sha256 else []
    return own + [name for name, source in plan.sources.items() if journal.head["sources"].get(name) != source]
