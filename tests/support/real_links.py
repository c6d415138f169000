"""Inside of a sandbox: starts a real datacenter and checks faults on links in it. One JSON line a case.

python real_links.py CONSUL ROOT VERSION TOXIPROXY CASES DISARMED

The last two are JSON: which numbers of LINK_CASES are checked, and which of DISARMED, as [kind, by].
"""

import http.client
import json
import signal
import socket
import sys
import time
from pathlib import Path

import anyio
import httpx2

from fault_cases import LINK_CASES, nature, without_rules
from hashidrill.core.experiment.datacenter import Disk
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.units import Size
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.local.datacenter import LOAD_ADDRESS, LocalDatacenter
from hashidrill.products.consul.model import Consul
from hashidrill.testing.faults import check_fault
from told_cases import disarmed, fault_of, say, told

OPERATIONS = frozenset({"fsync", "write", "read"})


async def _flush_rules(host, _undo):
    await without_rules(host)


async def _answers(host):
    async def answers():
        return (True if await host.agent_answers("consul", 0.5) else None), "no answer"

    await wait_until("the agent to answer", answers, within_s=20)


async def _delete_toxics(host, undo, proxy=""):
    """By hand, through toxiproxy's own API."""
    async with httpx2.AsyncClient(base_url=f"http://{host.address}:8474", trust_env=False) as client:
        for toxic in (await client.get(f"/proxies/{undo['table']}{proxy}/toxics")).json():
            await client.delete(f"/proxies/{undo['table']}{proxy}/toxics/{toxic['name']}")


async def _delete_toxics_of_the_canary(host, undo):
    await _delete_toxics(host, undo, "_canary")


async def _kill_toxiproxy(host, _undo):
    process = await host.agent_process("toxiproxy")
    await host.signal(process.reference, signal.SIGKILL)


async def _stop_toxiproxy(host, _undo):
    """Its revert has to do without it."""
    process = await host.agent_process("toxiproxy")
    await host.signal(process.reference, signal.SIGSTOP)


_LINK = {"port": 8500, "from": "clients"}
DISARMED = (
    ("network.latency", {**_LINK, "delay": "100ms"}, _delete_toxics),
    ("network.latency", {**_LINK, "delay": "100ms"}, _delete_toxics_of_the_canary),
    ("network.latency", {**_LINK, "delay": "100ms"}, _flush_rules),
    ("network.latency", {**_LINK, "delay": "100ms"}, _kill_toxiproxy),
    ("network.latency", {**_LINK, "delay": "100ms"}, _stop_toxiproxy),
    ("network.bandwidth", {**_LINK, "rate": "64kB/s"}, _delete_toxics_of_the_canary),
    ("network.timeout", _LINK, _delete_toxics_of_the_canary),
    ("network.reset", _LINK, _flush_rules),
    ("network.slow_close", {**_LINK, "delay": "200ms"}, _delete_toxics_of_the_canary),
    ("network.slicer", _LINK, _delete_toxics_of_the_canary),
    ("network.limit_data", {**_LINK, "bytes": "2kB"}, _flush_rules),
    ("toxiproxy.toxic", {**_LINK, "type": "latency", "attributes": {"latency": 100}}, _delete_toxics),
)


async def _old_connections(datacenter) -> dict:
    """What happens to connections of the loads' address that are older than a fault, or than its end."""
    address = datacenter.hosts["client-1"].address
    fault = fault_of(datacenter, "network.latency", {"port": 8500, "delay": "200ms"})
    [target] = await datacenter.select("host:client-1")
    undo = fault.plan(target, fault_id="old")

    def connected():
        return socket.create_connection((address, 8500), timeout=3, source_address=(LOAD_ADDRESS, 0))

    def asked(connection) -> float:
        began = time.monotonic()
        connection.sendall(b"GET /v1/status/leader HTTP/1.1\r\nHost: c\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        try:
            answer.begin()
            answer.read()  # all of it, or what is left would be the next one's answer
        except http.client.RemoteDisconnected:
            raise ConnectionResetError("end of the connection") from None
        return time.monotonic() - began

    def fate(connection) -> str:
        try:
            return f"answered after {asked(connection):.3f}s"
        except OSError as error:
            return type(error).__name__

    def at_best(connection) -> float:
        """Of several: a busy machine answers late now and then, and a link that is slow is so each time."""
        return min(asked(connection) for _ in range(8))

    with connected() as older:
        before = at_best(older)
        await fault.apply(undo)
        try:
            at_apply = fate(older)
            proxied = connected()
            during = at_best(proxied)
            waiting = connected()
            asked(waiting)
        finally:
            await fault.revert(undo)
    with proxied, waiting, connected() as newer:
        waiting.settimeout(10)
        return {
            "before_s": before,
            "older": at_apply,
            "during_s": during,
            "proxied": fate(proxied),
            "waiting": waiting.recv(1) == b"",
            "after_s": at_best(newer),
        }


async def main() -> None:
    spec = DatacenterSpec(
        consul=Consul(version=sys.argv[3], config={"performance": {"raft_multiplier": 1}}),
        disk=Disk(size=Size("256MB")),
    )
    binaries = {"consul": Path(sys.argv[1]), "toxiproxy-server": Path(sys.argv[4])}
    datacenter = LocalDatacenter(spec, Path(sys.argv[2]), binaries, OPERATIONS)
    await datacenter.start()
    await datacenter.wait_ready()
    for kind, params in [LINK_CASES[number] for number in json.loads(sys.argv[5])]:
        await told({"kind": kind, "params": params}, _check(datacenter, kind, params), under="")
    for kind, by in json.loads(sys.argv[6]):
        [(params, disarm)] = [case[1:] for case in DISARMED if (case[0], case[2].__name__.strip("_")) == (kind, by)]
        await told({"disarmed": kind, "by": by}, _unseen(datacenter, kind, params, disarm))
    say(connections=await _old_connections(datacenter))


async def _check(datacenter, kind, params):
    [target] = await datacenter.select("host:consul-2")
    report = await check_fault(fault_of(datacenter, kind, params), lambda: target, **nature(kind))
    found = {"asked": report.present.asked, "measured": report.present.measured, "gone": report.gone.measured}
    return {**found, "figures": dict(report.present.figures)}


async def _unseen(datacenter, kind, params, disarm):
    [target] = await datacenter.select("host:consul-2")
    host = datacenter.hosts[target.host]
    fault = fault_of(datacenter, kind, params)
    found = await disarmed(fault, target, lambda undo: disarm(host, undo), within_s=20, noticed_within_s=0)
    await _answers(host)
    return found


anyio.run(main)
