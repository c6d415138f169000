"""Carries out a rehearsal: each of its runs through the engine, and the judging of what they left."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from hashidrill.core.errors import MachineError, UsageError
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.protocols.events import Bus, Note
from hashidrill.core.protocols.registry import near
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import JOURNAL_NAME, write_whole
from hashidrill.core.util.processes import python_path
from hashidrill.gamedays.runbooks.course import Course, course_of
from hashidrill.gamedays.runbooks.judged import Drill, judge_drill
from hashidrill.gamedays.runbooks.model import HEALTHY, Against, Runbook
from hashidrill.gamedays.runbooks.result import RESULT_NAME, Rehearsal
from hashidrill.lab.provision.packages import install_command
from hashidrill.lab.runs.launch import Engine, prepare, record
from hashidrill.lab.sandbox.sandbox import sandbox

REHEARSALS_DIR = Path(".hashidrill/rehearsals")
NONE = "none"
NOT_THIS = "not-this"
TOOLS = {"bash": "bash", "jq": "jq", "curl": "curl", "nft": "nftables"}
"""Programs that runbooks use and machines may lack, and their packages."""
Play = Callable[[Course], Path]
Judge = Callable[[Path], Drill]


def courses_of(runbook: Runbook, experiments: Sequence[str], look_alikes: Sequence[str]) -> list[Course]:
    """What is rehearsed: all that the front matter names, or what was asked for. Raises UsageError, ExperimentError."""
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
    """The runs of earlier rehearsals that count, judged again from their recordings: not those that are INVALID.

    Raises UsageError for what is no rehearsal of this runbook as it is now, RecordingError.
    """
    drills: list[Drill] = []
    for folder in folders:
        recordings = sorted(path.parent for path in folder.glob(f"*/{JOURNAL_NAME}"))
        if not recordings:
            raise UsageError(f"{folder}: no rehearsal: it has no recordings")
        for path in recordings:
            if Recording(path).run.get("followed") != runbook.followed:
                raise UsageError(
                    f"{path}: {runbook.path} has been changed since, or it was another one: rehearse it again"
                )
            drill = judge_drill(path)
            drills += [drill] if drill.verdict is not Verdict.INVALID else []
    return drills


def left_of(courses: Sequence[Course], drills: Sequence[Drill], asked: Sequence[str]) -> list[Course]:
    """What is still to be run: what was asked for by name, and what no earlier run was of."""
    known = {(drill.experiment, drill.look_alike) for drill in drills}
    return [course for course in courses if course.name in asked or (course.name, course.look_alike) not in known]


def _any_other(runbook: Runbook, name: str) -> Against:
    """What to find in a look-alike that the runbook does not name."""
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
    """How a course is run: as any experiment, with somebody who follows the runbook."""

    def play(course: Course) -> Path:
        found = prepare(course.resolved, lambda text: events.publish(Note(text=text)))
        engine = Engine(
            "hashidrill.gamedays.runbooks.attending",
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
    """All courses, `times` over, each judged when it is done; and those that were run `earlier`.

    KeyboardInterrupt ends it after the run has reverted.
    """
    drills = list(earlier)
    for course in [course for course in courses for _ in range(times)]:
        drills.append(judge(play(course)))
        if not drills[-1].reverted:
            break
    found = Rehearsal(runbook, drills, folder)
    write_whole(folder / RESULT_NAME, json.dumps(found.data(), indent=2, default=str) + "\n")
    return found
