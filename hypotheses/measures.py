"""Did what was done about an outage help? For incidents that are played again, measure by measure."""

from dataclasses import dataclass

from hashidrill import measure
from hashidrill.errors import HypothesisInvalidError
from hashidrill.hypothesis import Held, hypothesis, require
from hashidrill.measure import SECOND, in_force, seconds, served_s, settled, when
from hashidrill.recording.marks import MarkWindow
from hashidrill.recording.reader import FaultWindow, Recording
from hashidrill.units import Duration

ROBLOX_NORMAL = Duration("300ms")


@hypothesis
def helps(
    recording: Recording,
    *,
    load: str,
    fault: str,
    p50_below: Duration = ROBLOX_NORMAL,
    over: Duration = Duration("3s"),
    after: Duration | None = None,
    since: str | None = None,
) -> Held:
    """A sick load recovers while this measure is in force.

    Sick: in the last `over` before the measure was taken, the p50 of the load was at or over `p50_below`. Well: in the
    last `over` of its time in force it is under that. (An operation that failed counts as infinitely slow.) The
    measure is a step of the method, by its name or its kind. With `after` it is judged that long after it was put in
    force, and not at its end: where other things happen while it lasts. With `since` it must have been sick before
    that earlier step: where several steps together are the measure. Where the load was not sick before, nothing could
    help: INVALID. `p50_below` is what Roblox published as normal for Consul KV.
    """
    seen = _around(recording, load, fault, over, judged_after_s=after, since=since)
    seen.must_have_been_sick(p50_below)
    helped, not_helped = f"{fault} helped {load}", f"{fault} did not help {load}"
    well = seen.after_s < p50_below
    return _judged(recording, seen, ok=well, held=helped, broken=not_helped, wanted=f"under {p50_below}")


@hypothesis
def does_not_help(
    recording: Recording,
    *,
    load: str,
    fault: str,
    p50_below: Duration = ROBLOX_NORMAL,
    over: Duration = Duration("3s"),
    after: Duration | None = None,
    since: str | None = None,
) -> Held:
    """A sick load stays sick while this measure is in force: it was tried and did not help.

    The same measure as for `helps`; here the p50 is at or over `p50_below` at the end as well.
    """
    seen = _around(recording, load, fault, over, judged_after_s=after, since=since)
    seen.must_have_been_sick(p50_below)
    helped, not_helped = f"{fault} did help {load}", f"{fault} did not help {load}"
    sick = seen.after_s >= p50_below
    return _judged(recording, seen, ok=sick, held=not_helped, broken=helped, wanted=f"it to stay over {p50_below}")


@hypothesis
def makes_sick(
    recording: Recording,
    *,
    load: str,
    fault: str,
    p50_below: Duration = ROBLOX_NORMAL,
    over: Duration = Duration("3s"),
) -> Held:
    """A healthy load is sick by the end of this step: the start of the incident.

    The same measure as for `helps`, the other way round. Where the load was sick before, it says nothing: INVALID.
    """
    seen = _around(recording, load, fault, over)
    if not seen.before_s < p50_below:
        raise HypothesisInvalidError(
            f"{load} was sick before {fault} began (p50 {seconds(seen.before_s)}): nothing says that {fault} did it"
        )
    sick = seen.after_s >= p50_below
    held, broken = f"{fault} made {load} sick", f"{fault} did not make {load} sick"
    return _judged(recording, seen, ok=sick, held=held, broken=broken, wanted=f"over {p50_below}")


@dataclass(frozen=True)
class _Around:
    """The p50 of a load before a step, and at the end of its time in force."""

    load: str
    begin: str
    before_s: float
    after_s: float
    end_ns: int
    where: str

    @property
    def figures(self) -> dict[str, float]:
        return {"p50_before_s": self.before_s, "p50_after_s": self.after_s}

    def must_have_been_sick(self, limit_s: float) -> None:
        if self.before_s < limit_s:
            raise HypothesisInvalidError(
                f"{self.load} was not sick before {self.begin} began (p50 {seconds(self.before_s)}): nothing could help"
            )


def _judged(recording: Recording, seen: _Around, *, ok: bool, held: str, broken: str, wanted: str) -> Held:
    """`held` or `broken` says what the step did; both tell the p50 before it and after it."""
    measured = f"p50 {seconds(seen.before_s)} before it, {seconds(seen.after_s)} {seen.where}"
    require(ok, f"{broken}: {measured} ({when(recording, seen.end_ns)}); expected {wanted}", **seen.figures)
    return Held(f"{held}: {measured}", **seen.figures)


def _around(
    recording: Recording,
    load: str,
    fault: str,
    over_s: float,
    *,
    judged_after_s: float | None = None,
    since: str | None = None,
) -> _Around:
    """Raises HypothesisInvalidError where nothing was due before the step or at its end, or it was too short."""
    windows = measure.windows(recording, fault)
    intended_ns = min(_began_ns(window) for window in measure.windows(recording, since or fault))
    start_ns = max(in_force(recording, window)[0] for window in windows)
    end_ns = min(in_force(recording, window)[1] for window in windows)
    over_ns = int(over_s * SECOND)
    wanted_ns = over_ns if judged_after_s is None else max(over_ns, int(judged_after_s * SECOND))
    if end_ns - start_ns < wanted_ns:
        raise HypothesisInvalidError(
            f"{fault} was in force for {seconds((end_ns - start_ns) / SECOND)} only, which is less than the"
            f" {seconds(wanted_ns / SECOND)} to be judged: let it last longer"
        )
    where = "at its end"
    if judged_after_s is not None:
        end_ns, where = start_ns + wanted_ns, f"{seconds(judged_after_s)} into it"
    before = _p50_s(recording, load, intended_ns - over_ns, intended_ns, f"before {since or fault}")
    after = _p50_s(recording, load, end_ns - over_ns, end_ns, f"at the end of {fault}")
    return _Around(load, since or fault, before, after, end_ns, where)


def _began_ns(window: FaultWindow | MarkWindow) -> int:
    return window.intent_ns if isinstance(window, FaultWindow) else window.begin_ns


def _p50_s(recording: Recording, load: str, start_ns: int, end_ns: int, where: str) -> float:
    due = settled(recording, recording.operations(load).between(start_ns, end_ns))
    if not len(due):
        raise HypothesisInvalidError(f"no operation of {load} was due {where}, so there is nothing to judge")
    return measure.percentile(served_s(due), 50)
