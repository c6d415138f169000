"""Finds, starts and calls games in progress. A small file describes the game of each trainee."""

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

import hashidrill
from hashidrill.core.errors import DatacenterError, UsageError
from hashidrill.core.protocols.registry import near
from hashidrill.core.util import syscalls as sc
from hashidrill.core.util.enter import entering
from hashidrill.core.util.files import held_by_us, private, private_folder, write_whole
from hashidrill.core.util.folders import both
from hashidrill.core.util.processes import python_path
from hashidrill.core.util.safe_json import parse
from hashidrill.gamedays.training.scenario import FOLDER
from hashidrill.lab.sandbox.sandbox import handed_over
from hashidrill.lab.up.running import state_dir


class CpuUse:
    """The idle share of the machine's CPU time over the last seconds. It may be called in any thread."""

    def __init__(
        self, times: Callable[[], Any] = psutil.cpu_times, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._times, self._clock = times, clock
        self._looks: deque[tuple[float, float, float]] = deque()

    def idle(self) -> float | None:
        """The idle share of the CPU in the last 5 to 10 seconds, or since the first look; None at the first look."""
        times = self._times()
        self._looks.append((self._clock(), times.idle + times.iowait, sum(times[:8])))
        while len(self._looks) > 2 and self._looks[-1][0] - self._looks[1][0] >= _LOOKS_BACK_S:
            self._looks.popleft()
        (begin_s, idle, every), (now_s, idle_now, every_now) = self._looks[0], self._looks[-1]
        if now_s - begin_s < 1 or every_now <= every:
            return None
        return max(0.0, idle_now - idle) / (every_now - every)

    def warning(self) -> str:
        """A warning for a trainee if almost no CPU time was idle; "" otherwise."""
        idle = self.idle()
        if idle is None or idle >= _IDLE_LEAST:
            return ""
        return f"warning: this machine is busy, only {idle:.0%} of its CPU time is idle: the game may not count"


DOOR = "door"
CARD_NAME = "card.json"
HOSTS_NAME = "game.json"
"""The file with each host's data for shells, in the sandbox's folder once the datacenter is ready."""
_ANSWER_WITHIN_S = 30.0
_GAP_S = 0.2
_LOOKS_BACK_S = 5.0
_IDLE_LEAST = 0.1
"""With less idle time, some proofs of each second are lost (hashidrill.core.judging.doubts)."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}", re.IGNORECASE)


def checked_trainee(name: str, source: str) -> str:
    """The name, which becomes part of file names. Raises UsageError that names `source`, the name's option or file."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{source}: {name!r} cannot name a trainee: use up to 41 letters, digits, dots, dashes and underscores, a"
            " letter or digit first"
        )
    return name


@dataclass(frozen=True)
class Game:
    """A game in progress. It does not reveal the fault."""

    trainee: str
    scenario: str
    pid: int
    start_time: int
    root: str
    out: str
    """The folder of its score card, once it is over."""

    @property
    def alive(self) -> bool:
        state = sc.process_state(self.pid)
        return state is not None and state[1] == self.start_time and state[0] != "Z"


def games_dir() -> Path:
    """The folder of games, next to the state files of `hashidrill lab up`."""
    return state_dir().parent / "training"


def page_file(trainee: str) -> Path:
    """The default file with the address of the trainer's page during the game."""
    return games_dir() / "pages" / trainee


def all_games() -> list[Game]:
    """The games in progress. Removes the files of those that ended."""
    found = []
    for folder in games_dir().glob("sealed-*"):
        pid = folder.name.partition("-")[2]
        if pid.isdecimal() and sc.process_state(int(pid)) is None:
            with contextlib.suppress(OSError):  # not empty: it holds foreign files
                folder.rmdir()
    for file in sorted((games_dir() / "on").glob("*.json"), key=lambda each: each.stem):
        with contextlib.suppress(ValueError, TypeError, OSError):
            game = Game(**parse(file.read_text()))
            if game.alive:
                found.append(game)
                continue
        with contextlib.suppress(OSError), private(log_of(file.stem), "ab") as log:
            if held_by_us(log.fileno()):  # otherwise, that trainee's next game has begun and owns the file
                file.unlink(missing_ok=True)
    return found


def log_of(trainee: str) -> Path:
    """The file in which the keeper of that trainee's game logs its errors."""
    return games_dir() / f"{trainee}.log"


def find_game(trainee: str | None = None) -> Game:
    """The game of that trainee, or the only one. Raises UsageError with the games in progress."""
    on = {game.trainee: game for game in all_games()}
    if trainee is not None and trainee in on:
        return on[trainee]
    if trainee is None and len(on) == 1:
        return next(iter(on.values()))
    if not on:
        raise UsageError("no game is running; start one with `hashidrill train first`")
    what = f"{near(trainee, on)}" if trainee else f"name the trainee with --trainee: {', '.join(on)}"
    raise UsageError(f"{len(on)} games are running; {what}")


def game_of(trainee: str) -> Game | None:
    """The game of that trainee, if it is running."""
    return next((game for game in all_games() if game.trainee == trainee), None)


def remember(game: Game) -> Path:
    """Write the state file, whole or not at all."""
    folder = games_dir() / "on"
    private_folder(folder)
    path = folder / f"{game.trainee}.json"
    write_whole(path, json.dumps(asdict(game)) + "\n")
    return path


def ask(game: Game, request: Mapping[str, Any], *, within_s: float = _ANSWER_WITHIN_S) -> dict[str, Any]:
    """Sends a request to the game's keeper and returns the answer. Raises UsageError for an error, or no answer."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(within_s)
            connection.connect(f"{game.root}/{DOOR}")
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = parse(lines.readline())
    except (OSError, ValueError) as error:
        raise UsageError(f"the game of {game.trainee} does not answer: {error}; it may be over") from None
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    return answer


@dataclass
class Started:
    """A started keeper, which reports the start of the game as JSON lines through a pipe."""

    process: subprocess.Popen[bytes]
    log: Path

    def line(self) -> dict[str, Any]:
        """Waits for the keeper's next line; {} once the keeper has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return parse(line) if line else {}


def start(request: Mapping[str, Any], spawn: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen) -> Started:
    """Starts a keeper. Raises UsageError if that trainee already has a game, and DatacenterError."""
    trainee = str(request["trainee"])
    folder, log = games_dir(), log_of(trainee)
    private_folder(folder)
    with private(log, "ab") as errors:
        if not held_by_us(errors.fileno()):
            raise UsageError(
                f"{trainee} is already in a game; `hashidrill say give-up --trainee {trainee}` ends that game,"
                " --trainee takes another name"
            )
        errors.truncate(0)
        with handed_over({**request, "sealed": str(folder)}) as stdin:
            process = spawn(
                [sys.executable, "-P", "-m", "hashidrill.gamedays.training.sealed"],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": python_path()},
            )
    return Started(process, log)


def wait_for_state(game: Game, *states: str, within_s: float = 600.0) -> dict[str, Any]:
    """The state once it is one of `states`. Raises DatacenterError if the game ends first, or time runs out."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not game.alive:
            raise DatacenterError(f"the game ended; its score card is in {game.out}")
        with contextlib.suppress(UsageError):
            shown = ask(game, {"op": "state"})
            if shown["state"] in states:
                return shown
        time.sleep(_GAP_S)
    raise DatacenterError(f"the game did not reach {' or '.join(states)} within {within_s:g}s")


CELLS = "cells"
_FOLDER_MODE = 0o711


def shell_command(game: Game, host: str | None, command: Sequence[str]) -> list[str]:
    """The command line of a shell on `host` (None: the first client, or the first host). Raises UsageError."""
    root = Path(game.root)
    try:
        told: Mapping[str, Any] = parse((root / HOSTS_NAME).read_bytes())
        first = (root / "pid").read_text().strip()
    except OSError:
        raise UsageError("the datacenter of this game is not ready yet, or is gone") from None
    hosts = told["hosts"]
    # a host with a client agent, like an engineer's own; otherwise the first host
    clients = [name for name, each in hosts.items() if next(iter(each["agents"].values()), "") == "client"]
    wanted = host or [*clients, *hosts][0]
    if wanted not in hosts:
        raise UsageError(f"there is no host {wanted!r}: {near(wanted, hosts)}")
    source = str(Path(hashidrill.__file__).parents[1])
    program = os.path.realpath(sys.executable)
    boot = [
        program,
        "-I",
        "-S",
        "-c",
        (
            f"import sys; sys.path.insert(0, {source!r}); from hashidrill.gamedays.training.inside.cell import main;"
            " sys.exit(main(sys.argv[1]))"
        ),
    ]
    number = secrets.token_hex(4)
    spec = {
        "root": game.root,
        "id": number,
        "host": wanted,
        "hosts": hosts,
        "user": told["user"],
        "binaries": told["binaries"],
        "python": {"program": program, "prefix": sys.base_prefix},
        "source": source,
        "hidden": _hidden(),
        "boot": boot,
        "client": str(Path(__file__).parent / "inside" / "client.py"),
        "command": list(command),
        "term": os.environ.get("TERM", ""),
    }
    cells = root / CELLS
    cells.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    file = cells / f"{number}.json"
    write_whole(file, json.dumps(spec))
    return [*entering(process=first), *boot, str(file)]


def _hidden() -> list[str]:
    """The folders of hashidrill's own files, which reveal the scenarios' secrets."""
    scenarios = both(FOLDER)
    places = [Path(hashidrill.__file__).resolve().parent, scenarios[-1].resolve().parents[1], *scenarios[:-1]]
    return [str(place) for place in places]
