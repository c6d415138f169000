"""Removes data that the loads of a run leave in an attached datacenter's products.

A load cleans up after itself if it can. This module covers the rest: a killed load process, an agent that stopped
answering, and keys that the next run would overwrite in a local datacenter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import LeavesThings
from hashidrill.core.protocols.rights import Left
from hashidrill.core.util.wait import all_at_once, pause
from hashidrill.staging.attach.links import OURS, TOXICS, TOXIPROXY, remove_toxics_of
from hashidrill.staging.attach.product import attachables

if TYPE_CHECKING:
    from hashidrill.core.experiment.model import Experiment
    from hashidrill.staging.attach.http import Wire

_WITHIN_S, _AGAIN_S = 30.0, 0.5
_OTHERS = "another run may use it by now: this one lost its lock"
May = Callable[[Left], Awaitable[bool]]
"""Whether that data may be removed now. Raises FaultError if that is unknown."""


class Told(Protocol):
    """Receives an audit line; neither raises nor waits."""

    def __call__(self, verb: str, what: str = "", where: str = "", note: str = "") -> None: ...


def leavings(experiment: Experiment, run_id: str, wires: Mapping[str, Wire]) -> dict[Left, str]:
    """The data that a run of the experiment may leave, each with the kind of load that made it."""
    of_loads = {
        left: load.kind
        for name, load in experiment.load.items()
        if isinstance(kind := registry.load(load.kind), LeavesThings)
        for left in kind.leaves(name, load.parameters, run_id)
    }
    toxics = {Left(TOXIPROXY, TOXICS, f"{OURS}{run_id}-"): TOXIPROXY} if TOXIPROXY in wires else {}
    return of_loads | toxics


def shared_leavings(experiment: Experiment, run_id: str, wires: Mapping[str, Wire]) -> set[Left]:
    """The `leavings` that other runs of the experiment share: their names come from the load, not from the run."""
    return {*leavings(experiment, run_id, wires)} & {*leavings(experiment, f"not-{run_id}", wires)}


async def sweep(
    found: Mapping[Left, str],
    wires: Mapping[str, Wire],
    told: Told,
    *,
    within_s: float = _WITHIN_S,
    may: May | None = None,
) -> tuple[Sequence[str], Sequence[str]]:
    """Removes data. Returns what was removed, and what could not be removed and why; each is also an audit line.

    `may` is called before each removal. Raises nothing.
    """
    ends_s = anyio.current_time() + within_s
    done: dict[Left, tuple[int, str]] = {}

    async def one(left: Left) -> None:
        done[left] = await _removed(left, wires, ends_s, may)

    await all_at_once(partial(one, left) for left in found)
    removed, kept = [], []
    for left, kind in found.items():
        count, why = done[left]
        if why:
            told("left", kind, str(left), note=why)
            kept.append(f"{left}: {why}")
        elif count:
            told("clean-up", kind, str(left), note=f"{count} removed")
            removed.append(f"{left}: {count}")
    return removed, kept


async def _removed(left: Left, wires: Mapping[str, Wire], ends_s: float, may: May | None) -> tuple[int, str]:
    """(how many, why not): retries until `ends_s`, because a recovering datacenter may be silent for a while."""
    if left.service not in wires:
        return 0, f"the attach file names no {left.service}"
    why = "it was still there when its time was over"
    with anyio.CancelScope(deadline=ends_s):
        while True:
            try:
                if may is not None and not await may(left):
                    return 0, _OTHERS
                return await _remover(left.service)(wires[left.service], left), ""
            except FaultError as error:
                why = str(error)
            await pause(_AGAIN_S)
    return 0, why


def _remover(service: str) -> Callable[[Wire, Left], Awaitable[int]]:
    return remove_toxics_of if service == TOXIPROXY else attachables([service])[service].remove


@asynccontextmanager
async def leaving_nothing(
    experiment: Experiment,
    wires: Mapping[str, Wire],
    run_id: str,
    told: Told,
    say: Callable[[str], None],
    *,
    mine: Callable[[], Awaitable[bool]],
) -> AsyncIterator[None]:
    """Surrounds a run: at the end of the block it removes what the loads left, or `say` reports what remains.

    `mine` says whether no other run can be in progress (interlocks.Held.mine). A run that lost its lock removes only
    data with its own id in the name: other keys may belong to the run that holds the lock now.
    """
    shared = shared_leavings(experiment, run_id, wires)

    async def may(left: Left) -> bool:
        return left not in shared or await mine()

    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            _, kept = await sweep(leavings(experiment, run_id, wires), wires, told, may=may)
            for text in kept:
                say(f"left behind: {text}; `hashidrill heal --attach FILE` tries again")
