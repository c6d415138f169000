"""Is streaming as good as long polling, and do watchers see the final state?"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from hashidrill import (
    Duration,
    FaultWindow,
    Held,
    HypothesisInvalidError,
    Level,
    Recording,
    hypothesis,
    measure,
    require,
)
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.measure import SECOND, seconds

_KIND, _KEY = "consul.config", "use_streaming_backend"
STREAMING, LONG_POLL = "streaming", "long polls"
ROBLOX_NORMAL = Duration("300ms")
_STOOD = 0.9
_HELD_OPEN = frozenset({"consul.streams", "consul.views"})
"""Kinds of loads that hold streams or views open, and sample how many are open (`LOAD.open`)."""
_LEAST_OPERATIONS = 20
"""A median of fewer operations says little."""
_LAST_NS = 3 * SECOND


@hypothesis
def streaming_no_worse_than_long_poll(
    recording: Recording,
    *,
    load: str,
    steps_of: str,
    p50_below: Duration = ROBLOX_NORMAL,
    settle: Duration = Duration("2s"),
    churn: str | list[str] | None = None,
    p50_at_most: Level | None = None,
    find_knee: bool = False,
) -> Held:
    """Streaming keeps the KV latency SLO up to at least the same load as long polling, in one run.

    The run has two arms: one while a `consul.config` fault that sets `use_streaming_backend` is in force, one while
    none is. A step of the profile of `steps_of` belongs to an arm if it lies entirely in that arm. A step keeps the SLO
    if the p50 of `load`, measured from `settle` after the step's start, is under `p50_below`. If `steps_of` holds
    streams or views open, 90 % of them must also be open at the step's end. Of equal steps in a row the last one
    counts. An arm's knee is the highest level up to which every step kept the SLO. With `find_knee`, a run in which
    neither arm broke is INVALID. With `p50_at_most`, streaming's p50 must also be at most that share of long polling's
    at every level that both arms kept. The text reports the acknowledged changes per second of the loads `churn`: long
    polls that look fast may only have throttled them.
    """
    changing = [churn] if isinstance(churn, str) else churn or []
    arms = _arms(recording, load, steps_of, limit=p50_below, settle=settle, changing=changing)
    stream, poll = arms[STREAMING], arms[LONG_POLL]
    figures = {**stream.figures("streaming"), **poll.figures("long_poll"), **_crossing(stream, poll)}
    if find_knee and not (stream.broke or poll.broke):
        raise HypothesisInvalidError(
            f"no knee was found: both arms kept {load} under {p50_below} up to {Level(stream.steps[-1].level)} of"
            f" {steps_of}; give {steps_of} higher steps\n{_table(stream, poll)}"
        )
    said = f"{stream.said()}; {poll.said()}; {_crossing_text(figures)}\n{_table(stream, poll)}"
    require(stream.knee >= poll.knee, f"streaming keeps the SLO at less load than long polls: {said}", **figures)
    if p50_at_most is not None:
        slower = [
            (one, other)
            for one, other in zip(stream.steps, poll.steps, strict=False)
            if one.kept and other.kept and one.p50_s > p50_at_most * other.p50_s
        ]
        if slower:
            one, other = slower[0]
            require(
                False,
                f"at {Level(one.level)} of {steps_of} the p50 was {seconds(one.p50_s)} with streaming and"
                f" {seconds(other.p50_s)} with long polls; expected at most {p50_at_most} of the latter: {said}",
                **figures,
            )
    return Held(f"streaming keeps the SLO at no less load than long polls: {said}", **figures)


@dataclass(frozen=True)
class _Step:
    """One level in one arm. `kept`: whether the level kept the SLO. `stood`: the share of streams or views that were
    open, if any.
    """

    level: float
    p50_s: float
    kept: bool
    changes_per_s: float
    stood: float = 1.0


@dataclass
class _Arm:
    name: str
    steps: list[_Step] = field(default_factory=list)

    @property
    def broke(self) -> bool:
        return not all(step.kept for step in self.steps)

    @property
    def knee(self) -> float:
        """0 when not even the lowest level kept the SLO."""
        knee = 0.0
        for step in self.steps:
            if not step.kept:
                break
            knee = step.level
        return knee

    def said(self) -> str:
        if not self.broke:
            return f"{self.name} kept the SLO at every level, up to {Level(self.knee)}"
        return f"{self.name} kept the SLO " + (f"up to {Level(self.knee)}" if self.knee else "at no level")

    def figures(self, name: str) -> dict[str, Any]:
        p50s = {f"{name}_p50_at_{round(step.level * 100)}_percent_s": step.p50_s for step in self.steps}
        return {f"{name}_knee_level": self.knee, f"{name}_broke": self.broke, **p50s}


def _arms(
    recording: Recording, load: str, steps_of: str, *, limit: Duration, settle: Duration, changing: list[str]
) -> dict[str, _Arm]:
    """Both arms, with the levels that they share. Raises HypothesisInvalidError when there is nothing to compare."""
    spec = recording.experiment.load.get(steps_of)
    levels = spec.profile.levels() if spec is not None and spec.profile is not None else []
    if not levels:
        raise HypothesisInvalidError(
            f"load {steps_of!r} has no profile with steps, so there are no levels to compare: give it `profile:"
            " {steps: ...}`"
        )
    begin_ns, _ = measure.method(recording)
    ops, end_ns = recording.operations(load), measure.loads_end_ns(recording)
    changes = [recording.operations(name) for name in changing]
    found: dict[str, dict[float, _Step]] = {STREAMING: {}, LONG_POLL: {}}
    for (begin_s, end_s, level), after in zip_longest(levels, levels[1:]):
        if after is not None and after[2] == level:
            continue
        begins, stop = (measure.at_in_method_ns(recording, at_s) for at_s in (begin_s, end_s))
        start = begins + int(settle * SECOND)
        arm = _arm_of(recording, begins, stop)
        step = ops.between(start, stop)
        if not level or arm is None or stop > end_ns or len(step) < _LEAST_OPERATIONS:
            continue
        p50 = measure.percentile(measure.served_s(step), 50)
        done = sum(int((each.ok & (each.end_ns >= start) & (each.end_ns < stop)).sum()) for each in changes)
        stood = _stood(recording, steps_of, level, begin_ns, stop)
        here = _Step(level, p50, p50 < limit and stood >= _STOOD, done * SECOND / (stop - start), stood)
        found[arm][level] = max(found[arm].get(level, here), here, key=lambda one: one.p50_s)  # seen twice: the worse
    both = sorted(found[STREAMING].keys() & found[LONG_POLL].keys())
    if not both:
        measured = {name: [str(Level(level)) for level in sorted(steps)] for name, steps in found.items()}
        raise HypothesisInvalidError(
            f"no level of {steps_of} was measured in both arms: {measured}; a step counts if it lies entirely in an arm"
            f" and {load} did at least {_LEAST_OPERATIONS} operations in it"
        )
    return {name: _Arm(name, [steps[level] for level in both]) for name, steps in found.items()}


def _stood(recording: Recording, load: str, level: float, begin_ns: int, end_ns: int) -> float:
    """The share of streams or views open at the end of a step; 1 is the number open at 100 % before the method.

    1 for loads of other kinds. Raises HypothesisInvalidError if they were not counted.
    """
    if recording.experiment.load[load].kind not in _HELD_OPEN:
        return 1.0
    series = recording.series(f"{load}.open")
    at_100, then = (
        one.value[~np.isnan(one.value)]
        for one in (series.between(0, begin_ns), series.between(end_ns - _LAST_NS, end_ns))
    )
    if not len(at_100) or not len(then):
        when = "before the method" if not len(at_100) else f"at the end of its step at {Level(level)}"
        raise HypothesisInvalidError(f"{load}.open was not sampled {when}, so whether {load} was open is unknown")
    return float(then[-1] / max(1.0, at_100.max() * level))


def _arm_of(recording: Recording, start_ns: int, end_ns: int) -> str | None:
    """The backend that all agents used during all of that time; None if it changed."""
    windows = [w for w in measure.faults(recording, _KIND) if _KEY in _set(w)]
    if not windows:
        raise HypothesisInvalidError(f"no {_KIND} fault set {_KEY} in this run, so it has only one arm")
    if len({_set(window)[_KEY] for window in windows}) > 1:
        raise HypothesisInvalidError(
            f"the {_KIND} faults of this run set {_KEY} to different values; it must be the same value in all of them"
        )
    asked = bool(_set(windows[0])[_KEY])
    inside = max(w.proven_ns or 0 for w in windows), min(_ends_ns(recording, w) for w in windows)
    if inside[0] <= start_ns and end_ns <= inside[1]:
        return STREAMING if asked else LONG_POLL
    outside = min(w.intent_ns for w in windows), max(w.gone_ns or w.reverted_ns or end_ns + 1 for w in windows)
    if end_ns <= outside[0] or start_ns >= outside[1]:
        return LONG_POLL if asked else STREAMING
    return None


def _set(window: FaultWindow) -> dict[str, Any]:
    return dict(window.params.get("set", {}))


def _ends_ns(recording: Recording, window: FaultWindow) -> int:
    """The time at which the revert began. The revert restarts the agent, some time before `reverted`."""
    lengths = [
        step.for_
        for step in recording.experiment.faults
        if step.fault == window.kind and _KEY in step.with_.get("set", step.with_.get("set_", {}))
    ]
    held_ns = (window.proven_ns or window.intent_ns) + int(max(lengths, default=0) * SECOND)
    reverted_ns = measure.in_force(recording, window)[1]
    return min(held_ns, reverted_ns) if lengths else reverted_ns


def _crossing(stream: _Arm, poll: _Arm) -> dict[str, Any]:
    quicker = False
    for one, other in zip(stream.steps, poll.steps, strict=True):
        if one.p50_s < other.p50_s:
            quicker = True
        elif quicker and one.p50_s > other.p50_s:
            return {"crossing_level": one.level}
    return {"crossing_level": "none"}


def _crossing_text(figures: dict[str, Any]) -> str:
    level = figures["crossing_level"]
    if isinstance(level, float):
        return f"they cross at {Level(level)}: below it streaming is faster, from there on long polls are"
    return "they do not cross"


def _table(stream: _Arm, poll: _Arm) -> str:
    head = "  ".join(f"{name + ' p50':>14} {'open':>5} {'changes':>9}" for name in ("streaming", "long poll"))
    rows = [f"{'level':>8}  {head}"]
    for one, other in zip(stream.steps, poll.steps, strict=True):
        cells = [
            f"{seconds(s.p50_s) + ('' if s.kept else ' !'):>14} {s.stood:>5.0%} {s.changes_per_s:>7.1f}/s"
            for s in (one, other)
        ]
        rows.append(f"{Level(one.level)!s:>8}  {'  '.join(cells)}")
    return "\n".join(rows)


def _changed_until_the_end(params: Any, experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields a recovery that is too short, and changes that are too frequent until the end to be judged."""
    yield from room()(params, experiment)
    writes, watch = experiment.load.get(params.writes or ""), experiment.load.get(params.load)
    if writes is None or watch is None or writes.profile is not None:
        return
    by_key = getattr(watch.parameters, "keys_of", None) == params.writes
    per_s = float(getattr(writes.parameters, "rate", 0.0)) * (1 - float(getattr(writes.parameters, "once", 0.0)))
    every_s = (getattr(writes.parameters, "keys", 1) if by_key else 1) / per_s if per_s else float("inf")
    if every_s < params.within:
        what = "each key" if by_key else "what is watched"
        text = f"{params.writes} changes {what} every {seconds(every_s)} until the loads stop, so that no watcher of"
        text += f" {params.load} has {params.within} after the last change, and nothing could be judged; let it end"
        yield "writes", f"{text} earlier, with a profile like {{ramp: {{to: 0%, over: 10s}}}}"


@hypothesis(never=_changed_until_the_end)
def watchers_converge(
    recording: Recording,
    *,
    load: str,
    within: Duration,
    writes: str | None = None,
    fault: str | None = None,
) -> Held:
    """Every watcher of a `consul.watch` load sees the final state in at most `within`.

    The final state is what a consistent read returned after the loads stopped. The time of a watcher starts at the last
    change by `writes` (of the watcher's key, if that load writes keys), or at the end of the last fault if that is
    later. A watcher must see no other state after it. It is not judged if the loads stopped before its time was
    over, or if it never saw another state. A restore wakes no watcher, because the restored indexes are lower than the
    one it waits for: a watcher learns of a restore only when its `wait` is over.
    """
    finals = recording.final_reads(load)
    if not finals:
        raise HypothesisInvalidError(f"the final reads of {load} are missing, so the final state is unknown")
    since_ns, end_ns = measure.faults_end_ns(recording, fault), measure.loads_end_ns(recording)
    last_change = _last_changes(recording, writes)
    late: list[tuple[str, float]] = []
    took: list[float] = []
    too_soon = unmoved = 0
    for watcher, sightings in sorted(_sightings(recording, load).items()):
        what = watcher.rpartition("#")[0]
        changed_ns = max(since_ns, last_change.get(what, last_change.get("", 0)))
        if changed_ns + within * SECOND > end_ns:
            too_soon += 1
            continue
        if sightings and all(state == (finals.get(what) or "") for _, state in sightings):
            unmoved += 1
            continue
        seen_ns = _seen_for_good(sightings, finals.get(what) or "")
        after_s = max(0.0, (seen_ns - changed_ns) / SECOND)
        (late.append((watcher, after_s)) if after_s > within else took.append(after_s))
    judged = len(late) + len(took)
    if not judged and unmoved:
        raise HypothesisInvalidError(
            f"{unmoved} watchers of {load} saw no change in the whole run, so they had nothing to learn"
        )
    if not judged:
        raise HypothesisInvalidError(
            f"no watcher of {load} had {within} between the last change and the end of the loads: end the changes"
            " earlier, or give the experiment a longer recovery"
        )
    worst = max([*took, *(after for _, after in late)])
    figures = {
        "watchers": judged,
        "late": len(late),
        "not_judged": too_soon + unmoved,
        "slowest_s": worst,
        "median_s": float(np.median([*took, *(after for _, after in late)])),
    }
    first = f"; the first one: {late[0][0]}, {seconds(late[0][1])}" if late else ""
    require(
        not late,
        f"{len(late)} of {judged} watchers of {load} did not see the final state within {within} of the last change"
        f"{first} (never: not before the loads stopped)\n"
        f"hint: {measure.restored(recording)}. After a restore, a blocking query returns only when its `wait` is over:"
        " use a `wait` of seconds, and restart at index 0 when the index goes backwards",
        **figures,
    )
    return Held(
        f"all {judged} watchers of {load} saw the final state within {seconds(worst)} (allowed: {within})"
        + (f"; {too_soon + unmoved} could not be judged" if too_soon + unmoved else ""),
        **figures,
    )


def _sightings(recording: Recording, load: str) -> dict[str, list[tuple[int, str]]]:
    ops = recording.operations(load)
    told: dict[str, list[tuple[int, str]]] = {}
    for at in np.argsort(ops.end_ns, kind="stable"):
        states = told.setdefault(ops.keys[at], [])
        if ops.ok[at]:
            states.append((int(ops.end_ns[at]), ops.values[at]))
    return told


def _seen_for_good(sightings: list[tuple[int, str]], final: str) -> float:
    """The time from which the watcher saw only the final state; infinity if never."""
    seen: float = float("inf")
    for t_ns, state in sightings:
        if state != final:
            seen = float("inf")
        elif np.isinf(seen):
            seen = float(t_ns)
    return seen


def _last_changes(recording: Recording, writes: str | None) -> dict[str, int]:
    """The end time of the last change that may have been applied, by key; "" stands for the whole load."""
    if writes is None:
        return {}
    ops = recording.operations(writes)
    last: dict[str, int] = {}
    for at in np.flatnonzero(ops.outcome != "fail"):
        end_ns = int(ops.end_ns[at])
        last[ops.keys[at]] = max(end_ns, last.get(ops.keys[at], 0))
        last[""] = max(end_ns, last.get("", 0))
    return last
