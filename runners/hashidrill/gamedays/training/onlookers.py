"""Who looks on while a game is on: a page (hashidrill.gamedays.warroom), on which the trainer alone sees what is
hidden.

What the trainee and everybody else may see is what `hashidrill say users` tells, and how the game stands. Without
`--serve` there is no page, and nothing here does anything.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.events import Event, Note, Phase, Steady, Tick
from hashidrill.gamedays.training.pages import headline

if TYPE_CHECKING:
    from hashidrill.core.protocols.events import Judged
    from hashidrill.gamedays.training.card import Card
    from hashidrill.gamedays.training.course import Course
    from hashidrill.gamedays.warroom.room import Room

TRAINER = "for the trainer"
_ON_CALL = {"load", "steady", "method"}
"""Phases that look alike to who is on call: when the last of them begins, and the hidden fault, is not told."""
_TOLD_TO_ALL = {
    "detected": "says: I see that something is wrong",
    "done": "says: users are back",
    "give-up": "gives the game up",
    "hint": "buys a hint",
}


@dataclass
class Onlookers:
    """Call it in any thread; it never waits for a browser and never raises."""

    room: Room | None = None
    _state: str = ""
    """quiet, paged, watched: how the game stands, in place of the run's own phase."""

    def begins(self, course: Course) -> None:
        """The game can be stopped from now on."""
        if self.room is None:
            return
        self.room.begins(f"{course.name}, seed {course.choice.seed}: {course.truth.title}")
        hidden = course.truth.diagnosis.exact.replace("${host}", "the host of the fault")
        self.room.note(TRAINER, f"what is hidden: {hidden}")
        self.room.note(TRAINER, f"what repairs it: {course.truth.repair.replace('${host}', 'the host of the fault')}")

    def event(self, event: Event) -> None:
        """An event of the run."""
        if self.room is not None and (shown := self._shown(event)) is not None:
            self.room.tell(shown)

    def stands(self, state: str, t_ns: int) -> None:
        """The game is quiet, paged or watched from now on."""
        self._state = state
        if self.room is not None:
            self.room.tell(Phase(phase=state, t_ns=t_ns))

    def pager(self, text: str, hosts: Sequence[str]) -> None:
        """The pager went; the hosts of the hidden fault are known by now."""
        if self.room is not None:
            self.room.note("pager", text, watchers=True)
            self.room.note(TRAINER, f"the hidden fault is in force on {', '.join(hosts) or 'no host'}")

    def said(self, who: str, what: str, words: str, answer: str, *, right: bool) -> None:
        """Somebody said something. Words, hints, and whether a diagnosis is right are for the trainer."""
        if self.room is None:
            return
        if what in _TOLD_TO_ALL:
            self.room.note(who, _TOLD_TO_ALL[what], watchers=True)
        if what == "hint":
            self.room.note(who, f"got the hint: {answer}")
        elif what == "diagnosis":
            self.room.note(who, "says a diagnosis", watchers=True)
            self.room.note(who, f"diagnosis, {'right' if right else 'not right'}: {words}")

    def overruled(self, text: str) -> None:
        """The trainer decided about a diagnosis."""
        if self.room is not None:
            self.room.note(TRAINER, text)

    def did(self, who: str, what: str, host: str, text: str) -> None:
        """A command line of a shell (`typed`), or what became of an agent (`acted`): `restart consul`."""
        if self.room is not None:
            self.room.note(who, f"{host}$ {text}" if what == "typed" else f"agent on {host}: {text}")

    def over(self, card: Card, verdict: Judged) -> None:
        """The game was judged."""
        if self.room is None:
            return
        self.room.tell(verdict)
        self.room.note("score card", f"{card.trainee}: {headline(card)}", watchers=True)
        for text in (*card.reasons, *(harm.text for harm in card.harm)):
            self.room.note("score card", text)

    def _shown(self, event: Event) -> Event | None:
        """Without what tells when the hidden fault begins, and when it would end: the method's clock stands still."""
        match event:
            case Phase():
                return None if event.phase in _ON_CALL else replace(event, ends_ns=None)
            case Tick():
                phase = self._state if event.phase in _ON_CALL else event.phase
                return replace(event, phase=phase, phase_ends_ns=None)
            case Steady() if event.held:
                return Note(t_ns=event.t_ns, text=f"the steady state held ({event.evidence})")
            case _:
                return event


@contextlib.contextmanager
def page_of(
    asked: Mapping[str, Any] | None, trainee: str, say: Callable[[Mapping[str, Any]], None]
) -> Iterator[Onlookers]:
    """A page for as long as the block lasts, where one is asked for: its `port`, and `to`, for the trainer's address.

    `say` is told the other address, and where to look for the trainer's. Raises UsageError before anything is served.
    """
    if asked is None:
        yield Onlookers()
        return
    from hashidrill.gamedays.warroom.serving import serve  # noqa: PLC0415 - a web server, which most games go without

    to = Path(asked["to"])
    with _for_trainer(to) as out, serve(int(asked["port"])) as room:
        out.write(f"page for the trainer of {trainee}   {room.lead_url}\r\n" if out.isatty() else f"{room.lead_url}\n")
        out.flush()
        say({"page": room.watch_url, "trainer": str(to)})
        yield Onlookers(room)


@contextlib.contextmanager
def _for_trainer(to: Path) -> Iterator[IO[str]]:
    """A new file that only its owner may read, which goes with the page; or a terminal. Raises UsageError."""
    refused = f"{to}: the address of the trainer's page cannot be written here"
    how = "name a new file, or the trainer's terminal (`tty` prints its name)"
    try:
        terminal = to.exists() and stat.S_ISCHR(to.stat().st_mode)
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_NOCTTY if terminal else os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        descriptor = os.open(to, flags, 0o600)
    except OSError as error:
        raise UsageError(f"{refused}: {error.strerror}; {how}") from None
    with os.fdopen(descriptor, "w", newline="") as out:
        if terminal and not out.isatty():
            raise UsageError(f"{refused}: it is no terminal; {how}")
        try:
            yield out
        finally:
            if not terminal:
                to.unlink(missing_ok=True)
