"""A runner over SSH and over Nomad that is killed, or cut off from the network, at moments chosen by a seed.

Within the lease everything has reverted, as nft and /proc say, which no carrier is asked for; and `heal` finishes what
the journal still calls in force. The Nomad is a real one.
"""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import anyio
import pytest
from test_ssh_carrier import HOSTS, Staging

from boxes import PATIENCE_S, stat, wait_for
from carried_runner import VICTIM, Asked, Hosts
from hashidrill.core.engine.inject import open_faults
from hashidrill.core.protocols.capabilities import PacketFilter
from hashidrill.core.protocols.packets import Block
from hashidrill.core.recording.journal import read_journal
from hashidrill.lab.runs.heal import entries_of, heal_run
from hashidrill.staging.attach.http import Login, Wire
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.carriers.nomad_jobs import remove_jobs
from hashidrill.staging.carriers.open_carriers import carried
from nomad_boxes import Here, Nomad, Relay
from places import SUPPORT

pytestmark = [pytest.mark.lie, pytest.mark.needs("datacenter", "ip", "nft", "strace")]
LEASE_S = 4
BUSY_S = 10.0
"""How much longer it may take, the 2 s that a guardian waits longer than its agent among them: others use the CPU."""
EVENTS = ("connected", "fault.intent", "fault.applied", "fault.proven", "fault.reverted", "fault.gone")
LATER_S = 1.5
MOMENTS = int(os.environ.get("HASHIDRILL_KILLS", "20"))
COMES_WITHIN_S = 120.0
FAULTS = ("network.partition", "process.pause")
ENDS = ("killed", "cut off")
CLIENT_DIES = "its client killed"
SEED = os.environ.get("HASHIDRILL_KILL_SEED") or secrets.randbelow(10**6)
OF_ROOT = pytest.mark.may_skip(
    "where these tests are an ordinary user's: tasks of Nomad that are root were seen as root"
)


@dataclass(frozen=True)
class Moment:
    """The `nth` of these events of the journal, and how much later."""

    event: str
    nth: int
    later_s: float
    first: str

    def __str__(self):
        return f"{self.later_s:.2f}s after {self.event} {self.nth}, of {self.first} first"


SURE = (Moment("fault.proven", 1, 0.2, "network.partition"), Moment("fault.proven", 1, 0.5, "process.pause"))
"""Moments for the short form, one for each end. A fault is in force at both, unless others have used all of the CPU."""
SHORT = [*zip(ENDS, SURE, strict=True)]
TRIES = 3


def moments(carrier, end):
    """At the first of them, a fault is in force for sure."""
    chance = random.Random(f"{SEED} {carrier} {end}")
    found = [
        Moment(chance.choice(EVENTS), chance.choice((1, 1, 2)), chance.uniform(0, LATER_S), chance.choice(FAULTS))
        for _ in range(MOMENTS)
    ]
    found[0] = replace(found[0], event="fault.proven", later_s=found[0].later_s / 3)
    return [replace(one, nth=1) if one.event == "connected" else one for one in found]


class Estate(Staging):
    """Three hosts, reached over SSH by relays that can be cut."""

    carrier = "ssh"

    def __init__(self, folder):
        super().__init__(folder)
        self.relays = {name: Relay(Here, "127.0.0.1", port) for name, port in self.servers.ports.items()}
        known = folder / "known_hosts"
        line = known.read_text().splitlines()[0].partition(" ")[2]
        known.write_text("".join(f"[127.0.0.1]:{relay.port} {line}\n" for relay in self.relays.values()))
        self.pids = {one.address: self.agents(one.urls["consul"])[0] for one in self.estate.hosts.values()}

    def reached(self):
        ways = {name: f"127.0.0.1:{relay.port}" for name, relay in self.relays.items()}
        ssh = self.target.carriers["ssh"] | {"addresses": ways, "lease": f"{LEASE_S}s"}
        return AttachTarget("staging", "", self.target.path, {}, carriers={"ssh": ssh})

    async def finish(self, run):
        """What `heal` does besides."""

    def jobs(self):
        return []

    def in_force(self):
        """As the kernels of its hosts have it."""
        stopped = [pid for pid in self.pids.values() if stat(pid)[0] == "T"]
        return {**self.tables(), **({"stopped": stopped} if stopped else {})}

    def close(self):
        for relay in self.relays.values():
            relay.close()
        super().close()


class EstateOfNomad(Estate):
    """Two of them have a client of Nomad, whose server is on the third. Its API is reached by a relay."""

    carrier = "nomad"

    def __init__(self, folder, binary):
        super().__init__(folder)
        self.nomad = Nomad(binary, folder, self.boxes, HOSTS)
        self.relays["nomad"] = self.nomad.relay
        self.logins = {"nomad": Login("nomad", self.nomad.url)}
        hosts = {
            name: replace(
                one,
                roles={**one.roles, "nomad": "server" if name == "consul-1" else "client"},
                urls={**one.urls, "nomad": f"http://{one.address}:4646"},
            )
            for name, one in self.estate.hosts.items()
        }
        self.estate = replace(self.estate, hosts=hosts)

    def reached(self):
        settings = {"lease": f"{LEASE_S}s", "python": sys.executable, "notes": str(self.folder / "run")}
        return AttachTarget("staging", "", self.target.path, self.logins, carriers={"nomad": settings})

    def close(self):
        super().close()
        self.nomad.close()

    async def finish(self, run):
        async with Wire(self.logins["nomad"]) as wire:
            await remove_jobs(wire, run)

    def jobs(self):
        return self.nomad.jobs()


@pytest.fixture(scope="module")
def over_ssh(tmp_path_factory):
    one = Estate(tmp_path_factory.mktemp("ssh"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def over_nomad(binary, tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("tasks of Nomad that are root were seen as root alone")
    one = EstateOfNomad(tmp_path_factory.mktemp("nomad"), binary("nomad").path)
    yield one
    one.close()


def journal(run):
    path = run / "journal.jsonl"
    return [entry.event for entry in read_journal(path)] if path.exists() else []


def struck(estate, end, moment, run):
    """(what was in force at that moment, how long it took until nothing was) of one runner."""
    target = estate.reached()
    run.mkdir(parents=True)
    order = [moment.first, *(kind for kind in FAULTS if kind != moment.first)]
    told = {"target": target.handed_over(), "estate": estate.estate.to_data(), "pids": estate.pids, "faults": order}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])}
    with (run / "log").open("wb") as log:
        runner = subprocess.Popen(
            [sys.executable, str(SUPPORT / "carried_runner.py"), str(run)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
        )
    try:
        runner.stdin.write(json.dumps(told).encode())
        runner.stdin.close()
        until = time.monotonic() + COMES_WITHIN_S
        while journal(run).count(moment.event) < moment.nth:
            assert runner.poll() is None, (run / "log").read_text()
            assert time.monotonic() < until, f"{moment} did not come: {journal(run)}; {(run / 'log').read_text()}"
            time.sleep(0.02)
        time.sleep(moment.later_s)
        found = estate.in_force()
        if end == "killed":
            runner.send_signal(signal.SIGKILL)
        elif end == CLIENT_DIES:
            estate.nomad.kill(VICTIM)
        else:
            for relay in estate.relays.values():
                relay.cut()
        began = time.monotonic()
        wait_for(lambda: not estate.in_force(), f"{end} {moment}: {found} to revert")
        return found, time.monotonic() - began
    finally:
        runner.kill()
        runner.wait()
        for relay in estate.relays.values():
            relay.mend()


def healed(estate, run, tell=print):
    """What `heal` says of that run; afterwards nothing is in force, and no job is left."""
    target = estate.reached()
    open_on = {undo["host"] for undo in open_faults(entries_of(run))}

    async def main():
        wires = {"consul": Asked(estate.pids)}
        async with carried(
            target, estate.estate, wires, deadline_s=1, tell=tell, undoing=True, awaited=open_on
        ) as parts:
            for host in {one for part in parts.values() for one in part.values()}:
                host.act_for(run.name)
            done = await heal_run(run, Hosts(estate.estate, parts), attached="staging")
        await estate.finish(run.name)
        return done

    return anyio.run(main)


def campaign(estate, end, *, folder, tell):
    tell(f"HASHIDRILL_KILL_SEED={SEED}")
    there = 0
    for n, moment in enumerate(moments(estate.carrier, end), start=1):
        there += leaves_nothing(estate, end, moment, run=folder / f"{end.replace(' ', '-')}-{n}", tell=tell)
    assert there, "no fault was in force at any moment"


def leaves_nothing(estate, end, moment, *, run, tell, within_s=LEASE_S + BUSY_S):
    """Whether a fault was in force at that moment."""
    found, took_s = struck(estate, end, moment, run)
    tell(f"{estate.carrier}, {end} {moment}: {found or 'nothing'} in force, gone after {took_s:.1f}s")
    assert took_s < within_s, moment
    done = healed(estate, run)  # what was on its way to a host may have come there meanwhile
    assert (done.stuck, estate.in_force(), estate.notes()) == ([], {}, []), moment
    assert [job for job in estate.jobs() if run.name in job] == [], moment
    assert healed(estate, run) is None, "a second heal finds nothing"
    return bool(found)


def shortly(estate, end, moment, *, folder, tell):
    """The short form: how long it takes is for the long one, which has the machine for itself."""
    runs = (folder / f"short-{end.replace(' ', '-')}-{n}" for n in range(TRIES))
    assert any(leaves_nothing(estate, end, moment, run=run, tell=tell, within_s=PATIENCE_S) for run in runs)


EACH_WAY = pytest.mark.parametrize(
    "way",
    [
        "over_ssh",
        pytest.param("over_nomad", marks=[pytest.mark.nomad, pytest.mark.needs("nomad"), OF_ROOT]),
    ],
)


@pytest.mark.long
@EACH_WAY
@pytest.mark.parametrize(("end", "moment"), SHORT, ids=ENDS)
def test_a_runner_that_is_gone_while_its_fault_is_in_force_leaves_nothing(request, way, end, moment, tmp_path, tell):  # noqa: PLR0917
    shortly(request.getfixturevalue(way), end, moment, folder=tmp_path, tell=tell)


@pytest.mark.long
def test_a_revert_inside_of_a_run_waits_for_a_host_that_nobody_reaches(over_ssh):
    """Its host took the fault away as its lease ended. The run waits until it can see that, and calls nothing stuck."""
    told = []
    target = over_ssh.reached()

    async def main():
        async with (
            carried(
                target, over_ssh.estate, {"consul": Asked(over_ssh.pids)}, deadline_s=600, tell=told.append, run="waits"
            ) as parts,
            anyio.create_task_group() as tasks,
        ):
            packets = parts[VICTIM][PacketFilter]
            await packets.set_packet_rules("cut", [Block("input", (HOSTS["consul-3"],))])
            assert over_ssh.in_force()
            relay = over_ssh.relays[VICTIM]
            relay.cut()
            await anyio.to_thread.run_sync(lambda: wait_for(lambda: not over_ssh.in_force(), "its lease to end"))

            async def mended():
                while not any("waiting for up to" in line for line in told):
                    await anyio.sleep(0.1)
                relay.mend()

            tasks.start_soon(mended)
            await packets.clear_packet_rules("cut")

    try:
        anyio.run(main)
    finally:
        over_ssh.relays[VICTIM].mend()
    assert any(f"{VICTIM} " in line and "answers again, after" in line for line in told), told
    assert (over_ssh.in_force(), over_ssh.notes()) == ({}, [])


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@EACH_WAY
@pytest.mark.parametrize("end", ENDS)
def test_a_runner_that_is_gone_at_twenty_moments_leaves_nothing(request, way, end, tmp_path, tell):
    campaign(request.getfixturevalue(way), end, folder=tmp_path, tell=tell)


@pytest.mark.nightly
@pytest.mark.nomad
@pytest.mark.needs("nomad")
@OF_ROOT
def test_a_fault_whose_own_nomad_agent_is_killed_ends_within_its_lease(over_nomad, tmp_path, tell):
    """By somebody else: as a fault that Nomad carries, it is refused."""
    moment, run = Moment("fault.proven", 1, 0.1, "network.partition"), tmp_path / "client-killed"
    try:
        found, took_s = struck(over_nomad, CLIENT_DIES, moment, run)
    finally:
        over_nomad.nomad.start(VICTIM)
    done = healed(over_nomad, run, tell)  # at once, while the client connects to its servers and looks for its drivers
    tell(f"{found} in force, gone {took_s:.1f}s after the agent of Nomad on {VICTIM} was killed")
    assert found
    assert took_s < LEASE_S + BUSY_S
    assert done.stuck == [], [entry.data for entry in entries_of(run) if entry.event == "fault.stuck"]
    assert (over_nomad.in_force(), over_nomad.notes()) == ({}, [])
    over_nomad.nomad.wait()
