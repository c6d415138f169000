"""A battery whose commands are models in a time of their own: what a client does, and what chance makes of it."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

from hashidrill.clients.retry.battery import Battery, Settings, judgement
from hashidrill.clients.retry.timing import typical_gaps_s
from hashidrill.core.tap.attempts import Attempt, Run
from hashidrill.core.tap.catalogue import FAULTS, RETRY_AFTER_S, TRANSIENT
from hashidrill.core.tap.command import Ended
from hashidrill.core.tap.plans import UNSEEN, Always, Moment, OnceReused
from hashidrill.core.tap.upstream import Scripted

_NS = 1_000_000_000
_WORK_S = 0.001


@dataclass(frozen=True)
class Model:
    """`gap(chance, retry, told)`: seconds before that retry (from 1); `told`: what Retry-After said, or None."""

    name: str
    gap: Callable[[random.Random, int, float | None], float]
    retries: float = 3
    retries_on: frozenset[str] = frozenset(TRANSIENT)
    timeout_s: float = 2.0
    retry_after_only: bool = False
    """It retries what has a Retry-After, and nothing else."""
    method: str = "GET"
    sends: Callable[[random.Random, int], dict] = lambda _chance, _number: {}
    """`sends(chance, n)`: what that attempt (from 0) has of its own, such as its path, key or body."""
    expected: dict[tuple[str, str], str] = field(default_factory=dict)
    """What is right, where that is not what `retries_on` says."""


def _retried(model: Model, fault: str) -> bool:
    if FAULTS[fault].retry_after:
        return model.retry_after_only or str(FAULTS[fault].status) in model.retries_on
    return fault in model.retries_on


class SimulatedBattery(Battery):
    """`seed` decides all that chance decides, in the client and in the machine."""

    def __init__(self, model: Model, settings: Settings, seed: int = 1) -> None:
        super().__init__([model.name], Scripted(), settings)
        self.model, self.chance = model, random.Random(f"{model.name} {seed}")

    async def _ended(self, plan, *, attempts=0, retry_after_s=RETRY_AFTER_S):
        run = self.operation(plan, attempts, retry_after_s)
        status = None if not run.ended else 0 if run.ok else 1
        ended = Ended(status, "" if run.ended else run.note, run.start_ns, run.end_ns, "", run.cpu_s)
        return ended, SimpleNamespace(attempts=run.attempts, upstream_errors=[])

    async def _unresolved(self):
        return self.operation(Always("dns"), 0, RETRY_AFTER_S, most=1)

    async def more_clients(self, count):
        measured, enough = self._measured, 7
        gaps = measured.reference_gaps_s = measured.reference_gaps_s or typical_gaps_s(
            measured.lasting[measured.timed_fault]
        )
        measured.timed += [self.operation(Always(measured.timed_fault), enough, 0) for _ in range(count)]
        exact = Model("reference", lambda _chance, retry, _told: gaps[retry - 1], len(gaps), frozenset({"503"}))
        measured.reference += [self.operation(Always("503"), 0, 0, model=exact) for _ in range(count)]

    def operation(self, plan, enough, retry_after_s, *, most=float("inf"), model=None):
        """One run of the client, behind a tap with that plan."""
        model, chance, deadline_s = model or self.model, self.chance, self.settings.deadline_s
        now_s, seen, given, retry = 0.1 + chance.expovariate(1000), [], 0, 0
        stopped, ok = "", False
        while not stopped:
            reused = isinstance(plan, OnceReused)
            fault = plan.decide(Moment(round(now_s * _NS), reused=reused)) if plan.faults else ""
            if plan.faults and plan.faults[0] in UNSEEN and given < min(most, getattr(plan, "count", 1)):
                fault = plan.faults[0]
            given += bool(fault)
            about, told = FAULTS.get(fault), None
            hangs = fault in {"hang", "slow-body"}
            lasts_s = min(model.timeout_s, max(0.0, deadline_s - now_s)) if hangs else 0.001
            if about is not None and about.retry_after:
                told = retry_after_s + (chance.random() if about.retry_after == "date" else 0.0)
            noted = {"path": "/v1/kv/x", **model.sends(chance, len(seen))}
            seen.append(
                Attempt(
                    round(now_s * _NS),
                    round((now_s + lasts_s) * _NS),
                    1,
                    reused,
                    model.method,
                    **noted,
                    fault=fault,
                    status=about.status if about else 200,
                    upstream=about is None,
                    retry_after_s=told,
                )
            )
            now_s += lasts_s
            if hangs and now_s >= deadline_s:
                stopped, ok = f"after {deadline_s:g}s", False
                break
            ok, retry = not fault, retry + 1
            if ok or not _retried(model, fault) or retry > model.retries:
                break
            if len(seen) >= enough > 0:
                stopped = f"after {len(seen)} attempts"
                break
            now_s += model.gap(chance, retry, told) + chance.expovariate(1000)
            stopped = f"after {deadline_s:g}s" if now_s > deadline_s else ""
        end_s = min(now_s, deadline_s)
        plain = self._measured.plain.attempts if self._measured.plain is not None else ()
        cpu_s = 0.1 + _WORK_S * len(seen) + chance.uniform(0, 0.002)
        return Run(
            tuple(seen), ok, not stopped, 0, round(end_s * _NS), plain, cpu_s, stopped or f"exit status {1 - ok}"
        )


def verdicts(model: Model, *faults: str, seed: int = 1, deadline_s: float = 30.0) -> dict[tuple[str, str], str]:
    """The verdicts of a whole battery, those of an experiment left out."""

    async def battery():
        settings = Settings(deadline_s, faults=faults, environment={})
        found = await judgement(SimulatedBattery(model, settings, seed))
        return {(one.name, one.fault): str(one.verdict) for one in found if one.fault != "-"}

    return asyncio.run(battery())
