"""A class: a seat for each trainee, the number of games that the machine can run, and the trainer's page.

A seat is a line of `authorized_keys` with a forced command: the trainee's key opens that trainee's game and nothing
else on the machine. The trainer's page shows what each game's keeper reports; a game continues without a trainer.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hashidrill.core.engine.machine_check import wants
from hashidrill.core.engine.requirements import available_bytes, required_by
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.model import services_of
from hashidrill.core.protocols.events import Audience
from hashidrill.core.units import counted
from hashidrill.core.util.cores import usable_cores
from hashidrill.gamedays.training import games
from hashidrill.gamedays.training.campaign import Played, played
from hashidrill.gamedays.training.course import Course
from hashidrill.gamedays.training.game_log import OVER, PAGED, QUIET, STARTS, WATCHED
from hashidrill.gamedays.training.games import Game
from hashidrill.gamedays.warroom.document import Batch, Document
from hashidrill.gamedays.warroom.room import Room

MOST_SEATS = 100
KEYS_NAME = "authorized_keys"
_KEY_TYPE = re.compile(r"(sk-)?(ssh|ecdsa)-[\w@.-]+")
_KEPT_VARIABLES = (
    *("XDG_STATE_HOME", "XDG_CACHE_HOME", "HASHIDRILL_WORK", "HASHIDRILL_CONSUL", "HASHIDRILL_NOMAD"),
    *("HASHIDRILL_VAULT", "HASHIDRILL_TOXIPROXY_SERVER"),
)
"""With these variables, a seat's game uses the same state, programs and work directory as the trainer's command."""
_ANSWER_WITHIN_S = 2.0


@dataclass(frozen=True)
class Seat:
    """One trainee's place."""

    name: str
    key: str = ""
    """The trainee's public key, without its comment; empty if the trainer adds it by hand."""


def seats_of(text: str) -> list[Seat]:
    """The seats of `--seats`: a number, names separated by commas, or a file of public keys. Raises UsageError."""
    if text.isdecimal():
        if not 1 <= int(text) <= MOST_SEATS:
            raise UsageError(f"--seats {text}: a class has 1 to {MOST_SEATS} seats")
        return [Seat(f"seat-{number}") for number in range(1, int(text) + 1)]
    path = Path(text)
    if path.is_file():
        seats = _of_keys(path)
    elif "/" in text or path.suffix == ".pub":
        raise UsageError(
            f"--seats {text}: there is no such file; it must have one public SSH key per line, with a name after it"
        )
    else:
        seats = [Seat(games.checked_trainee(name.strip(), "--seats")) for name in text.split(",")]
    names = [seat.name for seat in seats]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"--seats {text}: {', '.join(twice)} is given twice; give each trainee another name")
    return seats


def _of_keys(path: Path) -> list[Seat]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"--seats {path}: cannot be read: {error}") from None
    seats = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"--seats {path}, line {number}"
        kind, key, name = [*line.split(maxsplit=2), "", "", ""][:3]
        if not _is_key(kind, key):  # options before the key could name another command
            raise UsageError(f"{where}: not a public key; write `ssh-ed25519 AAAA... ada`, as in an id_ed25519.pub")
        if not name:
            raise UsageError(f"{where}: write the trainee's name after the key")
        seats.append(Seat(games.checked_trainee(name.split()[0].partition("@")[0], where), f"{kind} {key}"))
    if not seats:
        raise UsageError(f"--seats {path}: has no public key")
    return seats


def _is_key(kind: str, key: str) -> bool:
    """Whether the encoded key repeats its own type, as every OpenSSH key does."""
    try:
        data = base64.b64decode(key, validate=True)
    except binascii.Error:
        return False
    return bool(_KEY_TYPE.fullmatch(kind)) and data[4 : 4 + int.from_bytes(data[:4])] == kind.encode()


def authorized_keys(seats: Iterable[Seat], scenario: Path, runs_dir: Path, seed: int | None, program: str) -> str:
    """One line per seat: the seat's key may only run that command on a terminal, without any forwarding."""
    variables = [f"{name}={os.environ[name]}" for name in _KEPT_VARIABLES if name in os.environ]
    lines = ["# Seats of a hashidrill class. Remove these lines when the class is over.\n"]
    for seat in seats:
        words = ["env", *variables, program, "train", str(scenario), "--trainee", seat.name]
        words += ["--runs", str(runs_dir.absolute()), *([] if seed is None else ["--seed", str(seed)])]
        command = shlex.join(words).replace('"', '\\"')
        lines.append(f'restrict,pty,command="{command}" {seat.key or f"PUBLIC-KEY-OF-{seat.name}"} {seat.name}\n')
    return "".join(lines)


# the machine's capacity

GAME_CORES, AGENT_CORES, OPERATION_S = 0.09, 0.025, 0.002
"""CPU cores of a game's keeper, engine and disks; cores of each agent; CPU seconds for each operation of the loads.

Measured on two cores by tests/bench/test_bench_class.py, 2026-11: a game of `first` (4 agents) took 0.21 cores at 10
writes/s, and 0.27 at 30.
"""
SHARE = 0.5
"""The share of the machine's cores that games may use: a busier machine delays Raft's heartbeats, and with
them every proof.

On two cores with other work, the pagers of four games came in time; with eight games, no steady state held (as above).
"""
SEAT_BYTES = 100_000_000
"""Memory of the trainee's command and shell, in addition to the game's memory (400 to 465 MB, as above)."""


@dataclass(frozen=True)
class Carries:
    """The cost of one game of a scenario, and the machine's capacity for more games."""

    game_cores: float
    game_bytes: float
    cores: float
    """The cores that are left for further games."""
    free_bytes: float

    @classmethod
    def here(cls, course: Course, on: int) -> Carries:
        """The capacity of this machine while `on` games are running."""
        experiment = course.resolved.experiment
        agents = sum(len(service.places()) for service in services_of(experiment.datacenter))
        wanted = wants(experiment, required_by(experiment))
        game_cores = GAME_CORES + AGENT_CORES * agents + OPERATION_S * wanted.operations_per_s
        memory = wanted.memory_bytes + SEAT_BYTES
        return cls(game_cores, memory, max(0.0, SHARE * usable_cores() - on * game_cores), available_bytes())

    @property
    def fit(self) -> int:
        """The number of further games that the machine can run with every pager in time."""
        return int(min(self.cores / self.game_cores, self.free_bytes / self.game_bytes))

    def text(self) -> str:
        return (
            f"{self.cores:.1f} cores for games, {self.free_bytes / 1e9:.1f} GB free; each takes"
            f" {self.game_cores:.2f} and {self.game_bytes / 1e9:.1f} GB: {self.fit} fit"
        )

    def trouble(self, wanted: int) -> str:
        """A warning if that many games need more cores than are left; "" otherwise.

        Raises UsageError if they need more memory than there is: the kernel would end some of them.
        """
        asked = counted(wanted, "game")
        if wanted * self.game_bytes > self.free_bytes:
            need, free = wanted * self.game_bytes / 1e9, self.free_bytes / 1e9
            raise UsageError(
                f"memory for {asked}: {need:.1f} GB, but {free:.1f} GB are free: at most"
                f" {int(self.free_bytes / self.game_bytes)} fit; ask for fewer seats, or end other programs"
            )
        if wanted * self.game_cores > self.cores:
            return (
                f"{asked} at once: about {wanted * self.game_cores:.1f} cores, but {self.cores:.1f} are left for games."
                " Pagers may come late, and games may not count; ask for fewer seats, or use a larger machine"
            )
        return ""


# the trainer's page

_WORDS = {STARTS: "starting", QUIET: "looking around", PAGED: "paged", WATCHED: "mitigated", OVER: "over"}
NOT_BEGUN, DIAGNOSED, GAVE_UP, ENDED = "not begun", "diagnosed", "gave up", "ended by the trainer"


_LOST = "ended without a score"


@dataclass
class Row:
    """The state of one trainee's game. It shows nothing that is hidden from trainees, so a class may see it."""

    name: str
    scenario: str
    state: str = NOT_BEGUN
    since_page_s: float | None = None
    result: str = ""
    points: int | None = None
    spans: list[tuple[str, float]] = field(default_factory=list)
    """Each observed state, and when it began, in seconds since the class began."""

    def enters(self, state: str, now_s: float) -> None:
        self.state = state
        if not self.spans or self.spans[-1][0] != state:
            self.spans.append((state, now_s))

    def data(self, now_s: float) -> dict[str, Any]:
        ends = [*(start for _, start in self.spans), now_s][1:]
        spans = [[state, round(start, 1), round(end, 1)] for (state, start), end in zip(self.spans, ends, strict=True)]
        return {
            "name": self.name,
            "scenario": self.scenario,
            "state": self.state,
            "since_page_s": None if self.since_page_s is None else round(self.since_page_s),
            "result": self.result,
            "points": self.points,
            "spans": spans,
        }


class ScoreTable:
    """The rows of all seats, and of every other running game."""

    def __init__(self, names: Sequence[str], scenario: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began_s = clock, clock()
        self._began = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self.rows = {name: Row(name, scenario) for name in names}

    def look(self) -> dict[str, Any]:
        """The current table, for JSON."""
        now_s = self._clock() - self._began_s
        on = {game.trainee: game for game in games.all_games()}
        for name in [*self.rows, *(name for name in on if name not in self.rows)]:
            row = self.rows.setdefault(name, Row(name, ""))
            game = on.get(name)
            if game is not None:
                self._of_game(row, game, now_s)
            elif (last := self._last(name)) is not None:
                row.scenario, row.result, row.points = last.scenario, last.result, last.points
                row.enters(_WORDS[OVER], now_s)
            elif row.state != NOT_BEGUN:
                row.enters(_LOST, now_s)
        return {"now": round(now_s, 1), "rows": [row.data(now_s) for row in self.rows.values()]}

    def going_on(self) -> list[str]:
        """The trainees with a game in progress; a game that was given up or ended only waits for its score."""
        ended = {NOT_BEGUN, GAVE_UP, ENDED, _WORDS[OVER], _LOST}
        return [row["name"] for row in self.look()["rows"] if row["state"] not in ended]

    def _of_game(self, row: Row, game: Game, now_s: float) -> None:
        try:
            shown = games.ask(game, {"op": "state"}, within_s=_ANSWER_WITHIN_S)
        except UsageError:  # the game is ending, or its keeper is busy: the last known state stays
            return
        row.scenario, row.result, row.points = game.scenario, "", None
        row.since_page_s = shown["since_page_s"]
        row.enters(state_word(shown), now_s)

    def _last(self, name: str) -> Played | None:
        """The last game that this trainee finished since the class began."""
        return next((each for each in reversed(played(name)) if each.at >= self._began), None)


def state_word(shown: Mapping[str, Any]) -> str:
    """The state of a game in a word, from what its keeper shows."""
    if shown["cancelled"]:
        return ENDED
    if shown["gave_up"]:
        return GAVE_UP
    return DIAGNOSED if shown["state"] == PAGED and shown["diagnosed"] else _WORDS[shown["state"]]


class ClassRoom(Room):
    """The room of the trainer's page: one document, the score table."""

    page = "class.html"

    def __init__(self, about: Mapping[str, Any]) -> None:
        super().__init__()
        self._table = Document({**about, "now": 0.0, "rows": [], "over": False})
        self._changing = threading.Lock()

    def show(self, table: Mapping[str, Any]) -> None:
        """Show the current table."""
        with self._changing:
            self._table.tree.update(table)
            self._table.renew()
        self.on_change()

    def over(self, text: str = "") -> None:
        self.show({"over": True})
        super().over(text)

    def since(self, audience: Audience, number: int | None) -> Batch | None:
        with self._changing:
            return self._table.since(number) if audience is Audience.OPERATOR else None
