"""`init` and `new` write files that work as they are, and never take the place of one that is there."""

import json
import runpy
from importlib import metadata

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from command_line import as_installed
from hashidrill.core.experiment.library import experiments, own_experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.faces.cli import init, runs
from hashidrill.faces.cli.app import app
from places import EXPERIMENTS, ROOT

WRITTEN = {
    "experiments/first-experiment.yaml",
    "hypotheses/patience.py",
    "playbooks/game-day.yaml",
    ".github/workflows/hashidrill.yml",
    "README.md",
    ".gitignore",
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """An empty folder, far from the checkout."""
    as_installed(monkeypatch, tmp_path)
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def said(*words, code=0):
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        done.exit_code = getattr(done.exception, "exit_code", 1)
        assert done.exit_code == code, repr(done.exception)
        return str(done.exception)
    assert done.exit_code == code, done.output
    return done.output


def test_what_init_writes_is_complete_and_right(own):
    output = said("init")
    assert {str(path.relative_to(own)) for path in own.rglob("*") if path.is_file()} == WRITTEN
    assert all(f"wrote {name}" in output for name in WRITTEN)
    assert max(map(len, output.splitlines())) <= 80
    assert "playbooks/game-day.yaml  lead a team" in output
    experiment = load_experiment(own / "experiments/first-experiment.yaml")
    assert [each.hypothesis for each in experiment.expect][-1] == "nobody_waits_longer_than"
    files = [*map(str, own.glob("*/*.yaml"))]
    assert said("validate", *files).count("ok  ") == 2
    assert "nobody_waits_longer_than" in said("list", "hypotheses")
    assert len((own / "README.md").read_text().splitlines()) == 10


@pytest.mark.lie
@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_init_keeps_what_is_there(own, name):
    (own / name).parent.mkdir(parents=True, exist_ok=True)
    (own / name).write_text("mine\n")
    output = said("init")
    assert f"kept  {name}" in output
    assert (own / name).read_text() == "mine\n"
    assert output.count("wrote") == len(WRITTEN) - 1
    assert ("Add .hashidrill/ to .gitignore" in output) == (name == ".gitignore")


def test_init_makes_the_folder_that_it_is_given(own):
    assert "cd drills && hashidrill run" in said("init", "drills")
    assert (own / "drills/experiments/first-experiment.yaml").is_file()


@pytest.mark.parametrize(
    ("inside", "folder", "expected"),
    [(False, str(ROOT), "checkout of hashidrill itself"), (True, ".", "experiments: cannot be a folder")],
)
def test_init_says_where_it_cannot_write(own, inside, folder, expected):
    if inside:
        (own / "experiments").write_text("a file")
    assert expected in said("init", folder, code=2)


class Installed:
    version = "1.2.3"

    def __init__(self, noted):
        self.noted = noted

    def read_text(self, name):
        assert name == "direct_url.json"
        return None if self.noted is None else json.dumps(self.noted)


COMMIT = {"vcs": "git", "commit_id": "abc"}


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        (None, "hashidrill==1.2.3"),
        ({"url": "https://git.example.org/a/b", "vcs_info": COMMIT}, "git+https://git.example.org/a/b@abc"),
        ({"url": "file:///src/hashidrill", "dir_info": {"editable": True}}, init.PLACEHOLDER),
        ({"url": "file:///dist/hashidrill.whl", "archive_info": {}}, init.PLACEHOLDER),
        pytest.param(
            {"url": "https://me:secret@git.example.org/a/b", "vcs_info": COMMIT},
            init.PLACEHOLDER,
            marks=pytest.mark.lie,
        ),
    ],
)
def test_ci_installs_what_init_was_installed_from(own, monkeypatch, noted, expected):
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(noted))
    output = said("init")
    workflow = YAML(typ="safe").load((own / init.WORKFLOW).read_text())
    job = workflow["jobs"]["experiments"]
    assert job["env"] == {"HASHIDRILL": expected}
    assert ("CI cannot get" in output) == (expected == init.PLACEHOLDER)
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert [each.partition(" ")[2] for each in commands if each.startswith("hashidrill")] == [
        "validate experiments/*.yaml playbooks/*.yaml",
        "run --plain",
    ]


def same(one, other):
    """The same experiments under other names."""
    return one.model_copy(update={"metadata": other.metadata}) == other


@pytest.mark.long
@pytest.mark.parametrize("place", ["experiments/deep/copy.yaml", "outside.yaml"])
def test_a_copy_of_any_shipped_experiment_is_the_same_experiment(own, place):
    (own / place).parent.mkdir(parents=True, exist_ok=True)
    for name, path in experiments(EXPERIMENTS).items():
        said("new", "--from", name, place)
        copy = load_experiment(own / place)
        assert copy.metadata.name == (own / place).stem
        assert same(load_experiment(path), copy), name
        (own / place).unlink()


def test_a_copy_has_its_own_files_of_openslo(own):
    said("new", "--from", "alerts/slo-slow-follower", "ours")
    assert "slo: ours-slo-commits.yml" in (own / "experiments/ours.yaml").read_text()
    shipped = next(iter(EXPERIMENTS.rglob("slo-commits.yml")))
    assert (own / "experiments/ours-slo-commits.yml").read_text() == shipped.read_text()
    said("validate", "experiments/ours.yaml")


def test_a_copy_keeps_comments_and_what_it_extends(own):
    said("new", "--from", "incidents/roblox-2021", "ours")
    text = (own / "experiments/ours.yaml").read_text()
    assert "extends: bases/streaming.yaml\n" in text
    assert "# attempt 1: block all clients, restore a snapshot, let the clients in again" in text
    assert "$schema" not in text


KINDS = {
    ("gameday", "spring"): "playbooks/spring.yaml",
    ("gameday", "summer", "--from", "first-game-day"): "playbooks/summer.yaml",
    ("runbook", "our-leader"): "playbooks/our-leader.md",
    ("runbook", "our-disk", "--from", "runbook-full-disk"): "playbooks/our-disk.md",
    ("experiment", "ours"): "experiments/ours.yaml",
    ("ours",): "experiments/ours.yaml",
}


@pytest.mark.parametrize(("words", "file"), KINDS.items(), ids=map(" ".join, KINDS))
def test_each_kind_of_file_is_right_as_it_is_written(own, words, file):
    said("init")
    said("new", *words)
    name = words[1] if words[1:] else words[0]
    assert f"ok  {file}" in said("validate", file)
    assert name in (own / file).read_text()
    assert "](reference-" not in (own / file).read_text()
    assert "already exists" in said("new", *words, code=2)


def test_a_new_hypothesis_and_a_new_fault_pass_their_tests(own, monkeypatch, tmp_path):
    monkeypatch.setattr("hashidrill.testing.faults.PROVEN_WITHIN_S", 0.1)
    monkeypatch.syspath_prepend(str(own))
    said("new", "hypothesis", "patient-clients")
    said("new", "fault", "slow-nic")
    of_hypothesis = runpy.run_path("tests/test_patient_clients.py")
    assert of_hypothesis["judged"](tmp_path, 3.0).figures["longest_s"] == pytest.approx(3.0)
    of_fault = runpy.run_path("test_slow_nic.py")
    assert of_fault["SlowNic"].kind == "own.slow_nic"
    assert [case() for name, case in of_fault.items() if name.startswith("test_")] == [None, None]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("nonsense", "name"), "no kind 'nonsense'"),
        (("gameday",), ""),
        (("a", "b", "c"), "no kind"),
        (("x.txt",), "ends in .yaml"),
        (("runbook", "x.yaml"), "ends in .md"),
        (("nowhere/x.yaml",), "there is no folder nowhere"),
        (("Ünder",), "cannot name an experiment"),
        (("hypothesis", "x.py"), "a folder named hypotheses/"),
        (("fault", "x", "--from", "disk.latency"), "--from copies experiments"),
        (("x", "--from", "raft/killed-leadr"), "raft/killed-leader"),
        (("gameday", "x", "--from", "first-game-dya"), "first-game-day"),
    ],
)
def test_new_says_what_is_wrong(own, words, expected):
    if not expected:  # a name like a kind is a name
        assert "experiments/gameday.yaml" in said("new", *words)
    else:
        assert expected in said("new", *words, code=2)
        assert not any(own.rglob("x*"))


ATTACHED = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: there, title: There, why: because}
datacenter: {attach: staging.yaml}
load: {kv-writes: {kind: consul.kv.write, rate: 5/s}}
steady_state: {require: ["raft.leader >= 0"]}
method: [{fault: consul.leader.transfer, on: "consul:leader", for: 5s}]
expect: [{no_acknowledged_write_lost: {load: kv-writes}}]
"""


def test_run_without_a_name_runs_ones_own_and_leaves_what_stands_alone(own, monkeypatch):
    played = []
    monkeypatch.setattr(runs, "allow_all", lambda resolved, there: played.extend(each.name for each in resolved))
    monkeypatch.setattr(runs.Runs, "until_stopped", lambda self, plays: [(0, {})])
    assert "hashidrill init" in said("run", code=2)
    said("init")
    (own / "experiments/there.yaml").write_text(ATTACHED)
    assert "need an existing datacenter: there.yaml" in said("run")
    assert played == ["first-experiment"]
    assert "name the experiments" in said("run", "--attach", "staging.yaml", code=2)


def test_the_checkouts_own_experiments_are_not_ones_own(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert own_experiments() == []
