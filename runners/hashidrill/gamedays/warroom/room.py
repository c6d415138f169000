"""A war room: the events so far, for everyone and for the lead, and the actions of the lead's page.

The code that runs experiments reports events to it, from any thread. It never waits for a browser, and errors in a
browser or on the network never reach a run.
"""

import contextlib
import datetime as dt
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from hashidrill.core.protocols.events import Audience, Event, seen_by
from hashidrill.gamedays.warroom.ballot import Ballot
from hashidrill.gamedays.warroom.document import Batch
from hashidrill.gamedays.warroom.page_state import (
    Answered,
    Asked,
    Ballots,
    Begins,
    Happened,
    Over,
    Picture,
    Planned,
    Predicted,
    Ran,
    Said,
    SaidToAll,
    Stopping,
)
from hashidrill.reports.text import one_line

LONGEST_NOTE, MOST_NOTES = 2000, 200
Choices = Sequence[tuple[str, str]]


def interrupt() -> None:
    """Acts like Ctrl-C: sends SIGINT to the main thread, which notices it even while it waits for a line.

    If SIGINT is ignored, as in a script's `&`, sends SIGTERM: during a run, both revert the faults and end the run.
    """
    number = signal.SIGTERM if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else signal.SIGINT
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Room:
    """`stop`, `answer` and `write` serve the lead's pages; the code that runs experiments calls the other methods."""

    lead_url = watch_url = ""
    page = "warroom.html"
    """The asset that is the room's page."""

    def __init__(
        self,
        *,
        interrupt: Callable[[], None] = interrupt,
        now: Callable[[], dt.datetime] = _utc_now,
    ) -> None:
        self._pictures = {audience: Picture(audience) for audience in Audience}
        self._lock = threading.Lock()
        self._interrupt = interrupt
        self._now = now
        self._ids = itertools.count(1)
        self._question: tuple[int, Callable[[str], None]] | None = None
        self._runs = 0
        self._stoppable = False
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change, in the thread that made it; must return at once."""
        self.invite: Callable[[str], str] = lambda _: ""
        """The address of a person's own page; its token is made at the first call."""
        self.people: dict[str, str] = {}
        """The names, by key, of people with their own pages."""
        self.ballot: Ballot | None = None
        """The questions and answers on people's own pages; `shows_ballot` shows them."""
        self.left: Callable[[str], None] = lambda _: None
        """Called with the key of a person whose last page has been closed for a while, in any thread."""
        self._notes: list[str] = []
        self.is_over = False
        """Whether all events have been shown; none follows."""

    # for the code that runs experiments

    def tell(self, event: Event) -> None:
        """Show an event to those who may see it."""
        wall = self._now().isoformat(timespec="seconds")
        with self._lock:
            if event.event == "end":
                self._stoppable = False
            for audience, picture in self._pictures.items():
                seen = seen_by(event, audience)
                if seen is not None:
                    picture.take(seen, wall)
        self.on_change()

    def begins(self, title: str, number: int | None = None) -> None:
        """A run begins, by default the next one. Only the lead reads its title."""
        with self._lock:
            self._runs = self._runs + 1 if number is None else number
            self._stoppable = True
        self.tell(Begins(title=title, number=self._runs))

    def plans(self, title: str, runs: Sequence[str], *, goals: Sequence[str] = (), people: Sequence[str] = ()) -> None:
        """Shows a game day's title, and its experiments in order."""
        self.tell(Planned(title=title, runs=len(runs), titles=tuple(runs), goals=tuple(goals), people=tuple(people)))

    def note(self, who: str, text: str, *, watchers: bool = False) -> None:
        """Adds a line to the log: for the lead only, or for watchers too."""
        self.tell((SaidToAll if watchers else Said)(who=who, text=text))

    def shows_ballot(self) -> None:
        """Shows who has answered, and the questions to everyone else."""
        if (ballot := self.ballot) is not None:
            waiting = set(ballot.waiting)
            answered = tuple(name for key, name in ballot.people.items() if key not in waiting)
            missing = tuple(name for key, name in ballot.people.items() if key in waiting)
            run, state, questions = ballot.run, ballot.state, ballot.questions
            self.tell(Ballots(run=run, state=state, questions=questions, answered=answered, waiting=missing))

    def predicted(self, run: int, key: str, who: str, ask: str, answer: str) -> None:
        """Shows a prediction to everybody. Runs are counted from 1."""
        self.tell(Predicted(run=run, key=key, who=who, ask=ask, answer=answer))

    def happened(self, run: int, measured: Mapping[str, str]) -> None:
        """Shows the measured answers to the predicted questions, by key."""
        self.tell(Happened(run=run, measured=dict(measured)))

    def ran(self, run: int, verdict: str, title: str) -> None:
        """A run of the plan is over; from now on its content is public."""
        self.tell(Ran(run=run, verdict=verdict, title=title))

    @contextlib.contextmanager
    def asking(
        self,
        text: str,
        for_all: str,
        choices: Choices,
        answered: Callable[[str], None],
        *,
        hint: str = "",
        trouble: str = "",
    ) -> Iterator[None]:
        """During the block, a page of the lead can answer; `answered` gets the text, at most once, in any thread.

        `for_all` is the text for people who only watch.
        """
        number = next(self._ids)
        with self._lock:
            self._question = (number, answered)
        self.tell(Asked(id=number, text=text, for_all=for_all, choices=tuple(choices), hint=hint, trouble=trouble))
        try:
            yield
        finally:
            with self._lock:
                self._question = None
            self.tell(Answered(id=number))

    def over(self, text: str = "") -> None:
        """Nothing more happens."""
        self._stoppable = False
        self.tell(Over(text=text))
        self.is_over = True  # set after the event is stored: a reader who sees it finds the event
        self.on_change()

    def take_notes(self) -> list[str]:
        """The notes written on pages since the last call, for the notes of a run."""
        with self._lock:
            taken, self._notes = self._notes, []
        return taken

    # for pages

    def since(self, audience: Audience, number: int | None) -> Batch | None:
        """The updates for a page that has all messages up to that one."""
        with self._lock:
            return self._pictures[audience].document.since(number)

    def stop(self) -> bool:
        """The stop button. Returns False if there is nothing to stop, or stop was pressed before."""
        with self._lock:
            if not self._stoppable and self._question is None:
                return False
            self._stoppable = False
            self._question = None
        self.tell(Stopping())
        self._interrupt()
        return True

    def answer(self, number: int, text: str) -> bool:
        """Returns False if the question is no longer open: another person was faster."""
        with self._lock:
            if self._question is None or self._question[0] != number:
                return False
            answered, self._question = self._question[1], None
        answered(one_line(text, 4000))
        return True

    def write(self, who: str, text: str, *, watchers: bool) -> None:
        """Adds a line of the scribe to the log and the notes."""
        who, text = one_line(who, 80), text.strip()[:LONGEST_NOTE]
        line = f"{self._now():%H:%M:%S} UTC {who}: {one_line(text, LONGEST_NOTE)}"
        with self._lock:
            self._notes = [*self._notes[-(MOST_NOTES - 1) :], line]
        self.note(who, text, watchers=watchers)
