"""The load generator, seen from the engine: starts its process, steers it and receives its operations.

An open loop's schedule must not wait for the engine's own work (journal, live view, probes), so the loads run in a
process of their own, `hashidrill.core.loads.in_generator`. Operations come back over a pipe.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.abc

from hashidrill.core.errors import DatacenterError, HashidrillError
from hashidrill.core.loads.schedule import unpacked
from hashidrill.core.protocols.abc import EmitOperation, Sample
from hashidrill.core.util.wait import first_cause

if TYPE_CHECKING:
    from types import TracebackType

    from pydantic import BaseModel

    from hashidrill.core.experiment.load_levels import Profile
    from hashidrill.core.recording.journal import Clock

EmitSample = Callable[[int, Sample], None]
"""Receives a sample and its time, in nanoseconds of the run's clock."""

EmitWaiting = Callable[[str, Sequence[int], Sequence[int]], None]
"""Receives a load, the due times of its operations that have waited for some time, and of those that stopped
waiting.
"""


STOP_WITHIN_S = 15.0
FINAL_READS_WITHIN_S = 90.0
READY_WITHIN_S = 90.0
EXIT_WITHIN_S = 5.0
FLEET_EXIT_WITHIN_S = 30.0
"""Time for the workers' generators to clean up and for the scheduler to remove them."""
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
    """Path of the Unix socket that controls a client's tap."""
    namespace: str | None = None
    """Path of the network namespace that a client's command runs in; None: the runner's own."""
    access: Mapping[str, str] = field(default_factory=dict)
    """Credentials for the agents, as environment variables of their product, like VAULT_TOKEN."""
    others: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The URLs of further agents that the load asks, by the parameter that selects them."""


class LoadGenerator:
    """An async context manager around the generator's process.

    Use `async with LoadGenerator(clock, run_id) as loads:`, then `start`, `stop`, `final_reads`. If the process ends
    by itself, the block is cancelled and DatacenterError is raised. After the block, the operations in
    flight have been emitted and the process has ended.

    `entrances` are the credentials of agents, by the start of their URL (hashidrill.core.loads.http_client). With a
    `fleet`, this process directs several workers and reports to the engine as one generator
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
        # a separate session: Ctrl-C goes only to the engine, which then stops the loads in order
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
                return False  # the error of the block propagates unchanged
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
        """Returns once all loads are prepared and offered. Raises DatacenterError if that takes over 90 s."""
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
        """Tells the generator when the method began, on the run's clock: all profiles count from there."""
        await self._tell(f"begin {t_ns}")

    async def hold(self, t_ns: int) -> None:
        """Stops the method's clock at that time: all levels stay as they are."""
        await self._tell(f"hold {t_ns}")

    async def go(self, t_ns: int) -> None:
        """Starts the method's clock again: later changes of the profiles shift by the time for which it stood still."""
        await self._tell(f"go {t_ns}")

    async def level(self, load: str, level: float) -> None:
        """Sets the load to `level` times its nominal rate or count, from now on."""
        await self._tell(f"level {load} {level!r} {self._clock.now_ns()}")

    async def stop(self) -> None:
        """Returns once every operation has been emitted, those in flight as `unknown`."""
        await self._say("stop", "stopped", STOP_WITHIN_S)

    async def final_reads(self) -> Mapping[str, Mapping[str, str | None]]:
        """What the datacenter holds, by load and key. `final_read_errors` has the loads that could not be read."""
        await self._say("final_reads", "final_reads_done", FINAL_READS_WITHIN_S)
        return self._final_reads

    async def _tell(self, line: str) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the process has no stdin")
        try:
            await self._process.stdin.send(line.encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # the process has ended: `_read` knows why, raises it, and so cancels this task
            await anyio.sleep_forever()

    async def _say(self, line: str, answer: str, within_s: float) -> None:
        await self._tell(line)
        with anyio.move_on_after(within_s):
            await self._marks[answer].wait()
            return
        raise DatacenterError(
            f"load generator (pid {self._process.pid}): not {answer.replace('_', ' ')} within "
            f"{within_s:g}s; see the logs of the agents that it talks to.{self._said()}"
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
        """Shielded, so operations in flight are received even after a cancellation. Returns when the process ends."""
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
    """The single HashidrillError in a group, or the group itself if it holds anything else."""
    errors, rest = group.split(HashidrillError)
    return group if errors is None or rest is not None else first_cause(errors)
