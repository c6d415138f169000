"""The log of a search: the question, each run as it ends, the answer; one JSON object a line. A dead search resumes it.

Each line is on disk before the search goes on. A search asks for the same runs in the same order when it gets the same
answers, so a resumed one takes the logged runs first and makes only those that are missing. Runs count only for the
question that they were made for: the log holds its hash.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.errors import UsageError
from hashidrill.core.util.files import append_line, held_by_us, whole_lines
from hashidrill.core.util.foreign import parse
from hashidrill.core.util.redaction import Redactor
from hashidrill.rollouts.bisect.trials import Outcome, Trial

VERSION = 1
_QUESTION, _RUN, _ANSWER = "question", "run", "answer"


def hash_of_secret(settings: Mapping[str, Any]) -> str:
    """As `hash_of`, of what may hold a password: it takes too long to try all words on it."""
    if Redactor().clean(settings) == settings:
        return hash_of(settings)
    said = json.dumps(settings, sort_keys=True, allow_nan=False).encode()
    return hashlib.scrypt(said, salt=b"hashidrill bisect", n=2**14, r=8, p=1).hex()


def hash_of(question: Mapping[str, Any]) -> str:
    """The same for the same question, however its keys are ordered."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, allow_nan=False).encode()).hexdigest()


class Log:
    """An open log. Use `create` or `resume`; nobody else may write it meanwhile."""

    def __init__(self, path: Path, descriptor: int, question: Mapping[str, Any]) -> None:
        self.path = path
        self.question = question
        self.runs: list[tuple[str, Trial]] = []
        """Candidate and run, in the order in which they ended."""
        self.answer: Mapping[str, Any] | None = None
        self._answered_at = 0
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path, question: Mapping[str, Any]) -> Log:
        """Raises UsageError for a file that is there already, or that cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if not path.exists():
                raise UsageError(
                    f"{path}: cannot write a log here: {error.strerror}; name another with --log"
                ) from None
            raise UsageError(
                f"{path}: there is such a log already; go on with it with --resume {path}, or name another with --log"
            ) from None
        _lock(path, descriptor)
        log = cls(path, descriptor, question)
        log._write(_QUESTION, {"version": VERSION, "hash": hash_of(question), "question": dict(question)})
        return log

    @classmethod
    def resume(cls, path: Path) -> Log:
        """Reads what is there; a torn last line is cut off. Raises UsageError for what is no log."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"{path}: this log cannot be read: {error.strerror}") from None
        try:
            _lock(path, descriptor)
            whole = whole_lines(path.read_bytes())
            lines = [_line(path, number, line) for number, line in enumerate(whole.splitlines(), 1)]
            log = cls(path, descriptor, _question(path, lines))
            for number, line in enumerate(lines[1:], 2):
                log._take(number, line)
            os.ftruncate(descriptor, len(whole))
        except BaseException:
            os.close(descriptor)
            raise
        return log

    @property
    def telling(self) -> list[tuple[str, Trial]]:
        """The runs to go on with: without those that said nothing before a search ended, which get another chance."""
        return [
            (candidate, trial)
            for number, (candidate, trial) in enumerate(self.runs)
            if number >= self._answered_at or trial.outcome is not Outcome.INVALID
        ]

    def check(self, question: Mapping[str, Any]) -> None:
        """Raises UsageError when this is another question than the one that the runs were made for.

        What an earlier version did not log is taken to be as it was.
        """
        plain = parse(json.dumps(dict(question)).encode())
        changed = [key for key in sorted(self.question) if plain.get(key) != self.question[key]]
        if not changed:
            return
        raise UsageError(
            f"{self.path}: its runs answer another question: {', '.join(changed)} changed since then; undo that, or"
            " start a new search without --resume"
        )

    def add_run(self, candidate: str, trial: Trial) -> None:
        """A run that ended."""
        said = {
            "outcome": trial.outcome,
            "text": trial.text,
            "recording": trial.recording,
            "value": trial.value,
            "clear": trial.clear,
            "absent": trial.absent,
            "cut": trial.cut,
        }
        self._write(_RUN, {"candidate": candidate, **said})
        self.runs.append((candidate, trial))

    def add_answer(self, answer: Mapping[str, Any]) -> None:
        self._write(_ANSWER, dict(answer))
        self.answer = answer

    def close(self) -> None:
        """Others may write it now."""
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
            raise _damaged(self.path, number)
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
                # earlier versions do not say
                line.get("clear") is True,
                float(line.get("absent", 0.0)),
                line.get("cut") is True,
            )
            self.runs.append((str(line["candidate"]), trial))
        except (KeyError, ValueError, TypeError):
            raise _damaged(self.path, number) from None


def _number(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]  # what is no number raises TypeError


def _lock(path: Path, descriptor: int) -> None:
    if not held_by_us(descriptor):
        raise UsageError(f"{path}: another `hashidrill bisect` writes this log: wait for its end")


def _line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        said = parse(line)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise _damaged(path, number)
    return said


def _question(path: Path, lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    if not lines:
        raise UsageError(f"{path}: the search ended before it logged its question: start it again")
    line = lines[0]
    question = line.get("question")
    if line.get("kind") != _QUESTION or not isinstance(question, dict):
        raise UsageError(f"{path}: not a log of `hashidrill bisect`")
    if line.get("version") != VERSION:
        raise UsageError(f"{path}: this log is of another version of hashidrill: go on with that one, or start again")
    if line.get("hash") != hash_of(question):
        raise _damaged(path, 1)
    return question


def _damaged(path: Path, number: int) -> UsageError:
    return UsageError(f"{path}: line {number} is damaged: its search cannot be resumed; start it again")
