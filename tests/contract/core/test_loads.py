"""Loads over real sockets: against a small fake Consul, servers that misbehave, and a process of their own."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import aiohttp
import anyio
import pytest

from fake_consul import FakeConsul, resets_reused_connections
from hashidrill.core import hypothesis
from hashidrill.core.engine.load_generator import LoadGenerator, LoadSpecification
from hashidrill.core.engine.monitor import Monitor
from hashidrill.core.errors import NOT_A_REPLY, DatacenterError, WaitTimeoutError
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.experiment.load_levels import Profile
from hashidrill.core.faults.base import NoParams
from hashidrill.core.hypothesis import Broken
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.core.loads.schedule import CANCELLED, REPORT_AFTER_S
from hashidrill.core.recording.journal import Clock
from hashidrill.core.util.wait import wait_until
from hashidrill.products.consul.loads.base import write_reply
from hashidrill.products.consul.loads.kv import KvRead, KvWrite, identify
from hashidrill.testing.recordings import RecordingBuilder
from tasks import running


def writes(**params):
    return KvWrite.Params.model_validate({"rate": "200/s", "keys": 20, "once": "0%", **params})


def reads(**params):
    return KvRead.Params.model_validate({"rate": "200/s", "keys": 20, **params})


async def offered_until(load, operations, enough):
    """Run a load until `enough(operations)`, then stop it."""

    async def check():
        if task.done():
            task.result()
        return enough(operations) or None, f"{len(operations)} operations"

    async with running(load.run(operations.append)) as task:
        await wait_until("enough operations", check, within_s=60)


async def hangs(consul, requests):
    """From now on it answers nothing; returns when so many requests wait for it."""
    consul.answering.clear()
    before = consul.came

    async def waiting():
        return consul.came - before >= requests or None, f"{consul.came - before} requests"

    await wait_until(f"{requests} requests that wait", waiting, within_s=20)


def at_least(count):
    return lambda operations: len(operations) >= count


# --- one request, sent at most once


async def test_aiohttp_by_itself_repeats_a_put_in_silence():
    """The trap: without our client the server gets the second write twice, and the caller hears of one error."""

    async with resets_reused_connections() as (url, bodies), aiohttp.ClientSession() as session:
        async with session.put(url, data=b"first") as reply:
            await reply.read()
        with pytest.raises(aiohttp.ClientError):
            await session.put(url, data=b"second")
    assert bodies == [b"first", b"second", b"second"]


async def test_a_write_is_sent_once_when_a_reused_connection_is_reset_after_it_was_read():
    async with resets_reused_connections() as (url, bodies), HttpClient() as client:
        first = await client.request("PUT", url, body=b"first", timeout_s=5)
        second = await client.request("PUT", url, body=b"second", timeout_s=5)
        first, second = write_reply(first), write_reply(second)
    assert bodies == [b"first", b"second"]
    assert first.outcome == "ok"
    assert second.outcome == "unknown"
    assert second.error.startswith("connection lost")


def test_a_refused_connection_is_a_failed_write():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused

        async def main():
            async with HttpClient() as client:
                url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
                return write_reply(await client.request("PUT", url, body=b"x", timeout_s=5))

        reply = asyncio.run(main())
    assert reply.outcome == "fail"
    assert "could not connect" in reply.error


async def test_a_timeout_is_an_unknown_write_and_keeps_to_its_time():
    async with FakeConsul().running() as consul, HttpClient() as client:
        consul.answering.clear()
        start = time.monotonic()
        answer = await client.request("PUT", f"{consul.url}/v1/kv/k", body=b"x", timeout_s=0.2)
        reply, took_s = write_reply(answer), time.monotonic() - start
    assert (reply.outcome, reply.error) == ("unknown", "no answer within 0.2s")
    assert 0.2 <= took_s < 1.0


@pytest.mark.lie
async def test_each_request_has_the_time_that_it_was_given_whatever_others_have():
    """Requests of one time-out share a timer, which must neither wait for the last one nor end with the first."""
    clock = time.monotonic
    async with FakeConsul().running() as consul, HttpClient() as client:
        consul.answering.clear()

        async def waits(at_s, timeout_s):
            await asyncio.sleep(at_s)
            start = clock()
            answer = await client.request("GET", f"{consul.url}/v1/kv/k", timeout_s=timeout_s)
            return answer.error, clock() - start - timeout_s

        ended = await asyncio.gather(*(waits(at_s, timeout_s) for at_s in (0.0, 0.1, 0.2) for timeout_s in (0.15, 0.4)))
    assert [error for error, _ in ended] == ["no answer within 0.15s", "no answer within 0.4s"] * 3
    assert all(-0.005 <= late_s < 0.3 for _, late_s in ended), ended


async def test_a_connection_that_does_not_stand_in_time_was_not_sent_anything():
    """A full backlog: the kernel answers no further SYN."""
    with socket.socket() as listens, contextlib.ExitStack() as held:
        listens.bind(("127.0.0.1", 0))
        listens.listen(0)
        for _ in range(4):
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listens.getsockname())
        async with HttpClient() as client:
            answer = await client.request("PUT", f"http://127.0.0.1:{listens.getsockname()[1]}/", timeout_s=0.2)
    assert (answer.status, answer.sent, answer.error) == (0, False, "could not connect within 0.2s")


def answered(*replies):
    """One request for each reply of a server that sends exactly these bytes; what the client made of them."""

    async def main():
        seen, serving = [], []

        async def serve(reader, writer):
            serving.append(asyncio.current_task())
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    seen.append(await reader.readuntil(b"\r\n\r\n"))
                    data, close = replies[len(seen) - 1]
                    writer.write(data)
                    if close:
                        break
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            async with HttpClient() as client:
                url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/x"
                answers = [await client.request("GET", url, timeout_s=0.3) for _ in replies]
            await asyncio.wait(serving)
            return answers, seen

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "close", "status", "body", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue", False, 200, b"true", ""),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ntr\r\n2\r\nue\r\n0\r\n\r\n",
            False,
            200,
            b"true",
            "",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1", False, 200, b"1", ""),
        (b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", True, 429, b"", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntr", True, 0, b"", "connection lost: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntr", False, 0, b"", "no answer within 0.3s"),
        (b"", True, 0, b"", "connection lost: "),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False, 0, b"", "not HTTP: "),
        # more than was asked for: the first is the answer, and the connection has no other request
        (2 * b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue", False, 200, b"true", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrueSSH-2.0\r\n", False, 200, b"true", ""),
    ],
)
def test_what_a_server_says_is_one_answer_and_does_not_spill_into_the_next(data, close, status, body, error):
    well = (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Consul-Index: 7\r\n\r\nnext", False)
    (first, second), seen = answered((data, close), well)
    assert (first.status, first.body, first.sent) == (status, body, True)
    assert first.error.startswith(error)
    assert bool(first.error) == bool(error)
    assert (second.status, second.body, second.headers["x-consul-index"]) == (200, b"next", "7")
    assert len(seen) == 2


async def test_a_request_that_is_cancelled_leaves_no_answer_for_the_next_one():
    async with FakeConsul(kv={"k": b"one"}).running() as consul, HttpClient() as client:
        consul.answering.clear()
        async with running(client.request("GET", f"{consul.url}/v1/kv/k?raw", timeout_s=5)):
            await asyncio.sleep(0.1)
        consul.answering.set()
        outcome = await client.request("GET", f"{consul.url}/v1/status/leader", timeout_s=5)
    assert outcome.body == b'"127.0.0.1:8300"'


async def test_requests_leave_from_the_local_address_asked_for():
    async with FakeConsul().running() as consul, HttpClient(local_address="127.0.0.77") as client:
        await client.request("PUT", f"{consul.url}/v1/kv/k", body=b"x", timeout_s=5)
    assert consul.peers == ["127.0.0.77"]


# --- the loads


IN_A_SMALL_WORLD = """
import asyncio, sys
from pathlib import Path
from pyroute2 import IPRoute
from hashidrill.core.loads.http_client import connected

async def main():
    made = []
    for port in (8500, 8501):
        await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", port, backlog=4096)
        for _ in range(60):
            made.append(await connected(asyncio.Protocol, "127.0.0.1", port, local=("127.0.0.1", 0)))
    print(len(made))

with IPRoute() as route:
    route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40099")
asyncio.run(main())
"""


@pytest.mark.lie
def test_a_connection_takes_its_port_when_it_connects_so_that_none_is_searched_among_all_that_are_in_use():
    """100 ports carry 60 connections to each of two servers; a port that is bound beforehand is nobody else's."""
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", IN_A_SMALL_WORLD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout.strip(), done.stderr) == ("120", "")


async def test_writes_are_recorded_as_they_arrived_and_read_back():
    operations = []

    async with FakeConsul().running() as consul:
        load = KvWrite("w", writes(value="512B"), LoadContext([consul.url], run_id="run"))
        await offered_until(load, operations, at_least(60))
        final = await load.final_reads()
    assert Counter(op.outcome for op in operations)["ok"] >= 60
    assert {len(body) for _, body in consul.puts} == {512}
    # the recording names each write that the server saw, and only those
    assert {(op.key, op.value) for op in operations if op.outcome == "ok"} <= {(k, identify(v)) for k, v in consul.puts}
    assert len({op.value for op in operations}) == len(operations)
    assert final == {key: identify(value) for key, value in consul.kv.items()}
    assert len(final) == 20
    assert set(consul.queries) == {"recurse&consistent"}


async def test_final_reads_of_large_values_go_key_by_key():
    async with FakeConsul().running() as consul:
        load = KvWrite("w", writes(value="512B", keys=100_000), LoadContext([consul.url], run_id="run"))
        consul.kv = {f"hashidrill/w/{n}": f"run.{n};xx".encode() for n in range(3)}
        keys = [f"hashidrill/w/{n}" for n in range(5)]
        async with load.client() as client:
            final, queries = await load._read_each(client, keys, 10), consul.queries
    assert final == {f"hashidrill/w/{n}": f"run.{n}" if n < 3 else None for n in range(5)}
    assert set(queries) == {"raw&consistent"}


async def test_a_lost_write_is_absent_from_the_final_reads():
    """The planted defect: a server that acknowledges writes and keeps none."""
    operations = []

    async with FakeConsul(lie=True).running() as consul:
        load = KvWrite("w", writes(), LoadContext([consul.url]))
        await offered_until(load, operations, at_least(25))
        outcome = await load.final_reads()
    assert outcome == {f"hashidrill/w/{n}": None for n in range(20)}
    assert "ok" in {op.outcome for op in operations}


@pytest.mark.long
async def test_writes_to_keys_of_their_own_are_read_back_folder_by_folder_and_deleted_at_the_end():
    operations = []

    async with FakeConsul().running() as consul:
        load = KvWrite("w", writes(value="64kB", once="90%"), LoadContext([consul.url], run_id="run"))
        await offered_until(load, operations, at_least(150))
        held, final = dict(consul.kv), await load.final_reads()
        await load.clean_up()
    assert final == {key: identify(value) for key, value in held.items()}
    once = [op.key for op in operations if op.key.startswith("hashidrill-once/w/run/")]
    assert len(once) == len(set(once))
    assert 0.85 < len(once) / len(operations) < 0.95
    folders = Counter(key.rpartition("/")[0] for key in once)
    assert max(folders.values()) == 15  # 1 MB of values in one answer
    assert set(consul.queries) == {"recurse&consistent"}
    assert len(consul.queries) == len(folders) + 1
    assert set(consul.kv) == {f"hashidrill/w/{n}" for n in range(len(operations) // 10 + 1)} & set(held)


async def test_keys_that_cannot_be_deleted_are_told_and_keep_nobody_waiting(monkeypatch):
    monkeypatch.setattr("hashidrill.products.consul.loads.kv._LEAVE_WITHIN_S", 0.3)
    samples = []

    async with FakeConsul().running() as consul:
        context = LoadContext([consul.url], emit_sample=lambda *sample: samples.append(sample))
        load = KvWrite("w", writes(once="100%"), context)
        await offered_until(load, [], at_least(25))
        consul.answering.clear()
        began = time.monotonic()
        await load.clean_up()
        outcome = time.monotonic() - began
    assert outcome < 5
    [(what, left, text)] = samples
    assert what == "left"
    assert left >= 25
    assert text.endswith("keys below hashidrill-once/w/run/ were not deleted")


@pytest.mark.lie
@pytest.mark.long
def test_a_consul_that_drops_one_write_in_a_hundred_is_caught_20_times_of_20(tmp_path):
    """The planted defect, over real sockets: every hundredth write is acknowledged and not kept, during the fault.

    20 stores of their own, five at a time: all at once were more connections than a busy machine could open. There are
    so many keys in turn that no lost write is overwritten, also where a busy machine makes more writes than were asked.
    """

    async def one(number):
        operations, clock = [], Clock()
        dropping = random.Random(number).randrange(100)
        async with FakeConsul(drops=lambda n: 50 <= n < 250 and n % 100 == dropping).running() as consul:
            params = writes(rate="100/s", keys=1000, once="90%", value="64B")
            load = KvWrite("w", params, LoadContext([consul.url], clock=clock))
            await offered_until(load, operations, at_least(300))
            return operations, await load.final_reads()

    async def main():
        fives = [await asyncio.gather(*map(one, range(first, first + 5))) for first in range(0, 20, 5)]
        return [each for five in fives for each in five]

    for number, (operations, finals) in enumerate(asyncio.run(main())):
        end_s = max(op.end_ns for op in operations) / 1e9
        acknowledged = sorted(op.end_ns for op in operations)
        run = RecordingBuilder(tmp_path / str(number)).phase("method", at=0).phase("recovery", at=end_s)
        run.fault("process.kill", at=acknowledged[50] / 1e9, until=acknowledged[250] / 1e9)
        for op in operations:
            run.write("w", op.key, op.value, start=op.start_ns / 1e9, end=op.end_ns / 1e9, outcome=op.outcome)
        run.only_final_reads("w", finals)
        with pytest.raises(Broken, match="w lost acknowledged writes on 2 keys"):
            hypothesis.get("no_acknowledged_write_lost").check(run.build(), {"load": "w"})


@pytest.mark.long
def test_final_reads_insist_until_the_datacenter_answers():
    async def main():
        async with FakeConsul().running() as consul:
            load = KvWrite("w", writes(), LoadContext([consul.url]))
            await offered_until(load, [], at_least(25))
            consul.kv_status = 500
            with pytest.raises(WaitTimeoutError, match="No cluster leader"):
                await load.final_reads(within_s=0.5)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(recover_soon, consul)
                return await load.final_reads(within_s=10)

    async def recover_soon(consul):
        await anyio.sleep(0.5)
        consul.kv_status = 0

    assert None not in asyncio.run(main()).values()


async def test_reads_find_the_keys_that_were_prepared_and_a_missing_one_is_an_error():
    operations = []

    missing = []
    async with FakeConsul().running() as consul:
        load = KvRead("r", reads(mode="consistent"), LoadContext([consul.url], run_id="run"))
        await load.prepare()
        assert len(consul.kv) == 20
        await offered_until(load, operations, at_least(40))
        assert {op.outcome for op in operations[:40]} == {"ok"}
        assert {op.value for op in operations[:40]} == {f"run.{n}" for n in range(20)}
        del consul.kv["hashidrill/r/7"]
        await offered_until(load, missing, at_least(40))
    assert set(consul.queries) == {"raw&consistent"}
    failed = {(op.key, op.status) for op in missing if op.outcome == "fail"}
    assert failed == {("hashidrill/r/7", 404)}


@pytest.mark.parametrize(("mode", "query"), [("default", "raw"), ("stale", "raw&stale")])
async def test_the_consistency_mode_reaches_consul(mode, query):
    async with FakeConsul().running() as consul:
        load = KvRead("r", reads(mode=mode), LoadContext([consul.url]))
        await load.prepare()
        await offered_until(load, [], at_least(5))
    assert set(consul.queries) == {query}


@pytest.mark.long
async def test_a_stall_of_the_server_shows_as_the_latency_that_users_had():
    """Over real sockets: operations due during the stall wait for its end, each its own time."""
    operations = []

    async with FakeConsul().running() as consul:
        context = LoadContext([consul.url])
        load, stalled_ns = KvWrite("w", writes(rate="100/s"), context), []

        async def stall():
            await anyio.sleep(0.5)
            consul.answering.clear()
            stalled_ns.append(context.clock.now_ns())
            await anyio.sleep(1.0)
            stalled_ns.append(context.clock.now_ns())
            consul.answering.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stall)
            await offered_until(load, operations, at_least(200))
        from_ns, to_ns = stalled_ns
    waited = [op for op in operations if from_ns < op.intended_ns < to_ns]
    assert abs(len(waited) - (to_ns - from_ns) / 10_000_000) <= 1
    assert all(op.end_ns >= to_ns for op in waited)
    assert max(op.end_ns - op.intended_ns for op in waited) >= 900_000_000


# --- the process


class Sink:
    def __init__(self):
        self.operations, self.samples = [], []

    def sample(self, t_ns, sample):
        self.samples.append((t_ns, sample))

    async def has(self, count):
        async def check():
            return len(self.operations) >= count or None, f"{len(self.operations)} operations"

        await wait_until(f"{count} operations", check, within_s=20)


def specification(consul, name="w", **params):
    return LoadSpecification(name, "consul.kv.write", writes(**params), [consul.url])


@pytest.mark.long
async def test_a_process_offers_loads_stops_them_and_reads_the_end():
    sink = Sink()

    clock = Clock()
    async with FakeConsul().running() as consul:
        async with LoadGenerator(clock, "run") as loads:
            read = LoadSpecification("r", "consul.kv.read", reads(), [consul.url])
            await loads.start([specification(consul), read], sink.operations.append, sink.sample)
            await sink.has(450)
            await hangs(consul, 20)
            await loads.stop()
            stopped = len(sink.operations)
            consul.answering.set()
            final = await loads.final_reads()
            assert len(sink.operations) == stopped
            pid = loads._process.pid
        _consul, end_ns = consul, clock.now_ns()
    assert set(final) == {"w"}
    assert len(final["w"]) == 20
    assert Counter(op.outcome for op in sink.operations)["ok"] >= 450
    in_flight = [op for op in sink.operations if op.outcome == "unknown"]
    assert {op.error for op in in_flight} == {CANCELLED}
    assert {op.load for op in in_flight} == {"w", "r"}
    # exactly once: each load's schedule has no gap and no double
    for load in ("w", "r"):
        intended = sorted(op.intended_ns for op in sink.operations if op.load == load)
        assert {late - early for early, late in itertools.pairwise(intended)} == {5_000_000}
    assert all(0 < op.intended_ns <= op.start_ns <= op.end_ns < end_ns for op in sink.operations)
    signals = {sample.signal for _, sample in sink.samples}
    assert signals == {"generator.cpu", "generator.lag", "w.level", "r.level"}
    assert all(0 <= sample.value < 2 and 0 < t_ns < end_ns for t_ns, sample in sink.samples)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.long
async def test_a_profile_begins_when_the_engine_says_so_and_its_level_is_sampled():
    sink = Sink()

    clock = Clock()
    profile = Profile.model_validate({"steps": ["300%", "50%"], "each": "500ms"})
    async with FakeConsul().running() as consul, LoadGenerator(clock, "run") as loads:
        steered = replace(specification(consul, "s", rate="10/s"), profile=None)
        loaded = [replace(specification(consul, rate="100/s"), profile=profile), steered]
        await loads.start(loaded, sink.operations.append, sink.sample)
        await sink.has(20)
        begun = clock.now_ns()
        await loads.begin(begun)
        await loads.level("s", 7.5)

        async def levels():
            seen = [sample.value for _, sample in sink.samples if sample.signal == "w.level"]
            return (0.5 in seen and seen[-1] == 1.0) or None, f"levels {seen}"

        await wait_until("the profile to end", levels, within_s=20)
        await loads.stop()
    due = [op.intended_ns - begun for op in sink.operations if op.load == "w"]
    assert sum(0 <= at < 500_000_000 for at in due) in range(149, 152)
    assert sum(500_000_000 <= at < 1_000_000_000 for at in due) in range(24, 27)
    sampled = {signal: [s.value for _, s in sink.samples if s.signal == signal] for signal in ("w.level", "s.level")}
    assert [value for n, value in enumerate(sampled["w.level"]) if value not in sampled["w.level"][:n]] == [1, 3, 0.5]
    assert sampled["s.level"][-1] == 7.5
    assert sum(op.load == "s" for op in sink.operations) / len(due) > 0.07


@pytest.mark.long
async def test_a_server_that_hangs_is_told_of_while_nothing_ends():
    """What the engine's guardrails need: which operations wait, and since when; and when they do not any more."""
    sink, waits = Sink(), []

    clock, monitor = Clock(), Monitor(["w"])
    p50 = Condition.parse("w.latency.p50 > 1s")

    def told(*waiting):
        waits.append(waiting)
        monitor.waiting(*waiting)

    def taken(operation):
        sink.operations.append(operation)
        monitor.operation(operation)

    async def over(limit_s):
        p50_s = monitor.reading(p50, clock.now_ns(), 1.0).figure
        return (p50_s > limit_s if limit_s else p50_s < 0.2) or None, f"p50 {p50_s}"

    async with FakeConsul().running() as consul, LoadGenerator(clock, "run") as loads:
        await loads.start([specification(consul, rate="50/s")], taken, sink.sample, told)
        await sink.has(20)
        early, before = [due for _, begun, _ in waits for due in begun], len(sink.operations)
        consul.answering.clear()
        await wait_until("the stall to be seen", lambda: over(2.0), within_s=20)
        ended = len(sink.operations) - before
        consul.answering.set()
        await wait_until("its end to be seen", lambda: over(0), within_s=20)
        await loads.stop()
    assert ended < 50  # it was seen while nothing came back
    took_s = {op.intended_ns: (op.end_ns - op.intended_ns) / 1e9 for op in sink.operations}
    assert all(took_s[due] > REPORT_AFTER_S for due in early), "none is told of before it has waited"
    begun = sorted(due for _, begun, _ in waits for due in begun)
    assert begun == sorted(due for _, _, ended in waits for due in ended)
    slow = {due for due, seconds in took_s.items() if seconds > 1}  # with room for a look that comes late
    assert len(slow) > 30
    assert slow <= set(begun) <= set(took_s)


async def test_what_is_in_flight_when_the_run_is_cancelled_is_recorded_as_unknown():
    sink = Sink()

    async with FakeConsul().running() as consul:
        with anyio.CancelScope() as scope:
            async with LoadGenerator(Clock(), "run") as loads:
                await loads.start([specification(consul)], sink.operations.append, sink.sample)
                await sink.has(20)
                await hangs(consul, 30)
                scope.cancel()
                await anyio.sleep_forever()
    assert loads._process.returncode == 0
    assert sum(op.outcome == "unknown" for op in sink.operations) >= 30


def test_an_error_in_the_block_comes_out_as_it_is():
    async def main():
        async with FakeConsul().running() as consul, LoadGenerator(Clock(), "run") as loads:
            await loads.start([specification(consul)], lambda _: None, lambda _t, _s: None)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())


def test_a_generator_that_is_killed_ends_the_run_and_says_so():
    async def main():
        async with FakeConsul().running() as consul, LoadGenerator(Clock(), "run") as loads:
            await loads.start([specification(consul)], lambda _: None, lambda _t, _s: None)
            os.kill(loads._process.pid, signal.SIGKILL)
            await anyio.sleep(20)
            raise AssertionError("the block went on without a generator")

    with pytest.raises(DatacenterError, match="ended by itself with exit code -9"):
        asyncio.run(main())


def test_a_bug_in_a_load_ends_the_run_with_its_reason():
    async def main():
        async with LoadGenerator(Clock(), "run") as loads:
            nothing = LoadSpecification("w", "consul.kv.write", writes(), [])
            await loads.start([nothing], lambda _: None, lambda _t, _s: None)

    with pytest.raises(DatacenterError, match="load 'w' has no agent to talk to"):
        asyncio.run(main())


CARELESS = """
from hashidrill import BaseLoad, NoParams

class Careless(BaseLoad):
    kind = "careless"
    Params = NoParams

    async def run(self, emit):
        raise OSError("no route")
"""


def test_a_load_that_raises_is_named_with_its_line(tmp_path, monkeypatch):
    """It comes from another package, whose author sees it first."""
    (tmp_path / "careless.py").write_text(CARELESS)
    (tmp_path / "careless-1.dist-info").mkdir()
    (tmp_path / "careless-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: careless\nVersion: 1\n")
    (tmp_path / "careless-1.dist-info" / "entry_points.txt").write_text(
        "[hashidrill.loads]\ncareless = careless:Careless\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def main():
        async with LoadGenerator(Clock(), "run") as loads:
            await loads.start([LoadSpecification("w", "careless", NoParams(), [])], lambda _: None, lambda _t, _s: None)
            await anyio.sleep(20)

    with pytest.raises(DatacenterError, match=rf"load w: OSError at .*careless.py:9: no route; {NOT_A_REPLY}"):
        asyncio.run(main())


async def test_sigterm_stops_the_loads_and_ends_the_process():
    sink = Sink()

    async with FakeConsul().running() as consul, LoadGenerator(Clock(), "run") as loads:
        await loads.start([specification(consul)], sink.operations.append, sink.sample)
        await sink.has(20)
        await hangs(consul, 20)
        loads._closing = True  # its end is wanted
        os.kill(loads._process.pid, signal.SIGTERM)
        with anyio.fail_after(5):
            outcome = await loads._process.wait()
    assert outcome == 0
    assert sum(op.outcome == "unknown" for op in sink.operations) >= 20


async def test_the_process_dies_with_a_parent_that_was_killed(tmp_path):
    """SIGKILL of the parent, with stdin held open by somebody else: only the kernel can tell the child."""
    script = (
        "import os, subprocess, sys\n"
        "read, write = os.pipe()\n"
        "os.set_inheritable(write, True)\n"
        f"child = subprocess.Popen([{sys.executable!r}, '-m', 'hashidrill.core.loads.in_generator'], stdin=read,"
        " stdout=subprocess.PIPE, pass_fds=[write])\n"
        "print(child.pid, flush=True)\n"
        "import time; time.sleep(60)\n"
    )

    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    child = int(await parent.stdout.readline())

    async def protected():
        return _ignores_interrupts(child) or None, "it does not ignore SIGINT yet"

    async def gone():
        return not _lives(child) or None, "still there"

    await wait_until("the child to be up", protected, within_s=20)
    assert _lives(child)
    parent.kill()
    await parent.wait()
    await wait_until("the child to be gone", gone, within_s=5)


def _lives(pid):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    return False


def _ignores_interrupts(pid):
    """The first thing that the process does: from then on it is set to die with its parent."""
    ignored = int(Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split()[0], 16)
    return bool(ignored & (1 << (signal.SIGINT - 1)))
