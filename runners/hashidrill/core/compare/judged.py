"""Judges a comparison: each run, whether each recording is of its variant, and each comparison.

A pure function of the recordings. Every doubt is INVALID: an INVALID run, a round without one of its sides, a
recording of another experiment, two sides that ran the same, a figure that was not measured on one of them.

On disk, a comparison is a folder with one file, comparison.json, next to the recordings that it names; reports are
written into it. The recordings stay unchanged: each can be judged, reported and healed by itself.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import Any

from hashidrill import __version__
from hashidrill.core import hypothesis
from hashidrill.core.compare.figures import figures
from hashidrill.core.compare.measured import IN_DOUBT_AT_MOST
from hashidrill.core.compare.statistics import lower_median
from hashidrill.core.errors import ExperimentError, HashidrillError, HypothesisInvalidError, RecordingError
from hashidrill.core.experiment.model import Expectation
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.hypothesis import Hypothesis
from hashidrill.core.judging import measure
from hashidrill.core.judging.comparison import differences, hidden
from hashidrill.core.judging.judge import in_view_of, judge
from hashidrill.core.judging.reads import TracedRecording
from hashidrill.core.judging.validity import Validity
from hashidrill.core.judging.verdict import Finding, Judgement, RunVerdict, Verdict, merge
from hashidrill.core.recording.provenance import HYPOTHESES_NAME, Lookup
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util import safe_json
from hashidrill.core.util.files import COMPARISON_NAME, JOURNAL_NAME, write_whole
from hashidrill.core.util.nested import dotted, leaves
from hashidrill.core.util.redaction import Redactor

FORMAT = 1


@dataclass(frozen=True)
class KeptRound:
    """One round: the variants in the order in which they ran, and the recording of each that has one."""

    order: tuple[str, ...]
    recordings: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """A comparison: the experiment, its variants, and the rounds that were played."""

    path: Path
    experiment: ResolvedExperiment
    variants: Mapping[str, ResolvedExperiment]
    rounds: list[KeptRound]
    hidden: Mapping[tuple[str, str], list[str]] | None = None
    """The places where two variants differ only in secrets, from the comparison's file; None before it is written."""

    def hidden_between(self, one: str, other: str) -> list[str]:
        """The differences of these two variants that no recording shows."""
        return self._hidden.get((min(one, other), max(one, other)), [])

    @cached_property
    def _hidden(self) -> Mapping[tuple[str, str], list[str]]:
        if self.hidden is not None:
            return self.hidden
        pairs = list(combinations(sorted(self.variants), 2))
        return {(a, b): hidden(self.variants[a].experiment, self.variants[b].experiment) for a, b in pairs}

    def write(self) -> None:
        """Writes the comparison's files. Raises OSError."""
        redactor = Redactor()
        redactor.learn_environment(os.environ)
        redactor.learn(self.experiment.data)
        document = {
            "format": FORMAT,
            "hashidrill": __version__,
            "resolved": self.experiment.to_data(),
            "variants": {name: one.to_data() for name, one in self.variants.items()},
            "hidden": [[*pair, places] for pair, places in self._hidden.items() if places],
            "rounds": [
                {
                    "order": list(each.order),
                    "recordings": {name: os.path.relpath(path, self.path) for name, path in each.recordings.items()},
                }
                for each in self.rounds
            ],
        }
        if self.experiment.hypotheses:
            write_whole(self.path / HYPOTHESES_NAME, json.dumps(self.experiment.hypotheses, indent=2) + "\n")
        write_whole(self.path / COMPARISON_NAME, json.dumps(redactor.clean(document), indent=2) + "\n")


def read_comparison(path: Path) -> Kept:
    """Reads a comparison. Raises RecordingError if the folder has none, or if a newer hashidrill wrote it."""
    file = path / COMPARISON_NAME
    try:
        found: Any = safe_json.parse(file.read_bytes())
        if found["format"] > FORMAT:
            raise RecordingError(
                f"{file}: hashidrill {found.get('hashidrill')} wrote this comparison, in a format that {__version__}"
                " does not know; judge it with that version, or a later one"
            )
        return Kept(
            path,
            ResolvedExperiment.from_data(found["resolved"]),
            {str(name): ResolvedExperiment.from_data(one) for name, one in found["variants"].items()},
            [
                KeptRound(
                    tuple(map(str, each["order"])),
                    {str(name): Path(os.path.normpath(path / where)) for name, where in each["recordings"].items()},
                )
                for each in found["rounds"]
            ],
            {(str(a), str(b)): list(map(str, places)) for a, b, places in found.get("hidden", ())},
        )
    except FileNotFoundError:
        raise RecordingError(f"{path}: is not a comparison: it lacks {COMPARISON_NAME}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ExperimentError) as error:
        raise RecordingError(f"{file}: is not readable ({error}): it is not what hashidrill wrote") from None


_OF_AGENTS = re.compile(r"datacenter\.(\w+)\.(version|servers|clients|config|server_config|client_config)\b\.?([^[]*)")
"""Settings whose effect must show in the started agents: their versions, number and configuration."""
_MOST_SHOWN = 4


def ran_the_same(
    one: Recording, other: Recording, *, hidden: Sequence[str] = (), each: bool = False, but: Collection[str] = ()
) -> str:
    """Why two recordings cannot differ, or "".

    They ran the same experiment with the same configuration, or two experiments whose agents started with the same
    configuration, according to the runs' own lists. The other parameters are as in `took_no_effect`.
    """
    if not _differs(one, other) and not hidden:
        return "both ran the same experiment with the same configuration"
    return took_no_effect(one, other, hidden=hidden, each=each, but=but)


def took_no_effect(
    one: Recording, other: Recording, *, hidden: Sequence[str] = (), each: bool = False, but: Collection[str] = ()
) -> str:
    """Why the difference between two experiments did not reach their agents, or "".

    `hidden`: the places where they differ only in secrets (`hashidrill.core.judging.comparison.hidden`). No recording
    holds secrets, so only whether agents had a value there is checked. `each`: one key without effect is enough.
    `but`: keys already known to have no effect.
    """
    differs = [at for at in dict.fromkeys([*_differs(one, other), *hidden]) if _key(at) not in but]
    idle = [at for at in differs if _idle(at, one, other, secret=at in hidden)]
    if not idle or (len(idle) < len(differs) and not each):
        return ""
    if len(idle) < len(differs):
        return f"{_shown(idle)} took no effect: there, the agents of both were started with the same values"
    return f"{_shown(idle)} took no effect: both started the same agents with the same configuration"


def _shown(places: Sequence[str]) -> str:
    more = f" and {len(places) - _MOST_SHOWN} more" if len(places) > _MOST_SHOWN else ""
    return f"{', '.join(places[:_MOST_SHOWN])}{more}"


def _differs(one: Recording, other: Recording) -> list[str]:
    return [line.partition(":")[0] for line in differences(one.experiment, other.experiment)]


def _key(at: str) -> str:
    found = _OF_AGENTS.match(at)
    return found[3] if found else at


def _idle(at: str, one: Recording, other: Recording, *, secret: bool) -> bool:
    """Whether both runs show the same agents in this respect. Missing information counts as a difference."""
    found = _OF_AGENTS.match(at)
    if found is None:
        return False
    product, what, key = found.groups()
    if what == "version":
        return _same_binary(product, one, other)
    if what in {"servers", "clients"}:
        first, second = one.run.get("hosts"), other.run.get("hosts")
        return first is not None and first == second
    started = [_started(product, each) for each in (one, other)]
    if None in started:
        return False
    there = [dict(_below(each or {}, key)) for each in started]
    return there[0] == there[1] and not (secret and any(there))


def _same_binary(product: str, one: Recording, other: Recording) -> bool:
    """Compares the binaries that ran, not the names of their versions."""
    for section, part in (("binaries", "sha256"), ("versions", "")):
        values = [(each.run.get(section) or {}).get(product) for each in (one, other)]
        known = [value.get(part) if isinstance(value, dict) else value for value in values]
        if all(known):
            return bool(known[0] == known[1])
    return False


def _started(product: str, recording: Recording) -> Mapping[str, Any] | None:
    """The configuration of each agent of a product, by host; None if the run does not have it."""
    of = recording.run if product == "consul" else recording.run.get(product)
    found = of.get("config") if isinstance(of, dict) else None
    return found if isinstance(found, dict) and found else None


def _below(started: Mapping[str, Any], key: str) -> Iterator[tuple[tuple[str, str], Any]]:
    """Each agent's configuration at and below a dotted key. A name in it may itself contain dots."""
    for host, config in started.items():
        for path, value in leaves(config) if isinstance(config, dict) else ():
            if dotted(path) == key or dotted(path).startswith(f"{key}."):
                yield (host, dotted(path)), value


@dataclass(frozen=True)
class JudgedRun:
    """One run of a comparison, and its own verdict."""

    round: int
    variant: str
    recording: Recording = field(repr=False)
    verdict: RunVerdict
    refused: str = ""
    """Why the recording is not a run of that variant."""

    @property
    def path(self) -> Path:
        return self.recording.path

    @property
    def counts(self) -> bool:
        return not self.refused and not self.verdict.invalid


@dataclass(frozen=True)
class FigureRow:
    """One figure of each variant: the median of its rounds, as a number and as text."""

    name: str
    unit: str
    numbers: Mapping[str, float]
    shown: Mapping[str, str]


@dataclass(frozen=True)
class ComparisonVerdict:
    """The verdict of a comparison: the verdict of every run, and a judgement of each comparison."""

    experiment: str
    title: str
    variants: list[str]
    runs: list[JudgedRun]
    comparisons: list[Judgement]
    invalid: list[str]
    figures: list[FigureRow]
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """FAIL if any part is FAIL, otherwise INVALID if any part is INVALID, otherwise PASS."""
        runs = [Verdict.INVALID if run.refused else run.verdict.verdict for run in self.runs]
        invalid = [Verdict.INVALID] if self.invalid else []
        return merge([*runs, *(each.finding.verdict for each in self.comparisons), *invalid])

    @property
    def outcome(self) -> str:
        """How the runs ended: `complete` if all are, otherwise like the first run that is not."""
        ends = [run.recording.outcome for run in self.runs]
        return next((each for each in ends if each != "complete"), "complete") if ends else "interrupted"

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "experiment": self.experiment,
            "verdict": self.verdict,
            "exit_code": self.verdict.exit_code,
            "outcome": self.outcome,
            "invalid": self.invalid,
            "notes": self.notes,
            "variants": self.variants,
            "comparisons": list(map(asdict, self.comparisons)),
            "runs": [
                {
                    "round": run.round,
                    "variant": run.variant,
                    "recording": str(run.path),
                    "refused": run.refused,
                    "verdict": run.verdict.verdict,
                    "invalid": run.verdict.invalid,
                    "doubts": run.verdict.doubts,
                    "expectations": list(map(asdict, run.verdict.judgements)),
                }
                for run in self.runs
            ],
            "figures": [
                {
                    "name": row.name,
                    "unit": row.unit,
                    "variants": {
                        name: number if math.isfinite(number) else row.shown[name]
                        for name, number in row.numbers.items()
                    },
                }
                for row in self.figures
            ],
        }


def judge_comparison(
    kept: Kept,
    *,
    near_to: Path | None = None,
    recorded_hypotheses: bool | Path = False,
    judged_by: Callable[[Recording], RunVerdict] | None = None,
) -> ComparisonVerdict:
    """The verdict of a comparison. `judged_by` judges one of its recordings; default: `judge`.

    Raises RecordingError for a recording of a newer hashidrill.
    """
    how = judged_by or partial(judge, near_to=near_to, recorded_hypotheses=recorded_hypotheses)
    runs = [
        JudgedRun(number, name, recording, how(recording), _refused(kept, name, recording))
        for number, each in enumerate(kept.rounds, start=1)
        for name in each.order
        if name in each.recordings and (each.recordings[name] / JOURNAL_NAME).is_file()
        for recording in [Recording(each.recordings[name])]
    ]
    experiment = kept.experiment.experiment
    lookup = Lookup(kept.path, near_to, recorded=recorded_hypotheses)
    with hypothesis.looking_up(lookup):
        comparisons = [_compared(each, kept, runs) for each in experiment.compare]
    return ComparisonVerdict(
        kept.experiment.name,
        experiment.metadata.title,
        list(kept.variants),
        runs,
        comparisons,
        list(_invalid(kept, runs)),
        _figures(kept, runs),
        lookup.notes(),
    )


def _refused(kept: Kept, name: str, recording: Recording) -> str:
    """Why a recording is not a run of that variant, or ""."""
    if name not in kept.variants:
        return f"{kept.experiment.name} has no variant {name}"
    try:
        run = recording.experiment
    except (HashidrillError, OSError) as error:
        return f"its experiment cannot be read: {error}"
    if run.metadata.name != kept.experiment.name:
        return f"is a run of another experiment, {run.metadata.name}"
    said = recording.run.get("variant")
    if said is not None and said != name:  # variants that differ only in a secret cannot be distinguished otherwise
        return f"did not run the variant {name}: its recording belongs to {said}"
    differs = differences(kept.variants[name].experiment, run)
    return f"did not run the variant {name}: {differs[0]}" if differs else ""


def _invalid(kept: Kept, runs: Sequence[JudgedRun]) -> Iterator[str]:
    if len(kept.variants) < 2 or not kept.rounds:
        yield "there is nothing to compare: fewer than two variants were run"
    there = {(run.round, run.variant) for run in runs}
    for number in range(1, len(kept.rounds) + 1):
        for name in kept.variants:
            if (number, name) not in there:
                yield f"round {number} has no recording of {name}: the pair is incomplete"
    for run in runs:
        if run.refused:
            yield f"{run.path} was refused: it {run.refused}"
        elif run.verdict.invalid:
            yield f"round {run.round} of {run.variant} is INVALID: {run.verdict.invalid[0]}"
    for path, count in Counter(run.path.resolve() for run in runs).items():
        if count > 1:
            yield f"{path} is named {count} times: the same run cannot count twice"


def _compared(comparison: Expectation, kept: Kept, runs: Sequence[JudgedRun]) -> Judgement:
    finding, text, figures = _find(comparison, kept, runs)
    known = comparison.known_issue
    if known is not None:
        finding, text = in_view_of(known, finding, text, figures)
    issue = None if known is None else known.issue
    return Judgement(comparison.title, comparison.hypothesis, finding, text, figures, issue)


Found = tuple[Finding, str, "Mapping[str, Any]"]


def _find(comparison: Expectation, kept: Kept, runs: Sequence[JudgedRun]) -> Found:
    try:
        found = hypothesis.get(comparison.hypothesis)
    except HashidrillError as error:
        return Finding.INVALID, str(error), {}
    names = [str(comparison.params.get(side)) for side in found.sides]
    if missing := [name for name in names if name not in kept.variants]:
        return Finding.INVALID, f"there is no variant {missing[0]} to compare", {}
    rounds = _rounds(names, kept, runs)
    if not rounds:
        return Finding.INVALID, f"no round has a valid run of {' and of '.join(dict.fromkeys(names))}", {}
    if why := _alike(names, kept, rounds) or (found.of_rounds and _unkept(names, rounds, comparison.params)):
        return Finding.INVALID, why, {}
    if found.of_rounds:
        by_side = tuple(list(each) for each in zip(*rounds, strict=True))
        return _check(found, by_side, comparison.params)
    return _agreed([_check_round(found, sides, comparison.params) for sides in rounds])


def _rounds(names: Sequence[str], kept: Kept, runs: Sequence[JudgedRun]) -> list[tuple[Recording, ...]]:
    counts = {(run.round, run.variant): run.recording for run in runs if run.counts}
    numbers = range(1, len(kept.rounds) + 1)
    whole = [number for number in numbers if all((number, name) in counts for name in names)]
    return [tuple(counts[number, name] for name in names) for number in whole]


def _alike(names: Sequence[str], kept: Kept, rounds: Sequence[Sequence[Recording]]) -> str:
    """Which two sides ran the same, or ""."""
    for sides in rounds:
        for (one, first), (other, second) in combinations(zip(names, sides, strict=True), 2):
            if why := ran_the_same(first, second, hidden=kept.hidden_between(one, other)):
                return f"{one} and {other} cannot be compared: {why}"
    return ""


def _unkept(names: Sequence[str], rounds: Sequence[Sequence[Recording]], params: Mapping[str, Any]) -> str:
    """The side that deviated from the experiment for too long, or "". A compared load shows by itself if it failed."""
    for sides in rounds:
        for name, recording in zip(names, sides, strict=True):
            begin_ns, end_ns = measure.method(recording)[0], measure.loads_end_ns(recording)
            for doubt in Validity.of(recording).doubts:
                lasted_ns = min(doubt.end_ns, end_ns) - max(doubt.start_ns, begin_ns)
                itself = doubt.unless_read and any(doubt.names(str(value)) for value in params.values())
                if doubt.promise and not itself and lasted_ns > IN_DOUBT_AT_MOST * (end_ns - begin_ns):
                    why = f"{name} did not run as written: {doubt.reason} ({doubt.span(recording)})"
                    return f"{' and '.join(names)} cannot be compared: {why}"
    return ""


def _check_round(found: Hypothesis, sides: Sequence[Recording], params: Mapping[str, Any]) -> Found:
    """Judges one round. Seconds without a valid measurement, on any side, prove no difference."""
    traced = tuple(TracedRecording(each) for each in sides)
    finding, text, measured = _check(found, traced, params)
    for side, recording in zip(traced, sides, strict=True):
        for doubt in Validity.of(recording).doubts:
            if finding is not Finding.INVALID and any(doubt.touches(read) for read in side.reads):
                why = f"it relies on seconds without a valid measurement: {doubt.reason} ({doubt.span(recording)})"
                return Finding.INVALID, f"{why}\n(measured anyway: {finding}: {text})", measured
    return finding, text, measured


def _check(found: Hypothesis, sides: tuple[Any, ...], params: Mapping[str, Any]) -> Found:
    try:
        held = found.check(sides, params)
    except hypothesis.Broken as broken:
        return Finding.BROKEN, broken.text, broken.figures
    except (HypothesisInvalidError, RecordingError) as invalid:
        return Finding.INVALID, str(invalid), {}
    except ValueError as wrong:  # pydantic's, for parameters that fitted another version
        return Finding.INVALID, f"its parameters do not fit: {wrong}", {}
    return Finding.HELD, held.text, held.figures


def _agreed(found: Sequence[Found]) -> Found:
    """The common result of all rounds; INVALID if they disagree."""
    findings = {finding for finding, _, _ in found}
    if len(found) == 1:
        return found[0]
    if len(findings) == 1:
        finding, text, measured = found[0]
        return finding, f"in each of {len(found)} rounds; in the first: {text}", measured
    said = "\n".join(f"round {number}: {finding}: {text}" for number, (finding, text, _) in enumerate(found, start=1))
    return Finding.INVALID, f"cannot tell: the rounds do not agree\n{said}", {}


def _figures(kept: Kept, runs: Sequence[JudgedRun]) -> list[FigureRow]:
    """The figures of the rounds that count for every variant; comparisons read these rounds only."""
    of_each = [{one.name: one for one in figures(each.experiment)} for each in kept.variants.values()]
    sides = [*kept.variants]
    whole = _rounds(sides, kept, runs)
    rows = []
    for name, one in of_each[0].items() if of_each else ():
        if not all(name in other for other in of_each):
            continue
        measured = [[one.of(recording).number for recording in each] for each in whole]
        pairs = [each for each in measured if not any(map(math.isnan, each))]
        if pairs:
            numbers = dict(zip(sides, map(lower_median, zip(*pairs, strict=True)), strict=True))
            rows.append(FigureRow(name, one.unit, numbers, {side: one.shown(each) for side, each in numbers.items()}))
    return rows
