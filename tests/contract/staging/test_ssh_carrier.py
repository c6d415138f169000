"""Faults that SSH carries to hosts, for real: asyncssh's own server in front of namespaces of ours.

The faults are the very ones of a datacenter of ours, with the same observers. What ends them early is seen by nft and
/proc, which no carrier is asked for.
"""

import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import anyio
import pytest

from boxes import Linked, stat, wait_for
from carried_runner import Hosts
from hashidrill.core.errors import AttachError
from hashidrill.core.faults.base import table_of
from hashidrill.core.faults.cpu import CpuThrottle, ThrottleParams
from hashidrill.core.faults.disk import DiskLatency, LatencyParams
from hashidrill.core.faults.network import (
    BlockParams,
    LossParams,
    NetworkBlock,
    NetworkLoss,
    NetworkPartition,
    PartitionParams,
)
from hashidrill.core.faults.process import (
    KillParams,
    NoParams,
    ProcessKill,
    ProcessPause,
    ProcessRestart,
    RestartParams,
)
from hashidrill.core.protocols.abc import Target
from hashidrill.core.protocols.capabilities import PacketFilter, Processes
from hashidrill.core.recording.journal import Clock, Journal, read_journal
from hashidrill.lab.runs import heal
from hashidrill.staging.attach.discovery import Estate, FoundHost
from hashidrill.staging.attach.http import UnansweredError
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.carriers import ssh
from hashidrill.staging.carriers.open_carriers import CARRIED, carried, look
from hashidrill.testing.faults import check_fault
from places import SUPPORT
from ssh_servers import SshServers

pytestmark = [pytest.mark.lie, pytest.mark.long, pytest.mark.needs("datacenter", "nft", "strace", "ip")]
HOSTS = {"consul-1": "10.99.0.1", "consul-2": "10.99.0.2", "consul-3": "10.99.0.3"}
AGENT = """
import os, socket, sys, threading, time
folder = sys.argv[1]
listener = socket.create_server(("", 8500), reuse_port=True)
def accept():
    while True:
        listener.accept()[0].close()
threading.Thread(target=accept, daemon=True).start()
file = os.open(os.path.join(folder, "raft.db"), os.O_RDWR | os.O_CREAT)
while True:
    os.pwrite(file, b"x", 0)
    os.fsync(file)
    time.sleep(0.02)
"""
"""What looks like an agent of Consul's: it listens, and syncs what it writes."""


class Answering:
    """Asks an agent from outside: here, whether its process runs."""

    def __init__(self, estate):
        self.estate = estate

    async def request(self, method, path, *, url, timeout_s):
        if not any(stat(pid)[0] in {"S", "R", "D", "t"} for pid in self.estate.agents(url)):
            raise UnansweredError(f"{url}: no answer in time")


class Staging:
    """Three hosts with an agent each, reached over SSH, and nothing else of a datacenter."""

    def __init__(self, folder):
        self.folder, self.linked = folder, Linked(HOSTS)
        self.boxes = self.linked.boxes
        for name, box in self.boxes.items():
            home = folder / name
            (home / "raft").mkdir(parents=True)
            (home / "agent").write_text(AGENT)
            box.start(["env", "-C", str(home), sys.executable, "-c", LAUNCH, str(home / "raft")])
        self.servers = SshServers(folder, self.boxes)
        ssh = self.servers.settings(folder / "run", lease="3s")
        self.target = AttachTarget("staging", "", str(folder / "staging.yaml"), {}, carriers={"ssh": ssh})
        found = {
            name: FoundHost(name, address, {"consul": "server"}, {"consul": f"http://{address}:8500"})
            for name, address in HOSTS.items()
        }
        self.estate = Estate("staging", found)
        self.told = []
        for name, address in HOSTS.items():
            wait_for(lambda address=address: self.agents(f"http://{address}:8500"), f"the agent of {name}")

    def with_ssh(self, **changed):
        return AttachTarget(
            "staging", "", self.target.path, {}, carriers={"ssh": self.target.carriers["ssh"] | changed}
        )

    def agents(self, url):
        name = next(name for name, address in HOSTS.items() if address in url)
        home = str(self.folder / name / "raft")
        found = []
        for pid in (one.name for one in Path("/proc").glob("[0-9]*")):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except OSError:
                continue
            if command[:2] == ["consul", "agent"] and home in command and stat(pid)[0] not in {"Z", "X"}:
                found.append(int(pid))
        return found

    @asynccontextmanager
    async def hosts(self, **more):
        async with carried(
            self.target,
            self.estate,
            {"consul": Answering(self)},
            deadline_s=600,
            tell=self.told.append,
            who="ana@desk",
            **more,
        ) as parts:
            yield Hosts(self.estate, parts)

    def notes(self):
        return [*(self.folder / "run").iterdir()] if (self.folder / "run").exists() else []

    def tables(self):
        return {name: tables for name, box in self.boxes.items() if (tables := box.tables())}

    def close(self):
        self.servers.close()
        for address in HOSTS.values():
            for pid in self.agents(f"http://{address}:8500"):
                os.kill(pid, signal.SIGKILL)
        self.linked.close()


LAUNCH = "import os, sys; os.execv(sys.executable, ['consul', 'agent', sys.argv[1], '-config-dir=.'])"


@pytest.fixture(scope="module")
def staging(tmp_path_factory):
    one = Staging(tmp_path_factory.mktemp("ssh"))
    yield one
    one.close()


def test_what_a_host_can_is_found_out_and_nothing_is_left_there(staging):
    offers = anyio.run(look, staging.target, staging.estate)
    assert {name: offer.capabilities for name, offer in offers.items()} == dict.fromkeys(HOSTS, CARRIED)
    assert (staging.tables(), staging.notes()) == ({}, [])


FAULTS = {
    "partition": lambda hosts: NetworkPartition(PartitionParams(), hosts),
    "partition of one direction": lambda hosts: NetworkPartition(
        PartitionParams.model_validate({"direction": "in"}), hosts
    ),
    "loss": lambda hosts: NetworkLoss(LossParams.model_validate({"percent": "40%"}), hosts),
    "block": lambda hosts: NetworkBlock(BlockParams.model_validate({"port": 8500, "action": "reject"}), hosts),
    "slow disk": lambda hosts: DiskLatency(LatencyParams.model_validate({"delay": "400ms"}), hosts),
    "little CPU": lambda hosts: CpuThrottle(ThrottleParams(cores=0.05), hosts),
    "pause": lambda hosts: ProcessPause(NoParams(), hosts),
    "kill": lambda hosts: ProcessKill(KillParams(), hosts),
    "restart": lambda hosts: ProcessRestart(RestartParams(), hosts),
}


@pytest.mark.parametrize("what", FAULTS)
async def test_a_fault_is_proven_in_force_and_gone_by_the_same_observers_as_in_a_datacenter_of_ours(staging, what):
    async with staging.hosts() as hosts:
        process = (await hosts.host("consul-1").parts[next(iter(CARRIED))].agent_process("consul")).reference
        target = Target("consul-1", HOSTS["consul-1"], "consul", process)
        fault = FAULTS[what](hosts)
        await check_fault(fault, target, momentary=what == "restart")
    assert (staging.tables(), staging.notes()) == ({}, [])
    [pid] = staging.agents(f"http://{HOSTS['consul-1']}:8500")
    assert stat(pid)[0] in {"S", "R", "D"}


def partitioned(hosts):
    fault = NetworkPartition(PartitionParams(), hosts)
    return fault, fault.plan(Target("consul-1", HOSTS["consul-1"], "consul"), fault_id="cut")


async def test_a_connection_that_is_cut_ends_the_fault_and_is_said(staging):
    staging.told.clear()
    async with staging.hosts() as hosts:
        fault, undo = partitioned(hosts)
        await fault.apply(undo)
        assert staging.tables() == {"consul-1": [table_of("cut")]}
        staging.servers.cut()
        await anyio.to_thread.run_sync(lambda: wait_for(lambda: not staging.tables(), "the rules to go"))
        evidence = await fault.verify(undo, present=True)  # over a new connection, and not believed from memory
        assert not evidence.ok
    wait_for(lambda: not staging.notes(), "its note to go")  # the agent forgets the rules after they are gone
    assert any("ended: " in line for line in staging.told)


async def test_a_revert_connects_again_after_the_connection_was_cut(staging):
    async with staging.hosts() as hosts:
        fault, undo = partitioned(hosts)
        await fault.apply(undo)
        staging.servers.cut()
        await fault.revert(undo)
        assert staging.tables() == {}
        assert await hosts.host("consul-1").parts[PacketFilter].packet_tables() == []
    assert staging.notes() == []


def test_hosts_are_reached_through_a_jump_host_that_is_checked_as_they_are(staging, tmp_path):
    jump = f"ops@127.0.0.1:{staging.servers.ports['consul-1']}"
    assert reasons(staging, jump=jump) == reasons(staging)
    (tmp_path / "known").write_text("")
    told = reasons(staging, jump=jump, known_hosts=str(tmp_path / "known"))
    assert all(f"the jump host {jump}: its host key is not in {tmp_path / 'known'}" in one for one in told)


RUNNER = """
import sys, anyio
sys.path[:0] = [{tests!r}]
from test_ssh_carrier import partitioned, HOSTS, Hosts, Answering
from hashidrill.staging.carriers.open_carriers import carried
from hashidrill.staging.attach.discovery import Estate
from hashidrill.staging.attach.target import AttachTarget
import json
told = json.load(sys.stdin)
async def main():
    target, estate = AttachTarget.received(told["target"]), Estate.from_data(told["estate"])
    async with carried(target, estate, {{}}, deadline_s=600, tell=print) as parts:
        fault, undo = partitioned(Hosts(estate, parts))
        await fault.apply(undo)
        print("applied", flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_runner_that_is_killed_or_silent_leaves_nothing(staging, end):
    """Stopped, it keeps its connection and says nothing: the lease ends it."""
    import json

    told = {"target": staging.target.handed_over(), "estate": staging.estate.to_data()}
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, str(SUPPORT)])}
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER.format(tests=here)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        runner.stdin.write(json.dumps(told))
        runner.stdin.close()
        assert runner.stdout.readline() == "applied\n"
        assert staging.tables() == {"consul-1": [table_of("cut")]}
        runner.send_signal(end)
        wait_for(lambda: not staging.tables(), "the rules to go")
        # the agent looks once more whether they are gone, and forgets them then
        wait_for(lambda: not staging.notes(), "its note to go")
    finally:
        runner.kill()
        runner.wait()
        runner.stdout.close()


async def test_what_is_left_of_a_run_is_reverted_by_a_later_process_from_its_undo_alone(staging):
    async with staging.hosts() as hosts:
        fault, undo = partitioned(hosts)
        await fault.apply(undo)
        async with staging.hosts() as later:
            await NetworkPartition(PartitionParams(), later).revert(undo)
            assert staging.tables() == {}
    assert staging.notes() == []


class Liar(ssh.SshShell):
    """An agent that claims, and does nothing."""

    async def start(self, program):
        if "'packets'" not in program and '"packets"' not in program:
            return await super().start(program)
        return await super().start(
            'import os, sys, json\nprint(json.dumps({"event": "applied", "proof": "believe me"}), flush=True)\n'
            "sys.stdin.readline()\n"
            'print(json.dumps({"event": "reverted", "why": "asked to", "by": "agent", "proof": ""}))\n'
        )


async def test_a_fault_of_the_same_name_by_another_run_is_not_called_ours_and_goes_on(staging, tmp_path, monkeypatch):
    """Both paused the same process; the first run died, and its host let the process go on before the second began."""
    monkeypatch.setattr(heal, "_GONE_WITHIN_S", 3.0)  # nobody has restarted
    address = HOSTS["consul-1"]
    run, [pid] = tmp_path / "run-a", staging.agents(f"http://{address}:8500")
    run.mkdir()
    async with staging.hosts(run="run-b") as hosts:
        process = (await hosts.host("consul-1").parts[Processes].agent_process("consul")).reference
        fault = ProcessPause(NoParams(), hosts)
        target = Target("consul-1", address, "consul", process)
        undo = fault.plan(target, fault_id="0-pause") | {"prior": {}}
        with Journal(run / "journal.jsonl", Clock()) as journal:
            journal.write("run", id="run-a", experiment="x", root="", attached={"name": "staging"})
            journal.write(
                "fault.intent",
                sync=True,
                fault_id="0-pause",
                kind=fault.kind,
                step=0,
                target=asdict(target),
                params=undo["params"],
                undo=undo,
            )
        await fault.apply(undo)
        async with staging.hosts(run="run-a", undoing=True) as healing:
            done = await heal.heal_run(run, healing, attached="staging")
        assert stat(pid)[0] == "T", "the other run still has it in force"
        await fault.revert(undo)
    assert (done.others, done.stuck, done.reverted) == (["0-pause"], [], [])
    [ended] = [entry.data["evidence"] for entry in read_journal(run / "journal.jsonl") if entry.event == "fault.ended"]
    assert "is of the run run-b, started by ana@desk: a fault (pause) which process" in ended["measured"]
    assert (stat(pid)[0] in {"S", "R", "D"}, staging.notes()) == (True, [])


async def test_an_agent_that_claims_and_does_nothing_is_not_believed(staging, monkeypatch):
    monkeypatch.setattr(ssh, "SshShell", Liar)
    async with staging.hosts() as hosts:
        fault, undo = partitioned(hosts)
        await fault.apply(undo)
        evidence = await fault.verify(undo, present=True)
        assert not evidence.ok
        assert "4 of 4 connections succeeded" in evidence.measured


def reasons(staging, **changed):
    return {offer.said for offer in anyio.run(look, staging.with_ssh(**changed), staging.estate).values()}


def test_each_reason_why_a_host_is_not_reached_is_said_by_itself(staging, tmp_path):
    import asyncssh

    (tmp_path / "nobody").write_text("")
    [*said] = reasons(staging, known_hosts=str(tmp_path / "nobody"))
    assert all("its host key is not in" in one for one in said)
    other = asyncssh.generate_private_key("ssh-ed25519")
    other.write_private_key(str(tmp_path / "other"))
    assert all(
        "it does not let ops in: the key of carriers.ssh.key_file is not accepted" in one
        for one in reasons(staging, key_file=str(tmp_path / "other"))
    )
    assert all("cannot be reached: " in one for one in reasons(staging, addresses=dict.fromkeys(HOSTS, "127.0.0.1:1")))
    assert all("python3 is missing there" in one for one in reasons(staging, python="/nonexistent/python3"))
    assert all(
        "key_file: /nonexistent cannot be used: No such file" in one
        for one in reasons(staging, key_file="/nonexistent")
    )
    assert all("known_hosts: /nonexistent is not there" in one for one in reasons(staging, known_hosts="/nonexistent"))


def test_a_user_who_is_not_root_needs_sudo(staging, tmp_path):
    sudo = tmp_path / "sudo"
    sudo.write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    sudo.chmod(0o755)
    identity = tmp_path / "id"
    identity.write_text("#!/bin/sh\necho 1000\n")
    identity.chmod(0o755)
    staging.servers.prefix = ["env", f"PATH={tmp_path}:{os.environ['PATH']}"]
    try:
        assert all("allow this user `sudo -n`, or log in as root" in one for one in reasons(staging))
        sudo.write_text('#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n')
        assert reasons(staging) == {f"root, Python {sys.version.split()[0]}, nft, strace"}
    finally:
        staging.servers.prefix = []


def test_a_wrong_attach_file_is_an_error_of_the_file(staging):
    with pytest.raises(AttachError, match="unknown key"):
        anyio.run(look, staging.with_ssh(password="x"), staging.estate)
