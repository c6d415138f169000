"""Runs candidates: stores the results of each one, repeats runs without a result, and limits the number of runs."""

import hashlib
import json
import math
import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from hashidrill.core.errors import UsageError
from hashidrill.core.util.files import append_line, held_by_us, whole_lines
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.safe_json import parse

AT_MOST = 60
"""The most runs of a search, including INVALID ones."""
INVALID_IN_A_ROW = 5
"""After this number of INVALID runs in a row, a candidate counts as unresolved."""


class Outcome(StrEnum):
    """The result of a run, or of the attempt to make one."""

    HELD = "held"
    BROKEN = "broken"
    INVALID = "invalid"
    """The run proves nothing. It is repeated."""
    MEASURED = "measured"
    """A figure was measured but is not compared yet. Searches never get this outcome."""
    REFUSED = "refused"
    """The candidate cannot be run at all: the agent refuses its configuration, or it cannot be built."""


@dataclass(frozen=True)
class Trial:
    """One run: its result, the reason, its recording, and the figure, if one is measured.

    A clear run is less often wrong: it was compared with the good end in the same run, and no single part of the run
    decides its result (`hashidrill.rollouts.bisect.broken`). `absent`: for a cost, the share of the time in which
    agents were down, so that their use is missing. `cut`: a guardrail ended the method, so the run shows less than
    other runs.
    """

    outcome: Outcome
    text: str = ""
    recording: str = ""
    value: float | None = None
    clear: bool = False
    absent: float = 0.0
    cut: bool = False

    @property
    def plain_value(self) -> float | str | None:
        """The value for JSON, which cannot represent infinity: "inf" stands for an event that never came."""
        return str(self.value) if self.value is not None and math.isinf(self.value) else self.value


class OutOfRunsError(Exception):
    """The search has used all runs that it may make."""


@dataclass(frozen=True)
class Tally:
    """The results of one candidate's runs."""

    held: int = 0
    broken: int = 0
    invalid: int = 0
    refused: str = ""
    why_invalid: str = ""

    def __str__(self) -> str:
        if self.refused:
            return f"cannot be run: {self.refused}"
        said = f"broke in {self.broken} of {self.held + self.broken} runs"
        why = f" ({self.why_invalid})" if self.why_invalid else ""
        return said + (f", and {self.invalid} more were INVALID{why}" if self.invalid else "")


class Trials:
    """Requests runs, and keeps each candidate's results. `before`: logged earlier runs."""

    def __init__(
        self,
        run: Callable[[str], Trial],
        *,
        at_most: int = AT_MOST,
        before: Iterable[tuple[str, Trial]] = (),
        shown: Callable[[str], str] = str,
    ) -> None:
        self._run = run
        self.shown = shown
        """Maps a candidate to its name for people."""
        self.at_most = at_most
        self._before: defaultdict[str, deque[Trial]] = defaultdict(deque)
        for candidate, trial in before:
            self._before[candidate].append(trial)
        self._refused: dict[str, str] = {}
        self._invalid: dict[str, str] = {}
        self._counts: defaultdict[str, Counter[Outcome]] = defaultdict(Counter)
        self._unresolved: set[str] = set()
        self.answers: list[bool] = []
        """For each valid run so far, whether it broke."""
        self.clear = False
        """Whether the last valid run was clear."""

    @property
    def runs(self) -> int:
        return sum(counts.total() for counts in self._counts.values())

    @property
    def used(self) -> str:
        """`60 runs (41 of them INVALID)`."""
        invalid = sum(counts[Outcome.INVALID] for counts in self._counts.values())
        return f"{self.runs} runs" + (f" ({invalid} of them INVALID)" if invalid else "")

    @property
    def candidates(self) -> list[str]:
        """The candidates that were run, in the order of their first run."""
        return list(self._counts)

    def tally(self, candidate: str) -> Tally:
        counts = self._counts.get(candidate, Counter[Outcome]())
        return Tally(
            counts[Outcome.HELD],
            counts[Outcome.BROKEN],
            counts[Outcome.INVALID],
            self._refused.get(candidate, ""),
            self._invalid.get(candidate, ""),
        )

    def ask(self, candidate: str) -> bool | None:
        """Whether the candidate breaks, by one valid run; None if no run of it is valid. Raises OutOfRunsError."""
        if candidate in self._unresolved:
            return None
        for _ in range(INVALID_IN_A_ROW):
            trial = self._next(candidate)
            if trial.outcome is Outcome.REFUSED:
                self._refused[candidate] = trial.text or "it was refused"
                break
            self._counts[candidate][trial.outcome] += 1
            if trial.outcome is not Outcome.INVALID:
                self.answers.append(trial.outcome is Outcome.BROKEN)
                self.clear = trial.clear
                return trial.outcome is Outcome.BROKEN
            self._invalid[candidate] = trial.text
        self._unresolved.add(candidate)
        return None

    def _next(self, candidate: str) -> Trial:
        if self._before[candidate]:
            return self._before[candidate].popleft()
        if self.runs >= self.at_most:
            raise OutOfRunsError
        return self._run(candidate)


VERSION = 1
_QUESTION, _RUN, _ANSWER = "question", "run", "answer"


def hash_of_secret(settings: Mapping[str, Any]) -> str:
    """Like `hash_of`, but for settings that may contain a password: slow enough to prevent guessing."""
    if Redactor().clean(settings) == settings:
        return hash_of(settings)
    said = json.dumps(settings, sort_keys=True, allow_nan=False).encode()
    return hashlib.scrypt(said, salt=b"hashidrill bisect", n=2**14, r=8, p=1).hex()


def hash_of(question: Mapping[str, Any]) -> str:
    """A digest that does not depend on the order of the question's keys."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, allow_nan=False).encode()).hexdigest()


class Log:
    """An open log, from `create` or `resume`. Other processes cannot write to it meanwhile."""

    command: ClassVar[str] = "bisect"

    def __init__(self, path: Path, descriptor: int, question: Mapping[str, Any]) -> None:
        self.path = path
        self.question = question
        self.runs: list[tuple[str, Trial]] = []
        """Candidate and run, in the order in which they ended."""
        self.answer: Mapping[str, Any] | None = None
        self._answered_at = 0
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path, question: Mapping[str, Any]) -> Self:
        """Raises UsageError if the file exists already or cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if not path.exists():
                raise UsageError(
                    f"{path}: cannot write a log here: {error.strerror}; name another with --log"
                ) from None
            raise UsageError(
                f"{path}: this log exists already; continue it with --resume {path}, or name another with --log"
            ) from None
        _lock(path, descriptor, cls.command)
        log = cls(path, descriptor, question)
        log._write(_QUESTION, {"version": VERSION, "hash": hash_of(question), "question": dict(question)})
        return log

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Reads the log; cuts off an incomplete last line. Raises UsageError if the file is not such a log."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"{path}: this log cannot be read: {error.strerror}") from None
        try:
            _lock(path, descriptor, cls.command)
            whole = whole_lines(path.read_bytes())
            lines = [_line(path, number, line) for number, line in enumerate(whole.splitlines(), 1)]
            log = cls(path, descriptor, _question(path, lines, cls.command))
            for number, line in enumerate(lines[1:], 2):
                log._take(number, line)
            os.ftruncate(descriptor, len(whole))
        except BaseException:
            os.close(descriptor)
            raise
        return log

    @property
    def telling(self) -> list[tuple[str, Trial]]:
        """The runs to resume with. Leaves out INVALID runs from before the last answer, so that they are repeated."""
        return [
            (candidate, trial)
            for number, (candidate, trial) in enumerate(self.runs)
            if number >= self._answered_at or trial.outcome is not Outcome.INVALID
        ]

    def check(self, question: Mapping[str, Any]) -> None:
        """Raises UsageError if the logged runs were made for another question."""
        plain = parse(json.dumps(dict(question)).encode())
        changed = [key for key in sorted({*plain, *self.question}) if plain.get(key) != self.question.get(key)]
        if not changed:
            return
        raise UsageError(
            f"{self.path}: its runs answer another question: {', '.join(changed)} changed since then; undo the change,"
            " or start a new search without --resume"
        )

    def add_run(self, candidate: str, trial: Trial) -> None:
        self._write(_RUN, {"candidate": candidate, **asdict(trial), "value": trial.plain_value})
        self.runs.append((candidate, trial))

    def add_answer(self, answer: Mapping[str, Any]) -> None:
        self._write(_ANSWER, dict(answer))
        self.answer = answer

    def close(self) -> None:
        """Closes the log and releases its lock."""
        os.close(self._descriptor)

    def _write(self, kind: str, data: Mapping[str, Any]) -> None:
        line = json.dumps({"kind": kind, **data}, allow_nan=False).encode() + b"\n"
        try:
            append_line(self._descriptor, line)
        except OSError as error:
            raise UsageError(
                f"{self.path}: the log cannot be written: {error.strerror}; make room, then --resume {self.path}"
            ) from None

    def _take(self, number: int, line: Mapping[str, Any]) -> None:
        kind = line.get("kind")
        if kind not in {_RUN, _ANSWER}:
            raise damaged(self.path, number)
        if kind == _ANSWER:
            self.answer = {key: value for key, value in line.items() if key != "kind"}
            self._answered_at = len(self.runs)
            return
        try:
            trial = Trial(
                Outcome(line["outcome"]),
                str(line["text"]),
                str(line["recording"]),
                _number(line["value"]),
                line["clear"] is True,
                float(line["absent"]),
                line["cut"] is True,
            )
            self.runs.append((str(line["candidate"]), trial))
        except (KeyError, ValueError, TypeError):
            raise damaged(self.path, number) from None


def _number(value: object) -> float | None:
    """Raises TypeError or ValueError if the value is not a number."""
    number = None if value is None else float(value)  # type: ignore[arg-type]
    if number is not None and math.isnan(number):
        raise ValueError("NaN")
    return number


def _lock(path: Path, descriptor: int, command: str) -> None:
    if not held_by_us(descriptor):
        raise UsageError(f"{path}: another `hashidrill {command}` writes to this log: wait until it ends")


def _line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        said = parse(line)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise damaged(path, number)
    return said


def _question(path: Path, lines: Sequence[Mapping[str, Any]], command: str) -> Mapping[str, Any]:
    if not lines:
        raise UsageError(f"{path}: the search ended before it logged its question: start it again")
    line = lines[0]
    question = line.get("question")
    if line.get("kind") != _QUESTION or not isinstance(question, dict):
        raise UsageError(f"{path}: not a log of `hashidrill {command}`")
    if line.get("version") != VERSION:
        raise UsageError(f"{path}: another version of hashidrill wrote this log: resume with that, or start again")
    if line.get("hash") != hash_of(question):
        raise damaged(path, 1)
    return question


def damaged(path: Path, number: int) -> UsageError:
    """The error for a line of a log that cannot be read."""
    return UsageError(f"{path}: line {number} is damaged: its search cannot be resumed; start it again")
