"""Inside of a sandbox: starts a real datacenter and checks the faults of Consul in it. One JSON line a case.

python real_consul_faults.py CONSUL ROOT VERSION [KIND...]
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import anyio

from consul_fault_cases import DISARMED, WHOLE, cases_of, disarmed_of
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import HashidrillError, WaitTimeoutError
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.consul import api
from hashidrill.products.consul.loads.streams import RPC_PORT, SubscribeConnection
from hashidrill.products.consul.model import Consul
from hashidrill.testing.faults import check_fault
from told_cases import disarmed, fault_of, told

TRANSFER = "/v1/operator/raft/transfer-leader"
VIEWS = 5
STREAMS, IN_PROCESS = "consul.grpc.server.streams", {"server_type": "in-process"}
ELECTIONS = {"1.22.2": 10, "1.10.3": 6}


async def target_of(datacenter, on):
    await datacenter.wait_ready()
    await settled(datacenter)
    return (await datacenter.select(on))[0]


async def settled(datacenter):
    """Every server agrees on who leads, and all are voters: what one case did is over before the next begins."""

    async def agree():
        try:
            leaders = {await api.get(host, "/v1/status/leader") for host in api.servers_of(datacenter)}
            voters = [peer for peer in await api.peers(datacenter) if peer.voter]
        except HashidrillError as error:
            return None, str(error)
        fine = len(leaders) == 1 and all(leaders) and len(voters) == len(api.servers_of(datacenter))
        return (True if fine else None), f"leaders {leaders}, {len(voters)} voters"

    await wait_until("the servers to agree", agree, within_s=60)


async def stage(datacenter, on):
    """What a fault needs to find: sessions that hold locks."""
    host = datacenter.hosts[(await datacenter.select(on))[0].host]
    for name in ("lock of a job", "another"):
        body = json.dumps({"Name": name, "LockDelay": "0s"}).encode()
        session = (await host.api("PUT", "/v1/session/create", body=body, agent="consul")).json()["ID"]
        await host.api("PUT", f"/v1/kv/locks/{session}", params={"acquire": session}, body=b"mine", agent="consul")


async def checked(datacenter, kind, params, on):
    target = await target_of(datacenter, on)
    if kind == "consul.session.expire":
        await stage(datacenter, on)
    if params.get("to") == "?":
        params = {"to": [host.name for host in api.servers_of(datacenter) if host.name != target.host][-1]}
    config = await datacenter.hosts[target.host].agent_config("consul")
    fault = fault_of(datacenter, kind, params)
    momentary = kind in ("consul.leader.transfer", "consul.session.expire")
    report = await check_fault(fault, target, momentary=momentary)
    assert await datacenter.hosts[target.host].agent_config("consul") == config, "its configuration differs"
    for host in api.servers_of(datacenter):
        assert not await host.packet_tables(), f"{host.name} has rules left"
    roles = {host.name: host.role for host in datacenter.hosts.values()}
    assert [roles[f"consul-{n}"] for n in (1, 2, 3, 4)] == ["server"] * 3 + ["spare"], roles
    return {
        "asked": report.present.asked,
        "measured": report.present.measured,
        "gone": report.gone.measured,
        "figures": dict(report.present.figures),
    }


async def unseen(datacenter, kind, params, on, disarm):
    """Taken away behind its back: the observer must not say that it is there."""
    target = await target_of(datacenter, on)
    if kind == "consul.session.expire":
        await stage(datacenter, on)
    host = datacenter.hosts[target.host]
    before = (await host.api("GET", "/v1/snapshot", agent="consul")).body
    fault = fault_of(datacenter, kind, params)
    return await disarmed(fault, target, lambda undo: disarm(datacenter, host, undo, before))


async def refused(datacenter):
    """Configuration that Consul does not take, and a majority that would be lost: nothing may be touched."""
    target = await target_of(datacenter, "consul:one-follower")
    said = {}
    for name, settings in (("key", {"raft_snapshot_thresold": 5}), ("value", {"raft_snapshot_threshold": "many"})):
        said[name] = await _refusal(datacenter, "consul.config", {"set": settings}, target)
    leader = await api.leader_of(datacenter)
    other = next(host for host in api.servers_of(datacenter) if host.name not in (target.host, leader))
    await other.stop_agent("consul")
    process = await datacenter.hosts[target.host].agent_process("consul")

    async def ask(kind, params):
        said[f"{kind} without a majority"] = await _refusal(datacenter, kind, params, target)

    # side by side: each waits for the server to come back, and after some seconds autopilot takes a dead one out
    async with anyio.create_task_group() as both:
        both.start_soon(ask, "consul.config", {"set": {"performance": {"raft_multiplier": 2}}})
        both.start_soon(ask, "consul.leader.avoid", {})
    untouched = process == await datacenter.hosts[target.host].agent_process("consul")
    await other.start_agent("consul")
    return {**said, "untouched": untouched}


async def _refusal(datacenter, kind, params, target):
    try:
        await planned(fault_of(datacenter, kind, params), target, "refused")
    except HashidrillError as error:
        return str(error)
    return ""


async def elections(datacenter, count):
    """Who wins so many elections while one server is avoided: the leader is killed, or asked to hand over to it."""
    target = await target_of(datacenter, "consul:leader")
    fault = fault_of(datacenter, "consul.leader.avoid", {})
    undo = await planned(fault, target, "elections")
    await fault.apply(undo)
    wins, longest, can_ask = Counter(), 0.0, not sys.argv[3].startswith("1.10.3")
    try:
        for number in range(count):
            await settled(datacenter)
            leader = await api.leader_of(datacenter)
            began = time.monotonic()
            if number % 2 and can_ask:
                params = {"id": undo["prior"]["voters"][target.host]}
                await datacenter.hosts[leader].api("POST", TRANSFER, params=params, timeout_s=20, agent="consul")
                winner = await _elected(datacenter, [])
            else:
                winner = await _killed(datacenter, leader)
            longest = max(longest, time.monotonic() - began)
            wins[winner] += 1
    finally:
        await fault.revert(undo)
    return {"avoided": target.host, "wins": wins, "longest_s": round(longest, 2)}


async def _killed(datacenter, leader):
    host = datacenter.hosts[leader]
    process = await host.agent_process("consul")
    await host.signal(process.reference, signal.SIGKILL)
    try:
        return await _elected(datacenter, [leader], within_s=8)
    except WaitTimeoutError:  # the avoided one has the newest entry: of two servers only it could win
        await host.start_agent("consul")
        return await _elected(datacenter, [])
    finally:
        await host.start_agent("consul")


async def _elected(datacenter, but, within_s=30):
    wanted = [host.name for host in api.servers_of(datacenter) if host.name not in but]
    return await api.wait_for_leader(datacenter, "an election", wanted, within_s=within_s)


async def gathered(datacenter):
    """Each server in turn has all streams of the agent, those from before too. {server: streams that each has}."""
    agent, seen = datacenter.hosts["client-1"], {}
    await settled(datacenter)
    for turn, server in enumerate([host.name for host in api.servers_of(datacenter)]):
        fault = fault_of(datacenter, "consul.streams.gather", {})
        undo = await planned(fault, await target_of(datacenter, f"host:{server}"), f"gather-{server}")
        await fault.apply(undo)
        try:
            for number in range(turn * VIEWS, (turn + 1) * VIEWS):
                await _view(agent, number)
            seen[server] = await _streams_on(datacenter, server, (turn + 1) * VIEWS)
        finally:
            await fault.revert(undo)
    return seen


async def too_new(datacenter):
    return await _refusal(datacenter, "consul.streams.gather", {}, await target_of(datacenter, "consul:leader"))


async def _view(agent, number):
    """Opened in the agent. The one that finds that its connection is cut is an error, and is asked for again."""
    view = {"cached": "", "tag": f"t{number}"}

    async def asked():
        try:
            answer = await agent.api("GET", "/v1/health/service/watched", params=view, agent="consul")
        except HashidrillError as error:
            return None, str(error)
        return (True if answer.status == 200 else None), f"HTTP {answer.status}: {answer.body!r}"

    await wait_until(f"view {number}", asked, within_s=30)


async def _told_again(server):
    """Has a server count its streams and tell the gauge again: one of ours comes, gets its first event, and goes.

    What the gauge told last may be wrong for as long as no other stream comes or goes: each counts, and then tells, in
    two steps (`activeStreamCounter.Intercept`, agent/grpc/stats.go), so that of five that end with their connection the
    last to tell may be the third to have counted. One such gauge said 3 for 40 s, while all 10 streams were elsewhere.
    """
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # the next look asks again
        _, connection = await loop.create_connection(SubscribeConnection, server.address, RPC_PORT)
        with contextlib.closing(connection), anyio.move_on_after(1):
            connection.subscribe("watched", lambda _event: begun.set())
            await begun.wait()


async def _streams_on(datacenter, server, count):
    """Streams of each server, once so many are on this one alone. A gauge is told when it changes, for some seconds."""
    known = {}

    async def look():
        # a server learns that a stream's other end is gone when it has something to send
        service = {"Service": "watched", "Meta": {"at": str(time.monotonic_ns())}}
        body = json.dumps({"Node": "elsewhere", "Address": "192.0.2.1", "Service": service}).encode()
        await datacenter.hosts[server].api("PUT", "/v1/catalog/register", body=body, agent="consul")
        for host in api.servers_of(datacenter):
            try:
                said = (await api.get(host, "/v1/agent/metrics"))["Gauges"]
            except HashidrillError:  # 1.22 cannot say its metrics while one of them is not a number
                continue
            of = [gauge["Value"] for gauge in said if gauge["Name"] == STREAMS and gauge["Labels"] != IN_PROCESS]
            if of:
                known[host.name] = sum(of)
            await _told_again(host)  # after it: ours is over by the next look
        elsewhere = any(streams for name, streams in known.items() if name != server)
        there = known.get(server, 0) >= count and not elsewhere
        return (dict(known) if there else None), f"{known} of {count}"

    return await wait_until(f"{count} streams on {server}", look, within_s=40, gap_s=0.5)


async def main():
    run, only = sys.argv[3], sys.argv[4:]
    version = run.partition(" ")[0]
    spec = DatacenterSpec(consul=Consul(version=version, config={"performance": {"raft_multiplier": 1}}))
    root = Path(sys.argv[2])
    datacenter = LocalDatacenter(
        spec, root, {"consul": Path(sys.argv[1])}, spare_servers=1, artifacts=root / "artifacts"
    )
    await datacenter.start()
    for kind, params, on in cases_of(run):
        if not only or kind in only:
            await told({"kind": kind, "params": params, "on": on}, checked(datacenter, kind, params, on))
    for kind, params, on, name in disarmed_of(run):
        if not only or kind in only:
            doing = unseen(datacenter, kind, params, on, DISARMED[name])
            await told({"disarmed": kind, "by": name}, doing)
    if not only and run not in WHOLE:
        await told({"gathered": True}, gathered(datacenter))
    elif not only:
        await told({"refused": True}, refused(datacenter))
        if version != "1.10.3":
            await told({"too new": True}, too_new(datacenter))
        await told({"elections": True}, elections(datacenter, ELECTIONS[version]))


if __name__ == "__main__":
    anyio.run(main)
