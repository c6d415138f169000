"""train and say: what a person types, before anything is started."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import UnknownNameError, UsageError
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.training import games
from hashidrill.gamedays.training.card import Card
from hashidrill.gamedays.training.games import Game
from hashidrill.gamedays.training.progress import best, remember_result


@pytest.fixture(autouse=True)
def _own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def typed(*words):
    return CliRunner().invoke(app, list(words))


def card(scenario="first", result="passed", points=80):
    return Card(scenario, "t", 1, 1, "ada", result, points, [], [], [], None, None, None, None)


def test_the_list_has_first_as_the_first_and_what_the_trainee_did_best():
    for result, points in (("failed", 20), ("passed", 80), ("partly", 60)):
        remember_result(card(result=result, points=points))
    rows = json.loads(typed("train", "--list", "--trainee", "ada", "--json").stdout)
    assert rows[0]["name"] == "first"
    assert rows[0]["best"] == {"result": "passed", "points": 80}
    assert "best" in rows[1]


def test_progress_is_kept_for_each_person():
    remember_result(card())
    assert best("ada")["first"].points == 80
    assert best("grace") == {}


def test_an_unknown_scenario_is_named_with_near_ones():
    error = typed("train", "frist").exception
    assert isinstance(error, UnknownNameError)
    assert "first" in str(error)


@pytest.mark.parametrize("name", ["../x", "a b", "-x/y"])
def test_a_trainee_whose_name_is_a_path_is_refused(name):
    assert typed("train", "first", f"--trainee={name}").exit_code != 0


def test_whoever_says_something_without_a_game_is_told_how_to_start_one():
    error = typed("say", "done").exception
    assert isinstance(error, UsageError)
    assert "hashidrill train first" in str(error)


def test_a_game_whose_keeper_is_gone_is_none(tmp_path):
    file = games.remember(Game("ada", "first", 2**22 + 1, 1, str(tmp_path), str(tmp_path)))
    assert games.all_games() == []
    assert not file.exists()


def test_what_a_keeper_that_was_killed_left_is_removed_and_that_of_a_living_one_is_not():
    dead, living, someones = (games.games_dir() / f"sealed-{name}" for name in (2**22 + 1, os.getpid(), "mine"))
    for folder in (dead, living, someones):
        folder.mkdir(parents=True)
    games.all_games()
    assert (dead.exists(), living.exists(), someones.exists()) == (False, True, True)


@pytest.mark.parametrize(
    "words", [["--overrule", "right"], ["--because", "other words"], ["--overrule", "wrong", "--because", " "]]
)
def test_who_overrules_a_diagnosis_says_how_and_why(words):
    error = typed("train", *words).exception
    assert isinstance(error, UsageError)
    assert "belong together" in str(error)


def test_what_the_trainer_decides_goes_to_the_keeper_of_that_game(monkeypatch):
    asked = []
    monkeypatch.setattr(games, "find_game", lambda trainee: f"the game of {trainee}")
    monkeypatch.setattr(games, "ask", lambda game, request: asked.append((game, request)) or {"text": "noted"})
    done = typed("train", "--overrule", "wrong", "--because", "he was told", "--trainee", "ada")
    assert (done.exit_code, done.stdout.strip()) == (0, "noted")
    assert asked == [("the game of ada", {"op": "overrule", "right": False, "why": "he was told"})]
