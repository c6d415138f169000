"""One fault on one host, in force while the runner renews its lease every few seconds."""

import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from hashidrill.core.errors import FaultError, OthersFaultError
from hashidrill.core.util.wait import pause
from hashidrill.staging.carriers.shell import Lines, Session, Shell, program

_RENEWALS = 3
"""How many renewals fit into a lease."""
_ENDS = ("reverted", "stuck")
"""The events after which the fault is no longer in force, or can no longer be reverted."""
_APPLIES_WITHIN_S, _REVERTS_WITHIN_S = 60.0, 60.0
_TRIES_EVERY_S, _SAYS_EVERY_S = 2.0, 10.0


@dataclass(frozen=True)
class Terms:
    """How many seconds a host keeps a fault: `lease_s` after a renewal, `deadline_s` in all. The host shows `who`."""

    lease_s: float = 15.0
    deadline_s: float = 600.0
    who: str = ""
    folder: str = "/run/hashidrill"
    """The folder of the agents' notes on the host. It is empty after a restart of the host."""
    run: str = ""
    """The id of the faults' run: faults of another run with the same names are left alone."""
    waits_s: float = 0.0
    """How long reverts wait for each host that does not answer and may be restarting."""
    armed: str = ""
    """The signed arming of that run, for hosts with their own keys; "" for an unsigned arming."""

    def named(self, table: str) -> str:
        """The host's name for an nft table: faults of two runs of one experiment have the same names."""
        return f"{table}{self._mark}"

    def unnamed(self, name: str) -> str:
        """The fault's own name for its table; the name of another run's table stays unchanged."""
        return name.removesuffix(self._mark)

    @property
    def _mark(self) -> str:
        return self.run and "_" + re.sub(r"\W", "_", self.run)


class Patience:
    """Waits for a silent host: `waits_s` in total for all of its faults, which are reverted one by one."""

    def __init__(self, waits_s: float, tell: Callable[[str], None]) -> None:
        self._waits_s, self._tell = waits_s, tell
        self._ends_s: float | None = None
        self._said, self._says_s = "", 0.0
        self.waited = False
        """Whether a revert waited for the host, and the host has not answered since."""

    async def worth(self, why: str) -> bool:
        """Waits a moment and returns whether to try again; reports what it waits for, and why."""
        now = anyio.current_time()
        if self._ends_s is None:
            self._ends_s = now + self._waits_s
        left_s = self._ends_s - now
        if left_s <= 0:
            return False
        if why != self._said or now >= self._says_s:
            self._tell(f"waiting for up to {left_s:.0f}s: {why}")
            self._said, self._says_s = why, now + _SAYS_EVERY_S
        self.waited = True
        await pause(_TRIES_EVERY_S)
        return True

    def rewarded(self, who: str) -> None:
        """Reports that the host answers again, if a revert waited for it."""
        if self.waited and self._ends_s is not None:
            waited_s = anyio.current_time() - self._ends_s + self._waits_s
            self._tell(f"{who} answers again, after {waited_s:.0f}s")
        self._ends_s, self._said, self.waited = None, "", False


class LeasedFault:
    """A fault that an agent on the host has applied. `revert` ends it; the agent may too, and says why."""

    def __init__(self, lines: Lines, where: str, fault_id: str, since: int = 0) -> None:
        """`since`: how many events came before it was applied: they are about an earlier, left-over fault."""
        self._lines, self._where, self._id, self._since = lines, where, fault_id, since
        self.figures: Mapping[str, float] = {}
        self._asked = False

    @property
    def holds(self) -> bool:
        """Whether the agent holds it in force, as last reported."""
        return not self._lines.over and not self._ended()

    def _ended(self) -> Mapping[str, Any]:
        return next((one for one in self._lines.events[self._since :] if one.get("event") in _ENDS), {})

    async def change(self, to: Any) -> None:
        """See `HostFault.change`. Raises FaultError."""
        seen = len(self._lines.events)
        await self._lines.tell(change=to)
        said = await self._lines.event("changed", "unchanged", within_s=_APPLIES_WITHIN_S, after=seen)
        if said is None or said["event"] == "unchanged":
            why = said["why"] if said else self._lines.over or "its agent does not answer"
            raise FaultError(f"{self._where}: {why}")

    async def revert(self) -> None:
        """Raises FaultError when it may still be in force."""
        self._asked = True
        with contextlib.suppress(FaultError):  # if the host cannot hear it, the agent reverts by itself
            await self._lines.tell(revert=1)
        said = await self._lines.event(*_ENDS, within_s=_REVERTS_WITHIN_S, after=self._since)
        await self._lines.close()
        if said is None:
            raise FaultError(f"{self._where}: {self._id}: {self._lines.over or 'its agent does not answer'}")
        if said["event"] == "stuck":
            raise FaultError(f"{self._where}: {self._id} could not be reverted: {said['proof']}; see {said['note']}")

    async def watch(self, lease_s: float, tell: Callable[[str], None]) -> None:
        """Renews until the fault has ended, even in a cancelled run; reports an end that was not requested."""
        with anyio.CancelScope(shield=True):
            await self._renew(lease_s)
        said = self._ended()
        if said.get("why") != "asked to" and not (self._asked and said.get("why") == "SIGTERM"):
            why = f"{said['why']}; {said['event']} by its {said['by']}" if said else self._lines.over
            tell(f"{self._where}: {self._id} ended: {why}")

    async def leave(self) -> None:
        """Leaves the revert to the agent, whose lease ends."""
        await self._lines.close()

    async def _renew(self, lease_s: float) -> None:
        while self.holds:
            try:
                await self._lines.tell(renew=1)
            except FaultError:
                # its last output, if any
                await self._lines.event(*_ENDS, within_s=_REVERTS_WITHIN_S, after=self._since)
                return
            await self._lines.event(*_ENDS, within_s=lease_s / _RENEWALS, after=self._since)


async def apply(
    shell: Shell,
    kind: str,
    fault_id: str,
    args: Mapping[str, Any],
    *,
    terms: Terms,
    tasks: TaskGroup,
    tell: Callable[[str], None],
) -> LeasedFault:
    """Returns once the agent has read back that it is in force. If it raises FaultError, nothing is in force."""
    spec = {
        "id": fault_id,
        "kind": kind,
        "args": dict(args),
        "lease_s": terms.lease_s,
        "deadline_s": terms.deadline_s,
        "renewals": shell.renewed_by,
        "waits": shell.renewed_by == "signal",
        "folder": terms.folder,
        "who": terms.who,
        "run": terms.run,
        "armed": terms.armed,
    }
    lines = await listen_to(shell.where, await shell.hold(spec), tasks)
    said = await lines.event("applied", "refused", "failed", within_s=_APPLIES_WITHIN_S)
    since = 0 if said is None else next(n for n, one in enumerate(lines.events, start=1) if one is said)
    if said is None or said["event"] != "applied":
        if said is not None and said["event"] == "failed":
            await lines.event(*_ENDS, within_s=_REVERTS_WITHIN_S, after=since)
        await lines.close()
        raise FaultError(f"{shell.where}: {said['why'] if said else lines.over or 'the agent does not answer'}")
    fault = LeasedFault(lines, shell.where, fault_id, since)
    fault.figures = said.get("figures", {})
    tasks.start_soon(fault.watch, terms.lease_s, tell)
    return fault


async def undo_left(
    shell: Shell,
    fault_id: str,
    kind: str,
    *,
    terms: Terms,
    tasks: TaskGroup,
    patience: Patience,
    observe: Callable[[], Awaitable[object]],
) -> None:
    """Reverts, from its note, the fault with that id that an agent left. Raises FaultError.

    Waits for a host that does not answer, and then until `observe`, which the proof needs, raises no FaultError. Raises
    OthersFaultError if nothing of this run is left and another run has a fault of that `kind` in force.
    """
    while True:
        said, why = await _undone(shell, fault_id, terms, tasks)
        if said is not None or not await patience.worth(f"{shell.where}: {why.removeprefix(f'{shell.where}: ')}"):
            break
    others = _of_others(said, kind) if said is not None else ""
    if said is None or (said["event"] != "reverted" and not others):
        why = (said.get("proof") or said.get("why") if said else why) or "no answer"
        raise FaultError(f"{shell.where}: {fault_id} could not be reverted: {why.removeprefix(f'{shell.where}: ')}")
    if patience.waited:
        await _observing(observe, patience)
    patience.rewarded(shell.where)
    if others:
        raise OthersFaultError(f"{shell.where}: {fault_id}: nothing of this run is left there: {others}")


async def _observing(observe: Callable[[], Awaitable[object]], patience: Patience) -> None:
    while True:
        try:
            await observe()
        except FaultError as error:
            if await patience.worth(str(error)):
                continue
        return


def _of_others(said: Mapping[str, Any], kind: str) -> str:
    """The owners of other faults of that kind in force there, in words; "" for none."""
    if said["event"] == "refused":
        return str(said["why"]) if said.get("name") == "another-run" else ""
    others = [one for one in said.get("others", ()) if said["event"] == "reverted" and one["kind"] == kind]
    return "; ".join(str(one["why"]) for one in others)


async def _undone(shell: Shell, fault_id: str, terms: Terms, tasks: TaskGroup) -> tuple[Mapping[str, Any] | None, str]:
    """The output of the reverting program; if it is None, also why."""
    spec = {"undo": True, "id": fault_id, "folder": terms.folder, "run": terms.run}
    try:
        await shell.again()
        lines = await open_lines(shell, program(spec), tasks)
    except FaultError as error:
        return None, str(error)
    said = await lines.event("reverted", "stuck", "refused", within_s=_REVERTS_WITHIN_S)
    await lines.close()
    return said, lines.over


async def open_lines(shell: Shell, text: str, tasks: TaskGroup) -> Lines:
    """Runs a program there and listens to it. Raises FaultError."""
    return await listen_to(shell.where, await shell.start(text), tasks)


async def listen_to(where: str, session: Session, tasks: TaskGroup) -> Lines:
    lines = Lines(session, where)
    tasks.start_soon(lines.listen)
    await anyio.lowlevel.checkpoint()
    return lines
