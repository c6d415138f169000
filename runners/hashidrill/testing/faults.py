"""The contract that every fault keeps, as one public check: `await check_fault(fault, target)`.

Authors of a fault run it on a FakeDatacenter and on a real one. It raises AssertionError that names the broken
clause.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from hashidrill.core.engine.inject import GONE_WITHIN_S, PROVEN_WITHIN_S, fault_from_undo, observed_within_s, planned
from hashidrill.core.errors import WaitTimeoutError
from hashidrill.core.protocols.abc import Evidence, Fault, HappensOnce, Target, Undo
from hashidrill.core.util.wait import wait_until


@dataclass(frozen=True)
class FaultReport:
    """The two proofs: that the fault was in force, and that it was gone."""

    present: Evidence
    gone: Evidence


async def check_fault(
    fault: Fault,
    target: Callable[[], Target] | Target,
    *,
    has_effect: bool = True,
    momentary: bool = False,
    recreate: bool = True,
) -> FaultReport:
    """Applies `fault` to `target` and reverts it, and checks each clause of the contract.

    `target` may be a function: a fault that ends an agent changes its process. `has_effect=False` is for `noop`,
    which has no effect to observe; `momentary=True` for a fault that is over by itself, like a restart.
    `recreate=False` skips rebuilding the fault by its kind's name, for an unregistered fault. Raises AssertionError.
    """
    aim = target if callable(target) else lambda: target
    fault_id = f"check-{fault.kind}"
    undo = await _plan(fault, aim(), fault_id)
    await fault.revert(undo)  # before apply: nothing to revert is not an error
    if has_effect:
        before = await fault.verify(undo, present=True)
        assert not before.ok, f"{fault.kind}: the observer sees the effect before it was applied: {before.measured}"
    await _apply_and_prove(fault, undo)
    present = await _seen(fault, undo, present=True)
    if not (isinstance(fault, HappensOnce) and fault.once):
        await _seen(fault, undo, present=True, what="still in force")  # it is proven again just before its revert
    if has_effect and not momentary:
        still = await fault.verify(undo, present=False)
        assert not still.ok, f"{fault.kind}: the observer reports it gone while it is in force: {still.measured}"
    fresh = fault_from_undo(dict(undo), fault.hosts) if recreate else fault  # type: ignore[attr-defined]
    await fresh.revert(undo)
    gone = await _seen(fault, undo, present=False)
    await fault.revert(undo)  # again: idempotent
    again = await _seen(fault, undo, present=False)
    assert again.ok, f"{fault.kind}: a second revert brought the effect back: {again.measured}"
    return FaultReport(present, gone)


async def _plan(fault: Fault, target: Target, fault_id: str) -> Undo:
    undo = fault.plan(target, fault_id=fault_id)
    assert undo == fault.plan(target, fault_id=fault_id), f"{fault.kind}: plan is not deterministic"
    undo = await planned(fault, target, fault_id)
    thawed: Undo = json.loads(json.dumps(undo))
    assert thawed == json.loads(json.dumps(dict(undo))), f"{fault.kind}: the undo does not survive the journal"
    for key in ("fault_id", "kind", "host", "params"):
        assert key in thawed, f"{fault.kind}: the undo lacks {key!r}, without which a fresh process cannot revert"
    return thawed


async def _apply_and_prove(fault: Fault, undo: Undo) -> None:
    try:
        await fault.apply(undo)
    except BaseException:
        await fault.revert(undo)
        raise


async def _seen(fault: Fault, undo: Undo, *, present: bool, what: str = "") -> Evidence:
    async def look() -> tuple[Evidence | None, str]:
        evidence = await fault.verify(undo, present=present)
        return (evidence if evidence.ok else None), f"asked {evidence.asked}, measured {evidence.measured}"

    within_s = observed_within_s(fault, PROVEN_WITHIN_S if present else GONE_WITHIN_S)
    what = f"{fault.kind} to be {what or ('in force' if present else 'gone')}"
    try:
        return await wait_until(what, look, within_s=within_s)
    except WaitTimeoutError as error:
        if present:
            await fault.revert(undo)
        raise AssertionError(f"{fault.kind}: {error}") from None
