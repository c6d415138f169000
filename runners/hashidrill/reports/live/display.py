"""Shows a run while it goes on, and its verdict at the end.

On a terminal: phase, leader, faults in force, loads with sparklines, the last events. Without a terminal: one
plain line per event, and a status line every five seconds.
"""

import math
import shlex
import textwrap
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hashidrill.core.compare.judged import ComparisonVerdict
from hashidrill.core.judging.verdict import Finding, Judgement, RunVerdict, Verdict
from hashidrill.core.protocols.events import Attended, Event, Figures, Phase, Tick
from hashidrill.core.recording.provenance import judging_again
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.durations import so_far
from hashidrill.reports import compared
from hashidrill.reports.figures import experiment_title, how_it_ended
from hashidrill.reports.followed import FollowedStep, step_lines, step_of
from hashidrill.reports.html import FINDINGS, SYMBOLS, attached_to, meaning
from hashidrill.reports.live.sentences import ALARMS, Sentences, words
from hashidrill.reports.story import story
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

TICKS = 60
STATUS_EVERY_NS = 5_000_000_000
RECENT = 6
COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INVALID: "yellow"}


def _latency(seconds: float | None) -> str:
    """A failed operation is never served, however fast it failed."""
    return "never" if seconds == math.inf else human_duration(seconds)


_METRICS = (("p50", "p50_s", _latency), ("p99", "p99_s", _latency), ("errors", "errors", human_share))


class LiveView:
    """A context manager; `event` subscribes to the events of a run.

    `expected_s`: seconds that the run takes. `whole`: a text that says which larger task the run belongs to; it may
    change during the run.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        *,
        plain: bool,
        expected_s: float | None = None,
        whole: object = None,
    ) -> None:
        self._console = console
        self._title = one_line(title)
        self._plain = plain or not console.is_terminal
        self._live: Live | None = None
        self._expected_s, self._whole = expected_s, whole
        self._tick = Tick()
        self._phase = ""
        self._history: dict[str, dict[str, deque[float | None]]] = {}
        self._sentences = Sentences()
        self._recent: deque[tuple[str, str]] = deque(maxlen=RECENT)
        self._next_status_ns = 0

    def __enter__(self) -> Self:
        if self._plain:
            say(self._console, self._title if self._whole is None else f"[{self._whole}] {self._title}")
        else:
            # refreshed by events alone: a tick comes twice a second, and a thread of its own could outlive the run
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
            self._refresh()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def event(self, event: Event) -> None:
        """Shows one event, unless the event has no text here."""
        if isinstance(event, Phase):
            self._phase = words(event.phase)
        if isinstance(event, Tick):
            self._on_tick(event)
        elif isinstance(event, Attended) and event.what:
            self._on_step(step_of(event.t_ns, vars(event)))
        elif line := self._sentences.of(event):
            style = "red" if event.event in ALARMS else ""
            moment = f"{event.t_ns / 1e9:7.1f} s"
            self._recent.append((f"{moment}  {line}", style))
            if self._plain:
                say(self._console, f"[{moment}] {line}")
        self._refresh()

    def _on_step(self, step: FollowedStep | None) -> None:
        """Lines about manual actions stay on the terminal, above the part that changes."""
        if step is None:
            return
        self._recent = deque(self._recent, maxlen=2)  # on a low terminal the steps need the room
        moment = f"[{step.at_s:7.1f} s] "
        for number, line in enumerate(step_lines(step)):
            style = "bold" if step.what in {"pager", "decided", "undecided", "done"} and number == 0 else ""
            for part in folded(f"{moment if number == 0 else ' ' * len(moment)}{line}", self._console):
                say(self._console, part, style)

    def _on_tick(self, tick: Tick) -> None:
        self._tick = tick
        self._phase = words(tick.phase) or self._phase
        for name, load in tick.loads.items():
            history = self._history.setdefault(name, {key: deque(maxlen=TICKS) for _, key, _ in _METRICS})
            for _, key, _ in _METRICS:
                history[key].append(getattr(load, key))
        back = tick.t_ns < self._next_status_ns - STATUS_EVERY_NS
        if self._plain and (tick.t_ns >= self._next_status_ns or back):
            self._next_status_ns = tick.t_ns + STATUS_EVERY_NS
            say(self._console, f"[{tick.t_ns / 1e9:7.1f} s] {self._status()}")

    # ---- what is in force now

    def _left(self, ends_ns: int | None) -> str:
        return f"{human_countdown((ends_ns - self._tick.t_ns) / 1e9)} left" if ends_ns is not None else ""

    def _faults(self) -> list[str]:
        return [
            _spaced(f"{words(fault.kind)} on {words(fault.host) or '?'}", self._left(fault.ends_ns))
            for fault in self._tick.faults
        ]

    def _marks(self) -> list[str]:
        return [_spaced(words(mark.mark), self._left(mark.ends_ns)) for mark in self._tick.marks]

    def _leaders(self) -> list[tuple[str, str]]:
        return [(words(title), words(name) or "none") for title, name in self._tick.leaders]

    def _status(self) -> str:
        phase = _spaced(self._phase or "starting", self._left(self._tick.phase_ends_ns))
        loads = [
            f"{words(name)} {human_rate(load.rate)} "
            + (f"({_waiting(load)}) " if load.waiting else "")
            + " ".join(f"{title} {human(getattr(load, key))}" for title, key, human in _METRICS)
            for name, load in self._tick.loads.items()
        ]
        faults = ", ".join(self._faults()) or "no fault in force"
        marks = [f"mark {mark}" for mark in self._marks()]
        leaders = [f"{title} {name}" for title, name in self._leaders()]
        unmet = [f"waits for {words(condition)}" for condition in self._tick.unmet]
        return " | ".join([phase, *unmet, *leaders, faults, *marks, *loads])

    # ---- the terminal

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._screen(), refresh=True)

    def _screen(self) -> Group:
        width, height = self._console.width, self._console.height
        phase = _spaced(self._phase or "starting", self._left(self._tick.phase_ends_ns))
        clock = so_far(self._tick.t_ns / 1e9, self._expected_s)
        lines = [
            self._text(self._title, "bold"),
            *([] if self._whole is None else [self._text(f"all     {self._whole}")]),
            self._text(f"phase   {phase}  ({clock} into the run)"),
            *(self._text(f"{title:<6}  {name}", "red" if name == "none" else "") for title, name in self._leaders()),
        ]
        faults = self._faults()
        # faults beyond these few are counted, so that the loads stay on the screen
        most = 4 if self._tick.marks else 5
        shown = faults[: most - 1] if len(faults) > most else faults
        lines += [self._text(f"{'fault' if n == 0 else '':<6}  {fault}", "yellow") for n, fault in enumerate(shown)]
        if len(faults) > len(shown):
            lines.append(self._text(f"        and {len(faults) - len(shown)} more", "yellow"))
        if not faults:
            lines.append(self._text("fault   none in force", "dim"))
        if self._tick.marks:
            lines.append(self._text(f"mark    {'; '.join(self._marks())}", "yellow"))
        lines += [self._text(f"waits   {words(condition)}", "yellow") for condition in self._tick.unmet[:3]]
        loads = self._tick.loads
        free = height - len(lines) - 2
        roomy = len(loads) * 4 + 3 <= free
        body = self._blocks(loads, width) if roomy else self._rows(loads, width)
        used = len(loads) * 4 if roomy else len(loads) + 1
        events = [self._text(line, style or "dim") for line, style in list(self._recent)[-max(free - used - 1, 1) :]]
        return Group(*lines, Text(""), body, *([Text("")] if events and free > used + 1 else []), *events)

    def _blocks(self, loads: Mapping[str, Figures], width: int) -> Group:
        """Draws each load as a line and three sparklines of all the stored ticks."""
        lines = []
        for name, load in loads.items():
            head = self._text(f"{words(name)}  {human_rate(load.rate)}", "bold")
            if load.waiting:
                head.append_text(self._text(f"  {_waiting(load)}", "red"))
            lines.append(head)
            for title, key, human in _METRICS:
                line = self._text(f"  {title:<7}{human(getattr(load, key)):>10}  ")
                line.append_text(self._spark(name, key, min(TICKS, width - 22)))
                lines.append(line)
        return Group(*lines)

    def _rows(self, loads: Mapping[str, Figures], width: int) -> Table:
        """Each load on one row, for when there are many or the terminal is low."""
        table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column("load", no_wrap=True, overflow=self._overflow(), max_width=max(width // 6, 8))
        table.add_column("rate", justify="right", no_wrap=True, overflow="crop")
        for title, _, _ in _METRICS:
            table.add_column(title, no_wrap=True, overflow="crop")
        size = (width - max(width // 6, 8) - 7 - 3 * 11) // 3 - 1
        for name, load in loads.items():
            cells = [self._text(words(name)), self._text(human_rate(load.rate))]
            for _, key, human in _METRICS:
                value = human(getattr(load, key))
                if key == "errors" and load.waiting and load.errors is None:
                    value = "waiting"
                if size < 4:  # a terminal this narrow has room for the numbers alone
                    cells.append(self._text(value))
                    continue
                cell = self._text(f"{value:>8} ")
                cells.append(cell.append_text(self._spark(name, key, min(TICKS, size))))
            table.add_row(*cells)
        return table

    def _spark(self, name: str, key: str, width: int) -> Text:
        values = self._history.get(name, {}).get(key, ())
        ascii_only = for_encoding("▁", self._console.encoding) != "▁"
        line = sparkline(values, width, ascii_only=ascii_only)
        bad = key == "errors" and any(value for value in values if value)
        return Text(line, "red" if bad else "cyan", no_wrap=True, overflow="crop")

    def _overflow(self) -> Literal["crop", "ellipsis"]:
        """The end of a truncated line: rich's own mark is not ASCII."""
        return "ellipsis" if for_encoding("…", self._console.encoding) == "…" else "crop"

    def _text(self, line: str, style: str = "") -> Text:
        return Text(for_encoding(line, self._console.encoding), style, no_wrap=True, overflow=self._overflow())


_LONGEST = 4000


def final_summary(console: Console, verdict: RunVerdict, recording: Recording, report_path: Path | None) -> None:
    """The verdict, each expectation, why the run is INVALID, the report, and what to do next."""
    result = verdict.verdict
    say(console, "")
    where = f" (against {name})" if (name := attached_to(recording)) else ""
    say(console, f"{SYMBOLS[result]} {result.value}  {experiment_title(recording)}{where}", f"bold {COLOURS[result]}")
    say(console, f"  {meaning(verdict)}")
    told = story(recording, verdict)
    if told.warning:
        say(console, f"  {told.warning}", "yellow")
    if not verdict.invalid and (ended := how_it_ended(recording)):
        say(console, f"  {ended}", "yellow")
    for reason in (*verdict.invalid, *verdict.doubts):
        say(console, f"  ! {reason}", "yellow")
    _paragraphs(console, " ".join(told.sentences), "  ")
    _paragraphs(console, told.closest, "  ")
    say_judgements(console, verdict.judgements, verdict.text_of)
    for note in verdict.notes:
        say(console, f"  note: {note}", "yellow")
    say(console, "")
    for what, how in told.next:
        say(console, f"  {what}{':' if how else '.'}")
        if how:
            say(console, f"    {how}")
    if report_path is not None:
        say(console, f"  report     {report_path}")
    say(console, f"  recording  {recording.path}")
    say(console, f"  judge it   {judging_again(recording.path)}")


def say_judgements(
    console: Console, judgements: Sequence[Judgement], text_of: Callable[[Judgement], str] = lambda each: each.text
) -> None:
    """Lists each judgement with its finding, and below it its evidence, unless `text_of` gives another text."""
    for judgement in judgements:
        symbol, word = FINDINGS[judgement.finding]
        say(console, f"  {symbol} {judgement.title}", _FINDING_COLOURS[judgement.finding])
        issue = f" ({judgement.known_issue})" if judgement.known_issue else ""
        note = "" if judgement.finding in {Finding.HELD, Finding.BROKEN} else f"{word}{issue}: "
        text = text_of(judgement)
        if text != judgement.text:
            continue
        if text or note:
            _paragraphs(console, f"{note}{text}".rstrip(": "))


def _paragraphs(console: Console, text: str, indent: str = "    ") -> None:
    """Prints text indented. On a terminal, lines are wrapped between words; table rows are never wrapped."""
    width = max(20, console.width - 4) if console.is_terminal else _LONGEST
    for line in printable(text, _LONGEST).splitlines():
        folded = [line] if is_laid_out(line) else textwrap.wrap(one_line(line, _LONGEST), width)
        for part in folded:
            say(console, f"{indent}{part}")


_FINDING_COLOURS = {
    Finding.HELD: "green",
    Finding.BROKEN: "red",
    Finding.FIXED: "red",
    Finding.INVALID: "yellow",
    Finding.KNOWN: "blue",
}


def folded(line: str, console: Console) -> list[str]:
    """A line for a terminal: folded between words, with the same indentation."""
    if not console.is_terminal or len(line) <= console.width or " " not in line.strip():
        return [line]
    lead = " " * (len(line) - len(line.lstrip(" ")))
    return textwrap.wrap(
        line, max(console.width, 30), subsequent_indent=lead, break_long_words=False, break_on_hyphens=False
    )


def say(console: Console, line: str, style: str = "") -> None:
    """Prints one line literally: markup and escape sequences have no effect, and a log's line is not wrapped."""
    console.print(Text(for_encoding(plain_line(line), console.encoding), style), soft_wrap=True, highlight=False)


def _waiting(load: Figures) -> str:
    """Waiting operations have not failed, and may still be served: `42 waiting, up to 6.0 s`."""
    return f"{load.waiting} waiting, up to {human_duration(load.waited_s)}"


def _spaced(first: str, second: str) -> str:
    return f"{first}, {second}" if second else first


def comparison_summary(console: Console, verdict: ComparisonVerdict, folder: Path, report_path: Path | None) -> None:
    """Each comparison, the outcome of each run, the figures side by side, and what to do next."""
    result = verdict.verdict
    say(console, "")
    say(console, f"{SYMBOLS[result]} {result.value}  {verdict.title}", f"bold {COLOURS[result]}")
    say(console, f"  {compared.meaning(verdict)}")
    for reason in verdict.invalid:
        say(console, f"  ! {reason}", "yellow")
    say_judgements(console, verdict.comparisons)
    for run in verdict.runs:
        worth = Verdict.INVALID if run.refused else run.verdict.verdict
        where = f"{run.variant}, round {run.round}"
        say(console, f"  {SYMBOLS[worth]} {where}: {compared.run_line(run)}", COLOURS[worth])
    say(console, "")
    for line in compared.text_lines(verdict):
        say(console, f"  {line}")
    for note in verdict.notes:
        say(console, f"  note: {note}", "yellow")
    say(console, "")
    if report_path is not None:
        say(console, f"  report     {report_path}")
    say(console, f"  judge it   hashidrill check {shlex.quote(str(folder))}")
