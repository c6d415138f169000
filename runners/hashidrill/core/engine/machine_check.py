"""Compares what an experiment needs with what the machine has.

The needs are lower bounds, from measured figures: a machine that is refused could not have carried the run. An
accepted machine may still turn out too slow; then the run itself reports it (judge, or a load profile's search).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import uvloop

from hashidrill.core.errors import UnfitError
from hashidrill.core.experiment.load_levels import Profile
from hashidrill.core.experiment.model import DatacenterSpec, Experiment, Step, make_fault, services_of
from hashidrill.core.experiment.selectors import parse_selector
from hashidrill.core.faults.cpu import cores_for, provable_cores
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.core.loads.schedule import OpenLoop, Reply, Turns, packed, stamp
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import EmitOperation, LoadCost, Operation, Requires, cost_of
from hashidrill.core.protocols.service import USUAL_BYTES, TakesMemory
from hashidrill.core.util.cores import usable_cores

_RATE_PER_S = 2000
_ONCE, _KEYS, _VALUE_BYTES, _TIMEOUT_S = 0.9, 100, 512, 30.0
_WARM_S, _LONG_S = 0.1, 0.3
_SHARE = 0.8
"""The generator's share of the CPU when client and server run in one process."""
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Answer-Index: 31\r\nX-Answer-From-Leader: true\r\n"
    b"X-Answer-Age: 0\r\nContent-Length: 4\r\n\r\ntrue"
)


class _Answers(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        if data:  # head and body come in one piece
            self._transport.write(_ANSWER)


def operation_s() -> float:
    """CPU seconds of one write to hashidrill's own server on loopback, from its schedule to its line in the recording.

    Measured in the calling thread, which must not run an event loop. Takes half a second. Raises UnfitError when no
    write succeeds.
    """
    return uvloop.run(_measured())


async def _write(url: str, emit: EmitOperation) -> None:
    """Writes as the loads do: to different keys, with a value that holds the send time."""
    context, turns = LoadContext([url]), Turns(_ONCE, _KEYS, _RATE_PER_S)
    async with HttpClient() as http:

        def plan(n: int) -> tuple[str, str]:
            once, number = turns.next()
            return f"speed/{'once/' if once else ''}{number}", stamp("run", n)

        async def put(_n: int, key: str, value: str) -> Reply:
            body = f"{value} {time.time_ns()}".ljust(_VALUE_BYTES, "x").encode()
            answer = await http.request("PUT", f"{url}/{key}", body=body, timeout_s=_TIMEOUT_S)
            return Reply("ok" if answer.status == 200 and answer.body.strip() == b"true" else "fail", answer.status)

        loop = OpenLoop(
            "speed",
            _RATE_PER_S,
            plan,
            put,
            context.clock,
            lag=context.lag,
            waiting=context.waiting,
            course=context.course,
        )
        await loop.run(emit)


async def _measured() -> float:
    server = await asyncio.get_running_loop().create_server(_Answers, "127.0.0.1", 0)
    outcomes: list[str] = []

    def emit(op: Operation) -> None:
        json.dumps(packed(op))
        outcomes.append(op.outcome)

    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        task = asyncio.create_task(_write(url, emit))
        try:
            await asyncio.sleep(_WARM_S)
            outcomes.clear()
            before = time.thread_time()
            await asyncio.sleep(_LONG_S)
            took_s, done = time.thread_time() - before, len(outcomes)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    if not done or "ok" not in outcomes:
        raise UnfitError(
            f"none of {done} writes to hashidrill's own server on loopback succeeded within {_LONG_S:g}s: free this"
            " machine of other work, or check its loopback interface"
        )
    return _SHARE * took_s / done


HOST_BYTES = 10_000_000
"""The memory of the processes on each host that apply and prove faults; 71 MB were measured for seven hosts."""
RUNNER_BYTES = 200_000_000
"""The memory of the runner, its engine and the load generator."""
VIEW_BYTES = 60_000
"""The memory of one view in its agent (29 kB) and its server (37 kB): 24,000 views, Consul 1.10.3, 2026-11."""
PAGE_BYTES = 4096
RUN_BYTES = 300_000_000
"""The disk space for data, logs and recording of a run of some minutes."""
AGENTS_CORES = 0.5
"""All agents together need at least this many cores; with less, the machine is slow before any fault."""
GENERATOR_CORES = 0.8
"""One thread runs all loads; a run is INVALID if it uses over 0.9 of its core."""
SLOWEST_OPERATION_S = 2e-3
"""An upper bound for one operation of the generator: 0.1 to 0.3 ms were measured on machines that carry agents."""


@dataclass(frozen=True)
class Machine:
    """A machine's memory and disk in bytes, its cores, and the CPU seconds of one generated operation."""

    memory_bytes: float
    disk_bytes: float
    cores: float
    operation_s: float

    @classmethod
    def here(
        cls,
        folder: Path,
        operations_per_s: float = math.inf,
        *,
        cores: float | None = None,
        measure: Callable[[], float] | None = None,
    ) -> Machine:
        """The machine as it is now; `folder` is where runs keep their data.

        Measuring an operation takes half a second. It is skipped if even SLOWEST_OPERATION_S is fast enough for
        `operations_per_s`.
        """
        there = next(each for each in (folder, *folder.parents) if each.is_dir())
        memory = psutil.virtual_memory().available
        cores = usable_cores() if cores is None else cores
        enough = operations_per_s * SLOWEST_OPERATION_S <= min(GENERATOR_CORES, cores - AGENTS_CORES)
        return cls(
            memory, shutil.disk_usage(there).free, cores, SLOWEST_OPERATION_S if enough else (measure or operation_s)()
        )


@dataclass(frozen=True)
class Wants:
    """The minimum that an experiment needs. `operations_per_s` is the generator's rate at its peak."""

    memory_bytes: float
    memory_reason: str
    disk_bytes: float
    operations_per_s: float
    operations_reason: str
    throttled_cores: float = 0.0
    """The largest number of cores that a fault leaves to a host."""


def wants(experiment: Experiment, required: Requires) -> Wants:
    """The needs of the experiment's agents, loads at their peaks, and faults."""
    agents = sum(len(service.places()) for service in services_of(experiment.datacenter, spares=required.spare_servers))
    memory: float = RUNNER_BYTES + agents_bytes(experiment.datacenter, spares=required.spare_servers)
    reasons = [f"{agents} agents"]
    if views := _views(experiment):
        memory += views * VIEW_BYTES
        reasons.append(f"{views} views")
    if filled := sum(_filled_bytes(experiment, step) for step in experiment.faults):
        memory += filled
        reasons.append("disks in memory that are filled")
    pages = sum(int(step.with_.get("free_pages", 0)) for step in experiment.faults)
    peaks = [(name, peak) for name in experiment.load if (peak := _peak_per_s(experiment, name))]
    said = ", ".join(f"{name} {peak:.0f}/s" for name, peak in peaks)
    return Wants(
        memory,
        " and ".join(reasons),
        RUN_BYTES + pages * PAGE_BYTES,
        sum(peak for _, peak in peaks),
        said,
        required.throttled_cores,
    )


def misfits(wanted: Wants, machine: Machine) -> list[str]:
    """One message for each resource that the machine lacks: the need, its reason, and what is available."""
    generator = wanted.operations_per_s * machine.operation_s
    cores = AGENTS_CORES + generator
    lacks = []
    if machine.memory_bytes < wanted.memory_bytes:
        lacks.append(
            f"memory: needs {wanted.memory_bytes / 1e9:.1f} GB for {wanted.memory_reason},"
            f" available: {machine.memory_bytes / 1e9:.1f} GB"
        )
    if machine.disk_bytes < wanted.disk_bytes:
        lacks.append(f"disk: needs {wanted.disk_bytes / 1e9:.1f} GB, free: {machine.disk_bytes / 1e9:.1f} GB")
    if generator > GENERATOR_CORES:
        lacks.append(
            f"the generator's core: {wanted.operations_reason} need {generator:.2f} of it, at "
            f"{machine.operation_s * 1e6:.0f} us each as measured here; at most {GENERATOR_CORES:g} is "
            "usable"
        )
    if machine.cores < cores:
        lacks.append(
            f"cores: needs {cores:.1f} ({generator:.2f} for the generator, at least {AGENTS_CORES:g} for the agents),"
            f" usable: {machine.cores:g}"
        )
    if wanted.throttled_cores and machine.cores < cores_for(wanted.throttled_cores):
        lacks.append(
            f"cores: a cpu.throttle to {wanted.throttled_cores:g} cores cannot be proven on {machine.cores:g}; "
            f"throttle to {provable_cores(machine.cores):g} or less"
        )
    return lacks


def require(experiment: Experiment, required: Requires, folder: Path, *, machine: Machine | None = None) -> None:
    """Raises UnfitError with everything that the machine (by default this one, now) lacks for the experiment."""
    wanted = wants(experiment, required)
    if lacks := misfits(wanted, machine or Machine.here(folder, wanted.operations_per_s)):
        raise UnfitError("; ".join(lacks))


@dataclass(frozen=True)
class Fit:
    """One experiment's needs, and what the machine lacks."""

    name: str
    wants: Wants
    lacks: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: whether the experiment fits, its needs, and what the machine lacks."""
        return {
            "name": self.name,
            "fits": not self.lacks,
            "lacks": list(self.lacks),
            "memory_bytes": self.wants.memory_bytes,
            "disk_bytes": self.wants.disk_bytes,
            "operations_per_s": self.wants.operations_per_s,
        }


def fits(experiments: Iterable[tuple[str, Experiment, Requires]], machine: Machine) -> list[Fit]:
    """One Fit for each experiment, in their order."""
    found = [(name, wants(experiment, required)) for name, experiment, required in experiments]
    return [Fit(name, wanted, misfits(wanted, machine)) for name, wanted in found]


def _peak_level(profile: Profile | None) -> float:
    if profile is None:
        return 1.0
    if profile.search is not None:
        return max(1.0, profile.search.from_)
    if profile.spike is not None:
        return max(1.0, profile.spike.to)
    if profile.ramp is not None and profile.ramp.over is not None:
        return max(1.0, float(profile.ramp.to or 1.0))
    return max([1.0, *(profile.steps or []), *(level for _, level in profile.recorded_levels)])


def _peak_per_s(experiment: Experiment, name: str) -> float:
    """Operations per second of one load at its peak; 0 for a load that reacts to events."""
    cost = _cost(experiment, name)
    return cost.rate_per_s * _peak_level(experiment.load[name].profile) + cost.opened_per_s


def _cost(experiment: Experiment, name: str) -> LoadCost:
    spec = experiment.load[name]
    return cost_of(registry.load(spec.kind), spec.parameters)


def agents_bytes(datacenter: DatacenterSpec, *, spares: int = 0) -> int:
    """Bytes that all agents and their helper processes take."""
    services = services_of(datacenter, spares=spares)
    hosts = {place.host for service in services for place in service.places()}
    taken = [(service, len(service.places())) for service in services]
    return len(hosts) * HOST_BYTES + sum(
        agents * (service.agent_bytes if isinstance(service, TakesMemory) else USUAL_BYTES) for service, agents in taken
    )


def datacenter_bytes(datacenter: DatacenterSpec) -> float:
    """Bytes that a running datacenter takes without any load."""
    return agents_bytes(datacenter) + RUNNER_BYTES


def require_agents(datacenter: DatacenterSpec, available_bytes: float) -> None:
    """Raises UnfitError if the datacenter alone needs more memory than the machine has."""
    wanted = datacenter_bytes(datacenter)
    if available_bytes < wanted:
        counts = {service.name: len(service.places()) for service in services_of(datacenter)}
        said = ", ".join(f"{number} of {name.capitalize()}" for name, number in counts.items())
        raise UnfitError(
            f"memory: needs {wanted / 1e9:.1f} GB for {sum(counts.values())} agents ({said}), available: "
            f"{available_bytes / 1e9:.1f} GB; start fewer agents, or end other programs that use memory"
        )


def _views(experiment: Experiment) -> int:
    held = 0
    for name, load in experiment.load.items():
        views = round(_cost(experiment, name).views * _peak_level(load.profile))
        held += views * _asked(experiment, name) if views else 0
    return held


def _asked(experiment: Experiment, name: str) -> int:
    """How many agents a load goes through: those of its role, or their substitutes."""
    spec, services = experiment.load[name], services_of(experiment.datacenter)
    via = registry.load(spec.kind).via(spec.parameters)
    if via is None:
        return 0
    selector = parse_selector(via)
    others = (len(s.places()) for s in services if s.name == selector.service)
    return selector.most(services) or next(others, 0)


def _filled_bytes(experiment: Experiment, step: Step) -> float:
    if not make_fault(step, None).requires().sized_disk:
        return 0.0
    hosts = parse_selector(step.on).most(services_of(experiment.datacenter))
    return float(experiment.datacenter.disk.size or 0.0) * hosts
