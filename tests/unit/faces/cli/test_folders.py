"""One's own folder hides nothing that ships, and a stranger's folder runs nothing where a command only looks."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from command_line import as_installed, command_line
from hashidrill.core.experiment.library import complete, find_experiment, read_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.training.scenario import find_scenario, list_scenarios
from hashidrill.rollouts.gate.suite import suite
from hashidrill.testing.recordings import RecordingBuilder
from places import GOOD, PLAYBOOKS, ROOT

RUNBOOK, DAY = "playbooks/runbook-slow-leader.md", "first-game-day"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """One's own folder, with one experiment."""
    as_installed(monkeypatch, tmp_path)
    folder = tmp_path / "mine"
    (folder / "experiments").mkdir(parents=True)
    shutil.copy(GOOD, folder / "experiments/first.yaml")
    monkeypatch.chdir(folder)
    return folder


def said(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_the_wheel_carries_each_of_these_folders():
    assert all(
        f'"{name}" = "hashidrill/_library/{name}"' in (ROOT / "pyproject.toml").read_text()
        for name in ("experiments", "hypotheses", "playbooks")
    )


def test_all_that_ships_is_found_beside_ones_own(mine):
    listed = {row["name"]: row["path"] for row in json.loads(said("list", "--json").stdout)}
    assert listed["first"] == str(mine / "experiments/first.yaml")
    assert len(listed) > 80
    assert find_experiment("raft/killed-leader").is_file()
    assert len(suite(["gate"], "consul")) > 3


def test_a_game_day_that_was_copied_still_validates(mine):
    (mine / "playbooks").mkdir()
    shutil.copy(PLAYBOOKS / "first-game-day.yaml", mine / "playbooks/our-day.yaml")
    assert said("validate", "playbooks/our-day.yaml").exit_code == 0


@pytest.mark.parametrize("name", ["first", "raft/killed-leader", DAY, RUNBOOK, "playbooks/training.yaml"])
def test_what_ships_is_validated_by_its_name(mine, name):
    assert said("validate", name).stdout.startswith("ok  ")


def test_scenarios_are_ones_own_and_those_that_ship(mine):
    shipped = len(list_scenarios())
    (mine / "playbooks/training").mkdir(parents=True)
    own = shutil.copy(PLAYBOOKS / "training/first.yaml", mine / "playbooks/training/ours.yaml")
    assert find_scenario("ours") == own
    assert len(list_scenarios()) == shipped + 1


def test_ones_own_hypothesis_that_takes_the_place_of_a_shipped_one_is_told(mine, caplog):
    (mine / "hypotheses").mkdir()
    (mine / "hypotheses/ours.py").write_text(
        "from hashidrill.core.hypothesis import hypothesis\n@hypothesis\ndef leader_elected(recording): assert True\n"
    )
    assert said("list", "hypotheses").exit_code == 0
    [record] = caplog.records
    assert (
        record.message
        == f"hashidrill: note: {mine}/hypotheses/ours.py: leader_elected takes the place of the shipped one"
    )


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["validate", "nosuch.yaml"], "nosuch.yaml: there is no such file"),
        (["validate", "playbooks/runbook-slow-leder.md"], "did you mean runbook-slow-leader"),
        (["run", "firts.yaml"], "firts.yaml: there is no such file; did you mean first?"),
        (["gameday", "run", "first-game-dai.yaml"], "did you mean first-game-day?"),
        (["rehearse", "runbook-slow-leder.md"], "did you mean runbook-slow-leader"),
        (["train", "firts.yaml"], "there is no such file: did you mean first"),
        (["schedule", "--cron", "0 9 * * 1", "--nomad", "nosuch.yaml"], "nosuch.yaml: there is no such file"),
        (["lab", "up", "--like", "nosuch.yaml"], "nosuch.yaml: there is no such file"),
        (["convert", "export", "chaos-mesh", "nosuch.yaml"], "nosuch.yaml: there is no such file"),
        (["convert", "import", "nosuch.yaml"], "nosuch.yaml: cannot be read: there is no such file"),
        (["run", "first", "--attach", "stagin.yaml"], "stagin.yaml: there is no such file; did you mean staging.yaml?"),
        (["doctor", "--attach", "stagin.yaml"], "stagin.yaml: there is no such file; did you mean staging.yaml?"),
        (["audit", "stagin.yaml"], "stagin.yaml: no such file"),
        (["gate", "--baseline", "nosuch", "--candidate", "nosuch"], "nosuch: there is no such file"),
        (["bisect", "--experiment", "first", "--good", "nosuch", "--bad", "nosuch"], "nosuch: there is no such file"),
        (["history", "add", "nosuch"], "nosuch: no recording there"),
        (["capacity", "nosuch.yaml", "--vary", "x", "--until", "y"], "nosuch.yaml: there is no such file"),
        (["staging", "acl", "consul", "nosuch.yaml"], "nosuch.yaml: there is no such file"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_file_that_is_not_there_is_said_to_be_missing(mine, words, near):
    (mine / "staging.yaml").write_text("kind: Attach\n")
    result = CliRunner().invoke(app, words)
    assert near in f"{result.exception}{result.stderr}".replace("No such", "there is no such")
    assert getattr(result.exception, "exit_code", result.exit_code) == 2


MARK = "was-run"
OWN = f"""
from pathlib import Path
from hashidrill.core.hypothesis import hypothesis
Path(__file__).with_name("{MARK}").touch()

@hypothesis
def few(recording, *, at_most: int = 7):
    \"\"\"Few writes reach the leader.\"\"\"

@hypothesis
def no_acknowledged_write_lost(recording, *, load: str):
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A stranger's folder: an experiment, a recording that shows a loss, and Python beside them."""
    (tmp_path / "hypotheses").mkdir()
    (tmp_path / "hypotheses" / "mine.py").write_text(OWN)
    (tmp_path / "experiments").mkdir()
    text = complete(read_experiment(find_experiment("raft/slow-leader-disk"))).rstrip()
    (tmp_path / "experiments" / "theirs.yaml").write_text(f"{text}\n- few: {{at_most: 3}}\n")
    varied = "variants: {one: {}, two: {load: {kv-writes: {rate: 60/s}}}}"
    (tmp_path / "experiments" / "varied.yaml").write_text(f"{text}\n- few:\n{varied}\n")
    run = RecordingBuilder(tmp_path / "runs" / "run").fault("noop", at=10, until=30).load("kv-writes").healthy()
    run.final_reads("kv-writes", {"kv-writes/3": None}).expect("no_acknowledged_write_lost", load="kv-writes").build()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(monkeypatch, capsys, folder):
    return command_line(monkeypatch, capsys, folder)


LOOKS = [
    (["list"], 0, "theirs"),
    (["list", "hypotheses"], 0, "Few writes reach the leader."),
    (["show", "theirs"], 0, "few: {at_most: 3}"),
    (["show", "theirs", "--complete"], 0, "at_most: 3"),
    (["show", "varied", "--variant", "one"], 0, "kind: Experiment"),
    (["show", "few"], 0, "was read but not run"),
    (["show", "writes_recover"], 0, "p50_below"),
    (["show", "run", "--runs", "runs"], 0, "FAIL"),
    (["check", "run", "--runs", "runs"], 1, "no_acknowledged_write_lost"),
    (["new", "experiments/my-own.yaml"], 0, "wrote"),
    (["schema"], 0, "no_acknowledged_write_lost"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), LOOKS, ids=[" ".join(each[0]) for each in LOOKS])
def test_what_only_looks_runs_no_python_of_the_folder_and_says_the_same(folder, call, arguments, code, says):
    said = call(*arguments)
    assert not list(folder.rglob(MARK)), "it ran"
    assert (said.code, said.stderr) == (code, "")
    assert says in said.stdout


def test_an_experiment_with_ones_own_hypotheses_is_listed_without_an_error(folder, call):
    assert "has an error" not in call("list").stdout


def test_a_folder_that_the_user_names_is_run(folder, call):
    assert "at_most" in call("show", "few", "--hypotheses", "hypotheses").stdout
    assert list(folder.rglob(MARK))


def test_of_two_folders_only_the_named_one_is_run(folder, call, tmp_path_factory):
    mine = tmp_path_factory.mktemp("mine") / "hypotheses"
    mine.mkdir()
    (mine / "mine.py").write_text(OWN.replace("def few", "def many"))
    assert "many" in call("list", "hypotheses", "--hypotheses", mine).stdout
    assert (mine / MARK).exists()
    assert not list(folder.rglob(MARK))


def test_to_run_and_to_validate_an_experiment_still_take_its_hypotheses(folder, call):
    """As pytest collects what lies beside the file that it is given."""
    resolved = resolve(Path("experiments/theirs.yaml"))
    assert resolved.hypotheses["hypotheses"]["few"]["shipped"] is False
    assert resolved.hypotheses["hypotheses"]["writes_recover"]["shipped"] is True
    assert call("validate", "experiments/theirs.yaml").code == 0
