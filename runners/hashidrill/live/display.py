"""Shows a run while it goes on, and its verdict at the end.

On a terminal: phase, leader, faults in force, loads with sparklines, the last events. Without a terminal: one
plain line per event, and a status line every five seconds. Showing an event never ends a run, whatever it holds.
"""

from __future__ import annotations

import math
import shlex
import textwrap
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hashidrill.reports.figures import experiment_title, how_it_ended
from hashidrill.reports.sections import FINDINGS, SYMBOLS, meaning
from hashidrill.reports.text import (
    for_encoding,
    human_countdown,
    human_duration,
    human_rate,
    human_share,
    is_laid_out,
    one_line,
    plain_line,
    printable,
    sparkline,
)
from hashidrill.verdict import Finding, RunVerdict, Verdict

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from hashidrill.recording.reader import Recording

TICKS = 60
STATUS_EVERY_NS = 5_000_000_000
RECENT = 6
_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INVALID: "yellow"}


def _latency(seconds: float | None) -> str:
    """A failed operation is never served, however fast it failed."""
    return "never" if seconds == math.inf else human_duration(seconds)


_METRICS = (("p50", "p50_s", _latency), ("p99", "p99_s", _latency), ("errors", "errors", human_share))


class LiveView:
    """A context manager; `event` takes each entry of the journal, and each tick, as the engine streams them."""

    def __init__(self, console: Console, title: str, *, plain: bool) -> None:
        self._console = console
        self._title = one_line(title)
        self._plain = plain
        self._live: Live | None = None
        self._tick: Mapping[str, Any] = {}
        self._phase = ""
        self._history: dict[str, dict[str, deque[float | None]]] = {}
        self._labels: dict[str, str] = {}
        self._recent: deque[tuple[str, str]] = deque(maxlen=RECENT)
        self._next_status_ns = 0

    def __enter__(self) -> Self:
        if self._plain:
            say(self._console, self._title)
        else:
            # refreshed by events alone: a tick comes twice a second, and a thread of its own could outlive the run
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
            self._refresh()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def event(self, event: Mapping[str, Any]) -> None:
        """Show one event. Unknown events and missing or odd fields are left out; nothing is raised for them."""
        t_ns = _number(event.get("t_ns")) or 0.0
        if event.get("event") == "tick":
            self._on_tick(event, t_ns)
        elif line := self._sentence(event):
            style = "red" if event.get("event") in _ALARMS else ""
            moment = f"{t_ns / 1e9:7.1f} s"
            self._recent.append((f"{moment}  {line}", style))
            if self._plain:
                say(self._console, f"[{moment}] {line}")
        self._refresh()

    def _on_tick(self, tick: Mapping[str, Any], t_ns: float) -> None:
        self._tick = tick
        self._phase = _words(tick.get("phase")) or self._phase
        for name, load in _mapping(tick.get("loads")).items():
            history = self._history.setdefault(_words(name), {key: deque(maxlen=TICKS) for _, key, _ in _METRICS})
            for _, key, _ in _METRICS:
                history[key].append(_number(_mapping(load).get(key)))
        if self._plain and t_ns >= self._next_status_ns:
            self._next_status_ns = int(t_ns) + STATUS_EVERY_NS
            say(self._console, f"[{t_ns / 1e9:7.1f} s] {self._status()}")

    def _sentence(self, event: Mapping[str, Any]) -> str:
        """One event as one line, empty when there is nothing to say about it."""
        kind = _words(event.get("event"))
        if kind.startswith("fault."):
            return self._fault_sentence(kind.removeprefix("fault."), event)
        if kind == "phase":
            self._phase = _words(event.get("phase"))
        error = _words(event.get("error"))
        held = "held" if event.get("held") else "did not hold"
        sentences = {
            "phase": f"phase {self._phase}" if self._phase else "",
            "guardrail": f"guardrail tripped: {_words(event.get('condition'))} {_evidence_words(event)}",
            "steady": f"the steady state {held} {_evidence_words(event)}",
            "search": _words(event.get("text")),
            "note": _words(event.get("text")),
            "end": f"the run ended: {_words(event.get('outcome'))}{f': {error}' if error else ''}",
        }
        return sentences.get(kind, "").rstrip()

    def _fault_sentence(self, what: str, event: Mapping[str, Any]) -> str:
        evidence = _mapping(event.get("evidence"))
        measured, asked = _words(evidence.get("measured")), _words(evidence.get("asked"))
        error = _words(event.get("error"))
        fault_id = _words(event.get("fault_id"))
        if what == "intent":
            target = _mapping(event.get("target"))
            self._labels[fault_id] = f"{_words(event.get('kind')) or 'fault'} on {_words(target.get('host')) or '?'}"
        label = self._labels.get(fault_id, f"fault {fault_id}")
        if what == "intent":
            params = ", ".join(f"{_words(k)}={_words(v)}" for k, v in _mapping(event.get("params")).items())
            return f"{label}: applying{f' ({params})' if params else ''}"
        found = f": measured {measured} (asked: {asked})" if asked and measured else ""
        reason = error or measured or _evidence_words(event)
        sentences = {
            "proven": f"{label}: proven in force{found}",
            "unproven": f"{label}: NOT PROVEN in force{found}",
            "failed": f"{label}: could not be applied{f': {reason}' if reason else ''}",
            "still": f"{label}: still in force{found}",
            "faded": f"{label}: NO LONGER in force{found}",
            "undone": f"{label}: undone by {_words(event.get('by'))}, as planned",
            "moved": f"{label}: given up, because {_words(event.get('on'))} is now another host",
            "reverted": f"{label}: reverted",
            "gone": f"{label}: proven gone{f', measured {measured}' if measured else ''}",
            "stuck": f"{label}: COULD NOT BE REVERTED{f': {reason}' if reason else ''}",
        }
        return sentences.get(what, "")

    # ---- what is in force now

    def _t_ns(self) -> float:
        return _number(self._tick.get("t_ns")) or 0.0

    def _left(self, ends_ns: object) -> str:
        ends = _number(ends_ns)
        return f"{human_countdown((ends - self._t_ns()) / 1e9)} left" if ends is not None else ""

    def _faults(self) -> list[str]:
        faults = self._tick.get("faults")
        found = []
        for fault in faults if isinstance(faults, (list, tuple)) else []:
            fields = _mapping(fault)
            label = f"{_words(fields.get('kind')) or 'fault'} on {_words(fields.get('host')) or '?'}"
            found.append(_spaced(label, self._left(fields.get("ends_ns"))))
        return found

    def _leader(self) -> str:
        return _words(self._tick.get("leader")) or "none"

    def _status(self) -> str:
        """The plain status line."""
        phase = _spaced(self._phase or "starting", self._left(self._tick.get("phase_ends_ns")))
        loads = [
            f"{_words(name)} {human_rate(_number(_mapping(load).get('rate')))} "
            + " ".join(f"{title} {human(_number(_mapping(load).get(key)))}" for title, key, human in _METRICS)
            for name, load in _mapping(self._tick.get("loads")).items()
        ]
        faults = ", ".join(self._faults()) or "no fault in force"
        return " | ".join([phase, f"leader {self._leader()}", faults, *loads])

    # ---- the terminal

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._screen(), refresh=True)

    def _screen(self) -> Group:
        width, height = self._console.width, self._console.height
        phase = _spaced(self._phase or "starting", self._left(self._tick.get("phase_ends_ns")))
        clock = human_countdown(self._t_ns() / 1e9)
        lines = [
            self._text(self._title, "bold"),
            self._text(f"phase   {phase}  ({clock} into the run)"),
            self._text(f"leader  {self._leader()}", "red" if self._tick and self._leader() == "none" else ""),
        ]
        faults = self._faults()
        # faults beyond these few are counted, so that the loads stay on the screen
        shown = faults[:4] if len(faults) > 5 else faults
        lines += [self._text(f"{'fault' if n == 0 else '':<6}  {fault}", "yellow") for n, fault in enumerate(shown)]
        if len(faults) > len(shown):
            lines.append(self._text(f"        and {len(faults) - len(shown)} more", "yellow"))
        if not faults:
            lines.append(self._text("fault   none in force", "dim"))
        loads = _mapping(self._tick.get("loads"))
        free = height - len(lines) - 2
        roomy = len(loads) * 4 + 3 <= free
        body = self._blocks(loads, width) if roomy else self._rows(loads, width)
        used = len(loads) * 4 if roomy else len(loads) + 1
        events = [self._text(line, style or "dim") for line, style in list(self._recent)[-max(free - used - 1, 1) :]]
        return Group(*lines, Text(""), body, *([Text("")] if events and free > used + 1 else []), *events)

    def _blocks(self, loads: Mapping[str, Any], width: int) -> Group:
        """Each load as a line and three sparklines of all the ticks that are kept."""
        lines = []
        for name, load in loads.items():
            fields = _mapping(load)
            lines.append(self._text(f"{_words(name)}  {human_rate(_number(fields.get('rate')))}", "bold"))
            for title, key, human in _METRICS:
                line = self._text(f"  {title:<7}{human(_number(fields.get(key))):>10}  ")
                line.append_text(self._spark(name, key, min(TICKS, width - 22)))
                lines.append(line)
        return Group(*lines)

    def _rows(self, loads: Mapping[str, Any], width: int) -> Table:
        """Each load on one row, for when there are many or the terminal is low."""
        table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column("load", no_wrap=True, overflow=self._overflow(), max_width=max(width // 6, 8))
        table.add_column("rate", justify="right", no_wrap=True, overflow="crop")
        for title, _, _ in _METRICS:
            table.add_column(title, no_wrap=True, overflow="crop")
        size = (width - max(width // 6, 8) - 7 - 3 * 11) // 3 - 1
        for name, load in loads.items():
            fields = _mapping(load)
            cells = [self._text(_words(name)), self._text(human_rate(_number(fields.get("rate"))))]
            for _, key, human in _METRICS:
                value = human(_number(fields.get(key)))
                if size < 4:  # a terminal this narrow has room for the numbers alone
                    cells.append(self._text(value))
                    continue
                cell = self._text(f"{value:>8} ")
                cells.append(cell.append_text(self._spark(name, key, min(TICKS, size))))
            table.add_row(*cells)
        return table

    def _spark(self, name: object, key: str, width: int) -> Text:
        values = self._history.get(_words(name), {}).get(key, ())
        ascii_only = for_encoding("▁", self._console.encoding) != "▁"
        line = sparkline(values, width, ascii_only=ascii_only)
        bad = key == "errors" and any(value for value in values if value)
        return Text(line, "red" if bad else "cyan", no_wrap=True, overflow="crop")

    def _overflow(self) -> Literal["crop", "ellipsis"]:
        """How a line that is too long ends: rich's mark for that is not ASCII."""
        return "ellipsis" if for_encoding("…", self._console.encoding) == "…" else "crop"

    def _text(self, line: str, style: str = "") -> Text:
        return Text(for_encoding(line, self._console.encoding), style, no_wrap=True, overflow=self._overflow())


_LONGEST = 4000
_ALARMS = {"fault.unproven", "fault.failed", "fault.faded", "fault.stuck", "guardrail"}


def final_summary(console: Console, verdict: RunVerdict, recording: Recording, report_path: Path | None) -> None:
    """The verdict, each expectation, why the run is INVALID, the report, and what to do next."""
    result = verdict.verdict
    say(console, "")
    say(console, f"{SYMBOLS[result]} {result.value}  {experiment_title(recording)}", f"bold {_COLOURS[result]}")
    say(console, f"  {meaning(verdict)}")
    if ended := how_it_ended(recording):
        say(console, f"  {ended}", "yellow")
    for reason in (*verdict.invalid, *verdict.doubts):
        say(console, f"  ! {reason}", "yellow")
    for judgement in verdict.judgements:
        symbol, word = FINDINGS[judgement.finding]
        say(console, f"  {symbol} {judgement.title}", _FINDING_COLOURS[judgement.finding])
        issue = f" ({judgement.known_issue})" if judgement.known_issue else ""
        note = "" if judgement.finding in {Finding.HELD, Finding.BROKEN} else f"{word}{issue}: "
        if judgement.text or note:
            _paragraphs(console, f"{note}{judgement.text}".rstrip(": "))
    for note in verdict.notes:
        say(console, f"  note: {note}", "yellow")
    say(console, "")
    if report_path is not None:
        say(console, f"  report     {report_path}")
    for name, command in _next_steps(verdict, recording):
        say(console, f"  {name:<9}  {command}")


def _paragraphs(console: Console, text: str) -> None:
    """Indented, line by line. Where a person reads it, lines are folded between words; rows of a table never are."""
    width = max(20, console.width - 4) if console.is_terminal else _LONGEST
    for line in printable(text, _LONGEST).splitlines():
        folded = [line] if is_laid_out(line) else textwrap.wrap(one_line(line, _LONGEST), width)
        for part in folded:
            say(console, f"    {part}")


_FINDING_COLOURS = {
    Finding.HELD: "green", Finding.BROKEN: "red", Finding.FIXED: "red",
    Finding.INVALID: "yellow", Finding.KNOWN: "blue",
}  # fmt: skip


def _next_steps(verdict: RunVerdict, recording: Recording) -> list[tuple[str, str]]:
    path = shlex.quote(str(recording.path))
    steps = [("recording", str(recording.path))]
    if recording.outcome in {"revert", "died"}:
        steps.append(("heal", f"hashidrill heal {path}"))
    if verdict.verdict is not Verdict.PASS and (recording.path / "logs").is_dir():
        steps.append(("logs", str(recording.path / "logs")))
    steps.append(("judge it", f"hashidrill check {path}"))
    if command := recording.run.get("command"):
        steps.append(("run again", str(command)))
    return steps


def say(console: Console, line: str, style: str = "") -> None:
    """One line as it is: no markup in it is read, no escape sequence passes, and a log does not fold it."""
    console.print(Text(for_encoding(plain_line(line), console.encoding), style), soft_wrap=True, highlight=False)


def _words(value: object) -> str:
    """Any scalar as one printable line, empty for what is none."""
    return one_line(str(value), 300) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _evidence_words(event: Mapping[str, Any]) -> str:
    """Evidence as words, whether it is a sentence, what an observer measured, or a mapping of figures."""
    evidence = event.get("evidence")
    if isinstance(evidence, Mapping):
        pairs = evidence.items()
        text = _words(evidence.get("measured")) or ", ".join(f"{_words(k)} {_words(v)}" for k, v in pairs)
    elif isinstance(evidence, (list, tuple)):
        text = "; ".join(_words(item) for item in evidence)
    else:
        text = _words(evidence)
    return f"({text})" if text.strip() else ""


def _spaced(first: str, second: str) -> str:
    return f"{first}, {second}" if second else first
