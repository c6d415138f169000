"""Commands that only look run no Python of the folder in which they are called; those that play one's own still do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hashidrill.core.experiment.library import complete, find_experiment, read_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.faces.cli import main
from hashidrill.testing.recordings import RecordingBuilder

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
def call(monkeypatch, capsys):
    def go(*arguments):
        monkeypatch.setattr(sys, "argv", ["hashidrill", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, capsys.readouterr()

    return go


LOOKS = [
    (["list"], 0, "theirs"),
    (["list", "hypotheses"], 0, "Few writes reach the leader."),
    (["show", "theirs"], 0, "few: {at_most: 3}"),
    (["show", "theirs", "--complete"], 0, "at_most: 3"),
    (["show", "varied", "--variant", "one"], 0, "kind: Experiment"),
    (["show", "few"], 0, "was read, and not run"),
    (["show", "writes_recover"], 0, "p50_below"),
    (["show", "run", "--runs", "runs"], 0, "FAIL"),
    (["check", "run", "--runs", "runs"], 1, "no_acknowledged_write_lost"),
    (["new", "experiments/my-own.yaml"], 0, "wrote"),
    (["schema"], 0, "no_acknowledged_write_lost"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), LOOKS, ids=[" ".join(each[0]) for each in LOOKS])
def test_what_only_looks_runs_no_python_of_the_folder_and_says_the_same(folder, call, arguments, code, says):
    found, said = call(*arguments)
    assert not list(folder.rglob(MARK)), "it ran"
    assert (found, said.err) == (code, "")
    assert says in said.out


def test_an_experiment_with_ones_own_hypotheses_is_listed_without_an_error(folder, call):
    assert "has an error" not in call("list")[1].out


def test_a_folder_that_the_user_names_is_run(folder, call):
    assert "at_most" in call("show", "few", "--hypotheses", "hypotheses")[1].out
    assert list(folder.rglob(MARK))


def test_of_two_folders_only_the_named_one_is_run(folder, call, tmp_path_factory):
    mine = tmp_path_factory.mktemp("mine") / "hypotheses"
    mine.mkdir()
    (mine / "mine.py").write_text(OWN.replace("def few", "def many"))
    assert "many" in call("list", "hypotheses", "--hypotheses", mine)[1].out
    assert (mine / MARK).exists()
    assert not list(folder.rglob(MARK))


def test_to_run_and_to_validate_an_experiment_still_take_its_hypotheses(folder, call):
    """As pytest collects what lies beside the file that it is given."""
    resolved = resolve(Path("experiments/theirs.yaml"))
    assert resolved.hypotheses["hypotheses"]["few"]["shipped"] is False
    assert resolved.hypotheses["hypotheses"]["writes_recover"]["shipped"] is True
    assert call("validate", "experiments/theirs.yaml")[0] == 0
