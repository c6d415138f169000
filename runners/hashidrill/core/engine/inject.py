"""The one place where a fault is applied, proven, reverted and proven gone.

The body of `async with injected(...)` starts once the fault is proven in force. However the body ends, the fault is
reverted in a scope that cancellation cannot reach. The intent is on disk before anything is touched. `hold` keeps
the fault for its time and proves it again just before the end, because an effect may vanish meanwhile.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import anyio

from hashidrill.core.errors import FaultError, HashidrillError, OthersFaultError, RevertError
from hashidrill.core.protocols.abc import (
    Evidence,
    Fault,
    HappensOnce,
    Hosts,
    KeepsPrior,
    ObservedSlowly,
    Target,
    Undo,
    UndoneByOthers,
)
from hashidrill.core.recording.journal import Entry, Journal
from hashidrill.core.util.wait import first_cause, pause

PROVEN_WITHIN_S = 5.0
"""How long the observer may take to see a fault's effect."""
GONE_WITHIN_S = 20.0
"""How long the observer may take to see the effect gone: a killed agent needs some seconds to answer after its
restart.
"""
REVERT_TRIES = 3
REVERT_WITHIN_S = 45.0
"""How long one try to revert may take; longer than the timeout of any request that a revert makes."""
_GAP_S = 0.1
_LOOKS_AGAIN = 2
"""After a failed look just before the revert, how many looks in a row must prove the fault."""


Undoing = Callable[[frozenset[str]], str]
Lasts = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class InForce:
    """A fault that was proven in force.

    `applied_s` is when it was applied (event loop's clock), `proof_s` how many seconds its observer took to see it.
    """

    fault: Fault
    undo: Undo
    journal: Journal
    evidence: Evidence
    proof_s: float
    applied_s: float

    def left_s(self, for_s: float) -> float:
        """How many of the `for_s` seconds in force are left, counted from when the fault was applied."""
        return max(0.0, for_s - (anyio.current_time() - self.applied_s))

    @property
    def happens_once(self) -> bool:
        return isinstance(self.fault, HappensOnce) and self.fault.once

    async def hold(self, for_s: float, *, lasts: Lasts = pause, undone_by: Undoing = lambda _: "") -> None:
        """Holds the fault until it has been in force for `for_s`, including both proofs. `lasts(seconds)` waits.

        There is no second proof for a fault that happens once (`once`), or for a fault that another one has undone on
        purpose: `undone_by(kinds)` returns the first of these kinds that was proven since, or "".
        """
        if self.happens_once:
            await lasts(self.left_s(for_s))
            return
        await lasts(self.left_s(for_s - self.proof_s))
        if isinstance(self.fault, UndoneByOthers) and (kind := undone_by(self.fault.undone_by)):
            self.journal.write("fault.undone", sync=True, fault_id=self.undo["fault_id"], by=kind)
        else:
            looked_s = anyio.current_time()
            await self.prove_again()
            await lasts(min(self.left_s(for_s), max(0.0, self.proof_s - (anyio.current_time() - looked_s))))

    async def prove_again(self) -> bool | None:
        """Asks the observer again, and writes `fault.still` or `fault.faded`.

        Returns whether the fault is still in force, or None if the observer never answered.

        One answer is enough if the first look sees the effect; after a look that does not, two in a row must see it.
        """
        evidence, answered = await self._answer()
        if answered and not evidence.ok:
            first = evidence
            for _ in range(_LOOKS_AGAIN):
                await pause(_GAP_S)
                evidence, answered = await self._answer()
                if not evidence.ok:
                    evidence = first
                    break
        event = "fault.still" if evidence.ok else "fault.faded"
        self.journal.write(event, sync=True, fault_id=self.undo["fault_id"], evidence=noted(self.fault, evidence))
        return evidence.ok if evidence.ok or answered else None

    async def _answer(self) -> tuple[Evidence, bool]:
        """Asks the observer until it answers. Returns its evidence and whether it answered at all.

        An agent that is too busy to answer has not recovered, so an unanswered check is repeated for as long as the
        first proof may take. A longer silence proves nothing.
        """
        look_s = max(PROVEN_WITHIN_S, 3 * self.proof_s)
        give_up_s = anyio.current_time() + max(2 * look_s, observed_within_s(self.fault, PROVEN_WITHIN_S))
        while True:
            evidence, answered = await _look_within(self.fault, self.undo, within_s=look_s)
            if answered or anyio.current_time() >= give_up_s:
                return evidence, answered
            await pause(_GAP_S)


@asynccontextmanager
async def injected(
    fault: Fault, target: Target, *, fault_id: str, step: int, journal: Journal
) -> AsyncIterator[InForce]:
    """Keeps one fault in force on one target inside the block. Yields it with its proof.

    Raises FaultError if it could not be applied or was not proven, RevertError if it is not gone afterwards.
    """
    undo = await planned(fault, target, fault_id)
    journal.write(
        "fault.intent",
        sync=True,
        fault_id=fault_id,
        kind=fault.kind,
        step=step,
        target=asdict(target),
        params=undo["params"],
        undo=journal.undos.for_journal(undo),
    )
    try:
        yield await _apply(fault, undo, journal)
    finally:
        with anyio.CancelScope(shield=True):
            await revert(fault, undo, journal)


def noted(fault: Fault, evidence: Evidence) -> dict[str, Any]:
    """The evidence for the journal, with the observer's means and what they share with the injector's."""
    return {**asdict(evidence), **(asdict(fault.observer) if fault.observer else {})}


def observed_within_s(fault: Fault, ordinary_s: float) -> float:
    """How many seconds the observer may take to agree: `ordinary_s`, or longer if the fault declares so."""
    return max(ordinary_s, fault.observed_within_s) if isinstance(fault, ObservedSlowly) else ordinary_s


async def planned(fault: Fault, target: Target, fault_id: str) -> Undo:
    """The complete undo: the fault's plan, and the state it finds before it is applied. Raises FaultError."""
    undo = fault.plan(target, fault_id=fault_id)
    try:
        return {**undo, "prior": dict(await fault.prior(target)) if isinstance(fault, KeepsPrior) else {}}
    except HashidrillError as error:
        raise FaultError(f"{fault.kind} on {target.host}: nothing was applied: {error}") from None


async def _apply(fault: Fault, undo: Undo, journal: Journal) -> InForce:
    """Applies the fault and waits for its proof. Raises FaultError."""
    fault_id, where = undo["fault_id"], f"{fault.kind} on {undo['host']}"
    try:
        await fault.apply(undo)
    except HashidrillError as error:
        journal.write("fault.failed", sync=True, fault_id=fault_id, error=str(error))
        raise FaultError(f"{where}: could not be applied: {error}") from None
    except Exception as error:
        journal.write("fault.failed", sync=True, fault_id=fault_id, error=f"{type(error).__name__}: {error}")
        raise FaultError(f"{where}: apply crashed: {type(error).__name__}: {error}") from error
    journal.write("fault.applied", sync=True, fault_id=fault_id)
    applied_s = anyio.current_time()
    within_s = observed_within_s(fault, PROVEN_WITHIN_S)
    evidence, proof_s = await _seen(fault, undo, present=True, within_s=within_s)
    if not evidence.ok:
        journal.write("fault.unproven", sync=True, fault_id=fault_id, evidence=noted(fault, evidence))
        raise FaultError(
            f"{where}: not proven in force within {within_s:g}s: expected {evidence.asked}; "
            f"measured {evidence.measured}"
        )
    journal.write("fault.proven", sync=True, fault_id=fault_id, evidence=noted(fault, evidence))
    return InForce(fault, undo, journal, evidence, proof_s, applied_s)


async def revert(fault: Fault, undo: Undo, journal: Journal, *, gone_within_s: float = GONE_WITHIN_S) -> str:
    """Reverts the fault and proves its effect gone. Raises RevertError; the journal then says `fault.stuck`.

    Returns "gone". Returns "ended" if nothing of this run is left, but another run has a fault of this kind in force
    there: observers cannot distinguish the two. A journal that cannot be written (OSError) neither ends the revert
    early nor hides a fault that stays in force.
    """
    fault_id, where = undo["fault_id"], f"{fault.kind} on {undo['host']}"
    error = await _try_revert(fault, undo)
    if error is not None and not isinstance(error, OthersFaultError):
        _write(journal, "fault.stuck", fault_id=fault_id, error=f"{type(error).__name__}: {error}")
        raise RevertError(f"{where}: could not be reverted: {type(error).__name__}: {error}")
    unwritten = _write(journal, "fault.reverted", fault_id=fault_id)
    gone_within_s = observed_within_s(fault, gone_within_s)
    evidence, _ = await _seen(fault, undo, present=False, within_s=gone_within_s)
    if not evidence.ok and error is not None:
        told = Evidence(True, f"nothing of this run on {undo['host']}", f"{error}; seen: {evidence.measured}")
        unwritten = _write(journal, "fault.ended", fault_id=fault_id, evidence=asdict(told)) or unwritten
        return _settled(journal, fault_id, unwritten, "ended")
    if not evidence.ok:
        _write(journal, "fault.stuck", fault_id=fault_id, evidence=noted(fault, evidence))
        raise RevertError(
            f"{where}: still seen {gone_within_s:g}s after its revert: expected {evidence.asked}; "
            f"measured {evidence.measured}"
        )
    unwritten = _write(journal, "fault.gone", fault_id=fault_id, evidence=noted(fault, evidence)) or unwritten
    return _settled(journal, fault_id, unwritten, "gone")


def _settled(journal: Journal, fault_id: str, unwritten: OSError | None, how: str) -> str:
    """Returns `how` once the journal is complete. Raises the OSError of a failed write to the journal."""
    journal.undos.forget(fault_id)
    if unwritten is not None:
        raise unwritten
    return how


def _write(journal: Journal, event: str, **data: Any) -> OSError | None:
    """Writes the event. Returns the error instead of raising it, because the caller finishes its work first."""
    try:
        journal.write(event, sync=True, **data)
    except OSError as error:
        return error
    return None


async def _try_revert(fault: Fault, undo: Undo) -> Exception | None:
    error: Exception | None = None
    for _ in range(REVERT_TRIES):
        try:
            with anyio.move_on_after(REVERT_WITHIN_S):  # nothing else can end it: this scope is shielded
                await fault.revert(undo)
                return None
            error = FaultError(f"its revert did not finish within {REVERT_WITHIN_S:g}s")
        except OthersFaultError as failure:
            return failure
        except Exception as failure:  # noqa: BLE001 - a fault that stays is worse than any error: try again, then report
            error = failure
        await pause(_GAP_S)
    return error


async def _seen(fault: Fault, undo: Undo, *, present: bool, within_s: float) -> tuple[Evidence, float]:
    """Asks the observer until it agrees, or for `within_s`. Returns its last evidence and the seconds it took."""
    evidence, took_s = _silent(fault), 0.0
    with anyio.move_on_after(within_s):
        while not evidence.ok:
            began_s = anyio.current_time()
            evidence, _ = await _observe(fault, undo, present=present)
            took_s = anyio.current_time() - began_s
            if not evidence.ok:
                await pause(_GAP_S)
    return evidence, took_s


async def _look_within(fault: Fault, undo: Undo, *, within_s: float) -> tuple[Evidence, bool]:
    with anyio.move_on_after(within_s):
        return await _observe(fault, undo, present=True)
    return _silent(fault), False


def _silent(fault: Fault) -> Evidence:
    return Evidence(ok=False, asked=fault.kind, measured="the observer never answered")


async def _observe(fault: Fault, undo: Undo, *, present: bool) -> tuple[Evidence, bool]:
    """Asks the observer once. Returns its evidence and whether it answered; an observer that fails proves nothing."""
    try:
        return await fault.verify(undo, present=present), True
    except Exception as error:  # noqa: BLE001 - whatever it raises
        cause = first_cause(error)
        said = f"the observer failed: {type(cause).__name__}: {cause}"
        return Evidence(ok=False, asked=fault.kind, measured=said), False


def fault_from_undo(undo: dict[str, Any], hosts: Any) -> Fault:
    """Builds the fault again in a fresh process, from its undo. Raises UnknownNameError, ExperimentError."""
    from hashidrill.core.experiment.model import fitted  # noqa: PLC0415 - as below
    from hashidrill.core.protocols import registry  # noqa: PLC0415 - the registry imports every fault

    cls = registry.fault(undo["kind"])
    built: Fault = cls(fitted(cls, undo["params"]), hosts)
    return built


def open_faults(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The undo of every fault that was intended and never proven gone, latest first."""
    undos: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry.event == "fault.intent":
            undos[entry.data["fault_id"]] = {**entry.data["undo"], "fault_id": entry.data["fault_id"]}
        elif entry.event in {"fault.gone", "fault.ended"}:
            undos.pop(entry.data["fault_id"], None)
    return list(reversed(undos.values()))


async def settle(undo: dict[str, Any], hosts: Hosts, journal: Journal) -> str:
    """Reverts the fault on its host and proves it gone. Returns `reverted`, `others` (as in Healed) or `stuck`."""
    return (await settled(undo, hosts, journal))[0]


async def settled(
    undo: dict[str, Any], hosts: Hosts, journal: Journal, *, gone_within_s: float = GONE_WITHIN_S
) -> tuple[str, str]:
    """Like `settle`, with the reason: why the fault is stuck, or which other run owns it."""
    try:
        undo = journal.undos.restored(undo)
        how = await revert(fault_from_undo(undo, hosts), undo, journal, gone_within_s=gone_within_s)
    except RevertError as error:
        return "stuck", str(error)
    except HashidrillError as error:
        journal.write("fault.stuck", sync=True, fault_id=undo["fault_id"], error=str(error))
        return "stuck", str(error)
    if how == "ended":
        return "others", "nothing of this run is left there; another run has such a fault in force, which stays"
    return "reverted", ""
