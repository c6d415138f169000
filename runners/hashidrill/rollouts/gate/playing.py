"""Plays the experiments of a gate on both sides, until each is settled or the time is used up; and calibrates.

A calibration plays rounds of an experiment against itself, and shows what difference this machine can measure. It is
kept in the cache directory, by machine, versions, experiment and size of its datacenter:
`$XDG_CACHE_HOME/hashidrill/calibration/KEY.json`. The agents' configuration is not part of the key: comparisons change
it, and the noise comes from the machine, the number of agents, the faults and the loads.
"""

import datetime as dt
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hashidrill import __version__
from hashidrill.core.compare.comparison import Round, compared, paired
from hashidrill.core.compare.judged import ran_the_same
from hashidrill.core.compare.measured import Figure, never_ready
from hashidrill.core.compare.statistics import ALARMS, Paired, Prior, smallest_difference
from hashidrill.core.errors import RecordingError, RevertError, UsageError
from hashidrill.core.experiment.loader import resolve, varied
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.judging.comparison import hidden
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.protocols.events import Bus
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.cores import usable_cores
from hashidrill.core.util.files import private_folder, write_whole
from hashidrill.core.util.nested import dotted, leaves, merge
from hashidrill.core.util.run_origin import here
from hashidrill.core.util.safe_json import parse
from hashidrill.lab.provision.binaries import cache_root
from hashidrill.lab.runs.launch import binaries_for
from hashidrill.lab.runs.rounds import AT_MOST, Series, Side, play
from hashidrill.reports.write import judge_and_report
from hashidrill.rollouts.gate.configuration import overlay
from hashidrill.rollouts.gate.differences import Differences, reports_differ, without_effect
from hashidrill.rollouts.gate.suite import Member, Picked
from hashidrill.rollouts.gate.verdict import GateVerdict, Outcome, PlayedRound, Ran, lacks_alone, slos_of


def counting(figures: Sequence[Figure], experiment: Experiment) -> list[Figure]:
    """The figures, except of loads that are named neither by an expectation nor by a steady-state condition.

    Such a load only creates pressure: the experiment does not judge it, and throttling it would look like an
    improvement or a regression.
    """
    named = set(_texts([each.params for each in experiment.expect]))
    named |= {condition.source for condition in experiment.steady_state.require}
    unnamed = [load for load in experiment.traffic if load not in named]
    return [each for each in figures if not any(each.name.startswith(f"{load}.") for load in unnamed)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


FOLDER = "calibration"
FEWEST_ROUNDS = 3
"""With fewer rounds, a figure's noise is unknown."""
STALE_DAYS = 30
_RUN_BY = {"load", "clients", "probes", "method", "recovery", "steady_state"}
_NO_SIZE = {"version", "binary", "config", "server_config", "client_config"}
_LEAST_SD = 1e-3


@dataclass(frozen=True)
class Calibration:
    """The noise of each measured figure, and when it was measured."""

    experiment: str
    at: dt.datetime
    priors: Mapping[str, Prior]

    def age_days(self, now: dt.datetime) -> float:
        return (now - self.at).total_seconds() / 86_400

    def smallest(self, rounds: int) -> dict[str, float]:
        """For each figure, the smallest ratio that this number of rounds usually shows: 1.2 is 20 %."""
        share = ALARMS / max(1, len(self.priors))
        return {name: smallest_difference(prior, rounds, alarms=share) for name, prior in self.priors.items()}


def calibrated(
    experiment: Experiment, rounds: Sequence[Round], figures: Sequence[Figure], *, now: dt.datetime
) -> Calibration:
    """Measures the noise in rounds of an experiment against itself, for figures that 3 or more rounds measured."""
    found = {}
    for figure in figures:
        pairs = [
            paired(figure, one.measured[figure.name], other.measured[figure.name], seed=each.number)
            for each in rounds
            for one, other in [each.sides]
        ]
        known = [each for each in pairs if each is not None]
        if len(known) >= FEWEST_ROUNDS:
            found[figure.name] = noise(known)
    return Calibration(experiment.metadata.name, now, found)


def noise(pairs: Sequence[Paired]) -> Prior:
    """The distance between equal sides. The true ratio is known to be 1, so each round is one degree of freedom."""
    sd = math.sqrt(float(np.mean([each.log**2 for each in pairs])))
    return Prior(max(sd, _LEAST_SD), len(pairs))


def key_of(experiment: Experiment) -> str:
    """The key of a calibration: the machine, the versions, the experiment, and the number of agents."""
    machine = {
        **{name: here()[name] for name in ("host", "machine")},
        "cpus": usable_cores(),
        "memory": psutil.virtual_memory().total,
        "kernel": os.uname().release,
    }
    said = experiment.model_dump(mode="json", by_alias=True, include=_RUN_BY)
    what = [machine, __version__, binaries_for(experiment), experiment.metadata.name, said, _datacenter(experiment)]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _datacenter(experiment: Experiment) -> dict[str, Any]:
    """The datacenter without its agents' configuration, and without versions, which `binaries_for` has."""
    said = experiment.datacenter.model_dump(mode="json", by_alias=True)
    return {
        part: {key: value for key, value in of.items() if key not in _NO_SIZE} if isinstance(of, dict) else of
        for part, of in said.items()
    }


def keep(experiment: Experiment, calibration: Calibration, folder: Path | None = None) -> Path:
    """Writes a calibration and returns its file. Raises RecordingError if it cannot be written."""
    file = _file(experiment, folder)
    document = {
        "experiment": calibration.experiment,
        "at": calibration.at.isoformat(timespec="seconds"),
        "figures": {name: {"sd": prior.sd, "rounds": prior.degrees} for name, prior in calibration.priors.items()},
    }
    try:
        private_folder(file.parent)
        write_whole(file, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise RecordingError(f"{file}: the calibration cannot be kept: {error.strerror or error}") from None
    return file


def kept(experiment: Experiment, folder: Path | None = None) -> Calibration | None:
    """The last calibration of this machine, these versions and this experiment; None if there is no readable one."""
    try:
        document: dict[str, Any] = parse(_file(experiment, folder).read_bytes())
        priors = {name: Prior(float(each["sd"]), int(each["rounds"])) for name, each in document["figures"].items()}
        return Calibration(str(document["experiment"]), dt.datetime.fromisoformat(document["at"]), priors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _file(experiment: Experiment, folder: Path | None) -> Path:
    return (cache_root() / FOLDER if folder is None else folder) / f"{key_of(experiment)}.json"


ROUNDS = 6
"""Enough rounds: a comparison trusts at most hashidrill.core.compare.statistics.MOST_TRUSTED of them."""


@dataclass(frozen=True)
class Calibrated:
    """One calibrated experiment: its noise (None if too few rounds count), and how the rounds ended."""

    member: Member
    calibration: Calibration | None
    why: str
    interrupted: bool = False


def calibrate(
    members: Sequence[Member],
    *,
    runs_dir: Path,
    budget_s: float,
    version: tuple[str, str] | None = None,
    events: Bus | None = None,
    play: Callable[..., Series] = play,
    folder: Path | None = None,
) -> Iterator[Calibrated]:
    """Plays the experiments one after the other; each gets its share of the time. `version`: the (product, version) of
    both sides.

    Raises RevertError for a run that leaves a fault in force.
    """
    began_s = time.monotonic()
    for index, member in enumerate(members):
        resolved = resolve(member.path)
        over = {} if version is None else overlay(version[0], {}, {}, {}, version=version[1])
        sides = [Side(name, varied(resolved, over, name=name)) for name in ("one", "other")]
        left_s = budget_s - (time.monotonic() - began_s)
        share = member.run_s / sum(each.run_s for each in members[index:])
        series = play(
            sides[0], sides[1], runs_dir=runs_dir, at_most=ROUNDS, budget_s=max(left_s * share, 0.0), events=events
        )
        if series.stuck is not None:
            raise RevertError(f"a fault could not be reverted: `hashidrill heal {series.stuck}`")
        experiment = sides[0].resolved.experiment
        found = None
        if len(series.rounds) >= FEWEST_ROUNDS:
            found = calibrated(
                experiment, series.rounds, counting(series.figures, experiment), now=dt.datetime.now(dt.UTC)
            )
            keep(experiment, found, folder)
        yield Calibrated(member, found, series.why(), series.stopped == "interrupted")
        if series.stopped == "interrupted":
            return


def calibration_lines(found: Calibrated) -> Iterator[str]:
    """For each figure, the smallest difference that the rounds of a gate usually show, as a share: `12%`."""
    yield f"{found.member.name}: {found.why}"
    if found.calibration is None:
        yield f"  too few rounds: {FEWEST_ROUNDS} are needed; use a longer --time-budget"
        return
    for name, smallest in found.calibration.smallest(AT_MOST).items():
        noise = found.calibration.priors[name]
        yield f"  {name}: a difference of {smallest - 1:.0%} shows in {AT_MOST} rounds (noise {noise.sd:.1%} a round)"


NAMES = ("baseline", "candidate")
RUNS, RUNS_CALIBRATED = 10, 6
"""Runs for five rounds, or three with a calibration: with fewer, a figure is seldom decided."""
Judge = Callable[[Path], RunVerdict]
_NOBODYS = {"unfit", "interrupted", "died"}
"""Outcomes of a run that its machine or its user caused, and not its side."""


@dataclass(frozen=True)
class Plan:
    """Both sides' configuration, and the time limit."""

    differences: Differences
    versions: tuple[str | None, str | None]
    runs_dir: Path
    budget_s: float
    at_most: int = AT_MOST
    margins: Mapping[str, float] | None = None


class InterruptedGate(Exception):  # noqa: N818 - it is not an error
    """Raised on Ctrl-C; `ran` of `play_all` then has the results so far."""


def sides_of(member: Member, plan: Plan) -> tuple[Side, Side]:
    """The experiment with each side's configuration. Raises ExperimentError; UsageError if it sets a changed key."""
    resolved = resolve(member.path)
    _check_method(member, plan.differences)
    product = plan.differences.product
    written = (resolved.data.get("datacenter") or {}).get(product) or {}
    made: list[Side] = []
    for index, name in enumerate(NAMES):
        over: dict[str, Any] = {}
        for role, both in plan.differences.of.items():
            version = plan.versions[index]
            over = merge(over, overlay(product, both[index], both[1 - index], written, role=role, version=version))
        source = f"the {name}'s configuration, over {member.name}"
        made.append(Side(name, varied(resolved, over, name=name, source=source)))
    return made[0], made[1]


def _check_method(member: Member, found: Differences) -> None:
    """Refuses a fault that sets a changed key, because both sides would run the same."""
    for step in member.experiment.faults:
        if step.fault != f"{found.product}.config":
            continue
        set_ = [dotted(path) for path, _ in leaves(dict(step.with_.get("set") or {}))]
        if own := next((key for key in found.keys if key in set_), None):
            raise UsageError(
                f"--suite {member.name}: its own {step.fault} sets {own}, which differs between the two sides, so both"
                " would then run the same; name experiments that do not set it"
            )


@dataclass(frozen=True)
class Means:
    """How experiments are played and judged; tests use planted recordings."""

    say: Callable[[str], None]
    events: Bus | None = None
    play: Callable[..., Series] = play
    judge: Judge = lambda path: judge_and_report(Recording(path), near_to=Path.cwd())[0]
    priors: Callable[[Experiment], Mapping[str, Prior]] | None = None
    """None uses the last calibration of this machine."""
    now_s: Callable[[], float] = time.monotonic


def runs_of(member: Member) -> int:
    """How many runs are probably needed; a machine's calibration saves some (hashidrill.core.compare.statistics)."""
    return RUNS if kept(member.experiment) is None else RUNS_CALIBRATED


def play_all(picked: Picked, plan: Plan, means: Means, *, ran: list[Ran] | None = None) -> list[Ran]:
    """Plays the members in order, and adds results to `ran`. A regression or no change ends the suite, because the
    answer is then known.

    Each experiment gets a share of the remaining time in proportion to its runs' length; left-over time goes to
    experiments that did not fit before. All experiments share the rate of false alarms equally. Raises RevertError,
    InterruptedGate.
    """
    ran = [] if ran is None else ran
    began_s = means.now_s()
    members = [*picked.members, *picked.left]
    for index, member in enumerate(members):
        left_s = plan.budget_s - (means.now_s() - began_s)
        if index >= len(picked.members):
            if left_s < runs_of(member) * member.run_s:
                continue
            share = 1.0
        else:
            share = member.run_s / sum(each.run_s for each in picked.members[index:])
        done, stopped = _one(member, plan, means, max(left_s * share, 0.0), ALARMS / len(members))
        ran.append(done)
        if stopped == "interrupted":
            raise InterruptedGate
        if done.outcome.verdict in {GateVerdict.REGRESSION, GateVerdict.NO_CHANGE}:
            break
    return ran


def _one(member: Member, plan: Plan, means: Means, budget_s: float, alarms: float) -> tuple[Ran, str]:
    began_s = means.now_s()
    baseline, candidate = sides_of(member, plan)
    experiment = baseline.resolved.experiment
    secrets = hidden(experiment, candidate.resolved.experiment)
    look = _Looking(member, experiment, plan, alarms, (means.priors or _known)(experiment), cache(means.judge), secrets)

    def enough(series: Series) -> bool:
        outcome = look(series)
        if outcome.no_change:
            return True
        counted = ", ".join(f"{each.figure.name} {each.decision}" for each in outcome.figures if each.figure.decides)
        means.say(f"{member.name}: {outcome.rounds} round{'' if outcome.rounds == 1 else 's'}: {counted}")
        return outcome.settled

    series = means.play(
        baseline,
        candidate,
        runs_dir=plan.runs_dir,
        at_most=plan.at_most,
        budget_s=budget_s,
        enough=enough,
        events=means.events,
    )
    if series.stuck is not None:
        raise RevertError(f"a fault could not be reverted: `hashidrill heal {series.stuck}`")
    rounds = []
    for each in series.played:
        paths = {run.side: run.recording for run in each.runs}
        invalid = "; ".join(f"{run.side}: {run.invalid}" for run in each.runs if run.invalid)
        rounds.append(PlayedRound(paths.get(NAMES[0]), paths.get(NAMES[1]), invalid))
    took_s = means.now_s() - began_s
    return Ran(member, look(series), tuple(rounds), series.why(), took_s, series.stopped), series.stopped


@dataclass(frozen=True)
class _Looking:
    member: Member
    experiment: Experiment
    plan: Plan
    alarms: float
    priors: Mapping[str, Prior]
    judge: Judge
    secrets: Sequence[str]
    """The places where the two sides differ only in a secret."""

    def __call__(self, series: Series) -> Outcome:
        wanted = counting(series.figures, self.experiment)
        figures = compared(
            series.rounds,
            wanted,
            at_most=self.plan.at_most,
            margins=self.plan.margins,
            priors=self.priors,
            alarms=self.alarms,
        )
        verdicts = [tuple(self.judge(run.recording) for run in each.sides) for each in series.rounds]
        unsteady = _unsteady(series)
        spoilt = tuple(dict.fromkeys(f"{run.side}: {run.invalid}" for run in series.spoilt))
        slos = slos_of([(one, other) for one, other in verdicts], unsteady)
        without, whole = self._without_effect(series)
        changes = self.plan.differences.changes  # the same key may affect the agents of another role
        idle = {each.key for each in changes if each.named in without}
        idle -= {each.key for each in changes if each.named not in without}
        found = (*_of_one_side(series), *_same(series, self.secrets, idle))
        told = tuple(f"{each}: no change, the agents report {said} on both sides" for each, said in without.items())
        if whole and len(without) == len(changes):  # then there is nothing for figures to compare
            return Outcome(self.member.name, rounds=len(series.rounds), without=told, no_change=True)
        return Outcome(self.member.name, tuple(figures), slos, spoilt, len(series.rounds), found, told)

    def _without_effect(self, series: Series) -> tuple[dict[str, str], bool]:
        """The changes that had no effect in any run so far, by the agents' reports, and whether nothing else differs.

        Every run whose datacenter got ready has these reports, whatever disturbed the run later.
        """
        of = {
            name: [Recording(run.recording) for each in series.played for run in each.runs if run.side == name]
            for name in NAMES
        }
        pairs = [pair for pair in zip(*of.values(), strict=False) if all("reported" in run.run for run in pair)]
        found = [without_effect(self.plan.differences, *pair) for pair in pairs]
        always = {each: said for each, said in (found[0] if found else {}).items() if all(each in one for one in found)}
        whole = self.plan.versions[0] == self.plan.versions[1]
        whole &= bool(pairs) and not any(reports_differ(self.plan.differences, *pair) for pair in pairs)
        return always, whole


def _unsteady(series: Series) -> list[dict[str, bool]]:
    """For each pair of runs, whether each side was sick without a fault. A round ends with its first invalid run."""
    of: dict[str, list[bool]] = {name: [] for name in NAMES}
    for each in series.played:
        for run in each.runs:
            sick = (run.unsteady or never_ready(Recording(run.recording))) and not run.disturbed
            if sick or not run.invalid:
                of[run.side].append(sick)
    return [dict(zip(NAMES, pair, strict=True)) for pair in zip(*of.values(), strict=False)]


def _of_one_side(series: Series) -> Iterator[str]:
    """Reports if mainly the candidate's runs were INVALID: its valid runs are then a biased selection."""
    runs = [
        run
        for run in series.spoilt
        if not (run.disturbed or run.unsteady or never_ready(Recording(run.recording)))
        and Recording(run.recording).outcome not in _NOBODYS
    ]
    of = {name: [run for run in runs if run.side == name] for name in NAMES}
    ours, theirs = len(of[NAMES[1]]), len(of[NAMES[0]])
    if lacks_alone(ours, theirs):
        them = str(theirs) if theirs else "none"
        yield f"{ours} runs of the candidate were INVALID, and {them} of the baseline: {of[NAMES[1]][0].invalid}"


def _same(series: Series, secrets: Sequence[str], without: Collection[str]) -> Iterator[str]:
    """Reports if the two sides ran the same configuration, as a whole or for a changed key.

    `without`: keys whose changes have no effect, as the agents themselves report.
    """
    for each in series.rounds:
        one, other = (Recording(run.recording) for run in each.sides)
        if why := ran_the_same(one, other, hidden=secrets, each=True, but=without):
            yield f"there was nothing to compare: {why}"
            return


def _known(experiment: Experiment) -> Mapping[str, Prior]:
    """The calibrations that are recent enough to describe the machine."""
    calibration = kept(experiment)
    stale = calibration is None or calibration.age_days(dt.datetime.now(dt.UTC)) > STALE_DAYS
    return {} if calibration is None or stale else calibration.priors
