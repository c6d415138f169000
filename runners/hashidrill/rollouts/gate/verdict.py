"""Computes the gate's verdict from the rounds.

One experiment: a figure that is surely worse, or an expectation that holds for the baseline and breaks for the
candidate, is a regression. An expectation that breaks for both shows a sick baseline, so the gate cannot tell. The gate
is also undecided if a deciding figure stays undecided, or if an expectation broke once. If only one side has INVALID
runs, or expectations that could not be judged, they hide that side's behaviour, so the gate does not pass. A suite:
one regression anywhere is a regression, and one undecided experiment keeps the suite from passing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from hashidrill.clients.audit.audited import Finding as AuditFinding
from hashidrill.clients.audit.audited import Severity
from hashidrill.clients.audit.run import audit
from hashidrill.core.compare.comparison import Compared
from hashidrill.core.compare.statistics import FIRST_LOOK, MOST_ROUNDS, Decision
from hashidrill.core.judging.judge import GUARDRAIL
from hashidrill.core.judging.verdict import Finding, RunVerdict
from hashidrill.lab.runs.rounds import Stopped
from hashidrill.rollouts.gate.configuration import PRODUCTS, Source
from hashidrill.rollouts.gate.differences import Change, Differences
from hashidrill.rollouts.gate.suite import Member, Picked

OFTEN = 2
"""Rounds that must agree before an expectation counts as broken: one run may have had bad luck."""
OUTWEIGHS = 3
"""An expectation must break for the candidate alone at least this many times as often as for the baseline alone."""
OFTEN_KNOWN = 3
"""Rounds in which a known issue must show for the candidate alone, and no rounds otherwise: it may come and go."""
STEADY = "steady state"


class GateVerdict(StrEnum):
    """A gate's result. `exit_code` is the exit code of the process."""

    REGRESSION = "regression"
    CANNOT_TELL = "cannot tell"
    IMPROVEMENT = "improvement"
    NO_REGRESSION = "no regression"
    NO_CHANGE = "no change"

    @property
    def exit_code(self) -> int:
        return {GateVerdict.REGRESSION: 1, GateVerdict.CANNOT_TELL: 3}.get(self, 0)


class SloState(StrEnum):
    """The result of one expectation over the rounds."""

    HELD = "held"
    BROKEN = "broken by the candidate"
    SICK = "broken by the baseline itself"
    UNSURE = "unsure"
    UNKNOWN = "not judged"


@dataclass(frozen=True)
class Slo:
    """An expectation over all rounds. `pairs`: whether it held for baseline and candidate, None if unknown."""

    title: str
    pairs: tuple[tuple[bool | None, bool | None], ...]
    text: str = ""
    """The judge's text for the last run that broke it, or could not be judged."""
    often: int = OFTEN
    """Rounds that must agree before it counts as broken."""

    @property
    def judged(self) -> list[tuple[bool | None, bool | None]]:
        """The rounds in which it was judged on both sides; only they determine state and counts."""
        return [pair for pair in self.pairs if None not in pair]

    @property
    def state(self) -> SloState:
        known = self.judged
        worse, better = known.count((True, False)), known.count((False, True))
        sick = better + known.count((False, False))
        if worse >= self.often and worse >= OUTWEIGHS * better:
            return SloState.BROKEN
        if sick >= OFTEN and 2 * sick >= len(known):
            return SloState.SICK
        if not known:
            return SloState.UNKNOWN
        # a round in which the baseline broke too says nothing about the candidate
        healthy = sum(pair[0] is True for pair in known)
        return SloState.UNSURE if worse or healthy < OFTEN or self.unjudged else SloState.HELD

    @property
    def unjudged(self) -> int:
        """The number of rounds in which only the candidate could not be judged; 0 if it may be chance."""
        lacking = sum(pair[1] is None and pair[0] is not None for pair in self.pairs)
        return lacking if lacks_alone(lacking, sum(pair[0] is None for pair in self.pairs)) else 0

    def counted(self, side: int) -> str:
        """`2 of 3`: the rounds in which it held for that side, of those in which both sides were judged."""
        return f"{sum(bool(pair[side]) for pair in self.judged)} of {len(self.judged)}"


@dataclass(frozen=True)
class Outcome:
    """The result of one experiment's rounds: `figures`, `slos`, and in `invalid` why rounds did not count."""

    experiment: str
    figures: tuple[Compared, ...] = ()
    slos: tuple[Slo, ...] = ()
    invalid: tuple[str, ...] = ()
    rounds: int = 0
    """The number of rounds that count."""
    doubts: tuple[str, ...] = ()
    """Why these rounds cannot decide, whatever was measured in them."""
    without: tuple[str, ...] = ()
    """Changes without effect: the agents themselves report the same on both sides."""
    no_change: bool = False
    """Whether no change has an effect, and the agents' reports do not differ otherwise."""

    @property
    def verdict(self) -> GateVerdict:
        if self.no_change:
            return GateVerdict.NO_CHANGE
        if self.regressions:
            return GateVerdict.REGRESSION
        if self.unsure:
            return GateVerdict.CANNOT_TELL
        return GateVerdict.IMPROVEMENT if self.improvements else GateVerdict.NO_REGRESSION

    @property
    def regressions(self) -> list[str]:
        """One line for each, the broken expectations first."""
        slos = [
            f"{slo.title} holds for the baseline ({slo.counted(0)} rounds) and breaks for the candidate"
            f" (it held in {slo.counted(1)})"
            for slo in self.slos
            if slo.state is SloState.BROKEN
        ]
        return slos + [figure_line(each) for each in self.figures if each.decision is Decision.WORSE]

    @property
    def improvements(self) -> list[str]:
        """The improvements among the figures that decide, without those that only raise an alarm, like the cost."""
        return [figure_line(each) for each in self.figures if each.figure.decides and each.decision is Decision.BETTER]

    @property
    def unsure(self) -> list[str]:
        """The reasons why the gate is undecided; empty if it is decided."""
        found = [
            f"the baseline itself is sick: {slo.title} holds in {slo.counted(0)} of its rounds"
            for slo in self.slos
            if slo.state is SloState.SICK
        ]
        if found:
            return found
        if not self.rounds:
            return ["no round counts", *self.invalid]
        found += self.doubts
        if not self.slos and not any(each.figure.decides for each in self.figures):
            found.append("nothing was judged, and no deciding figure was measured")
        found += [_open_slo(slo) for slo in self.slos if slo.state in {SloState.UNSURE, SloState.UNKNOWN}]
        open_ = [each for each in self.figures if each.is_open]
        whys = dict.fromkeys(each.why for each in open_ if each.why)
        found += [f"{', '.join(each.figure.name for each in open_ if each.why == why)}: {why}" for why in whys]
        return found + [f"{figure_line(each)}{needed(each)}" for each in open_ if not each.why]

    @property
    def settled(self) -> bool:
        if self.no_change:
            return True
        states = {slo.state for slo in self.slos}
        if SloState.BROKEN in states or SloState.SICK in states:
            return True
        if any(each.decision is Decision.WORSE for each in self.figures):
            return True
        if any(each.may_be_better for each in self.figures):
            return False
        return bool(self.figures) and not self.unsure


def _open_slo(slo: Slo) -> str:
    if slo.state is SloState.UNKNOWN:
        return f"{slo.title} could not be judged in any round{f': {slo.text}' if slo.text else ''}"
    held = f"{slo.title} held in {slo.counted(0)} rounds of the baseline and {slo.counted(1)} of the candidate"
    unjudged = f", and only the candidate could not be judged in {slo.unjudged} rounds" if slo.unjudged else ""
    return f"{held}{unjudged}: more rounds would tell"


def lacks_alone(candidate: int, baseline: int) -> bool:
    """Given how many runs of each side lack something: whether the candidate's are too many to be bad luck."""
    return candidate >= OFTEN and candidate >= OUTWEIGHS * baseline


def figure_line(each: Compared) -> str:
    """`kv-writes.latency.p50: 5ms -> 8ms, 1.60 times, 1.40 to 1.80`."""

    def shown(number: float) -> str:
        text = each.figure.shown(number)
        return f"{text} (not by the end of the run)" if math.isinf(number) else text

    if each.why:
        return f"{each.figure.name}: {each.why}"
    differs = f", {each.differs}" if each.differs else ""
    fewer = f", measured in {each.interval.rounds} of {each.of} rounds" if each.interval.rounds < each.of else ""
    return f"{each.figure.name}: {shown(each.baseline)} -> {shown(each.candidate)}{differs}{fewer}"


def needed(each: Compared) -> str:
    if each.why or not each.more_rounds:
        return ""
    if each.more_rounds >= MOST_ROUNDS:
        return f"; this would take more than {MOST_ROUNDS} rounds: the noise is too large"
    return f"; about {each.more_rounds} more round{'' if each.more_rounds == 1 else 's'} would tell"


def whole(outcomes: Iterable[Outcome]) -> GateVerdict:
    """The verdict of a suite: a failing member makes it fail, and an undecided one keeps it from passing."""
    verdicts = {outcome.verdict for outcome in outcomes}
    order = (
        GateVerdict.REGRESSION,
        GateVerdict.CANNOT_TELL,
        GateVerdict.IMPROVEMENT,
        GateVerdict.NO_REGRESSION,
        GateVerdict.NO_CHANGE,
    )
    return next((verdict for verdict in order if verdict in verdicts), GateVerdict.CANNOT_TELL)


def slos_of(
    judged: Sequence[tuple[RunVerdict, RunVerdict]], unsteady: Sequence[Mapping[str, bool]] = ()
) -> tuple[Slo, ...]:
    """The expectations of these rounds (baseline, candidate), and the steady state if it failed to hold for a side.

    `unsteady`: for each round that was played, whether the steady state never held on `baseline` and on `candidate`.
    """
    titles = list(dict.fromkeys(each.title for pair in judged for side in pair for each in side.judgements))
    found = [_slo(title, judged) for title in titles]
    if any(any(each.values()) for each in unsteady):
        pairs = tuple((not each.get("baseline", False), not each.get("candidate", False)) for each in unsteady)
        why = "the datacenter never got ready, or its steady state never held: no fault was applied"
        found.append(Slo(STEADY, pairs, why))
    return tuple(found)


def _slo(title: str, judged: Sequence[tuple[RunVerdict, RunVerdict]]) -> Slo:
    """A known issue counts as broken only if the candidate alone has it in all rounds."""
    findings = [(_finding(one, title), _finding(other, title)) for one, other in judged]
    returned = bool(findings) and set(findings) == {(Finding.FIXED, Finding.KNOWN)}
    bad = {Finding.BROKEN, Finding.KNOWN} if returned else {Finding.BROKEN}
    pairs = tuple(
        (None if one is Finding.INVALID else one not in bad, None if other is Finding.INVALID else other not in bad)
        for one, other in findings
    )
    said = [each for pair in judged for side in pair for each in side.judgements if each.title == title]
    unjudged = [each.text for each in said if each.finding is Finding.INVALID]
    text = next((each.text for each in reversed(said) if each.finding in bad), (unjudged or [""])[-1])
    return Slo(title, pairs, text, OFTEN_KNOWN if returned else OFTEN)


def _finding(verdict: RunVerdict, title: str) -> Finding:
    """A guardrail that did not trip has no judgement and counts as held; one that could not measure is INVALID."""
    absent = Finding.HELD if title.startswith(f"{GUARDRAIL}(") else Finding.INVALID
    return next((each.finding for each in verdict.judgements if each.title == title), absent)


@dataclass(frozen=True)
class PlayedRound:
    """One recording of each side, and why the round does not count; "" if it counts."""

    baseline: Path | None
    candidate: Path | None
    invalid: str = ""


@dataclass(frozen=True)
class Ran:
    member: Member
    outcome: Outcome
    rounds: tuple[PlayedRound, ...] = ()
    stopped: str = ""
    """Why no more rounds were played."""
    seconds: float = 0.0
    ended: Stopped = "rounds"
    """Why no more rounds were played, as a code."""

    @property
    def more_rounds(self) -> int:
        """How many more rounds would probably decide it; 0 if more would not help, or too many were INVALID."""
        slos, figures = self.outcome.slos, self.outcome.figures
        if self.ended == "spoilt" or any(slo.state is SloState.SICK for slo in slos):
            return 0
        found = [each.more_rounds for each in figures if each.is_open and not each.why]
        if any(slo.state is SloState.UNSURE for slo in slos):
            found.append(max(1, FIRST_LOOK - self.outcome.rounds))
        return max((each for each in found if each < MOST_ROUNDS), default=0)


@dataclass(frozen=True)
class Audited:
    """The audit of the changed files. `new` are the findings that the baseline does not have."""

    findings: tuple[AuditFinding, ...] = ()
    new: tuple[AuditFinding, ...] = ()
    limit: Severity | None = Severity.ERROR
    """The lowest severity at which a new finding is a regression; None for never."""

    @property
    def failing(self) -> list[AuditFinding]:
        return [each for each in self.new if self.limit is not None and each.severity >= self.limit]


@dataclass(frozen=True)
class Result:
    """`names` are the two sides for people: their files or versions."""

    names: tuple[str, str]
    versions: tuple[str, str]
    """The product's version on both sides; "" means the version of each experiment."""
    differences: Differences
    audit: Audited
    picked: Picked = field(default_factory=lambda: Picked((), (), ()))
    ran: tuple[Ran, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def version(self) -> str:
        """The baseline's version of the product: the given one, or that of the chosen experiments; "" without any."""
        services = [each.experiment.datacenter.services for each in (*self.picked.members, *self.picked.left)]
        own = {str(getattr(of.get(self.differences.product), "version", "")) for of in services}
        return self.versions[0] or ", ".join(sorted(own - {""}))

    @property
    def equal(self) -> bool:
        return not self.differences.changes and self.versions[0] == self.versions[1]

    @property
    def verdict(self) -> GateVerdict:
        """One regression decides it; without one, the tested keys say nothing about the untested ones."""
        if self.audit.failing:
            return GateVerdict.REGRESSION
        found = self.tested
        if found is GateVerdict.REGRESSION:
            return found
        stopped = self.interrupted and found is not GateVerdict.NO_CHANGE
        return GateVerdict.CANNOT_TELL if stopped or self.untested else found

    @property
    def tested(self) -> GateVerdict:
        """The verdict on what the experiments tested."""
        return GateVerdict.NO_CHANGE if self.equal else whole(each.outcome for each in self.ran)

    @property
    def not_run(self) -> list[Member]:
        """Members of the suite that did not run, because a regression was found before or time ran out."""
        done = {each.member.name for each in self.ran}
        return [member for member in (*self.picked.members, *self.picked.left) if member.name not in done]

    def blamed(self, ran: Ran) -> Sequence[Change]:
        """The changed keys that this experiment tests; all changed keys if the map names none for it."""
        mattering = [change for change in self.differences.changes if change.key in ran.member.mattering]
        return mattering or self.differences.changes

    @property
    def untested(self) -> list[str]:
        """The differences that may matter and were not tested."""
        keys = self.differences.untested
        said = [f"differs, and no gate tests it: {', '.join(keys)}"] if keys else []
        if not self.ran or self.tested in {GateVerdict.REGRESSION, GateVerdict.NO_CHANGE}:  # the rest need not run
            return said
        done = {key for each in self.ran for key in each.member.mattering}
        late = dict.fromkeys(key for each in self.not_run for key in each.mattering if key not in done)
        return said + (
            [(f"changed, and there was no time for the experiments that matter for these keys: {', '.join(late)}")]
            if late
            else []
        )

    @property
    def reasons(self) -> list[str]:
        """Why the verdict is what it is, one line each."""
        if self.audit.failing:
            return [f"{each.path}:{each.place.line}: {each.rule_id} {each.message}" for each in self.audit.failing]
        tested, untested = self.tested, self.untested
        if self.equal:
            return [*untested, "nothing that can be compared differs, and nothing ran"]
        said = ["it was interrupted"] if self.interrupted and self.verdict is not GateVerdict.NO_CHANGE else []
        if untested and tested in {GateVerdict.IMPROVEMENT, GateVerdict.NO_REGRESSION}:
            said.append(f"the tested part: {tested}")
        said += dict.fromkeys(line for each in self.ran for line in each.outcome.without)
        for each in self.ran:
            outcome = each.outcome
            if outcome.verdict is tested:
                lines = {
                    GateVerdict.REGRESSION: outcome.regressions,
                    GateVerdict.CANNOT_TELL: outcome.unsure,
                    GateVerdict.IMPROVEMENT: outcome.improvements,
                }.get(tested, [])
                said += [f"{each.member.name}: {line}" for line in lines]
        return said + untested if tested is GateVerdict.REGRESSION else untested + said


def audited(
    product: str, baseline: Sequence[Source], candidate: Sequence[Source], *, limit: Severity | None
) -> Audited:
    """Audits both sides' files; starts nothing. Findings name files as people know them.

    A removed file can change the meaning of the other files, so a new finding counts in whichever file it is.
    """
    if [source.text for source in baseline] == [source.text for source in candidate]:
        return Audited(limit=limit)
    before = {source.text for source in baseline}
    names = {source.shown for source in candidate if source.text not in before}
    known = {(each.rule_id, each.message) for each in _findings(product, baseline)}
    found = _findings(product, candidate)  # together, because another file may set what one file lacks
    new = tuple(each for each in found if (each.rule_id, each.message) not in known)
    return Audited(tuple(each for each in found if each.path in names or each in new), new, limit)


def _findings(product: str, sources: Sequence[Source]) -> list[AuditFinding]:
    shown = {str(source.path): source.shown for source in sources}
    result = audit([source.path for source in sources], kind=PRODUCTS[product])
    return [replace(each, path=shown.get(each.path, each.path)) for each in result.findings]
