"""What happens under overload, and does the datacenter recover by itself once it is over?"""

import numpy as np

from hashidrill import (
    Duration,
    Held,
    HypothesisInvalidError,
    Operations,
    Percent,
    Recording,
    hypothesis,
    measure,
    require,
)
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.measure import SECOND, STEP_S, seconds, share, when
from hashidrill.core.loads.schedule import OVERLOADED
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.recording.reader import Bools

_REFUSED = (429, 503)
_LEAST_REFUSALS = 10
_FOREVER = 2**62
_LEAST_SAMPLES = 4


@hypothesis
def load_is_shed(
    recording: Recording,
    *,
    load: str,
    refused: Percent = Percent("90%"),
    within: Duration = Duration("1s"),
    fault: str | None = None,
) -> Held:
    """Overload is rejected fast, with 429 or 503, instead of timing out.

    Of the operations that were not acknowledged (from the start of the method on, or while `fault` was in force), at
    least the share `refused` must be answered 429 or 503, and 99 % of these answers must come `within`. Above a rate
    limit, Consul 1.16 and later answers 429, or 503 if only the leader could have served the request.
    """
    ops = recording.operations(load)
    picked = measure.during(recording, ops, fault) if fault else ops.between(measure.method(recording)[0], _FOREVER)
    picked = measure.settled(recording, picked)
    not_served = measure.pick(picked, ~picked.ok)
    ours = sum(reason == Reason.OVERLOADED for reason in not_served.reasons)
    if ours:
        raise HypothesisInvalidError(f"{ours} operations of {load} were never sent: {OVERLOADED}")
    shed = np.isin(not_served.status, _REFUSED)
    if len(not_served) < _LEAST_REFUSALS:
        raise HypothesisInvalidError(
            f"only {len(not_served)} of {len(picked)} operations of {load} were not served, so there was no overload to"
            " shed: raise the load's rate"
        )
    quick_s = measure.percentile(not_served.latency_s[shed], 99)
    part = float(shed.mean())
    figures = {
        "refused_share": part,
        "refused": int(shed.sum()),
        "timed_out_or_failed": int((~shed).sum()),
        "served": int(picked.ok.sum()),
        "p99_of_refusals_s": quick_s,
    }
    others = _first_of(not_served, ~shed)
    require(
        part >= refused,
        f"{load} was not shed: of {len(not_served)} operations that were not served, {share(part)} were refused with"
        f" 429 or 503, expected at least {refused}\n{others}",
        **figures,
    )
    require(
        quick_s <= within,
        f"{load} was refused too slowly: 99% of the refusals came within {seconds(quick_s)}, expected within {within}",
        **figures,
    )
    return Held(
        f"{share(part)} of the {len(not_served)} operations of {load} that were not served were refused with 429 or 503"
        f" (at least {refused}), 99% of them within {seconds(quick_s)}",
        **figures,
    )


def _first_of(ops: Operations, mask: Bools) -> str:
    at = np.flatnonzero(mask)
    if not len(at):
        return ""
    first = int(at[0])
    at_time = when(int(ops.intended_ns[first]))
    return f"first failure without a refusal: {at_time}, {ops.outcome[first]}: {ops.errors[first]}"


@hypothesis
def shed_is_counted(recording: Recording, *, load: str) -> Held:
    """A log pipeline counts what it sheds: as many acknowledged batches are missing from search as were counted.

    Judges a `sample.logs` load, once its queues are empty. Every acknowledged batch is in search (`LOAD.indexed`) or
    was shed on purpose (`LOAD.shed`); a batch whose outcome is unknown may be either, or neither. INVALID if nothing
    was shed.
    """
    ops = recording.operations(load)
    if not recording.final_reads(load):
        raise HypothesisInvalidError(f"the final reads of {load} are missing: whether its queues were empty is unknown")
    acknowledged, unknown = int(ops.ok.sum()), int((ops.outcome == "unknown").sum())
    indexed, shed = (_last(recording, f"{load}.{what}") for what in ("indexed", "shed"))
    lacking = acknowledged - indexed
    figures = {"acknowledged": acknowledged, "unknown": unknown, "indexed": indexed, "shed": shed, "lacking": lacking}
    told = f"search lacks {lacking} of {acknowledged} acknowledged batches of {load}, and {shed} were counted as shed"
    maybe = f"; the outcome of {unknown} is unknown" if unknown else ""
    require(lacking <= shed <= lacking + unknown, f"what was shed was not counted: {told}{maybe}", **figures)
    if not shed:
        raise HypothesisInvalidError(f"nothing was shed: {told}: raise the load's rate")
    return Held(f"{told}{maybe}", **figures)


def _last(recording: Recording, signal: str) -> int:
    """The last sample. Raises HypothesisInvalidError if there is none, or if it failed."""
    values = recording.series(signal).value
    if not len(values) or np.isnan(values[-1]):
        raise HypothesisInvalidError(f"the last count of {signal} is unknown")
    return int(values[-1])


@hypothesis(never=room())
def recovers_without_restart(
    recording: Recording,
    *,
    load: str,
    within: Duration,
    goodput: Percent = Percent("95%"),
    served_within: Duration = Duration("1s"),
    window: Duration = Duration("2s"),
) -> Held:
    """Goodput recovers by itself once the load is back to normal: the overload does not sustain itself.

    Goodput is the number of operations per second that are acknowledged within `served_within` of their due time. The
    time starts when every load's profile is over and every fault is gone (noop and marks do not count). After `within`,
    goodput over each `window` is at least the share `goodput` of the steady state's, and stays there until the
    loads stop. If an agent was restarted meanwhile, the datacenter did not recover by itself.
    """
    start_ns, end_ns = _back_to_normal_ns(recording), measure.loads_end_ns(recording)
    left_s = (end_ns - start_ns) / SECOND
    if left_s < within + window:
        raise HypothesisInvalidError(
            f"the loads stopped {seconds(max(left_s, 0.0))} after the load was back to normal, before {within} and one"
            f" window of {window} had passed: give the experiment a longer `recovery: {{for: ...}}`"
        )
    ops = recording.operations(load)
    before = _goodput(ops, *_steady(recording), served_within)
    if not before:
        raise HypothesisInvalidError(f"{load} had no goodput in the steady state, so there is no baseline to reach")
    t_ns = np.arange(start_ns, end_ns - int(window * SECOND) + 1, int(STEP_S * SECOND), dtype=np.int64)
    after = np.array([_goodput(ops, int(t), int(t + window * SECOND), served_within) for t in t_ns])
    low = np.flatnonzero(after < goodput * before)
    back_s = 0.0 if not len(low) else float("inf") if low[-1] + 1 == len(t_ns) else (low[-1] + 1) * STEP_S
    figures = {
        "goodput_before_per_s": before,
        "goodput_at_end_per_s": float(after[-1]),
        "recovered_after_s": back_s,
        "worst_goodput_per_s": float(after.min()),
    }
    require(
        back_s <= within,
        f"{load} did not recover within {within} after the load was back to normal ({when(start_ns)}):"
        f" goodput was {before:.1f}/s before and {after[-1]:.1f}/s at the end, expected {goodput} of before; it"
        f" {'never recovered' if np.isinf(back_s) else 'recovered after ' + seconds(back_s)}",
        **figures,
    )
    hosts = [
        host
        for host in sorted({*recording.series("process.rss", unknown="the process is gone").host})
        if measure.not_the_same_process_ns(recording, host, start_ns, start_ns + int(back_s * SECOND)) is not None
    ]
    require(
        not hosts,
        f"{load} recovered {seconds(back_s)} after the load was back to normal, but not by itself: meanwhile the agent"
        f" exited or was restarted on {', '.join(hosts)}",
        **figures,
    )
    return Held(
        f"{load} was back to {goodput} of its goodput of {before:.1f}/s {seconds(back_s)} after the load was back to"
        f" normal (allowed: {within}), and no agent was restarted",
        **figures,
    )


@hypothesis
def starved_while_idle(
    recording: Recording,
    *,
    load: str,
    host: str,
    fault: str,
    p50_above: Duration = Duration("1s"),
    cpu_below: float = 0.5,
) -> Held:
    """Requests queue although the CPU of their server is idle: its pool of workers is too small, not the machine.

    In tfs-2013 a service starved its thread pool: pauses of up to 20 s while the pool grew slowly. While `fault` (or
    the mark of that name) lasts, the p50 of `load` must be over `p50_above`, and in nine of ten samples the agent of
    `host` must use less than `cpu_below` cores. INVALID if the load was slow before.
    """
    windows = measure.windows(recording, fault)
    spans = [measure.in_full_force(recording, window) for window in windows]
    ops = recording.operations(load)
    during = measure.settled(recording, measure.during(recording, ops, fault, applied=True))
    before = ops.between(_steady(recording)[0], min(measure.in_force(recording, window)[0] for window in windows))
    was_s, p50_s = (measure.percentile(measure.served_s(one), 50) for one in (before, during))
    if not was_s < p50_above:
        raise HypothesisInvalidError(f"{load} was slow before {fault} began (p50 {seconds(was_s)}): nothing to compare")
    looks = [recording.series("process.cpu", host).between(*span) for span in spans]
    used = [float(value) for look in looks for value in look.value[~np.isnan(look.value)]]
    if len(used) < _LEAST_SAMPLES:
        raise HypothesisInvalidError(f"the CPU that {host} used was sampled {len(used)} times while {fault} lasted")
    cores = measure.percentile(np.array(used), 90)
    figures = {"p50_before_s": was_s, "p50_s": p50_s, "cores_p90": cores}
    told = f"p50 of {load} {seconds(was_s)} before and {seconds(p50_s)} during {fault}, {host} used {cores:.2f} cores"
    require(p50_s > p50_above, f"{load} did not queue: {told}; expected a p50 over {p50_above}", **figures)
    require(
        cores < cpu_below,
        f"{host} was busy, so a lack of CPU may be the cause: {told}; expected under {cpu_below:g} cores",
        **figures,
    )
    return Held(f"{load} queued while {host} was idle: {told}", **figures)


def _back_to_normal_ns(recording: Recording) -> int:
    """The time at which the last profile had ended and the last fault was gone. Raises HypothesisInvalidError if one
    of them never ended.
    """
    begin_ns, _ = measure.method(recording)
    ends = [begin_ns]
    profiled = False
    for name, spec in recording.experiment.load.items():
        if spec.profile is None:
            continue
        if spec.profile.ramp is not None:
            raise HypothesisInvalidError(f"load {name} ramps and never returns to 100%: use steps or a spike instead")
        profiled = True
        ends.append(measure.at_in_method_ns(recording, spec.profile.length_s))
    # with marks alone, the load profile was the disturbance
    for window in [] if profiled and not recording.faults else measure.faults(recording):
        if window.kind == measure.NO_FAULT:
            continue
        if window.gone_ns is None:
            raise HypothesisInvalidError(
                f"fault {measure.named(recording, window)} was never proven gone, so there is no recovery to judge"
            )
        ends.append(window.gone_ns)
    return max(ends)


def _steady(recording: Recording) -> tuple[int, int]:
    start_ns, end_ns = recording.phases["steady"]
    return max(start_ns, end_ns - int(recording.experiment.steady_state.for_ * SECOND)), end_ns


def _goodput(ops: Operations, start_ns: int, end_ns: int, served_within_s: float) -> float:
    due = ops.between(start_ns, end_ns)
    good = due.ok & (due.latency_s <= served_within_s)
    return float(good.sum()) * SECOND / max(end_ns - start_ns, 1)
