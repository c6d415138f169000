"""Judges a recording: whether the run is valid, and whether each expectation held.

A pure function of the recording: no clock, no network. The same recording gives the same verdict today and in a
year.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from hashidrill.core import hypothesis
from hashidrill.core.errors import HashidrillError, HypothesisInvalidError, RecordingError
from hashidrill.core.experiment.model import Expectation, Experiment, KnownIssue
from hashidrill.core.hypothesis import Held
from hashidrill.core.judging import measure
from hashidrill.core.judging.doubts import Doubt, offers, readable
from hashidrill.core.judging.measure import SECOND, in_force, percentile, served_s
from hashidrill.core.judging.reads import Read, TracedRecording, blind, unseen
from hashidrill.core.judging.validity import Validity
from hashidrill.core.judging.verdict import HARMLESS, MEASURED_ANYWAY, NOT_JUDGED, Finding, Judgement, RunVerdict
from hashidrill.core.protocols.service import lanes
from hashidrill.core.recording.provenance import Lookup
from hashidrill.core.recording.reader import FaultWindow, Operations, Recording
from hashidrill.core.recording.seal import damage
from hashidrill.core.util.files import VERDICT_NAME, write_whole
from hashidrill.core.util.safe_json import parse

_LEAST_OPERATIONS = 10
_MORE_ERRORS = 0.001
_SLOWER, _SLOWER_S = 1.5, 0.002
_TAIL_SLOWER, _TAIL_SLOWER_S = 2.0, 0.02
_LOGGED = re.compile(r"^\s*(\d{4}-\d\d-\d\dT\S+) \[(?:WARN|ERROR)\]\s+(.*)$")
_STAMPED = re.compile(r"^\s*\d{4}-\d\d-\d\dT\S+ \[[A-Z]+\] ", re.MULTILINE)


def without_effect(recording: Recording) -> Iterator[str]:
    """One sentence for each fault that stayed in force but changed nothing in its agent, the loads or the leader.

    Skips faults whose agent left no log, and faults during which a load cannot be compared with the time before.
    """
    starts = [in_force(recording, window)[0] for window in recording.faults if window.proven]
    for window in recording.faults:
        if window.still_ns is None or window.kind == measure.NO_FAULT or "steady" not in recording.phases:
            continue
        start_ns, end_ns = in_force(recording, window)
        since_ns = recording.phases["steady"][0]
        try:
            shown = _states_changed(recording, start_ns, end_ns) or any(
                _suffered(recording.operations(load), since_ns, min(starts), start_ns, end_ns)
                for load in recording.loads
            )
            if not shown and not _warned(recording, window, start_ns, end_ns):
                yield (
                    f"{measure.named(recording, window)} was proven in force for"
                    f" {measure.seconds((end_ns - start_ns) / SECOND)}, and nothing else showed it: no load was slower"
                    f" or failed more often, no leader changed, and {window.agent} on {window.host}"
                    " stayed the same process and logged no new warning; expectations may have held only"
                    " because the fault did not reach its target"
                )
        except HypothesisInvalidError:  # something was not measured, so the fault may have had an effect
            continue


def _suffered(ops: Operations, since_ns: int, first_ns: int, start_ns: int, end_ns: int) -> bool:
    """Whether a load was worse than before the first fault. Raises HypothesisInvalidError if that is undecided."""
    before, during = ops.between(since_ns, first_ns), ops.between(start_ns, end_ns)
    if min(len(before), len(during)) < _LEAST_OPERATIONS:
        raise HypothesisInvalidError("too few operations to compare")
    was_s, is_s = served_s(before), served_s(during)
    return (
        float((~during.ok).mean()) > float((~before.ok).mean()) + _MORE_ERRORS
        or percentile(is_s, 50) > percentile(was_s, 50) * _SLOWER + _SLOWER_S
        or percentile(is_s, 99) > percentile(was_s, 99) * _TAIL_SLOWER + _TAIL_SLOWER_S
    )


def _states_changed(recording: Recording, start_ns: int, end_ns: int) -> bool:
    for lane in (lane for lane in lanes() if lane.signal in recording.signals):
        if lane.names:
            if len(measure.reigns(recording, start_ns, end_ns, lane.signal)) > 1:
                return True
            continue
        series = recording.series(lane.signal).known_between(start_ns, end_ns)
        if not (series.ok & (series.value >= 1)).all():
            return True
    return False


def _warned(recording: Recording, window: FaultWindow, start_ns: int, end_ns: int) -> bool:
    """Whether the target's agent logged a new kind of warning, or was replaced. Raises HypothesisInvalidError."""
    path = recording.path / "logs" / Path(window.host).name / f"{Path(window.agent).name}.log"
    text = path.read_text(errors="replace") if path.is_file() else ""
    if not _STAMPED.search(text):
        raise HypothesisInvalidError(f"{path}: no log of the agent")
    if measure.not_the_same_process_ns(recording, window.host, start_ns, end_ns) is not None:
        return True
    began = recording.journal[0]
    known: set[str] = set()
    for stamp, said in (found.groups() for found in map(_LOGGED.match, text.splitlines()) if found):
        at_ns = (_wall_s(stamp) - began.wall) * SECOND + began.t_ns
        kind = " ".join(word for word in said.split() if not any(letter.isdigit() for letter in word))
        if start_ns <= at_ns <= end_ns and kind not in known:
            return True
        known.add(kind)
    return False


def _wall_s(stamp: str) -> float:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        raise HypothesisInvalidError(f"{stamp!r} is not a time") from None


GUARDRAIL = "guardrail"
"""The `hypothesis` of a judgement on a guardrail that tripped or was blind."""


def judge(
    recording: Recording,
    experiment: Experiment | None = None,
    *,
    near_to: Path | None = None,
    recorded_hypotheses: bool | Path = False,
) -> RunVerdict:
    """The verdict of a run, by the expectations recorded with it, or by the expectations of another `experiment`.

    The run is INVALID, whatever its expectations say, if it did not end as planned, the steady state never held, there
    was no fault or one was not proven in force, a fault could not be reverted, or a load had no successful operation.
    Expectations of such a run are INVALID, except those that mean the same in any run (`needs_valid_run=False`). With a
    damaged recording (hashidrill.core.recording.seal), every expectation is INVALID.

    All judgements that rely on seconds without a valid measurement (hashidrill.core.judging.doubts) are INVALID; the
    others stand. What a hypothesis read decides whether its result is valid. A guardrail that tripped is a separate
    BROKEN judgement: the datacenter exceeded the limit set for it.

    The shipped hypotheses judge the run. For a user's own run, `near_to` is the experiment's file: a `hypotheses/`
    folder near it is searched, but never a folder in the recording, which is data. `recorded_hypotheses` is a folder in
    which the run's hypotheses are found by their SHA-256; True runs the Python stored in the recording: use it only if
    you trust its author. The verdict's notes name the hypotheses that differ from the run's
    (hashidrill.core.recording.provenance). If a hypothesis is missing, its expectation says which one it needs.

    Raises RecordingError for a recording of a newer hashidrill.
    """
    recording.check_format()
    try:
        experiment = experiment or recording.experiment
    except (HashidrillError, OSError) as error:
        return RunVerdict([f"the experiment of this recording cannot be read: {error}", *damage(recording)], [])
    lookup = Lookup(recording.path, near_to, recorded=recorded_hypotheses)
    try:
        validity = Validity.of(recording, experiment)
        if damaged := validity.damaged:
            return RunVerdict(list(damaged), [_unjudged(expectation, damaged[0]) for expectation in experiment.expect])
        with hypothesis.looking_up(lookup):
            judged = _judged(recording, experiment, validity)
        return dataclasses.replace(judged, notes=[*judged.notes, *lookup.notes()])
    except RecordingError as error:  # a recording without a seal, of which only the parts in use are read
        return RunVerdict([str(error)], [_unjudged(expectation, str(error)) for expectation in experiment.expect])


def _unjudged(expectation: Expectation, why: str) -> Judgement:
    """An INVALID judgement: a damaged recording proves nothing, even for what is judged in INVALID runs."""
    text = f"{NOT_JUDGED}{why}"
    issue = None if expectation.known_issue is None else expectation.known_issue.issue
    return Judgement(expectation.title, expectation.hypothesis, Finding.INVALID, text, {}, issue)


def _judged(recording: Recording, experiment: Experiment, validity: Validity) -> RunVerdict:
    invalid, doubtful = list(validity.invalid), validity.doubts
    case = _Case(recording, invalid)
    found = [(expectation, case.find(expectation)) for expectation in experiment.expect]
    doubtful = [doubt for doubt in doubtful if not doubt.settled_by(each.reads for _, each in found)]
    judged = [case.judge(*each, doubtful) for each in found]
    if not judged:
        invalid.append("there is nothing to check: the experiment has no `expect`")
    judgements = [judgement for judgement, _ in judged]
    return RunVerdict(
        invalid,
        [*judgements, *_guardrails(recording, experiment, doubtful)],
        list(_notes(doubtful, recording, judged)),
        notes=[*without_effect(recording), *offers(recording, experiment)] if "method" in recording.phases else [],
    )


class _NoParameters(BaseModel):
    """The parameters of a question, whose function already contains all of them."""


def judge_question(recording: Recording, question: Callable[[Recording], Held], name: str) -> tuple[Finding, str]:
    """Judges a command's own question about a recording like an expectation of the experiment, with the same doubts.

    `question` is a hypothesis without parameters. Raises RecordingError for a recording of a newer hashidrill.
    """
    validity = Validity.of(recording)
    asked = hypothesis.Hypothesis(name, question, _NoParameters, "", Path(__file__), 0)
    case = _Case(recording, validity.invalid)
    found = case.check(asked, {})
    doubtful = [doubt for doubt in validity.doubts if not doubt.settled_by([found.reads])]
    finding, text, _ = case.in_doubt(found, doubtful)
    return finding, text


def write_verdict(
    recording: Recording, *, near_to: Path | None = None, recorded_hypotheses: bool | Path = False
) -> RunVerdict:
    """Judges, and writes the verdict into the recording as verdict.json; a failure to write becomes a note."""
    return stored(recording, judge(recording, near_to=near_to, recorded_hypotheses=recorded_hypotheses))


def stored(recording: Recording, verdict: RunVerdict) -> RunVerdict:
    """Writes a verdict into the recording as verdict.json; a failure becomes a note of the returned verdict."""
    document = {"verdict": verdict.verdict, **dataclasses.asdict(verdict)}
    try:
        write_whole(recording.path / VERDICT_NAME, json.dumps(document, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        return with_note(verdict, f"{recording.path / VERDICT_NAME} could not be written: {error.strerror}")
    return verdict


def with_note(verdict: RunVerdict, note: str) -> RunVerdict:
    return dataclasses.replace(verdict, notes=[*verdict.notes, note])


def read_verdict(path: Path) -> RunVerdict:
    """The verdict stored in a recording's directory. Raises RecordingError when it is missing or unreadable."""
    file = path / VERDICT_NAME
    try:
        document = parse(file.read_text())
        judgements = [Judgement(**{**each, "finding": Finding(each["finding"])}) for each in document["judgements"]]
        return RunVerdict(
            list(document["invalid"]),
            judgements,
            list(document.get("doubts", [])),
            notes=list(document.get("notes", [])),
        )
    except FileNotFoundError:
        raise RecordingError(f"{file}: not judged yet; run `hashidrill check {path}`") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RecordingError(f"{file}: unreadable ({error}); run `hashidrill check {path}` to write it again") from None


@dataclass(frozen=True)
class _Found:
    """The result of a hypothesis before any doubt. If it could not be judged, `by` is None and `reads` is empty."""

    finding: Finding
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    by: hypothesis.Hypothesis | None = None
    reads: Sequence[Read] = ()
    witnesses: Sequence[Read] = ()
    """Reads that prove a break; any one of them is enough."""

    def spoilt_by(self, doubts: Sequence[Doubt]) -> list[Doubt]:
        """The doubts that make the judgement INVALID. A break stays valid if one of its witnesses is free of doubt."""
        if self.by is None:
            return []
        by, alternatives = self.by, [[read] for read in self.witnesses] or [[*self.reads]]
        each = [[doubt for doubt in doubts if _spoils(doubt, reads, by, self.finding)] for reads in alternatives]
        return min(each, key=len)


@dataclass(frozen=True)
class _Case:
    """The context in which every expectation of a run is judged."""

    recording: Recording
    invalid: Sequence[str]

    def find(self, expectation: Expectation) -> _Found:
        try:
            found = hypothesis.get(expectation.hypothesis)
        except HashidrillError as error:
            return _Found(Finding.INVALID, str(error))
        return self.check(found, expectation.params)

    def check(self, found: hypothesis.Hypothesis, params: Mapping[str, Any]) -> _Found:
        """The result of a hypothesis, ignoring doubts."""
        if "method" not in self.recording.phases:
            why = self.invalid[0] if self.invalid else "the run never reached its method"
            return _Found(Finding.INVALID, f"{NOT_JUDGED}{why}")
        traced = TracedRecording(self.recording)
        finding, text, figures, witnesses = _check(found, traced, params)
        if finding is Finding.INVALID:
            return _Found(finding, text, figures)
        return _Found(finding, text, figures, found, traced.reads, witnesses)

    def judge(self, expectation: Expectation, found: _Found, doubts: Sequence[Doubt]) -> tuple[Judgement, list[Doubt]]:
        """The judgement, and the doubts that made it INVALID."""
        known = expectation.known_issue
        finding, text, spoilt_by = self.in_doubt(found, doubts, known)
        if known is not None:
            finding, text = in_view_of(known, finding, text, found.figures)
        issue = None if known is None else known.issue
        return Judgement(expectation.title, expectation.hypothesis, finding, text, found.figures, issue), spoilt_by

    def in_doubt(
        self, found: _Found, doubts: Sequence[Doubt], known: KnownIssue | None = None
    ) -> tuple[Finding, str, list[Doubt]]:
        """The result, or INVALID if the run or a measurement that it read is in doubt; and the doubts that cause it."""
        if found.by is None:
            return found.finding, found.text, []
        why, spoilt_by = "", []
        explained = (
            known is not None and in_view_of(known, found.finding, found.text, found.figures)[0] is Finding.KNOWN
        )
        if self.invalid and found.by.needs_valid_run:
            why = f"the run is INVALID: {self.invalid[0]}"
        else:
            # a busy machine may explain a break only if that is worse than the known issue
            doubts = [doubt for doubt in doubts if not (doubt.broken_only and explained)]
            spoilt_by = found.spoilt_by(doubts)
            if spoilt_by:
                first = spoilt_by[0]
                why = f"it relies on seconds without a valid measurement: {first.reason} ({first.span(self.recording)})"
                if first.broken_only:
                    why += "; run it again when the machine is quieter"
        held = explained or found.finding is Finding.HELD
        if not why and held and (failed := unseen(self.recording, found.reads)):
            why = f"it relies on looks that did not succeed: {failed}"
        if not why:
            return found.finding, found.text, []
        return Finding.INVALID, f"{why}\n{MEASURED_ANYWAY}{found.finding}: {found.text})", spoilt_by


def in_view_of(known: KnownIssue, finding: Finding, text: str, figures: Mapping[str, Any]) -> tuple[Finding, str]:
    """The finding in view of a known issue: broken as expected, worse than known, or fixed."""
    if finding is Finding.HELD:
        said = f"it held, although known_issue names {known.issue}: if the issue is fixed, remove the known_issue"
        return Finding.FIXED, f"{text}\n{said}"
    if finding is not Finding.BROKEN:
        return finding, text
    worse, unknown = known.beyond(figures)
    if worse:
        return finding, f"worse than the bounds of {known.issue}: {'; '.join(worse)}\n{text}"
    if unknown:
        return Finding.INVALID, f"cannot be compared with the bounds of {known.issue}: {unknown[0]}\n{text}"
    if not known.bounded:
        return Finding.KNOWN, f"{text}\n{known.issue} excuses any break, because it states no bound (at_most, at_least)"
    return Finding.KNOWN, text


def _spoils(doubt: Doubt, reads: Sequence[Read], found: hypothesis.Hypothesis, finding: Finding) -> bool:
    """Whether the doubt makes this finding INVALID.

    If a hypothesis that is judged even in INVALID runs is broken, it stays broken. A late generator or a busy machine
    does not affect a hypothesis that does not depend on times. If a hypothesis held on a busy machine, that result
    stands.
    """
    if (doubt.broken_only and finding is not Finding.BROKEN) or (doubt.held_only and finding is Finding.BROKEN):
        return False
    if (finding is Finding.BROKEN and not found.needs_valid_run) or (doubt.late_only and not found.timed):
        return False
    return any(doubt.touches(read) for read in reads)


def _notes(
    doubtful: Sequence[Doubt], recording: Recording, judged: Sequence[tuple[Judgement, list[Doubt]]]
) -> Iterator[str]:
    """One line for each group of doubts, with the expectations that they make INVALID, and how many others stand.

    Doubts about the same thing, or of one group, share a line if they have the same effect. The line shows the longest
    doubt and their number.
    """
    alike: dict[tuple[tuple[str, ...], object], list[Doubt]] = {}
    for doubt in doubtful:
        spoilt = tuple(judgement.title for judgement, by in judged if doubt in by)
        what = doubt.among or (doubt.about or doubt.reason, doubt.of, doubt.host)
        alike.setdefault((spoilt, what), []).append(doubt)
    for (titles, _), group in alike.items():
        longest = max(group, key=lambda each: each.end_ns - each.start_ns)
        what = f"{longest.reason} ({longest.span(recording)}"
        if others := len({(each.of, each.host) for each in group}) - 1:
            what += f"; and {others} more {longest.among}"
        if len(group) > 1:
            seconds = sum(each.end_ns - each.start_ns for each in group) / SECOND
            what += f"; {len(group)} times, {seconds:.0f}s in total"
        if not titles:
            yield f"{what}); {HARMLESS}"
            continue
        rest = [judgement for judgement, by in judged if not any(doubt in by for doubt in group)]
        stand = f"the other {len(rest)} of {len(judged)} expectations stand"
        if unjudged := sum(judgement.finding is Finding.INVALID for judgement in rest):
            stand = f"{len(rest) - unjudged} of the other {len(rest)} expectations stand"
        yield f"{what}); this makes INVALID: {', '.join(titles)}; {stand}"


def _check(
    found: hypothesis.Hypothesis, recording: Recording, params: Mapping[str, Any]
) -> tuple[Finding, str, dict[str, Any], list[Read]]:
    try:
        held = found.check(recording, params)
    except hypothesis.Broken as broken:
        looks = [Read(of, host, ((start, end),)) for of, host, start, end in broken.witnesses]
        return Finding.BROKEN, broken.text, broken.figures, looks
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or found.name}: {e['msg']}" for e in error.errors())
        return Finding.INVALID, f"wrong parameters: {wrong}", {}, []
    except HashidrillError as error:
        return Finding.INVALID, str(error), {}, []
    return Finding.HELD, held.text, held.figures, []


def _guardrails(recording: Recording, experiment: Experiment, doubtful: Sequence[Doubt]) -> Iterator[Judgement]:
    """The guardrails that tripped; if none tripped, those that were blind because their signal was not measured."""
    tripped = recording.events("guardrail")
    for entry in tripped:
        condition = f"{entry.data.get('condition')}"
        yield Judgement(
            f"{GUARDRAIL}({condition})",
            GUARDRAIL,
            Finding.BROKEN,
            f"guardrail `{condition}` tripped {entry.t_ns / 1e9:.1f}s into the run"
            f" ({readable(entry.data.get('evidence') or 'no evidence')}):"
            " the engine reverted all faults and ended the method",
        )
    for guardrail in [] if tripped else experiment.guardrails:
        watched = (
            guardrail.source if guardrail.source in experiment.measured else f"{guardrail.source}.{guardrail.what}"
        )
        span = recording.phases.get("method", (0, 0))
        read = Read(watched, None, (span,))
        silent = [d for d in doubtful if d.of and d.names(watched) and not d.late_only and d.touches(read)]
        why = f"{silent[0].reason} ({silent[0].span(recording)})" if silent else ""
        if not why and "method" in recording.phases and guardrail.source not in experiment.measured:
            why = blind(recording, watched, span)
        if why:
            yield Judgement(
                f"{GUARDRAIL}({guardrail})", GUARDRAIL, Finding.INVALID, f"guardrail `{guardrail}` was blind: {why}"
            )
