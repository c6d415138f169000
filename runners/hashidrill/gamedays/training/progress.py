"""What each person has played, one line a game, in a file of theirs in the state directory."""

from __future__ import annotations

import datetime as dt
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hashidrill.core.util.files import append_line, private_folder
from hashidrill.core.util.foreign import parse
from hashidrill.gamedays.training.games import games_dir

if TYPE_CHECKING:
    from pathlib import Path

    from hashidrill.gamedays.training.card import Card

_RANKS = ("not counted", "failed", "partly", "passed")


@dataclass(frozen=True)
class Played:
    """One game of somebody."""

    scenario: str
    seed: int
    result: str
    points: int
    at: str

    @property
    def rank(self) -> tuple[int, int]:
        return (_RANKS.index(self.result) if self.result in _RANKS else -1, self.points)


def file_of(trainee: str) -> Path:
    return games_dir() / "progress" / f"{trainee}.jsonl"


def remember_result(card: Card) -> None:
    """Append the game to what its trainee has played. Raises OSError."""
    path = file_of(card.trainee)
    private_folder(path.parent)
    line = {
        "scenario": card.scenario,
        "seed": card.seed,
        "result": card.result,
        "points": card.points,
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        append_line(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


def played(trainee: str) -> list[Played]:
    """All games of that person, oldest first; lines that are no games are left out."""
    try:
        lines = file_of(trainee).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(Played(**parse(line)))
        except (ValueError, TypeError):
            continue
    return found


def best(trainee: str) -> dict[str, Played]:
    """The best game of each scenario."""
    found: dict[str, Played] = {}
    for game in played(trainee):
        if game.scenario not in found or game.rank > found[game.scenario].rank:
            found[game.scenario] = game
    return found
