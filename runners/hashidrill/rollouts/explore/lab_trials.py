"""Runs trials in a local datacenter, and writes a finding down as an experiment that anybody runs.

A trial is the experiment with other steps and short phases. Its verdict is that of `hashidrill run`: what is INVALID
there shows nothing here.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from io import StringIO
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML

from hashidrill import __version__
from hashidrill.core.errors import ExperimentError, HashidrillError, RevertError, UsageError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import complete, read_experiment
from hashidrill.core.experiment.loader import load_document, resolve_document
from hashidrill.core.experiment.model import services_of
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.experiment.selectors import parse_selector
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.measure import NO_FAULT
from hashidrill.core.judging.verdict import MEASURED_ANYWAY, Finding, Judgement, RunVerdict
from hashidrill.core.protocols.events import Bus
from hashidrill.core.protocols.service import Service, ShowsMoments
from hashidrill.core.recording.reader import Recording
from hashidrill.core.units import Duration
from hashidrill.core.util.files import write_whole
from hashidrill.core.util.processes import python_path
from hashidrill.lab.provision.binaries import Binary
from hashidrill.lab.runs.launch import Engine, prepare, record
from hashidrill.lab.runs.reused_lab import MODULE, ReusedLab
from hashidrill.reports.write import judge_and_report
from hashidrill.rollouts.bisect.trials import Outcome
from hashidrill.rollouts.explore.guidance import Seen
from hashidrill.rollouts.explore.search import Found, Played
from hashidrill.rollouts.explore.space import EVENTS, GONE, PROVEN, Arm, Candidate, Move, Space, at_once
from hashidrill.rollouts.explore.trace import trace_of

RUNS, FINDINGS, LOG = "runs", "findings", "trials.jsonl"
MOST_BYTES = 1_500_000_000
"""Recordings that are kept; with the one of the present trial, the log and the lab's own files this is under 2 GB."""
_STEADY_S, _RECOVERY_S = 2.0, 3.0
_WAITS_BEATS, _WAITS_S = 4, 4.0
"""How long a step waits for its moment: the longer of both."""
_LEFT_OUT = ("variants", "rounds", "compare", "extends")
_TEXT = 160
_CLEAN = frozenset({"complete", "guardrail", "fault", "steady-state"})
"""Outcomes after which a sandbox may be used again, if each fault that was applied was proven gone."""


@dataclass(frozen=True, eq=False)
class Trials:
    """Makes experiments of candidates. `path` is the experiment's file, `base` its content with its bases merged in.

    `at_once`: on how many hosts faults may be in force at the same time; None for any number.
    """

    path: Path
    base: Mapping[str, Any]
    roles: Sequence[str]
    at_once: int | None = None

    @classmethod
    def of(cls, path: Path, *, at_once: int | None = None) -> "Trials":
        """Raises ExperimentError, and UsageError for an experiment that no trial can be made of."""
        document = read_experiment(path)
        experiment = load_document(document, near_to=path)
        if experiment.datacenter.stands:
            raise UsageError(
                f"{path}: needs an existing datacenter ({experiment.datacenter.stands}), and explore searches in a"
                " local one alone: no arming names it"
            )
        base = YAML(typ="safe").load(complete(document))
        services = services_of(experiment.datacenter)
        roles = [f"host:{place.host}" for each in services for place in each.places() if place.starts]
        made = cls(path, base, roles, at_once)
        try:
            made.resolved((), 1.0)
        except ExperimentError as error:
            raise UsageError(
                f"{path}: its expectations must hold for any method, and these name a part of their own:\n{error}"
            ) from None
        return made

    def space(self, kinds: Sequence[str]) -> Space:
        """Raises UsageError for kinds that this datacenter cannot have."""
        experiment = self.resolved((), 1.0).experiment
        services = services_of(experiment.datacenter)
        shown = {kind for each in services if isinstance(each, ShowsMoments) for kind in each.moments}
        events = {event for event in EVENTS if any(kind in event for kind in shown)}
        return Space.of(experiment, kinds, moments=frozenset({*events, PROVEN, GONE}), fits=self.fits)

    def fits(self, candidate: Candidate) -> bool:
        """Whether `hashidrill validate` accepts the experiment of that candidate, and no more hosts than `at_once`
        have a fault at the same time.
        """
        few = self.at_once is None or at_once(candidate, self._hosts) <= self.at_once
        return few and self._fits(candidate)

    def _hosts(self, role: str) -> int:
        selector = parse_selector(role)
        return len(selector.candidates(self._services)) if selector.many else 1

    @cached_property
    def _services(self) -> list[Service]:
        return services_of(self.resolved((), 1.0).experiment.datacenter)

    @lru_cache(maxsize=4096)  # noqa: B019 - one for each search
    def _fits(self, candidate: Candidate) -> bool:
        try:
            self.resolved(candidate, 1.0)
        except HashidrillError:
            return False
        return True

    def resolved(self, candidate: Candidate, beat_s: float) -> ResolvedExperiment:
        """The experiment of a trial. Raises ExperimentError."""
        text = json.dumps(self.data(candidate, beat_s))
        return resolve_document(Document(str(self.path), text), path=self.path)

    def data(self, candidate: Candidate, beat_s: float) -> dict[str, Any]:
        """The experiment of a trial as plain data."""
        steps = [_step(number, move, beat_s) for number, move in enumerate(candidate)]
        for step, move in zip(steps, candidate, strict=True) if self.at_once else ():
            # one that takes longer to end than planned is waited for, but not beyond the event that it brings about
            over = [f"s{n + 1}" for n, each in enumerate(candidate) if each.at + each.length <= move.at]
            step.update({"after": over} if over and move.when not in EVENTS else {})
        quiet = {"fault": NO_FAULT, "on": self.roles[0], "for": f"{4 * beat_s:.1f}s"}
        data = {key: value for key, value in self.base.items() if key not in _LEFT_OUT}
        steady = dict(data["steady_state"])
        steady["for"] = _shorter(steady.get("for", "10s"), _STEADY_S)
        recovery = {"for": _shorter(dict(data.get("recovery", {})).get("for", "20s"), self._recovery_s(beat_s))}
        return {**data, "steady_state": steady, "method": steps or [quiet], "recovery": recovery}

    def _recovery_s(self, beat_s: float) -> float:
        """As long as the expectations look after the last fault."""
        withins = [_RECOVERY_S, 3 * beat_s]
        for expectation in self.base.get("expect", ()):
            given = [params["within"] for params in expectation.values() if "within" in (params or {})]
            withins += [float(Duration.parse(each)) for each in given if isinstance(each, str)]
        return max(withins) + 1


def _shorter(given: str, most_s: float) -> str:
    return f"{min(float(Duration.parse(given)), most_s):.1f}s"


def _step(number: int, move: Move, beat_s: float) -> dict[str, Any]:
    step: dict[str, Any] = {"name": f"s{number + 1}", "fault": move.kind, "on": move.on}
    if move.params != "{}":
        step["with"] = move.parameters
    step |= {"at": f"{move.at * beat_s:.1f}s", "for": f"{move.length * beat_s:.1f}s"}
    if move.when:
        what, _, of = move.when.partition(":")
        step["when"] = f"fault s{int(of) + 1} {what}" if of else move.when
        step["within"] = f"{max(_WAITS_S, _WAITS_BEATS * beat_s):.1f}s"
    return step


@dataclass
class LabTrials:
    """Plays candidates. A context manager: it holds a sandbox between trials."""

    trials: Trials
    folder: Path
    widest: Sequence[Arm] = ()
    """The arms that a trial may have: the sandbox has what their faults need."""
    say: Callable[[str], None] = lambda _: None
    found: dict[str, Binary] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lab = ReusedLab(self.folder / "lab.log")
        self._wide = self._of_all_arms()
        self.found = prepare(self._wide, self.say)
        return self

    def __exit__(self, *_: object) -> None:
        self._lab.close()

    def _of_all_arms(self) -> ResolvedExperiment:
        """An experiment with every kind in turn, which is never run."""
        kinds = {arm.kind: arm for arm in self.widest}
        space = self.trials.space([*kinds])
        wide: Candidate = ()
        for kind, arm in kinds.items():
            values = space.arms.get(arm) or next(each for one, each in space.arms.items() if one.kind == kind)
            params = json.dumps({name: each[-1] for name, each in values[0].items()}, sort_keys=True)
            move = Move(kind, arm.on, params, 100 * len(wide), 1)
            wide = (*wide, move) if self.trials.fits((*wide, move)) else wide
        return self.trials.resolved(wide, 1.0)

    def __call__(self, candidate: Candidate, beat_s: float) -> Seen:
        """One trial. Raises RevertError if a fault stays in force, and KeyboardInterrupt."""
        began = time.monotonic()
        given = {"widest": self._wide.to_data()}
        engine = Engine(MODULE, self._lab.start, {"PYTHONPATH": python_path()}, given)
        try:
            resolved = self.trials.resolved(candidate, beat_s)
        except ExperimentError:
            return Seen(Outcome.INVALID, f"with beats of {beat_s:g}s the experiment is not valid")
        path = record(resolved, engine, runs_dir=self.folder / RUNS, events=Bus(), found=self.found)
        recording = Recording(path)
        ran_s = time.monotonic() - began
        if recording.outcome == "revert":
            raise RevertError(f"a fault could not be reverted: `hashidrill heal {path}`")
        if recording.outcome not in _CLEAN or any(
            window.applied_ns is not None and window.gone_ns is None for window in recording.faults
        ):
            self._lab.close()
        seen = seen_in(recording, self.trials.path)
        took = {name: round((end - start) / 1e9, 2) for name, (start, end) in recording.phases.items()}
        took["between"] = round(max(ran_s - sum(took.values()), 0.0), 2)
        took["judging"] = round(time.monotonic() - began - ran_s, 2)
        return Seen(**{**seen, "took_s": took})


def seen_in(recording: Recording, near_to: Path) -> dict[str, Any]:
    """The fields of `Seen` that a recording shows."""
    verdict = judge(recording, near_to=near_to)
    outcome, text = outcome_of(verdict)
    trace = trace_of(recording) if outcome is not Outcome.INVALID else None
    return {
        "outcome": outcome,
        "text": text,
        "promises": _titles(verdict, Finding.BROKEN) if outcome is Outcome.BROKEN else (),
        "unjudged": _titles(verdict, Finding.INVALID),
        "states": tuple(trace.states) if trace else (),
        "effects": tuple(trace.effects) if trace else (),
        "caused": trace.caused if trace else (),
        "recording": str(recording.path),
        "gap_s": trace.gap_s if trace else 0.0,
    }


def _titles(verdict: RunVerdict, finding: Finding) -> tuple[str, ...]:
    return tuple(each.title for each in verdict.judgements if each.finding is finding)


def outcome_of(verdict: RunVerdict) -> tuple[Outcome, str]:
    """Outcome and the reason. A promise that breaks as its known issue says does not count as a finding.

    A promise that the run says nothing about, like one about elections in a run without any, does not make it INVALID,
    unless it says nothing about all of them. A promise that broke in seconds that are in doubt, as on a machine that
    other work keeps busy, did not hold: the trial is INVALID.
    """
    if verdict.invalid:
        return Outcome.INVALID, verdict.invalid[0][:_TEXT]
    for each in verdict.judgements:
        if each.finding is Finding.BROKEN:
            return Outcome.BROKEN, each.text.strip().partition("\n")[0][:_TEXT]
    unjudged = [each for each in verdict.judgements if each.finding is Finding.INVALID]
    unjudged.sort(key=_broke_in_doubt, reverse=True)
    if len(unjudged) == len(verdict.judgements) or any(map(_broke_in_doubt, unjudged)):
        why = f"{unjudged[0].title}: {unjudged[0].text.strip()}" if unjudged else "nothing was judged"
        return Outcome.INVALID, why.partition("\n")[0][:_TEXT]
    known = _titles(verdict, Finding.KNOWN)
    return Outcome.HELD, f"{known[0]} broke as known" if known else ""


def _broke_in_doubt(judgement: Judgement) -> bool:
    return f"{MEASURED_ANYWAY}{Finding.BROKEN}" in judgement.text


@dataclass
class Kept:
    """The recordings of a search: those of new states and of findings, within `most_bytes`, oldest out first."""

    folder: Path
    most_bytes: int = MOST_BYTES
    _sizes: dict[Path, int] = field(default_factory=dict)
    _findings: set[Path] = field(default_factory=set)

    def begin(self, logged: Sequence[Played]) -> None:
        """Removes what a search that was killed left: recordings of trials that are not in the log."""
        named = {Path(each.seen.recording).name for each in logged}
        for path in (self.folder / RUNS).glob("*"):
            if path.name not in named:
                shutil.rmtree(path, ignore_errors=True)

    def keep(self, played: Played, useful: bool) -> None:
        """Keeps or removes the recording of a trial."""
        if not played.seen.recording:
            return
        path = Path(played.seen.recording)
        if not useful:
            shutil.rmtree(path, ignore_errors=True)
            return
        self._sizes[path] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        while sum(self._sizes.values()) > self.most_bytes:
            oldest = min(self._sizes, key=lambda each: each in self._findings)  # of several, the first
            del self._sizes[oldest]
            shutil.rmtree(oldest, ignore_errors=True)

    def of_finding(self, recording: str) -> None:
        """Removes that one after all others."""
        self._findings.add(Path(recording))


def write_finding(found: Found, trials: Trials, folder: Path, number: int, question: Mapping[str, Any]) -> Path:
    """The finding as an experiment, in `folder`/findings. Writes the report of the run that shows it best."""
    data = trials.data(found.candidate, found.beat_s)
    name = f"{data['metadata']['name']}-found-{number}"
    best = Recording(found.best) if found.best and Path(found.best).is_dir() else None
    report = None if best is None else judge_and_report(best, near_to=trials.path)[1]
    versions = {} if best is None else best.run.get("versions", {})
    told = ", ".join(f"{key} {value}" for key, value in versions.items()) or "no versions recorded"
    kinds = " then ".join(str(move.arm) for move in found.candidate)
    data["metadata"] = {
        "name": name,
        "title": f"{found.promise.partition('(')[0]} breaks: {kinds}"[:120],
        "why": f"Found by `hashidrill explore` with seed {question.get('seed')}: it broke in {found.broke} of"
        f" {found.of} valid runs (hashidrill {__version__}; {told}). Signature: {found.signature}."
        + (f" The report of one run is {report}." if report else ""),
    }
    path = folder / FINDINGS / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    order = {"apiVersion": 0, "kind": 1, "metadata": 2}
    yaml = YAML()
    yaml.default_flow_style, yaml.width = None, 120
    text = StringIO()
    yaml.dump(dict(sorted(data.items(), key=lambda item: order.get(item[0], 3))), text)
    write_whole(path, text.getvalue())
    return path
