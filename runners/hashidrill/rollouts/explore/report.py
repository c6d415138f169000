"""What a search tried and found, for people and for --json; and what all explorations of an experiment covered."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hashidrill.core.units import counted
from hashidrill.rollouts.bisect.trials import Outcome
from hashidrill.rollouts.explore.search import Played, Result, TrialLog
from hashidrill.rollouts.explore.space import Space, plain

_MOST_TIMES = 8


def outcomes(trials: Iterable[Played]) -> str:
    """`412 held, 3 broken, 20 INVALID`."""
    counts = Counter(each.seen.outcome for each in trials)
    return f"{counts[Outcome.HELD]} held, {counts[Outcome.BROKEN]} broken, {counts[Outcome.INVALID]} INVALID"


def times(trials: Sequence[Played]) -> list[tuple[str, float]]:
    """The mean seconds of each part of a trial, the longest first."""
    total = Counter[str]()
    for each in trials:
        total.update(each.seen.took_s)
    return [(name, seconds / max(len(trials), 1)) for name, seconds in total.most_common(_MOST_TIMES)]


def per_hour(trials: Sequence[Played]) -> float:
    """0 without any trial."""
    spent_s = sum(each.seen.total_s for each in trials)
    return 3600 * len(trials) / spent_s if spent_s else 0.0


def lines(result: Result, files: Mapping[str, Path]) -> list[str]:
    """The result of a search. `files`: the experiment of each finding, by its signature."""
    trials = result.trials
    said = [f"{counted(len(trials), 'trial')}: {outcomes(trials)}; {result.stopped}"]
    said += [coverage_line(len(result.states), len(result.pairs), trials)]
    said += ["a trial took " + ", ".join(f"{name} {seconds:.1f}s" for name, seconds in times(trials))]
    if why := _why_invalid(trials):
        said.append(f"most INVALID trials: {why}")
    for found in result.found:
        again = result.again[found.signature]
        more = f", and {counted(again, 'later trial')} showed it again" if again else ""
        said.append(f"found: {found.promise} broke in {found.broke} of {found.of} runs{more}")
        said += [f"  {move}" for move in found.candidate]
        said.append(f"  hashidrill run {files[found.signature]}" if found.signature in files else "")
    said += [f"not reproduced: {promise}: {'; '.join(map(str, moves))}" for moves, promise in result.unconfirmed]
    if not result.found:
        said.append("nothing found")
    return said


def coverage_line(states: int, pairs: int, trials: Sequence[Played]) -> str:
    """What was reached, and how quickly."""
    reached = f"{counted(states, 'state')} and {counted(pairs, 'ordered pair')} of faults"
    return f"reached {reached}; {per_hour(trials):.0f} trials an hour"


def _why_invalid(trials: Sequence[Played]) -> str:
    reasons = Counter(each.seen.text for each in trials if each.seen.outcome is Outcome.INVALID)
    return f"{reasons.most_common(1)[0][1]} times: {reasons.most_common(1)[0][0]}" if reasons else ""


def as_document(result: Result, log: Path, files: Mapping[str, Path], code: int) -> dict[str, Any]:
    """For --json."""
    return {
        "exit_code": code,
        "log": str(log),
        "stopped": result.stopped,
        "trials": len(result.trials),
        "trials_an_hour": round(per_hour(result.trials), 1),
        "seconds_a_trial": {name: round(seconds, 2) for name, seconds in times(result.trials)},
        "outcomes": dict(Counter(each.seen.outcome.value for each in result.trials)),
        "states": len(result.states),
        "pairs": len(result.pairs),
        "findings": [
            {**asdict(found), "candidate": plain(found.candidate), "file": str(files.get(found.signature, ""))}
            for found in result.found
        ],
        "not_reproduced": [{"candidate": plain(moves), "promise": promise} for moves, promise in result.unconfirmed],
    }


def all_explorations(folder: Path, experiment: str) -> list[tuple[Path, list[Played]]]:
    """The trials of every exploration of that experiment below `folder`, the oldest first."""
    found = []
    for path in sorted(folder.glob("*/trials.jsonl")):
        log = TrialLog.resume(path)
        log.close()
        if log.question.get("experiment") == experiment:
            found.append((path, log.trials))
    return found


def coverage(explorations: Sequence[tuple[Path, Sequence[Played]]], space: Space) -> list[str]:
    """What all explorations together tried of the space."""
    whole = Result()
    for _, trials in explorations:
        for each in trials:
            whole.count(each)
    arms = Counter(move.arm for each in whole.trials if each.seen.valid for move in each.candidate)
    never = [str(arm) for arm in sorted(space.arms) if not arms[arm]]
    possible = len(space.arms) ** 2
    said = [
        f"{counted(len(explorations), 'exploration')}, {counted(len(whole.trials), 'trial')}: {outcomes(whole.trials)}"
    ]
    said.append(coverage_line(len(whole.states), len(whole.pairs), whole.trials) + f"; {possible} pairs are possible")
    said.append(f"tried {len(space.arms) - len(never)} of {len(space.arms)} kinds on roles")
    if never:
        said.append(f"never tried: {', '.join(never)}")
    broken = Counter(promise for each in whole.trials for promise in each.seen.promises if each.seen.valid)
    said += [f"{promise} broke in {counted(count, 'trial')}" for promise, count in broken.most_common()]
    return said
