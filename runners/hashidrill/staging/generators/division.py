"""Divides an experiment's loads among workers, and checks that together they offered what was requested.

A load that divides is offered by all: worker i of N performs operations i, i + N, i + 2N... of the one schedule,
each at the moment, with the key and the value that it would have from a single generator. So rates are divided
exactly, whatever the profile does, and no two workers share an operation. A load that does not divide (it holds
things, or reacts to events) is offered whole by one worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hashidrill.core.errors import DatacenterError
from hashidrill.core.experiment.load_levels import Course, Pace, Profile, Share
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import cost_of, divides

SLACK_S = 0.25
"""By how many seconds' operations a worker may be behind (or, after a lowered level, ahead) when it stops."""


class DivisionError(DatacenterError):
    """Workers cannot offer these loads, or did not offer them as requested. The run is INVALID."""


@dataclass(frozen=True)
class Stopped:
    """A worker's final report on its generator: when it stopped, and how many operations each load emitted."""

    at_ns: int
    emitted: Mapping[str, int]


@dataclass
class _Shared:
    course: Course
    rate_per_s: float
    highest: float = 1.0

    def due(self, t_ns: int, start_ns: int) -> int:
        """The number of operations that all generators together should have started by then."""

        def is_due(n: int) -> bool:
            # a new pace each time: a pace only goes forward
            due_ns = Pace(self.course, self.rate_per_s, start_ns).due_ns(n)
            return due_ns is not None and due_ns <= t_ns

        if not is_due(0):
            return 0
        most = 1
        while is_due(most):
            most *= 2
        least = most // 2
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if is_due(middle) else (least, middle)
        return least + 1


@dataclass(frozen=True)
class Sum:
    """The totals of one divided load: operations requested until the workers stopped, and operations offered."""

    load: str
    asked: int
    offered: int
    by_worker: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = " + ".join(str(number) for number in self.by_worker.values())
        return f"{self.offered} operations offered ({parts}), {self.asked} asked for"


class Division:
    """Divides the loads of one specification (plain data from the engine) among workers."""

    def __init__(self, loads: Sequence[Mapping[str, Any]], workers: Sequence[str]) -> None:
        """Raises DivisionError for a load that cannot be offered on another machine."""
        self._workers = list(workers)
        self._start_ns = 0
        self._shared: dict[str, _Shared] = {}
        self._of: dict[str, list[dict[str, Any]]] = {worker: [] for worker in workers}
        self.first: dict[str, str] = {}
        """The worker that prepares a load, reads back and cleans up."""
        for load in loads:
            self._divide(load)

    def _divide(self, load: Mapping[str, Any]) -> None:
        name = load["name"]
        if load["kind"] == registry.CLIENT:
            raise DivisionError(
                f"client {name}: a client's command runs with its tap, on the machine of the runner; workers offer"
                " only loads"
            )
        kind = registry.load(load["kind"])
        if divides(kind):
            params = kind.Params.model_validate(load["params"])
            profile = load["profile"] and Profile.model_validate(load["profile"])
            course = Course(profile.pieces() if profile else ())
            self._shared[name] = _Shared(course, cost_of(kind, params).rate_per_s)
            self.first[name] = self._workers[0]
            for index, worker in enumerate(self._workers):
                self._of[worker].append({**load, "share": [index, len(self._workers)]})
            return
        # the worker with the fewest loads; if several have as few, the first
        worker = min(self._workers, key=lambda one: len(self._of[one]))
        self.first[name] = worker
        self._of[worker].append({**load, "share": [0, 1]})

    def of(self, worker: str) -> list[dict[str, Any]]:
        """The specification of the loads for that worker."""
        return self._of[worker]

    @property
    def shared(self) -> Sequence[str]:
        return list(self._shared)

    # the engine's commands, as the workers receive them

    def start(self, t_ns: int) -> None:
        self._start_ns = t_ns

    def begin(self, t_ns: int) -> None:
        for shared in self._shared.values():
            shared.course.begin(t_ns)

    def hold(self, t_ns: int) -> None:
        for shared in self._shared.values():
            shared.course.hold(t_ns)

    def go(self, t_ns: int) -> None:
        for shared in self._shared.values():
            shared.course.go(t_ns)

    def level(self, load: str, level: float, t_ns: int) -> None:
        if load in self._shared:
            self._shared[load].highest = max(self._shared[load].highest, level)
            self._shared[load].course.set(t_ns, level)

    def settled(self, stopped: Mapping[str, Stopped], received: Mapping[str, Mapping[str, int]]) -> list[Sum]:
        """The sums of all divided loads; `received`: operations that came in, by worker and load.

        Raises DivisionError for missing or repeated operations, or another rate.
        """
        for worker in self._workers:
            self._all_came(worker, stopped[worker].emitted, received.get(worker, {}))
        return [self._sum(name, shared, stopped) for name, shared in self._shared.items()]

    def _all_came(self, worker: str, emitted: Mapping[str, int], received: Mapping[str, int]) -> None:
        for load in sorted({*emitted, *received}):
            said, came = emitted.get(load, 0), received.get(load, 0)
            if said != came:
                raise DivisionError(
                    f"worker {worker}: {came} operations of {load} arrived, but its generator reports {said}"
                )

    def _sum(self, name: str, shared: _Shared, stopped: Mapping[str, Stopped]) -> Sum:
        offered = {worker: stopped[worker].emitted.get(name, 0) for worker in self._workers}
        asked = 0
        highest = max([shared.highest, *(piece.level for piece in shared.course.pieces)])
        slack = 1 + SLACK_S * shared.rate_per_s * highest / len(self._workers)
        for index, worker in enumerate(self._workers):
            due = shared.due(stopped[worker].at_ns, self._start_ns)
            expected = Share(index, len(self._workers)).count(due)
            asked += expected
            if abs(offered[worker] - expected) > slack:
                raise DivisionError(
                    f"worker {worker} offered {offered[worker]} operations of {name} until it stopped, but its share"
                    f" of {shared.rate_per_s:g}/s was {expected}: the load was not offered as requested"
                )
        return Sum(name, asked, sum(offered.values()), offered)

    def reached(self, load: str, stopped: Mapping[str, Stopped]) -> int:
        """For a divided load, the number after the last operation that any worker offered."""
        counts = [stopped[worker].emitted.get(load, 0) for worker in self._workers]
        return max((index + (count - 1) * len(counts) + 1 for index, count in enumerate(counts) if count), default=0)
