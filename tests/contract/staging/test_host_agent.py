"""The agent on a host for real: in a namespace of our own, with the kernel's own view as the independent reader.

Whatever takes away its runner, the agent itself or its guardian, the fault is gone afterwards, and nothing is left.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from boxes import FSYNCS, PATIENCE_S, Box, RealAgent, reference, stat, undone, wait_for
from hashidrill.core.protocols.packets import Block, script
from hashidrill.staging.carriers.shell import NOTES, program

pytestmark = [pytest.mark.lie, pytest.mark.long, pytest.mark.needs("datacenter", "nft")]
TABLE = "hashidrill_f"
RULES = {"table": TABLE, "script": script(TABLE, [Block("input", ("10.9.8.7",))])}
OTHERS = "add table inet somebody\nadd chain inet somebody mine { type filter hook input priority 5; }\n"


@pytest.fixture
def box():
    one = Box()
    yield one
    one.close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def sleeper(box):
    return box.start(["sleep", "1000"])


def stop_telling(agent):
    agent.process.stdin.close()


def kill_guardian(agent):
    os.kill(agent.guardian, signal.SIGKILL)


def hang(agent):
    agent.process.send_signal(signal.SIGSTOP)


ENDS = {
    "told to": (lambda agent: agent.tell(revert=1), {}, "asked to", "agent"),
    "the runner was killed, or sshd ended": (stop_telling, {}, "the connection ended", "agent"),
    "the runner is silent": (lambda agent: None, {"lease_s": 1}, "lease", "agent"),
    "its time is over": (lambda agent: None, {"deadline_s": 1}, "deadline", "agent"),
    "a signal": (lambda agent: agent.process.terminate(), {}, "SIGTERM", "agent"),
    "the agent was killed": (lambda agent: agent.process.kill(), {}, "the agent died", "guardian"),
    "the agent hangs": (hang, {"lease_s": 1}, "the agent hangs: lease", "guardian"),
    "its guardian was killed": (kill_guardian, {}, "its guardian died", "agent"),
}


@pytest.mark.parametrize("what", ENDS)
def test_packet_rules_are_gone_however_it_ends(box, folder, what):
    end, more, why, by = ENDS[what]
    box.run("nft", OTHERS)
    agent = RealAgent(box, folder, "packets", RULES, **more)
    assert f"rules in table {TABLE}" in agent.applied()["proof"]
    if not more:
        assert box.tables() == ["somebody", TABLE]
        assert agent.notes() == ["f.json"]
    end(agent)
    said = agent.event("reverted", "stuck")
    assert (said["event"], said["why"], said["by"]) == ("reverted", why, by)
    assert box.tables() == ["somebody"]
    assert agent.notes() == []
    assert agent.event("nothing more") is None, "neither the agent nor its guardian is there any more"


def test_a_signal_is_a_renewal_and_the_end_of_its_input_means_nothing_to_a_job_of_nomads(box, folder):
    agent = RealAgent(box, folder, "packets", RULES, renewals="signal")
    agent.applied()
    stop_telling(agent)
    agent.process.send_signal(signal.SIGUSR1)
    agent.process.send_signal(signal.SIGUSR1)
    assert box.tables() == [TABLE]
    agent.process.terminate()
    assert agent.event("reverted")["why"] == "SIGTERM"
    assert box.tables() == []


def test_a_job_that_waits_applies_nothing_before_its_first_signal(box, folder):
    agent = RealAgent(box, folder, "packets", RULES, renewals="signal", waits=True)
    assert agent.event("ready", "applied")["event"] == "ready"
    assert (box.tables(), agent.notes()) == ([], [])
    agent.process.send_signal(signal.SIGUSR1)
    agent.applied()
    assert box.tables() == [TABLE]
    agent.process.terminate()
    assert agent.event("reverted")["why"] == "SIGTERM"
    assert (box.tables(), agent.notes()) == ([], [])


@pytest.mark.parametrize(
    ("lease_s", "end", "why"), [(1, lambda one: None, "lease"), (1000, lambda one: one.terminate(), "SIGTERM")]
)
def test_a_job_that_nobody_asks_for_applies_nothing_and_ends(box, folder, lease_s, end, why):
    """Nomad placed it after its runner had given up, or was killed."""
    agent = RealAgent(box, folder, "packets", RULES, renewals="signal", waits=True, lease_s=lease_s)
    assert agent.event("ready", "applied")["event"] == "ready"
    end(agent.process)
    said = agent.event("refused", "applied")
    assert (said["event"], said["name"], said["why"]) == (
        "refused",
        "unasked",
        f"the runner did not ask for it: {why}; nothing was applied",
    )
    assert agent.process.wait(PATIENCE_S) == 2
    assert (box.tables(), agent.notes()) == ([], [])


def holder(lease_s):
    text = program({"lease_s": lease_s}, NOTES, "keep")
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)


def test_what_holds_the_place_of_observers_stays_while_it_is_renewed_and_ends_when_told_to():
    one = holder(1000)
    assert json.loads(one.stdout.readline())["event"] == "ready"
    one.send_signal(signal.SIGUSR1)
    one.send_signal(signal.SIGUSR1)
    assert one.poll() is None
    one.terminate()
    assert one.wait(PATIENCE_S) == 0
    one.stdout.close()


def test_what_holds_the_place_of_observers_ends_when_nobody_renews_it():
    one = holder(0.2)
    assert one.wait(PATIENCE_S) == 0
    one.stdout.close()


def test_what_nobody_could_take_away_is_taken_away_by_the_next_one(box, folder):
    """The agent and its guardian are killed at the same moment: their note is all that is left."""
    for take in (lambda: undone(box, folder), lambda: RealAgent(box, folder, "packets", RULES)):
        agent = RealAgent(box, folder, "packets", RULES)
        agent.applied()
        hang(agent)
        os.kill(agent.guardian, signal.SIGKILL)
        agent.process.kill()
        agent.process.wait()
        assert (box.tables(), agent.notes()) == ([TABLE], ["f.json"])
        taken = take()
        if isinstance(taken, RealAgent):
            assert taken.event("reverted")["why"] == "it was left over"
            taken.applied()
            taken.tell(revert=1)
            assert taken.event("reverted")["why"] == "asked to"
        else:
            assert (taken["event"], taken["why"]) == ("reverted", "asked to")
        assert (box.tables(), agent.notes()) == ([], [])
    assert undone(box, folder)["why"] == "nothing is left"


def test_a_fault_is_in_force_once(box, folder):
    agent = RealAgent(box, folder, "packets", RULES)
    agent.applied()
    second = RealAgent(box, folder, "packets", RULES)
    assert second.event("applied", "refused")["name"] == "in-force"
    assert second.process.wait() == 2
    assert box.tables() == [TABLE]
    assert undone(box, folder)["event"] == "reverted"
    assert agent.event("reverted")["why"] == "SIGTERM"
    assert box.tables() == []


def test_rules_that_nft_does_not_take_are_refused_before_anything_is_there(box, folder):
    agent = RealAgent(box, folder, "packets", {"table": TABLE, "script": f"add rule inet {TABLE} nowhere drop\n"})
    said = agent.event("applied", "refused")
    assert (said["event"], said["name"]) == ("refused", "nft")
    assert agent.process.wait() == 2
    assert (box.tables(), agent.notes()) == ([], [])


def test_without_root_nothing_is_touched():
    """In a user namespace that maps nobody: there, everybody is an ordinary user."""
    command = ["unshare", "--user", sys.executable, "-"]

    spec = {
        "id": "f",
        "kind": "packets",
        "args": RULES,
        "lease_s": 5,
        "deadline_s": 5,
        "renewals": "signal",
        "folder": "/run/hashidrill",
        "who": "",
    }
    done = subprocess.run(command, input=program(spec), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["name"] == "no-root"


@pytest.mark.parametrize("end", ["told to", "the agent was killed", "its guardian was killed"])
def test_a_paused_process_goes_on(box, folder, sleeper, end):
    agent = RealAgent(box, folder, "pause", {"agent": "sleep", "reference": reference(sleeper.pid)})
    agent.applied()
    assert stat(sleeper.pid)[0] == "T"
    ENDS[end][0](agent)
    assert agent.event("reverted", "stuck")["event"] == "reverted"
    # it runs for a moment before it sleeps again, and on a busy machine it waits for that
    wait_for(lambda: stat(sleeper.pid)[0] == "S", "it to go on")


def test_a_process_of_another_time_is_not_taken_for_it(box, folder, sleeper):
    agent = RealAgent(box, folder, "pause", {"agent": "sleep", "reference": f"{sleeper.pid}@1"})
    assert agent.event("applied", "refused")["name"] == "process-gone"
    wait_for(lambda: stat(sleeper.pid)[0] == "S", "it to sleep")


@pytest.mark.parametrize("end", ["told to", "the agent was killed"])
def test_a_killed_process_is_started_again_as_it_was(box, folder, tmp_path, end):
    log = tmp_path / "log"
    code = "import os, time; print(os.getcwd(), os.environ['OWN'], flush=True); time.sleep(1000)"
    environment = {"OWN": "a b=c", "PATH": os.environ["PATH"]}
    with log.open("wb") as output:
        victim = box.start([sys.executable, "-c", code], stdout=output, cwd=tmp_path, env=environment)
    wait_for(lambda: log.read_text().count("\n") == 1, "its first line")
    args = {"agent": "mine", "reference": reference(victim.pid), "signal": signal.SIGKILL}
    agent = RealAgent(box, folder, "kill", args)
    agent.applied()
    assert victim.wait() == -signal.SIGKILL
    ENDS[end][0](agent)
    said = agent.event("reverted", "stuck")
    assert said["event"] == "reverted", said
    again = int(said["proof"].removeprefix("runs as ").partition("@")[0])
    try:
        wait_for(lambda: log.read_text().count("\n") == 2, "its second line")
        first, second = log.read_text().splitlines()
        assert first == second == f"{tmp_path} a b=c"
        assert Path(f"/proc/{again}/ns/net").stat().st_ino == Path(f"/proc/{box.pid}/ns/net").stat().st_ino
    finally:
        os.kill(again, signal.SIGKILL)


AGENT = """
import os, signal, sys, time
folder = sys.argv[1].partition("=")[2]
def read(*_):
    print(" ".join(sorted(os.listdir(folder))), flush=True)
signal.signal(signal.SIGHUP, read)
read()
while True:
    time.sleep(0.05)
"""
"""It reads the folder of its settings when it begins, and at each SIGHUP, and says what it found."""
SETTINGS_ENDS = ["told to", "the runner was killed, or sshd ended", "the agent was killed", "its guardian was killed"]


@pytest.mark.parametrize("by", ["restart", "reload"])
@pytest.mark.parametrize("end", SETTINGS_ENDS)
def test_an_agent_has_settings_of_ours_and_reads_again_without_them_however_it_ends(box, folder, tmp_path, by, end):
    conf, log = tmp_path / "conf.d", tmp_path / "log"
    conf.mkdir()
    (conf / "agent.json").write_text("{}")
    (tmp_path / "agent").write_text(AGENT)
    launch = "import os, sys; os.execv(sys.executable, ['consul', 'agent', sys.argv[1]])"
    with log.open("wb") as output:
        began = box.start([sys.executable, "-c", launch, f"-config-dir={conf}"], stdout=output, cwd=tmp_path)
    wait_for(lambda: log.read_text() == "agent.json\n", "its first words")
    args = {
        "agent": "consul",
        "reference": reference(began.pid),
        "settings": {"a": 1},
        "by": by,
        "check": ["-c", "import sys; sys.exit(not sys.argv[1:])"],
    }
    agent = RealAgent(box, folder, "settings", args)
    try:
        agent.applied()
        wait_for(lambda: log.read_text().splitlines()[-1] == "agent.json zzz-hashidrill.json", "it to read ours")
        ENDS[end][0](agent)
        assert agent.event("reverted", "stuck")["event"] == "reverted", agent.events
        wait_for(lambda: log.read_text().splitlines()[-1] == "agent.json", "it to read without ours")
        assert [one.name for one in conf.iterdir()] == ["agent.json"]
        assert agent.notes() == []
        assert len(log.read_text().splitlines()) == 3, "it is told once"
        [runs] = [pid for pid in pids_of(conf) if stat(pid)[0] not in {"Z", "X", ""}]
        assert (runs == began.pid) is (by == "reload")
    finally:
        for pid in pids_of(conf):
            os.kill(pid, signal.SIGKILL)


def test_settings_that_the_agents_own_program_rejects_are_refused_and_never_read(box, folder, tmp_path):
    conf = tmp_path / "conf.d"
    conf.mkdir()
    code = "import sys, time; time.sleep(1000)"
    began = box.start([sys.executable, "-c", code, f"-config-dir={conf}"])
    args = {
        "agent": "consul",
        "reference": reference(began.pid),
        "settings": {"a": 1},
        "by": "restart",
        "check": ["-c", "import sys; sys.exit('unknown key a')"],
    }
    wait_for(lambda: pids_of(conf), "it to begin")
    agent = RealAgent(box, folder, "settings", args)
    said = agent.event("applied", "failed")
    assert (said["event"], "unknown key a" in said["why"]) == ("failed", True)
    assert agent.event("reverted")["event"] == "reverted"
    assert ([*conf.iterdir()], agent.notes()) == ([], [])
    wait_for(lambda: stat(began.pid)[0] == "S", "it to sleep")


def pids_of(conf):
    """Processes that read that folder."""
    found = []
    for home in Path("/proc").glob("[0-9]*"):
        try:
            if f"-config-dir={conf}" in (home / "cmdline").read_text().split("\0"):
                found.append(int(home.name))
        except OSError:
            continue
    return found


class Syncing:
    """A process in a box that syncs a file, and says how long that took it."""

    def __init__(self, box, tmp_path):
        self.process = box.start([sys.executable, "-c", FSYNCS, str(tmp_path / "file")], stdout=subprocess.PIPE)

    def next(self, wanted, what):
        """(seconds, errno) of the first fsync that is as wanted."""

        def one():
            seconds, error = self.process.stdout.readline().split()
            return (float(seconds), int(error)) if wanted(float(seconds), int(error)) else None

        return wait_for(one, what)


@pytest.mark.needs("strace")
@pytest.mark.parametrize("end", ["told to", "the agent was killed", "its guardian was killed"])
def test_the_disk_of_a_running_process_is_slow_and_is_quick_again(box, folder, tmp_path, end):
    syncing = Syncing(box, tmp_path)
    syncing.next(lambda seconds, _: seconds < 0.3, "a quick fsync")
    args = {"references": [reference(syncing.process.pid)], "calls": "fsync,fdatasync", "inject": "delay_enter=400000"}
    agent = RealAgent(box, folder, "disk", args)
    said = agent.applied()
    assert said["figures"]["fsync_ms"] >= 400
    assert said["figures"]["call_traced_us"] > said["figures"]["call_us"] > 0
    syncing.next(lambda seconds, _: seconds >= 0.4, "a slow fsync")
    ENDS[end][0](agent)
    assert agent.event("reverted", "stuck")["event"] == "reverted"
    for _ in range(3):
        syncing.next(lambda seconds, _: seconds < 0.4, "a quick fsync")
    assert "TracerPid:\t0\n" in Path(f"/proc/{syncing.process.pid}/status").read_text()
    assert agent.notes() == []


@pytest.mark.needs("strace")
def test_the_disk_of_a_running_process_fails_and_is_whole_again(box, folder, tmp_path):
    syncing = Syncing(box, tmp_path)
    args = {"references": [reference(syncing.process.pid)], "calls": "fsync,fdatasync", "inject": "error=EIO"}
    agent = RealAgent(box, folder, "disk", args)
    agent.applied()
    syncing.next(lambda _, error: error == 5, "an fsync that fails")
    agent.tell(revert=1)
    assert agent.event("reverted", "stuck")["event"] == "reverted"
    syncing.next(lambda _, error: error == 0, "an fsync that succeeds")


@pytest.mark.needs("strace")
def test_a_process_that_somebody_traces_is_left_alone(box, folder, tmp_path):
    syncing = Syncing(box, tmp_path)
    somebody = box.start(["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(syncing.process.pid)])
    status = Path(f"/proc/{syncing.process.pid}/status")
    wait_for(lambda: f"TracerPid:\t{somebody.pid}\n" in status.read_text(), "somebody's strace")
    args = {"references": [reference(syncing.process.pid)], "calls": "fsync,fdatasync", "inject": "delay_enter=1000"}
    agent = RealAgent(box, folder, "disk", args)
    said = agent.event("applied", "refused")
    assert (said.get("name"), agent.process.wait()) == ("traced", 2)
    assert f"by process {somebody.pid} already" in said["why"]


BUSY = "import hashlib\nwhile True: hashlib.sha256(bytes(1 << 15))"


@pytest.mark.parametrize("end", ["told to", "the agent was killed", "its guardian was killed"])
def test_a_process_gets_little_cpu_and_then_as_much_as_it_wants(box, folder, end):
    """By the kernel's own account of its CPU time; nothing of it is compared with the clock of a busy machine."""
    busy = box.start([sys.executable, "-c", BUSY])
    agent = RealAgent(box, folder, "cpu", {"references": [reference(busy.pid)], "cores": 0.1})
    agent.applied()
    wait_for(lambda: stat(busy.pid)[0] == "T", "it to be stopped for a moment")
    ENDS[end][0](agent)
    assert agent.event("reverted", "stuck")["event"] == "reverted"
    for _ in range(200):
        assert stat(busy.pid)[0] != "T"


@pytest.mark.needs("tc")
def test_netem_is_there_or_is_refused_by_its_name(box, folder):
    """Whether this kernel has it is asked of tc itself, and not of the agent."""
    has = (
        subprocess.run(
            [*box.inside, "unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    agent = RealAgent(box, folder, "netem", {"device": "lo", "delay_ms": 100})
    said = agent.event("applied", "refused", "failed")
    shown = box.run("tc", "qdisc", "show", "dev", "lo")
    if not has:
        assert (said["event"], said["name"]) == ("refused", "no-netem"), said
        assert "netem" not in shown
        return
    assert "netem 6864:" in shown
    agent.process.kill()
    assert agent.event("reverted", "stuck")["event"] == "reverted"
    assert "netem" not in box.run("tc", "qdisc", "show", "dev", "lo")
