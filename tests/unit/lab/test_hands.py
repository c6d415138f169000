"""systemctl, journalctl and sudo on a host of ours: what whoever is on call would type."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hashidrill.lab.local import host_tools
from hashidrill.lab.local.inside import journalctl, systemctl

PID = 4_000_000
"""Above any that there is: nothing here may reach a process."""


class Init:
    """Stands for the host's init: one agent, that ends when it gets SIGTERM unless it is deaf."""

    def __init__(self, *, runs=True, deaf=False):
        self.runs, self.deaf, self.asked, self.signals, self.pid = runs, deaf, [], [], PID

    def ask(self, path, request):
        self.asked.append(request["op"])
        if request["agent"] != "consul":
            raise systemctl.RefusedError(f"agent {request['agent']} was never started here")
        if request["op"] == "start" and not self.runs:
            self.runs, self.pid = True, self.pid + 1
        return {"pid": self.pid if self.runs else None, "state": "S", "exit": 0}

    def kill(self, pid, number):
        assert pid == self.pid
        self.signals.append(signal.Signals(number).name)
        if number == signal.SIGKILL or (number == signal.SIGTERM and not self.deaf):
            self.runs = False


@pytest.fixture
def init(monkeypatch):
    def make(**how):
        made = Init(**how)
        monkeypatch.setattr(systemctl, "ask", made.ask)
        monkeypatch.setattr(systemctl.os, "kill", made.kill)
        times = iter(range(10_000))
        monkeypatch.setattr(systemctl.time, "monotonic", lambda: float(next(times)))
        monkeypatch.setattr(systemctl.time, "sleep", lambda _: None)
        return made

    return make


def call(*words, logs="/nowhere"):
    return systemctl.main(list(words), socket="/nowhere/consul-1.host", logs=str(logs))


def test_restart_ends_the_agent_and_starts_it_again(init):
    host = init()
    assert call("restart", "consul") == 0
    assert host.signals == ["SIGTERM", "SIGCONT"]
    assert host.runs
    assert host.pid == PID + 1


def test_one_that_does_not_end_is_killed(init):
    host = init(deaf=True)
    assert call("stop", "consul.service") == 0
    assert host.signals[-1] == "SIGKILL"
    assert not host.runs


def test_reload_and_kill_send_a_signal_and_start_nothing(init):
    host = init()
    assert call("reload", "consul") == 0
    assert call("kill", "-s", "USR1", "consul") == 0
    assert host.signals == ["SIGHUP", "SIGUSR1"]
    assert "start" not in host.asked


def test_a_signal_that_is_none_is_named_and_nothing_is_sent(init, capsys):
    host = init()
    assert call("kill", "-s", "NOPE", "consul") == 1
    assert "there is no signal NOPE" in capsys.readouterr().err
    assert (host.signals, host.asked) == ([], [])


@pytest.mark.lie
@pytest.mark.parametrize("unit", ["../engine", "{}/engine", "../engine.service"])
def test_journalctl_reads_no_file_outside_of_the_hosts_logs(tmp_path, capsys, unit):
    (tmp_path / "logs").mkdir()
    (tmp_path / "engine.log").write_text("disk.latency on consul-1\n")
    code = journalctl.main(["-u", unit.format(tmp_path)], socket="", logs=str(tmp_path / "logs"))
    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert "no such unit" in said.err


def test_is_active_says_it_and_exits_with_3_when_it_does_not_run(init, capsys):
    init()
    assert call("is-active", "consul") == 0
    init(runs=False)
    assert call("is-active", "consul") == 3
    assert call("is-active", "-q", "consul") == 3
    assert capsys.readouterr().out == "active\ninactive\n"


def test_show_prints_the_process(init, capsys):
    init()
    assert call("show", "-p", "MainPID", "--value", "consul") == 0
    init(runs=False)
    assert call("show", "--property=MainPID", "--value", "consul") == 0
    assert capsys.readouterr().out == f"{PID}\n0\n"


def test_status_shows_the_end_of_the_log(init, capsys, tmp_path):
    init()
    (tmp_path / "consul.log").write_text("".join(f"line {n}\n" for n in range(50)))
    assert call("status", "consul", "--no-pager", logs=tmp_path) == 0
    said = capsys.readouterr().out
    assert "active (running)" in said
    assert "line 40\n" in said
    assert "line 39\n" not in said


def test_an_agent_that_is_not_on_this_host_is_said_so(init, capsys):
    init()
    assert call("start", "vault") == 5
    assert capsys.readouterr().err == "Unit vault.service not found.\n"


def test_what_it_does_not_know_is_said_so(init, capsys):
    init()
    assert call("mask", "consul") == 1
    assert call() == 1
    assert "this host supports" in capsys.readouterr().err


def test_journalctl_shows_the_last_lines_of_a_log(capsys, tmp_path):
    (tmp_path / "consul.log").write_text("".join(f"line {n}\n" for n in range(50)))
    for words in (["-u", "consul", "-n", "2", "--no-pager"], ["--unit=consul.service", "--lines=2", "--since", "-5m"]):
        assert journalctl.main(words, socket="", logs=str(tmp_path)) == 0
        assert capsys.readouterr().out == "line 48\nline 49\n"
    assert journalctl.main(["-xe"], socket="", logs=str(tmp_path)) == 1


def test_the_stand_ins_are_programs_in_a_folder_of_the_host(tmp_path):
    host = SimpleNamespace(logs=tmp_path / "logs")
    folder = host_tools.furnish(host, tmp_path / "consul-1.host")
    assert sorted(path.name for path in folder.iterdir()) == ["journalctl", "sudo", "systemctl"]
    assert all(os.access(path, os.X_OK) for path in folder.iterdir())
    assert (folder / "systemctl").read_text().startswith(f"#!{sys.executable} -IS\n")


def test_variables_say_where_each_agent_of_the_host_keeps_what_it_has():
    host = SimpleNamespace(
        roles={"consul": "server", "nomad": "client"},
        data=Path("/d"),
        logs=Path("/l"),
        config_file=lambda agent: Path(f"/c/{agent}.json"),
    )
    assert host_tools.environment(host) == {
        "CONSUL_DATA": "/d/consul",
        "CONSUL_CONFIG": "/c/consul.json",
        "CONSUL_LOG": "/l/consul.log",
        "NOMAD_DATA": "/d/nomad",
        "NOMAD_CONFIG": "/c/nomad.json",
        "NOMAD_LOG": "/l/nomad.log",
    }
