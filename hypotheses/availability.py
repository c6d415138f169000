"""Is the service available, and fast enough, while the fault is in force?"""

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
from hashidrill.core.hypothesis import needs_fault
from hashidrill.core.judging.measure import in_force, seconds, share, when


@hypothesis(never=needs_fault)
def available_during(
    recording: Recording,
    *,
    load: str,
    success: Percent = Percent("99%"),
    fault: str | None = None,
    p99_below: Duration | None = None,
) -> Held:
    """At least `success` of the operations due during a fault are acknowledged.

    With `p99_below`, the p99 of the successful operations must also be below that limit. A fault counts from the moment
    that its application begins. If applying it took a while, the time after that must meet the same limits on its own.
    With `fault`, only that kind counts. 99 % is the usual floor of a "degraded" objective (Google's SRE workbook).
    """
    every = recording.operations(load)
    applied = every.within(measure.in_full_force(recording, window) for window in measure.windows(recording, fault))
    spells = [spell for spell in (measure.during(recording, every, fault), applied) if len(spell)]
    ops = min(spells, key=lambda spell: float(spell.ok.mean()))
    ok = float(ops.ok.mean())
    p99 = max(measure.percentile(spell.latency_s[spell.ok], 99) for spell in spells)
    figures = {"success_share": ok, "operations": len(ops), "failed": int((~ops.ok).sum()), "p99_of_successful_s": p99}
    during = f"while {fault or 'a fault'} was in force"
    require(
        ok >= success,
        f"{load} was not available {during}: {share(ok)} of {len(ops)} operations were acknowledged,"
        f" expected at least {success}\n{_first_failure(recording, ops)}",
        **figures,
    )
    text = f"{share(ok)} of {len(ops)} {load} operations were acknowledged {during} (at least {success})"
    if p99_below is not None:
        if not ops.ok.any():
            raise HypothesisInvalidError(f"no operation of {load} succeeded {during}: there is no latency to judge")
        require(
            p99 < p99_below,
            f"{load} answered too slowly {during}: p99 of the successful operations was {seconds(p99)},"
            f" expected under {p99_below}\ntheir p50 was {seconds(measure.percentile(ops.latency_s[ops.ok], 50))}",
            **figures,
        )
        text += f", p99 {seconds(p99)} (under {p99_below})"
    return Held(text, **figures)


@hypothesis(never=needs_fault)
def latency_stays(
    recording: Recording,
    *,
    load: str,
    p50_below: Duration | None = Duration("300ms"),
    p99_below: Duration | None = None,
    fault: str | None = None,
    window: Duration = Duration("5s"),
) -> Held:
    """Latency stays under its limit for the whole fault: the fault does no harm.

    Every `window` inside the fault is measured; a failed operation counts as infinitely slow. 300 ms is the normal p50
    of Consul KV that Roblox published (post-mortem of October 2021).
    """
    limits = [(50, p50_below), (99, p99_below)]
    if p50_below is None and p99_below is None:
        raise HypothesisInvalidError("latency_stays has no limit to check: give it p50_below or p99_below")
    ops = recording.operations(load)
    measure.during(recording, ops, fault)  # if nothing was due under a fault: INVALID, not a pass
    figures: dict[str, float] = {}
    for percent, limit in limits:
        if limit is None:
            continue
        at, worst = _worst(recording, ops, fault, percent, window)
        figures[f"worst_p{percent}_s"] = worst
        figures[f"p{percent}_below_s"] = float(limit)
        require(
            worst < limit,
            f"{load} was slow while {fault or 'a fault'} was in force: its p{percent} over {window} reached"
            f" {seconds(worst)}, {when(at)}; expected it to stay under {limit}\n"
            f"{_first_failure(recording, measure.during(recording, ops, fault))}",
            **figures,
        )
    measured = ", ".join(f"p{p} {seconds(figures[f'worst_p{p}_s'])} (under {limit})" for p, limit in limits if limit)
    return Held(f"{load} stayed fast while {fault or 'a fault'} was in force; worst {window}: {measured}", **figures)


def _worst(
    recording: Recording, ops: Operations, fault: str | None, percent: float, window: Duration
) -> tuple[int, float]:
    worst: tuple[int, float] = (0, -1.0)
    for faulted in measure.windows(recording, fault):
        start_ns, end_ns = in_force(recording, faulted)
        if len(ops.between(start_ns, end_ns)):
            found = measure.sliding(ops, start_ns, end_ns, percent=percent, width_s=window).worst()
            worst = max(worst, found, key=lambda each: each[1])
    return worst


def _first_failure(recording: Recording, ops: Operations) -> str:
    for index in range(len(ops)):
        if not ops.ok[index]:
            error = ops.errors[index] or (f"status {ops.status[index]}" if ops.status[index] else "no error recorded")
            return f"first failure: {when(int(ops.intended_ns[index]))}, {ops.outcome[index]}: {error}"
    hint = measure.clue(recording, int(ops.intended_ns.min()), int(ops.end_ns.max()))
    return f"no operation failed, but they were slow\n{hint}"
