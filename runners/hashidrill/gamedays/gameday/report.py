"""The result of a game day, computed only from its plan and its journal: data, HTML, Markdown and action items."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.errors import UsageError
from hashidrill.core.judging.verdict import Finding, Verdict, merge
from hashidrill.core.units import counted
from hashidrill.core.util.files import write_whole
from hashidrill.gamedays.gameday.answers import Measured
from hashidrill.gamedays.gameday.conduct import (
    RUNS,
    abort_reason,
    attempts,
    due_date,
    no_go,
    predictions,
    stopped_by_lead,
)
from hashidrill.gamedays.gameday.journal import DayJournal, Result
from hashidrill.gamedays.gameday.plan import Plan, PlannedRun
from hashidrill.gamedays.gameday.player import FIGURES
from hashidrill.reports.document import (
    Badge,
    Bullets,
    Code,
    Html,
    Part,
    Section,
    Table,
    el,
    plain,
    to_html,
    to_markdown,
)
from hashidrill.reports.html import FINDINGS, REPORT_NAME, SYMBOLS, page
from hashidrill.reports.text import NOTHING

FORMAT = 1
SUMMARY_NAME, DATA_NAME = "report.md", "report.json"
ACTIONS_NAME, CHECKLIST_NAME = "actions.json", "actions.md"
Found = Mapping[str, Any]
"""The content of report.json."""
_NOT_REVERTED = 4
_DONE, _NO_GO, _ABORTED, _STOPPED, _UNFINISHED = "done", "no-go", "aborted", "stopped", "unfinished"
_WHY = {
    _DONE: "Every experiment of the day was run or skipped.",
    _NO_GO: "No-go: a check before the day did not hold, so nothing was started.",
    _STOPPED: "The lead ended the day early.",
    _UNFINISHED: "The day is not over. The report so far follows.",
}
_UNCONFIRMED = " (not confirmed as sent)"
_CAME = {
    "right": Badge("✓ as predicted", "held"),
    "surprise": Badge("✗ surprise", "broken"),
    "late": Badge("late: does not count", "known"),
    "not asked": Badge("no prediction", "known"),
    "not measured": Badge("not measured", "invalid"),
}
_TONES = {"PASS": "held", "FAIL": "broken", "INVALID": "invalid"}


def outcome_of(plan: Plan, journal: DayJournal) -> dict[str, Any]:
    """The content of report.json."""
    day, done = plan.day, journal.done
    runs = [_run(plan, done, run) for run in plan.runs]
    stuck = any(run["outcome"] == "revert" for run in runs)
    outcome = _outcome(plan, done, stuck=stuck)
    judged = [Verdict(run["verdict"]) for run in runs if run["verdict"]]
    early = outcome in {_ABORTED, _STOPPED, _UNFINISHED} and len(judged) < len(runs)
    verdict = merge([*judged, *([Verdict.INVALID] if early else [])])
    # if the day was interrupted after a run had ended, the run's recording counts
    counting = {str(result["recording"]) for result in done.values() if result.get("recording")}
    return {
        "format": FORMAT,
        "name": day.metadata.name,
        "title": day.metadata.title,
        "why": day.metadata.why,
        "goals": list(day.goals),
        "attached": str(journal.head.get("attached") or ""),
        "outcome": outcome,
        "because": abort_reason(plan, done) if outcome == _ABORTED else _WHY[outcome],
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
                "at": journal.at[step],
                "told": bool(done[step]["told"]),
            }
            for number, message in enumerate(day.messages)
            if (step := f"message:{number}") in done
        ],
        "runs": runs,
        "surprises": [each for run in runs for each in _surprises(run)],
        "interrupted": [dict(entry) for entry in journal.interrupted if entry["recording"] not in counting],
        "actions": list(_actions(plan, journal, runs)),
    }


def _outcome(plan: Plan, done: Mapping[str, Result], *, stuck: bool) -> str:
    if "end" not in done:
        return _UNFINISHED
    if no_go(plan, done):
        return _NO_GO
    if stopped_by_lead(plan, done):
        return _STOPPED
    left = any(not attempts(done, run) and not _skipped(done, run) for run in plan.runs)
    return _ABORTED if abort_reason(plan, done) and (left or stuck) else _DONE


def _skipped(done: Mapping[str, Result], run: PlannedRun) -> bool:
    return bool(done.get(f"go:{run.name}", {}).get("do") == "skip")


def _run(plan: Plan, done: Mapping[str, Result], run: PlannedRun) -> dict[str, Any]:
    tried = attempts(done, run)
    last = tried[-1] if tried else {}
    return {
        "name": run.name,
        "experiment": run.resolved.name,
        "variant": run.resolved.variant,
        "title": run.title_after,
        "announced": run.title,
        "state": "run" if tried else "skipped" if _skipped(done, run) else "not run",
        **{key: last.get(key, "") for key in ("verdict", "outcome", "recording")},
        "report": bool(last.get("report")),
        **{key: list(last.get(key, ())) for key in ("reasons", "expectations", "figures", "passed")},
        "before": [{"verdict": each["verdict"], "recording": each["recording"]} for each in tried[:-1]],
        "questions": [_question(plan, done, run, name, last) for name in run.questions] if tried else [],
        "discuss": list(run.spec.discuss),
        "notes": str(done.get(f"note:{run.name}", {}).get("text", "")),
    }


def _question(plan: Plan, done: Mapping[str, Result], run: PlannedRun, name: str, last: Result) -> dict[str, Any]:
    question = plan.day.questions[name]
    said = last.get("measured", {}).get(name)
    measured = Measured.from_data(said) if said is not None else None
    told = None if last["verdict"] == Verdict.INVALID else measured  # a run that proves nothing cannot surprise
    return {
        "name": name,
        "ask": question.ask,
        "happened": measured.text if measured is not None else "",
        "measured": told is not None and told.value is not None,
        "answers": predictions(plan, done, run, name, last),
    }


def _surprises(run: Found) -> Iterator[dict[str, str]]:
    for question in run["questions"]:
        for answer in question["answers"]:
            if answer["came"] == "surprise":
                about = {"run": run["name"], "ask": question["ask"], "happened": question["happened"]}
                yield about | {key: answer[key] for key in ("name", "person", "answer")}


def _actions(plan: Plan, journal: DayJournal, runs: Sequence[Found]) -> Iterator[dict[str, str]]:
    """The agreed actions, and the plan's actions for each FAIL. Owners are keys of `people`, or free text."""

    def item(what: str, owner: str, due: str, source: str) -> dict[str, str]:
        return {
            "what": what,
            "owner": owner,
            "name": plan.day.shown(owner) or "no owner yet",
            "due": due,
            "from": source,
        }

    number = 1
    while (agreed := journal.done.get(f"action:{number}", {})).get("what"):
        yield item(str(agreed["what"]), str(agreed["owner"]), str(agreed["due"]), "the day")
        number += 1
    on_failure, ended = plan.day.on_failure, journal.at.get("end", "")
    if on_failure is None or not ended:
        return
    for run in runs:
        if run["verdict"] == Verdict.FAIL:
            broken = [each["title"] for each in run["expectations"] if each["finding"] in {"broken", "fixed"}]
            what = f"{run['name']} FAILED: {'; '.join(broken[:3]) or 'see its report'}"
            yield item(what, on_failure.owner, due_date(ended, on_failure.within_days), run["name"])


def write_reports(found: Found, folder: Path) -> Path:
    """Writes all reports into the day's folder; returns the path of the HTML report. Raises UsageError on failure."""
    texts = {
        DATA_NAME: json.dumps(found, indent=2, allow_nan=False) + "\n",
        REPORT_NAME: str(html(found)),
        SUMMARY_NAME: markdown(found),
        ACTIONS_NAME: json.dumps(found["actions"], indent=2) + "\n",
        CHECKLIST_NAME: checklist(found),
    }
    try:
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise UsageError(
            f"{folder}: the day's report cannot be written: {error.strerror}; make room, then `hashidrill gameday"
            f" report {folder}`"
        ) from None
    return folder / REPORT_NAME


def html(found: Found) -> Html:
    """The whole page."""
    verdict = Verdict(found["verdict"])
    word = verdict.value if found["outcome"] == _DONE else f"{verdict.value} ({found['outcome']})"
    times = " to ".join(part for part in (found["started_at"], found["ended_at"]) if part)
    banner = el(
        "header",
        el("p", el("span", SYMBOLS[verdict], class_="symbol", aria_hidden="true"), " ", word, class_="verdict"),
        el("h1", found["title"]),
        el("p", f"{found['because']} {tally(found)}"),
        el("p", found["why"]) if found["why"] else None,
        el("p", f"{found['name']} · {times} · {counted(len(found['sessions']), 'session')}", class_="when"),
        class_=f"banner {verdict.value.lower()}",
    )
    return page(f"{verdict.value}: {found['title']}", [banner, *to_html(_sections(found))])


def markdown(found: Found) -> str:
    """The report for a chat or a wiki."""
    verdict = Verdict(found["verdict"])
    head = [
        f"# {SYMBOLS[verdict]} {verdict.value}: {plain(found['title'])}",
        f"{plain(found['because'])} {tally(found)}",
        plain(found["why"]),
    ]
    return "\n\n".join(block for block in [*head, *to_markdown(_sections(found))] if block) + "\n"


def checklist(found: Found) -> str:
    """The action items as a Markdown task list, for issue trackers."""
    lines = [
        f"- [ ] {plain(each['what'])} ({plain(each['name'])}, due {plain(each['due'])})" for each in found["actions"]
    ]
    return f"## {plain(found['title'])}: action items\n\n" + "\n".join(lines or ["No action items."]) + "\n"


def tally(found: Found) -> str:
    """How many experiments ran, and how each ended."""
    ran = [run["verdict"] for run in found["runs"] if run["verdict"]]
    each = ", ".join(f"{ran.count(verdict.value)} {verdict.value}" for verdict in Verdict if ran.count(verdict.value))
    predictions = [answer["came"] for run in found["runs"] for q in run["questions"] for answer in q["answers"]]
    said = " No predictions were made." if predictions else ""
    if given := sum(came not in {"not asked", "late"} for came in predictions):
        said = f" {counted(given, 'prediction')}, {counted(len(found['surprises']), 'surprise')}."
    return f"{len(ran)} of {counted(len(found['runs']), 'experiment')} ran{f': {each}' if each else ''}.{said}"


def surprise_line(each: Found) -> str:
    return f"{each['run']}: {each['ask']} {each['name']} said {each['answer']}; it was {each['happened']}"


def _sections(found: Found) -> list[Section]:
    actions = [(each["what"], each["name"], each["due"], each["from"]) for each in found["actions"]]
    return [
        _listed("Surprises", [surprise_line(each) for each in found["surprises"]]),
        _listed("Goals", found["goals"]),
        *(Section(run["name"], list(_run_parts(run))) for run in found["runs"]),
        Section("Action items", [Table(("what", "who", "by", "from"), actions) if actions else "None."]),
        _listed(
            "Interrupted runs",
            [
                f"{each['step'].split(':')[1]} was interrupted and does not count"
                + (f": {each['recording']}" if each["recording"] else "; it left no recording")
                for each in found["interrupted"]
            ],
        ),
        _listed(
            "Before the day",
            [f"{'go' if each['ok'] else 'NO-GO'}: {each['check']}: {each['text']}" for each in found["checks"]],
        ),
        _listed(
            "Messages",
            [
                f"{each['at']} to {each['to']}{'' if each['told'] else _UNCONFIRMED}: {each['say']}"
                for each in found["messages"]
            ],
        ),
        _listed("People", [f"{each['role']}: {each['name']}" for each in found["people"]]),
    ]


def _listed(title: str, lines: Sequence[str]) -> Section:
    return Section(title, [Bullets(lines)])


def _run_parts(run: Found) -> Iterator[Part]:
    yield (Badge(run["verdict"] or run["state"], _TONES.get(run["verdict"], "known")), run["title"])
    yield f"Announced as: {run['announced']}."
    over = [f"over the limit of the day: {each}" for each in run["passed"]]
    repeated = [f"an earlier attempt was {each['verdict']}: {each['recording']}" for each in run["before"]]
    yield Bullets([*run["reasons"], *over, *repeated])
    predictions = [(*row[:4], _CAME[row[4]]) for row in prediction_rows(run)]
    yield Table(("question", "who", "predicted", "what happened", ""), predictions, title="Predictions")
    expectations = [
        (
            Badge(" ".join(FINDINGS[Finding(each["finding"])]), each["finding"]),
            Code(each["title"]),
            each["text"],
        )
        for each in run["expectations"]
    ]
    yield Table(("finding", "expectation", "evidence"), expectations)
    yield Table(FIGURES, run["figures"], numbers_from=2)
    if run["verdict"]:
        yield Bullets(run["discuss"], title="To discuss")
    yield Bullets(run["notes"].splitlines(), title="Notes")
    if recording := run["recording"]:
        linked = run["report"] and recording.startswith(f"{RUNS}/")
        yield ("Recording:", Code(recording, f"{recording}/{REPORT_NAME}" if linked else ""))


def prediction_rows(run: Found) -> list[tuple[str, str, str, str, str]]:
    """Rows of question, person, prediction, measurement and result; one row for a question without answers."""
    rows = []
    for question in run["questions"]:
        given = [each for each in question["answers"] if each["came"] != "not asked"]
        answers = question["answers"] if given else [{"name": "nobody", "answer": "", "came": "not asked"}]
        rows += [
            (question["ask"], each["name"], each["answer"] or NOTHING, question["happened"] or NOTHING, each["came"])
            for each in answers
        ]
    return rows
