"""Did a countermeasure help? For incidents that are replayed step by step."""

from dataclasses import dataclass

from hashidrill import measure
from hashidrill.errors import HypothesisInvalidError
from hashidrill.hypothesis import Held, hypothesis, require
from hashidrill.measure import SECOND, in_force, in_full_force, seconds, served_s, settled, when
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

    Sick: in the last `over` before the measure began, the p50 of the load was `p50_below` or more. Recovered: in the
    last `over` of the measure it is below that. A failed operation counts as infinitely slow. The measure is a step of
    the method, by name or kind. `after` judges it that long after it took effect instead of at its end; use it when
    other things happen meanwhile. With `since`, the load must have been sick before that earlier step; use it when
    several steps together are the measure. If the load was not sick before, nothing could help: INVALID. `p50_below` is
    the normal p50 of Consul KV that Roblox published.
    """
    seen = _around(recording, load, fault, over, judged_after_s=after, since=since)
    return _helped(recording, fault, seen, p50_below, expected=True)


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

    Judged like `helps`, but here the p50 at the end is still `p50_below` or more.
    """
    seen = _around(recording, load, fault, over, judged_after_s=after, since=since)
    return _helped(recording, fault, seen, p50_below, expected=False)


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

    Judged like `helps`, the other way round. If the load was sick before, this proves nothing: INVALID.
    """
    seen = _around(recording, load, fault, over)
    if not seen.before_s < p50_below:
        raise HypothesisInvalidError(
            f"{load} was already slow before {fault} began (p50 {seconds(seen.before_s)}), so {fault} need not be the"
            " cause"
        )
    sick = seen.after_s >= p50_below
    held, broken = f"{fault} made {load} slow", f"{fault} did not make {load} slow"
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


def _helped(recording: Recording, fault: str, seen: _Around, limit: Duration, *, expected: bool) -> Held:
    """Whether the load was sick before and well at the end, or, where that is `expected` not to be, sick still."""
    if seen.before_s < limit:
        raise HypothesisInvalidError(
            f"{seen.load} was not slow before {seen.begin} began (p50 {seconds(seen.before_s)}), so there was"
            " nothing to help"
        )
    not_helped = f"{fault} did not help {seen.load}"
    if expected:
        helped, wanted = f"{fault} helped {seen.load}", f"under {limit}"
        return _judged(recording, seen, ok=seen.after_s < limit, held=helped, broken=not_helped, wanted=wanted)
    helped, wanted = f"{fault} did help {seen.load}", f"it to stay over {limit}"
    return _judged(recording, seen, ok=seen.after_s >= limit, held=not_helped, broken=helped, wanted=wanted)


def _judged(recording: Recording, seen: _Around, *, ok: bool, held: str, broken: str, wanted: str) -> Held:
    """`held` and `broken` say what the step did; the p50 before and after it is appended."""
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
    start_ns = max(in_full_force(recording, window)[0] for window in windows)
    end_ns = min(in_force(recording, window)[1] for window in windows)
    over_ns = int(over_s * SECOND)
    wanted_ns = over_ns if judged_after_s is None else max(over_ns, int(judged_after_s * SECOND))
    if end_ns - start_ns < wanted_ns:
        raise HypothesisInvalidError(
            f"{fault} was in force for only {seconds((end_ns - start_ns) / SECOND)}, less than the"
            f" {seconds(wanted_ns / SECOND)} to judge: let it last longer"
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
