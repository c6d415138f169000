"""What came of a game day: everything that its reports say, as plain data, from the plan and the journal alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hashidrill.core.judging.verdict import Verdict, merge
from hashidrill.gamedays.gameday.answers import Measured, compared, in_words
from hashidrill.gamedays.gameday.conduct import due_date
from hashidrill.gamedays.gameday.journal import DayJournal, Result
from hashidrill.gamedays.gameday.plan import Plan, PlannedRun
from hashidrill.gamedays.gameday.steps import Done, abort_reason, attempts, no_go, stopped_by_lead

FORMAT = 1
_NOT_REVERTED = 4
DONE, NO_GO, ABORTED, STOPPED, UNFINISHED = "done", "no-go", "aborted", "stopped", "unfinished"
_WHY = {
    DONE: "Every experiment of the day had its turn.",
    NO_GO: "No-go: a check before the day did not hold, so nothing was started.",
    STOPPED: "The lead ended the day early.",
    UNFINISHED: "The day is not over. This is what there is so far.",
}


def outcome_of(plan: Plan, journal: DayJournal) -> dict[str, Any]:
    """The content of report.json."""
    done = journal.done
    runs = [_run(plan, done, run) for run in plan.runs]
    outcome = _outcome(plan, done, runs)
    counted = [Verdict(run["verdict"]) for run in runs if run["verdict"]]
    early = outcome in {ABORTED, STOPPED, UNFINISHED} and any(not run["verdict"] for run in runs)
    verdict = merge([*counted, *([Verdict.INVALID] if early else [])])
    stuck = any(run["outcome"] == "revert" for run in runs)
    day = plan.day
    return {
        "format": FORMAT,
        "name": day.metadata.name,
        "title": day.metadata.title,
        "why": day.metadata.why,
        "goals": list(day.goals),
        "attached": str(journal.head.get("attached") or ""),
        "outcome": outcome,
        "because": abort_reason(plan, done) if outcome == ABORTED else _WHY[outcome],
        "verdict": verdict.value,
        "exit_code": _NOT_REVERTED if stuck else verdict.exit_code,
        "started_at": str(journal.head["wall"]),
        "ended_at": journal.at.get("end", ""),
        "sessions": [
            {"at": str(each["wall"]), "unattended": bool(each.get("unattended"))} for each in journal.sessions
        ],
        "people": [{"key": key, "name": day.shown(key), "role": person.role} for key, person in day.people.items()],
        "checks": [
            {"check": check.title, **done[f"check:{number}"]}
            for number, check in enumerate(day.before)
            if f"check:{number}" in done
        ],
        "messages": [
            {
                "when": message.when,
                "to": message.to,
                "say": message.say,
                "at": journal.at[f"message:{number}"],
                "told": bool(done[f"message:{number}"]["told"]),
            }
            for number, message in enumerate(day.messages)
            if f"message:{number}" in done
        ],
        "runs": runs,
        "surprises": [each for run in runs for each in _surprises(run)],
        "interrupted": [dict(entry) for entry in journal.interrupted if entry["recording"] not in _judged(done)],
        "actions": list(_actions(plan, journal, runs)),
    }


def _judged(done: Done) -> set[str]:
    """Recordings that count: one may have ended before its day was interrupted."""
    return {str(result["recording"]) for result in done.values() if result.get("recording")}


def _outcome(plan: Plan, done: Done, runs: Sequence[Mapping[str, Any]]) -> str:
    if "end" not in done:
        return UNFINISHED
    if no_go(plan, done):
        return NO_GO
    if stopped_by_lead(plan, done):
        return STOPPED
    left = any(run["state"] == "not run" for run in runs)
    stuck = any(run["outcome"] == "revert" for run in runs)
    return ABORTED if abort_reason(plan, done) and (left or stuck) else DONE


def _run(plan: Plan, done: Done, run: PlannedRun) -> dict[str, Any]:
    tried = attempts(done, run)
    last = tried[-1] if tried else {}
    skipped = done.get(f"go:{run.name}", {}).get("do") == "skip"
    return {
        "name": run.name,
        "experiment": run.resolved.name,
        "variant": run.resolved.variant,
        "title": run.resolved.experiment.metadata.title,
        "state": "run" if tried else "skipped" if skipped else "not run",
        "verdict": last.get("verdict", ""),
        "outcome": last.get("outcome", ""),
        "recording": last.get("recording", ""),
        "report": bool(last.get("report")),
        "reasons": list(last.get("reasons", ())),
        "expectations": list(last.get("expectations", ())),
        "figures": list(last.get("figures", ())),
        "passed": list(last.get("passed", ())),
        "before": [{"verdict": each["verdict"], "recording": each["recording"]} for each in tried[:-1]],
        "questions": [_question(plan, done, run, name, last) for name in run.questions] if tried else [],
        "discuss": list(run.spec.discuss),
        "notes": str(done.get(f"note:{run.name}", {}).get("text", "")),
    }


def _question(plan: Plan, done: Done, run: PlannedRun, name: str, last: Result) -> dict[str, Any]:
    question = plan.day.questions[name]
    said = last.get("measured", {}).get(name)
    measured = Measured.from_data(said) if said is not None else None
    told = None if last["verdict"] == Verdict.INVALID else measured  # a run that proves nothing surprises nobody
    answers = []
    for key in plan.day.people:
        result = done.get(f"predict:{run.name}:{key}:{name}")
        if result is None:
            continue
        answer = result["answer"]
        answers.append(
            {
                "person": key,
                "name": plan.day.shown(key),
                "answer": in_words(question, answer),
                "came": compared(question, answer, told),
            }
        )
    return {
        "name": name,
        "ask": question.ask,
        "happened": measured.text if measured is not None else "",
        "measured": told is not None and told.value is not None,
        "answers": answers,
    }


def _surprises(run: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for question in run["questions"]:
        for answer in question["answers"]:
            if answer["came"] == "surprise":
                yield {
                    "run": run["name"],
                    "ask": question["ask"],
                    "name": answer["name"],
                    "person": answer["person"],
                    "answer": answer["answer"],
                    "happened": question["happened"],
                }


def _actions(plan: Plan, journal: DayJournal, runs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """What was agreed on, and what the plan says about each FAIL. Owners are keys of `people`."""
    number = 1
    while (item := journal.done.get(f"action:{number}", {})).get("what"):
        yield {
            "what": str(item["what"]),
            "owner": str(item["owner"]),
            "name": plan.day.shown(str(item["owner"])),
            "due": str(item["due"]),
            "from": "the day",
        }
        number += 1
    on_failure, ended = plan.day.on_failure, journal.at.get("end", "")
    for run in runs if on_failure is not None and ended else ():
        if run["verdict"] == Verdict.FAIL and on_failure is not None:
            broken = [each["title"] for each in run["expectations"] if each["finding"] in {"broken", "fixed"}]
            yield {
                "what": f"{run['name']} FAILED: {'; '.join(broken[:3]) or 'see its report'}",
                "owner": on_failure.owner,
                "name": plan.day.shown(on_failure.owner),
                "due": due_date(ended, on_failure.within_days),
                "from": run["name"],
            }
