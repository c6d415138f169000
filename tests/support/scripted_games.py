"""A game of training that a script plays, from its start to its score card; and the words that would tell its fault."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hashidrill.gamedays.training import games
from hashidrill.gamedays.training.course import Course, chosen, course_of, filled
from hashidrill.gamedays.training.game_log import PAGED, QUIET
from hashidrill.gamedays.training.games import shell_command
from hashidrill.gamedays.training.scenario import find_scenario, read_scenario

_COMMAND_WITHIN_S = 180
_CARD_WITHIN_S = 240
MACHINERY = ("toxiproxy", "toxicity", "fault.intent", '"fault_id"', "hashidrill.core.faults", "inject=")
"""Words of what breaks things, whichever it is."""


def course(name: str, seed: int) -> Course:
    """The game that this seed makes."""
    written = read_scenario(find_scenario(name))
    return course_of(written, chosen(written, seed))


class ScriptedGame:
    """What a script has of a game that is on: see training_players.Game."""

    def __init__(
        self, game: games.Game, process: subprocess.Popen[bytes], seen: Mapping[str, Any], page: str = ""
    ) -> None:
        self._game, self._process, self.page = game, process, page
        self.hosts: list[str] = list(seen["hosts"])
        self.pager: str = seen["pager"]["text"]

    def on(self, host: str, command: str) -> tuple[int, str]:
        """The exit code, and what it prints."""
        done = subprocess.run(
            shell_command(self._game, host, ["sh", "-c", command]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_COMMAND_WITHIN_S,
        )
        return done.returncode, done.stdout + done.stderr

    def say(self, what: str, words: str = "") -> str:
        return str(games.ask(self._game, {"op": "say", "what": what, "words": words})["text"])

    def done(self) -> dict[str, Any]:
        """The score card."""
        self.say("done")
        self._process.wait(_CARD_WITHIN_S)
        card: dict[str, Any] = json.loads((Path(self._game.out) / games.CARD_NAME).read_text())
        return card


@contextmanager
def played(
    name: str,
    out: Path,
    *,
    seed: int = 1,
    trainee: str = "script",
    trainer: Path | None = None,
    looks_around: Callable[[], None] = lambda: None,
) -> Iterator[ScriptedGame]:
    """A game after its pager has gone. It is given up where the script has not ended it.

    With `trainer`, it has a page; the trainer's address is in that file.
    """
    request = {
        "scenario": str(find_scenario(name).absolute()),
        "seed": seed,
        "trainee": trainee,
        "out": str(out),
        "serve": None if trainer is None else {"port": 0, "to": str(trainer)},
    }
    started, page = games.start(request), ""
    try:
        while told := started.line():
            assert "error" not in told, told
            page = told.get("page", page)
            if "game" in told:
                break
        game = games.find_game(trainee)
        games.wait_for_state(game, QUIET)
        looks_around()
        games.ask(game, {"op": "say", "what": "ready"})
        yield ScriptedGame(game, started.process, games.wait_for_state(game, PAGED), page)
    finally:
        if started.process.poll() is None:
            for on in games.all_games():
                if on.trainee == trainee:
                    games.ask(on, {"op": "say", "what": "give-up"})
            started.process.wait(_CARD_WITHIN_S)
        assert started.process.stdout is not None
        started.process.stdout.close()


def tells(played_course: Course) -> list[str]:
    """What nobody may find before the end: the kinds of the hidden faults, their parameters, and what we call them."""
    truth = played_course.truth
    found = {*MACHINERY, played_course.choice.truth, truth.title, filled(truth.diagnosis.exact, {})}
    for number in played_course.hidden:
        step = played_course.resolved.experiment.method[number]
        if step.fault is None:
            continue
        words = step.fault.split(".")
        found |= {mark.join(words) for mark in (".", "-", "_")}
        for key, value in step.with_.items():
            found |= {f'"{key}": "{value}"', f'"{key}":"{value}"', f"'{key}': '{value}'", f"{key}={value}"}
    return sorted(found)
