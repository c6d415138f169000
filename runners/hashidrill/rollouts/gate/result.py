"""What a gate found: everything that its faces show, and nothing that they have to look up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hashidrill.clients.audit.rule import Finding, Severity
from hashidrill.rollouts.gate.differences import Change, Differences
from hashidrill.rollouts.gate.suite import Member, Picked
from hashidrill.rollouts.gate.verdict import GateVerdict, Outcome, whole


@dataclass(frozen=True)
class PlayedRound:
    """One recording of each side, and why it does not count, if it does not."""

    baseline: Path | None
    candidate: Path | None
    invalid: str = ""


@dataclass(frozen=True)
class Ran:
    """One experiment of the suite, run on both sides."""

    member: Member
    outcome: Outcome
    rounds: tuple[PlayedRound, ...] = ()
    stopped: str = ""
    """Why no more rounds were played."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Audited:
    """The audit of the files that changed. `new` are the findings that the baseline does not have."""

    findings: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()
    limit: Severity | None = Severity.ERROR
    """From which severity on a new finding is a regression; None for never."""

    @property
    def failing(self) -> list[Finding]:
        return [each for each in self.new if self.limit is not None and each.severity >= self.limit]


@dataclass(frozen=True)
class Result:
    """`names` are the two sides for people: their files or versions."""

    names: tuple[str, str]
    versions: tuple[str, str]
    """Of the product, on both sides; "" for that of each experiment."""
    differences: Differences
    audit: Audited
    picked: Picked = field(default_factory=lambda: Picked((), (), ()))
    ran: tuple[Ran, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def equal(self) -> bool:
        """Whether there is nothing to compare."""
        return not self.differences.changes and self.versions[0] == self.versions[1]

    @property
    def verdict(self) -> GateVerdict:
        """A regression is one; short of that, what was tested says nothing of what was not."""
        if self.audit.failing:
            return GateVerdict.REGRESSION
        found = self.tested
        if found is GateVerdict.REGRESSION:
            return found
        stopped = self.interrupted and found is not GateVerdict.NO_CHANGE
        return GateVerdict.CANNOT_TELL if stopped or self.untested else found

    @property
    def tested(self) -> GateVerdict:
        """What the experiments say, of what they tested."""
        return GateVerdict.NO_CHANGE if self.equal else whole(each.outcome for each in self.ran)

    @property
    def not_run(self) -> list[Member]:
        """Of the suite, and not run: a regression was found before, or there was no time."""
        done = {each.member.name for each in self.ran}
        return [member for member in (*self.picked.members, *self.picked.left) if member.name not in done]

    def blamed(self, ran: Ran) -> Sequence[Change]:
        """The changed keys that this experiment matters for; all of them where the map names none."""
        mattering = [change for change in self.differences.changes if change.key in ran.member.mattering]
        return mattering or self.differences.changes

    @property
    def untested(self) -> list[str]:
        """What differs, may matter, and was not tested."""
        keys = self.differences.untested
        said = [f"differs, and no gate tests it: {', '.join(keys)}"] if keys else []
        if not self.ran or self.tested in {GateVerdict.REGRESSION, GateVerdict.NO_CHANGE}:  # the rest need not run
            return said
        done = {key for each in self.ran for key in each.member.mattering}
        late = dict.fromkeys(key for each in self.not_run for key in each.mattering if key not in done)
        return said + ([f"differs, and there was no time for what matters for it: {', '.join(late)}"] if late else [])

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
            said.append(f"what was tested: {tested}")
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
