"""Agents that freeze, die or restart. The observer reads /proc and asks the agent's own HTTP API."""

import signal
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, Cases, NoParams, P
from hashidrill.core.protocols.abc import AgentProcess, Claim, Evidence, Observer, Place, Target, Undo
from hashidrill.core.protocols.capabilities import ProcessControl, Processes
from hashidrill.core.protocols.claims import (
    AGENT,
    ANSWERS,
    HOST,
    LISTENER,
    PAUSED,
    PROCESS,
    START,
    needs,
    spoils,
    takes,
)
from hashidrill.core.util.wait import wait_until

_ANSWER_S = 0.5
_ENDS_WITHIN_S = 15.0


class _ProcessFault(BaseFault[P]):
    """Only one of these may act on an agent at a time: a killed process cannot be paused, for example."""

    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ProcessControl, Processes})
    holds_down: ClassVar[bool] = True

    def uses(self, place: Place) -> Sequence[Claim]:
        return (needs(HOST), takes(PROCESS), takes(AGENT))

    async def _signal(self, undo: Undo, number: int) -> None:
        """Raises FaultError for a process that is gone."""
        if not await self._host(undo).use(ProcessControl).signal(undo["reference"], number):
            raise FaultError(f"{undo['host']}: {undo['agent']} (process {undo['reference']}) was gone already")

    async def _look(self, undo: Undo) -> tuple[AgentProcess | None, bool]:
        """The agent's process, and whether the agent answers."""
        processes = self._host(undo).use(Processes)
        return await processes.agent_process(undo["agent"]), await processes.agent_answers(undo["agent"], _ANSWER_S)


class ProcessPause(_ProcessFault[NoParams]):
    """Freezes the agent with SIGSTOP: it keeps its ports, locks and place in Raft, and does nothing.

    Limits: the kernel still accepts connections for it, as for any frozen process.
    """

    kind: ClassVar[str] = "process.pause"
    observer: ClassVar[Observer] = Observer("/proc, and whether the agent's HTTP API answers")
    cases: ClassVar[Cases] = Cases(space=({},))

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), needs(PAUSED), spoils(ANSWERS))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for an agent that is already stopped: nothing would change."""
        process = await self.hosts.host(target.host).use(Processes).agent_process(target.agent)
        if process is not None and process.state == "T":
            raise FaultError(f"{target.agent} (process {process.pid}) is already stopped; find out who stopped it")
        return {}

    async def apply(self, undo: Undo) -> None:
        await self._signal(undo, signal.SIGSTOP)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        process, answers = await self._look(undo)
        state = "gone" if process is None else process.state
        stopped = state == "T"
        return Evidence(
            stopped and not answers if present else not stopped and answers,
            "stopped, does not answer" if present else "runs and answers",
            f"process state {state}, {'answers' if answers else f'no answer in {_ANSWER_S:g}s'}",
            {"state": state},
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(ProcessControl).signal(undo["reference"], signal.SIGCONT)


class KillParams(Strict):
    """The signal that kills the agent."""

    signal: Literal["KILL", "TERM", "INT"] = "KILL"
    """The signal that ends the agent: `KILL`, `TERM` or `INT`."""


class ProcessKill(_ProcessFault[KillParams]):
    """Kills the agent and keeps it dead; reverting starts it again on the same data.

    Limits: with TERM or INT the agent may leave the cluster gracefully, depending on its configuration. The process's
    writes survive in the page cache: this does not simulate a power failure.
    """

    kind: ClassVar[str] = "process.kill"
    ends_its_agent: ClassVar[bool] = True
    observer: ClassVar[Observer] = Observer("/proc, and whether the agent's HTTP API answers")
    Params: ClassVar[type[Strict]] = KillParams
    cases: ClassVar[Cases] = Cases(each=({"signal": "KILL"},), space=({"signal": ["KILL", "TERM", "INT"]},))

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), needs(START), spoils(ANSWERS), spoils(LISTENER))

    async def apply(self, undo: Undo) -> None:
        await self._signal(undo, signal.Signals[f"SIG{self.params.signal}"])

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        process, answers = await self._look(undo)
        runs = process is not None and process.state != "Z"
        return Evidence(
            not runs and not answers if present else runs and answers,
            "no process, no answer" if present else "runs and answers",
            f"{'process runs' if runs else 'no process'}, {'answers' if answers else 'no answer'}",
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(ProcessControl).start_agent(undo["agent"])


class RestartParams(Strict):
    """The signal that asks the agent to exit."""

    signal: Literal["KILL", "TERM", "INT"] = "TERM"
    """The signal that ends the agent: `KILL`, `TERM` or `INT`."""


class ProcessRestart(_ProcessFault[RestartParams]):
    """Restarts the agent at once, as a deployment would; kills it if it does not exit within 15 s.

    Limits: an agent that still runs 15 s after that is an error, not a restart.
    """

    kind: ClassVar[str] = "process.restart"
    ends_its_agent: ClassVar[bool] = True
    observer: ClassVar[Observer] = Observer("/proc, and whether the agent's HTTP API answers")
    once: ClassVar[bool] = True
    Params: ClassVar[type[Strict]] = RestartParams
    cases: ClassVar[Cases] = Cases(
        each=({"signal": "KILL"},), momentary=True, disarm="it is over once it has happened", overlaps=({},)
    )

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), needs(START))

    async def apply(self, undo: Undo) -> None:
        host = self._host(undo)
        await self._signal(undo, signal.Signals[f"SIG{self.params.signal}"])

        async def ended() -> tuple[bool | None, str]:
            process = await host.use(Processes).agent_process(undo["agent"])
            same = process is not None and process.reference == undo["reference"]
            return (None, f"process {undo['reference']} still runs") if same else (True, "")

        what = f"{undo['agent']} on {undo['host']} to exit"
        try:
            await wait_until(what, ended, within_s=_ENDS_WITHIN_S, gap_s=0.02)
        except WaitTimeoutError:  # then kill it, as a service manager does
            await host.use(ProcessControl).signal(undo["reference"], signal.SIGKILL)
            await wait_until(what, ended, within_s=_ENDS_WITHIN_S, gap_s=0.02)
        await host.use(ProcessControl).start_agent(undo["agent"])

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """In force: a different process. Gone: a process that answers."""
        process, answers = await self._look(undo)
        other = process is not None and process.reference != undo["reference"]
        return Evidence(
            other if present else process is not None and answers,
            "a new process" if present else "runs and answers",
            f"process {undo['reference']} before, {process.reference if process else 'none'} now, "
            f"{'answers' if answers else 'no answer'}",
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(ProcessControl).start_agent(undo["agent"])
