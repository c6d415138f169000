"""Operations of a load and samples of a signal, as columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hashidrill.core.protocols.abc import Detail

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Bools = npt.NDArray[np.bool_]
else:
    Int64s = Floats = Bools = "numpy.ndarray"  # for annotations alone: to read a hypothesis's parameters takes no numpy


IMPLAUSIBLE = 2.0**53
"""No figure of a probe is as large: a sample that says so, or infinity, is a look that failed."""


@dataclass(frozen=True)
class Operations:
    """The operations of one load, as columns in order of their intended start."""

    intended_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s
    outcome: npt.NDArray[np.str_]
    status: Int64s
    keys: list[str] = field(repr=False)
    values: list[str] = field(repr=False)
    errors: list[str] = field(repr=False)
    """In words, for people; `reasons`: the same as codes (hashidrill.core.protocols.abc.Reason)."""
    reasons: list[str] = field(default_factory=list, repr=False)
    details: list[Detail | None] = field(default_factory=list, repr=False)
    """What operations of its sort say beside this."""

    def __len__(self) -> int:
        return len(self.intended_ns)

    @cached_property
    def latency_s(self) -> Floats:
        """Seconds from the intended start to the end: free of coordinated omission."""
        return (self.end_ns - self.intended_ns).astype(np.float64) / 1e9

    @cached_property
    def lag_s(self) -> Floats:
        """Seconds from the intended to the real start: how far the generator itself was behind."""
        return (self.start_ns - self.intended_ns).astype(np.float64) / 1e9

    @cached_property
    def ok(self) -> Bools:
        return np.asarray(self.outcome == "ok", dtype=np.bool_)

    def between(self, start_ns: int, end_ns: int) -> Operations:
        """Those whose intended start is in [start_ns, end_ns)."""
        return self.within([(start_ns, end_ns)])

    def within(self, spans: Iterable[tuple[int, int]]) -> Operations:
        """Those whose intended start is in any of the spans [start_ns, end_ns), each of them once."""
        inside = np.zeros(len(self), np.bool_)
        for start_ns, end_ns in spans:
            inside |= (self.intended_ns >= start_ns) & (self.intended_ns < end_ns)
        return self.picked(inside)

    def with_outcomes(self, outcome: npt.NDArray[np.str_]) -> Operations:
        """The same operations, ended in these ways."""
        texts = (self.keys, self.values, self.errors, self.reasons, self.details)
        return Operations(self.intended_ns, self.start_ns, self.end_ns, outcome, self.status, *texts)

    def picked(self, mask: Bools) -> Operations:
        """Those under a mask."""
        at = np.flatnonzero(mask)
        texts = (self.keys, self.values, self.errors, self.reasons, self.details)
        picked: list[list[Any]] = [[column[i] for i in at] if column else [] for column in texts]
        return Operations(
            self.intended_ns[at], self.start_ns[at], self.end_ns[at], self.outcome[at], self.status[at], *picked
        )

    def merged(self, other: Operations) -> Operations:
        """The operations of both, in order of their intended start."""
        order = np.argsort(np.concatenate([self.intended_ns, other.intended_ns]), kind="stable")

        def texts(one: list[Any], more: list[Any]) -> list[Any]:
            both = [*one, *more]
            return [both[at] for at in order] if len(both) == len(order) else []

        return Operations(
            np.concatenate([self.intended_ns, other.intended_ns])[order],
            np.concatenate([self.start_ns, other.start_ns])[order],
            np.concatenate([self.end_ns, other.end_ns])[order],
            np.concatenate([self.outcome, other.outcome])[order],
            np.concatenate([self.status, other.status])[order],
            texts(self.keys, other.keys),
            texts(self.values, other.values),
            texts(self.errors, other.errors),
            texts(self.reasons, other.reasons),
            texts(self.details, other.details),
        )

    def error_share(self) -> float:
        """Share of operations that were not ok, 0 to 1; NaN when there are none."""
        return float(1 - self.ok.mean()) if len(self) else float("nan")

    def percentile_s(self, percent: float) -> float:
        """Latency percentile over all operations, failed ones with the time they took; NaN when there are none."""
        return float(np.percentile(self.latency_s, percent)) if len(self) else float("nan")


@dataclass(frozen=True)
class Series:
    """One signal over time. `value` is NaN where the sample failed; `text` then holds the reason."""

    t_ns: Int64s
    value: Floats
    text: list[str]
    host: list[str]
    ok: Bools

    def __len__(self) -> int:
        return len(self.t_ns)

    def between(self, start_ns: int, end_ns: int) -> Series:
        return self._picked(np.flatnonzero((self.t_ns >= start_ns) & (self.t_ns < end_ns)))

    def known_between(self, start_ns: int, end_ns: int) -> Series:
        """The samples in [start_ns, end_ns), and before them the last one by `start_ns`: what was known then."""
        first = max(int(np.searchsorted(self.t_ns, start_ns, side="right")) - 1, 0)
        return self._picked(np.arange(first, max(first, int(np.searchsorted(self.t_ns, end_ns)))))

    def _picked(self, picked: Int64s) -> Series:
        return Series(
            self.t_ns[picked],
            self.value[picked],
            [self.text[i] for i in picked],
            [self.host[i] for i in picked],
            self.ok[picked],
        )
