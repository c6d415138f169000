"""Faults that jobs of Nomad carry to its clients, in virtual time: leases, lost signals, jobs that go astray."""

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType

import anyio
import anyio.lowlevel
import pytest

from fake_nomad_jobs import CAPABILITIES, FakeNomad
from hashidrill.core.errors import AttachError, FaultError
from hashidrill.core.faults.process import NoParams, ProcessPause
from hashidrill.core.protocols.capabilities import AgentSettings, PacketFilter, ProcessControl, Processes
from hashidrill.core.protocols.packets import Block
from hashidrill.faces.cli.doctor_attach import as_data, examined, lines
from hashidrill.staging.attach.discovery import Estate, FoundHost
from hashidrill.staging.attach.http import Login, Wire
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.carriers.nomad import dialler
from hashidrill.staging.carriers.nomad_jobs import Jobs
from hashidrill.staging.carriers.open_carriers import carried, look
from hashidrill.staging.carriers.settings import Carriers, carrier_rights
from secret_hunt import Hunt
from virtual_time import run

pytestmark = pytest.mark.lie

TOKEN = "8f3e7c2a-nomad-token"
SERVER, CLIENT, OTHER = "10.73.0.21", "10.73.0.31", "10.73.0.32"
RULES = [Block("input", ("10.73.0.12",))]
LOGINS = {
    "consul": Login("consul", f"http://{SERVER}:8500"),
    "nomad": Login("nomad", f"http://{SERVER}:4646", headers={"X-Nomad-Token": TOKEN}),
}
ESTATE = Estate(
    "staging",
    {
        name: FoundHost(
            name,
            address,
            {"nomad": role, **({"consul": "client"} if role == "client" else {})},
            {"nomad": f"http://{address}:4646", "consul": f"http://{address}:8500"},
        )
        for name, address, role in (
            ("server-1", SERVER, "server"),
            ("client-1", CLIENT, "client"),
            ("client-2", OTHER, "client"),
        )
    },
)
HOSTS = (("client-1", CLIENT), ("client-2", OTHER))
RUN = "20261123-0101-drill"


def target(**settings):
    return AttachTarget("staging", "", "staging.yaml", LOGINS, carriers={"nomad": {"lease": "15s", **settings}})


@pytest.fixture
def scheduler():
    one = FakeNomad(*HOSTS)
    for host in one.hosts.values():
        host.agents = {("consul", "agent"): 41, ("nomad", "agent"): 42}
    return one


@asynccontextmanager
async def hosts(scheduler, told=None, **more):
    heard = told if told is not None else []
    async with carried(
        target(), ESTATE, {}, deadline_s=600, tell=heard.append, run=RUN, nomad=scheduler.reaching(), **more
    ) as parts:
        yield parts


def in_force(scheduler, address=CLIENT):
    return [*scheduler.hosts[address].in_force]


def signals(scheduler):
    [fault] = scheduler.faults()
    return fault.signals


async def test_a_fault_is_in_force_for_as_long_as_signals_renew_it_and_its_job_is_removed(scheduler):
    async with hosts(scheduler) as parts:
        packets = parts["client-1"][PacketFilter]
        await packets.set_packet_rules("t", RULES)
        assert in_force(scheduler) == ["t"]
        assert in_force(scheduler, OTHER) == []
        await anyio.sleep(60)
        assert in_force(scheduler) == ["t"]
        await packets.clear_packet_rules("t")
        assert in_force(scheduler) == []
        assert [job["Meta"]["hashidrill_host"] for job in scheduler.jobs.values()] == ["client-1", "client-2"]
    assert scheduler.jobs == {}
    times = [at for at, name in signals(scheduler) if name == "SIGUSR1"]
    assert max(b - a for a, b in pairwise(times)) <= 5.1, "three renewals fit into a lease"
    assert [name for _, name in signals(scheduler)][-1] == "SIGTERM"


async def test_a_job_is_for_one_client_never_restarted_and_has_no_secret(scheduler):
    async with hosts(scheduler) as parts:
        await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
    for job in scheduler.submitted:
        [group] = job["TaskGroups"]
        assert (job["Type"], group["Count"], job["Datacenters"]) == ("sysbatch", 1, ["dc1"])
        assert group["Constraints"][0]["LTarget"] == "${node.unique.id}"
        assert group["RestartPolicy"]["Attempts"] == 0
        assert job["Meta"]["hashidrill_run"] == RUN
        assert job["ID"].startswith(f"hashidrill-carrier-{RUN}.")
    assert TOKEN not in json.dumps(scheduler.submitted)
    assert not any(TOKEN in one.program for one in scheduler.allocations), "what is packed in them neither"
    assert all(
        json.loads(request.content)["EnforceIndex"]
        for request in scheduler.requests
        if request.method == "POST" and request.url.path == "/v1/jobs"
    )


SECRETS = {"a token": "b1946ac9-2492-4d38-9c47-0a1d1e2f3a4b", "a gossip key": "cg8StVXbQJ0gPvMd9o7yrg=="}
SETTINGS = {"acl": {"tokens": {"agent": SECRETS["a token"]}}, "encrypt": SECRETS["a gossip key"], "log_level": "DEBUG"}


@pytest.mark.lie
async def test_the_settings_of_an_agent_are_in_no_job(scheduler):
    """A job can be read by everybody with read-job, and stays in the state of Nomad's servers."""
    hunt = Hunt({"the token of Nomad": TOKEN, **SECRETS})
    async with hosts(scheduler) as parts:
        settings = parts["client-1"][AgentSettings]
        await settings.set_agent_settings("consul", SETTINGS, restart=False, check=["validate"])
        [handed] = scheduler.hosts[CLIENT].in_force.values()
        assert handed["args"]["settings"] == SETTINGS
        await settings.set_agent_settings("consul", {**SETTINGS, "ports": {}}, restart=True, check=["validate"])
        await settings.clear_agent_settings("consul")
    assert len(scheduler.faults()) == 2
    for job in scheduler.submitted:
        hunt.look("job", job["ID"], job)
    for request in scheduler.requests:
        hunt.look("request", request.url.path, f"{request.url}".encode() + request.content)
    for one in scheduler.allocations:
        hunt.look("log", one.id, one.printed)
    assert hunt.found == set()
    assert {*hunt.looked} == {"job", "request", "log"}


@pytest.mark.parametrize(("why", "said"), [("the disk is full", "the disk is full"), ("", "No path to node")])
async def test_a_fault_whose_arguments_are_not_handed_over_is_not_applied_and_its_job_is_removed(scheduler, why, said):
    async with hosts(scheduler) as parts:
        scheduler.exec_refuses = why
        if not why:
            scheduler.plant.add("client cut off")
        with pytest.raises(FaultError, match=said):
            await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        assert in_force(scheduler) == []
        assert all(one.status != "running" for one in scheduler.faults())
    assert scheduler.jobs == {}


async def test_what_is_carried_says_how_long_it_took(scheduler):
    told = []
    async with hosts(scheduler, told) as parts:
        await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
    assert any("has its fault in force" in line and "after it was submitted" in line for line in told)


async def test_a_runner_that_nobody_hears_any_more_leaves_nothing_in_force(scheduler):
    """Cut off from Nomad: no signal gets there, and the host reverts within its lease."""
    told = []
    async with hosts(scheduler, told) as parts:
        await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        scheduler.silent = True
        await anyio.sleep(20.1)
        [fault] = scheduler.faults()
        fault.tick()
        assert in_force(scheduler) == []
        await anyio.sleep(60)
        assert any("t ended: the connection was lost: Nomad does not answer" in line for line in told)
        scheduler.silent = False
        await parts["client-1"][PacketFilter].clear_packet_rules("t")
    assert scheduler.jobs == {}, "what was removed too late is removed at the end"


async def test_an_answer_that_is_late_for_less_than_a_lease_ends_nothing(scheduler):
    async with hosts(scheduler, told := []) as parts:
        await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        scheduler.silent = True
        await anyio.sleep(6)
        scheduler.silent = False
        await anyio.sleep(60)
        assert in_force(scheduler) == ["t"]
        assert not any("ended" in line for line in told)


@pytest.mark.parametrize("lost", ["SIGUSR1", "SIGTERM"])
async def test_a_signal_that_is_lost_is_sent_again(scheduler, lost):
    async with hosts(scheduler) as parts:
        if lost == "SIGTERM":
            await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        scheduler.plant.add(f"{lost} lost")
        if lost == "SIGUSR1":
            await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
            assert in_force(scheduler) == ["t"]
        began = anyio.current_time()
        await parts["client-1"][PacketFilter].clear_packet_rules("t")
        assert in_force(scheduler) == []
        assert anyio.current_time() - began < 15
    assert f"{lost} lost" not in scheduler.plant


ASTRAY = {
    "never placed": r"does not run on client-1 within 30s: Nomad could not place it: memory",
    "two allocations": "Nomad placed 2 allocations of the job .*, instead of one",
    "other node": "on client-2, not on client-1",
    "start fails": "executable file not found.*name it in carriers.nomad.python",
}


@pytest.mark.parametrize("defect", ASTRAY)
async def test_a_job_that_goes_astray_is_one_clear_message_and_leaves_nothing(scheduler, defect):
    async with hosts(scheduler) as parts:
        scheduler.plant.add(defect)
        began = anyio.current_time()
        with pytest.raises(FaultError, match=rf"^client-1 \(nomad client client-1\): .*{ASTRAY[defect]}"):
            await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        assert anyio.current_time() - began < 40
        assert in_force(scheduler) == in_force(scheduler, OTHER) == []
        assert len(scheduler.jobs) == 2, "those that observe"


async def test_a_job_that_nomad_places_after_nobody_wants_it_applies_nothing(scheduler):
    """Its removal was lost as well: it says that nobody asked for it, and ends."""
    async with hosts(scheduler) as parts:
        scheduler.plant.add("never placed")
        with pytest.raises(FaultError):
            await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        scheduler.plant.clear()
        scheduler.place(scheduler.submitted[-1])
        await anyio.sleep(16)
        [fault] = scheduler.faults()
        fault.tick()
        assert in_force(scheduler) == []
        assert (fault.status, b"the runner did not ask for it: lease" in fault.printed) == ("complete", True)


async def test_a_log_that_is_cut_in_the_middle_is_no_proof(scheduler):
    async with hosts(scheduler) as parts:
        scheduler.plant.add("log truncated")
        with pytest.raises(FaultError, match="its allocation is complete"):
            await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        assert in_force(scheduler) == []


async def test_a_client_that_is_gone_ends_the_fault_and_is_said(scheduler):
    async with hosts(scheduler, told := []) as parts:
        await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        [fault] = scheduler.faults()
        fault.vanish()
        await anyio.sleep(30)
        assert any("t ended: its allocation is lost" in line for line in told)
        await parts["client-1"][PacketFilter].clear_packet_rules("t")
    assert any("undo" in session.told for session in scheduler.hosts[CLIENT].sessions)


async def test_a_client_that_no_signal_reaches_any_more_has_reverted_and_it_is_said(scheduler):
    """Its servers call the allocation running for a while yet."""
    async with hosts(scheduler, told := []) as parts:
        await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        scheduler.plant.add("client cut off")
        await anyio.sleep(30)
        scheduler.faults()[0].tick()
        assert in_force(scheduler) == []
        assert any("t ended: the connection was lost: " in line and "No path to node" in line for line in told)
        scheduler.plant.clear()


async def test_observers_whose_task_has_ended_run_in_another_one(scheduler):
    """Else nothing is proven there any more: neither that a fault is in force, nor that it is gone."""
    async with hosts(scheduler) as parts:
        await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        [holder] = [one for one in scheduler.allocations if not one.holds and one.host is scheduler.hosts[CLIENT]]
        holder.end("lease")
        for session in scheduler.hosts[CLIENT].sessions:
            await session.close()
        await anyio.sleep(1)
        assert await parts["client-1"][PacketFilter].packet_tables() == ["t"]
        others = [one for one in scheduler.allocations if not one.holds and one.host is scheduler.hosts[CLIENT]]
        assert [one.status for one in others] == ["complete", "running"]
    assert scheduler.jobs == {}


async def test_what_the_host_refuses_is_said(scheduler):
    async with hosts(scheduler) as parts:
        scheduler.hosts[CLIENT].refuses = "nft is not installed on this host"
        with pytest.raises(FaultError, match="nft is not installed on this host"):
            await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)


async def test_a_host_is_not_cut_off_from_the_servers_whose_signals_renew_the_fault(scheduler):
    async with hosts(scheduler) as parts:
        packets = parts["client-1"][PacketFilter]
        for rule in (Block("output", (SERVER,), port=4647), Block("input", (SERVER, OTHER))):
            with pytest.raises(FaultError, match="cut off from Nomad's servers"):
                await packets.set_packet_rules("t", [rule])
        assert scheduler.faults() == []
        for rule in (Block("output", (SERVER,), port=8500), Block("input", (SERVER,), share=0.4)):
            await packets.set_packet_rules("t", [rule])
        assert in_force(scheduler) == ["t"]


async def test_the_nomad_agent_that_carries_is_not_paused_or_killed_by_what_it_carries(scheduler):
    async with hosts(scheduler) as parts:
        process = await parts["client-1"][Processes].agent_process("nomad")
        for number in (9, 19):
            with pytest.raises(FaultError, match="nomad carries faults to this host"):
                await parts["client-1"][ProcessControl].signal(process.reference, number)
        assert scheduler.faults() == []
        consul = await parts["client-1"][Processes].agent_process("consul")
        assert await parts["client-1"][ProcessControl].signal(consul.reference, 19)


async def test_rules_are_changed_by_another_job(scheduler):
    async with hosts(scheduler) as parts:
        await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        await parts["client-1"][PacketFilter].suspend_packet_rules("t")
        assert "flush chain inet t_20261123_0101_drill input" in scheduler.hosts[CLIENT].in_force["t"]["args"]["script"]
        await parts["client-1"][PacketFilter].clear_packet_rules("t")
        assert in_force(scheduler) == []
    assert len(scheduler.faults()) == 2


def test_looking_starts_nothing_and_says_what_is_only_known_later(scheduler):
    offers = run(look(target(), ESTATE, nomad=scheduler.reaching()))
    assert scheduler.submitted == []
    assert {*offers["client-1"].capabilities} >= {PacketFilter, ProcessControl}
    assert offers["client-1"].said.startswith("raw_exec; its other tools are checked when a run begins")
    assert (offers["server-1"].capabilities, offers["server-1"].said) == (
        frozenset(),
        f"no client of Nomad has its address {SERVER}",
    )
    assert {request.method for request in scheduler.requests} == {"GET"}


UNFIT = {
    "down": ({"Status": "down"}, "the client is down"),
    "draining": ({"Drain": True, "SchedulingEligibility": "ineligible"}, "is draining: Nomad starts nothing there"),
    "ineligible": ({"SchedulingEligibility": "ineligible"}, "nomad node eligibility -enable"),
    "no raw_exec": ({"Drivers": {}}, "it has no driver raw_exec"),
    "sick": (
        {"Drivers": {"raw_exec": {"Detected": True, "Healthy": False, "HealthDescription": "no cgroups"}}},
        "its driver raw_exec is not healthy: no cgroups",
    ),
}


@pytest.mark.parametrize("what", UNFIT)
def test_why_a_client_is_not_reached_is_said_by_name(scheduler, what):
    changed, why = UNFIT[what]
    scheduler.nodes[CLIENT] |= changed
    offers = run(look(target(), ESTATE, nomad=scheduler.reaching()))
    assert offers["client-1"].capabilities == frozenset()
    assert why in offers["client-1"].said
    assert offers["client-2"].capabilities


def test_a_client_with_another_address_than_the_catalogs_is_not_reached(scheduler):
    scheduler.nodes["10.9.9.9"] = scheduler.nodes.pop(CLIENT) | {"Address": "10.9.9.9"}
    said = run(look(target(), ESTATE, nomad=scheduler.reaching()))["client-1"].said
    assert said == f"Nomad's client client-1 has the address 10.9.9.9, but the catalog says {CLIENT}"


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_token_that_is_too_weak_is_said_before_anything_starts(scheduler, capability):
    scheduler.lacking = {capability}
    offers = run(look(target(), ESTATE, nomad=scheduler.reaching()))
    assert all("the token of Nomad lacks" in one.said and capability in one.said for one in offers.values())
    assert not any(one.capabilities for one in offers.values())


def test_the_rights_of_the_carrier_are_no_more_than_it_needs():
    assert carrier_rights(Carriers()) == ()
    rights = carrier_rights(Carriers.model_validate({"nomad": {}}), "drills")
    assert {(one.resource, one.name, one.access) for one in rights} == {
        ("node", "", "read"),
        *(("namespace", "drills", capability) for capability in CAPABILITIES),
    }


def test_a_host_that_ssh_reaches_is_carried_to_by_ssh_and_the_others_by_nomad(scheduler):
    both = AttachTarget("staging", "", "s.yaml", LOGINS, carriers={"nomad": {}, "ssh": {"user": "ops"}})
    ssh = FakeNomad(*HOSTS).hosts[CLIENT]
    ssh.agents = {("consul", "agent"): 41, ("nomad", "agent"): 42}

    @asynccontextmanager
    async def connect(name, address):
        if name != "client-1":
            raise AttachError(f"{name}: cannot be reached: Connection refused")
        yield ssh

    offers = run(look(both, ESTATE, connect, nomad=scheduler.reaching()))
    assert {name: (one.by, bool(one.capabilities)) for name, one in offers.items()} == {
        "server-1": ("Nomad", False),
        "client-1": ("SSH", True),
        "client-2": ("Nomad", True),
    }
    assert offers["server-1"].said == (
        f"no client of Nomad has its address {SERVER}; over SSH: server-1: cannot be reached: Connection refused"
    )

    async def main():
        async with carried(
            both, ESTATE, {}, deadline_s=600, tell=print, connect=connect, run=RUN, nomad=scheduler.reaching()
        ) as parts:
            for name in ("client-1", "client-2"):
                await parts[name][PacketFilter].set_packet_rules("t", RULES)
            assert [*ssh.in_force] == ["t"] == in_force(scheduler, OTHER)
            assert in_force(scheduler) == []

    run(main())


async def test_a_host_that_turns_out_to_lack_root_as_a_run_begins_has_nothing_and_it_is_said(scheduler):
    scheduler.hosts[CLIENT].facts = {"root": False, "lacks": {}, "python": "3.9.2", "cores": 2}
    async with hosts(scheduler, told := []) as parts:
        assert {*parts} == {"client-2"}
        assert any(line.startswith("client-1, reached by Nomad: no root there") for line in told)
    assert scheduler.jobs == {}


def test_without_nomad_among_the_products_the_key_is_a_mistake_of_the_file(scheduler):
    alone = AttachTarget("staging", "", "s.yaml", {}, carriers={"nomad": {}})
    with pytest.raises(AttachError, match=r"s\.yaml: carriers\.nomad: Nomad is not attached"):
        run(look(alone, ESTATE, nomad=scheduler.reaching()))


def test_what_a_killed_run_left_is_found_by_its_id_and_not_that_of_another(scheduler):
    async def main():
        async with Wire(LOGINS["nomad"], transport=scheduler.transport()) as wire:
            jobs = Jobs(wire)
            ours = f"hashidrill-carrier-{RUN}.0a1b2c3d"
            scheduler.jobs |= {name: {} for name in (ours, ours.replace(".", "-2."), "hashidrill-carrier-x")}
            return await jobs.left(f"hashidrill-carrier-{RUN}.", r"[0-9a-f]{8}")

    assert run(main()) == [f"hashidrill-carrier-{RUN}.0a1b2c3d"]


async def test_undoing_starts_nothing_before_something_is_to_be_undone(scheduler):
    scheduler.hosts[CLIENT].notes["t"] = MappingProxyType({"run": RUN})
    async with hosts(scheduler, undoing=True) as parts:
        assert scheduler.submitted == []
        await parts["client-1"][PacketFilter].clear_packet_rules("t")
        assert "t" not in scheduler.hosts[CLIENT].notes
    assert len(scheduler.submitted) == 1
    assert scheduler.jobs == {}


RESTARTS = {
    "down": ({"Status": "down"}, "client-1: the client is down"),
    "initializing": ({"Status": "initializing"}, "client-1: the client is initializing"),
    "without its drivers": ({"Drivers": {}}, "client-1: it has no driver raw_exec"),
}


STARTS_S = 1000.0
"""The time at which the virtual clock begins."""


async def mended(scheduler, *, after_s, **fields):
    await anyio.sleep(after_s)
    scheduler.nodes[CLIENT] |= fields
    scheduler.plant.clear()


def left_by_a_run(scheduler):
    scheduler.hosts[CLIENT].notes["t"] = scheduler.hosts[CLIENT].in_force["t"] = MappingProxyType({"run": RUN})


async def healed(scheduler, *, after_s, **fields):
    """(what heal tells, after how many seconds it is done) where the client is mended by then."""
    told = []
    left_by_a_run(scheduler)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(mended, scheduler, after_s=after_s, **fields))
        async with hosts(scheduler, told, undoing=True, awaited=["client-1"]) as parts:
            await parts["client-1"][PacketFilter].clear_packet_rules("t")
            took_s = anyio.current_time() - STARTS_S
    assert (in_force(scheduler), scheduler.jobs) == ([], {})
    return told, took_s


@pytest.mark.parametrize("state", RESTARTS)
async def test_heal_waits_for_a_client_that_restarts_and_says_what_it_waits_for(scheduler, state):
    before = {**scheduler.nodes[CLIENT]}
    scheduler.nodes[CLIENT] |= RESTARTS[state][0]
    told, took_s = await healed(scheduler, after_s=25, **before)
    assert 25 <= took_s < 30
    assert told[0].startswith(f"waiting for up to 90s: {RESTARTS[state][1]}")
    assert len(told) >= 3, "it says so again: an operator sees that it goes on"


async def test_heal_waits_for_a_client_that_its_servers_call_ready_and_cannot_reach(scheduler):
    """As for some seconds after its agent was killed: Nomad's exec finds no way there."""
    scheduler.plant.add("client cut off")
    told, _ = await healed(scheduler, after_s=25)
    assert told[0].startswith("waiting for up to 90s: client-1 (nomad client client-1): no program could be started")
    assert "No path to node" in told[0]


async def test_heal_waits_for_a_client_whose_servers_find_out_late_that_it_is_gone(scheduler):
    """They called it ready, took the job of the observers, and placed it nowhere: nor do they when it is back."""
    scheduler.plant.add("down at once")
    _, took_s = await healed(scheduler, after_s=20, Status="ready")
    assert took_s < 20 + 4, "it is placed soon after the client is back"
    assert len(scheduler.submitted) == 1


async def test_observers_that_end_before_nomad_says_that_they_run_are_started_again(scheduler):
    """A client that comes back starts what was placed at once, and its servers hear of that when its lease is over."""
    scheduler.plant.add("over at once")
    told, took_s = await healed(scheduler, after_s=9)
    assert took_s < 9 + 4
    assert "ended on client-1 before it was used: its allocation alloc-0 is complete" in told[0]


async def test_no_job_is_written_for_a_client_that_would_not_run_it(scheduler):
    """It would wait in vain for half a minute, and not be placed once the client is back."""
    async with hosts(scheduler) as parts:
        scheduler.nodes[CLIENT] |= {"Status": "down"}
        began, jobs = anyio.current_time(), len(scheduler.submitted)
        with pytest.raises(FaultError, match=r"^client-1 \(nomad client client-1\): the client is down: start its"):
            await parts["client-1"][PacketFilter].set_packet_rules("t", RULES)
        assert (anyio.current_time() - began, len(scheduler.submitted)) == (0, jobs)


async def test_a_revert_inside_of_a_run_waits_for_a_client_that_restarts(scheduler):
    """As heal does: else the run ends with an alarm about a fault that its own host has taken away."""
    async with hosts(scheduler, told := []) as parts:
        packets = parts["client-1"][PacketFilter]
        await packets.set_packet_rules("t", RULES)
        [fault] = scheduler.faults()
        fault.vanish()
        for one in scheduler.allocations:
            if one.host is scheduler.hosts[CLIENT]:
                one.status = "lost"
        for session in scheduler.hosts[CLIENT].sessions:
            await session.close()
        scheduler.nodes[CLIENT] |= {"Status": "down"}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(mended, scheduler, after_s=40, Status="ready"))
            began = anyio.current_time()
            await packets.clear_packet_rules("t")
            assert 40 <= anyio.current_time() - began < 45
        assert any(line.startswith("waiting for up to 90s: client-1 (nomad client client-1): the") for line in told)
        assert told[-1].startswith("client-1 (nomad client client-1) answers again, after 4")


async def test_a_client_that_restarts_between_two_looks_is_still_one_that_heal_can_use(scheduler):
    """Its servers call it ready until it has missed its heartbeats, or says that it is there again."""
    scheduler.plant.add("restarts")
    left_by_a_run(scheduler)
    async with hosts(scheduler, [], undoing=True, awaited=["client-1"]) as parts:
        await parts["client-1"][PacketFilter].clear_packet_rules("t")
    assert scheduler.looks == 2
    assert in_force(scheduler) == []


async def test_heal_gives_a_client_up_that_does_not_come_back_and_says_why(scheduler):
    scheduler.nodes[CLIENT] |= {"Status": "down"}
    async with hosts(scheduler, [], undoing=True, awaited=["client-1"]) as parts:
        assert 90 <= anyio.current_time() - STARTS_S < 95
        assert {*parts} == {"client-2"}


@pytest.mark.parametrize("awaited", [(), ["client-2"]])
async def test_a_client_on_which_nothing_is_to_be_undone_is_not_waited_for(scheduler, awaited):
    scheduler.nodes[CLIENT] |= {"Status": "down"}
    async with hosts(scheduler, told := [], undoing=True, awaited=awaited) as parts:
        assert (anyio.current_time(), told) == (STARTS_S, [])
        assert {*parts} == {"client-2"}


async def test_a_client_that_its_operator_took_out_is_not_waited_for(scheduler):
    """It does not come back by itself."""
    scheduler.nodes[CLIENT] |= {"SchedulingEligibility": "ineligible"}
    async with hosts(scheduler, told := [], undoing=True, awaited=["client-1"]):
        assert (anyio.current_time(), told) == (STARTS_S, [])


def test_a_fault_on_the_agent_that_carries_it_is_refused_before_anything_starts(scheduler):
    offers = run(look(target(), ESTATE, nomad=scheduler.reaching()))
    pause = ProcessPause(NoParams(), None)
    assert offers["client-1"].refuses(pause, "nomad").startswith("nomad carries faults to this host")
    assert offers["client-1"].refuses(pause, "consul") == ""
    assert replace(offers["client-1"], by="SSH").refuses(pause, "nomad") == ""


@pytest.mark.long
def test_doctor_says_which_carrier_reaches_a_host_and_why_another_is_not_reached(scheduler):
    scheduler.nodes[OTHER] |= {"SchedulingEligibility": "ineligible"}
    there = examined(target(), ESTATE, {}, run(look(target(), ESTATE, nomad=scheduler.reaching())))
    text = "\n".join(lines(there))
    assert "  carried by Nomad: client-1: raw_exec; its other tools are checked when a run begins" in text
    assert "  carried by Nomad: client-2: the client is ineligible: allow it by `nomad node eligibility" in text
    assert there.faults["network.partition"] == ""
    assert {one["host"]: one["by"] for one in as_data(there)["carried"]}["client-1"] == "Nomad"


class Socket:
    """A WebSocket that takes three turns of the loop to open, and says whether it is open."""

    def __init__(self):
        self.open = False

    async def __aenter__(self):
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        self.open = True

    async def __aexit__(self, *_):
        self.open = False


@pytest.mark.parametrize("turns", range(8))
async def test_whoever_stops_waiting_for_a_connection_leaves_none_and_does_not_hang(turns, monkeypatch):
    """Given up in the very turn in which it opened, it was waited for without an end: a heal over Nomad hung."""
    socket = Socket()
    monkeypatch.setattr("httpx2.AsyncClient.websocket", lambda *_, **__: socket)
    login = Login("nomad", "http://127.0.0.1:4646")
    with anyio.fail_after(5):
        async with dialler(login) as dial, anyio.create_task_group() as others:
            others.start_soon(dial, "allocation", ["true"])
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            others.cancel_scope.cancel()
    assert not socket.open
