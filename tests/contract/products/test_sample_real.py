"""The programs of the sample over real sockets: a store, a cache before it, and a pool that is full."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest

from hashidrill.core.loads.base import LoadContext
from hashidrill.products.sample import program
from hashidrill.products.sample.loads import Checks, Logs

WITHIN_S = 20.0


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    with contextlib.closing(connection):
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read()


@pytest.fixture
def serve(tmp_path):
    """Starts a program as an agent is started: its source in the command, its configuration in a file."""
    running = []

    def start(name, **told):
        port = free_port()
        config = tmp_path / f"{name}-{port}.json"
        config.write_text(json.dumps({"program": name, "address": "127.0.0.1", "port": port, **told}))
        source = Path(program.__file__).read_text()
        running.append(subprocess.Popen([sys.executable, "-c", source, str(config)]))
        ends = time.monotonic() + WITHIN_S
        while True:
            with contextlib.suppress(OSError):
                assert get(port, program.HEALTH) == (200, b"ok")
                return port
            assert running[-1].poll() is None, "it ended"
            assert time.monotonic() < ends
            threading.Event().wait(0.02)

    yield start
    for process in running:
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        process.wait()
        ends = time.monotonic() + WITHIN_S
        while any(
            Path(f"/proc/{pid}/cmdline").exists() and b"-c" in Path(f"/proc/{pid}/cmdline").read_bytes()
            for pid in workers
        ):
            assert time.monotonic() < ends, "a process of a killed program lives on"
            threading.Event().wait(0.02)


def test_a_cache_answers_what_the_store_has_and_goes_on_without_it(serve, tmp_path):
    store = serve("store", takes_s=0.01)
    data = tmp_path / "data"
    data.mkdir()
    told = {"store": f"http://127.0.0.1:{store}", "data": str(data), "bypass_after_s": None, "off_for_s": 5}
    cache = serve("cache", **told)
    status, body = get(cache, "/a/b")
    assert (status, body) == get(store, "/a/b")
    assert [file.read_bytes() for file in data.iterdir()] == [body]
    alone = serve("cache", **{**told, "store": f"http://127.0.0.1:{free_port()}"})
    assert get(alone, "/a/b") == (200, body)
    assert get(alone, "/new")[0] == 502


@pytest.mark.long
def test_a_pool_that_is_full_lets_requests_wait_and_still_says_that_it_is_there(serve):
    store = serve("store", takes_s=0.2)
    told = {"at_least": 1, "most": 1, "grows_every_s": 60, "calls": 2, "leaks": 0}
    pool = serve("pool", store=f"http://127.0.0.1:{store}", **told)
    took = []

    def ask(n):
        began = time.monotonic()
        assert get(pool, f"/{n}")[0] == 200
        took.append(time.monotonic() - began)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    assert get(pool, program.HEALTH) == (200, b"ok")
    assert any(thread.is_alive() for thread in threads), "it waited as well"
    for thread in threads:
        thread.join()
    assert min(took) >= 0.4
    assert max(took) >= 1.2, "three requests of 0.4 s did not wait for one worker"


def logged(url, *, rate, for_s):
    """The operations of a load of logs, its final reads, and the last sample of each of its signals."""
    operations, samples = [], {}
    context = LoadContext([url], emit_sample=lambda what, value, _text: samples.__setitem__(what, value))
    it = Logs("logs", Logs.Params.model_validate({"rate": rate, "via": "sample:nodes"}), context)

    async def offer():
        await it.prepare()
        with anyio.move_on_after(for_s):
            await it.run(operations.append)
        return await it.final_reads()

    finals = anyio.run(offer)
    return operations, finals, samples


@pytest.mark.long
@pytest.mark.parametrize("parse", ["node", "tier"])
def test_a_pipeline_that_is_offered_too_much_loses_it_or_sheds_it(serve, tmp_path, parse):
    """More than twice what parsing and search can do: parsed on the node it is lost, in a tier only search lacks it."""
    url = "http://127.0.0.1:{}".format
    data = tmp_path / "data"
    data.mkdir()
    told = {"searcher": url(serve("searcher", takes_s=0.05, room=2)), "takes_s": 0.05, "room": 2}
    if parse == "node":
        first = serve("parser", archive=None, **told)
    else:
        first = serve(
            "node", at_once=50, tier=url(serve("parser", archive=url(serve("archive", data=str(data))), **told))
        )
    operations, finals, counted = logged(url(first), rate="50/s", for_s=2.0)
    good = [op for op in operations if op.outcome == "ok"]
    assert len(good) >= 50
    missing = [op.key for op in good if finals[op.key] is None]
    assert all(finals[op.key] in (None, op.value) for op in good)
    unsettled = sum(op.outcome == "unknown" for op in operations)
    lost = counted["dropped" if parse == "node" else "shed"]
    assert 10 <= len(good) - counted["indexed"] <= lost <= len(good) - counted["indexed"] + unsettled
    assert len(missing) == (0 if parse == "tier" else len(good) - counted["indexed"])
    assert counted["waiting"] == 0


CHECKER = {"every_s": 1, "timeout_s": 3, "workers": 2, "report_takes_s": 0.002, "most": 100}


@pytest.fixture
def checks(serve):
    """What a checker of these checks knows, through a load, once `until` holds of its samples."""

    def start(count, *, until, targets=1, **told):
        places = [("127.0.0.1", free_port()) for _ in range(2)]
        for place in places[:targets]:
            serve("backend", listens=place)
        port = serve("checker", targets=places, **{**CHECKER, **told})
        samples, operations = {}, []
        context = LoadContext(
            [f"http://127.0.0.1:{port}"], emit_sample=lambda what, value, _: samples.__setitem__(what, value)
        )
        params = {"checks": count, "rate": "10/s", "via": "sample:checkers"}
        it = Checks("checks", Checks.Params.model_validate(params), context)

        async def offer():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(it.run, operations.append)
                with anyio.fail_after(WITHIN_S):
                    while not (samples and until(samples)):
                        await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()

        anyio.run(offer)
        return samples, operations

    return start


@pytest.mark.long
@pytest.mark.parametrize(("workers", "reports"), [(2, "all"), (2, "changes"), (0, "all")])
def test_a_checker_finds_the_half_of_its_targets_that_refuse_connections(checks, workers, reports):
    samples, operations = checks(20, until=lambda seen: seen["down"] == 0.5, workers=workers, reports=reports)
    assert samples["checks"] == 20
    assert {op.outcome for op in operations} <= {"ok", "unknown"}


@pytest.mark.lie
@pytest.mark.long
def test_results_that_wait_for_longer_than_the_timeout_are_unknown_and_late(checks):
    """A hundred checks a second, each of whose results takes 50 ms: five times what one process can do."""
    told = {"reports": "all", "targets": 2, "timeout_s": 0.2, "report_takes_s": 0.05}
    samples, _ = checks(100, until=lambda seen: seen["unknown"] > 50, **told)
    assert samples["late"] > 0.2


@pytest.mark.lie
@pytest.mark.long
def test_checks_of_one_event_loop_begin_late_and_their_results_are_known(checks):
    """A hundred checks a second, each of whose results takes 20 ms. Planted: processes that report changes."""
    told = {"targets": 2, "timeout_s": 3, "report_takes_s": 0.02}
    samples, _ = checks(100, until=lambda seen: seen["late"] > 0.7, workers=0, reports="all", **told)
    assert samples["unknown"] == 0
    late = []
    checks(100, until=lambda seen: late.append(seen["late"]) or len(late) > 60, workers=2, reports="changes", **told)
    assert max(late) < 0.7


@pytest.mark.long
def test_changes_are_all_that_many_checks_cost_and_more_than_the_most_are_refused(checks):
    """Each message takes 50 ms, and a hundred results a second would not be taken in."""
    samples, _ = checks(100, until=lambda seen: seen["down"] == 0.5, reports="changes", report_takes_s=0.05)
    assert samples["unknown"] == 0
    _, operations = checks(101, until=lambda seen: "late" in seen, reports="changes")
    assert {(op.outcome, op.status) for op in operations if op.outcome != "unknown"} == {("fail", 429)}
