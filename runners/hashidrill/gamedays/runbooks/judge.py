"""Judges a run of a rehearsal from its recording alone, whatever the runbook claims."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hashidrill.core import hypothesis
from hashidrill.core.errors import HashidrillError, HypothesisInvalidError, RecordingError
from hashidrill.core.experiment.conditions import LOAD_STATISTICS, Condition
from hashidrill.core.experiment.model import Expectation, Experiment
from hashidrill.core.judging import measure
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.judging.validity import Validity
from hashidrill.core.judging.verdict import NOT_JUDGED, Finding, Judgement, RunVerdict, Verdict
from hashidrill.core.recording.journal import Entry
from hashidrill.core.recording.reader import Operations, Recording
from hashidrill.gamedays.runbooks.follower import DONE, OFF
from hashidrill.reports.followed import MOST_STEPS, followed_steps

WINDOW_S = 2.0
STEP_S = 0.5
FEWEST = 10
"""The fewest operations in a window: a slow load gets longer windows."""
WELL_FOR_S = 5.0
"""How long users must have been well, without a break, when the judged time ends."""
_STOPPED_BELOW = 0.5
"""A share of the steady state's rate. Below it, the load counts as stopped, and its users are not well."""


@dataclass(frozen=True)
class Look:
    """One window of the loads, and what failed in it."""

    start_ns: int
    end_ns: int
    lacking: tuple[str, ...]


@dataclass(frozen=True)
class Users:
    """The users' experience over a span, window by window."""

    looks: Sequence[Look]

    @property
    def back_ns(self) -> int | None:
        """From when users are well until the end; None if never, or if the remaining time is too short."""
        if not self.looks:
            return None
        last_bad = max((number for number, look in enumerate(self.looks) if look.lacking), default=-1)
        if last_bad + 1 >= len(self.looks):
            return None
        since_ns = self.looks[last_bad + 1].start_ns
        return since_ns if self.looks[-1].end_ns - since_ns >= WELL_FOR_S * SECOND else None


def conditions_of(experiment: Experiment) -> list[Condition]:
    """The conditions of the steady state about users' results."""
    loads = experiment.traffic
    return [one for one in experiment.steady_state.require if one.source in loads and one.what in LOAD_STATISTICS]


def users(recording: Recording, start_ns: int, end_ns: int) -> Users | None:
    """The users' experience; None if the experiment has no conditions on loads. Raises HypothesisInvalidError."""
    conditions = conditions_of(recording.experiment)
    if not conditions:
        return None
    loads = {load: _load(recording, load) for load in dict.fromkeys(one.source for one in conditions)}
    widest_ns = max(width_ns for _, _, width_ns in loads.values())
    looks = []
    for begin_ns in range(start_ns, max(start_ns, end_ns - widest_ns) + 1, round(STEP_S * SECOND)):
        lacking = []
        for one in conditions:
            ops, usual, _ = loads[one.source]
            lacking.append(_lacks(one, ops.between(begin_ns, begin_ns + widest_ns), widest_ns, usual))
        looks.append(Look(begin_ns, begin_ns + widest_ns, tuple(dict.fromkeys(filter(None, lacking)))))
    return Users(looks)


def ever_sick(recording: Recording, start_ns: int, end_ns: int) -> bool:
    """Whether a condition about users failed in that span, or in the last window before its end if it is shorter.

    Each load has its own windows: a slow load's windows are longer than the time in which a person acts. Raises
    HypothesisInvalidError.
    """
    for one in conditions_of(recording.experiment):
        ops, usual, width_ns = _load(recording, one.source)
        last_ns = end_ns - width_ns
        for begin_ns in range(min(start_ns, last_ns), last_ns + 1, round(STEP_S * SECOND)):
            if _lacks(one, ops.between(begin_ns, begin_ns + width_ns), width_ns, usual):
                return True
    return False


def _load(recording: Recording, load: str) -> tuple[Operations, float, int]:
    """The load's operations, their usual rate per second (0 if steered), and the width of its windows in ns.

    Raises HypothesisInvalidError.
    """
    ops = recording.operations(load)
    usual = _usual_rate(recording, ops)
    width_s = max(WINDOW_S, FEWEST / usual if usual else WINDOW_S)
    steered = recording.experiment.traffic[load].profile is not None
    return ops, 0.0 if steered else usual, round(width_s * SECOND)


def _usual_rate(recording: Recording, ops: Operations) -> float:
    """Operations per second that were due in the steady state. Raises HypothesisInvalidError."""
    if "steady" not in recording.phases:
        raise HypothesisInvalidError("the run never reached its steady state: there is no usual value to compare with")
    start_ns, end_ns = recording.phases["steady"]
    length_s = (end_ns - start_ns) / SECOND
    return len(ops.between(start_ns, end_ns)) / length_s if length_s > 0 else 0.0


def _lacks(condition: Condition, due: Operations, width_ns: int, usual: float) -> str:
    """What failed in a window, for a person; "" if the condition holds. `usual` is 0 for a steered rate."""
    width_s = width_ns / SECOND
    if len(due) < usual * width_s * _STOPPED_BELOW:
        return f"{condition.source} stopped: {len(due) / width_s:.1f}/s instead of {usual:.1f}/s"
    if not len(due):
        return ""
    value = _value(condition, due, width_s)
    return "" if condition.holds(value, unknown=False) else f"{condition} (measured {value:.3g})"


def _value(condition: Condition, due: Operations, width_s: float) -> float:
    served_s = measure.served_s(due)
    match condition.what:
        case "errors":
            return due.error_share()
        case "rate":
            return float(due.ok.sum()) / width_s
        case "latency.mean":
            return float(served_s.mean())
        case "latency.max":
            return float(np.max(served_s))
        case what:
            return measure.percentile(served_s, float(what.removeprefix("latency.p")))


_ENDS = ("fault.reverted", "fault.gone", "fault.ended", "fault.still", "fault.faded", "fault.undone")


class AsHeld(Recording):
    """The recording without the looks just before the act: a faded fault gets its own verdict, and a fault whose
    observer never answered invalidates nothing.
    """

    @cached_property
    def journal(self) -> list[Entry]:
        return [entry for entry in super().journal if entry.event != "fault.faded"]


class AfterTheAct(AsHeld):
    """As if the method ended with the last act, at `acted_ns`; `until_ns` is when the runbook's follower left."""

    def __init__(self, recording: Recording, acted_ns: int, until_ns: int) -> None:
        """Raises RecordingError, also for a recording whose times make no sense."""
        if until_ns < acted_ns:
            raise RecordingError(f"{recording.path}: the rehearsal ended before the runbook's act was done")
        super().__init__(recording.path)
        self._acted_ns, self._until_ns = acted_ns, until_ns

    @cached_property
    def journal(self) -> list[Entry]:
        """The journal with the end of each lasting fault, and of the method, moved to the act."""
        entries = super().journal
        begun = {e.data["fault_id"] for e in entries if e.event == "fault.intent" and e.t_ns < self._acted_ns}
        moved = [self._moved(entry, begun) for entry in entries]
        return sorted((entry for entry in moved if entry is not None), key=lambda entry: entry.t_ns)

    def _moved(self, entry: Entry, begun: set[str]) -> Entry | None:
        late = entry.t_ns > self._acted_ns
        if entry.event in _ENDS and late and entry.data["fault_id"] in begun:
            kept = entry.event in {"fault.reverted", "fault.gone", "fault.ended"}
            return replace(entry, t_ns=self._acted_ns) if kept else None
        if entry.event in {"mark.end", "clock.goes"} and late:
            return replace(entry, t_ns=self._acted_ns)
        if entry.event == "phase" and entry.data["phase"] == "recovery":
            return replace(entry, t_ns=self._acted_ns)
        if entry.event == "phase" and entry.data["phase"] == "quiesce":
            return replace(entry, t_ns=self._until_ns)
        return entry


SERVER = "server"


def harm_of(recording: Recording, entries: Sequence[Entry]) -> list[str]:
    """Each harm as a sentence. `entries`: the actions, in order (`attended.did`).

    The follower may restart a server if a fault is on the server's host, or if the product's servers had no quorum
    anyway: such a restart cannot interrupt any service.
    """
    servers = _servers(recording)
    ailing = {window.host for window in recording.faults if window.proven}
    now: dict[str, str] = {}
    """The process of each HOST/AGENT, "" without a running one."""
    acting = False
    lost: dict[str, str] = {}
    touched: dict[str, str] = {}
    without_quorum = set[str]()

    def up(names: Sequence[str]) -> int:
        return sum(bool(now.get(name)) for name in names)

    for entry in entries:
        acting = acting or entry.data.get("what") == "acts"
        if entry.data.get("what") != "agents":
            continue
        changed: Mapping[str, str] = entry.data.get("agents") or {}
        before, now = now, {**now, **changed}
        if not acting:
            without_quorum = {p for p, names in servers.items() if up(names) <= len(names) // 2}
            continue
        for product, names in servers.items():
            if product in without_quorum:
                continue
            if (ran := up(names)) <= len(names) // 2:
                lost.setdefault(product, f"the quorum of {product} was lost by hand: {ran} of {len(names)} servers ran")
            for name in names:
                ours = bool(before.get(name)) or name in touched
                if name in changed and ours and name.partition("/")[0] not in ailing:
                    touched[name] = "restarted" if changed[name] else "stopped"
    return [*lost.values(), *(f"a healthy server was {what}: {name}" for name, what in touched.items())]


def _servers(recording: Recording) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for host in recording.run.get("hosts") or []:
        agents: Mapping[str, str] = host.get("agents") or {"consul": host.get("role", "")}
        for agent, role in agents.items():
            if role == SERVER:
                found.setdefault(agent, []).append(f"{host['name']}/{agent}")
    return found


NOT_REVERTED = 4
_OF_ONE_RESTORE = "_but_rolled_back"


@dataclass
class Drill:
    """One judged run of a rehearsal. Times are seconds since the pager went; None for events that never came."""

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
    steps: list[dict[str, Any]] = field(default_factory=list)
    """How the runbook was followed: FollowedStep as data."""

    @property
    def verdict(self) -> Verdict:
        """Harm counts in any run; an INVALID run proves nothing else."""
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
    entries: Sequence[Entry]

    def of(self, what: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.data.get("what") == what]

    def first_ns(self, what: str) -> int | None:
        found = self.of(what)
        return found[0].t_ns if found else None


def judge_drill(path: Path) -> Drill:
    """Judges a recording. Raises RecordingError if it is not the recording of a rehearsal."""
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
    drill.steps = [step.to_data() for step in followed_steps(recording)[:MOST_STEPS]]
    told = _Told(recording.events("attended.did"))
    pager_ns = told.first_ns("pager")
    if pager_ns is None:
        drill.invalid.append("the pager never went: the runbook was not followed")
        return drill
    drill.commands = len(told.of("command"))
    _check_diagnosis(drill, told, pager_ns)
    drill.mistaken = list(drill.wrong)
    drill.harm += harm_of(recording, told.entries)
    acts = told.of("acts")
    if acts:
        drill.acted_s = (acts[0].t_ns - pager_ns) / SECOND
    if drill.look_alike and acts:
        where = ", ".join(dict.fromkeys(str(entry.data.get("host")) for entry in acts))
        drill.harm.append(
            f"it acted on {where}, where it should have changed nothing: this fault is not the one "
            f"that the runbook treats"
        )
    if not drill.look_alike:
        _ended(drill, told)
        _proof(drill, told)
        _controls(drill, told)
        if acts and told.of("command"):
            _users(drill, recording, told, pager_ns)
    _losses(drill, recording, experiment)
    return drill


def _check_diagnosis(drill: Drill, told: _Told, pager_ns: int) -> None:
    decided = told.of("decided")
    if not decided:
        drill.wrong.append(f"it came to no diagnosis; expected {drill.expected}")
        return
    last = decided[-1]
    drill.reached, drill.because = str(last.data.get("diagnosis")), dict(last.data.get("because") or {})
    drill.diagnosed_s = (last.t_ns - pager_ns) / SECOND
    if drill.reached != drill.expected:
        # all observations, if the decision uses no particular one
        observed = {str(entry.data.get("name")): entry.data.get("value") for entry in told.of("observed")}
        drill.wrong.append(
            f"wrong diagnosis: {drill.reached}, expected {drill.expected}{_seen(drill.because or observed)}"
        )
    for entry in decided:
        for name, value in (entry.data.get("because") or {}).items():
            if value is not None and not _observed(told, name, value, entry.t_ns):
                drill.wrong.append(f"{entry.data.get('diagnosis')} rests on {name}, which was not observed in this run")


def _seen(because: Mapping[str, Any], what: str = "seen: ") -> str:
    shown = ", ".join(
        f"{name} = {'missing' if value is None else f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in because.items()
    )
    return f" ({what}{shown})" if shown else ""


def _observed(told: _Told, name: str, value: object, before_ns: int) -> bool:
    ran = [e for e in told.of("command") if e.data.get("name") == name and e.t_ns <= before_ns]
    said = [e for e in told.of("observed") if e.data.get("name") == name and e.t_ns <= before_ns]
    return bool(ran) and bool(said) and said[-1].data.get("value") == value


def _ended(drill: Drill, told: _Told) -> None:
    done = told.of("done")
    if not done:
        drill.wrong.append("the runbook was not followed to its end")
    elif done[-1].data.get("outcome") not in {DONE, OFF}:
        drill.wrong.append(str(done[-1].data.get("text")))
    if not told.of("acts"):
        drill.wrong.append("nothing was done for the users")


def _proof(drill: Drill, told: _Told) -> None:
    for entry in told.of("proof"):
        if gone := entry.data.get("gone"):
            drill.invalid.append(
                f"the fault had ended by itself before the runbook acted ({', '.join(map(str, gone))}): the runbook "
                f"cannot take credit for that"
            )


def _controls(drill: Drill, told: _Told) -> None:
    tried = [entry.data for entry in told.of("control") if entry.data.get("tried")]
    for each in tried:
        if each.get("throughout") and not each.get("held"):
            drill.wrong.append(f"the confirm in line {each['line']} must hold throughout, but fails before the act")
        elif not each.get("throughout") and each.get("held"):
            drill.wrong.append(
                f"the confirm in line {each['line']} succeeds before anything was done: it confirms nothing"
            )
    if told.of("acts") and not [each for each in tried if not each.get("throughout") and not each.get("held")]:
        drill.wrong.append("no confirm failed before the act, so the confirms prove nothing")


def _users(drill: Drill, recording: Recording, told: _Told, pager_ns: int) -> None:
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
            bad = [look.lacking for look in found.looks if look.lacking]
            last = bad[-1] if bad else ["they were not well for long enough"]
            drill.wrong.append(f"users are not back: {'; '.join(last)}")
    _recovery(drill, recording, acted_ns[-1], until_ns)


def _recovery(drill: Drill, recording: Recording, acted_ns: int, until_ns: int) -> None:
    steps = {name for step in recording.experiment.faults for name in (step.name, step.fault)} | {None}
    wanted = [
        each
        for each in recording.experiment.expect
        if "recover" in each.hypothesis and "load" in each.params and each.params.get("fault") in steps
    ]
    for judgement in _judged(AfterTheAct(recording, acted_ns, until_ns), recording.experiment, wanted, drill):
        if judgement[0] is Finding.BROKEN:
            drill.wrong.append(f"users are not back: {judgement[1]}")
        elif judgement[0] is Finding.INVALID:
            drill.invalid.append(judgement[1])


def _losses(drill: Drill, recording: Recording, experiment: Experiment) -> None:
    """Adds the data losses that the experiment's expectations found; they count in any run."""
    wanted = [each for each in experiment.expect if _counts_losses(each)]
    for finding, text in _judged(AsHeld(recording.path), experiment, wanted, drill):
        if finding is Finding.BROKEN:
            drill.harm.append(f"data was lost: {text}")
        elif finding is Finding.INVALID and not drill.look_alike:
            drill.invalid.append(f"whether anything was lost is unknown: {text}")


def _counts_losses(expectation: Expectation) -> bool:
    """Excludes expectations that only know the experiment's own restore: a runbook may do a different restore."""
    try:
        found = hypothesis.get(expectation.hypothesis)
        return not found.needs_valid_run and not found.name.endswith(_OF_ONE_RESTORE)
    except HashidrillError:
        return True  # it may count lost writes: the verdict names the missing evidence


def _judged(
    recording: Recording, experiment: Experiment, wanted: Sequence[Expectation], drill: Drill
) -> list[tuple[Finding, str]]:
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


DIAGNOSIS, HELPS, HARMLESS = "right_diagnosis", "users_are_back", "no_harm"
"""The `hypothesis` of each judgement."""
_UNHARMED = "no quorum was lost, no healthy server was restarted, no data that the experiment counts was lost"


def is_rehearsal(recording: Recording) -> bool:
    """Whether a runbook was followed in this run, so that the experiment's expectations do not apply."""
    return isinstance(recording.run.get("rehearsal"), Mapping)


def rehearsal_verdict(recording: Recording) -> RunVerdict:
    """Judges the recording of a rehearsal. Raises RecordingError if a newer hashidrill wrote it."""
    recording.check_format()
    return as_verdict(judge_drill(recording.path))


def as_verdict(drill: Drill) -> RunVerdict:
    """The verdict with the runbook's rules: harm is BROKEN in any run; the rest needs a run that proves something."""
    judgements = [_diagnosis(drill), _harm(drill)]
    if not drill.look_alike:
        judgements.insert(1, _helps(drill))
    return RunVerdict(list(drill.invalid), judgements, notes=list(drill.notes))


def _diagnosis(drill: Drill) -> Judgement:
    finding, text = _found(drill, drill.mistaken, f"{drill.reached}{_seen(drill.because, '')}")
    return Judgement(
        f"{DIAGNOSIS}({drill.expected})", DIAGNOSIS, finding, text, _seconds({"diagnosed_s": drill.diagnosed_s})
    )


def _helps(drill: Drill) -> Judgement:
    wrong = [text for text in drill.wrong if text not in drill.mistaken]
    back = "" if drill.back_s is None else f"users are back {drill.back_s:.1f}s after the pager, "
    finding, text = _found(drill, wrong, f"{back}the fault still held, and every step worked")
    return Judgement(
        HELPS, HELPS, finding, text, _seconds({"acted_s": drill.acted_s, "back_s": drill.back_s}, never="never")
    )


def _harm(drill: Drill) -> Judgement:
    if drill.harm:
        return Judgement(HARMLESS, HARMLESS, Finding.BROKEN, "\n".join(drill.harm))
    wrong = [text for text in drill.wrong if text not in drill.mistaken] if drill.look_alike else []
    finding, text = _found(drill, wrong, f"it did nothing; {_UNHARMED}" if drill.look_alike else _UNHARMED)
    return Judgement(HARMLESS, HARMLESS, finding, text)


def _found(drill: Drill, wrong: list[str], held: str) -> tuple[Finding, str]:
    if drill.invalid:
        return Finding.INVALID, f"{NOT_JUDGED}{drill.invalid[0]}"
    return (Finding.BROKEN, "\n".join(wrong)) if wrong else (Finding.HELD, held)


def _seconds(figures: Mapping[str, float | None], *, never: str = "") -> dict[str, float | str]:
    """The measured times; a time without a measurement is `never`, or is left out if `never` is empty."""
    told = {name: value if value is not None and math.isfinite(value) else never for name, value in figures.items()}
    return {name: value for name, value in told.items() if value != ""}
