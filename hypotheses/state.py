"""What does a snapshot reset undo, and how much does a bloated raft.db add to each commit?"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hashidrill import (
    Duration,
    Held,
    HypothesisInvalidError,
    Operations,
    Percent,
    Recording,
    Series,
    hypothesis,
    measure,
    require,
)
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.checkable import coverage
from hashidrill.core.judging.measure import SECOND, seconds, share, when
from hashidrill.core.recording.reader import Bools, MarkWindow
from hashidrill.products.consul.loads.cas import Step
from hashidrill.products.consul.resets import Fate, Judged, Reset, find_reset, judge

Since = Literal["end", "start"]
_NAMED = 10
_SHOWN = 3
_FEWEST_COMMITS = 20
_INTERVAL_S = 10.0
"""The interval of Consul's telemetry, which has one figure per interval."""


@hypothesis(timed=False)
def no_write_lost_but_rolled_back(
    recording: Recording,
    *,
    load: str,
    snapshot: str | None = None,
    at_most: Annotated[int, Field(ge=0)] | None = None,
    leave_out: list[str] = [],  # noqa: B006 - never changed; YAML's default is []
) -> Held:
    """A snapshot reset rolls back only writes made after the snapshot, and none of them reappears.

    Every acknowledged write gets one fate. *Kept*: it is there at the end. *Overwritten*: a later write replaced it.
    *Rolled back*: it was acknowledged between the save and the restore, and is gone: the price of the reset, listed by
    key. *Lost*: it was in the snapshot, or was acknowledged after the restore, and is gone. *Resurrected*: it was
    overwritten before the snapshot, or rolled back, and reappears. *In flight*: it was under way at the save or
    the restore, and may be on either side.

    Lost and resurrected writes break the hypothesis. So do more than `at_most` rolled-back writes, and a key that,
    right after the restore, differs from the snapshot in value or indexes although no later write touched it. Keys
    below the prefixes `leave_out`, which another program writes all the time, are not compared.

    A write that was overwritten unread, or rolled back, cannot be checked. INVALID unless at least half (or 500) of the
    other writes can be checked, both while each fault was in force and in the 5 s before it.
    """
    ops, finals = recording.operations(load), recording.final_reads(load)
    if not ops.ok.any():
        raise HypothesisInvalidError(f"no write of {load} was acknowledged, so there was nothing to lose")
    if not finals:
        raise HypothesisInvalidError(f"the final reads of {load} are missing: the run ended before the load made them")
    reset = find_reset(recording, snapshot)
    others = [name for name, spec in recording.experiment.load.items() if spec.kind != "consul.kv.read"]
    judged = judge(ops, finals, reset, load, others, leave_out=leave_out)
    rolled_back = sorted({ops.keys[i] for i, fate in judged.fates.items() if fate is Fate.ROLLED_BACK})
    figures = {
        "acknowledged": int(ops.ok.sum()),
        **{fate.name.lower(): judged.count(fate) for fate in Fate},
        "keys_rolled_back": rolled_back,
        "keys_lost": list(judged.lost),
        "keys_resurrected": list(judged.resurrected),
        "keys_phantom": list(judged.phantoms),
        "keys_not_as_saved": list(judged.differs),
        "keys_in_snapshot": len(reset.saved.kv),
    }
    counts = ", ".join(f"{judged.count(fate)} {fate}" for fate in Fate)
    what = f"{int(ops.ok.sum())} acknowledged writes of {load}: {counts}"
    broken = judged.lost or judged.resurrected or judged.phantoms or judged.differs
    require(not broken, f"{what}\n{_why(judged)}", **figures)
    if judged.unread:
        raise HypothesisInvalidError(
            f"the final reads of {load} miss {len(judged.unread)} keys: {_names(judged.unread)}"
        )
    covered = coverage(recording, ops, _mask(ops, judged.seen), _mask(ops, judged.of(Fate.ROLLED_BACK, Fate.IN_FLIGHT)))
    figures.update(covered.figures)
    count = judged.count(Fate.ROLLED_BACK)
    too_many = f"{count} acknowledged writes were rolled back (allowed: {at_most}), on {_names(rolled_back)}"
    require(at_most is None or count <= at_most, f"{too_many}\n{what}", **figures)
    covered.hold(load)
    return Held(
        f"{what}; {covered}; the state right after the restore matched the snapshot{_and_rolled_back(rolled_back)}",
        **figures,
    )


def _mask(ops: Operations, indexes: Iterable[int]) -> Bools:
    mask = np.zeros(len(ops), np.bool_)
    mask[list(indexes)] = True
    return mask


def _and_rolled_back(keys: list[str]) -> str:
    return f"; rolled back on {len(keys)} keys: {_names(keys)}" if keys else ""


def _why(judged: Judged) -> str:
    lines = []
    for what, found in (
        ("keys lost a write", judged.lost),
        ("keys hold a resurrected write", judged.resurrected),
        ("keys hold phantom values", judged.phantoms),
        ("keys differed from the snapshot right after the restore", judged.differs),
    ):
        if found:
            lines.append(f"{len(found)} {what}: {_names(list(found))}")
            lines += [f"  {key}: {why}" for key, why in list(found.items())[:_SHOWN]]
    lines.append("hint: both snapshot files are in the recording's artifacts/ directory")
    return "\n".join(lines)


def _names(keys: list[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(keys[:_NAMED]) + more


@hypothesis(timed=False)
def cas_does_not_cross_reset(recording: Recording, *, load: str) -> Held:
    """After a snapshot reset, a compare-and-set with an older index succeeds only if the key is unchanged.

    The load must be a `consul.kv.cas`, which records the ModifyIndex that it sent and the value that it had read with
    that index. Every value is written only once in a run, so a value from before the reset that is not in the snapshot
    cannot be the key's value after the reset. A reset makes the indexes of keys go backwards: a client must compare for
    "equal", as Consul does, not for "greater".
    """
    reset = find_reset(recording)
    tried = _tried_across(recording.operations(load), reset)
    if not tried:
        raise HypothesisInvalidError(
            f"after the reset, no client of {load} sent an index from before it: give the load more clients or keys"
        )
    wrong = [each for each in tried if each.succeeded and not each.same]
    figures = {
        "tried_across": len(tried),
        "refused": sum(not each.succeeded for each in tried),
        "succeeded_on_the_same_key": sum(each.succeeded and each.same for each in tried),
        "crossed": len(wrong),
        "keys_crossed": sorted({each.key for each in wrong}),
    }
    lines = [
        f"  {each.key}: {when(each.start_ns)} a CAS with index {each.step.index}, read with the value"
        f" {each.step.expected!r}, succeeded; the snapshot held {each.saved}"
        for each in wrong[:_SHOWN]
    ]
    text = (
        f"{len(wrong)} of {len(tried)} compare-and-sets with an index from before the reset succeeded on a key that the"
        " reset had changed"
    )
    require(not wrong, "\n".join([text, *lines]), **figures)
    return Held(
        f"after the reset, {len(tried)} compare-and-sets of {load} sent an index from before it: {figures['refused']}"
        f" were refused, {figures['succeeded_on_the_same_key']} succeeded on an unchanged key",
        **figures,
    )


@dataclass(frozen=True)
class _Across:
    """A CAS that was sent after the reset, with an index that was read before it."""

    key: str
    start_ns: int
    step: Step
    succeeded: bool
    saved: str
    same: bool


def _tried_across(ops: Operations, reset: Reset) -> list[_Across]:
    steps = [Step.of(detail) for detail in ops.details]
    began, ended = reset.restore_ns
    before = {
        (key, step.value)
        for key, step, ok, end in zip(ops.keys, steps, ops.ok.tolist(), ops.end_ns.tolist(), strict=True)
        if ok and end < began and step.op in ("read", "write", "cas")
    }
    found = []
    for key, step, ok, start in zip(ops.keys, steps, ops.ok.tolist(), ops.start_ns.tolist(), strict=True):
        if ok and start >= ended and step.op in ("cas", "miss") and (key, step.expected) in before:
            entry = reset.saved.kv.get(key)
            index, value = (0, None) if entry is None else (entry.modify_index, entry.value.decode(errors="replace"))
            saved = "no such key" if entry is None else f"{value!r} at index {index}"
            same = (index, value) == (step.index, step.expected)
            found.append(_Across(key, start, step, step.op == "cas", saved, same))
    return found


@hypothesis
def write_amplification_below(
    recording: Recording,
    *,
    times: Annotated[float, Field(gt=0)],
    fault: str | None = None,
    since: Since = "end",
    host: str = "leader",
) -> Held:
    """A commit writes less than `times` the bytes it wrote in the steady state.

    Bytes per commit are the mean of `process.wchar_rate` (all bytes that the Consul process passes to write calls,
    sockets included) divided by the rate at which `raft.commit_index` grows. With BoltDB each commit rewrites the list
    of free pages, 8 bytes per page. They are measured on `host`, by default the leader, from the end of the fault until
    the loads stop (with `since: start`, while the fault is in force).
    """
    method_ns, _ = measure.method(recording)
    before = _bytes_per_commit(recording, host, recording.phases["steady"][0], method_ns)
    judged = _bytes_per_commit(recording, host, *_span(recording, fault, since))
    figures = {
        "bytes_per_commit": judged.each,
        "bytes_per_commit_before": before.each,
        "times": judged.each / before.each,
        "commits": judged.commits,
        "commits_before": before.commits,
    }
    text = (
        f"{host} wrote {judged.each / 1000:.1f} kB per commit, {judged.each / before.each:.1f} times the"
        f" {before.each / 1000:.1f} kB of the steady state (allowed: under {times:g} times)"
    )
    hint = "hint: `bbolt stats` on a stopped server's raft.db counts its free pages; `bbolt compact` removes them"
    require(judged.each < times * before.each, f"{text}\n{hint}", **figures)
    return Held(text, **figures)


@dataclass(frozen=True)
class _Cost:
    each: float
    commits: float


def _span(recording: Recording, fault: str | None, since: Since) -> tuple[int, int]:
    if since == "end":
        return measure.faults_end_ns(recording, fault), measure.loads_end_ns(recording)
    windows = measure.windows(recording, fault)
    proven = max(w.begin_ns if isinstance(w, MarkWindow) else w.proven_ns or 0 for w in windows)
    return proven, min(measure.in_force(recording, window)[1] for window in windows)


def _bytes_per_commit(recording: Recording, host: str, start_ns: int, end_ns: int) -> _Cost:
    """Raises HypothesisInvalidError if too little was committed or measured in this time."""
    if host == "leader":
        spans = [
            (reign.host, max(reign.start_ns, start_ns), reign.end_ns)
            for reign in measure.reigns(recording, start_ns, end_ns)
            if reign.host
        ]
    else:
        spans = [(host, start_ns, end_ns)]
    written, commits = 0.0, 0.0
    for name, began, ended in spans:
        index = _measured(recording.series("raft.commit_index", name).between(began, ended))
        if len(index.t_ns) < 2:  # a reign between two samples
            continue
        first, last = int(index.t_ns[0]), int(index.t_ns[-1])
        rate = _measured(recording.series("process.wchar_rate", name).between(first, last + 1))
        if len(rate.t_ns):
            written += float(rate.value.mean()) * (last - first) / SECOND
            # a restarted server's index begins low again
            commits += float(np.clip(np.diff(index.value), 0, None).sum())
    if commits < _FEWEST_COMMITS or not written:
        raise HypothesisInvalidError(
            f"{commits:g} commits of {host} were measured from {when(start_ns)} to"
            f" {when(end_ns)}, at least {_FEWEST_COMMITS} are needed: raise the load, or measure for longer"
        )
    return _Cost(written / commits, commits)


def _measured(series: Series) -> Series:
    picked = np.flatnonzero(series.ok & ~np.isnan(series.value))
    return Series(
        series.t_ns[picked],
        series.value[picked],
        [series.text[i] for i in picked],
        [series.host[i] for i in picked],
        series.ok[picked],
    )


@hypothesis(never=room())
def raft_commit_below(
    recording: Recording,
    *,
    below: Duration,
    within: Duration = Duration("20s"),
    percent: Percent = Percent("95%"),
    fault: str | None = None,
    since: Since = "end",
) -> Held:
    """Consul's own raft.commitTime is fast: `percent` of its samples are below `below`.

    A sample is the leader's mean over the last complete 10 s interval of Consul's telemetry. Samples count from
    `within` after the fault ended (with `since: start`, after it was proven). The default is two intervals, because an
    earlier sample still covers time before that moment. INVALID if an interval has no sample.
    """
    start_ns, end_ns = _span(recording, fault, since)
    start_ns += int(within * SECOND)
    times = _measured(recording.series("raft.commit_time").between(start_ns, end_ns))
    gap_s = measure.longest_gap_s(times.t_ns.tolist(), start_ns, end_ns)
    if len(times.t_ns) and gap_s > _INTERVAL_S:
        raise HypothesisInvalidError(
            f"{len(times.t_ns)} samples of raft.commit_time leave {seconds(gap_s)} uncovered, of"
            f" {seconds((end_ns - start_ns) / SECOND)}: each covers {_INTERVAL_S:g}s"
        )
    if not len(times.t_ns):
        raise HypothesisInvalidError(
            f"raft.commit_time was not sampled from {when(start_ns)} to {when(end_ns)}: give the"
            f" experiment a longer {'recovery' if since == 'end' else 'fault'}, or a shorter `within`"
        )
    value = measure.percentile(times.value, percent * 100)
    text = (
        f"{share(percent)} of {len(times.t_ns)} samples of raft.commitTime were within {seconds(value)}"
        f" (allowed: under {below})"
    )
    figures = {"commit_time_s": value, "worst_s": float(times.value.max()), "samples": len(times.t_ns)}
    require(value < below, text, **figures)
    return Held(text, **figures)
