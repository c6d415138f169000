"""Ctrl-C says what it did, whatever it ended: what is undone, what is kept, and how to go on. One table for all."""

import contextlib
import re

import pytest

from command_line import command_line, leaves
from hashidrill.lab.provision import binaries
from hashidrill.rollouts.gate.playing import Calibrated, InterruptedGate
from hashidrill.testing.recordings import RecordingBuilder
from tasks import raising

FACES = "hashidrill.faces.cli"
SLO = "kv-writes.latency.p50 < 300ms"
VERSIONS = ("--baseline-version", "1.10.3", "--candidate-version", "1.22.2", "--suite", "raft/killed-leader")
BISECT = ("--experiment", "raft/killed-leader", "--versions", "1.10.3", "1.22.2")
OF_A_RUN = r"1 fault reverted and proven gone, the datacenter is removed; kept: \S+; again: "
OF_RUNS = r"the run is reverted, its datacenter removed; kept: "


def stopped(*_, **__):
    raise KeyboardInterrupt


def gate_stopped(*_, **__):
    raise InterruptedGate


def calibrated(members, **_):
    yield Calibrated(members[0], None, "interrupted after 0 rounds", interrupted=True)


INTERRUPTED = {
    "demo": ((), {"runs.run_experiment": "RUN"}, OF_A_RUN + "hashidrill run raft/slow-leader-disk"),
    "run": (("raft/frozen-leader",), {"runs.run_experiment": "RUN"}, OF_A_RUN + "hashidrill run raft/frozen-leader"),
    "check": (("a", "b"), {"runs.judge_and_report": stopped}, "nothing ran; 0 of 2 reports are kept; to go on, "),
    "capacity": (
        ("raft/slow-leader-disk", "--vary", "method.0.with.delay", "--from", "20ms", "--until", SLO),
        {"capacity.run_experiment": stopped},
        OF_RUNS + "the recordings of 0 runs in .*; again: the same command",
    ),
    "gameday run": (
        ("first-game-day", "--yes"),
        {"gameday.play": "RUN", "gameday.look_at": lambda *_: (True, "")},
        OF_A_RUN + "when the day is resumed.* everything so far is kept in .* Go on with: hashidrill gameday resume",
    ),
    "rehearse": (
        ("runbook-slow-leader",),
        {"rehearse.rehearse_all": "RUN", "rehearse.check_tools": lambda _: None},
        OF_A_RUN + r"hashidrill rehearse \S+ --with \S+",
    ),
    "gate": (
        VERSIONS,
        {"gate.play_all": gate_stopped, "gate._ask_agents": lambda *_: None},
        OF_RUNS + "the recordings in .*, and the report; again: ",
    ),
    "gate --calibrate": (
        ("--suite", "raft/killed-leader"),
        {"gate.calibrate": calibrated},
        OF_RUNS + "0 calibrations; again: the same command; --suite names",
    ),
    "bisect": (
        BISECT,
        {"bisect.run_experiment": stopped, "bisect.binaries.ensure": lambda *_, **__: None},
        OF_RUNS + r"0 runs in \S+; again: hashidrill bisect --resume \S+",
    ),
    "explore": (
        ("raft/killed-leader",),
        {"explore.LabTrials": lambda *_: contextlib.nullcontext(), "explore.Search.search": stopped},
        r"kept: 0 trials in \S+; again: hashidrill explore --resume \S+",
    ),
    "retry": (
        ("--no-upstream", "--", "true"),
        {"retry._judge": stopped},
        "the command's processes and the tap are ended; kept: nothing; again: ",
    ),
    "lab up": ((), {"datacenter.running.up": stopped}, "default was not up yet and is removed; kept: .*; again: "),
}
"""Command: its words, what Ctrl-C strikes, and what it must say. `RUN`: during a run, whose recording is closed."""
QUICK = {
    "nothing that lasts": "init new list show validate schedule audit schema say heal lab.status lab.down lab.shell"
    " convert.import convert.export gameday.report history.list history.show history.trend history.changed"
    " history.state history.coverage history.add doctor",
    "one request of an existing datacenter": "staging.acl staging.proxies staging.arm staging.disarm staging.stop",
    "as gameday.run": "gameday.resume",
    "a game says so itself: the score card": "train",
}
"""Why a command is not in the table."""


@pytest.fixture
def hashidrill(monkeypatch, tmp_path, capsys):
    call = command_line(monkeypatch, capsys, tmp_path)

    def go(*words):
        said = call(*words)
        return said.code, " ".join((said.stdout + said.stderr).split())

    return go


def recorded(folder, outcome):
    builder = RecordingBuilder(folder, name="slow-disk").fault("disk.latency", "consul-1", at=10, until=30)
    return builder.load("kv-writes").healthy().expect("writes_recover", load="kv-writes").end(outcome).build().path


@pytest.mark.parametrize("command", INTERRUPTED)
def test_ctrl_c_says_what_it_did(command, hashidrill, monkeypatch, tmp_path):
    words, struck, says = INTERRUPTED[command]
    for name in ("a", "b"):
        recorded(tmp_path / ".hashidrill/runs" / name, "interrupted")
    for where, does in struck.items():
        monkeypatch.setattr(
            f"{FACES}.{where}", raising(KeyboardInterrupt(tmp_path / ".hashidrill/runs/b")) if does == "RUN" else does
        )
    code, said = hashidrill(*command.split(), *words)
    assert code == 130
    assert re.search(says, said), said
    assert said.count("interrupted; ") + said.count("interrupted: ") >= 1


@pytest.mark.lie
def test_a_fault_that_stays_is_not_called_reverted(hashidrill, monkeypatch, tmp_path):
    def in_a_run(*_, **__):
        raise KeyboardInterrupt(recorded(tmp_path / "stuck", "revert"))

    monkeypatch.setattr(f"{FACES}.runs.run_experiment", in_a_run)
    code, said = hashidrill("run", "raft/frozen-leader")
    assert (code, "proven gone" in said) == (4, False)
    assert f"a fault could not be reverted: `hashidrill heal {tmp_path / 'stuck'}`" in said


def test_ctrl_c_while_a_binary_is_got_says_that_nothing_of_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(binaries, "_local", lambda *_: None)
    monkeypatch.setattr(binaries, "_get", stopped)
    with pytest.raises(KeyboardInterrupt) as stop:
        binaries.ensure("consul", "1.22.2")
    assert stop.value.__notes__ == [
        "consul 1.22.2 was not complete, and is removed; kept: nothing; again: the same command"
    ]


def test_every_command_is_in_the_table_or_says_why_not():
    others = {name.replace(".", " ") for names in QUICK.values() for name in names.split()}
    assert {*dict(leaves())} == {name.partition(" --")[0] for name in INTERRUPTED} | others
