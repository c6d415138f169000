"""Is all work that Nomad acknowledged accounted for, and do nodes that went away come back?"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Annotated

import numpy as np
from pydantic import Field

from hashidrill import Duration, Held, HypothesisInvalidError, Recording, Series, hypothesis, measure, require
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.measure import seconds, when

_NAMED = 5
_ACCOUNTED = ("complete", "runs", "waits", "failed")
_UNACCOUNTED = {
    "forgotten": "Nomad knows no job for it",
    "dropped": "its job ended, and nothing was ever placed",
    "lost": "its last allocation was lost, and was not replaced",
}
_WITNESSED = frozenset({"began", "ended", "silent"})
_SAVE, _RESTORE = "nomad.snapshot.save", "nomad.snapshot.restore"
_READY, _DOWN, _INELIGIBLE = "nomad.nodes_ready", "nomad.nodes_down", "nomad.nodes_ineligible"


@hypothesis(needs_valid_run=False, timed=False)
def no_alloc_lost(recording: Recording, *, load: str, once: bool = False) -> Held:
    """Each dispatch that Nomad acknowledged is accounted for at the end: it ran to its end, runs, waits, or failed.

    The load has the kind `nomad.dispatch`: once it has stopped, it looks at every job and allocation (`LOAD.work`). A
    dispatch is unaccounted for if Nomad does not know it, dropped it without an allocation, or lost it with its node
    and never placed it again. With `once`, no task may have started twice.

    With `witness: true` in the load, each task reports its own begin and end. Then work that Nomad forgot after it had
    ended is accounted for, and a start that no server knows is counted. INVALID if the load could not look, did not
    see each acknowledged dispatch, or (`once`) has no report of work that ran. Judged even in an INVALID run.
    """
    ops = recording.operations(load)
    acknowledged = [key for key, ok in zip(ops.keys, ops.ok.tolist(), strict=True) if ok]
    if not acknowledged:
        raise HypothesisInvalidError(f"no dispatch of {load} was acknowledged, so there was nothing to lose")
    seen = _said(recording, f"{load}.work", {*_ACCOUNTED, *_UNACCOUNTED})
    heard = _heard(recording, load)
    known = [key for key in acknowledged if key in seen]
    states = Counter(seen[key][0] for key in known)
    gone = [key for key in known if seen[key][0] in _UNACCOUNTED]
    lost = [key for key in gone if heard.get(key, ("", 0))[0] != "ended"]
    starts = {key: max(seen[key][1], heard.get(key, ("", 0))[1]) for key in known}
    twice = [key for key in known if starts[key] > 1]
    silent = [key for key in known if heard and seen[key][0] == "complete" and heard.get(key, ("", 0))[1] == 0]
    unseen = [key for key in acknowledged if key not in seen]
    figures = {
        "acknowledged": len(acknowledged),
        "accounted": len(known) - len(lost),
        "lost": len(lost),
        "twice": len(twice),
        "ran_and_forgotten": len(gone) - len(lost),
        "unheard": len(silent),
        "lost_keys": lost,
        "twice_keys": twice,
        **{state: states[state] for state in _ACCOUNTED},
    }
    whole = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    require(
        not lost,
        f"{len(lost)} of {len(acknowledged)} acknowledged dispatches of {load} are not accounted for ({whole}):"
        f" {_shown([f'{key} ({_UNACCOUNTED[seen[key][0]]})' for key in lost])}",
        **figures,
    )
    require(
        not once or not twice,
        f"{len(twice)} of {len(acknowledged)} acknowledged dispatches of {load} started more than once:"
        f" {_shown([f'{key} ({starts[key]} times)' for key in twice])}",
        **figures,
    )
    if unseen or (once and silent):
        what = "what became of" if unseen else "the number of starts of"
        raise HypothesisInvalidError(
            f"{what} {len(unseen or silent)} of {len(acknowledged)} acknowledged dispatches of {load} was not seen:"
            f" {_shown(unseen or silent)}"
        )
    more = [f"{len(twice)} started more than once" if twice else "none started twice"]
    more += [f"{len(gone) - len(lost)} ran to their end before Nomad forgot them"] * (len(gone) > len(lost))
    more += [f"{len(known) - len(silent)} said so themselves"] * bool(heard)
    return Held(
        f"{len(acknowledged)} of {len(acknowledged)} acknowledged dispatches of {load} are accounted for:"
        f" {whole}; {'; '.join(more)}",
        **figures,
    )


def _heard(recording: Recording, load: str) -> dict[str, tuple[str, int]]:
    """Like `_said`, from the tasks' own reports; empty for a load without a witness."""
    try:
        recording.series(signal := f"{load}.witnessed")
    except HypothesisInvalidError:
        return {}
    return _said(recording, signal, _WITNESSED)


def _said(recording: Recording, signal: str, states: Collection[str]) -> dict[str, tuple[str, int]]:
    """{key: (state, how often it started)}. Raises HypothesisInvalidError for any other sample."""
    series = recording.series(signal)
    found = {}
    for value, text, ok in zip(series.value.tolist(), series.text, series.ok.tolist(), strict=True):
        key, _, state = text.rpartition(" ")
        if not ok or state not in states:
            raise HypothesisInvalidError(f"{signal} says {text!r}, which is not an account of a dispatch")
        found[key] = (state, int(value))
    return found


@hypothesis(needs_valid_run=False, timed=False)
def no_work_lost_but_rolled_back(
    recording: Recording, *, load: str, at_most: Annotated[int, Field(ge=0)] | None = None
) -> Held:
    """The restore of a snapshot undoes the work that Nomad acknowledged since its save, and nothing else.

    The load has the kind `nomad.dispatch` or `nomad.job.churn`. Work acknowledged before the save must be known at the
    end, and so must work sent after the restore. Work in between is *rolled back*: it must be gone, and more than
    `at_most` of it breaks the hypothesis. Work in flight at the save or at the restore may be on either side. INVALID
    unless one save and one restore were proven, or if nothing was acknowledged outside the time that was rolled back.
    """
    ops, finals = recording.operations(load), recording.final_reads(load)
    restores = measure.faults(recording, _RESTORE)
    name = restores[0].params.get("snapshot")
    saves = [one for one in measure.faults(recording, _SAVE) if one.params.get("name") == name]
    if len(restores) != 1 or len(saves) != 1:
        raise HypothesisInvalidError(f"{len(restores)} restores and {len(saves)} saves of {name} were proven, not one")
    acknowledged = np.flatnonzero(ops.ok).tolist()
    if unread := [ops.keys[at] for at in acknowledged if ops.keys[at] not in finals]:
        raise HypothesisInvalidError(f"the final reads of {load} miss {len(unread)} keys: {_shown(unread)}")
    since_ns, until_ns = measure.in_full_force(recording, saves[0])[0], restores[0].intent_ns
    before_ns, after_ns = saves[0].intent_ns, measure.in_full_force(recording, restores[0])[0]
    begins, ends = ops.start_ns.tolist(), ops.end_ns.tolist()
    kept, lost, rolled_back, reappeared = (list[str]() for _ in range(4))
    for at in acknowledged:
        there = finals[ops.keys[at]] == ops.values[at]
        if ends[at] <= before_ns or begins[at] >= after_ns:
            (kept if there else lost).append(ops.keys[at])
        elif begins[at] >= since_ns and ends[at] <= until_ns:
            (reappeared if there and not _gone_with_its_job(ops.keys[at], finals) else rolled_back).append(ops.keys[at])
    judged = len(kept) + len(lost) + len(rolled_back) + len(reappeared)
    figures = {
        "acknowledged": len(acknowledged),
        "kept": len(kept),
        "lost": len(lost),
        "rolled_back": len(rolled_back),
        "reappeared": len(reappeared),
        "in_flight": len(acknowledged) - judged,
        "lost_keys": lost,
        "reappeared_keys": reappeared,
    }
    counts = f"{len(kept)} kept, {len(rolled_back)} rolled back, {len(acknowledged) - judged} under way at the time"
    what = f"of {len(acknowledged)} acknowledged by {load}: {counts}"
    require(not lost, f"{what}; {len(lost)} that should have been kept are lost: {_shown(lost)}", **figures)
    require(not reappeared, f"{what}; {len(reappeared)} not rolled back: {_shown(reappeared)}", **figures)
    if not kept:
        raise HypothesisInvalidError(f"all acknowledged work of {load} was rolled back: nothing could be lost")
    require(
        at_most is None or len(rolled_back) <= at_most, f"{what}, expected at most {at_most} rolled back", **figures
    )
    return Held(f"{what}; none was lost", **figures)


def _gone_with_its_job(key: str, finals: Mapping[str, str | None]) -> bool:
    """Whether the key is the stop of a job that Nomad does not know: `nomad.job.churn` reads such a job as stopped."""
    job, _, step = key.rpartition("/")
    return step == "stop" and finals.get(f"{job}/register") is None and finals.get(f"{job}/change") is None


@hypothesis(never=room())
def nodes_reappear(
    recording: Recording,
    *,
    within: Duration,
    fault: str | None = None,
    away_at_least: int = 1,
    duplicates_at_most: int = 0,
) -> Held:
    """Each Nomad node that goes away after a fault began is ready and eligible again in time.

    A node is away if Nomad's servers do not show it as ready and eligible (by name, in `nomad.nodes_ready` and
    `nomad.nodes_ineligible`). It must be back at most `within` after the end of the last fault, and stay. At the end,
    at most `duplicates_at_most` names may be registered twice, as happens to nodes that lost their identity. INVALID
    if fewer than `away_at_least` nodes went away.
    """
    start_ns = min(measure.in_force(recording, window)[0] for window in measure.faults(recording, fault))
    end_ns, loads_end_ns = measure.faults_end_ns(recording, fault), measure.loads_end_ns(recording)
    ready, ineligible, down = (
        recording.series(signal, "").known_between(start_ns, loads_end_ns) for signal in (_READY, _INELIGIBLE, _DOWN)
    )
    fine = _fine(ready, ineligible)
    if not fine or not fine[0][1]:
        raise HypothesisInvalidError(f"Nomad's nodes were not sampled around {when(start_ns)}")
    before = fine[0][1]
    back_s = {}
    for name in sorted(before):
        missing = [at_ns for at_ns, names in fine if name not in names]
        if not missing:
            continue
        again = next((at_ns for at_ns, _ in fine if at_ns > missing[-1]), None)
        back_s[name] = float("inf") if again is None else max(0.0, (again - end_ns) / measure.SECOND)
    doubles = _doubles(ready, down)
    figures: dict[str, float] = {"nodes": len(before), "away": len(back_s), "duplicates": len(doubles)}
    if len(back_s) < away_at_least:
        raise HypothesisInvalidError(
            f"{len(back_s)} of {len(before)} nodes went away, expected {away_at_least} or more: none could come back"
        )
    longest = max(back_s.values(), default=0.0)
    figures["longest_s"] = longest
    late = [f"{name} ({seconds(value)})" for name, value in back_s.items() if value > within]
    if np.isinf(longest):
        measure.watched(recording, end_ns, within, f"{', '.join(late)} was not back")
    require(
        not late,
        f"{len(late)} of {len(back_s)} nodes that went away were not ready and eligible within {within} of the end of"
        f" the fault: {', '.join(late)}",
        **figures,
    )
    require(
        len(doubles) <= duplicates_at_most,
        f"{len(doubles)} nodes are registered more than once at the end, expected at most {duplicates_at_most}:"
        f" {', '.join(doubles)}",
        **figures,
    )
    return Held(
        f"{len(back_s)} of {len(before)} nodes went away, and were ready and eligible {seconds(longest)} after the"
        f" fault (within {within}); {len(doubles)} are registered twice",
        **figures,
    )


def _fine(ready: Series, ineligible: Series) -> list[tuple[int, frozenset[str]]]:
    """The nodes that are ready and eligible, at each sample. Both series come from the same look at the nodes."""
    found = []
    for at in np.flatnonzero(ready.ok).tolist():
        out = int(np.searchsorted(ineligible.t_ns, ready.t_ns[at], side="right")) - 1
        shut = _names(ineligible.text[out]) if out >= 0 and ineligible.ok[out] else []
        found.append((int(ready.t_ns[at]), frozenset(_names(ready.text[at])) - frozenset(shut)))
    return found


def _doubles(ready: Series, down: Series) -> list[str]:
    """Names that are registered more than once, according to the last samples."""
    last = [name for series in (ready, down) if len(series) and series.ok[-1] for name in _names(series.text[-1])]
    return sorted(name for name, times in Counter(last).items() if times > 1)


def _names(text: str) -> list[str]:
    return [name for name in text.split(", ") if name]


def _shown(keys: list[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(keys[:_NAMED]) + more
