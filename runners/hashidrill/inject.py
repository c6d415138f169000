"""The one place where a fault is applied, proven, reverted and proven gone.

`async with injected(...)` is entered once the fault is proven in force. However it is left, the fault is reverted, in
a scope that cancellation cannot reach; an intent is on disk before anything is touched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import anyio

from hashidrill.abc import Evidence, Fault, Target, Undo
from hashidrill.errors import FaultError, HashidrillError, RevertError
from hashidrill.journal import Journal
from hashidrill.wait import pause

PROVEN_WITHIN_S = 5.0
"""How long the effect of a fault may take to be seen."""
GONE_WITHIN_S = 20.0
"""How long its traces may last: a killed agent that starts again on a busy machine answers after some seconds."""
REVERT_TRIES = 3
REVERT_WITHIN_S = 45.0
"""How long one try may take: longer than any request that a revert makes waits for its answer."""
_GAP_S = 0.1


@asynccontextmanager
async def injected(
    fault: Fault, target: Target, *, fault_id: str, step: int, journal: Journal, gone_within_s: float = GONE_WITHIN_S
) -> AsyncIterator[Evidence]:
    """One fault on one target, in force inside of the block. Yields the proof.

    Raises FaultError when it could not be applied or was not proven; RevertError when it is not gone afterwards.
    """
    undo = await planned(fault, target, fault_id)
    journal.write(
        "fault.intent", sync=True, fault_id=fault_id, kind=fault.kind, step=step, target=asdict(target),
        params=undo["params"], undo=undo,
    )  # fmt: skip
    try:
        evidence = await _apply(fault, undo, journal)
        yield evidence
    finally:
        with anyio.CancelScope(shield=True):
            await revert(fault, undo, journal, gone_within_s=gone_within_s)


def observed_within_s(fault: Fault, ordinary_s: float) -> float:
    """How long its observer may take to agree: `ordinary_s`, or what the kind says of itself where that is longer."""
    own_s: float = getattr(fault, "observed_within_s", 0.0)
    return max(ordinary_s, own_s)


async def planned(fault: Fault, target: Target, fault_id: str) -> Undo:
    """The whole undo: what the fault plans, and what it finds before it is applied. Raises FaultError."""
    undo = fault.plan(target, fault_id=fault_id)
    try:
        return {**undo, "prior": dict(await fault.prior(target))}
    except HashidrillError as error:
        raise FaultError(f"{fault.kind} on {target.host}: nothing was applied: {error}") from None


async def _apply(fault: Fault, undo: Undo, journal: Journal) -> Evidence:
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
    within_s = observed_within_s(fault, PROVEN_WITHIN_S)
    evidence = await _seen(fault, undo, present=True, within_s=within_s)
    if not evidence.ok:
        journal.write("fault.unproven", sync=True, fault_id=fault_id, evidence=asdict(evidence))
        raise FaultError(
            f"{where}: not proven in force within {within_s:g}s: asked for {evidence.asked}; "
            f"measured {evidence.measured}"
        )
    journal.write("fault.proven", sync=True, fault_id=fault_id, evidence=asdict(evidence))
    return evidence


async def revert(fault: Fault, undo: Undo, journal: Journal, *, gone_within_s: float = GONE_WITHIN_S) -> None:
    """Revert, and prove that the effect is gone. Raises RevertError; the journal says `fault.stuck`."""
    fault_id, where = undo["fault_id"], f"{fault.kind} on {undo['host']}"
    error = await _try_revert(fault, undo)
    if error is not None:
        journal.write("fault.stuck", sync=True, fault_id=fault_id, error=f"{type(error).__name__}: {error}")
        raise RevertError(f"{where}: could not be reverted: {type(error).__name__}: {error}")
    journal.write("fault.reverted", sync=True, fault_id=fault_id)
    gone_within_s = observed_within_s(fault, gone_within_s)
    evidence = await _seen(fault, undo, present=False, within_s=gone_within_s)
    if not evidence.ok:
        journal.write("fault.stuck", sync=True, fault_id=fault_id, evidence=asdict(evidence))
        raise RevertError(
            f"{where}: still seen {gone_within_s:g}s after its revert: expected {evidence.asked}; "
            f"measured {evidence.measured}"
        )
    journal.write("fault.gone", sync=True, fault_id=fault_id, evidence=asdict(evidence))


async def _try_revert(fault: Fault, undo: Undo) -> Exception | None:
    """None, or the error of the last try."""
    error: Exception | None = None
    for _ in range(REVERT_TRIES):
        try:
            with anyio.move_on_after(REVERT_WITHIN_S):  # nothing else could end it: cancellation is kept out here
                await fault.revert(undo)
                return None
            error = FaultError(f"its revert did not end within {REVERT_WITHIN_S:g}s")
        except Exception as failure:  # noqa: BLE001 - a fault that stays is worse than any error: try again, then report
            error = failure
        await pause(_GAP_S)
    return error


async def _seen(fault: Fault, undo: Undo, *, present: bool, within_s: float) -> Evidence:
    """Ask the observer until it agrees, or for `within_s`; its last word."""
    evidence = Evidence(ok=False, asked=fault.kind, measured="the observer never answered")
    with anyio.move_on_after(within_s):
        while not evidence.ok:
            evidence = await _observe(fault, undo, present=present)
            if not evidence.ok:
                await pause(_GAP_S)
    return evidence


async def _observe(fault: Fault, undo: Undo, *, present: bool) -> Evidence:
    try:
        return await fault.verify(undo, present=present)
    except Exception as error:  # noqa: BLE001 - an observer that fails has proven nothing, and says why
        return Evidence(ok=False, asked=fault.kind, measured=f"the observer failed: {_plain(error)}")


def _plain(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def fault_from_undo(undo: dict[str, Any], hosts: Any) -> Fault:
    """The fault again, in a fresh process, from what the journal holds. Raises UnknownNameError."""
    from hashidrill import registry  # noqa: PLC0415 - the registry imports every fault

    cls = registry.fault(undo["kind"])
    built: Fault = cls(cls.Params.model_validate(undo["params"]), hosts)
    return built
