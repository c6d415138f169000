"""Faults of Consul on the fake: what they refuse, what they leave alone, and which lies their proofs see through."""

from dataclasses import replace

import anyio
import pytest

import virtual_time
from fault_cases import fault_of
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.core.protocols.capabilities import AgentFiles, AgentSettings, ProcessControl
from hashidrill.products.consul.api import when_led
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.faults import check_fault

STREAMING_OFF = {"set": {"use_streaming_backend": False, "rpc": {"enable_streaming": False}}}
THRESHOLD = {"set": {"raft_snapshot_threshold": 50}}


def datacenter(tmp_path=None, version="1.22.2", **more):
    world = FakeDatacenter(root=tmp_path, **more)
    world.consul.version = version
    return world


async def in_force(world, kind, host="consul-1", **params):
    """(fault, undo) of a fault that is applied and proven."""
    fault = fault_of(world, kind, **params)
    undo = await planned(fault, world.target(host), f"0-{kind}-{host}")
    await fault.apply(undo)
    evidence = await fault.verify(undo, present=True)
    assert evidence.ok, evidence
    return fault, undo


async def refusal(world, kind, host="consul-1", **params):
    with pytest.raises(FaultError) as error:
        await planned(fault_of(world, kind, **params), world.target(host), "refused")
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "params", "momentary"),
    [
        ("consul.config", THRESHOLD, False),
        ("consul.config", STREAMING_OFF, False),
        ("consul.leader.transfer", {}, True),
        ("consul.leader.transfer", {"to": "consul-3"}, True),
        ("consul.leader.avoid", {}, False),
        ("consul.leader.pin", {}, False),
        ("consul.server.replace", {}, False),
    ],
)
def test_faults_keep_their_contract_on_the_incidents_version(tmp_path, kind, params, momentary):
    world = datacenter(tmp_path, "1.10.3", spares=1)
    fault = fault_of(world, kind, **params)
    report = anyio.run(lambda: check_fault(fault, world.target("consul-1"), momentary=momentary))
    assert report.present.ok
    assert not any(host.tables for host in world.hosts.values())


# consul.config


async def test_a_configuration_that_nobody_changed_is_put_back_without_a_restart():
    world = datacenter()
    fault = fault_of(world, "consul.config", **STREAMING_OFF)
    undo = await planned(fault, world.target("consul-1"), "x")
    before = world.hosts["consul-1"].process
    await fault.revert(undo)
    assert world.hosts["consul-1"].process == before


class Added:
    """Somebody else's host: settings come into a file of ours, and the host has its agent read it."""

    def __init__(self, host):
        self.host, self.theirs, self.ours, self.checks = host, dict(host.config), {}, []
        self.lies = False
        for capability in (AgentFiles, ProcessControl):
            del host.parts[capability]
        host.parts[AgentSettings] = self

    async def agent_settings(self, agent):
        return dict(self.ours)

    async def _read(self, restart):
        if self.lies:
            return
        config = {**self.theirs, **self.ours}
        if restart:
            await self.host.stop_agent("consul")
        await self.host.set_agent_config("consul", config)
        if restart:
            await self.host.start_agent("consul")
        else:
            await self.host.api("PUT", "/v1/agent/reload", agent="consul")

    async def set_agent_settings(self, agent, settings, *, restart, check):
        self.ours, self.by = dict(settings), restart
        self.checks.append(check)
        await self._read(restart)

    async def clear_agent_settings(self, agent):
        if self.ours:
            self.ours = {}
            await self._read(self.by)


@pytest.mark.parametrize("params", [THRESHOLD, STREAMING_OFF])
def test_somebody_elses_agent_gets_one_more_file_of_settings_and_keeps_its_own(params):
    world = datacenter()
    host = world.hosts["consul-1"]
    added = Added(host)
    fault = fault_of(world, "consul.config", **params)
    assert fault.requires().lacking(host) == []
    report = anyio.run(lambda: check_fault(fault, world.target("consul-1")))
    assert report.present.ok
    assert host.config == added.theirs
    assert added.checks[0] == ("validate",)
    assert added.ours == {}


@pytest.mark.lie
async def test_settings_that_somebody_elses_agent_never_read_are_not_proven():
    world = datacenter()
    Added(world.hosts["consul-1"]).lies = True
    fault = fault_of(world, "consul.config", **STREAMING_OFF)
    undo = await planned(fault, world.target("consul-1"), "x")
    await fault.apply(undo)
    assert not (await fault.verify(undo, present=True)).ok


@pytest.mark.parametrize("point", ["stopped", "written", "started"])
async def test_a_restart_that_was_interrupted_is_put_right_from_a_fresh_process(point):
    world = datacenter()
    host = world.hosts["consul-1"]
    fault = fault_of(world, "consul.config", **STREAMING_OFF)
    undo = await planned(fault, world.target("consul-1"), "x")
    await host.stop_agent("consul")
    if point in ("written", "started"):
        await host.set_agent_config("consul", {**host.config, **STREAMING_OFF["set"]})
    if point == "started":
        await host.start_agent("consul")
    await fault_of(world, "consul.config", **STREAMING_OFF).revert(undo)
    assert (await fault.verify(undo, present=False)).ok
    assert host.config == undo["prior"]["config"]


async def test_reloadable_keys_are_not_worth_a_restart():
    world = datacenter()
    before = world.hosts["consul-1"].process
    fault, undo = await in_force(world, "consul.config", **THRESHOLD)
    await fault.revert(undo)
    assert world.hosts["consul-1"].process == before


async def test_a_file_that_was_never_read_is_no_proof():
    for version in ("1.22.2", "1.10.3"):
        world = datacenter(version=version)
        host = world.hosts["consul-1"]
        fault = fault_of(world, "consul.config", **THRESHOLD)
        undo = await planned(fault, world.target("consul-1"), "x")
        await host.set_agent_config("consul", {**host.config, **THRESHOLD["set"]})
        assert not (await fault.verify(undo, present=True)).ok


async def test_what_an_agent_shows_after_a_mere_reload_is_no_proof_of_what_needs_a_restart():
    """1.22.2 shows the whole file as soon as it is reloaded, whether it took it or not."""
    world = datacenter()
    host = world.hosts["consul-1"]
    fault = fault_of(world, "consul.config", set={"rpc": {"enable_streaming": False}})
    undo = await planned(fault, world.target("consul-1"), "x")
    await host.set_agent_config("consul", {**host.config, "rpc": {"enable_streaming": False}})
    await host.api("PUT", "/v1/agent/reload", agent="consul")
    evidence = await fault.verify(undo, present=True)
    assert not evidence.ok
    assert "the same process" in evidence.measured


async def test_streaming_is_proven_by_who_answers_queries():
    world = datacenter()
    fault, undo = await in_force(world, "consul.config", **STREAMING_OFF)
    world.consul._started["consul-1"]["use_streaming_backend"] = True
    evidence = await fault.verify(undo, present=True)
    assert not evidence.ok
    assert "queries are answered by streaming" in evidence.measured


@pytest.mark.parametrize("version", ["1.22.2", "1.10.3"])
async def test_configuration_put_back_by_hand_is_seen(version):
    world = datacenter(version=version)
    fault, undo = await in_force(world, "consul.config", **THRESHOLD)
    host = world.hosts["consul-1"]
    await host.set_agent_config("consul", undo["prior"]["config"])
    await host.api("PUT", "/v1/agent/reload", agent="consul")
    assert not (await fault.verify(undo, present=True)).ok
    assert (await fault.verify(undo, present=False)).ok


async def test_servers_restart_one_after_the_other():
    class Watched(FakeDatacenter):
        most_down = 0

    world = Watched()
    servers = [world.hosts[f"consul-{n}"] for n in (1, 2, 3)]
    starting = type(servers[0]).start_agent

    async def slowly(host, agent):
        world.most_down = max(world.most_down, sum(one.process is None for one in servers))
        await anyio.sleep(5)
        await starting(host, agent)

    for server in servers:
        server.start_agent = lambda agent, server=server: slowly(server, agent)
    faults = [fault_of(world, "consul.config", **STREAMING_OFF) for _ in servers]
    undos = [await planned(fault, world.target(one.name), one.name) for fault, one in zip(faults, servers, strict=True)]
    for does in ("apply", "revert"):
        async with anyio.create_task_group() as group:
            for fault, undo in zip(faults, undos, strict=True):
                group.start_soon(getattr(fault, does), undo)
    assert world.most_down == 1


async def test_a_server_that_comes_back_just_now_is_waited_for():
    world = datacenter()
    server = world.hosts["consul-3"]
    process, server.process = server.process, None

    async def back():
        await anyio.sleep(5)
        server.process = process

    async with anyio.create_task_group() as group:
        group.start_soon(back)
        assert await planned(fault_of(world, "consul.config", **STREAMING_OFF), world.target("consul-1"), "waits")
        assert anyio.current_time() >= 5


async def test_a_leader_that_does_not_hand_over_is_not_cut_off_from_the_last_majority(monkeypatch):
    world = datacenter()
    world.hosts["consul-3"].process = None
    leader = world.hosts["consul-1"]
    answered = leader.api

    async def api(method, path, **request):
        if path.endswith("/transfer-leader"):
            return ApiAnswer(500, b"rpc error making call: too slow")
        return await answered(method, path, **request)

    monkeypatch.setattr(leader, "api", api)
    fault = fault_of(world, "consul.leader.transfer")
    undo = await planned(fault, world.target("consul-1"), "0-transfer-consul-1")
    with pytest.raises(
        FaultError, match=r"without consul-1, 1 of 3 voters remain \(consul-2\), which is not a majority"
    ):
        await fault.apply(undo)
    assert not any(host.tables for host in world.hosts.values()), "nobody was cut off"


async def test_a_dead_server_that_is_taken_out_meanwhile_goes_on_to_count():
    """As autopilot does with it on 1.22.2 after some seconds."""
    world = datacenter()
    world.hosts["consul-3"].process = None

    async def taken_out():
        await anyio.sleep(5)
        world.consul.voters.remove("consul-3")

    async with anyio.create_task_group() as group:
        group.start_soon(taken_out)
        said = await refusal(world, "consul.config", **STREAMING_OFF)
    assert "without consul-1, 1 of 3 voters remain (consul-2), which is not a majority" in said


async def test_the_last_majority_is_not_restarted_away():
    world = datacenter()
    world.hosts["consul-3"].process = None
    said = await refusal(world, "consul.config", **STREAMING_OFF)
    assert "nothing was applied" in said
    assert "without consul-1, 1 of 3 voters remain (consul-2), which is not a majority" in said
    assert "not a majority" in await refusal(world, "consul.leader.avoid", "consul-2")
    await in_force(world, "consul.config", **THRESHOLD)  # a reload costs nobody


async def test_what_the_agent_refuses_is_said_in_its_own_words():
    world = datacenter()
    fault = fault_of(world, "consul.config", set={"raft_snapshot_thresold": 5}, by="auto")
    undo = await planned(fault, world.target("consul-1"), "x")
    undo = {**undo, "prior": {**undo["prior"], "by": "reload"}}
    with pytest.raises(FaultError, match="invalid config key raft_snapshot_thresold"):
        await fault.apply(undo)
    await fault.revert(undo)
    assert (await fault.verify(undo, present=False)).ok


async def test_what_the_file_says_already_is_no_change():
    world = datacenter()
    await in_force(world, "consul.config", **THRESHOLD)
    assert "already sets this" in await refusal(world, "consul.config", **THRESHOLD)


async def test_a_key_that_this_version_does_not_reload_is_refused_where_a_reload_is_asked_for():
    params = {"set": {"limits": {"request_limits": {"mode": "enforcing"}}}, "by": "reload"}
    said = await refusal(datacenter(version="1.10.3"), "consul.config", **params)
    assert "Consul 1.10.3 cannot reload limits.request_limits.mode" in said


# who leads


async def test_only_the_leader_can_hand_over():
    world = datacenter()
    assert "consul-2 does not lead, but consul-1 does" in await refusal(world, "consul.leader.transfer", "consul-2")
    assert "already leads" in await refusal(world, "consul.leader.transfer", to="consul-1")
    assert "client-1 is not a voter" in await refusal(world, "consul.leader.transfer", to="client-1")
    assert "client-1 is not a voter" in await refusal(world, "consul.leader.avoid", "client-1")
    world.consul.leader = ""
    assert "no majority of the servers knows a leader" in await refusal(world, "consul.leader.transfer")


async def test_a_leader_that_came_back_is_seen():
    world = datacenter()
    fault, undo = await in_force(world, "consul.leader.transfer")
    world.consul.leader = "consul-1"
    assert not (await fault.verify(undo, present=True)).ok


async def test_rules_that_a_dead_runner_left_are_removed():
    world = datacenter(version="1.10.3")
    fault = fault_of(world, "consul.leader.transfer", to="consul-2")
    undo = await planned(fault, world.target("consul-1"), "x")
    # nobody can say who leads: apply is stuck until it gives up
    world.hosts["consul-2"].process = world.hosts["consul-3"].process = None
    with pytest.raises((FaultError, WaitTimeoutError)):
        await fault.apply(undo)
    await world.hosts["consul-3"].set_packet_rules("hashidrill_x", [])
    await fault_of(world, "consul.leader.transfer").revert(undo)
    assert not any(host.tables for host in world.hosts.values())


async def test_an_avoided_server_wins_no_election():
    world = datacenter()
    fault, undo = await in_force(world, "consul.leader.avoid", "consul-2")
    ids = undo["prior"]["voters"]
    for _ in range(4):
        leader = world.hosts[world.consul.leader]
        answer = await leader.api(
            "POST", "/v1/operator/raft/transfer-leader", params={"id": ids["consul-2"]}, agent="consul"
        )
        assert answer.status == 500
        process, leader.process = leader.process, None
        assert world.consul.leader in {"consul-1", "consul-3"} - {leader.name}
        leader.process = process
    await fault.revert(undo)
    world.hosts["consul-1"].process = None
    world.consul.leader = "consul-1"
    assert world.consul.leader == "consul-2"


@pytest.mark.parametrize(("kind", "host"), [("consul.leader.avoid", "consul-2"), ("consul.leader.pin", "consul-3")])
async def test_rules_that_were_flushed_are_missed(kind, host):
    world = datacenter()
    fault, undo = await in_force(world, kind, "consul-2" if kind.endswith("avoid") else "consul-1")
    world.hosts[host].tables.clear()
    assert not (await fault.verify(undo, present=True)).ok
    assert (await fault.verify(undo, present=False)).ok == (kind == "consul.leader.avoid")


async def test_encrypted_rpc_cannot_be_told_apart():
    world = datacenter()
    world.consul.encrypted = True
    assert "its RPC is encrypted" in await refusal(world, "consul.leader.avoid")


async def test_a_server_that_was_just_put_back_is_waited_for_until_it_votes():
    world = datacenter(spares=1)
    world.consul.voters.remove("consul-3")

    async def back():
        await anyio.sleep(20)
        world.consul.voters.append("consul-3")

    async with anyio.create_task_group() as group:
        group.start_soon(back)
        for kind in ("consul.leader.avoid", "consul.server.replace"):
            assert await planned(fault_of(world, kind), world.target("consul-3"), kind)


def test_a_request_waits_while_the_leadership_moves_and_no_longer(monkeypatch):
    host = datacenter().hosts["consul-1"]
    moving = ApiAnswer(500, b"Raft error when taking snapshot: leadership transfer in progress")
    answers = [moving, moving, ApiAnswer(200, b"a snapshot")]

    async def api(method, path, **_request):
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(host, "api", api)
    assert virtual_time.run(when_led(host, "GET", "/v1/snapshot")).body == b"a snapshot"
    answers[:] = [ApiAnswer(500, b"rpc error")]
    assert virtual_time.run(when_led(host, "GET", "/v1/snapshot")).status == 500
    answers[:] = [moving]
    with pytest.raises(WaitTimeoutError, match=r"consul-1 to answer GET /v1/snapshot.*transfer in progress"):
        virtual_time.run(when_led(host, "GET", "/v1/snapshot"))


async def test_no_request_for_obsolete_keys_is_lost_to_an_election(monkeypatch):
    """Each is answered the first time as by a server whose connection to the leader has just ended."""
    world = datacenter()
    host, refused = world.hosts["consul-1"], []
    answered = host.api

    async def api(method, path, **request):
        if not path.startswith(("/v1/agent", "/v1/status")) and (method, path) not in refused:
            refused.append((method, path))
            return ApiAnswer(500, b"rpc error making call: session shutdown")
        return await answered(method, path, **request)

    monkeypatch.setattr(host, "api", api)
    fault, undo = await in_force(world, "consul.kv.bloat", keys=200)
    await fault.revert(undo)
    assert (await fault.verify(undo, present=False)).ok
    assert [method for method, _ in refused] == ["GET", "PUT", "DELETE"]


# agents and servers


async def test_an_agent_that_was_started_by_hand_is_seen():
    world = datacenter()
    fault, undo = await in_force(world, "consul.agent.stop", "client-1")
    await world.hosts["client-1"].start_agent("consul")
    assert not (await fault.verify(undo, present=True)).ok


async def test_to_fail_is_not_to_leave():
    world = datacenter()
    fault, undo = await in_force(world, "consul.agent.stop", "consul-2", leave=True)
    world.consul._left.clear()
    evidence = await fault.verify(undo, present=True)
    assert not evidence.ok
    assert "failed" in evidence.measured


async def test_the_only_server_does_not_leave():
    assert "is the only voter" in await refusal(datacenter(servers=1), "consul.agent.stop", leave=True)


async def test_replacements_take_one_spare_each_and_give_it_back(tmp_path):
    world = datacenter(tmp_path, spares=2)
    first = await in_force(world, "consul.server.replace", "consul-1")
    second = await in_force(world, "consul.server.replace", "consul-2")
    spares = {undo["prior"]["spare"] for _, undo in (first, second)}
    assert spares == {"consul-4", "consul-5"}
    roles = {host.name: host.role for host in world.hosts.values()}
    assert [name for name, role in roles.items() if role == "server"] == ["consul-3", "consul-4", "consul-5"]
    assert "no spare host is left" in await refusal(world, "consul.server.replace", "consul-3")
    for fault, undo in (first, second):
        await fault.revert(undo)
        assert (await fault.verify(undo, present=False)).ok
    roles = {host.name: host.role for host in world.hosts.values()}
    assert [name for name, role in roles.items() if role == "server"] == ["consul-1", "consul-2", "consul-3"]


async def test_a_new_server_that_left_is_missed_and_the_old_one_comes_back_with_empty_hands(tmp_path):
    world = datacenter(tmp_path, spares=1)
    kept = world.hosts["consul-1"].data / "consul" / "raft"
    kept.mkdir(parents=True)
    fault, undo = await in_force(world, "consul.server.replace")
    assert not kept.exists()
    await world.hosts["consul-4"].api("PUT", "/v1/agent/leave", agent="consul")
    assert not (await fault.verify(undo, present=True)).ok
    await fault.revert(undo)
    assert (await fault.verify(undo, present=False)).ok


async def test_a_server_that_never_left_keeps_its_data(tmp_path):
    world = datacenter(tmp_path, spares=1)
    host = world.hosts["consul-1"]
    kept = host.data / "consul" / "raft"
    kept.mkdir(parents=True)
    fault = fault_of(world, "consul.server.replace")
    undo = await planned(fault, world.target("consul-1"), "x")
    host.process = None  # it was killed while the fault was on its way
    await fault.revert(undo)
    assert kept.exists()
    assert (await fault.verify(undo, present=False)).ok


async def test_without_a_spare_host_nothing_is_replaced():
    assert "no spare host is left" in await refusal(datacenter(), "consul.server.replace")


# sessions and keys


async def test_only_sessions_with_that_name_on_that_node_end():
    world = datacenter()
    ended = world.consul.make_session("client-1", "lock-1", "a", "b")
    kept = [world.consul.make_session("client-1", "other", "c"), world.consul.make_session("consul-1", "lock-2")]
    _, undo = await in_force(world, "consul.session.expire", "client-1", prefix="lock")
    assert undo["prior"]["locks"] == {"a": ended, "b": ended}
    assert list(world.consul.sessions) == kept
    assert world.consul.kv.entries["c"].session == kept[0]


async def test_a_session_that_is_back_and_a_lock_that_is_still_held_are_seen():
    world = datacenter()
    session = world.consul.make_session("client-1", "lock", "a")
    fault, undo = await in_force(world, "consul.session.expire", "client-1")
    world.consul.kv.entries["a"] = replace(world.consul.kv.entries["a"], session=session)
    assert not (await fault.verify(undo, present=True)).ok
    world.consul.kv.entries["a"] = replace(world.consul.kv.entries["a"], session="another")
    assert (await fault.verify(undo, present=True)).ok, "another one may have claimed it"
    world.consul.sessions[session] = {"ID": session, "Name": "lock", "Node": "client-1"}
    assert not (await fault.verify(undo, present=True)).ok


async def test_a_node_without_sessions_cannot_lose_any():
    world = datacenter()
    world.consul.make_session("client-1", "other")
    assert "begins with 'lock'" in await refusal(world, "consul.session.expire", "client-1", prefix="lock")
    assert "has no session" in await refusal(world, "consul.session.expire", "consul-1")


async def test_a_prefix_that_holds_keys_is_left_alone():
    world = datacenter()
    await world.hosts["consul-1"].api("PUT", "/v1/kv/hashidrill/obsolete/mine", body=b"1", agent="consul")
    assert "already holds 1 keys, like hashidrill/obsolete/mine" in await refusal(world, "consul.kv.bloat", keys=5)


async def test_obsolete_keys_are_counted_and_weighed_and_all_deleted():
    world = datacenter()
    entries = world.consul.kv.entries
    await world.hosts["consul-1"].api("PUT", "/v1/kv/hashidrill/obsolete-not", body=b"1", agent="consul")
    fault, undo = await in_force(world, "consul.kv.bloat", keys=200, value="1kB")
    bloat = dict(entries)
    first = next(key for key in bloat if key.startswith("hashidrill/obsolete/"))
    del entries[first]
    assert not (await fault.verify(undo, present=True)).ok
    entries[first] = replace(bloat[first], value=b"")
    assert not (await fault.verify(undo, present=True)).ok
    assert not (await fault.verify(undo, present=False)).ok
    await fault.revert(undo)
    assert list(entries) == ["hashidrill/obsolete-not"]
