"""How the observer of a disk fault counts canary operations of each kind, before the fault and during it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, patient
from hashidrill.core.faults.significance import Counts, counts, most_before, smallest_share, trials_for
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Place, Requires, Target, Timing, Undo
from hashidrill.core.protocols.capabilities import DiskCanary, DiskControl
from hashidrill.core.protocols.claims import DISK, HOST, needs, takes
from hashidrill.core.units import Percent
from hashidrill.core.util.wait import all_at_once

P = TypeVar("P", bound=Strict)
_BYTES = 4096
_BASELINE_WITHIN_S, _WITHIN_S = 4.0, 20.0
DRIFT_S = 0.005
"""By how much a disk's own times may change between two looks, as something else on the machine begins to write.

Quiet SSDs sync in 0.2 ms, and in 4 ms next to another writer: such a change is in every operation of a look, so that
no count of hits tells it from a delay. What is asked for must be longer than the baseline and this.
"""


@dataclass(frozen=True)
class Tried:
    """Results of the canary's operations of one kind. `before_s`: their typical time in the baseline."""

    operation: str
    trials: int
    hits: int
    typical_s: float
    median_hit_s: float
    longest_s: float
    before_s: float = 0.0


def acts_on(kind: str, operations: Iterable[str]) -> Sequence[Claim]:
    """The claims of a fault on these operations: one fault may slow reads while another fails writes."""
    parts = frozenset(operations)
    why = "both act on every {parts} there, and the effect of one would hide the other's"
    return (needs(HOST), takes(kind, parts=parts), takes(DISK, why, parts=parts))


class DiskTrialFault(BaseFault[P]):
    """A fault that hits all operations of some kinds, or a share of them."""

    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({DiskCanary, DiskControl})

    def requires(self) -> Requires:
        return replace(super().requires(), disk_operations=frozenset(self.operations()))

    def uses(self, place: Place) -> Sequence[Claim]:
        return acts_on(self.kind, self.operations())

    @property
    def size_bytes(self) -> int:
        """The bytes of each trial."""
        return _BYTES

    def rule(self) -> Mapping[str, Any]:
        """What is asked of the host (`DiskControl`): a carrier that cannot do it says so before anything begins."""
        raise AssertionError

    async def apply(self, undo: Undo) -> None:
        await self._host(undo).use(DiskControl).set_disk_rule(undo["fault_id"], self.rule())

    def operations(self) -> Sequence[str]:
        """The kinds that the fault names: each is tried."""
        raise AssertionError

    def shares(self) -> tuple[float, float]:
        """The share of operations that it hits, at least and at most."""
        raise AssertionError

    def hit(self, timing: Timing) -> bool:
        raise AssertionError

    def near(self, timing: Timing) -> bool:
        """Whether an operation of the baseline would be a hit, were the disk a little slower by itself."""
        return self.hit(replace(timing, seconds=timing.seconds + DRIFT_S))

    def refused(self, operation: str, timings: Sequence[Timing], at_most: int) -> str:
        """Why this baseline cannot prove the fault, and what it could prove with `at_most` hits in the baseline."""
        raise AssertionError

    def as_asked(self, tried: Tried) -> bool:
        """Whether the effect is not far stronger than what was asked for."""
        return True

    def asked(self, operation: str, *, present: bool) -> str:
        raise AssertionError

    def measured(self, tried: Tried) -> str:
        raise AssertionError

    def figures(self, tried: Tried) -> dict[str, float | str]:
        raise AssertionError

    @property
    def _trials(self) -> int:
        least, most = self.shares()
        return trials_for(least, most)

    def _counts(self, before: int) -> Counts | None:
        least, most = self.shares()
        return counts(self._trials, least, before, highest=most)

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        """The baseline. Raises FaultError if it could not prove the fault."""
        looked = await self._look(self.hosts.host(target.host), _BASELINE_WITHIN_S)
        baseline = {}
        for operation, timings in looked.items():
            if len(timings) < self._trials:
                raise FaultError(self._too_slow(operation, len(timings)))
            tried = self._tried(operation, timings)
            if self._counts(sum(map(self.near, timings))) is None:
                least, most = self.shares()
                raise FaultError(self.refused(operation, timings, most_before(self._trials, least, highest=most)))
            baseline[operation] = {"hits": tried.hits, "trials": tried.trials, "typical_s": tried.typical_s}
        return {"baseline": baseline}

    def _too_slow(self, operation: str, trials: int) -> str:
        share = smallest_share(trials)
        could = f"use percent: {Percent(share)} or more" if share <= 1 else "this disk is too slow for any share"
        return (
            f"the proof needs {self._trials} {operation}s, but this disk did only {trials} in the time for it: {could}"
        )

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Counts the hits of each kind of operation. Raises FaultError if the canary finished none of them in time."""
        baseline = undo.get("prior", {}).get("baseline", {})
        seen: list[tuple[bool, Tried]] = []
        for operation, timings in (await self._look(self._host(undo), _WITHIN_S)).items():
            before = baseline.get(operation, {})
            if not timings:
                raise FaultError(f"{self.kind} on {undo['host']}: no {operation} of the canary finished in time")
            tried = self._tried(operation, timings, before.get("typical_s", 0.0))
            needed = self._counts(before.get("hits", 0))
            if present:
                ok = needed is not None and needed.shows(tried.hits) and self.as_asked(tried)
            else:
                ok = needed is not None and needed.is_free(tried.hits)
            seen.append((ok and len(timings) == self._trials, tried))
        ok = all(each for each, _ in seen)
        told = next((tried for each, tried in seen if not each), seen[0][1])  # one that speaks against it, if any
        return Evidence(
            ok,
            self.asked("/".join(self.operations()), present=present),
            self.measured(told),
            {"trials": told.trials, "operations": len(seen), **self.figures(told)},
        )

    def _tried(self, operation: str, timings: Sequence[Timing], before_s: float = 0.0) -> Tried:
        seconds = [timing.seconds for timing in timings]
        hits = [timing.seconds for timing in timings if self.hit(timing)]
        median = statistics.median(hits) if hits else 0.0
        typical = median if len(hits) >= len(timings) * self.shares()[0] / 2 else statistics.median(seconds)
        return Tried(operation, len(timings), len(hits), typical, median, max(seconds), before_s)

    async def _look(self, host: Host, within_s: float) -> dict[str, Sequence[Timing]]:
        seen: dict[str, Sequence[Timing]] = dict.fromkeys(self.operations(), ())

        async def one(operation: str) -> None:
            seen[operation] = await host.use(DiskCanary).canary_disk(operation, self.size_bytes, self._trials, within_s)

        await all_at_once(partial(one, operation) for operation in seen)
        return seen

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(DiskControl).clear_disk_rule(undo["fault_id"])
