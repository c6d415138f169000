"""Does a diagnosis say what it must? By the words of the scenario, not by a guess at what was meant.

    names: [[disk, storage, fsync], [slow*, latency], [$host, leader]]
    never: [network, cpu]

One word of each list must be said, and none of `never`, unless a "not", "no" or "without" comes before it in the same
clause. Somebody who names every part of the system is therefore wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hashidrill.training.model import HOST

MOST_WORDS = 60
"""A diagnosis is a sentence or two; more is a list of guesses."""
_NEGATIONS = frozenset({"not", "no", "without", "isn't", "isnt", "neither", "nor", "never", "rather"})
_CLAUSE = re.compile(r"[.;:!?](?:\s|$)|,|\bbut\b|\bbecause\b")
_TOKEN = re.compile(r"[\w./'-]+")


@dataclass(frozen=True)
class Said:
    """What became of a diagnosis: `missing` are the lists that nothing was said of, `wrong` the words said wrongly."""

    right: bool
    missing: tuple[int, ...] = ()
    wrong: tuple[str, ...] = ()
    too_long: bool = False


def judged(
    text: str, names: Sequence[Iterable[str]], never: Iterable[str], hosts: Mapping[str, str] | None = None
) -> Said:
    """`hosts` are the hosts of the hidden fault: their addresses by their names."""
    known = hosts or {}
    meant = [_with_hosts(each, known) for each in names]
    clauses = [_tokens(clause) for clause in _CLAUSE.split(text.lower())]
    missing = [number for number, words in enumerate(meant) if not any(_says(clause, words) for clause in clauses)]
    wrong = [word for word in never if any(_says(clause, [word]) for clause in clauses)]
    too_long = sum(map(len, clauses)) > MOST_WORDS
    return Said(not missing and not wrong and not too_long, tuple(missing), tuple(wrong), too_long)


def _with_hosts(words: Iterable[str], hosts: Mapping[str, str]) -> list[str]:
    return [each for word in words for each in ([*hosts, *hosts.values()] if word == HOST else [word])]


def _tokens(text: str) -> list[str]:
    return [token.strip("./'-") for token in _TOKEN.findall(text)]


def _affirmed(tokens: list[str]) -> list[str]:
    """The words before the first negation of a clause: what comes after it is denied."""
    for index, token in enumerate(tokens):
        if token in _NEGATIONS:
            return tokens[:index]
    return tokens


def _says(clause: list[str], words: Iterable[str]) -> bool:
    """A phrase that denies something itself (`no space`) is looked for in the whole clause."""
    phrases = [_tokens_of(word) for word in words]
    return any(_occurs(clause if _NEGATIONS & {*phrase} else _affirmed(clause), phrase) for phrase in phrases)


def _tokens_of(word: str) -> list[str]:
    return [part if part.endswith("*") else part.strip("./'-") for part in word.lower().split()]


def _occurs(tokens: list[str], phrase: list[str]) -> bool:
    length = len(phrase)
    return any(
        all(_same(token, part) for token, part in zip(tokens[at : at + length], phrase, strict=True))
        for at in range(len(tokens) - length + 1)
    )


def _same(token: str, part: str) -> bool:
    if part.endswith("*"):
        return token.startswith(part[:-1])
    return token in {part, f"{part}s", f"{part}'s"} or (token.endswith("-" + part) and "-" not in part)
