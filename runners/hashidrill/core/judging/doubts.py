"""Seconds of a run that were not measured validly. Judgements that rely on them are INVALID; the other judgements
stand.

Causes: a generator that fell behind, a load that offered nothing, a silent probe, a fault whose effect vanished
before its revert, a machine that other work kept busy.

A run is valid only if it does what the experiment promises. So a load that offers nothing, or clearly less than its
rate, puts everything measured at that time in doubt, whether or not an expectation reads the load (`Doubt.promise`). A
failed operation counts as offered; so does an operation that waits for the datacenter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hashidrill.core.experiment.model import ATTEMPTS, ClientSpec, Experiment, LoadSpec
from hashidrill.core.judging import measure
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.judging.reads import Read
from hashidrill.core.loads.schedule import MAX_IN_FLIGHT, OVERLOADED
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.protocols.service import SILENT_S, HasClosedLoops, HasPeriods
from hashidrill.core.recording.columns import NOT_ITS_OWN, silences
from hashidrill.core.recording.reader import Bools, Floats, Int64s, Operations, Recording
from hashidrill.core.units import Duration, Rate

OTHERS_SHARE = 0.25
IDLE_SHARE = 0.05
"""Shares of the machine's CPUs: other work over the first share, with less than the second idle, starves the run."""
SUSTAINED_S = 3
"""This many bad seconds in a row are more than a burst."""


@dataclass(frozen=True)
class MachineUse:
    """Samples of one second each, in CPUs: the CPUs that processes outside of the run used, and idle ones.

    `cpus` is how many CPUs the run may use; a fraction if a quota limits it.
    """

    cpus: float
    t_ns: Int64s
    others: Floats
    idle: Floats

    @property
    def starved(self) -> Bools:
        """The seconds in which other work left the datacenter almost no CPU, for several seconds in a row."""
        mask = (self.others > OTHERS_SHARE * self.cpus) & (self.idle < IDLE_SHARE * self.cpus)
        for first, last in runs_of(mask):
            mask[first : last + 1] = last - first + 1 >= SUSTAINED_S
        return np.asarray(mask, np.bool_)

    @property
    def own(self) -> Floats:
        """The CPUs that the run itself used: its agents, clients and load generator."""
        return np.maximum(self.cpus - self.others - self.idle, 0.0)

    def between(self, start_ns: int, end_ns: int) -> MachineUse:
        """The samples in [start_ns, end_ns)."""
        inside = (self.t_ns >= start_ns) & (self.t_ns < end_ns)
        return MachineUse(self.cpus, self.t_ns[inside], self.others[inside], self.idle[inside])


def machine_use(recording: Recording) -> MachineUse | None:
    """The machine's CPU use; None if it was not sampled: in a datacenter that is not local, and in old recordings."""
    if not {"machine.others", "machine.idle"} <= set(recording.signals):
        return None
    machine = recording.run.get("machine", {})
    cpus = machine.get("usable_cpus") or machine.get("cpus") or 1
    others, idle = recording.series("machine.others"), recording.series("machine.idle")
    count = min(len(others), len(idle))  # each sample has both, in the same order
    return MachineUse(cpus, others.t_ns[:count], others.value[:count], idle.value[:count])


def runs_of(mask: Bools) -> Iterator[tuple[int, int]]:
    """First and last index of each run of True."""
    edges = np.diff(np.concatenate(([0], np.asarray(mask, np.int8), [0])))
    stops = np.flatnonzero(edges == -1) - 1
    yield from zip(np.flatnonzero(edges == 1).tolist(), stops.tolist(), strict=True)


LATE_S = 0.05
LATE_SHARE_MAX = 0.10
_LATE_HALF = 0.5
LAG_P99_MAX_S = 0.25
SATURATED_CORES = 0.9
SHED = "operations that could not be started"
"""`Doubt.about` if the generator did not start operations: too many were in flight, or the generator was too slow."""
_FEWEST_DUE = 5
OFFERED_LEAST = 0.9
"""A load that offers a smaller share of its rate did not put the promised load on the datacenter."""
_OFFERED_OVER = 5
"""The number of seconds over which this share is counted."""
_LEVEL_NEAR_NS = 2 * SECOND
_MOST = 0.5
_FOREVER_NS = 2**62
_GENERATOR = frozenset({"generator.cpu", "generator.lag"})


@dataclass(frozen=True)
class Doubt:
    """Invalid measurements of loads and signals by name (None: all), on one host or all, over some time.

    A load's name includes its own signals. `late_only`: results are right, but times may include the generator's own
    delay. `broken_only`: the cause may explain why something broke; what held in spite of it stands. `held_only`: the
    reverse. `promise`: the load in `of` did not do what the experiment asks for, so everything measured at that time is
    in doubt. `unless_read`: judgements of `of` itself are not in doubt, because they show the failure; if any
    expectation reads `of`, no judgement is in doubt.
    """

    reason: str
    start_ns: int
    end_ns: int
    of: frozenset[str] | None = None
    host: str | None = None
    late_only: bool = False
    broken_only: bool = False
    held_only: bool = False
    promise: bool = False
    unless_read: bool = False
    about: str = ""
    """All doubts with the same `about` are reported in one line; without `about`, doubts with the same reason."""
    among: str = ""
    """The group that this doubt belongs to, as a plural noun: if a busy machine silences many probes, one line reports
    them.
    """

    def touches(self, read: Read) -> bool:
        """Whether the doubt covers any of these reads."""
        if self.promise:
            if self.unless_read and read.of is not None and self.names(read.of):
                return False
        elif read.of is not None and not self.names(read.of):
            return False
        if self.host is not None and read.host is not None and self.host != read.host:
            return False
        return read.overlaps(self.start_ns, self.end_ns)

    def settled_by(self, reads_of_all: Iterable[Sequence[Read]]) -> bool:
        """Whether an expectation reads the load of this `unless_read` doubt, and so judges it."""
        reads = (read for reads in reads_of_all for read in reads)
        return self.unless_read and any(
            read.of is not None and self.names(read.of) and read.overlaps(self.start_ns, self.end_ns) for read in reads
        )

    def names(self, name: str) -> bool:
        """Whether the doubt is about that load or signal."""
        return self.of is None or name in self.of or any(name.startswith(f"{load}.") for load in self.of)

    def span(self, recording: Recording) -> str:
        """The time of the doubt as text: `from 12.0s to 22.0s into the run`."""
        from_s = self.start_ns / SECOND
        if self.end_ns >= measure.loads_end_ns(recording):
            return f"from {from_s:.1f}s into the run to the end"
        return f"from {from_s:.1f}s to {self.end_ns / SECOND:.1f}s into the run"


def doubts(recording: Recording, experiment: Experiment) -> list[Doubt]:
    """All doubts, in order of time. The run must have reached its method."""
    found = [
        *generator_doubts(recording, experiment),
        *_broken_promises(recording, experiment),
        *_silent_probes(recording),
        *_faded_faults(recording),
        *_starved_machine(recording),
    ]
    return sorted(found, key=lambda doubt: (doubt.start_ns, doubt.reason))


def generator_doubts(recording: Recording, experiment: Experiment) -> Iterator[Doubt]:
    """The doubts about times when the generator, not the datacenter, was the bottleneck."""
    yield from _saturated(recording, experiment)
    runs = [name for name, client in experiment.clients.items() if not client.service]
    for load in (*experiment.load, *runs):
        if load in recording.loads:
            ops = recording.operations(load)
            if ops.ok.any():
                yield from _behind(load, ops)


def _of_generator(experiment: Experiment) -> frozenset[str]:
    return frozenset(experiment.measured) | _GENERATOR


def _saturated(recording: Recording, experiment: Experiment) -> Iterator[Doubt]:
    """The times when the generator used up its core, so that latencies include its own queue.

    The generator is one process with one thread. Three samples in a row (a second each) are more than a burst. Above
    90 % of a core, an operation waits for ten times its service time, by the usual rule for a single queue. A sample
    covers the second before it; at the next low sample the queue is empty.
    """
    if "generator.cpu" not in recording.signals:
        return
    series = recording.series("generator.cpu")
    for first, last in runs_of(series.value > SATURATED_CORES):
        if last - first + 1 < SUSTAINED_S:
            continue
        yield Doubt(
            f"the generator used up its core: over {SATURATED_CORES:g} for {last - first + 1} s in a row, at most"
            f" {float(series.value[first : last + 1].max()):.2f}; lower the rates of the loads",
            int(series.t_ns[first - 1]) if first else int(series.t_ns[0]) - 2 * SECOND,
            int(series.t_ns[last + 1]) if last + 1 < len(series) else _FOREVER_NS,
            _of_generator(experiment),
            late_only=True,
        )


def _behind(load: str, ops: Operations) -> Iterator[Doubt]:
    """The times when the generator, not the datacenter, was slow.

    Two conditions must both hold, for a second or for the whole run: too many operations started over 50 ms late
    (several times the sleep granularity of a busy two-core machine), and the p99 of the lag is over 250 ms, which
    nearly uses up the tightest published SLO for KV latency (300 ms; Roblox, 2021). Too many means 10 % of the whole
    run, or over half for three seconds in a row: the median over some seconds is then the generator's own.
    """
    refused = _refused(ops)
    if refused.any():
        for start_ns, end_ns in _merged(ops.intended_ns[refused]):
            yield Doubt(
                f"load {load}: {int(refused.sum())} of {len(ops)} operations could not be started: {OVERLOADED}; it"
                f" offered {measure.share(1 - float(refused.mean()))} of what the experiment asks for; lower its rate",
                start_ns,
                end_ns,
                frozenset({load}),
                about=SHED,
            )
    start_ns, shares, p99s = _by_second(ops)
    bad = np.zeros(len(shares), np.bool_)
    for first, last in runs_of((shares > _LATE_HALF) & (p99s > LAG_P99_MAX_S)):
        bad[first : last + 1] = last - first + 1 >= SUSTAINED_S
    share, p99 = _lateness(ops.lag_s)
    if share > LATE_SHARE_MAX and p99 > LAG_P99_MAX_S:
        bad |= shares > LATE_SHARE_MAX
    for first, last in runs_of(bad):
        from_ns, to_ns = start_ns + first * SECOND, start_ns + (last + 1) * SECOND
        late, worst = _lateness(ops.between(from_ns, to_ns).lag_s)
        yield Doubt(
            f"load {load}: the generator fell behind its own schedule: {late:.0%} of the operations started over"
            f" {LATE_S * 1e3:.0f}ms late, p99 {worst * 1e3:.0f}ms; lower the load's rate, or use a machine with more"
            " cores",
            from_ns,
            to_ns,
            frozenset({load}),
            late_only=True,
        )


def _by_second(ops: Operations) -> tuple[int, Floats, Floats]:
    """When the first operation was due; and for each second from then on, the share of operations that started late,
    and the p99 of their lag (0 if less than half were late).
    """
    start_ns = int(ops.intended_ns[0])
    second = (ops.intended_ns - start_ns) // SECOND
    shares = np.bincount(second, ops.lag_s > LATE_S) / np.maximum(np.bincount(second), 1)
    p99s = np.zeros(len(shares))
    for each in np.flatnonzero(shares > _LATE_HALF):
        p99s[each] = _lateness(ops.lag_s[second == each])[1]
    return start_ns, shares, p99s


def _lateness(lag_s: Floats) -> tuple[float, float]:
    """The share of operations that started late, and the p99 of their lag in seconds."""
    if not len(lag_s):
        return 0.0, 0.0
    return float((lag_s > LATE_S).mean()), float(np.percentile(lag_s, 99))


def _broken_promises(recording: Recording, experiment: Experiment) -> Iterator[Doubt]:
    """The times when a load offered nothing although its operations were due, or the generator itself was silent.

    The generator's heartbeat covers loads whose operations depend on events (watches, streams, views).
    """
    begin_ns, end_ns = _measured_span(recording)
    for name, spec in experiment.traffic.items():
        of = frozenset({name, f"{name}{ATTEMPTS}"})
        if isinstance(spec, ClientSpec) and spec.service:
            yield from _silent_service(recording, name, of, spec)
        if name not in recording.loads:
            continue
        ops = recording.operations(name)
        yield from _unserved(recording, name, of, ops)
        if (rate := _rate_per_s(spec)) is None:
            continue
        offer = offer_of(recording, name, spec)
        gaps = list(_without_offer(recording, name, ops, (begin_ns, end_ns), rate=rate, offer=offer))
        if offer is not None:
            yield from _offered_less(recording, name, offer, of, gaps)
        for start_ns, stop_ns, refused in gaps:
            but = f" (it refused all {refused} itself)" if refused else ""
            yield Doubt(
                f"load {name} stopped: it started no operation for {(stop_ns - start_ns) / SECOND:.1f}s{but}, although"
                f" the experiment asks for at least {Rate(rate)}",
                start_ns,
                _spoilt_until(recording, name, start_ns, stop_ns),
                of,
                promise=True,
            )
    if "generator.cpu" in recording.signals:
        for start_ns, stop_ns in _gaps(recording.series("generator.cpu").t_ns, begin_ns, end_ns):
            if stop_ns - start_ns > SILENT_S * SECOND:
                yield Doubt(
                    f"the generator gave no sign of life for {(stop_ns - start_ns) / SECOND:.1f}s",
                    start_ns,
                    stop_ns,
                    _of_generator(experiment),
                )


def _without_offer(
    recording: Recording, name: str, ops: Operations, span: tuple[int, int], *, rate: float, offer: Offer | None
) -> Iterator[tuple[int, int, int]]:
    """Gaps in which the load started nothing although operations were due; with the number of refused ones in each.

    An operation that the generator refused was not started. But while the load has its largest number of operations in
    flight, it does offer its traffic: the datacenter accepts no more.
    """
    refused = _refused(ops)
    started, refusals = ops.picked(~refused), ops.picked(refused)
    for start_ns, stop_ns in _gaps(started.intended_ns, *span):
        offered_s, full_s = _offered_s(recording, name, start_ns, stop_ns)
        waited_s = 0 if offer is None else int(offer.full[offer.seconds(start_ns, stop_ns)].sum())
        if offered_s - waited_s > SILENT_S and full_s > _FEWEST_DUE / rate:
            yield start_ns, stop_ns, len(refusals.between(start_ns, stop_ns))


@dataclass(frozen=True)
class Offer:
    """For each second: the operations that a load's rate and level asked for, those it started, and the average number
    in flight.

    `at_once` is its limit of operations in flight: at the limit, it offers all that the datacenter accepts.
    """

    start_ns: int
    asked: Floats
    started: Floats
    under_way: Floats
    at_once: int

    @property
    def full(self) -> Bools:
        """The seconds in which about `at_once` operations were in flight."""
        return np.asarray(self.under_way >= OFFERED_LEAST * self.at_once, np.bool_)

    @property
    def missing(self) -> Floats:
        """Operations that were due but not started, although fewer than the limit were in flight."""
        return np.where(self.full, 0.0, np.maximum(self.asked - self.started, 0.0))

    def seconds(self, start_ns: int, end_ns: int) -> Bools:
        """The seconds that overlap with that time."""
        at_ns = self.start_ns + np.arange(len(self.asked)) * SECOND
        return np.asarray((at_ns > start_ns - SECOND) & (at_ns < end_ns), np.bool_)


def offer_of(recording: Recording, name: str, spec: LoadSpec | ClientSpec) -> Offer | None:
    """The offer from the steady state to the end of the loads; None for a load without a rate, and for a client."""
    if isinstance(spec, ClientSpec) or "rate" not in spec.params or (rate := _rate_per_s(spec)) is None:
        return None
    begin_ns, end_ns = _measured_span(recording)
    ops = recording.operations(name)
    started = ops.picked(~_refused(ops))
    edges = np.arange(begin_ns, end_ns + 1, SECOND)
    if len(edges) < 2:
        return None
    asked = np.diff([rate * _level_s(recording, name, begin_ns, int(edge)) for edge in edges])
    under_way = np.diff(_passed_s(started.start_ns, edges) - _passed_s(started.end_ns, edges))
    counted = np.histogram(started.intended_ns, edges)[0].astype(np.float64)
    return Offer(begin_ns, asked, counted, under_way, closed_loop(spec) or MAX_IN_FLIGHT)


def _passed_s(since_ns: Int64s, edges: Int64s) -> Floats:
    """For each edge, the sum of the seconds that have passed since the earlier moments."""
    since_s = np.sort(since_ns.astype(np.float64)) / SECOND
    sums = np.concatenate([[0.0], np.cumsum(since_s)])
    count = np.searchsorted(since_s, edges / SECOND)
    return np.asarray(count * (edges / SECOND) - sums[count], np.float64)


def _level_s(recording: Recording, load: str, start_ns: int, end_ns: int) -> float:
    """The level, summed over the seconds of that time. Of two close samples the lower counts: the level may ramp."""
    if f"{load}.level" not in recording.signals:
        return (end_ns - start_ns) / SECOND
    level = recording.series(f"{load}.level").known_between(start_ns, end_ns)
    value = np.nan_to_num(level.value)
    near = np.diff(level.t_ns) < _LEVEL_NEAR_NS
    value[:-1] = np.where(near, np.minimum(value[:-1], value[1:]), value[:-1])
    lasted_s = np.diff(np.clip([*level.t_ns, end_ns], start_ns, end_ns)) / SECOND
    return float((lasted_s * value).sum())


def _offered_less(
    recording: Recording, name: str, offer: Offer, of: frozenset[str], gaps: Sequence[tuple[int, int, int]]
) -> Iterator[Doubt]:
    """The times when a load offered clearly less than its rate, and the datacenter was not the cause.

    Gaps without any offered operation are reported separately.
    """
    in_gaps = [offer.seconds(start_ns, stop_ns) for start_ns, stop_ns, _ in gaps]
    offer = replace(offer, asked=np.where(np.any(in_gaps, axis=0), 0.0, offer.asked)) if in_gaps else offer
    over = np.ones(min(_OFFERED_OVER, len(offer.asked)))
    asked, missing = (np.convolve(each, over, "valid") for each in (offer.asked, offer.missing))
    few = np.convolve((asked >= _FEWEST_DUE) & (missing > (1 - OFFERED_LEAST) * asked + 1), over) > 0
    for first, last in runs_of(few & (offer.missing > (1 - OFFERED_LEAST) * offer.asked)):
        part = slice(first, last + 1)
        due, started = float(offer.asked[part].sum()), float(offer.started[part].sum())
        from_ns, until_ns = offer.start_ns + first * SECOND, offer.start_ns + (last + 1) * SECOND
        yield Doubt(
            f"load {name} offered {started:,.0f} of the {due:,.0f} operations that its rate asks for"
            f" ({measure.share(min(started / due, 1.0))}, at least {OFFERED_LEAST:.0%} are needed), with"
            f" {offer.under_way[part].mean():,.0f} of {offer.at_once:,} under way",
            from_ns,
            _spoilt_until(recording, name, from_ns, until_ns),
            of,
            promise=True,
        )


def offers(recording: Recording, experiment: Experiment) -> Iterator[str]:
    """For each load at its limit of operations in flight: the rate that it offered, and the rate asked for, as text."""
    for name, spec in experiment.load.items():
        if not (limit := closed_loop(spec)) or name not in recording.loads:
            continue
        if (offer := offer_of(recording, name, spec)) is None:
            continue
        full = offer.full & (offer.started < OFFERED_LEAST * offer.asked)
        if full.any():
            asked, started = offer.asked[full].sum(), offer.started[full].sum()
            yield (
                f"load {name} offered {started / full.sum():,.1f}/s of {asked / full.sum():,.1f}/s asked for"
                f" {int(full.sum())}s: all that the datacenter accepts with the load's limit of {limit} in flight"
            )


def _refused(ops: Operations) -> Bools:
    if ops.ok.all():
        return np.zeros(len(ops), np.bool_)
    return np.array([reason == Reason.OVERLOADED for reason in ops.reasons], np.bool_)


def _spoilt_until(recording: Recording, name: str, start_ns: int, stop_ns: int) -> int:
    """The end of the doubt. If the load was missing for most of the method, the datacenter recovers from less, so the
    doubt lasts to the end of the run.
    """
    begin_ns, end_ns = measure.method(recording)
    asked_s, _ = _offered_s(recording, name, begin_ns, end_ns)
    inside = max(start_ns, begin_ns), min(stop_ns, end_ns)
    missing_s = _offered_s(recording, name, *inside)[0] if inside[0] < inside[1] else 0.0
    return _FOREVER_NS if missing_s > asked_s * _MOST else stop_ns


def _unserved(recording: Recording, name: str, of: frozenset[str], ops: Operations) -> Iterator[Doubt]:
    """The time from which a load had no successful operation although no fault was in force.

    A failure while a fault is in force is the fault's effect. If an expectation reads the load, it judges the failure.
    """
    if not (ok := ops.end_ns[ops.ok]).size:
        return  # the whole run is INVALID anyway
    end_ns = measure.loads_end_ns(recording)
    since_ns = max(int(ok.max()), measure.method(recording)[0])
    free = list(_without_fault(recording, since_ns, end_ns))
    due = measure.settled(recording, ops.within(free))
    if len(due) >= _FEWEST_DUE and sum(stop_ns - start_ns for start_ns, stop_ns in free) > SILENT_S * SECOND:
        error = next((each for each in reversed(due.errors) if each), "no error was recorded")
        yield Doubt(
            f"load {name} had no successful operation in the last {(end_ns - since_ns) / SECOND:.1f}s, also while no"
            f" fault was in force ({len(due)} operations), and no expectation reads it; the last error: {error}",
            since_ns,
            _FOREVER_NS,
            of,
            held_only=True,
            promise=True,
            unless_read=True,
        )


def _silent_service(recording: Recording, name: str, of: frozenset[str], spec: ClientSpec) -> Iterator[Doubt]:
    """When a service client that reports no operations sent no requests: its attempts are its only evidence."""
    if f"{name}{ATTEMPTS}" not in recording.loads or "steady" not in recording.phases:
        return
    if name in recording.loads and any(reason not in NOT_ITS_OWN for reason in recording.operations(name).reasons):
        return  # operations that the client did not report count as not acknowledged
    for start_ns, stop_ns in silences(recording.operations(f"{name}{ATTEMPTS}"), recording.phases, spec.reports_every):
        yield Doubt(
            f"client {name} sent nothing for {(stop_ns - start_ns) / SECOND:.1f}s, and reports no operations: whether"
            " it hung is unknown",
            start_ns,
            stop_ns,
            of,
            promise=True,
        )


def _without_fault(recording: Recording, start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    windows = [each for each in recording.faults if each.kind != measure.NO_FAULT]
    for begin_ns, stop_ns in sorted((each.intent_ns, measure.in_force(recording, each)[1]) for each in windows):
        if start_ns < min(begin_ns, end_ns):
            yield start_ns, min(begin_ns, end_ns)
        start_ns = max(start_ns, stop_ns)
    if start_ns < end_ns:
        yield start_ns, end_ns


def _rate_per_s(spec: LoadSpec | ClientSpec) -> float | None:
    """The lowest rate of operations at a level of 100 %; None if the load has no rate.

    Parameters are read as text, because judging a recording must not need the classes of its loads.
    """
    try:
        if isinstance(spec, ClientSpec):
            return spec.rate
        if (period := _period(spec.kind)) is not None:
            name, default = period
            return 1 / Duration.parse(str(spec.params.get(name, default)))
        return Rate.parse(str(spec.params.get("rate"))) or None
    except (ValueError, ZeroDivisionError):
        return None


def _period(kind: str) -> tuple[str, str] | None:
    """The parameter for the period, and its default, of a load without a rate whose operations recur."""
    return next((one.periods[kind] for one in registry.services_with(HasPeriods) if kind in one.periods), None)


def closed_loop(spec: LoadSpec | ClientSpec) -> int | None:
    """The most operations that the load has in flight; None for a load that keeps its rate if replies are slow."""
    if isinstance(spec, ClientSpec):
        return None
    found = (one.at_once[spec.kind] for one in registry.services_with(HasClosedLoops) if spec.kind in one.at_once)
    name, default = next(found, ("", 0))
    limit = spec.params.get(name, default)
    return limit if isinstance(limit, int) and limit > 0 else None


def _offered_s(recording: Recording, load: str, start_ns: int, end_ns: int) -> tuple[float, float]:
    """Seconds of that time in which the load's level was over 0 %, and the equivalent seconds at 100 %.

    A second at 10 % counts as a tenth of a second; a second over 100 % counts as one.
    """
    if f"{load}.level" not in recording.signals:
        return (end_ns - start_ns) / SECOND, (end_ns - start_ns) / SECOND
    level = recording.series(f"{load}.level").known_between(start_ns, end_ns)
    edges = np.clip([*level.t_ns, end_ns], start_ns, end_ns)
    lasted_s = np.diff(edges) / SECOND
    return float(lasted_s[level.value > 0].sum()), float((lasted_s * np.clip(level.value, 0, 1)).sum())


def _silent_probes(recording: Recording) -> Iterator[Doubt]:
    begin_ns, end_ns = _measured_span(recording)
    for probe in recording.experiment.sampled(recording.signals):
        if probe.regular:
            every = recording.series(probe.regular).host if probe.regular in recording.signals else ()
            for host in sorted(set(every)):
                t_ns = recording.series(probe.regular, host).t_ns
                yield from _silence(probe.signals, t_ns, host, (begin_ns, end_ns), probe.silent_s)
            continue
        times = [recording.series(signal).t_ns for signal in sorted(probe.signals) if signal in recording.signals]
        if times:
            yield from _silence(probe.signals, np.sort(np.concatenate(times)), None, (begin_ns, end_ns), probe.silent_s)


def _silence(
    signals: frozenset[str], t_ns: Int64s, host: str | None, span: tuple[int, int], silent_s: float
) -> Iterator[Doubt]:
    for start_ns, stop_ns in _gaps(t_ns, *span):
        if stop_ns - start_ns > silent_s * SECOND:
            yield Doubt(
                f"the probe of {', '.join(sorted(signals))}{f' of {host}' if host else ''} was silent for"
                f" {(stop_ns - start_ns) / SECOND:.1f}s",
                start_ns,
                stop_ns,
                signals,
                host,
                among="probes",
            )


def _faded_faults(recording: Recording) -> Iterator[Doubt]:
    """The time after the last good proof of a fault that faded: its effect and the recovery are unknown then."""
    for window in recording.faults:
        if window.faded_ns is not None and window.proven_ns is not None:
            yield Doubt(
                f"fault {measure.named(recording, window)} was no longer in force just before its revert: "
                f"{readable(window.faded_proof)}; when its effect ended is unknown",
                window.proven_ns,
                _FOREVER_NS,
            )


def _starved_machine(recording: Recording) -> Iterator[Doubt]:
    """When other work took CPU that the datacenter needed: a broken SLO then says nothing about the datacenter."""
    use = machine_use(recording)
    if use is None:
        return
    for first, last in runs_of(use.starved):
        most = float(use.others[first : last + 1].max())
        yield Doubt(
            f"other work kept this machine busy: processes outside of the run used up to {most:.1f} of"
            f" {use.cpus:g} CPUs and left almost none idle for {last - first + 1} s in a row",
            int(use.t_ns[first - 1]) if first else int(use.t_ns[0]) - SECOND,
            int(use.t_ns[last]),
            late_only=True,
            broken_only=True,
            about="other work",
        )


def readable(detail: object) -> str:
    """Evidence as text, whether it was recorded as text or as `{asked, measured}`."""
    if isinstance(detail, Mapping) and "measured" in detail:
        return f"asked for {detail.get('asked')}, measured {detail['measured']}"
    if isinstance(detail, Mapping):
        return ", ".join(f"{key}: {value}" for key, value in detail.items())
    if isinstance(detail, (list, tuple)):
        return "; ".join(map(readable, detail))
    return str(detail)


def _measured_span(recording: Recording) -> tuple[int, int]:
    begin_ns = recording.phases.get("steady", measure.method(recording))[0]
    return begin_ns, measure.loads_end_ns(recording)


def _gaps(t_ns: Int64s, begin_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    inside = t_ns[(t_ns > begin_ns) & (t_ns < end_ns)]
    return pairwise([begin_ns, *inside.tolist(), end_ns])


def _merged(t_ns: Int64s) -> Iterator[tuple[int, int]]:
    for group in np.split(t_ns, np.flatnonzero(np.diff(t_ns) > SECOND) + 1):
        yield int(group[0]), int(group[-1]) + 1
