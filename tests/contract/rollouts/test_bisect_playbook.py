"""Every command of playbooks/find-the-change.md, on a real git, with planted recordings in place of runs."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hashidrill.faces.cli import bisect as command
from hashidrill.faces.cli.app import app
from hashidrill.testing.recordings import RecordingBuilder
from places import ROOT
from repositories import new_repository

PAGE = (ROOT / "playbooks" / "find-the-change.md").read_text()
COMMANDS = [
    line.removeprefix("hashidrill ")
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
SIDES = {"good": "server = true\nlimits { rpc_rate = 100 }\n", "bad": "server = true\nlimits { rpc_rate = 1 }\n"}


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """The folder of somebody who reads the page: two files, and a repository whose second commit breaks."""
    top = tmp_path / "ours"
    m3x = pinned(new_repository(monkeypatch, tmp_path / "m3x"))
    m3 = pinned(new_repository(monkeypatch, tmp_path / "m3"), m3x=m3x)
    monkeypatch.setattr(command, "_asking", lambda _given, _say: lambda _product: lambda *_: "")
    monkeypatch.setattr(command.binaries, "ensure", lambda *_, **__: None)

    git = new_repository(monkeypatch, top)
    monkeypatch.chdir(top)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{tmp_path}/m3x.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://git.example.org/m3x.git")
    (top / "consul.d").mkdir()
    for number, (tag, side) in enumerate((("v1.4", "good"), ("v1.5", "bad"))):
        (top / f"{side}.hcl").write_text(SIDES[side])
        (top / "consul.d" / "server.hcl").write_text(SIDES[side])
        (top / "ingest.py").write_text(f"# {side}\n")
        (top / "pins").write_text(f"m3 {m3[number]}\n")
        git("add", "consul.d", "ingest.py", "pins")
        git("commit", "-q", "-m", side)
        git("tag", tag)

    @cache
    def planted(*, slow):
        name = "slow" if slow else "quick"
        built = RecordingBuilder(tmp_path / name, name=name).fault("noop", at=10, until=30)
        built.expect("latency_stays", load="ingest", p50_below="300ms")
        built.load("ingest-of-the-good-end")
        return built.load("ingest", latency=2.0 if slow else 0.01).build().path

    def run(resolved, _title):
        consul = resolved.data["datacenter"].get("consul") or {}
        sources = [word for client in resolved.experiment.clients.values() for word in client.command]
        program = next((word for word in sources if word.endswith("/ingest.py")), None)
        slow = "'rpc_rate': 1}" in str(consul) if "rpc_rate" in str(consul) else consul.get("version") == "1.22.2"
        if program is not None:
            slow = "bad" in Path(program).read_text()
        return planted(slow=slow)

    monkeypatch.setattr(command, "_runner", lambda *_, **__: run)
    return top


def pinned(git, **pins):
    """Two commits, each with the commits of others that it pins."""
    commits = []
    for number in range(2):
        lines = [f"{name} {others[number]}\n" for name, others in pins.items()]
        Path(git("rev-parse", "--show-toplevel"), "pins").write_text(f"# {number}\n{''.join(lines)}")
        git("add", "pins")
        git("commit", "-q", "-m", str(number))
        commits.append(git("rev-parse", "HEAD"))
    return commits


def type_in(line: str, log: str = "log.jsonl"):
    words = shlex.split(line)
    return CliRunner().invoke(app, words if "--resume" in words else [*words, "--log", log])


def test_the_page_has_its_commands():
    assert len(COMMANDS) == 7
    assert all(line.startswith("bisect ") for line in COMMANDS)


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("--good", "limits.rpc_rate: 100 -> 1  (bad.hcl:2:10)"),
        ("--versions", "consul 1.22.2 is the first that breaks"),
        ("--path", "(bad) is the first that breaks"),
        ("--command", "(bad) is the first that breaks"),
        ("--build", "(bad) is the first that breaks"),
        ("--descend", "it breaks with the old commit of lib/m3 too"),
    ],
)
def test_each_search_of_the_page_finds_what_is_planted(reader, start, found):
    del reader
    line = next(each for each in COMMANDS if start in each)

    result = type_in(line)

    assert result.exit_code == 0, f"{result.output}{result.exception}"
    assert found in result.output


@pytest.mark.long
def test_the_search_of_the_page_is_resumed(reader):
    (line,) = [each for each in COMMANDS if "--resume" in each]
    log = line.split()[-1]
    assert type_in(f"{COMMANDS[0]} --tries 2", log).exit_code == 3

    result = type_in(line)

    assert result.exit_code == 0, result.output
    assert "2 runs are in" in result.output
    assert (reader / log).exists()
