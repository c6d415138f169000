"""What carriers can do on which host: looked at before anything is touched, and said by name."""

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
import pytest

from attached_estates import FakeEstate, attach_file
from carried_hosts import FakeShell
from drills import experiment
from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.library import find_experiment, read_experiment
from hashidrill.core.protocols.capabilities import (
    AgentSettings,
    DiskCanary,
    DiskControl,
    NetworkCanary,
    PacketFilter,
    ProcessControl,
    Processes,
)
from hashidrill.faces.cli.doctor_attach import as_data, examined, lines
from hashidrill.staging.attach.target import AttachTarget, read_target
from hashidrill.staging.carriers.open_carriers import CARRIED, carried, look
from hashidrill.staging.carriers.settings import SshSettings, carriers_of
from hashidrill.staging.runs.attach_limits import lacking, possible_kinds
from virtual_time import run

pytestmark = pytest.mark.lie

SSH = 'carriers: {ssh: {user: ops, addresses: {client-1: "127.0.0.1:2222"}}}\n'
"""After what `attach_file` writes."""


@pytest.fixture
def target(tmp_path):
    file = attach_file(tmp_path, '  consul: {address: "http://10.73.0.11:8500", token_file: token}\n' + SSH)
    return read_target(file, {})


@pytest.fixture
def estate(target):
    return run(FakeEstate().found(target))


def looked(target, estate, shell):
    return run(look(target, estate, shell.connected))


def test_all_that_a_host_can_is_offered(target, estate):
    offers = looked(target, estate, FakeShell())
    assert {*offers} == {*estate.hosts}
    assert offers["consul-1"].capabilities == CARRIED
    assert offers["consul-1"].said == "root, Python 3.11.2, nft, strace"


@pytest.mark.parametrize(
    ("facts", "agents", "without", "why"),
    [
        ({"lacks": {"nft": "nft is not installed on this host"}}, None, {PacketFilter}, "nft is not installed"),
        ({"lacks": {"strace": "strace is not installed"}}, None, {DiskControl, DiskCanary}, "strace is not installed"),
        ({}, {}, CARRIED - {PacketFilter, NetworkCanary}, "no process `consul agent` of consul"),
        ({"root": False}, None, CARRIED, "are not root"),
    ],
)
def test_what_a_host_lacks_takes_away_what_needs_it(target, estate, facts, agents, without, why):  # noqa: PLR0917
    shell = FakeShell(facts={"root": True, "lacks": {}, "python": "3.9.2", "cores": 2, **facts}, agents=agents)
    offer = looked(target, estate, shell)["consul-2"]
    assert offer.capabilities == CARRIED - without
    assert {*offer.lacks} == {*without}
    assert all(why in text for text in offer.lacks.values())
    assert why in offer.said


def test_a_host_that_is_another_one_than_the_catalogs_offers_nothing_and_says_what_to_do(target, estate):
    """A wrong line under `addresses`: the fault would be on, and be proven on, a host that nobody named."""
    shell = FakeShell()
    shell.not_own = "it does not have 10.73.0.11"
    offer = looked(target, estate, shell)["consul-1"]
    assert (offer.capabilities, {*offer.lacks}) == (frozenset(), CARRIED)
    [why] = {*offer.lacks.values()}
    assert f"{shell.where} is not confirmed to be consul-1: it does not have 10.73.0.11; correct carriers" in why
    assert why in offer.said


def test_behind_nat_nobody_asks_a_host_for_its_address(target, estate):
    ssh = target.carriers["ssh"] | {"check_address": False}
    shell = FakeShell()
    shell.not_own = "it does not have 10.73.0.11"
    behind = AttachTarget("staging", "", "s.yaml", target.logins, carriers={"ssh": ssh})
    assert {offer.capabilities for offer in looked(behind, estate, shell).values()} == {CARRIED}


@pytest.mark.parametrize(("role", "lacks"), [("client", {DiskControl, DiskCanary}), ("server", set())])
def test_no_strace_is_on_an_agent_that_starts_jobs_of_others(target, estate, role, lacks):
    """It follows each process that the agent starts, and would slow the users' own jobs."""
    host = estate.hosts["client-1"]
    nomad = replace(host, roles=host.roles | {"nomad": role}, urls=host.urls | {"nomad": "http://10.73.0.31:4646"})
    both = replace(estate, hosts=estate.hosts | {"client-1": nomad})
    shell = FakeShell(agents={("consul", "agent"): 41, ("nomad", "agent"): 42})
    offers = looked(target, both, shell)
    assert offers["client-1"].capabilities == CARRIED - lacks
    assert {*offers["client-1"].lacks.values()} == {
        f"strace would follow nomad's {role} into the jobs that it starts" for _ in lacks
    }
    assert offers["consul-1"].capabilities == CARRIED


def test_a_host_that_nobody_reaches_offers_nothing_and_says_why(target, estate):
    shell = FakeShell()
    shell.cut_off()
    offer = looked(target, estate, shell)["consul-3"]
    assert (offer.capabilities, offer.said) == (frozenset(), "consul-3: cannot be reached: Connection refused")


def test_without_carriers_nobody_is_asked(estate):
    target = AttachTarget("staging", "", "staging.yaml", {})
    assert run(look(target, estate, None)) == {}


def test_looking_leaves_nothing_there(target, estate):
    shell = FakeShell()
    looked(target, estate, shell)
    assert not shell.in_force
    assert not shell.notes
    assert all("listens" in session.told and not session.told["listens"] for session in shell.sessions)


class KilledShell(FakeShell):
    """Its agent was killed; the note says how it was started."""

    def __init__(self):
        facts = {"root": True, "lacks": {"strace": "no strace", "nft": "no nft"}, "python": "3.9.2", "cores": 2}
        super().__init__(agents={}, facts=facts)
        self.notes["kill-consul-consul-1"] = {}

    async def start(self, program):
        session = await super().start(program)
        if "undo" in session.told and not self.notes:
            self.agents = {("consul", "agent"): 42}
        return session


async def test_a_kill_can_be_taken_back_while_no_agent_is_there(target, estate):
    """That none is there is the fault itself."""
    shell = KilledShell()
    async with carried(target, estate, {}, deadline_s=1, tell=print, connect=shell.connected) as parts:
        assert ProcessControl not in parts["consul-1"], "a run may not begin there"
    async with carried(target, estate, {}, deadline_s=1, tell=print, connect=shell.connected, undoing=True) as parts:
        assert {*parts["consul-1"]} == CARRIED
        await parts["consul-1"][ProcessControl].start_agent("consul")
        assert (await parts["consul-1"][Processes].agent_process("consul")).pid == 42
    assert not shell.notes


async def back(shell, *, after_s):
    await anyio.sleep(after_s)
    shell.cut = False


@pytest.mark.parametrize("awaited", [["consul-1"], []])
async def test_a_host_that_restarts_is_waited_for_where_something_is_to_be_taken_back(target, estate, awaited):
    shell, told = FakeShell(), []
    shell.cut = True
    began = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(back, shell, after_s=25))
        offers = await look(target, estate, shell.connected, undoing=True, awaited=awaited, tell=told.append)
        took_s = anyio.current_time() - began
    there, other = bool(offers["consul-1"].capabilities), bool(offers["consul-2"].capabilities)
    assert (there, other) == (bool(awaited), False), "nobody waits for the others"
    assert 25 <= took_s < 30 if awaited else took_s < 1
    assert told[:1] == ["waiting for up to 90s: consul-1: cannot be reached: Connection refused"][: len(awaited)]


async def test_a_host_that_lets_nobody_in_is_not_waited_for(target, estate):
    """It answers: a key that is refused is refused a minute later too."""
    told = []

    @asynccontextmanager
    async def refusing(name, address):
        raise AttachError(f"{name}: it does not let ops in")
        yield

    began = anyio.current_time()
    await look(target, estate, refusing, undoing=True, awaited=["consul-1"], tell=told.append)
    assert (anyio.current_time() - began) < 1
    assert told == []


def test_without_root_nothing_can_be_taken_back_either(target, estate):
    shell = FakeShell(facts={"root": False, "lacks": {}, "python": "3.9.2", "cores": 2})
    assert run(look(target, estate, shell.connected, undoing=True))["consul-1"].capabilities == frozenset()


STEP = {"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "500ms"}, "for": "5s"}


def written(tmp_path, step=STEP, **params):
    step = step | {"with": step["with"] | params}
    return experiment(tmp_path / "x.yaml", method=[step], servers=3, clients=1)


def test_an_experiment_can_run_where_its_hosts_are_reached(target, estate, tmp_path):
    path = find_experiment("raft/slow-leader-disk")
    assert lacking(read_experiment(path), target, estate, path=path)
    offers = looked(target, estate, FakeShell())
    assert lacking(read_experiment(path), target, estate, path=path, offers=offers) == []


def test_what_cannot_be_carried_is_refused_with_its_reason(target, estate, tmp_path):
    path = written(tmp_path, jitter="100ms")
    offers = looked(target, estate, FakeShell())
    [why] = lacking(read_experiment(path), target, estate, path=path, offers=offers)
    assert why == (
        "step 1, disk.latency on consul:leader: consul-1: strace treats all calls alike: it supports neither jitter nor"
        " percent"
    )
    shell = FakeShell()
    shell.cut_off()
    offers = looked(target, estate, shell)
    [why] = lacking(read_experiment(path), target, estate, path=path, offers=offers)
    assert why.endswith(
        "its host consul-1 lacks DiskCanary, DiskControl: consul-1: cannot be reached: Connection refused"
    )


@pytest.mark.parametrize(("leave", "refusals"), [(True, 1), (False, 0)])
def test_an_agent_that_leaves_by_its_api_and_that_nobody_would_start_again_is_refused(
    target, estate, tmp_path, leave, refusals
):
    """systemd leaves it down, no agent of ours ended it, and so neither a revert nor a heal would start it."""
    path = written(tmp_path, STEP | {"fault": "consul.agent.stop", "with": {"leave": leave}})
    reasons = lacking(read_experiment(path), target, estate, path=path, offers=looked(target, estate, FakeShell()))
    assert len(reasons) == refusals
    assert all("consul.agent.stop on consul:leader: consul-1: an agent that leaves by its" in why for why in reasons)


@pytest.mark.long
def test_doctor_says_what_is_carried_to_which_host(target, estate):
    offers = looked(
        target, estate, FakeShell(facts={"root": True, "lacks": {"strace": "no strace"}, "python": "3.9.2", "cores": 2})
    )
    there = examined(target, estate, {}, offers)
    text = "\n".join(lines(there))
    assert "  carried by SSH: consul-1: root, Python 3.9.2, nft; no strace" in text
    assert "Capabilities that its hosts lack:" in text
    assert there.faults["network.partition"] == ""
    assert there.faults["disk.latency"] == "no host has DiskCanary, DiskControl"
    [one, *_] = as_data(there)["carried"]
    assert one["host"] == "client-1" or one["host"].startswith("consul-")
    assert one["lacks"] == {"DiskCanary": "no strace", "DiskControl": "no strace"}
    assert possible_kinds(target, estate)["network.partition"] != ""


def test_the_settings_survive_the_way_to_the_engine(target):
    assert AttachTarget.received(json.loads(json.dumps(target.handed_over()))).carriers == target.carriers


@pytest.mark.parametrize(
    ("carriers", "message"),
    [
        ({"ssh": {"usr": "ops"}}, "carriers.ssh.usr: unknown key 'usr'"),
        ({"ssh": {"port": 0}}, "carriers.ssh.port: "),
        ({"telnet": {}}, "carriers.telnet: unknown key 'telnet'"),
        ({"ssh": {"lease": "1s"}}, "carriers.ssh.lease: lease must be from 3s to 5m"),
    ],
)
def test_a_mistake_in_the_file_is_named(carriers, message):
    with pytest.raises(AttachError) as caught:
        carriers_of(carriers, "staging.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("staging.yaml: the carriers cannot be read:")


def test_an_address_for_a_host_that_is_not_there_is_named(target, estate):
    wrong = AttachTarget("staging", "", "s.yaml", target.logins, carriers={"ssh": {"addresses": {"web": "1.2.3.4"}}})
    with pytest.raises(AttachError, match="there is no host 'web'; there are: "):
        run(look(wrong, estate, FakeShell().connected))
    assert set(run(look(replace(wrong, undoing=True), estate, FakeShell().connected, undoing=True))) == set(
        estate.hosts
    )


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ({}, ("10.73.0.11", 2200)),
        ({"a": "box"}, ("box", 2200)),
        ({"a": "box:22"}, ("box", 22)),
        ({"a": "[fd00::1]:22"}, ("fd00::1", 22)),
        ({"a": "fd00::1"}, ("fd00::1", 2200)),
    ],
)
def test_where_the_sshd_of_a_host_is(written, place):
    assert SshSettings(port=2200, addresses=written).place_of("a", "10.73.0.11") == place


def test_network_faults_need_the_canary(target, estate):
    assert NetworkCanary in looked(target, estate, FakeShell())["consul-1"].capabilities


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "refused"), [("process.kill", True), ("process.restart", True), ("process.pause", False)]
)
def test_an_agent_that_could_not_be_started_again_is_refused_beforehand_and_doctor_says_so(
    target, estate, tmp_path, kind, refused
):
    shell = FakeShell()
    shell.cannot_restart = "process 41 sees other files than this host's, as in a container"
    offers = looked(target, estate, shell)
    path = written(tmp_path, {"fault": kind, "on": "host:client-1", "with": {}, "for": "5s"})
    reasons = lacking(read_experiment(path), target, estate, path=path, offers=offers)
    assert reasons == ([f"step 1, {kind} on host:client-1: client-1: {shell.cannot_restart}"] if refused else [])
    assert offers["client-1"].capabilities == CARRIED - {AgentSettings}
    told = "\n".join(lines(examined(target, estate, {}, offers)))
    assert f"  carried by SSH: client-1: root, Python 3.11.2, nft, strace; {shell.cannot_restart}\n" in told


class PartlyReached(FakeShell):
    """Nobody reaches one of the hosts."""

    @asynccontextmanager
    async def connected(self, name, address):
        if name == "consul-3":
            raise AttachError("consul-3: cannot be reached: Connection refused")
        yield self


@pytest.mark.parametrize(
    ("kind", "of", "params", "refused"),
    [
        ("network.partition", "consul-1", {}, True),
        ("network.partition", "consul-1", {"from": "host:consul-2"}, False),
        ("network.loss", "consul-1", {"percent": "50%", "from": "servers"}, True),
        ("network.block", "client-1", {"port": 8301, "from": "consul:servers"}, True),
        ("network.block", "consul-1", {"port": 8301, "from": "consul:clients"}, False),
    ],
)
def test_a_network_fault_whose_other_side_is_not_reached_is_refused_beforehand(  # noqa: PLR0917
    target, estate, tmp_path, kind, of, params, refused
):
    """Its proof connects from there: without this it would be INVALID in the middle of a run."""
    offers = looked(target, estate, PartlyReached())
    path = written(tmp_path, {"fault": kind, "on": f"host:{of}", "with": params, "for": "5s"})
    reasons = lacking(read_experiment(path), target, estate, path=path, offers=offers)
    why = (
        f"step 1, {kind} on host:{of}: its proof needs NetworkCanary, PacketFilter on consul-3, which is on the other"
        " side: consul-3: cannot be reached: Connection refused"
    )
    assert reasons == [why] * refused


def test_settings_are_offered_where_an_agent_reads_a_folder_of_them(target, estate, tmp_path):
    offers = looked(target, estate, FakeShell())
    assert AgentSettings in offers["consul-1"].capabilities
    shell = FakeShell()
    shell.reads_no_folder = "process 41 reads no folder of configuration files (-config-dir)"
    offer = looked(target, estate, shell)["consul-1"]
    assert {*offer.lacks} == {AgentSettings}
    path = written(
        tmp_path,
        {
            "fault": "consul.config",
            "on": "host:client-1",
            "with": {"set": {"use_streaming_backend": False}},
            "for": "5s",
        },
    )
    [why] = lacking(read_experiment(path), target, estate, path=path, offers={"client-1": offer})
    assert shell.reads_no_folder in why
    assert "lacks AgentFiles" in why
