"""Judges one run of a rehearsal, from its recording alone: what the runbook says of itself counts for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hashidrill.core import hypothesis
from hashidrill.core.errors import HashidrillError, RecordingError
from hashidrill.core.experiment.model import Expectation, Experiment
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.judging.validity import Validity
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.recording.journal import Entry
from hashidrill.core.recording.reader import Recording
from hashidrill.gamedays.runbooks.following import DONE, OFF
from hashidrill.gamedays.runbooks.harm import harm_of
from hashidrill.gamedays.runbooks.users import ever_sick, users
from hashidrill.gamedays.runbooks.view import AsHeld, after_the_act

NOT_REVERTED = 4
_OF_ONE_RESTORE = "_but_rolled_back"


@dataclass
class Drill:
    """One run of a rehearsal, judged. Times are seconds since the pager went; None for what never came."""

    experiment: str
    look_alike: bool
    expected: str
    reached: str = ""
    because: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    mistaken: list[str] = field(default_factory=list)
    """The part of `wrong` that is about the diagnosis."""
    harm: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    diagnosed_s: float | None = None
    acted_s: float | None = None
    back_s: float | None = None
    commands: int = 0
    recording: str = ""
    reverted: bool = True
    versions: dict[str, str] = field(default_factory=dict)
    users: str = "sick"

    @property
    def verdict(self) -> Verdict:
        """Harm is harm in any run; for the rest, what is INVALID proves nothing."""
        if self.harm:
            return Verdict.FAIL
        if self.invalid:
            return Verdict.INVALID
        return Verdict.FAIL if self.wrong else Verdict.PASS

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code if self.reverted else NOT_REVERTED


@dataclass(frozen=True)
class _Told:
    """What was done, in order."""

    entries: Sequence[Entry]

    def of(self, what: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.data.get("what") == what]

    def first_ns(self, what: str) -> int | None:
        found = self.of(what)
        return found[0].t_ns if found else None


def judge_drill(path: Path) -> Drill:
    """Raises RecordingError for what is no recording of a rehearsal."""
    recording = Recording(path)
    about = recording.run.get("rehearsal")
    if not isinstance(about, dict):
        raise RecordingError(f"{path}: not the recording of a rehearsal: run.json names none")
    drill = Drill(str(about.get("experiment")), bool(about.get("look_alike")), str(about.get("diagnosis")))
    drill.users = str(about.get("users") or drill.users)
    drill.recording, drill.reverted = str(path), recording.outcome != "revert"
    versions = recording.run.get("versions") or {}
    drill.versions = {name: str(version) for name, version in versions.items() if name not in {"python", "kernel"}}
    validity = Validity.of(recording)
    drill.invalid += validity.invalid
    if validity.damaged:
        return drill
    experiment = recording.experiment
    told = _Told(recording.events("attended.did"))
    pager_ns = told.first_ns("pager")
    if pager_ns is None:
        drill.invalid.append("the pager never went: the runbook was not followed")
        return drill
    _commands(drill, told)
    _diagnosis(drill, told, pager_ns)
    drill.mistaken = list(drill.wrong)
    drill.harm += harm_of(recording, told.entries)
    acts = told.of("acts")
    if acts:
        drill.acted_s = (acts[0].t_ns - pager_ns) / SECOND
    if drill.look_alike:
        _hands_off(drill, acts)
    else:
        _ended(drill, told)
        _proof(drill, told)
        _controls(drill, told)
        if acts and told.of("command"):
            _users(drill, recording, told, pager_ns)
    _losses(drill, recording, experiment)
    return drill


def _commands(drill: Drill, told: _Told) -> None:
    drill.commands = len(told.of("command"))


def _diagnosis(drill: Drill, told: _Told, pager_ns: int) -> None:
    """What it decided, and whether the recording shows what that rests on."""
    decided = told.of("decided")
    if not decided:
        drill.wrong.append(f"it came to no diagnosis; expected {drill.expected}")
        return
    last = decided[-1]
    drill.reached, drill.because = str(last.data.get("diagnosis")), dict(last.data.get("because") or {})
    drill.diagnosed_s = (last.t_ns - pager_ns) / SECOND
    if drill.reached != drill.expected:
        drill.wrong.append(
            f"wrong diagnosis: {drill.reached}, expected {drill.expected}{_seen(drill.because or _all_seen(told))}"
        )
    for entry in decided:
        for name, value in (entry.data.get("because") or {}).items():
            if value is not None and not _observed(told, name, value, entry.t_ns):
                drill.wrong.append(f"{entry.data.get('diagnosis')} rests on {name}, which nothing here observed")


def _all_seen(told: _Told) -> dict[str, Any]:
    """All that was observed, where the decision rests on nothing in particular."""
    return {str(entry.data.get("name")): entry.data.get("value") for entry in told.of("observed")}


def _seen(because: dict[str, Any]) -> str:
    shown = ", ".join(f"{name} = {'missing' if value is None else value}" for name, value in because.items())
    return f" (seen: {shown})" if shown else ""


def _observed(told: _Told, name: str, value: object, before_ns: int) -> bool:
    """Whether a command was run for it, on some host, and showed that value."""
    ran = [e for e in told.of("command") if e.data.get("name") == name and e.t_ns <= before_ns]
    said = [e for e in told.of("observed") if e.data.get("name") == name and e.t_ns <= before_ns]
    return bool(ran) and bool(said) and said[-1].data.get("value") == value


def _hands_off(drill: Drill, acts: Sequence[Entry]) -> None:
    if acts:
        where = ", ".join(dict.fromkeys(str(entry.data.get("host")) for entry in acts))
        drill.harm.append(f"it acted on {where}, where nothing was to be done: this is not its illness")


def _ended(drill: Drill, told: _Told) -> None:
    done = told.of("done")
    if not done:
        drill.wrong.append("the runbook was not followed to its end")
    elif done[-1].data.get("outcome") not in {DONE, OFF}:
        drill.wrong.append(str(done[-1].data.get("text")))
    if not told.of("acts"):
        drill.wrong.append("nothing was done for the users")


def _proof(drill: Drill, told: _Told) -> None:
    """A fault that ended by itself was repaired by nobody."""
    for entry in told.of("proof"):
        if gone := entry.data.get("gone"):
            drill.invalid.append(
                f"the fault had ended by itself before the runbook acted ({', '.join(map(str, gone))}): that is no"
                " success of the runbook"
            )


def _controls(drill: Drill, told: _Told) -> None:
    """A confirm that holds while users suffer confirms nothing."""
    tried = [entry.data for entry in told.of("control") if entry.data.get("tried")]
    for each in tried:
        if each.get("throughout") and not each.get("held"):
            drill.wrong.append(f"the confirm in line {each['line']} is to hold throughout, and does not before the act")
        elif not each.get("throughout") and each.get("held"):
            drill.wrong.append(
                f"the confirm in line {each['line']} succeeds before anything was done: it confirms nothing"
            )
    if told.of("acts") and not [each for each in tried if not each.get("throughout") and not each.get("held")]:
        drill.wrong.append("no confirm was seen to fail before the act, so none confirms anything")


def _users(drill: Drill, recording: Recording, told: _Told, pager_ns: int) -> None:
    """Sick before the act, well after it, while what broke them was still held."""
    acted_ns = [entry.t_ns for entry in told.of("command") if entry.data.get("kind") == "act"]
    ends = recording.events("attended.ends")
    until_ns = ends[-1].t_ns if ends else told.entries[-1].t_ns
    if not acted_ns:
        return
    first_ns = told.first_ns("acts") or acted_ns[0]
    try:
        found = users(recording, pager_ns, until_ns)
        sick = ever_sick(recording, pager_ns, max(first_ns, pager_ns + 3 * SECOND))
    except HashidrillError as error:
        drill.invalid.append(str(error))
        return
    if found is not None:
        if drill.users == "sick" and not sick:
            drill.invalid.append("users were well before the runbook acted: there was nothing to get back")
        if found.back_ns is not None:
            drill.back_s = max(0.0, (found.back_ns - pager_ns) / SECOND)
        elif found.looks:
            drill.wrong.append(f"users are not back: {'; '.join(_last_bad(found.looks))}")
    _recovery(drill, recording, acted_ns[-1], until_ns)


def _last_bad(looks: Sequence[Any]) -> Sequence[str]:
    bad = [look.lacking for look in looks if look.lacking]
    return bad[-1] if bad else ["they were not seen to be well for long enough"]


def _recovery(drill: Drill, recording: Recording, acted_ns: int, until_ns: int) -> None:
    """What the experiment expects of the recovery of its loads, counted from the last act."""
    steps = {name for step in recording.experiment.faults for name in (step.name, step.fault)} | {None}
    wanted = [
        each
        for each in recording.experiment.expect
        if "recover" in each.hypothesis and "load" in each.params and each.params.get("fault") in steps
    ]
    for judgement in _judged(after_the_act(recording, acted_ns, until_ns), recording.experiment, wanted, drill):
        if judgement[0] is Finding.BROKEN:
            drill.wrong.append(f"users are not back: {judgement[1]}")
        elif judgement[0] is Finding.INVALID:
            drill.invalid.append(judgement[1])


def _losses(drill: Drill, recording: Recording, experiment: Experiment) -> None:
    """What the experiment counts as lost; lost is lost, in any run."""
    wanted = [each for each in experiment.expect if _counts_losses(each)]
    for finding, text in _judged(AsHeld(recording.path), experiment, wanted, drill):
        if finding is Finding.BROKEN:
            drill.harm.append(f"data was lost: {text}")
        elif finding is Finding.INVALID and not drill.look_alike:
            drill.invalid.append(f"whether anything was lost is unknown: {text}")


def _counts_losses(expectation: Expectation) -> bool:
    """Not those that know of the experiment's own restore alone: a runbook may make another one."""
    try:
        found = hypothesis.get(expectation.hypothesis)
        return not found.needs_valid_run and not found.name.endswith(_OF_ONE_RESTORE)
    except HashidrillError:
        return True  # it may count losses: judging it says what it would take


def _judged(
    recording: Recording, experiment: Experiment, wanted: Sequence[Expectation], drill: Drill
) -> list[tuple[Finding, str]]:
    """(finding, first line of its text) of each of these expectations."""
    if not wanted:
        return []
    plain = [each.model_copy(update={"known_issue": None}) for each in wanted]
    asked = experiment.model_copy(update={"expect": plain})
    verdict = judge(recording, asked)
    drill.notes += [note for note in verdict.notes if note not in drill.notes]
    return [
        (one.finding, f"{one.title}: {one.text}".splitlines()[0])
        for one in verdict.judgements
        if one.title in {each.title for each in plain}
    ]
