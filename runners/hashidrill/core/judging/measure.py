"""What hypotheses measure in a recording: fault windows, sliding percentiles, leaders. Your own hypotheses may use it.

An operation belongs to the moment at which it was due (its intended start). An operation without an acknowledgement
counts as infinitely slow: an error that returns in a millisecond served no client.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.service import LEADS, SILENT_S, lanes
from hashidrill.core.recording.reader import Bools, FaultWindow, Floats, Int64s, MarkWindow, Operations, Recording
from hashidrill.core.units import Duration

SECOND = 1_000_000_000
STEP_S = 0.1
"""By how much a sliding window moves at a time: the resolution of every figure from sliding windows."""
_SAME_LOOK_NS = SECOND // 20
"""Samples this close together come from one look at a process."""
NO_FAULT = "noop"
"""The fault that does nothing: its step is only a name and a window of time."""


def seconds(value_s: float) -> str:
    """A length of time as text: `16ms`, `3.04s`, `never` for infinity."""
    if math.isnan(value_s):
        return "not measured"
    if math.isinf(value_s):
        return "never"
    return str(Duration(round(value_s, 4 if value_s < 1 else 2)))


def share(value: float) -> str:
    """A share between 0 and 1 as text: `12.5%`. Only an exact 0 or 1 becomes 0 % or 100 %."""
    text = f"{value * 100:.2f}".rstrip("0").rstrip(".")
    return f"over {math.floor(value * 10000) / 100:.2f}%" if text == "100" and value < 1 else f"{text}%"


def when(t_ns: int) -> str:
    """A moment as text: `12.3s into the run`, on the clock of the timeline and the terminal."""
    return f"{t_ns / SECOND:.1f}s into the run"


def method(recording: Recording) -> tuple[int, int]:
    """Start and end of the method, in ns. Raises HypothesisInvalidError when the run never reached it."""
    if "method" not in recording.phases:
        raise HypothesisInvalidError("the run never reached its method: no fault was applied, nothing can be judged")
    return recording.phases["method"]


def at_in_method_ns(recording: Recording, at_s: float) -> int:
    """The run's time at second `at_s` of the method, on the method's clock.

    The method's clock stands still while a step with `after` waits; these waits delay the real time. Raises
    HypothesisInvalidError if the run never reached its method.
    """
    stood_ns = sum(stood_ns for stopped_s, stood_ns in recording.standstills if stopped_s < at_s)
    return method(recording)[0] + round(at_s * SECOND) + stood_ns


def loads_end_ns(recording: Recording) -> int:
    """When the loads were stopped: the end of the recovery, or of the method if the run got no further."""
    return recording.phases.get("recovery", method(recording))[1]


def faults(recording: Recording, kind: str | None = None) -> list[FaultWindow]:
    """The faults that were proven in force: all, or only those of that kind or of the step with that name.

    Marks do not count. Raises HypothesisInvalidError if there is no such fault.
    """
    proven = [window for window in recording.faults if window.proven and window.applied_ns is not None]
    if kind is None:
        if not proven:
            raise HypothesisInvalidError(
                f"no fault was proven in force in this run, so there is nothing to judge{_hint_at_marks(recording)}"
            )
        return proven
    steps = {step.name: number for number, step in enumerate(recording.experiment.method) if step.name}
    meant = [window for window in recording.faults if window.kind == kind or window.step == steps.get(kind)]
    if any(mark.mark == kind for mark in recording.marks):
        raise HypothesisInvalidError(f"{kind} is a mark, which breaks nothing; this hypothesis needs a fault")
    if not meant and kind in steps:
        raise HypothesisInvalidError(f"the run ended before its step {kind}, so there is nothing to judge")
    if not meant:
        known = {window.kind for window in recording.faults} | set(steps)
        raise HypothesisInvalidError(f"no fault {kind!r} in this run: {near(kind, known)}")
    picked = [window for window in meant if window in proven]
    if not picked:
        raise HypothesisInvalidError(f"fault {kind} was not proven in force in this run, so there is nothing to judge")
    return picked


def windows(recording: Recording, name: str | None = None) -> Sequence[FaultWindow | MarkWindow]:
    """Like `faults`, for a verdict that only needs a window of time; `name` may also be the name of a mark.

    A mark counts only if named. Raises HypothesisInvalidError if there is no window.
    """
    marks = [mark for mark in recording.marks if mark.mark == name]
    return marks or faults(recording, name)


def in_force(recording: Recording, window: FaultWindow | MarkWindow) -> tuple[int, int]:
    """From a fault's `intent` to `reverted`, or from a mark's begin to its end, in ns; to the end of the loads if it
    never ended.

    A failure while a fault is applied is the fault's effect: a restore may delay writes for as long as it runs.
    """
    if isinstance(window, MarkWindow):
        return window.begin_ns, loads_end_ns(recording) if window.end_ns is None else window.end_ns
    return window.intent_ns, loads_end_ns(recording) if window.reverted_ns is None else window.reverted_ns


def in_full_force(recording: Recording, window: FaultWindow | MarkWindow) -> tuple[int, int]:
    """Like `in_force`, but from the end of `apply` on: to measure how much a fault does, or how fast."""
    start_ns, end_ns = in_force(recording, window)
    applied_ns = None if isinstance(window, MarkWindow) else window.applied_ns
    return start_ns if applied_ns is None else applied_ns, end_ns


def _hint_at_marks(recording: Recording) -> str:
    marks = dict.fromkeys(mark.mark for mark in recording.marks)
    return f"; it has marks ({', '.join(marks)}), which count where an expectation names them" if marks else ""


def named(recording: Recording, window: FaultWindow | MarkWindow) -> str:
    """The window's name in texts: `disk.latency on consul-1`, after the name of its step, if the step has one.

    A mark has only its name. A `noop` does nothing, so only the name of its step is shown.
    """
    if isinstance(window, MarkWindow):
        return window.mark
    steps = recording.experiment.method
    name = steps[window.step].name if 0 <= window.step < len(steps) else ""
    where = f"{window.kind} on {window.host}"
    if not name:
        return where
    return name if window.kind == NO_FAULT else f"{name} ({where})"


def faults_end_ns(recording: Recording, kind: str | None = None) -> int:
    """When the last of the faults (or the mark of that name) ended, in ns.

    Raises HypothesisInvalidError when one was never reverted.
    """
    ends = []
    for window in windows(recording, kind):
        if isinstance(window, MarkWindow):
            ends.append(in_force(recording, window)[1])
            continue
        if window.reverted_ns is None:
            raise HypothesisInvalidError(
                f"fault {named(recording, window)} was never reverted, so there is no recovery to judge"
            )
        ends.append(window.reverted_ns)
    return max(ends)


def during(recording: Recording, ops: Operations, kind: str | None = None, *, applied: bool = False) -> Operations:
    """The operations due while a fault was in force, or while the mark of that name lasted.

    Each operation counts once, even if faults overlap. `applied` leaves out operations due while a fault was applied.
    """
    lasted = in_full_force if applied else in_force
    spans = [lasted(recording, window) for window in windows(recording, kind)]
    picked = ops.within(spans)
    if not len(picked):
        raise HypothesisInvalidError(
            f"no operation was due while {kind or 'a fault'} was in force: run the load at that time, or let the"
            " fault last longer"
        )
    return picked


def pick(ops: Operations, mask: Bools) -> Operations:
    return ops.picked(mask)


def settled(recording: Recording, ops: Operations, grace_s: float = 1.0) -> Operations:
    """Drops operations that the end of the loads cut off less than `grace_s` seconds after they were due."""
    end_ns = loads_end_ns(recording)
    cut_off = (ops.outcome == "unknown") & (ops.end_ns >= end_ns) & (ops.intended_ns > end_ns - grace_s * SECOND)
    return pick(ops, ~np.asarray(cut_off, np.bool_))


def lasted_s(recording: Recording, ops: Operations, within_s: float, what: str) -> Floats:
    """How many seconds each operation lasted, for operations that wait until something is right; infinity if too long.

    If an operation was still open when the loads stopped, before `within_s` had passed, it is undecided. Raises
    HypothesisInvalidError if an operation is undecided and no operation is late; `what` names the operations.
    """
    took, watched_s = served_s(ops), np.asarray((ops.end_ns - ops.intended_ns) / SECOND, np.float64)
    open_ = (ops.outcome == "unknown") & (watched_s < within_s)
    took[open_] = watched_s[open_]
    if open_.any() and not (took > within_s).any():
        ends = int(ops.end_ns[open_].max()) >= loads_end_ns(recording)
        raise HypothesisInvalidError(
            f"{int(open_.sum())} of {len(ops)} {what} were still wrong when "
            + ("the loads stopped" if ends else "they were last watched")
            + f", after {seconds(float(watched_s[open_].max()))} of the {seconds(within_s)}: give the experiment a"
            " longer `recovery: {for: ...}`"
        )
    return took


def watched(recording: Recording, since_ns: int, within_s: float, what: str) -> None:
    """Raises HypothesisInvalidError if the loads stopped before `within_s` had passed: `what` was not late yet."""
    left_s = (loads_end_ns(recording) - since_ns) / SECOND
    if left_s < within_s:
        raise HypothesisInvalidError(
            f"{what} when the loads stopped, after {seconds(left_s)} of the {seconds(within_s)}: give the experiment a"
            " longer `recovery: {for: ...}`"
        )


def served_s(ops: Operations) -> Floats:
    """Latency in seconds; infinite for operations that were not acknowledged."""
    return np.where(ops.ok, ops.latency_s, np.inf)


def percentile(latencies_s: Floats, percent: float) -> float:
    """The latency that `percent` of the operations did not exceed, in seconds; NaN if there are no operations.

    The percentile is always a measured value: a mean of a number and infinity would mean nothing.
    """
    count = len(latencies_s)
    if not count:
        return float("nan")
    # like np.percentile(..., method="inverted_cdf"), which takes ten times as long for a window's few operations
    nth = max(math.ceil(count * (percent / 100) - 1), 0)
    ordered = np.partition(latencies_s, (nth, count - 1))  # a NaN would be the last
    return float(ordered[-1] if np.isnan(ordered[-1]) else ordered[nth])


@dataclass(frozen=True)
class Sliding:
    """A percentile over windows [t, t + width): `value_s` is NaN for windows without operations."""

    t_ns: Int64s
    value_s: Floats
    width_ns: int

    def worst(self) -> tuple[int, float]:
        """Start of the worst window, and its value. Raises HypothesisInvalidError when nothing was measured."""
        if not len(self.t_ns) or np.isnan(self.value_s).all():
            raise HypothesisInvalidError("no operation was due in the time to judge")
        at = int(np.nanargmax(self.value_s))
        return int(self.t_ns[at]), float(self.value_s[at])


def sliding(ops: Operations, start_ns: int, end_ns: int, *, percent: float = 50, width_s: float = 1.0) -> Sliding:
    """The percentile over windows of `width_s` seconds inside [start_ns, end_ns); one shorter window if none fits."""
    ops = ops.between(start_ns, end_ns)
    width_ns = min(int(width_s * SECOND), max(end_ns - start_ns, 1))
    t_ns = np.arange(start_ns, end_ns - width_ns + 1, int(STEP_S * SECOND), dtype=np.int64)
    latencies = served_s(ops)
    low = np.searchsorted(ops.intended_ns, t_ns)
    high = np.searchsorted(ops.intended_ns, t_ns + width_ns)
    values = np.array([percentile(latencies[i:j], percent) for i, j in zip(low, high, strict=True)], np.float64)
    return Sliding(t_ns, values, width_ns)


@dataclass(frozen=True)
class Reign:
    """The time in which the majority named one leader in one term; `host` is empty while it knew no leader."""

    host: str
    start_ns: int
    end_ns: int
    term: float | None = None
    """The term that the leader itself reported; None if it reported no term."""


@dataclass(frozen=True)
class Absence:
    """A time without a known leader.

    `lost_ns`: the last moment at which a leader is known to have led; `seen_ns`: when that leader was seen gone;
    `back_ns`: when a leader was known again, None for never. `told`: whether the leader's own reports show when it lost
    leadership. If not, it may have lost leadership later than `lost_ns`.
    """

    lost_ns: int
    seen_ns: int
    back_ns: int | None
    host: str
    told: bool

    def took_s(self, within_s: float, watched_ns: int) -> float:
        """Seconds from the loss to the next leader.

        Raises HypothesisInvalidError if the recording cannot tell whether they exceed `within_s`.
        """
        until_ns = watched_ns if self.back_ns is None else self.back_ns
        longest_s, shortest_s = ((until_ns - since_ns) / SECOND for since_ns in (self.lost_ns, self.seen_ns))
        if self.back_ns is None and longest_s < within_s:
            raise HypothesisInvalidError(
                f"no leader was known again, but the run watched for only {seconds(longest_s)} of the"
                f" {seconds(within_s)}: give the experiment a longer recovery"
            )
        if longest_s > within_s >= shortest_s and not self.told:
            raise HypothesisInvalidError(
                f"the lost leader did not report when it last led: it was lost {seconds(shortest_s)} to"
                f" {seconds(longest_s)} before one was known again, which cannot be compared with {seconds(within_s)}"
            )
        return longest_s if self.back_ns is not None else math.inf


def absences(
    recording: Recording, seen: Sequence[Reign], start_ns: int, end_ns: int, signal: str = "raft.leader"
) -> list[Absence]:
    """The time after each loss of a leader that was seen in [start_ns, end_ns). `seen` are the reigns from then on.

    A loss counts from the leader's own last report that it leads, so that the time to notice the loss is included; or
    from `start_ns` if the leader was silent since. A change of leader or term without a gap is an absence too. The
    majority may notice a loss only after `end_ns`, or never, and name the old leader until then. Such a loss counts if
    that leader stopped reporting that it leads before `end_ns`.
    """
    found = []
    for at, reign in enumerate(seen):
        before = seen[at - 1] if at else Reign("", start_ns, start_ns)
        if reign.start_ns >= end_ns or (at and not before.host) or (not at and reign.host):
            continue
        said = [t_ns for t_ns, _ in terms_led(recording, before.host, start_ns, reign.start_ns, signal)]
        last_ns = max([start_ns, *(t_ns for t_ns in said if t_ns <= reign.start_ns)])
        back = next((later for later in seen[at:] if later.host), None)
        seen_ns = max(start_ns, reign.start_ns)
        found.append(Absence(last_ns, seen_ns, back.start_ns if back else None, back.host if back else "", bool(said)))
    at = next((at for at, reign in enumerate(seen) if reign.end_ns >= end_ns), len(seen) - 1)
    gone_ns = seen[at].end_ns if at + 1 < len(seen) else None
    if stopped := _stopped(recording, seen[at], (start_ns, end_ns), gone_ns, signal):
        back = next((later for later in seen[at + 1 :] if later.host), None)
        found.append(Absence(*stopped, back.start_ns if back else None, back.host if back else "", told=False))
    return found


def _stopped(
    recording: Recording, reign: Reign, span: tuple[int, int], gone_ns: int | None, signal: str
) -> tuple[int, int] | None:
    """The last report of the leader that it leads, and the first answer after it that it does not.

    Without such an answer, the second time is when the majority saw the leader gone. None if the leader reported that
    it leads until the end of the span, was not asked again before that, or is not known to be gone.
    """
    looks = _terms_said(recording, reign.host, span[0], reign.end_ns, signal) if reign.host else []
    leads = [t_ns for t_ns, _, text, ok in looks if ok and text == LEADS]
    if not leads or leads[-1] >= span[1] or not any(leads[-1] < t_ns < span[1] for t_ns, *_ in looks):
        return None
    shown_ns = next((t_ns for t_ns, _, _, ok in looks if ok and t_ns > leads[-1]), gone_ns)
    return None if shown_ns is None else (max(leads[-1], span[0]), shown_ns)


def elected_again(before: Reign, after: Reign) -> bool:
    """Whether the same host was certainly elected again for the second reign: its term differs."""
    known = before.term is not None and after.term is not None
    return known and after.host == before.host and after.term != before.term


def leader_signal(window: FaultWindow | MarkWindow) -> str:
    """The signal of the leader that a fault concerns: Nomad's if it hits an agent of Nomad, otherwise Consul's."""
    own = f"{window.agent}.leader" if isinstance(window, FaultWindow) else ""
    return own if any(lane.signal == own for lane in lanes()) else "raft.leader"


def reigns(recording: Recording, start_ns: int, end_ns: int, signal: str = "raft.leader") -> list[Reign]:
    """The leaders between the two moments, as the majority saw them. The first one began before or at `start_ns`.

    `signal` can name another role that one host at a time holds: the holder is the host in the signal's text while its
    value is not 0. If a host leads in a new term, it was elected again: that is another reign, even if the majority
    never saw it gone. Raises HypothesisInvalidError if the signal was not sampled in that time.
    """
    series = recording.series(signal, "").known_between(start_ns, end_ns)
    known = [
        (int(series.t_ns[i]), series.text[i] if series.ok[i] and series.value[i] != 0 else "")
        # a look without a value shows neither a leader nor its absence
        for i in np.flatnonzero(~np.isnan(series.value))
    ]
    if not known:
        raise HypothesisInvalidError(f"{signal} was not sampled around {when(start_ns)}")
    changes = [known[0], *(later for earlier, later in pairwise(known) if later[1] != earlier[1])]
    ends = [t_ns for t_ns, _ in changes[1:]] + [end_ns]
    named = [Reign(host, t_ns, end) for (t_ns, host), end in zip(changes, ends, strict=True)]
    terms = {host: terms_led(recording, host, start_ns, end_ns, signal) for _, host in changes if host}
    return [part for reign in named for part in _by_term(reign, terms.get(reign.host, []), first=reign is named[0])]


def terms_led(
    recording: Recording, host: str, start_ns: int, end_ns: int, signal: str = "raft.leader"
) -> list[tuple[int, float]]:
    """The times (ns) at which that host reported that it leads (or has the role that `signal` names), and the terms.

    Covers the reports between the two moments, and the last one before. Empty if the host never led.
    """
    said = _terms_said(recording, host, start_ns, end_ns, signal)
    led = [(t_ns, value) for t_ns, value, text, ok in said if ok and text == LEADS]
    return led[max(sum(t_ns <= start_ns for t_ns, _ in led) - 1, 0) :]


def _terms_said(
    recording: Recording, host: str, start_ns: int, end_ns: int, signal: str
) -> list[tuple[int, float, str, bool]]:
    """Each look at that host's term: its time (ns), the term, `leads` or "", and whether the host answered."""
    term = next((lane.term for lane in lanes() if lane.signal == signal), None)
    try:
        series = None if term is None else recording.series(term, host, unknown="it did not say its term")
    except HypothesisInvalidError:  # this host (or any host) was not sampled
        series = None
    if series is None:
        return []
    said = series.between(start_ns - int(SILENT_S * SECOND), end_ns)
    return [
        (int(t_ns), float(value), text, bool(ok))
        for t_ns, value, text, ok in zip(said.t_ns, said.value, said.text, said.ok, strict=True)
    ]


def _by_term(reign: Reign, terms: Sequence[tuple[int, float]], *, first: bool) -> list[Reign]:
    inside = [(t_ns, term) for t_ns, term in terms if (first or reign.start_ns <= t_ns) and t_ns < reign.end_ns]
    if not inside:
        return [reign]
    began = [(reign.start_ns, inside[0][1]), *(later for earlier, later in pairwise(inside) if later[1] != earlier[1])]
    ends = [t_ns for t_ns, _ in began[1:]] + [reign.end_ns]
    return [Reign(reign.host, t_ns, end, term) for (t_ns, term), end in zip(began, ends, strict=True)]


def slowed(recording: Recording, start_ns: int, end_ns: int, host: str | None = None) -> tuple[str, bool | None]:
    """A hint about Raft's commit times in that span and before, and whether they were slower; None: unknown.

    Looks at that host, or at all. Commits were slower if they took at least twice as long, and at least 10 ms longer.
    """
    looked = recording.aside
    try:
        times = looked.series("raft.commit_time", host)
    except HypothesisInvalidError:
        return "raft.commit_time was not sampled", None
    steady_ns = looked.phases.get("steady", (start_ns, start_ns))[0]
    before, since = (times.between(*span) for span in ((steady_ns, start_ns), (start_ns, end_ns)))
    if not before.ok.any() or not since.ok.any():
        return "raft.commit_time was not sampled then", None
    was_s, is_s = (float(one.value[one.ok].max()) for one in (before, since))
    return f"raft.commit_time reached {seconds(is_s)} ({seconds(was_s)} before)", is_s > max(2 * was_s, was_s + 0.01)


def restored(recording: Recording) -> str:
    """A hint at why something was lost: whether this run restored a snapshot, or where else to look."""
    restores = [window for window in recording.faults if window.proven and window.kind.endswith("snapshot.restore")]
    if restores:
        return f"this run restored a snapshot ({named(recording, restores[0])}), which undoes all later changes"
    return "this run restored no snapshot; compare these times with leader changes, and search the agents' logs"


def clue(recording: Recording, start_ns: int, end_ns: int) -> str:
    """A hint from measurements at why writes were slow in that time."""
    try:
        changes = len(reigns(recording.aside, start_ns, end_ns)) - 1
    except HypothesisInvalidError:
        changes = 0
    said, slow = slowed(recording, start_ns, end_ns)
    if changes:
        said = f"the majority's view of the leader changed {changes} times in that time; {said}"
    elif slow is False:
        said += ", and the leader stayed: look at the network path to it, and for a backlog that drains slowly"
    return f"hint: {said}"


def not_the_same_process_ns(recording: Recording, label: str, start_ns: int, end_ns: int) -> int | None:
    """When the process of that host or agent was first found gone or replaced; None if it stayed.

    Uses the looks up to the first sample at or after `end_ns`, which shows the state until then. A probe that finds a
    new process samples its memory at once, but CPU time only at the next look. Raises HypothesisInvalidError if there
    are no samples.
    """
    memory, cpu = (
        recording.series(signal, host, unknown="the process is gone")
        for signal, host in (("process.rss", label), ("process.cpu", None))
    )
    used_ns = cpu.t_ns[cpu.ok & (np.array(cpu.host) == label)]
    looks = np.flatnonzero(memory.t_ns >= start_ns)
    looks = looks[: int(np.searchsorted(memory.t_ns[looks], end_ns)) + 1]
    for t_ns, ok in zip(memory.t_ns[looks].tolist(), memory.ok[looks].tolist(), strict=True):
        if not ok or not len(used_ns) or np.abs(used_ns - t_ns).min() > _SAME_LOOK_NS:
            return int(t_ns)
    return None


def looks_of_load(recording: Recording, load: str) -> tuple[Int64s, Bools]:
    """The times of a load's looks, and which of them succeeded. Each sample of the load is a look, except samples of
    its level, which are made on change, and samples made after it was stopped, which sum up what it did.

    Empty for a load without looks.
    """
    own = [name for name in recording.signals if name.startswith(f"{load}.") and name != f"{load}.level"]
    found = [recording.series(name) for name in own]
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    t_ns = np.concatenate([series.t_ns for series in found])
    order = np.argsort(t_ns, kind="stable")
    if "method" in recording.phases:
        order = order[t_ns[order] <= loads_end_ns(recording)]
    return t_ns[order], ~np.isnan(np.concatenate([series.value for series in found])[order])


def longest_gap_s(moments_ns: Iterable[int], start_ns: int, end_ns: int) -> float:
    """The longest time in [start, end) without any of the moments, in seconds."""
    inside = sorted(t_ns for t_ns in moments_ns if start_ns <= t_ns < end_ns)
    return float(np.diff(np.array([start_ns, *inside, end_ns], np.int64)).max()) / SECOND


def nothing_longer_unseen(
    recording: Recording, load: str, span: tuple[int, int], *, longest_s: float, within: float
) -> None:
    """For a load that watches: raises HypothesisInvalidError if a problem may have lasted longer than `within`.

    A problem that begins while no look succeeds is seen only later. `longest_s`: how long the longest problem that was
    seen lasted.
    """
    t_ns, known = looks_of_load(recording, load)
    blind_s = longest_gap_s(t_ns[known].tolist(), *span)
    if blind_s > SILENT_S and longest_s + blind_s > within:
        raise HypothesisInvalidError(
            f"{load} saw nothing for {seconds(blind_s)}: {int((~known).sum())} of {len(known)} looks failed. A problem"
            f" may have lasted longer than {seconds(within)} unseen (seen: {seconds(longest_s)})"
        )


def latest(t_ns: Int64s, at_ns: Int64s, fresh_for_ns: int) -> tuple[Int64s, Bools]:
    """For each moment of `at_ns`, the index of the last sample before or at it, and whether that is still fresh."""
    index = np.searchsorted(t_ns, at_ns, side="right") - 1
    fresh = (index >= 0) & (at_ns - t_ns[np.maximum(index, 0)] <= fresh_for_ns)
    return np.maximum(index, 0).astype(np.int64), np.asarray(fresh, np.bool_)


def longest_run(mask: Sequence[bool] | Bools) -> tuple[int, int]:
    """First and last index of the longest run of True; (0, -1) when there is none."""
    padded = np.concatenate(([0], np.asarray(mask, np.int8), [0]))
    edges = np.diff(padded)
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(starts):
        return 0, -1
    at = int(np.argmax(stops - starts))
    return int(starts[at]), int(stops[at]) - 1
