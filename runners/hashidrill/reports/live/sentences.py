"""One event of a run as one line: English for a terminal, a log or a page, JSON for programs that watch the run."""

import io
import os
from typing import TextIO

from hashidrill.core.errors import NOT_READY
from hashidrill.core.protocols.events import (
    Attended,
    Change,
    End,
    Event,
    Guardrail,
    Intent,
    Level,
    Marked,
    Note,
    Phase,
    Proof,
    Steady,
    Waiting,
    encode,
)
from hashidrill.reports.text import one_line

ALARMS = {"fault.unproven", "fault.failed", "fault.faded", "fault.stuck", "guardrail"}
"""Events that a watcher must not miss."""


class Sentences:
    """Remembers the faults of a run from their intents, so that later events can name them."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def of(self, event: Event) -> str:
        """One event as one line; "" without a text."""
        match event:
            case Intent() | Proof() | Change():
                line = self._fault_sentence(event)
            case Marked():
                line = f"mark {words(event.mark)} {'begins' if event.event == 'mark.begin' else 'ends'}"
            case Phase():
                line = f"phase {phase}" if (phase := words(event.phase)) else ""
            case Guardrail():
                line = f"guardrail tripped: {words(event.condition)} {_in_brackets(event.evidence)}"
            case Steady():
                line = f"the steady state {'held' if event.held else 'did not hold'} {_in_brackets(event.evidence)}"
            case Level() | Note() | Waiting() | Attended():
                line = words(event.text)
            case End():
                outcome = "the datacenter never got ready" if NOT_READY in event.error else words(event.outcome)
                line = f"the run ended: {outcome}{_after_colon(event.error)}"
            case _:
                line = ""
        return line.rstrip()

    def _fault_sentence(self, event: Intent | Proof | Change) -> str:
        if isinstance(event, Intent):
            self._labels[event.fault_id] = f"{words(event.kind) or 'fault'} on {words(event.target.host) or '?'}"
            params = ", ".join(f"{words(k)}={words(v)}" for k, v in event.params.items())
            return f"{self._labels[event.fault_id]}: applying{f' ({params})' if params else ''}"
        label = self._labels.get(event.fault_id, f"fault {words(event.fault_id)}")
        measured, asked = words(event.evidence.measured), words(event.evidence.asked)
        found = f": measured {measured} (asked: {asked})" if asked and measured else ""
        what = event.event.removeprefix("fault.")
        if isinstance(event, Proof):
            sentences = {
                "proven": f"{label}: proven in force{found}",
                "unproven": f"{label}: NOT PROVEN in force{found}",
                "still": f"{label}: still in force{found}",
                "faded": f"{label}: NO LONGER in force{found}",
                "gone": f"{label}: proven gone{f', measured {measured}' if measured else ''}",
            }
            return sentences.get(what, "")
        reason = _after_colon(event.error or measured)
        sentences = {
            "failed": f"{label}: could not be applied{reason}",
            "undone": f"{label}: undone by {words(event.by)}, as planned",
            "moved": f"{label}: given up, because {words(event.on)} is now another host",
            "reverted": f"{label}: reverted",
            "stuck": f"{label}: COULD NOT BE REVERTED{reason}",
        }
        return sentences.get(what, "")


def words(value: object) -> str:
    """Any scalar as one printable line; "" for other values."""
    return one_line(str(value), 300) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def _in_brackets(text: str) -> str:
    return f"({words(text)})" if text.strip() else ""


def _after_colon(text: str) -> str:
    return f": {words(text)}" if text else ""


class JsonLines:
    """Subscribes to the events of a run, and writes each at once as one line of JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def event(self, event: Event) -> None:
        """Raises OSError if the reader is gone or the disk is full; the bus then stops calling it."""
        try:
            self._out.write(encode(event) + "\n")
            self._out.flush()
        except OSError:
            _forget(self._out)
            raise


def _forget(out: TextIO) -> None:
    """Discards the unwritten output: otherwise Python fails to write it at exit, and exits with 120."""
    try:
        fd = out.fileno()
    except io.UnsupportedOperation:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)
