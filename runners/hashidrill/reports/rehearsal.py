"""What the report of a rehearsal says of the runbook that was followed: step by step, as the recording has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hashidrill.core.judging.measure import SECOND
from hashidrill.reports.markup import Content, Html, el
from hashidrill.reports.sections import MOST_ROWS, section, table
from hashidrill.reports.text import one_line

if TYPE_CHECKING:
    from hashidrill.core.recording.journal import Entry
    from hashidrill.core.recording.reader import Recording

_HEADINGS = ("after the pager", "what", "where", "result")
_LONGEST = 300
_ABOUT = (
    "The fault was held until the runbook was done. A command is shown with the line of the page that it stands in;"
    " `check` is a confirm that was tried before the act, where it has to fail."
)


def followed(recording: Recording) -> Html | None:
    """Its section; None for a run in which nobody followed a runbook."""
    if not isinstance(recording.run.get("rehearsal"), Mapping):
        return None
    told = [entry for entry in recording.events("attended.did") if entry.data.get("what") != "agents"]
    began = next((entry.t_ns for entry in told if entry.data.get("what") == "pager"), None)
    if began is None:
        return section("The runbook, step by step", el("p", "The pager never went: the runbook was not followed."))
    rows = [row for entry in told if (row := _row(entry, began)) is not None]
    more = el("p", f"and {len(rows) - MOST_ROWS} more") if len(rows) > MOST_ROWS else None
    return section(
        "The runbook, step by step", table(_HEADINGS, rows[:MOST_ROWS]), more, el("p", _ABOUT, class_="note")
    )


def _row(entry: Entry, began_ns: int) -> Sequence[Content] | None:
    said = _told(entry.data)
    if said is None:
        return None
    what, where, result = said
    return (f"{(entry.t_ns - began_ns) / SECOND:.1f}s", what, where, el("code", result) if result else "")


def _told(data: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """(what, where, result); None for what another line says."""
    what, text = str(data.get("what")), one_line(str(data.get("text") or ""), _LONGEST)
    if what == "command":
        tried = "check" if data.get("control") else str(data.get("kind"))
        return f"{tried} (line {data.get('line')})", str(data.get("host")), _result(data)
    if what in {"observed", "acts", "control", "proof"}:
        return None if what in {"acts", "control"} else (what, "", text)
    return what, "", text


def _result(data: Mapping[str, Any]) -> str:
    code = data.get("code")
    ended = "did not end in time" if code is None else "" if code == 0 else f"exit {code}"
    return ": ".join(_said(ended, str(data.get("output") or ""), str(data.get("errors") or "") if code else ""))


def _said(*parts: str) -> Iterator[str]:
    yield from (one_line(part, _LONGEST) for part in parts if part.strip())
