"""Which step of a game day comes next: a function of the plan and of the results so far, and of nothing else.

So a day that died goes on where it was, whoever resumes it and wherever it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from hashidrill.core.judging.verdict import Verdict
from hashidrill.gamedays.gameday.journal import Result
from hashidrill.gamedays.gameday.plan import Plan, PlannedRun

Kind = Literal["check", "message", "predict", "go", "run", "note", "pause", "action", "end"]
Done = Mapping[str, Result]
MOST_ACTIONS = 100
LATE = "late"
"""A run whose turn came when the day had gone on for too long: it does not begin, and the day ends."""


@dataclass(frozen=True)
class Step:
    """One step. `id` names it in the journal."""

    id: str
    kind: Kind
    run: str = ""
    number: int = 0
    """Of a check or a message: its index; of a run: which attempt, from 1; of an action item: which, from 1."""
    person: str = ""
    question: str = ""


def next_step(plan: Plan, done: Done) -> Step | None:
    """None after the end."""
    return next((step for step in steps(plan, done) if step.id not in done), None)


def steps(plan: Plan, done: Done) -> Iterator[Step]:
    """The steps in order. A step that others depend on must be done before the next one is asked for."""
    for number in range(len(plan.day.before)):
        yield Step(f"check:{number}", "check", number=number)
    if no_go(plan, done):
        yield from _messages(plan, "no-go")
        yield Step("end", "end")
        return
    yield from _messages(plan, "start")
    for run in plan.runs:
        if ends_early(plan, done, run):
            break
        yield from _of_run(plan, done, run)
        if _is_late(done, run):
            break
    else:
        yield from _close(plan, done)
        return
    if abort_reason(plan, done):
        yield from _messages(plan, "abort")
    yield from _close(plan, done)


def _of_run(plan: Plan, done: Done, run: PlannedRun) -> Iterator[Step]:
    for person, about in plan.day.people.items():
        if about.predicts:
            for question in run.questions:
                yield Step(f"predict:{run.name}:{person}:{question}", "predict", run.name, 0, person, question)
    yield from _messages(plan, f"before {run.name}")
    yield Step(f"go:{run.name}", "go", run.name)
    if done[f"go:{run.name}"]["do"] != "go":
        return
    attempt = 1
    while True:
        yield Step(f"run:{run.name}:{attempt}", "run", run.name, attempt)
        result = done[f"run:{run.name}:{attempt}"]
        if result["verdict"] != Verdict.INVALID or result["abort"] or attempt > plan.day.repeat_invalid:
            break
        attempt += 1
    yield from _messages(plan, f"after {run.name}")
    yield Step(f"note:{run.name}", "note", run.name)
    if run is not plan.runs[-1] and run.spec.pause and not result["abort"]:
        yield Step(f"pause:{run.name}", "pause", run.name)


def _close(plan: Plan, done: Done) -> Iterator[Step]:
    for number in range(1, MOST_ACTIONS + 1):
        yield Step(f"action:{number}", "action", number=number)
        if not done[f"action:{number}"]["what"]:
            break
    yield from _messages(plan, "end")
    yield Step("end", "end")


def _messages(plan: Plan, when: str) -> Iterator[Step]:
    for number, message in enumerate(plan.day.messages):
        if message.when == when:
            yield Step(f"message:{number}", "message", number=number)


def no_go(plan: Plan, done: Done) -> bool:
    """Whether a check said no. Every check has been done."""
    return any(not done[f"check:{number}"]["ok"] for number in range(len(plan.day.before)))


def ends_early(plan: Plan, done: Done, run: PlannedRun) -> bool:
    """Whether nothing more begins, from this run on."""
    return bool(abort_reason(plan, done)) or stopped_by_lead(plan, done, before=run)


def stopped_by_lead(plan: Plan, done: Done, *, before: PlannedRun | None = None) -> bool:
    """Whether the lead ended the day, before that run or at all."""
    for run in plan.runs:
        if run is before:
            return False
        if done.get(f"go:{run.name}", {}).get("do") == "stop":
            return True
    return False


def attempts(done: Done, run: PlannedRun) -> list[Result]:
    """The results of a run, in order; only the last one counts."""
    found, number = [], 1
    while (result := done.get(f"run:{run.name}:{number}")) is not None:
        found.append(result)
        number += 1
    return found


def abort_reason(plan: Plan, done: Done) -> str:
    """Why the day ends early; empty where it does not. It was written down with the step that decided it."""
    for run in plan.runs:
        if _is_late(done, run):
            return _gone_on(plan)
        for result in attempts(done, run):
            if result["abort"]:
                return str(result["abort"])
    return ""


def decide_abort(plan: Plan, done: Done, step: Step, result: Result, worked_s: float) -> str:
    """Whether this result of a run ends the day, and why. `worked_s` is how long the day went on so far."""
    abort = plan.day.abort
    if result["outcome"] == "revert":
        return f"{step.run}: a fault could not be reverted; clean up with `hashidrill heal` first"
    if result["passed"]:
        return f"{step.run}: {result['passed'][0]}"
    final = result["verdict"] != Verdict.INVALID or step.number > plan.day.repeat_invalid
    last = [each["verdict"] for run in plan.runs if run.name != step.run for each in attempts(done, run)[-1:]]
    last += [result["verdict"]] if final else []
    for limit, verdict, word in ((abort.failed, Verdict.FAIL, "FAIL"), (abort.invalid, Verdict.INVALID, "INVALID")):
        if limit is not None and last.count(verdict) >= limit:
            return f"{last.count(verdict)} of the runs {word}, and the day ends after {limit}"
    return _gone_on(plan) if too_long(plan, worked_s) else ""


def too_long(plan: Plan, worked_s: float) -> bool:
    """Whether nothing more begins after `worked_s` of work."""
    limit = plan.day.abort.longer_than
    return limit is not None and worked_s > limit


def _gone_on(plan: Plan) -> str:
    return f"the day has gone on for longer than {plan.day.abort.longer_than}"


def _is_late(done: Done, run: PlannedRun) -> bool:
    return bool(done.get(f"go:{run.name}", {}).get("do") == LATE)
