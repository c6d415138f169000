"""`hashidrill train` without a name says how far somebody is; `validate` checks a campaign."""

import json

import pytest
from typer.testing import CliRunner

from hashidrill.faces.cli.app import app
from hashidrill.gamedays.training.card import FAILED, PASSED
from hashidrill.gamedays.training.games import games_dir
from places import PLAYBOOKS


@pytest.fixture
def said(monkeypatch, tmp_path):
    """Runs a command with the progress of a person in a folder of the test's own; returns what it printed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words, played=()):
        file = games_dir() / "progress" / "ada.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"scenario": name, "seed": 1, "result": result, "points": 80, "at": ""} for name, result in played]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return CliRunner().invoke(app, list(words))

    return run


def test_train_without_a_name_shows_the_stages_and_what_to_type_next(said):
    shown = said("train", "--trainee", "ada", played=[("first", PASSED)])
    assert shown.exit_code == 0
    assert "passed  first" in shown.output
    assert "next: hashidrill train payday" in shown.output
    assert "not open yet" in shown.output


def test_it_says_the_same_as_json_and_counts_no_game_that_was_lost(said):
    told = json.loads(said("train", "--trainee", "ada", "--json", played=[("first", FAILED)]).stdout)
    assert told["next"] == "first"
    assert [stage["open"] for stage in told["stages"]] == [True, False, False, False]
    assert told["stages"][0]["passed"] == []


def test_nobody_else_s_games_count(said):
    shown = said("train", "--trainee", "bob", played=[("first", PASSED)])
    assert "next: hashidrill train first" in shown.output


def test_validate_takes_the_shipped_campaign_and_refuses_one_with_a_scenario_that_is_not_there(said, tmp_path):
    shipped = PLAYBOOKS / "training.yaml"
    assert said("validate", str(shipped)).exit_code == 0
    broken = tmp_path / "broken.yaml"
    broken.write_text(shipped.read_text().replace("scenarios: [final]", "scenarios: [finale]").replace("read:", "#"))
    assert said("validate", str(broken)).exit_code == 2
