"""`hashidrill train` and its campaign: what is checked, how far a person is, what is refused before a game starts."""

import json
import os

import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import ExperimentError, UnknownNameError, UsageError
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.training import games
from hashidrill.gamedays.training.campaign import Played, best, read_campaign, remember_result, standing, told
from hashidrill.gamedays.training.card import FAILED, PASSED, Card
from hashidrill.gamedays.training.games import Game
from hashidrill.gamedays.training.scenario import list_scenarios, read_scenario
from places import PLAYBOOKS

SHIPPED = PLAYBOOKS / "training.yaml"
KNOWN = [path.stem for path in list_scenarios()]
SMALL = f"""\
apiVersion: hashidrill/v1
kind: Campaign
metadata: {{name: small, title: A small one}}
stages:
  - {{name: one, title: One, about: The first, scenarios: [{KNOWN[0]}, {KNOWN[1]}], needed: 1, takes: 1h}}
  - {{name: two, title: Two, about: The second, scenarios: [{KNOWN[2]}], takes: 30m}}
"""


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def typed(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return read_campaign(path)


def played(*names, result=PASSED):
    return {name: Played(name, 1, result, 90, "2026-11-23") for name in names}


@pytest.mark.parametrize(
    ("best", "opened", "following"),
    [
        ({}, [True, False], KNOWN[0]),
        (played(KNOWN[1]), [True, True], KNOWN[2]),
        *((played(KNOWN[0], result=result), [True, False], KNOWN[0]) for result in ("partly", "failed", "not counted")),
        (played(KNOWN[2]), [True, False], KNOWN[0]),
        (played(KNOWN[0], KNOWN[2]), [True, True], None),
    ],
)
def test_a_stage_opens_once_enough_of_the_one_before_is_passed(small, best, opened, following):
    where = standing(small, best)
    assert [each.open for each in where.stages] == opened
    assert where.next == following


def test_a_terminal_is_told_what_is_passed_and_what_to_type_next(small):
    text = told(small, standing(small, played(KNOWN[0])))
    assert f"passed  {KNOWN[0]}" in text
    assert f"next: hashidrill train {KNOWN[2]}" in text
    assert "not open yet" in told(small, standing(small, {}))
    assert "all stages are done" in told(small, standing(small, played(KNOWN[0], KNOWN[2])))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (f"[{KNOWN[2]}]", "[frist]", "stages[1].scenarios[0]: there is no scenario 'frist'"),
        (f"[{KNOWN[2]}]", f"[{KNOWN[0]}]", "is in the campaign already"),
        ("needed: 1", "needed: 3", "the stage has only 2 scenarios"),
        ("kind: Campaign", "kind: GameDay", "not a campaign"),
        ("takes: 30m", "takes: soon", "stages[1].takes"),
        ("takes: 30m", "takes: 1", "stages[1].takes"),
        ("takes: 30m", "takes: 30m, read: [no.md]", "stages[1].read[0]: there is no no.md next to this file"),
        ("about: The second, ", "", "about is missing"),
        ("about: The second", "abuot: x, about: y", "unknown key 'abuot'"),
        ("title: Two", "titel: Two", "stages[1]"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path, old, new, said):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.replace(old, new))
    with pytest.raises(ExperimentError) as error:
        read_campaign(path)
    assert said in " ".join(str(error.value).split())
    assert f"{path}:{2 if 'kind' in old else 5 if 'needed' in old else 6}:" in str(error.value)


def test_the_shipped_campaign_has_every_scenario_once_and_grows_harder_to_the_final():
    campaign = read_campaign(SHIPPED)
    names = [name for stage in campaign.stages for name in stage.scenarios]
    levels = {path.stem: read_scenario(path).scenario.metadata.level for path in list_scenarios()}
    assert sorted(names) == sorted(KNOWN)
    assert (names[0], names[-1]) == ("first", "final")
    hardest = [max(levels[name] for name in stage.scenarios) for stage in campaign.stages]
    assert hardest == sorted(hardest)
    assert sum(float(stage.takes) for stage in campaign.stages) <= 8 * 3600


def test_validate_takes_the_shipped_campaign_and_refuses_one_with_a_scenario_that_is_not_there(tmp_path):
    assert typed("validate", SHIPPED).exit_code == 0
    broken = tmp_path / "broken.yaml"
    broken.write_text(SHIPPED.read_text().replace("scenarios: [final]", "scenarios: [finale]").replace("read:", "#"))
    assert typed("validate", broken).exit_code == 2


# what a person types


def remember(scenario="first", result=PASSED, points=80):
    remember_result(Card(scenario, "t", 1, 1, "ada", result, points, [], [], [], None, None, None, None))


def test_train_without_a_name_shows_the_stages_and_what_to_type_next():
    remember()
    shown = typed("train", "--trainee", "ada")
    assert shown.exit_code == 0
    for text in ("passed  first", "next: hashidrill train payday", "not open yet"):
        assert text in shown.output
    assert "next: hashidrill train first" in typed("train", "--trainee", "bob").output, "of another person"


def test_it_says_the_same_as_json_and_counts_no_game_that_was_lost():
    remember(result=FAILED)
    said = json.loads(typed("train", "--trainee", "ada", "--json").stdout)
    assert said["next"] == "first"
    assert [stage["open"] for stage in said["stages"]] == [True, False, False, False]
    assert said["stages"][0]["passed"] == []


def test_the_list_has_first_as_the_first_and_what_the_trainee_did_best():
    for result, points in ((FAILED, 20), (PASSED, 80), ("partly", 60)):
        remember(result=result, points=points)
    rows = json.loads(typed("train", "--list", "--trainee", "ada", "--json").stdout)
    assert (rows[0]["name"], rows[0]["best"]) == ("first", {"result": "passed", "points": 80})
    assert "best" in rows[1]
    assert (best("ada")["first"].points, best("grace")) == (80, {})


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["train", "frist"], UnknownNameError, "first"),
        (["say", "done"], UsageError, "hashidrill train first"),
        (["train", "--overrule", "right"], UsageError, "belong together"),
        (["train", "--because", "other words"], UsageError, "belong together"),
        (["train", "--overrule", "wrong", "--because", " "], UsageError, "belong together"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_type(words, kind, said):
    error = typed(*words).exception
    assert isinstance(error, kind)
    assert said in str(error)


@pytest.mark.parametrize("name", ["../x", "a b", "-x/y"])
def test_a_trainee_whose_name_is_a_path_is_refused(name):
    assert typed("train", "first", f"--trainee={name}").exit_code != 0


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


def test_what_the_trainer_decides_goes_to_the_keeper_of_that_game(monkeypatch):
    asked = []
    monkeypatch.setattr(games, "find_game", lambda trainee: f"the game of {trainee}")
    monkeypatch.setattr(games, "ask", lambda game, request: asked.append((game, request)) or {"text": "noted"})
    done = typed("train", "--overrule", "wrong", "--because", "he was told", "--trainee", "ada")
    assert (done.exit_code, done.stdout.strip()) == (0, "noted")
    assert asked == [("the game of ada", {"op": "overrule", "right": False, "why": "he was told"})]
