"""What an agent does to its host, on one in memory: proofs read back, undos work twice, and tools may lie."""

import json
import signal

import pytest

from hashidrill.staging.carriers.inside import agent, host_faults
from hashidrill.staging.carriers.inside.host_faults import KINDS
from hashidrill.staging.carriers.inside.slowdown import as_injected
from hashidrill.staging.carriers.inside.system import RefusedError, System

TABLE = {"table": "t", "script": "add table inet t\nadd rule inet t input drop\n"}


class Host(System):
    """Its tools do what they are told, but for those in `lying`, which say so and do nothing."""

    def __init__(self, *, netem=True, lying=(), missing=(), root=True):
        self.tables, self.qdisc, self.processes = {}, None, {7: ["S", 70]}
        self.netem, self.lying, self.missing, self.root = netem, set(lying), set(missing), root
        self.asked = []

    def is_root(self):
        return self.root

    def sleep(self, seconds):
        pass

    def run(self, command, text=""):
        self.asked.append(command)
        if command[0] in self.missing:
            raise RefusedError("tool-missing", f"{command[0]} is not installed on this host")
        return getattr(self, f"_{command[0]}")(command[1:], text)

    def _nft(self, words, text):
        if "list" in words:
            items = [{"table": {"name": name}} for name in self.tables]
            items += [{"rule": {"table": name}} for name, rules in self.tables.items() for _ in range(rules)]
            return 0, json.dumps({"nftables": items}), ""
        if words[0] == "-c" or "nft" in self.lying:
            return (1, "", "syntax error") if "wrong" in text else (0, "", "")
        for line in text.splitlines():
            verb, what, _, name, *_ = line.split()
            if (verb, what) == ("add", "rule"):
                self.tables[name] += 1
            elif what == "table":
                self.tables.setdefault(name, 0)
                if verb == "delete":
                    del self.tables[name]
        return 0, "", ""

    def _unshare(self, words, text):
        return (0, "", "") if self.netem else (2, "", "Error: Specified qdisc kind is unknown.\nmore")

    def _tc(self, words, text):
        if "show" in words:
            return 0, json.dumps([self.qdisc] if self.qdisc else []), ""
        if "tc" not in self.lying:
            gone = "del" in words
            self.qdisc = None if gone else {"kind": "netem", "handle": "6864:", "root": True, "options": {"delay": 1}}
        return 0, "", ""

    def stat(self, pid):
        return tuple(self.processes[pid]) if pid in self.processes else None

    def signal(self, reference, number):
        if not self.state(reference):
            return False
        if "kernel" not in self.lying:
            self.processes[7][0] = {signal.SIGSTOP: "T", signal.SIGCONT: "S"}[number]
        return True


def of(host, kind, args):
    return KINDS[kind](args, {}, host)


CASES = {
    "packets": TABLE,
    "netem": {"device": "eth0", "delay_ms": 100},
    "pause": {"agent": "consul", "reference": "7@70"},
}
LIARS = {"packets": "nft", "netem": "tc", "pause": "kernel"}


@pytest.mark.parametrize("kind", CASES)
def test_it_is_seen_in_force_and_seen_gone_and_undone_twice(kind):
    host = Host()
    fault = of(host, kind, CASES[kind])
    fault.check()
    assert fault.proof(present=False)[0]
    fault.apply()
    assert fault.proof(present=True)[0]
    assert not fault.proof(present=False)[0]
    for _ in range(2):
        of(host, kind, CASES[kind]).undo()
        assert fault.proof(present=False)[0]
    assert not fault.proof(present=True)[0]


@pytest.mark.lie
@pytest.mark.parametrize("kind", CASES)
def test_a_tool_that_claims_and_does_nothing_proves_nothing(kind):
    fault = of(Host(lying=[LIARS[kind]]), kind, CASES[kind])
    fault.apply()
    assert not fault.proof(present=True)[0]


@pytest.mark.lie
@pytest.mark.parametrize("kind", CASES)
def test_an_undo_that_does_nothing_is_no_revert(kind, tmp_path, capfd):
    host = Host()
    fault = of(host, kind, CASES[kind])
    fault.apply()
    host.lying.add(LIARS[kind])
    clock = iter(range(1000))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(agent, "now_s", lambda: next(clock))
        note = agent.Note(tmp_path, "f")
        note.write({})
        assert agent.reverted(fault, note, "lease", "agent") == 4
    said = json.loads(capfd.readouterr().out)
    assert (said["event"], said["why"]) == ("stuck", "lease")
    assert note.path.exists(), "what is still in force keeps its note"


def left_behind(tmp_path, host):
    """An agent of packet rules, where an earlier one of the same id died and left them."""
    folder = tmp_path / "run"
    note = agent.Note(folder, "f")
    spec = {"id": "f", "kind": "packets", "args": TABLE, "folder": str(folder)}
    note.write({"spec": spec, "memo": {}, "agent": "9@90"})
    host.tables["t"] = 1
    return agent.Agent(spec, host), note


@pytest.mark.usefixtures("signals_restored")
def test_nothing_is_applied_over_what_is_left_and_cannot_be_taken_away(tmp_path, capfd, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(agent, "now_s", lambda: next(clock))
    host = Host(lying=["nft"])
    late, note = left_behind(tmp_path, host)
    assert late.run() == 2
    stuck, refused = map(json.loads, capfd.readouterr().out.splitlines())
    assert (stuck["event"], refused["event"], refused["name"]) == ("stuck", "refused", "left-over")
    assert f"f is left over from before and cannot be removed; see {note.path}" in refused["why"]
    assert note.read()["agent"] == "9@90", "the note of what is in force stays"


def test_what_is_left_is_taken_away_before_anything_is_applied(tmp_path, capfd):
    host = Host()
    late, note = left_behind(tmp_path, host)
    late._take_over()
    assert (host.tables, note.read()) == ({}, None)
    assert json.loads(capfd.readouterr().out)["why"] == "it was left over"


def test_other_tables_and_a_table_without_rules_are_no_proof():
    host = Host()
    host.tables = {"other": 3, "t": 0}
    assert of(host, "packets", TABLE).proof(present=True) == (False, "0 rules in table t")


REFUSALS = [
    ("no-root", Host(root=False), "packets", TABLE, "it needs root on this host"),
    ("nft", Host(), "packets", {"table": "t", "script": "wrong"}, "does not accept the rules: syntax error"),
    ("tool-missing", Host(missing=["nft"]), "packets", TABLE, "nft is not installed"),
    ("no-netem", Host(netem=False), "netem", CASES["netem"], "no netem: Error: Specified qdisc kind is unknown."),
    ("process-gone", Host(), "pause", {"agent": "consul", "reference": "7@71"}, "consul (process 7@71) is gone"),
    ("tool-missing", Host(missing=["strace"]), "disk", {"references": []}, "strace is not installed"),
]


@pytest.mark.parametrize(("name", "host", "kind", "args", "message"), REFUSALS)
def test_what_cannot_be_had_is_refused_by_its_name_before_anything_is_there(name, host, kind, args, message):
    with pytest.raises(RefusedError) as refused:
        of(host, kind, args).check()
    assert refused.value.name == name
    assert message in str(refused.value)
    assert not host.tables
    assert host.qdisc is None


def test_a_qdisc_of_somebody_elses_is_left_alone():
    host = Host()
    host.qdisc = {"kind": "htb", "handle": "1:", "root": True}
    with pytest.raises(RefusedError, match="eth0 has a qdisc that hashidrill did not set: htb 1:"):
        of(host, "netem", CASES["netem"]).check()
    of(host, "netem", CASES["netem"]).undo()
    assert host.qdisc["kind"] == "htb"


@pytest.mark.parametrize(("said", "name"), [("strace -- version 4.9\n", "strace-old"), ("", "strace-old")])
def test_a_strace_that_cannot_delay_is_refused(said, name):
    host = Host()
    host._strace = lambda words, text: (0, said, "")
    with pytest.raises(RefusedError) as refused:
        of(host, "disk", {"references": []}).check()
    assert refused.value.name == name


class Strace(Host):
    """Where a strace, process 9, traces what is in `traced`."""

    traced = ()

    def __init__(self):
        super().__init__()
        self.processes[9] = ["S", 90]

    def tracers(self, pid):
        return {9} if pid in self.traced else {0}


class Meter:
    def __init__(self, seconds, error=""):
        self.said = seconds, error

    def asked(self, what):
        return self.said


def test_strace_that_runs_and_slows_nothing_or_traces_another_process_proves_nothing():
    host = Strace()
    args = {"references": ["7@70"], "calls": "fsync", "inject": "delay_enter=500000"}
    fault = KINDS["disk"](args, {"strace": "9@90"}, host)
    for traced, meter, ok in (((7,), 0.5, True), ((7,), 0.001, False), ((), 0.5, False)):
        host.traced, fault._meter = traced, Meter(meter)
        assert fault.proof(present=True)[0] is ok
        assert not fault.proof(present=False)[0], "strace still runs"
    del host.processes[9]
    host.traced = ()
    for state, meter, ok in (("S", 0.001, True), ("t", 0.001, False), ("S", 0.5, False)):
        host.processes[7][0], fault._meter = state, Meter(meter)
        assert fault.proof(present=False)[0] is ok


@pytest.mark.parametrize(
    ("inject", "seconds", "error", "ok"),
    [
        ("delay_enter=500000", 0.5, "", True),
        ("delay_enter=500000", 0.49, "", False),
        ("delay_enter=500000", 0.6, "EIO", False),
        ("error=EIO", 0.0, "EIO", True),
        ("error=EIO", 0.0, "", False),
        ("error=EIO", 0.0, "ENOSPC", False),
    ],
)
def test_what_a_call_of_the_meter_shows(inject, seconds, error, ok):
    assert as_injected(inject, seconds, error) is ok


class Systemd(Host):
    """A host whose service manager starts what it is told to."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.starts = folder, 0

    def _systemctl(self, words, text):
        if words[0] == "start":
            self.processes[8] = ["S", 80]
        return 0, "8\n" if words[0] == "show" else "", ""


class Standing(Systemd):
    """Where process 7 is in `cgroup`, and systemd says that process 8 is the main one of each unit."""

    def __init__(self, folder, cgroup):
        super().__init__(folder)
        self.proc = folder / "proc"
        (folder / "units").mkdir()
        for one in (self.proc / "7", self.proc / "self"):
            (one / "ns").mkdir(parents=True)
            (one / "ns" / "mnt").hardlink_to(self._namespace("host"))
            (one / "root").symlink_to(folder)
        (self.proc / "7" / "cgroup").write_text(cgroup)

    def _namespace(self, name):
        file = self.folder / name
        file.touch()
        return file

    def in_a_container(self):
        mount = self.proc / "7" / "ns" / "mnt"
        mount.unlink()
        mount.hardlink_to(self._namespace("container"))

    def in_a_root_of_its_own(self):
        root = self.proc / "7" / "root"
        root.unlink()
        root.symlink_to(self.proc)

    def remembered(self, pid):
        return host_faults.restart.remembered(self, f"{pid}@{10 * pid}", self.folder / "units")


@pytest.mark.lie
@pytest.mark.parametrize("unit", ["supervisor", "cron", "ssh"])
def test_a_process_below_another_service_is_not_ended_as_systemd_would_start_something_else(tmp_path, unit):
    """Otherwise the wrong unit is kept down, and its main process is taken for the agent that came back."""
    with pytest.raises(RefusedError, match=rf"process 7 is not the main process of {unit}\.service \(8 is\)") as no:
        Standing(tmp_path, f"0::/system.slice/{unit}.service\n").remembered(7)
    assert no.value.name == "cannot-restart"


def test_the_main_process_of_a_service_is_started_by_systemd(tmp_path):
    host = Standing(tmp_path, "")
    (host.proc / "8").mkdir()
    (host.proc / "8" / "cgroup").write_text("0::/system.slice/consul.service\n")
    assert host.remembered(8) == {"unit": "consul.service"}


@pytest.mark.lie
@pytest.mark.parametrize("where", [Standing.in_a_container, Standing.in_a_root_of_its_own])
def test_a_process_that_sees_other_files_is_not_ended_as_its_command_would_be_another_one_here(tmp_path, where):
    """A container with the host's network: /bin/consul of the container is not that of the host."""
    host = Standing(tmp_path, "0::/system.slice/docker-ab.scope\n")
    where(host)
    with pytest.raises(RefusedError, match="process 7 sees other files than this host's") as refused:
        host.remembered(7)
    assert refused.value.name == "cannot-restart"


def test_what_cannot_be_started_again_is_refused_before_anything_is_ended(tmp_path):
    host = Standing(tmp_path, "0::/system.slice/cron.service\n")
    host.in_a_container()
    args = {"agent": "consul", "reference": "7@70", "signal": signal.SIGKILL}
    with pytest.raises(RefusedError) as refused:
        of(host, "kill", args).check()
    assert refused.value.name == "cannot-restart"
    assert host.processes[7] == ["S", 70]


def test_a_service_of_systemd_stays_down_and_is_started_by_it(tmp_path):
    units = tmp_path / "units"
    units.mkdir()
    host, restart = Systemd(units), host_faults.restart
    memo = {"unit": "consul.service"}
    restart.keep_down(host, memo, units)
    assert (units / "consul.service.d" / "99-hashidrill.conf").read_text() == "[Service]\nRestart=no\n"
    assert restart.running(host, memo) == []
    for _ in range(2):
        restart.come_back(host, memo, units)
        assert [*units.iterdir()] == []
        assert restart.running(host, memo) == ["8@80"]
    assert ["systemctl", "start", "consul.service"] in host.asked


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/consul.service\n", "consul.service"),
        ("0::/\n", ""),
        ("12:cpu:/\n1:name=systemd:/system.slice/nomad.service\n0::/\n", "nomad.service"),
        ("0::/user.slice/user-0.slice/user@0.service\n", ""),
        ("0::/system.slice/docker-ab.scope\n", ""),
    ],
)
def test_which_service_of_systemd_a_process_is_of(cgroup, unit):
    assert host_faults.restart._unit(cgroup) == unit
