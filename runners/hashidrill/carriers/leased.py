"""One fault on one host, in force for as long as we say every few seconds that we are still here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from hashidrill.carriers.bundle import program
from hashidrill.carriers.shell import Lines, Shell
from hashidrill.errors import FaultError

_RENEWALS = 3
"""How many fit into a lease."""
_ENDS = ("reverted", "stuck")
"""The events after which it is not in force any more, or nobody can take it away."""
_APPLIES_WITHIN_S, _REVERTS_WITHIN_S = 60.0, 60.0


@dataclass(frozen=True)
class Terms:
    """For how long a host keeps a fault by itself, in seconds; `who` is told there."""

    lease_s: float = 15.0
    deadline_s: float = 600.0
    who: str = ""
    folder: str = "/run/hashidrill"
    """On the host, of the agents' notes. It is empty after a restart of the host."""
    run: str = ""
    """The id of the run whose faults these are: those of another run with the same names are left alone."""


class LeasedFault:
    """A fault that an agent on the host has applied. Ended by `revert`, or by the agent, which says why."""

    def __init__(self, lines: Lines, where: str, fault_id: str, since: int = 0) -> None:
        """`since`: how many events came until it was applied: those speak of an earlier fault that was left over."""
        self._lines, self._where, self._id, self._since = lines, where, fault_id, since
        self.figures: Mapping[str, float] = {}

    @property
    def holds(self) -> bool:
        """Whether the agent has it in force, as far as we have heard."""
        return not self._lines.over and not self._ended()

    def _ended(self) -> Mapping[str, Any]:
        return next((one for one in self._lines.events[self._since :] if one.get("event") in _ENDS), {})

    async def change(self, to: Any) -> None:
        """See `HostFault.change`. Raises FaultError."""
        seen = len(self._lines.events)
        await self._lines.tell(change=to)
        said = await self._lines.event("changed", "unchanged", within_s=_APPLIES_WITHIN_S, after=seen)
        if said is None or said["event"] == "unchanged":
            why = said["why"] if said else self._lines.over or "its agent says nothing"
            raise FaultError(f"{self._where}: {why}")

    async def revert(self) -> None:
        """Raises FaultError when it may still be in force."""
        with contextlib.suppress(FaultError):  # where nobody hears it, the agent reverts by itself
            await self._lines.tell(revert=1)
        said = await self._lines.event(*_ENDS, within_s=_REVERTS_WITHIN_S, after=self._since)
        await self._lines.close()
        if said is None:
            raise FaultError(f"{self._where}: {self._id}: {self._lines.over or 'its agent says nothing'}")
        if said["event"] == "stuck":
            raise FaultError(f"{self._where}: {self._id} could not be reverted: {said['proof']}; see {said['note']}")

    async def watch(self, lease_s: float, tell: Callable[[str], None]) -> None:
        """Renews until it has ended; says so where nobody asked for that. A run that is cancelled renews until then."""
        with anyio.CancelScope(shield=True):
            await self._renew(lease_s)
        said = self._ended()
        if said.get("why") != "asked to":
            why = f"{said['why']}; {said['event']} by its {said['by']}" if said else self._lines.over
            tell(f"{self._where}: {self._id} ended: {why}")

    async def leave(self) -> None:
        """Its agent reverts because nobody is there any more."""
        await self._lines.close()

    async def _renew(self, lease_s: float) -> None:
        while self.holds:
            try:
                await self._lines.tell(renew=1)
            except FaultError:
                await self._lines.event(*_ENDS, within_s=_REVERTS_WITHIN_S, after=self._since)  # its last words, if any
                return
            await self._lines.event(*_ENDS, within_s=lease_s / _RENEWALS, after=self._since)


async def apply(
    shell: Shell, kind: str, fault_id: str, args: Mapping[str, Any], *, terms: Terms, tasks: TaskGroup,
    tell: Callable[[str], None],
) -> LeasedFault:  # fmt: skip
    """Returns once the agent has read back that it is in force. Raises FaultError; nothing is in force then."""
    spec = {
        "id": fault_id, "kind": kind, "args": dict(args), "lease_s": terms.lease_s, "deadline_s": terms.deadline_s,
        "renewals": "lines", "folder": terms.folder, "who": terms.who,
        "run": terms.run,
    }  # fmt: skip
    lines = await opened(shell, program(spec), tasks)
    said = await lines.event("applied", "refused", "failed", within_s=_APPLIES_WITHIN_S)
    since = 0 if said is None else next(n for n, one in enumerate(lines.events, start=1) if one is said)
    if said is None or said["event"] != "applied":
        if said is not None and said["event"] == "failed":
            await lines.event(*_ENDS, within_s=_REVERTS_WITHIN_S, after=since)
        await lines.close()
        raise FaultError(f"{shell.where}: {said['why'] if said else lines.over or 'the agent says nothing'}")
    fault = LeasedFault(lines, shell.where, fault_id, since)
    fault.figures = said.get("figures", {})
    tasks.start_soon(fault.watch, terms.lease_s, tell)
    return fault


async def undo_left(shell: Shell, fault_id: str, terms: Terms, tasks: TaskGroup) -> str:
    """Reverts what an agent with that id left, from its note. Returns what it says. Raises FaultError."""
    spec = {"undo": True, "id": fault_id, "folder": terms.folder, "run": terms.run}
    lines = await opened(shell, program(spec), tasks)
    said = await lines.event("reverted", "stuck", "refused", within_s=_REVERTS_WITHIN_S)
    await lines.close()
    if said is None or said["event"] != "reverted":
        why = said.get("proof") or said.get("why") if said else lines.over
        raise FaultError(f"{shell.where}: {fault_id} could not be reverted: {why or 'no answer'}")
    return str(said["why"])


async def opened(shell: Shell, text: str, tasks: TaskGroup) -> Lines:
    """A program that runs there, listened to. Raises FaultError."""
    lines = Lines(await shell.start(text), shell.where)
    tasks.start_soon(lines.listen)
    await anyio.lowlevel.checkpoint()
    return lines
