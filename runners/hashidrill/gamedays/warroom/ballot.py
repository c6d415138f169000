"""People's predictions on their own pages: secret until all answers are shown, and on disk before they are
acknowledged.

Before `reveal`, no page's document holds an answer, not even the lead's: a page cannot show what it never received.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hashidrill.core.errors import HashidrillError

State = Literal["open", "revealed", "closed"]
Given = dict[str, Any]
"""A person's answers, by the key of the question; None: no prediction."""


@dataclass(frozen=True)
class BallotQuestion:
    """One question, as a page asks it. `several`: any number of the choices may be ticked."""

    key: str
    ask: str
    how: str
    choices: tuple[str, ...] = ()
    several: bool = False


class RefusedError(Exception):
    """An answer was refused; `status` is the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Ballot:
    """The questions of one run, and people's answers. Thread-safe.

    `read` turns a text into an answer, or raises ValueError; `words` turns it into text again. `keep` writes a person's
    answers to disk, and raises HashidrillError if that fails; its last argument says whether the answers came late.
    `changed` is called with the person after each answer.
    """

    def __init__(
        self,
        run: int,
        questions: Sequence[BallotQuestion],
        people: Mapping[str, str],
        *,
        read: Callable[[str, str], Any],
        words: Callable[[str, Any], str],
        keep: Callable[[str, Given, bool], None],
        changed: Callable[[str], None],
        given: Mapping[str, Given] | None = None,
    ) -> None:
        self.run, self.questions, self.people = run, tuple(questions), dict(people)
        self.state: State = "open"
        self.given: dict[str, Given] = dict(given or {})
        self.late: set[str] = set()
        self.on_time: Mapping[str, Given] = {}
        """The answers that had been given when all answers were shown."""
        self._read, self._words, self._keep, self._changed = read, words, keep, changed
        self._lock = threading.Lock()

    @property
    def waiting(self) -> list[str]:
        """The keys of people who have not answered."""
        return [key for key in self.people if key not in self.given]

    def give(self, person: str, run: int, texts: Mapping[str, str]) -> bool:
        """Accepts a person's answers, once. Returns True if the answers came after the reveal. Raises RefusedError."""
        answers = self._answers(texts)
        with self._lock:
            if run != self.run or self.state == "closed":
                raise RefusedError(409, "this experiment accepts no more answers; the page shows what comes next")
            if person in self.given:
                raise RefusedError(409, "you have answered already, maybe in another tab: the first answer counts")
            late = self.state == "revealed"
            try:
                self._keep(person, answers, late)
            except HashidrillError as error:
                raise RefusedError(503, f"your answer could not be kept: {error}") from None
            self.given[person] = answers
            if late:
                self.late.add(person)
        self._changed(person)
        return late

    def _answers(self, texts: Mapping[str, str]) -> Given:
        if not any(texts.get(question.key, "").strip() for question in self.questions):
            raise RefusedError(400, "answer one question or more first")
        answers: Given = {}
        for question in self.questions:
            text = texts.get(question.key, "").strip()
            try:
                answers[question.key] = self._read(question.key, text) if text else None
            except ValueError as error:
                raise RefusedError(400, f"{question.ask} {error}") from None
        return answers

    def mine(self, person: str) -> dict[str, str] | None:
        """That person's own answers, in words; None without any."""
        given = self.given.get(person)
        return None if given is None else {key: self._words(key, value) for key, value in given.items()}

    def reveal(self) -> Mapping[str, Given]:
        """Reveals the answers, and returns those given so far. Later answers count as late."""
        with self._lock:
            self.state = "revealed"
            self.on_time = {key: self.given[key] for key in self.people if key in self.given}
            return self.on_time

    def close(self) -> None:
        """Accepts no more answers."""
        with self._lock:
            self.state = "closed"
