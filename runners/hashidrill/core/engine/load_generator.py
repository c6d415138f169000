"""The load generator, as the engine sees it: starts the process, steers it, and takes in what it reports.

The schedule of an open loop must not wait for the engine's own work (journal, live view, probes), so the loads run in a
process of their own. `hashidrill.core.loads.in_generator` is what runs there; operations come back over a pipe.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import anyio.abc

from hashidrill.core.errors import DatacenterError, HashidrillError
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.loads.operations import unpacked
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import EmitOperation, Sample

if TYPE_CHECKING:
    from types import TracebackType

    from pydantic import BaseModel

    from hashidrill.core.experiment.load_levels import Profile
    from hashidrill.core.recording.journal import Clock

EmitSample = Callable[[int, Sample], None]
"""Takes the time (nanoseconds of the run's clock) and the sample."""

EmitWaiting = Callable[[str, Sequence[int], Sequence[int]], None]
"""Takes a load, when those of its operations were due that have waited for some time, and those of these that ended."""


class OffersLoads(Protocol):
    """What the engine asks of a load generator that has started."""

    @property
    def final_read_errors(self) -> Mapping[str, str]: ...

    async def start(
        self,
        loads: Sequence[LoadSpecification],
        emit_operation: EmitOperation,
        emit_sample: EmitSample,
        emit_waiting: EmitWaiting,
    ) -> None: ...

    async def begin(self, t_ns: int) -> None: ...

    async def level(self, load: str, level: float) -> None: ...

    async def hold(self, t_ns: int) -> None: ...

    async def go(self, t_ns: int) -> None: ...

    async def stop(self) -> None: ...

    async def final_reads(self) -> Mapping[str, Mapping[str, str | None]]: ...


STOP_WITHIN_S = 15.0
FINAL_READS_WITHIN_S = 90.0
READY_WITHIN_S = 90.0
EXIT_WITHIN_S = 5.0
FLEET_EXIT_WITHIN_S = 30.0
"""Workers end their generators, which clean up, and their scheduler takes them away."""
_STDERR_BYTES = 4096


@dataclass(frozen=True)
class LoadSpecification:
    """One load (or client) of an experiment: validated `params`, and the URLs of the agents that `via` selected."""

    name: str
    kind: str
    params: BaseModel
    endpoints: Sequence[str]
    local_address: str | None = None
    profile: Profile | None = None
    control: str | None = None
    """Path of the Unix socket on which a client's tap is spoken to."""
    namespace: str | None = None
    """Path of the network namespace that a client's command runs in; None: our own."""
    access: Mapping[str, str] = field(default_factory=dict)
    """What its agents want to see of whoever asks them: variables of their product, like VAULT_TOKEN."""
    others: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The URLs of further agents that it asks, by the parameter that selects them."""


class LoadGenerator:
    """An async context manager around the process.

    `async with LoadGenerator(clock, run_id) as loads:`, then `start`, `stop`, `final_reads`. When the process ends by
    itself, the block is cancelled and DatacenterError is raised from it. However the block is left, operations in
    flight are emitted first, and the process is gone afterwards.

    `entrances` say what agents want beside an address, by the start of their URL (hashidrill.core.loads.http_client).
    With a `fleet`, the process is the conductor of several workers, which speaks as one generator
    (hashidrill.staging.generators).
    """

    def __init__(
        self,
        clock: Clock,
        run_id: str,
        *,
        command: Sequence[str] | None = None,
        entrances: Mapping[str, Mapping[str, Any]] | None = None,
        fleet: Mapping[str, Any] | None = None,
    ) -> None:
        self._entrances = entrances or {}
        self._fleet = fleet
        self._exit_within_s = EXIT_WITHIN_S if fleet is None else FLEET_EXIT_WITHIN_S
        program = "hashidrill.core.loads.in_generator" if fleet is None else "hashidrill.staging.generators.conductor"
        self._clock = clock
        self._run_id = run_id
        self._command = list(command or (sys.executable, "-P", "-m", program))
        self._emit_operation: EmitOperation = lambda _: None
        self._emit_sample: EmitSample = lambda _t_ns, _sample: None
        self._emit_waiting: EmitWaiting = lambda _load, _begun, _ended: None
        self._final_reads: dict[str, dict[str, str | None]] = {}
        self.final_read_errors: dict[str, str] = {}
        self._marks = {mark: anyio.Event() for mark in ("ready", "stopped", "final_reads_done")}
        self._closing = False
        self._stderr = b""
        self._error = ""

    async def __aenter__(self) -> Self:
        # a session of its own: Ctrl-C goes to the engine, which then stops the loads in order
        self._process = await anyio.open_process(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._closing = True
        await self._end_process()
        try:
            return await self._tasks.__aexit__(kind, exc, tb)
        except BaseExceptionGroup as group:
            if exc is not None and group.split(lambda error: error is exc)[0] is not None:
                return False  # what the block itself raised goes on as it was
            raise _bare(group) from None
        finally:
            with anyio.CancelScope(shield=True):
                await self._process.aclose()

    async def start(
        self,
        loads: Sequence[LoadSpecification],
        emit_operation: EmitOperation,
        emit_sample: EmitSample,
        emit_waiting: EmitWaiting | None = None,
    ) -> None:
        """Returns once all loads are prepared and offered. Raises DatacenterError when that takes over 90 s."""
        self._emit_operation = emit_operation
        self._emit_sample = emit_sample
        self._emit_waiting = emit_waiting or self._emit_waiting
        spec = {
            "origin_ns": self._clock.origin_ns,
            "run_id": self._run_id,
            "entrances": {url: dict(one) for url, one in self._entrances.items()},
            "loads": [
                {
                    "name": load.name,
                    "kind": load.kind,
                    "params": load.params.model_dump(mode="json", by_alias=True),
                    "endpoints": list(load.endpoints),
                    "local_address": load.local_address,
                    "profile": load.profile and load.profile.model_dump(mode="json", by_alias=True),
                    "control": load.control,
                    "namespace": load.namespace,
                    "access": dict(load.access),
                    "others": {name: list(urls) for name, urls in load.others.items()},
                }
                for load in loads
            ],
        }
        if self._fleet is not None:
            spec["fleet"] = dict(self._fleet)
        await self._say(json.dumps(spec), "ready", READY_WITHIN_S)

    async def begin(self, t_ns: int) -> None:
        """The method began then, on the run's clock: the times of all profiles count from there."""
        await self._tell(f"begin {t_ns}")

    async def hold(self, t_ns: int) -> None:
        """The method's clock stands still from then on: all levels stay as they are."""
        await self._tell(f"hold {t_ns}")

    async def go(self, t_ns: int) -> None:
        """It goes again: what the profiles have next comes later by as long as it stood still."""
        await self._tell(f"go {t_ns}")

    async def level(self, load: str, level: float) -> None:
        """That load goes on at `level` times its nominal rate or count, from now on."""
        await self._tell(f"level {load} {level!r} {self._clock.now_ns()}")

    async def stop(self) -> None:
        """Returns once every operation has been emitted, those in flight as `unknown`."""
        await self._say("stop", "stopped", STOP_WITHIN_S)

    async def final_reads(self) -> Mapping[str, Mapping[str, str | None]]:
        """What the datacenter holds, by load and key. Loads that could not be read are in `final_read_errors`."""
        await self._say("final_reads", "final_reads_done", FINAL_READS_WITHIN_S)
        return self._final_reads

    async def _tell(self, line: str) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the process has no stdin")
        try:
            await self._process.stdin.send(line.encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # it is gone: its reader knows why, and cancels us to say so
            await anyio.sleep_forever()

    async def _say(self, line: str, answer: str, within_s: float) -> None:
        await self._tell(line)
        with anyio.move_on_after(within_s):
            await self._marks[answer].wait()
            return
        raise DatacenterError(
            f"load generator (pid {self._process.pid}): not {answer.replace('_', ' ')} within {within_s:g}s; "
            f"look at what the agents it talks to say in their logs.{self._said()}"
        )

    async def _end_process(self) -> None:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self._exit_within_s):
                if self._process.stdin is not None:
                    await self._process.stdin.aclose()
                await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()

    async def _read(self) -> None:
        """Shielded: what was in flight is still taken in when the run is cancelled. The process's end ends it."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_stderr)
                await self._read_stdout()
            await self._process.wait()
        if not self._closing or self._error:
            raise DatacenterError(
                f"load generator (pid {self._process.pid}): ended by itself with exit code "
                f"{self._process.returncode}: {self._error or 'no reason given'}.{self._said()}"
            )

    async def _read_stdout(self) -> None:
        if self._process.stdout is None:
            raise RuntimeError("the process has no stdout")
        torn = b""
        async for chunk in self._process.stdout:
            *lines, torn = (torn + chunk).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    async def _read_stderr(self) -> None:
        if self._process.stderr is None:
            raise RuntimeError("the process has no stderr")
        async for chunk in self._process.stderr:
            self._stderr = (self._stderr + chunk)[-_STDERR_BYTES:]

    def _take(self, message: dict[str, Any]) -> None:
        for operation in message.get("operations", ()):
            self._emit_operation(unpacked(operation))
        for load, (begun, ended) in message.get("waiting", {}).items():
            self._emit_waiting(load, begun, ended)
        if "sample" in message:
            t_ns, signal, value, text = message["sample"]
            self._emit_sample(t_ns, Sample(signal, value, text, ok=value is not None))
        if "final_reads" in message:
            self._final_reads.setdefault(message["final_reads"], {}).update(message["values"])
        if "final_reads_failed" in message:
            self.final_read_errors[message["final_reads_failed"]] = message["error"]
        elif "error" in message:
            self._error = message["error"]
        for mark, event in self._marks.items():
            if mark in message:
                event.set()

    def _said(self) -> str:
        said = self._stderr.decode(errors="replace").strip()
        return f" It said: {said}" if said else ""


def _bare(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of ours in a group; the group itself when there is more to it."""
    errors, rest = group.split(HashidrillError)
    if errors is None or rest is not None:
        return group
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Reached(Protocol):
    """What this asks of a datacenter."""

    def load_addresses(self) -> Sequence[str]: ...

    async def endpoints(self, via: str | None) -> Sequence[str]: ...

    def access(self, via: str | None) -> Mapping[str, str]: ...

    def tap_control(self, client: str) -> str: ...

    def namespace(self, host: str) -> str: ...


async def load_specifications(experiment: Experiment, datacenter: Reached) -> list[LoadSpecification]:
    """Each load and client with the agents of its `via`, as they are now. Raises SelectorError."""
    address = next(iter(datacenter.load_addresses()), None)
    specifications = []
    for name, load in experiment.load.items():
        params = load.parameters
        kind = registry.load(load.kind)
        via, also = kind.via(params), kind.also(params)
        specification = LoadSpecification(
            name,
            load.kind,
            params,
            await datacenter.endpoints(via),
            address,
            load.profile,
            access={key: token for each in (via, *also.values()) for key, token in datacenter.access(each).items()},
            others={name: await datacenter.endpoints(selector) for name, selector in also.items()},
        )
        specifications.append(specification)
    for name, client in experiment.clients.items():
        endpoints = await datacenter.endpoints(client.agents)
        specification = LoadSpecification(
            name,
            registry.CLIENT,
            client,
            endpoints,
            address,
            client.profile,
            datacenter.tap_control(name),
            None if client.on is None else datacenter.namespace(client.on.removeprefix("host:")),
            datacenter.access(client.agents),
        )
        specifications.append(specification)
    return specifications
