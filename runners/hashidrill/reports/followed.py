"""The record of a followed runbook: each command, its answer, and which branch was taken and why, with times.

The same steps are lines on a terminal while the run goes on, rows of its reports, and a lane of its timeline. They come
from the recording alone (`attended.did`), which the journal cleared of secrets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hashidrill.core.recording.reader import Recording
from hashidrill.reports.document import Code, Section, Table
from hashidrill.reports.text import one_line, printable

TITLE = "The runbook, step by step"
LONGEST, MOST_LINES, MOST_STEPS = 300, 6, 200
"""The longest line, command or answer, and table that the report prints; the journal holds the full text."""
_ABOUT = (
    "The fault was held until the runbook was done. A step names its line of the page; `check` is a confirm that was"
    " tried before the act, when it must fail."
)
_UNSAID = {"agents", "acts", "control"}  # `observed` too, if it has a value
"""Events that another step already shows."""


@dataclass(frozen=True)
class FollowedStep:
    """One step. `what`: pager, observe, check, act, confirm, observed, decided, undecided, proof, confirmed or done.

    `at_s`: when the step ended, in seconds into the run; `after_s`: the same, after the pager, if known; `took_s`: how
    long a command ran.
    """

    at_s: float
    after_s: float | None
    what: str
    line: int | None
    host: str
    command: str
    answer: str
    took_s: float | None = None
    why: str = ""
    """For a decision: its condition, and the values seen."""
    failed: bool = False
    name: str = ""
    """The name of the observation."""

    def to_data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @property
    def is_command(self) -> bool:
        return self.what in {"observe", "check", "act", "confirm"}

    @property
    def title(self) -> str:
        """`observe leader on consul-1 (line 38)`"""
        where = f" on {self.host}" if self.host else ""
        line = f" (line {self.line})" if self.line is not None else ""
        return f"{' '.join(filter(None, (self.what, self.name)))}{where}{line}"


def followed_steps(recording: Recording) -> list[FollowedStep]:
    """The steps of a run, in order; none for a run without a runbook."""
    if not isinstance(recording.run.get("rehearsal"), Mapping):
        return []
    told = [(entry.t_ns, entry.data) for entry in recording.events("attended.did")]
    pager_ns = next((t_ns for t_ns, data in told if data.get("what") == "pager"), None)
    if pager_ns is None:
        return []
    return [step for t_ns, data in told if (step := step_of(t_ns, data, pager_ns)) is not None]


def step_of(t_ns: int, data: Mapping[str, Any], pager_ns: int | None = None) -> FollowedStep | None:
    """The step of one event; None if another step already shows the event."""
    what = str(data.get("what") or "")
    if not what or what in _UNSAID or (what == "observed" and data.get("value") is not None):
        return None
    line = data.get("line")
    took = data.get("took_s")
    is_command = what == "command"
    code = data.get("code")
    return FollowedStep(
        at_s=round(t_ns / 1e9, 3),
        after_s=None if pager_ns is None else round((t_ns - pager_ns) / 1e9, 3),
        what=("check" if data.get("control") else str(data.get("kind"))) if is_command else what,
        line=line if isinstance(line, int) else None,
        host=one_line(str(data.get("host") or ""), 120),
        command=_bounded(str(data.get("command") or "")) if is_command else "",
        answer=_answer(data)
        if is_command
        else ""
        if what == "confirmed"
        else one_line(str(data.get("text") or ""), LONGEST),
        took_s=float(took) if isinstance(took, (int, float)) else None,
        why=_why(data) if what in {"decided", "undecided"} else "",
        failed=is_command and code != 0,
        name=one_line(str(data.get("name") or ""), 60) if is_command else "",
    )


def _answer(data: Mapping[str, Any]) -> str:
    code = data.get("code")
    ended = "did not end in time" if code is None else "" if code == 0 else f"exit {code}"
    parts = (ended, str(data.get("output") or ""), str(data.get("errors") or "") if code != 0 else "")
    return _bounded("\n".join(part.strip("\n") for part in parts if part.strip())) or "(no output)"


def _bounded(text: str) -> str:
    lines = [_unfolded(line) for line in printable(text.strip("\n"), 8000).splitlines()]
    more = len(lines) - MOST_LINES
    return "\n".join(lines if more <= 1 else [*lines[:MOST_LINES], f"[{more} more lines]"])


def _unfolded(line: str) -> str:
    indented = " " * min(len(line) - len(line.lstrip(" ")), 12)
    return f"{indented}{one_line(line, LONGEST)}"


def _why(data: Mapping[str, Any]) -> str:
    because = data.get("because")
    seen = because if isinstance(because, Mapping) else {}
    saw = ", ".join(f"{name} = {'missing' if value is None else _shown(value)}" for name, value in seen.items())
    when = one_line(str(data.get("when") or ""), LONGEST)
    return ": ".join(filter(None, [when, saw]))


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value), 120)


HEADINGS = ("into the run", "after the pager", "what", "command", "answer or reason")


def step_rows(steps: Sequence[FollowedStep]) -> list[tuple[str | Code, ...]]:
    """A row for each step, below HEADINGS."""
    return [
        (
            f"{step.at_s:.1f} s",
            "" if step.after_s is None else f"{step.after_s:.1f} s",
            step.title,
            Code(step.command) if step.command else "",
            Code(step.answer) if step.is_command else "; because ".join(filter(None, [step.answer, step.why])),
        )
        for step in steps
    ]


def followed_section(recording: Recording) -> Section | None:
    """The steps of a run, for its reports; None for a run without a runbook."""
    if not isinstance(recording.run.get("rehearsal"), Mapping):
        return None
    steps = followed_steps(recording)
    if not steps:
        return Section(TITLE, ["The pager never went: the runbook was not followed."])
    more = len(steps) - MOST_STEPS
    rest = [f"and {more} more steps in the journal"] if more > 0 else []
    return Section(TITLE, [table_of(steps), *rest, _ABOUT])


def table_of(steps: Sequence[FollowedStep]) -> Table:
    return Table(HEADINGS, step_rows(steps[:MOST_STEPS]))


def step_lane(steps: Sequence[FollowedStep]) -> list[dict[str, Any]]:
    """Spans of the run in which commands of one kind ran: `observe`, `check`, `act`, `confirm`."""
    spans: list[dict[str, Any]] = []
    for step in steps:
        if step.is_command:
            start = round(step.at_s - (step.took_s or 0.0), 3)
            if spans and spans[-1]["label"] == step.what:
                spans[-1]["end"] = step.at_s
                spans[-1]["ok"] = not step.failed
            else:
                spans.append({"start": start, "end": step.at_s, "label": step.what, "ok": not step.failed})
    return spans


def step_marks(steps: Sequence[FollowedStep]) -> list[dict[str, Any]]:
    """When the pager went, a diagnosis was reached, a confirm held, and the runbook was done."""
    return [
        {"t": step.at_s, "kind": "runbook", "label": one_line(_mark(step), 120)}
        for step in steps
        if step.what in {"pager", "decided", "undecided", "confirmed", "done"}
    ]


def _mark(step: FollowedStep) -> str:
    said = step.answer.partition(":")[0] if step.what == "decided" else ""
    return f"{step.what}: {said}" if said else step.what


def step_lines(step: FollowedStep) -> Iterator[str]:
    """The step for a terminal: what, then the command and its answer, or the reason of a decision."""
    if step.is_command:
        yield f"{step.title}, {step.took_s or 0.0:.1f} s"
        yield from _indented("$ ", step.command)
        yield from _indented("> ", step.answer)
    else:
        yield f"{step.title}: {step.answer}" if step.answer else step.title
        if step.why:
            yield f"  because {step.why}"


def _indented(mark: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines()):
        yield f"  {mark if number == 0 else ' ' * len(mark)}{line}"
