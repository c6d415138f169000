"""Several load generators in processes of their own, over TLS: what one generator offers, and how each of them ends."""

import asyncio
import os
import signal
import ssl
import tempfile
from pathlib import Path

import psutil
import pytest

from fake_consul import FakeConsul
from hashidrill.core.engine.load_generator import LoadGenerator, LoadSpecification
from hashidrill.core.errors import DatacenterError
from hashidrill.core.protocols.abc import Sample
from hashidrill.core.recording.journal import Clock
from hashidrill.core.util.wait import wait_until
from hashidrill.products.consul.loads.kv import KvWrite
from hashidrill.staging.generators.link import Kind, json_frame
from hashidrill.staging.generators.remote import dialed_by
from hashidrill.staging.generators.secrecy import Identity
from hashidrill.staging.generators.spawners import LocalSpawner
from hashidrill.staging.generators.worker import FOLDER

pytestmark = pytest.mark.long

FLEET = {"spawner": "local", "workers": 3, "lease_s": 15.0}
TOKEN = "0f1e2d3c-token-of-consul"


class Heard:
    """What came out of a load generator."""

    def __init__(self):
        self.operations, self.samples = [], []

    def sample(self, _t_ns: int, sample: Sample):
        self.samples.append(sample)

    async def has(self, number):
        """The first so many: a worker that the machine holds up may be behind the others."""

        async def enough():
            seen = {one for one in self.numbers() if one < number}
            return len(seen) == number or None, f"{len(seen)} of them, and {len(self.operations)} operations"

        await wait_until(f"the first {number} operations", enough, within_s=60)

    def numbers(self):
        """Of the operations, as one generator counts them."""
        return [numbered(op) for op in self.operations]


def numbered(operation):
    return int(operation.value.rpartition(".")[2])


def writes(consul, rate="60/s"):
    params = KvWrite.Params.model_validate({"rate": rate, "keys": 7, "once": "50%"})
    return LoadSpecification("kv", KvWrite.kind, params, [consul.url])


def offered(enough=90, meanwhile=None, **more):
    """A run of loads, as the engine goes about it: (what came out, the final reads, what `meanwhile` returned)."""
    heard = Heard()

    async def main():
        async with FakeConsul().running() as consul, LoadGenerator(Clock(), "run", **more) as loads:
            await loads.start([writes(consul)], heard.operations.append, heard.sample)
            found = None if meanwhile is None else await meanwhile(loads)
            await heard.has(enough)
            await loads.stop()
            return await loads.final_reads(), found

    final, found = asyncio.run(main())
    return heard, final, found


def below(loads):
    """The workers' processes."""
    every = psutil.Process(loads._process.pid).children(recursive=True)
    return [process for process in every if "hashidrill.staging.generators.worker" in process.cmdline()]


def test_three_workers_write_what_one_generator_writes():
    alone, read_alone, _ = offered()
    together, read, _ = offered(fleet=FLEET)
    for heard in (alone, together):
        numbers = sorted(heard.numbers())
        # stopped at moments of their own: the last few may lack one between them
        assert numbers[:90] == list(range(90))
        assert len(set(numbers)) == len(numbers)
        assert {op.outcome for op in heard.operations} <= {"ok", "unknown"}
    first = [{op.value: op.key for op in heard.operations if numbered(op) < 90} for heard in (alone, together)]
    assert first[0] == first[1]
    assert len(first[0]) == 90
    written = {op.key for op in together.operations if op.outcome == "ok"}
    assert written <= set(read["kv"])
    assert None not in {read["kv"][key] for key in written}
    assert {key for key in read_alone["kv"] if "once" not in key} == {key for key in read["kv"] if "once" not in key}


def test_what_comes_out_is_in_the_order_in_which_it_ended_and_due_as_from_one():
    together, _, _ = offered(fleet=FLEET)
    ends = [op.end_ns for op in together.operations]
    assert ends == sorted(ends)
    due = sorted(op.intended_ns for op in together.operations)[:90]
    # one schedule: 1/60 s apart, to a rounding, whichever worker's clock it was
    assert max(abs(due[n] - due[0] - n * 1e9 / 60) for n in range(90)) < 5e6
    [total] = [sample for sample in together.samples if sample.signal == "workers.kv.offered"]
    assert total.value == len(together.operations)
    uncertain = [sample.value for sample in together.samples if sample.signal.endswith(".uncertainty")]
    assert uncertain
    assert max(uncertain) < 0.005
    assert "generator.cpu" in {sample.signal for sample in together.samples}


def test_a_worker_that_is_killed_ends_the_run():
    async def kill(loads):
        below(loads)[1].kill()

    with pytest.raises(DatacenterError, match=r"worker w\d on this machine \(pid \d+\): "):
        offered(enough=10**6, meanwhile=kill, fleet={**FLEET, "lost_after_s": 3.0})
    assert list(Path(tempfile.gettempdir()).glob(f"{FOLDER}*")) == []


@pytest.mark.lie
def test_workers_end_by_themselves_when_their_runner_is_killed():
    async def kill(loads):
        workers = below(loads)
        os.kill(loads._process.pid, signal.SIGKILL)
        return workers

    workers = []

    async def keep(loads):
        workers.extend(await kill(loads))

    with pytest.raises(DatacenterError, match="ended by itself"):
        offered(enough=10**6, meanwhile=keep, fleet={**FLEET, "lease_s": 8.0})
    assert len(workers) == 3
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert alive == []


@pytest.mark.lie
def test_no_token_is_in_the_command_or_the_environment_of_any_process():
    seen = []

    async def look(loads):
        every = psutil.Process(loads._process.pid).children(recursive=True)
        seen.extend(" ".join([*process.cmdline(), *process.environ().values()]) for process in every)

    entrance = {"tls": {}, "headers": {"X-Consul-Token": TOKEN}, "params": {}}
    offered(enough=10, meanwhile=look, fleet=FLEET, entrances={"http://127.0.0.1:1": entrance})
    assert len(seen) == 6, "three workers, each with its generator"
    assert TOKEN not in " ".join(seen)


async def answered(dial, worker):
    """What a worker answers to a greeting; nothing where it lets nobody in."""
    try:
        reader, writer = await dial(worker)
        writer.write(json_frame(Kind.HELLO, session=worker.session, received=0))
        answer = await reader.read(1)
    except OSError:
        return b""
    writer.close()
    return answer


async def test_nobody_but_its_runner_is_let_in():
    ours, other = Identity.made("runner"), Identity.made("somebody else")
    spawner = LocalSpawner(lease_s=15.0)
    try:
        [worker] = await spawner.spawn(ours.certificate, 1)
        assert await answered(dialed_by(ours), worker) == bytes([Kind.HELLO])
        assert await answered(dialed_by(other), worker) == b""
        plain, writer = await asyncio.open_connection(worker.address, worker.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in await plain.read(100)
        writer.close()
        impostor = Identity.made("impostor")
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection(
                worker.address,
                worker.port,
                ssl=ours.runner_side(impostor.certificate),
                server_hostname="hashidrill",
            )
    finally:
        await spawner.take_away()
