"""What a shell is told when a user presses the key: names that fit, and none that a command would refuse."""

import json

import pytest
import typer
from typer.testing import CliRunner

from hashidrill.core.experiment.library import experiments
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import HasAcls
from hashidrill.faces.cli import commands, completion, interchange, library, listing
from hashidrill.faces.cli.app import app
from hashidrill.kubernetes import rbac


@pytest.fixture
def complete(tmp_path, monkeypatch):
    """The words that a shell offers for the last one of a line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def of(line):
        words = line.split(" ")
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_HASHIDRILL_COMPLETE": "complete_bash"}
        done = CliRunner().invoke(app, [], prog_name="hashidrill", env=asked)
        assert done.exit_code == 0, done.output
        return done.stdout.split()

    return of


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hashidrill ga", ["gameday", "gate"]),
        ("hashidrill lab s", ["status", "shell"]),
        ("hashidrill run raft/frozen", ["raft/frozen-leader"]),
        ("hashidrill run raft/frozen-leader raft/slow-leader-disk-", ["raft/slow-leader-disk-brief"]),
        ("hashidrill show disk.", ["disk.bandwidth", "disk.error", "disk.full", "disk.latency"]),
        ("hashidrill show consul.kv.w", ["consul.kv.write"]),
        ("hashidrill show writes_r", ["writes_recover"]),
        ("hashidrill train fi", ["final", "first"]),
        ("hashidrill gameday run f", ["first-game-day"]),
        ("hashidrill rehearse runbook-slow", ["runbook-slow-leader"]),
        ("hashidrill history trend raft/frozen", ["raft/frozen-leader"]),
        ("hashidrill run --pl", ["--plain", "--plan"]),
        ("hashidrill lab up --like raft/frozen", ["raft/frozen-leader"]),
        ("hashidrill list run", ["runbooks", "runs"]),
        ("hashidrill run --attach ", []),
        ("hashidrill run nosuch", []),
    ],
)
def test_the_names_that_fit_are_offered(line, offered, complete):
    assert complete(line) == offered


def test_hosts_and_runs_are_those_of_this_machine(complete, tmp_path):
    assert complete("hashidrill lab shell ") == []
    (tmp_path / "state/hashidrill/up").mkdir(parents=True)
    file = tmp_path / "state/hashidrill/up/default.json"
    file.write_text(json.dumps({"hosts": [{"name": "consul-1"}, {"name": "consul-2"}, {"name": "nomad-1"}]}))
    assert complete("hashidrill lab shell con") == ["consul-1", "consul-2"]
    (tmp_path / ".hashidrill/runs/20260101-odd").mkdir(parents=True)
    (tmp_path / ".hashidrill/runs/20260101-odd/journal.jsonl").write_text("")
    assert complete("hashidrill check ") == ["20260101-odd", "last"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hosts": 3}', '{"hosts": [{}]}'])
def test_a_file_that_is_broken_offers_nothing(text, complete, tmp_path):
    (tmp_path / "state/hashidrill/up").mkdir(parents=True)
    (tmp_path / "state/hashidrill/up/default.json").write_text(text)
    assert complete("hashidrill lab shell ") == []


def test_all_of_a_kind_is_offered():
    assert set(completion.names("faults")) == set(registry.faults())
    assert set(completion.names("loads")) == set(registry.loads())
    assert set(completion.names("experiments")) == set(experiments())
    assert set(completion.names("hypotheses")) == set(library.known_hypotheses(None))
    assert set(completion.names("kinds")) == set(listing.KINDS)
    assert set(completion.names("schemas")) == set(library._SCHEMAS)
    assert set(completion.names("products")) == {*(cls.name for cls in registry.services_with(HasAcls)), rbac.SERVICE}
    assert set(completion.names("formats")) == set(interchange.FORMATS)


def test_what_is_completed_is_a_command_and_a_kind():
    """A command that is renamed would be completed no more."""
    whole = typer.main.get_command(app).commands
    for path, kinds in completion._ARGUMENTS.items():
        group, _, name = path.rpartition(".")
        assert name in (whole[group].commands if group else whole)
        assert all(completion.names(kind) is not None for kind in kinds.split())
        assert set(kinds.split()) <= {*completion._SOURCES, *listing.KINDS}
    assert set(commands.GROUPS) <= set(whole)
