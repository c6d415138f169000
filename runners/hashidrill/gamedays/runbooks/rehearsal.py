"""A rehearsal: its runs of a runbook, their results, and the runbook's badge."""

import datetime as dt
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hashidrill.core.errors import ExperimentError, MachineError, UsageError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve, variant_of
from hashidrill.core.experiment.model import Experiment, Mark, Step
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.judging.verdict import Verdict, merge
from hashidrill.core.protocols.events import Bus, Note
from hashidrill.core.protocols.registry import near
from hashidrill.core.recording.reader import Recording
from hashidrill.core.units import Duration
from hashidrill.core.util.files import JOURNAL_NAME, write_whole
from hashidrill.core.util.processes import python_path
from hashidrill.gamedays.runbooks.judge import NOT_REVERTED, Drill, judge_drill
from hashidrill.gamedays.runbooks.model import HEALTHY, Against, Runbook
from hashidrill.lab.provision.packages import install_command
from hashidrill.lab.runs.launch import Engine, prepare, record
from hashidrill.lab.sandbox.sandbox import sandbox

WATCH_S = 10.0
"""How long users must be well after the runbook, while the fault would still be in force."""
_MOST_WATCH_S = 40.0
_LEAD_S = 0.05
_HEALTHY_S = 60.0


@dataclass(frozen=True)
class Course:
    """One run of a rehearsal: `name` is the experiment's name, or `healthy`."""

    name: str
    against: Against
    look_alike: bool
    resolved: ResolvedExperiment
    at_s: float
    watch_s: float

    def given(self, runbook: Runbook) -> dict[str, Any]:
        """The data for the engine's process."""
        return {
            "path": str(runbook.path),
            "text": runbook.text,
            "at_s": self.at_s,
            "after_s": float(self.against.after),
            "watch_s": self.watch_s,
        }

    def info(self, runbook: Runbook) -> dict[str, Any]:
        """For run.json: the kind of run, and enough to judge the recording again."""
        only = (
            ["--experiment", "none", "--look-alike", self.name]
            if self.look_alike
            else ["--experiment", self.name, "--look-alike", "none"]
        )
        return {
            "title": f"{runbook.title}, rehearsed on {self.name}{' (a look-alike)' if self.look_alike else ''}",
            "command": shlex.join(["hashidrill", "rehearse", str(runbook.path), *only]),
            "rehearsal": {
                "runbook": runbook.front.runbook,
                "experiment": self.name,
                "look_alike": self.look_alike,
                "diagnosis": self.against.diagnosis,
                "users": self.against.users,
            },
            "followed": runbook.followed,
        }


def course_of(runbook: Runbook, name: str, against: Against, *, look_alike: bool) -> Course:
    """The run of an experiment. Raises UsageError or ExperimentError."""
    healthy = name == HEALTHY
    if healthy and not look_alike:
        raise UsageError("a healthy datacenter is a look-alike: there is nothing to repair in it")
    experiment = next(iter(runbook.front.experiments)) if healthy else name
    variant = runbook.front.experiments[experiment].variant if healthy else against.variant
    resolved = resolve(find_experiment(experiment).absolute())
    if variant is not None:
        resolved = variant_of(resolved, variant)
    elif resolved.experiment.variants:
        raise UsageError(f"{runbook.path}: {name}: has variants: name one ({', '.join(resolved.experiment.variants)})")
    if resolved.experiment.datacenter.stands:
        raise UsageError(f"{runbook.path}: {name}: is about an existing datacenter; a rehearsal starts a local one")
    if not healthy:
        return _held(runbook, name, against, resolved, look_alike)
    without_faults = _with(resolved, [{"mark": HEALTHY, "for": f"{_HEALTHY_S:g}s"}], [{}])
    return Course(name, against, look_alike=True, resolved=without_faults, at_s=0.0, watch_s=WATCH_S)


def _held(runbook: Runbook, name: str, against: Against, resolved: ResolvedExperiment, look_alike: bool) -> Course:
    steps = resolved.experiment.method
    at_s = float(against.at) if against.at is not None else max(float(step.at) for step in steps)
    where = f"{runbook.path}: {name}"
    for each in against.lets_go:
        if not any(each in _called(step) for step in steps):
            raise ExperimentError(f"{where}: lets_go: {each}: the method has no such step")
    if not any(step.at <= at_s < step.at + step.for_ and not _called(step) & {*against.lets_go} for step in steps):
        raise ExperimentError(f"{where}: at: {at_s:g}s: no step of its method is in force then; choose another time")
    method, parameters = [], []
    written = resolved.data["method"]
    for number, step in enumerate(steps):
        if step.at > at_s:
            continue
        kept = dict(written[number])
        if _called(step) & {*against.lets_go} and step.at + step.for_ > at_s:
            kept["for"] = f"{max(at_s - step.at - _LEAD_S, _LEAD_S):g}s"
        method.append(kept)
        parameters.append(resolved.parameters.steps[number] if number < len(resolved.parameters.steps) else {})
    changed = _with(resolved, method, parameters)
    return Course(name, against, look_alike, changed, at_s, _watch_s(changed.experiment))


def _called(step: Step | Mark) -> set[str]:
    return {step.mark} if isinstance(step, Mark) else {step.fault, *([step.name] if step.name else [])}


def _watch_s(experiment: Experiment) -> float:
    asked = [
        _seconds(each.params.get("within")) + _seconds(each.params.get("window"))
        for each in experiment.expect
        if "recover" in each.hypothesis
    ]
    return min(max([WATCH_S, float(experiment.steady_state.for_) + 2, *(one + 3 for one in asked)]), _MOST_WATCH_S)


def _seconds(text: object) -> float:
    try:
        value = float(Duration(str(text)))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def _with(resolved: ResolvedExperiment, method: list[dict[str, Any]], steps: list[Any]) -> ResolvedExperiment:
    """With that method and without guardrails, which would end the fault before the runbook does."""
    data: dict[str, Any] = {**resolved.data, "method": method, "guardrails": []}
    parameters = resolved.parameters.model_copy(update={"steps": steps})
    changed = ResolvedExperiment.from_data(replace(resolved, data=data, parameters=parameters).to_data())
    return replace(resolved, experiment=changed.experiment, data=data, parameters=parameters)


RESULT_NAME = "rehearsal.json"
BADGE = "> Rehearsed "
NEVER = "> Never rehearsed."
"""The badge line before the first rehearsal."""
ENOUGH_LOOK_ALIKES = 2
_PRODUCTS = ("consul", "nomad", "vault")


@dataclass(frozen=True)
class Rehearsal:
    """All runs of one rehearsal."""

    runbook: Runbook
    drills: Sequence[Drill]
    folder: Path

    @property
    def verdict(self) -> Verdict:
        return merge(drill.verdict for drill in self.drills)

    @property
    def exit_code(self) -> int:
        if any(not drill.reverted for drill in self.drills):
            return NOT_REVERTED
        return self.verdict.exit_code

    @property
    def notes(self) -> list[str]:
        """Notes beyond the verdict."""
        if any(drill.look_alike for drill in self.drills):
            return []
        return ["no look-alike was rehearsed, so nothing shows that this runbook leaves other faults alone"]

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "runbook": str(self.runbook.path),
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "drills": [{**asdict(drill), "verdict": drill.verdict} for drill in self.drills],
            "notes": self.notes,
            "folder": str(self.folder),
        }

    def lines(self) -> Iterator[str]:
        """For a person."""
        for drill in self.drills:
            yield f"{drill.verdict:<8}{drill.experiment}{' (look-alike)' if drill.look_alike else ''}: {_course(drill)}"
            yield from (f"        harm: {text}" for text in drill.harm)
            yield from (f"        {text}" for text in [*drill.invalid, *drill.wrong])
            if not drill.reverted:
                yield f"        a fault could not be reverted: `hashidrill heal {drill.recording}`"
            if drill.verdict is not Verdict.PASS:
                yield f"        recording: {drill.recording}"
        yield from self.notes


def _course(drill: Drill) -> str:
    parts = [drill.reached or "no diagnosis"]
    if drill.diagnosed_s is not None:
        parts[0] += f" after {drill.diagnosed_s:.0f}s"
    if drill.acted_s is not None:
        parts.append(f"acted after {drill.acted_s:.0f}s")
    elif drill.look_alike:
        parts.append("did nothing")
    if drill.back_s is not None:
        parts.append(f"users back after {drill.back_s:.0f}s")
    return ", ".join(parts)


def badge_of(rehearsal: Rehearsal, today: dt.date) -> str:
    """The badge line. Raises UsageError for a rehearsal that does not earn a badge."""
    looks = list(dict.fromkeys(drill.experiment for drill in rehearsal.drills if drill.look_alike))
    real = list(dict.fromkeys(drill.experiment for drill in rehearsal.drills if not drill.look_alike))
    if rehearsal.verdict is not Verdict.PASS or not real or len(looks) < ENOUGH_LOOK_ALIKES:
        raise UsageError(
            f"{rehearsal.runbook.path}: no badge: it needs a PASS on an experiment and {ENOUGH_LOOK_ALIKES} look-alikes"
        )
    found = {name: version for drill in rehearsal.drills for name, version in drill.versions.items()}
    with_ = ", ".join(f"{name.capitalize()} {found[name]}" for name in _PRODUCTS if name in found)
    return f"{BADGE}{today.isoformat()} with {with_}: {', '.join(real)}; look-alikes {', '.join(looks)}."


def write_badge(path: Path, line: str) -> None:
    """Replaces the old badge, or adds it below the title. Raises UsageError."""
    text = path.read_text(encoding="utf-8")
    old = re.compile(rf"^(?:{re.escape(BADGE)}.*|{re.escape(NEVER)})$", re.MULTILINE)
    if old.search(text):
        new = old.sub(lambda _: line, text, count=1)
    else:
        new = re.sub(r"^# .*$", lambda found: f"{found[0]}\n\n{line}", text, count=1, flags=re.MULTILINE)
    try:
        mode = path.stat().st_mode & 0o777
        write_whole(path, new)
        path.chmod(mode)
    except OSError as error:
        raise UsageError(f"{path}: the badge cannot be written: {error.strerror}") from None


REHEARSALS_DIR = Path(".hashidrill/rehearsals")
NONE = "none"
NOT_THIS = "not-this"
TOOLS = {"bash": "bash", "jq": "jq", "curl": "curl", "nft": "nftables"}
"""Programs that runbooks use and machines may lack, and their packages."""
Play = Callable[[Course], Path]
Judge = Callable[[Path], Drill]


def courses_of(runbook: Runbook, experiments: Sequence[str], look_alikes: Sequence[str]) -> list[Course]:
    """A rehearsal's runs: all of the front matter, or the requested ones. Raises UsageError, ExperimentError."""
    front = runbook.front
    alone = NONE in experiments
    for name in [] if alone else experiments:
        if name not in front.experiments:
            raise UsageError(
                f"{runbook.path}: it does not say which diagnosis to reach in {name}: {near(name, front.experiments)}"
            )
    others = [] if NONE in look_alikes else look_alikes or list(front.look_alikes)
    wanted = [
        *((name, front.experiments[name], False) for name in ([] if alone else experiments or front.experiments)),
        *((name, front.look_alikes.get(name) or _any_other(runbook, name), True) for name in others),
    ]
    if not wanted:
        raise UsageError(f"{runbook.path}: neither an experiment nor a look-alike: nothing to rehearse")
    return [course_of(runbook, name, against, look_alike=look_alike) for name, against, look_alike in wanted]


def earlier_drills(runbook: Runbook, folders: Sequence[Path]) -> list[Drill]:
    """The valid runs of earlier rehearsals, judged again from their recordings.

    Raises UsageError for a recording of another version of the runbook, and RecordingError.
    """
    drills: list[Drill] = []
    for folder in folders:
        recordings = sorted(path.parent for path in folder.glob(f"*/{JOURNAL_NAME}"))
        if not recordings:
            raise UsageError(f"{folder}: no rehearsal: it has no recordings")
        for path in recordings:
            if Recording(path).run.get("followed") != runbook.followed:
                raise UsageError(
                    f"{path}: {runbook.path} has been changed since this rehearsal, or the rehearsal followed "
                    f"another runbook: rehearse it again"
                )
            drill = judge_drill(path)
            drills += [drill] if drill.verdict is not Verdict.INVALID else []
    return drills


def left_of(courses: Sequence[Course], drills: Sequence[Drill], asked: Sequence[str]) -> list[Course]:
    """The remaining runs: runs requested by name, and runs without an earlier result."""
    known = {(drill.experiment, drill.look_alike) for drill in drills}
    return [course for course in courses if course.name in asked or (course.name, course.look_alike) not in known]


def _any_other(runbook: Runbook, name: str) -> Against:
    if NOT_THIS not in {line.diagnosis for block in runbook.blocks for line in block.lines}:
        raise UsageError(
            f"{runbook.path}: it does not say which diagnosis to reach in {name}, and never says {NOT_THIS}:"
            f" {near(name, [*runbook.front.look_alikes, HEALTHY])}"
        )
    return Against(diagnosis=NOT_THIS)


def check_tools(runbook: Runbook) -> None:
    """Raises MachineError for programs that this machine lacks."""
    used = "\n".join(block.text for block in runbook.blocks)
    needed = {"bash"} | {name for name in TOOLS if re.search(rf"\b{name}\b", used)}
    if missing := sorted(name for name in needed if shutil.which(name) is None):
        command = install_command(*(TOOLS[name] for name in missing))
        raise MachineError(f"{runbook.path} needs {', '.join(missing)}; get them with: {command}")


def player(runbook: Runbook, folder: Path, events: Bus) -> Play:
    """Runs a course like any experiment, with a follower of the runbook."""

    def play(course: Course) -> Path:
        found = prepare(course.resolved, lambda text: events.publish(Note(text=text)))
        engine = Engine(
            "hashidrill.gamedays.runbooks.attendant",
            sandbox,
            {"PYTHONPATH": python_path()},
            given={"rehearsal": course.given(runbook)},
            info=course.info(runbook),
        )
        return record(course.resolved, engine, runs_dir=folder, events=events, found=found)

    return play


def rehearse(
    runbook: Runbook,
    courses: Sequence[Course],
    folder: Path,
    *,
    play: Play,
    times: int = 1,
    judge: Judge = judge_drill,
    earlier: Sequence[Drill] = (),
) -> Rehearsal:
    """Plays each course `times` times and judges each run at its end; the results include the `earlier` ones.

    KeyboardInterrupt ends the rehearsal after the current run has reverted.
    """
    drills = list(earlier)
    for course in [course for course in courses for _ in range(times)]:
        drills.append(judge(play(course)))
        if not drills[-1].reverted:
            break
    found = Rehearsal(runbook, drills, folder)
    write_whole(folder / RESULT_NAME, json.dumps(found.data(), indent=2, default=str) + "\n")
    return found
