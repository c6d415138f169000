"""Every command has help with an example; mistakes are one message and exit code 2; JSON is JSON."""

from __future__ import annotations

import json
import re

import pytest
import typer
from typer.testing import CliRunner

from hashidrill import cli, registry
from hashidrill.cli import runs
from hashidrill.cli.app import app
from hashidrill.library import list_experiments
from hashidrill.loader import load_experiment
from hashidrill.testing.recordings import RecordingBuilder
from hashidrill.verdict import Verdict

COMMANDS = sorted(typer.main.get_command(app).commands)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def mistake(monkeypatch, capsys, *arguments):
    """What `main` prints and exits with."""
    monkeypatch.setattr("sys.argv", ["hashidrill", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capsys.readouterr().err


@pytest.fixture
def good_run(tmp_path):
    builder = RecordingBuilder(tmp_path / "runs" / "20261121-000000-good-0001")
    builder.phase("steady", at=0)
    builder.phase("method", at=10)
    builder.fault("disk.latency", "consul-1", at=10, until=20)
    builder.phase("recovery", at=20)
    builder.load("kv-writes", rate=50, start=0, end=40, latency=lambda t: 3.0 if 10 <= t < 20 else 0.01)
    builder.expect("writes_recover", load="kv-writes", within="10s")
    builder.end("complete")
    return builder.build().path


class TestHelp:
    def test_the_commands_are_those_that_the_design_names(self):
        wanted = "check demo doctor down heal list new run schema shell show status up validate"
        assert wanted.split() == COMMANDS

    @pytest.mark.parametrize("command", COMMANDS)
    def test_each_command_shows_an_example_of_itself(self, command):
        shown = call(command, "-h")
        assert shown.exit_code == 0
        assert re.search(rf"hashidrill {command}\b", shown.stdout.split("Example")[1])

    def test_without_a_command_the_help_is_shown(self):
        assert "demo" in call().output


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["run", "raft/slow-leader-dsk"], "did you mean raft/slow-leader-disk"),
            (["validate", "nothing-like-it"], "there is no experiment 'nothing-like-it'"),
            (["check", "nope"], "there is no recording 'nope'"),
            (["show", "disk.latancy"], "did you mean disk.latency"),
            (["list", "fault"], "did you mean faults"),
            (["new", "x.txt"], "an experiment is a .yaml file"),
            (["new", "no/such/folder/x.yaml"], "there is no folder"),
            (["shell", "consul-1"], "`hashidrill up` starts one"),
            (["down", "other"], "`hashidrill up` starts one"),
            (["heal", "nope"], "there is no recording"),
        ],
    )
    def test_each_is_one_message_and_exit_code_2(self, arguments, said, monkeypatch, capsys, tmp_path):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        code, err = mistake(monkeypatch, capsys, *arguments)
        assert code == 2
        assert said in err
        assert err.startswith("hashidrill: ")
        assert "Traceback" not in err

    def test_all_experiments_are_right_before_any_is_run(self, monkeypatch, capsys, tmp_path):
        wrong = tmp_path / "wrong.yaml"
        wrong.write_text("kind: Experiment\n")
        monkeypatch.setattr(runs, "run_experiment", lambda *_a, **_k: pytest.fail("something was run"))
        code, err = mistake(monkeypatch, capsys, "run", "raft/frozen-leader", wrong)
        assert code == 2
        assert "wrong.yaml" in err

    def test_new_does_not_write_over_a_file(self, monkeypatch, capsys, tmp_path):
        there = tmp_path / "there.yaml"
        there.write_text("mine")
        code, err = mistake(monkeypatch, capsys, "new", there)
        assert (code, there.read_text()) == (2, "mine")
        assert "exists already" in err

    def test_ctrl_c_before_anything_ran_is_exit_code_130(self, monkeypatch, capsys):
        def interrupted(*_a, **_k):
            raise KeyboardInterrupt

        monkeypatch.setattr(runs, "ensure_system_packages", interrupted)
        code, err = mistake(monkeypatch, capsys, "run", "raft/frozen-leader")
        assert code == 130
        assert "Traceback" not in err


class TestLibrary:
    def test_list_shows_each_experiment_with_its_title(self):
        listed = json.loads(call("list", "--json").stdout)
        assert len(listed) == len(list_experiments())
        assert all(row["title"] and row["tags"] for row in listed)

    @pytest.mark.parametrize("kind", ["faults", "loads", "hypotheses"])
    def test_list_says_of_each_kind_what_it_is(self, kind):
        listed = json.loads(call("list", kind, "--json").stdout)
        assert listed
        assert all(len(list(row.values())[1]) > 20 for row in listed)

    @pytest.mark.parametrize("kind", sorted(registry.faults() | registry.loads()))
    def test_show_names_every_parameter(self, kind):
        shown = call("show", kind).stdout
        for name, field in (registry.faults() | registry.loads())[kind].Params.model_fields.items():
            assert re.search(rf"^  {field.alias or name} ", shown, re.MULTILINE)

    def test_show_prints_an_experiment_as_it_is_written(self):
        assert "kind: Experiment" in call("show", "raft/frozen-leader").stdout

    def test_the_whole_library_validates(self):
        checked = json.loads(call("validate", "--json").stdout)
        assert [row["error"] for row in checked] == [None] * len(list_experiments())

    def test_what_new_writes_is_right_and_has_the_editors_schema(self, tmp_path):
        path = tmp_path / "my_first-Drill.yaml"
        assert call("new", path).exit_code == 0
        assert load_experiment(path).metadata.name == "my-first-drill"
        assert path.read_text().startswith("# yaml-language-server: $schema=")

    def test_every_experiment_of_the_library_names_the_schema(self):
        for path in list_experiments():
            assert path.read_text().startswith("# yaml-language-server: $schema=../schema.json\n"), path

    def test_schema_is_json_and_is_the_one_in_the_repository(self):
        shown = call("schema").stdout
        assert json.loads(shown)["title"] == "hashidrill experiment"


class TestCheck:
    def test_judges_again_and_writes_the_reports(self, good_run):
        done = call("check", good_run, "--json")
        [*_, result] = [json.loads(done.stdout)]
        assert (result["verdict"], done.exit_code) == ("PASS", 0)
        assert {path.name for path in good_run.iterdir()} >= {"report.html", "summary.md", "verdict.json"}

    def test_last_is_the_latest(self, good_run):
        assert json.loads(call("check", "last", "--runs", good_run.parent, "--json").stdout)["recording"] == str(
            good_run
        )

    def test_list_runs_and_show_know_it(self, good_run):
        call("check", good_run)
        [row] = json.loads(call("list", "runs", "--runs", good_run.parent, "--json").stdout)
        assert (row["run"], row["verdict"]) == (good_run.name, "PASS")
        assert "PASS" in call("show", "last", "--runs", good_run.parent).stdout


class TestExitCodes:
    @pytest.mark.parametrize(("codes", "worst"), [([0, 0], 0), ([0, 3], 3), ([3, 1, 0], 1), ([1, 4, 3], 4), ([0], 0)])
    def test_of_several_runs_the_worst_counts(self, codes, worst):
        assert runs._worst(codes) == worst

    def test_they_are_those_that_the_design_names(self):
        assert {verdict: verdict.exit_code for verdict in Verdict} == {
            Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INVALID: 3,
        }  # fmt: skip
