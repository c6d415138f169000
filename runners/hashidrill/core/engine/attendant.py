"""Somebody acts while the faults of the method last: a runbook that is rehearsed, or a person who is trained.

The method's clock stands still meanwhile, so what is in force stays in force, however long the attendant takes, and no
later step begins. When it returns, the method ends: everything reverts, as at its end.

What somebody has to do by hand, like unsealing a server that was started again, is theirs as well: the datacenter
does it before they come, and once they have left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hashidrill.core.engine.method_clock import GONE, PROVEN
from hashidrill.core.engine.run_state import Attendant, Run
from hashidrill.core.experiment.model import Step
from hashidrill.core.util.wait import wait_until

if TYPE_CHECKING:
    import anyio

__all__ = ["Attendant", "attended", "kept"]

_SETTLED_WITHIN_S = 600.0
"""A step that cannot be applied ends the run by itself, long before."""
_LOOK_EVERY_S = 0.1


async def attended(running: Run, attendant: Attendant, method: anyio.CancelScope) -> None:
    """Waits for the attendant's moment, lets it act, and ends the method."""
    await running.method.until(attendant.at_s)
    async with running.stands_still(["whoever attends"]):
        await _settled(running, attendant.at_s)
        running.journal.write("attended.begins", sync=True, at_s=attendant.at_s, in_force=sorted(running.in_force))
        running.keeping.cancel()
        try:
            await attendant.attend(running)
        finally:
            running.left.set()
        running.journal.write("attended.ends", sync=True)
        method.cancel()  # before the clock goes on: nothing begins, or ends by itself, in between


async def kept(running: Run) -> None:
    """The datacenter's `keep`, except while somebody attends. Until cancelled, or until it has nothing to keep."""
    with running.keeping:
        await running.datacenter.keep(running.tell)
    if running.keeping.cancel_called:
        await running.left.wait()
        await running.datacenter.keep(running.tell)


async def _settled(running: Run, at_s: float) -> None:
    """Until all that is to be over by then is gone, and all that is to last is proven. Raises WaitTimeoutError."""
    steps = [(n, step) for n, step in enumerate(running.experiment.method) if isinstance(step, Step)]

    async def look() -> tuple[bool | None, str]:
        begun = [(n, step, GONE if step.at + step.for_ <= at_s else PROVEN) for n, step in steps if step.at <= at_s]
        open_ = [f"{step.fault} is not yet {what}" for n, step, what in begun if not running.settling.reached(n, what)]
        return (None, "; ".join(open_)) if open_ else (True, "")

    await wait_until("the faults of the method", look, within_s=_SETTLED_WITHIN_S, gap_s=_LOOK_EVERY_S)
