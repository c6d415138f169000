"""Takes Go profiles (pprof) of the servers while a run goes on, and keeps them in the recording.

It takes one set of profiles of all servers in the steady state, to compare with. It takes another one when a promise of
the experiment is broken for `BREACH_S` seconds under a new combination of faults and marks; with `profiles: always`,
each new combination also gets a set without a breach. Only the end of the steady state waits for a set that is being
taken, a few seconds at most. A server that refuses is left out.

What it costs: Go interrupts each running thread 100 times a second for `CPU_S` seconds, and stops the program for a
moment to list its goroutines. A set of three servers of Consul 1.22.2 takes 3.4 s; in two runs of raft/bloated-leader
on two busy cores (2026-11), the 68 KV writes during the healthy set had a p50 of 15 ms, the others nearby 12 to 14 ms.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from hashidrill.core.engine.monitor import promises
from hashidrill.core.errors import FaultError, InterlockError
from hashidrill.core.experiment.model import services_of
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.service import ServesProfiles
from hashidrill.core.recording.profiles import HEALTHY, KINDS, MOST_BYTES
from hashidrill.core.util.files import private_folder, write_whole
from hashidrill.core.util.wait import all_at_once, pause

if TYPE_CHECKING:
    from hashidrill.core.engine.run_state import Run
    from hashidrill.core.protocols.abc import Host

CPU_S = 3
"""At 100 Hz, 300 samples of a server that uses one core."""
MOST_SETS, MOST_HEALTHY, MOST_IN_ALL_BYTES = 16, 3, 64_000_000
FOLDER = "artifacts/profiles"
_LOOK_EVERY_S, _ANSWERS_WITHIN_S = 0.5, 8.0
_PATHS = {"cpu": "profile"}
_REFUSALS = (401, 403, 404)
_PHASES = ("method", "recovery")


class Profiler:
    """The profiles of one run; `watch` runs at the same time, until it is cancelled."""

    def __init__(self, running: Run) -> None:
        experiment = running.experiment
        self._running, self._mode = running, experiment.profiles or "on-breach"
        services = services_of(experiment.datacenter) if self._mode != "off" else []
        self._paths = {
            service.name: service.profiles
            for service in services
            if isinstance(service, ServesProfiles) and not service.unprofiled()
        }
        self._promises = promises(experiment)
        self._held_since_ns: int | None = None
        self._healthy_ns = -1
        self._sets = {HEALTHY: 0, "": 0}
        self._kept, self._bytes = 0, 0
        self._seen: set[tuple[frozenset[str], frozenset[str], bool]] = set()
        self._refused: dict[tuple[str, str], str] = {}
        self._taking = anyio.Lock()

    async def watch(self) -> None:
        while self._paths:
            await pause(_LOOK_EVERY_S)
            if why := self._why():
                async with self._taking:
                    await self._take(why)

    async def settled(self) -> None:
        """Returns once there is a healthy set, taken while the steady state held. Raises InterlockError if the
        experiment asks for profiles, and no server gave one.
        """
        async with self._taking:
            if self._paths and (why := self._steady(late=True)):
                await self._take(why)
        if self._running.experiment.profiles and self._refused and not self._kept:
            refusal = next(iter(self._refused.values()))
            raise InterlockError(
                f"profiles: {self._mode}: no server gave a profile: {refusal}; let the token read them (enable_debug in"
                " the agents' configuration, operator:read in Consul, agent:write in Nomad, sudo on sys/pprof in"
                " Vault), or write `profiles: off`"
            )

    def _why(self) -> str:
        """Why a set is due now, or ""."""
        running = self._running
        if running.phase == "steady":
            return self._steady()
        if running.phase not in _PHASES or self._sets[""] >= MOST_SETS or self._bytes >= MOST_IN_ALL_BYTES:
            return ""
        broken = running.monitor.broken(self._promises, running.clock.now_ns())
        faults = frozenset(id_.partition("-")[0] for id_ in running.in_force)
        situation = (faults, frozenset(self._marks()), bool(broken))
        if situation in self._seen or not (broken or self._mode == "always"):
            return ""
        self._seen.add(situation)
        return broken or "always"

    def _marks(self) -> list[str]:
        return [mark.mark for mark in self._running.marks.values()]

    def _steady(self, *, late: bool = False) -> str:
        """HEALTHY if a healthy set is due: once the steady state has held long enough, and again after each break."""
        running, steady = self._running, self._running.experiment.steady_state
        now = running.clock.now_ns()
        readings = [(one, running.monitor.reading(one, now, one.window_s or steady.for_)) for one in steady.require]
        if not all(reading.surely(one) for one, reading in readings):
            self._held_since_ns = None
            return ""
        since = self._held_since_ns = now if self._held_since_ns is None else self._held_since_ns
        late = late or now - since >= (steady.for_ - CPU_S - 3 * _LOOK_EVERY_S) * 1e9
        due = late and self._healthy_ns < since and self._sets[HEALTHY] < MOST_HEALTHY
        self._healthy_ns = now if due else self._healthy_ns
        return HEALTHY if due else ""

    async def _take(self, why: str) -> None:
        self._sets[HEALTHY if why == HEALTHY else ""] += 1
        number = sum(self._sets.values())
        servers = [
            (host, agent)
            for host in self._running.datacenter.all_hosts()
            for agent, role in host.roles.items()
            if role == "server" and agent in self._paths and (host.name, agent) not in self._refused
            if host.can(AgentApi)
        ]
        await all_at_once(partial(self._of_server, host, agent, number, why) for host, agent in servers)

    async def _of_server(self, host: Host, agent: str, number: int, why: str) -> None:
        """Takes the goroutines last, so that the CPU profile does not contain the work of listing them."""
        during = [kind for kind in KINDS if kind != "goroutine"]
        await all_at_once(partial(self._profile, host, agent, kind, number, why) for kind in during)
        await self._profile(host, agent, "goroutine", number, why)

    async def _profile(self, host: Host, agent: str, kind: str, number: int, why: str) -> None:
        began_ns = self._running.clock.now_ns()
        name, error = "", ""
        try:
            body = await self._asked(host, agent, kind)
            name = f"{FOLDER}/{number}-{host.name}-{agent}-{kind}.pb.gz"
            path = self._running.writer.path / name
            private_folder(path.parent)
            await anyio.to_thread.run_sync(write_whole, path, body)
            self._kept, self._bytes = self._kept + 1, self._bytes + len(body)
        except (FaultError, OSError) as failure:
            name, error = "", str(failure)
        if error and self._refused.get((host.name, agent), error) != error:
            return  # one line for each server that refuses
        self._running.journal.write(
            "profile", host=host.name, agent=agent, kind=kind, began_ns=began_ns, why=why, file=name, error=error
        )

    async def _asked(self, host: Host, agent: str, kind: str) -> bytes:
        """Returns the profile. Raises FaultError if the server does not give one."""
        path = self._paths[agent] + _PATHS.get(kind, kind)
        params = {} if kind == "goroutine" else {"seconds": str(CPU_S)}
        answer = await host.use(AgentApi).api(
            "GET", path, agent=agent, params=params, timeout_s=CPU_S + _ANSWERS_WITHIN_S
        )
        if answer.status != 200:
            error = (
                f"{host.name}: GET {path}: HTTP {answer.status} {answer.body[:120].decode(errors='replace').strip()}"
            )
            if answer.status in _REFUSALS:
                self._refused.setdefault((host.name, agent), error)
            raise FaultError(error)
        if not answer.body.startswith(b"\x1f\x8b") or len(answer.body) > MOST_BYTES:
            raise FaultError(f"{host.name}: GET {path}: {len(answer.body):,} bytes: not a profile that can be kept")
        return answer.body
