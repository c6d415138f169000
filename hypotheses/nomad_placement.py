"""Where does Nomad place work, does the work survive the loss of a node, and are failed downloads retried?"""

from typing import Annotated

import numpy as np
from pydantic import Field

from hashidrill import Held, HypothesisInvalidError, Recording, hypothesis, measure, require
from hashidrill.core.hypothesis import needs_fault
from hashidrill.core.judging.measure import when
from hashidrill.core.protocols.service import SILENT_S
from hashidrill.products.nomad.loads.artifacts import Build

_REJECTED, _INELIGIBLE, _LEADER = "nomad.plan_rejections", "nomad.nodes_ineligible", "nomad.leader"


@hypothesis
def replicas_on_distinct_hosts(recording: Recording, *, load: str, most: Annotated[int, Field(ge=1)] = 1) -> Held:
    """From the start of the method on, no host runs more than `most` replicas of a job.

    The load has the kind `nomad.replicas`. In tfs-2013 all three primaries of a database ended up on one machine. The
    nodes are those that Nomad's servers name, four times a second. INVALID if two or more replicas never ran at the
    same time.
    """
    start_ns, _ = measure.method(recording)
    series = recording.series(f"{load}.running").known_between(start_ns, measure.loads_end_ns(recording))
    looks = [(int(series.t_ns[n]), _nodes(series.text[n])) for n in np.flatnonzero(series.value > 1)]
    if not looks:
        raise HypothesisInvalidError(f"two or more replicas of {load} never ran together: they could not share a host")
    at_ns, worst = max(looks, key=lambda look: max(look[1].values()))
    host, together = max(worst.items(), key=lambda one: one[1])
    figures = {"together": together, "replicas": sum(worst.values()), "hosts": len(worst), "looks": len(looks)}
    require(
        together <= most,
        f"{host} ran {together} of {sum(worst.values())} replicas of {load}, expected {most} at most on a host"
        f" ({when(max(at_ns, start_ns))})\nhint: a job without a distinct_hosts constraint or a spread is"
        " packed onto as few nodes as possible",
        **figures,
    )
    return Held(f"no host ran more than {together} replicas of {load} ({len(looks)} looks)", **figures)


@hypothesis
def replicas_stay(recording: Recording, *, load: str, at_least: Annotated[int, Field(ge=1)]) -> Held:
    """From the start of the method on, at least `at_least` replicas of a job run at every moment.

    The load has the kind `nomad.replicas`. Judged by the reports of Nomad's servers, four times a second: replicas on a
    silent node count as running until the servers report the node as down. INVALID if fewer ran before the method, if
    looks failed for 5 s in a row, or if most looks failed.
    """
    start_ns, _ = measure.method(recording)
    series = recording.series(f"{load}.running").known_between(start_ns, measure.loads_end_ns(recording))
    known = np.flatnonzero(~np.isnan(series.value))
    if not len(known) or series.value[known[0]] < at_least:
        raise HypothesisInvalidError(f"{at_least} replicas of {load} did not run when the method began")
    worst = int(known[np.argmin(series.value[known])])
    least = int(series.value[worst])
    failed = len(series) - len(known)
    figures = {"least": least, "looks": len(known), "looks_failed": failed}
    require(
        least >= at_least,
        f"{least} replicas of {load} were left {when(int(series.t_ns[worst]))}, expected {at_least} at all times",
        **figures,
    )
    return Held(
        f"at least {least} replicas of {load} ran at all times ({len(known)} looks, {failed} failed)", **figures
    )


@hypothesis(never=needs_fault)
def plans_are_not_rejected(recording: Recording, *, fault: str | None = None) -> Held:
    """While a fault is in force, Nomad's leader refuses none of its schedulers' plans, and no node becomes ineligible.

    Judged by `nomad.plan_rejections` of each server (the counter `nomad.nomad.plan.node_rejected`) and
    `nomad.nodes_ineligible`: Nomad's plan rejection tracker acts only on refused plans. INVALID if one of these two
    signals, or the leader's counter, was not sampled while the fault was in force.
    """
    rejected, looks, ineligible = 0.0, 0, set[str]()
    for window in measure.windows(recording, fault):
        start_ns, end_ns = measure.in_force(recording, window)
        counted = recording.series(_REJECTED, unknown="a server that does not lead rejects nothing")
        counted = counted.between(start_ns, end_ns)
        nodes = recording.series(_INELIGIBLE).between(start_ns, end_ns)
        known, seen = ~np.isnan(counted.value), ~np.isnan(nodes.value)
        if not known.any() or not seen.any():
            raise HypothesisInvalidError(
                f"{_REJECTED} or {_INELIGIBLE} was not sampled while {measure.named(recording, window)} was in force"
            )
        rejected = max(rejected, float(counted.value[known].max()))
        looks += _of_leaders(recording, start_ns, end_ns)
        ineligible |= {nodes.text[n] for n in np.flatnonzero(nodes.value > 0)}
    if not looks and not rejected and not ineligible:
        raise HypothesisInvalidError(f"{_REJECTED} of the server that led was never sampled under a fault")
    figures = {"rejected": rejected, "samples": looks, "ineligible": len(ineligible)}
    require(
        not rejected and not ineligible,
        f"up to {rejected:g} plans in 10 s were rejected, and these nodes were ineligible:"
        f" {'; '.join(sorted(ineligible)) or 'none'}; expected neither",
        **figures,
    )
    return Held(
        f"no plan was rejected ({looks} samples of the counter, all 0), and no node became ineligible", **figures
    )


@hypothesis(never=needs_fault)
def downloads_are_retried(recording: Recording, *, load: str, fault: str | None = None) -> Held:
    """Every build whose download failed while a fault was in force was tried again.

    The load has the kind `nomad.artifacts`. In tfs-2013 hundreds of builds a day failed once the network was a little
    worse: the build service had no retry logic. Failures and retries are counted by the events and restarts that Nomad
    records for each task. INVALID if no download failed.
    """
    ops = measure.during(recording, recording.operations(load), fault)
    builds = [(Build.of(detail), bool(ok)) for detail, ok in zip(ops.details, ops.ok, strict=True) if detail]
    hit = [(build, ok) for build, ok in builds if build.failed_downloads]
    if not hit:
        raise HypothesisInvalidError(
            f"no download of {load} failed while {fault or 'a fault'} was in force ({len(ops)} builds): nothing had to"
            " be tried again"
        )
    retried = [ok for build, ok in hit if build.restarts]
    figures = {
        "builds": len(ops),
        "ok": int(ops.ok.sum()),
        "hit": len(hit),
        "retried": len(retried),
        "saved": sum(retried),
    }
    require(
        len(retried) == len(hit),
        f"{len(hit)} of {len(ops)} builds of {load} had a failed download, {len(hit) - len(retried)} of these were"
        " never tried again: their task has no restart policy that retries them",
        **figures,
    )
    return Held(
        f"all {len(hit)} builds of {load} (of {len(ops)}) with a failed download were tried again,"
        f" {sum(retried)} of them completed",
        **figures,
    )


def _of_leaders(recording: Recording, start_ns: int, end_ns: int) -> int:
    """How many looks at the counter of the server that led succeeded: the leader alone rejects plans."""
    looks = 0
    for reign in measure.reigns(recording, start_ns, end_ns, _LEADER):
        began_ns = max(reign.start_ns, start_ns)
        if reign.host and reign.end_ns - began_ns > SILENT_S * measure.SECOND:  # a shorter reign may have no look
            counted = recording.series(_REJECTED, reign.host).between(began_ns, reign.end_ns)
            looks += int((~np.isnan(counted.value)).sum())
    return looks


def _nodes(text: str) -> dict[str, int]:
    return {node: int(number) for node, _, number in (one.partition(": ") for one in text.split(", "))}
