"""How long a cold start takes at a size that no machine of ours holds: a model of Nomad, fitted to what was measured.

Evaluations wait for one of the scheduler's workers; each worker computes one evaluation, hands its plan to the leader
and waits for it; the leader applies one plan after the other; each node starts what it was given one after the other.
Not in the model: how the scheduler's work grows with the number of nodes, plans that are refused and retried, memory.
"""

import heapq
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Measured:
    """One real cold start of `tasks` replicas of one job. Seconds from the evaluation on, one after the other."""

    tasks: int
    evaluation_s: float
    plan_s: float
    """From the application of the plan until the first node had the first allocation."""
    starting_s: float
    """From there until the last task had started."""
    known_s: float
    """From there until the servers knew."""


@dataclass(frozen=True)
class Model:
    """What each evaluation, plan, and task in them costs, in seconds; how many tasks a node starts a second."""

    evaluation_s: float
    place_s: float
    plan_s: float
    commit_s: float
    node_rate: float
    known_s: float


@dataclass(frozen=True)
class Simulated:
    """`busy_s`: how long each part would take if it alone had to be done; the longest dominates."""

    total_s: float
    placed_s: float
    busy_s: dict[str, float]

    @property
    def dominates(self) -> str:
        return max(self.busy_s, key=lambda part: self.busy_s[part])


def fit(measured: list[Measured]) -> Model:
    """Least squares over several sizes; no cost is below 0. Raises ValueError for fewer than two sizes."""
    tasks = np.array([one.tasks for one in measured], np.float64)
    if len(set(tasks)) < 2:
        raise ValueError("a line needs two sizes or more")

    def line(seconds: list[float]) -> tuple[float, float]:
        each, fixed = np.polyfit(tasks, np.array(seconds), 1)
        if each < 0:
            return float(np.mean(seconds)), 0.0
        if fixed < 0:  # a line through the origin
            return 0.0, float((tasks * seconds).sum() / (tasks**2).sum())
        return float(fixed), float(each)

    evaluation_s, place_s = line([one.evaluation_s for one in measured])
    plan_s, commit_s = line([one.plan_s for one in measured])
    _, each_s = line([one.starting_s for one in measured])
    known_s = float(np.median([one.known_s for one in measured]))
    return Model(evaluation_s, place_s, plan_s, commit_s, 1 / each_s if each_s else float("inf"), known_s)


def simulate(model: Model, tasks: int, *, nodes: int, jobs: int = 1, workers: int = 2) -> Simulated:
    """`tasks` in that many jobs, all registered at once. Raises ValueError where tasks do not fill the jobs."""
    if not 1 <= jobs <= tasks:
        raise ValueError(f"{tasks} tasks do not make {jobs} jobs")
    sizes = [tasks // jobs + (n < tasks % jobs) for n in range(jobs)]
    free = [0.0] * workers
    heapq.heapify(free)
    plans: list[tuple[float, int]] = []  # when each plan is handed in
    applied_s = placed_s = 0.0
    ready = [0.0] * nodes
    turn = 0
    for size in sizes:
        began_s = heapq.heappop(free)
        handed_s = began_s + model.evaluation_s + model.place_s * size
        applied_s = max(applied_s, handed_s) + model.plan_s + model.commit_s * size
        plans.append((applied_s, size))
        heapq.heappush(free, applied_s)
        placed_s = max(placed_s, applied_s)
    for at_s, size in sorted(plans):
        for _ in range(size):
            node, turn = turn % nodes, turn + 1
            ready[node] = max(ready[node], at_s) + 1 / model.node_rate
    busy = {
        "evaluations": sum(model.evaluation_s + model.place_s * size for size in sizes) / min(workers, jobs),
        "plans": sum(model.plan_s + model.commit_s * size for size in sizes),
        "starts on the nodes": -(-tasks // nodes) / model.node_rate,
    }
    return Simulated(max(ready) + model.known_s, placed_s, busy)
