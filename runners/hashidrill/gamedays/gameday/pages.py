"""The reports of a game day: HTML, Markdown and JSON, and its action items for an issue tracker.

Everything here is text from people, files and a cluster that was broken on purpose: all of it is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.errors import UsageError
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.util.files import write_whole
from hashidrill.gamedays.gameday.conduct import RUNS
from hashidrill.gamedays.gameday.outcome import DONE
from hashidrill.gamedays.gameday.playing import FIGURES
from hashidrill.reports.html import FINDINGS, REPORT_NAME, SYMBOLS, Content, Html, el, page, section, table
from hashidrill.reports.markdown import code, plain, row_table
from hashidrill.reports.text import NOTHING, counted

SUMMARY_NAME, DATA_NAME = "report.md", "report.json"
ACTIONS_NAME, CHECKLIST_NAME = "actions.json", "actions.md"
Found = Mapping[str, Any]
_CAME = {
    "right": "✓ as predicted",
    "surprise": "✗ surprise",
    "not asked": "no prediction",
    "not measured": "not measured",
}
_TONES = {"right": "held", "surprise": "broken", "not asked": "known", "not measured": "invalid"}


def write_reports(found: Found, folder: Path) -> Path:
    """Write all of them into the day's folder; returns the HTML report. Raises UsageError where that cannot be."""
    try:
        write_whole(folder / DATA_NAME, json.dumps(found, indent=2, allow_nan=False) + "\n")
        write_whole(folder / REPORT_NAME, str(html(found)))
        write_whole(folder / SUMMARY_NAME, markdown(found))
        write_whole(folder / ACTIONS_NAME, json.dumps(found["actions"], indent=2) + "\n")
        write_whole(folder / CHECKLIST_NAME, checklist(found))
    except OSError as error:
        raise UsageError(
            f"{folder}: the day's report cannot be written: {error.strerror}; make room, then `hashidrill gameday"
            f" report {folder}`"
        ) from None
    return folder / REPORT_NAME


# Markdown


def markdown(found: Found) -> str:
    """The report for a chat or a wiki."""
    verdict = Verdict(found["verdict"])
    blocks = [
        f"# {SYMBOLS[verdict]} {verdict.value}: {plain(found['title'])}",
        f"{plain(found['because'])} {tally(found)}",
        plain(found["why"]),
        _titled("Goals", [f"- {plain(goal)}" for goal in found["goals"]]),
        _titled("Surprises", [f"- {plain(surprise_line(each))}" for each in found["surprises"]]),
        *(_run_blocks(run) for run in found["runs"]),
        _titled("Action items", _check_lines(found["actions"])),
        _titled("Interrupted", [f"- {plain(line)}" for line in interrupted_lines(found)]),
        _titled("Before the day", [f"- {plain(line)}" for line in check_lines(found)]),
        _titled("Messages", [f"- {plain(line)}" for line in message_lines(found)]),
        _titled("People", [f"- {plain(line)}" for line in people_lines(found)]),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def checklist(found: Found) -> str:
    """The action items as a task list, as issue trackers take it."""
    lines = _check_lines(found["actions"]) or ["No action items."]
    return f"## {plain(found['title'])}: action items\n\n" + "\n".join(lines) + "\n"


def _check_lines(actions: Sequence[Found]) -> list[str]:
    return [f"- [ ] {plain(each['what'])} ({plain(each['name'])}, due {plain(each['due'])})" for each in actions]


def _titled(title: str, lines: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(lines) if lines else ""


def _run_blocks(run: Found) -> str:
    head = f"## {plain(run['name'])}: {state(run)}\n\n{plain(run['title'])}"
    predictions = [(*map(plain, row[:4]), _CAME[row[4]]) for row in prediction_rows(run)]
    expectations = [
        (" ".join(FINDINGS[Finding(each["finding"])]), code(each["title"]), plain(each["text"]))
        for each in run["expectations"]
    ]
    figures = [tuple(map(plain, row)) for row in run["figures"]]
    parts = [
        head,
        "\n".join(f"- {plain(line)}" for line in run_lines(run)),
        row_table(("question", "who", "predicted", "what happened", ""), predictions),
        row_table(("finding", "expectation", "evidence"), expectations),
        row_table(FIGURES, figures, numbers_from=2),
        "\n".join(f"- To discuss: {plain(each)}" for each in run["discuss"]) if run["state"] == "run" else "",
        f"Notes: {plain(run['notes'])}" if run["notes"] else "",
        f"Recording: {code(run['recording'])}" if run["recording"] else "",
    ]
    return "\n\n".join(part for part in parts if part)


# the same lines in every face


def tally(found: Found) -> str:
    """How many experiments ran, and how each ended."""
    ran = [run["verdict"] for run in found["runs"] if run["verdict"]]
    each = ", ".join(f"{ran.count(verdict.value)} {verdict.value}" for verdict in Verdict if ran.count(verdict.value))
    total = counted(len(found["runs"]), "experiment")
    predictions = [answer["came"] for run in found["runs"] for q in run["questions"] for answer in q["answers"]]
    given = sum(came != "not asked" for came in predictions)
    said = (
        f" {counted(given, 'prediction')}, {counted(len(found['surprises']), 'surprise')}."
        if given
        else (" No predictions: nobody was asked." if predictions else "")
    )
    return f"{len(ran)} of {total} ran{f': {each}' if each else ''}.{said}"


def state(run: Found) -> str:
    return str(run["verdict"] or run["state"])


def surprise_line(each: Found) -> str:
    return f"{each['run']}: {each['ask']} {each['name']} said {each['answer']}; it was {each['happened']}"


def prediction_rows(run: Found) -> list[tuple[str, str, str, str, str]]:
    """Question, who, what they predicted, what happened, the result. One row where nobody answered."""
    rows = []
    for question in run["questions"]:
        given = [each for each in question["answers"] if each["came"] != "not asked"]
        answers = question["answers"] if given else [{"name": "nobody", "answer": "", "came": "not asked"}]
        rows += [
            (question["ask"], each["name"], each["answer"] or NOTHING, question["happened"] or NOTHING, each["came"])
            for each in answers
        ]
    return rows


def interrupted_lines(found: Found) -> list[str]:
    return [
        f"{each['step'].split(':')[1]} was interrupted and does not count"
        + (f": {each['recording']}" if each["recording"] else "; it left no recording")
        for each in found["interrupted"]
    ]


def check_lines(found: Found) -> list[str]:
    return [f"{'go' if each['ok'] else 'NO-GO'}: {each['check']}: {each['text']}" for each in found["checks"]]


def message_lines(found: Found) -> list[str]:
    return [
        f"{each['at']} to {each['to']}{'' if each['told'] else ' (nobody said that it was sent)'}: {each['say']}"
        for each in found["messages"]
    ]


def people_lines(found: Found) -> list[str]:
    return [f"{each['role']}: {each['name']}" for each in found["people"]]


def run_lines(run: Found) -> list[str]:
    """What else there is to say about a run."""
    repeated = [f"an earlier attempt was {each['verdict']}: {each['recording']}" for each in run["before"]]
    return [*run["reasons"], *(f"over the limit of the day: {each}" for each in run["passed"]), *repeated]


# HTML


def html(found: Found) -> Html:
    """The whole page."""
    verdict = Verdict(found["verdict"])
    body = [
        _banner(found, verdict),
        _listed("Surprises", [surprise_line(each) for each in found["surprises"]]),
        _listed("Goals", found["goals"]),
        *(_run_section(run) for run in found["runs"]),
        _actions_section(found),
        _listed("Interrupted runs", interrupted_lines(found)),
        _listed("Before the day", check_lines(found)),
        _listed("Messages", message_lines(found)),
        _listed("People", people_lines(found)),
    ]
    return page(f"{verdict.value}: {found['title']}", body)


def _banner(found: Found, verdict: Verdict) -> Html:
    times = " to ".join(part for part in (found["started_at"], found["ended_at"]) if part)
    word = verdict.value if found["outcome"] == DONE else f"{verdict.value} ({found['outcome']})"
    return el(
        "header",
        el("p", el("span", SYMBOLS[verdict], class_="symbol", aria_hidden="true"), " ", word, class_="verdict"),
        el("h1", found["title"]),
        el("p", f"{found['because']} {tally(found)}"),
        el("p", found["why"]) if found["why"] else None,
        el("p", f"{found['name']} · {times} · {counted(len(found['sessions']), 'session')}", class_="when"),
        class_=f"banner {verdict.value.lower()}",
    )


def _listed(title: str, lines: Sequence[str]) -> Html:
    return section(title, el("ul", [el("li", line) for line in lines])) if lines else Html()


def _run_section(run: Found) -> Html:
    lines = run_lines(run)
    head = el("p", el("span", state(run), class_="badge"), " ", run["title"], class_="head")
    return section(
        run["name"],
        el(
            "article",
            head,
            el("ul", [el("li", line) for line in lines]) if lines else None,
            class_=f"expectation {_tone(run)}",
        ),
        _predictions(run),
        *(_expectation(each) for each in run["expectations"]),
        table(FIGURES, [tuple(row) for row in run["figures"]], numbers_from=2) if run["figures"] else None,
        el("h3", "To discuss") if run["discuss"] and run["verdict"] else None,
        el("ul", [el("li", each) for each in run["discuss"]]) if run["discuss"] and run["verdict"] else None,
        el("h3", "Notes") if run["notes"] else None,
        el("pre", run["notes"]) if run["notes"] else None,
        _link(run),
    )


def _tone(run: Found) -> str:
    return {"PASS": "held", "FAIL": "broken", "INVALID": "invalid"}.get(run["verdict"], "known")


def _predictions(run: Found) -> Html | None:
    rows: list[tuple[Content, ...]] = [
        (*row[:4], el("span", _CAME[row[4]], class_=f"badge {_TONES[row[4]]}")) for row in prediction_rows(run)
    ]
    if not rows:
        return None
    return el("div", el("h3", "Predictions"), table(("question", "who", "predicted", "what happened", ""), rows))


def _expectation(each: Found) -> Html:
    symbol, word = FINDINGS[Finding(each["finding"])]
    return el(
        "article",
        el("p", el("span", f"{symbol} {word}", class_="badge"), " ", el("code", each["title"]), class_="head"),
        el("p", each["text"], class_="text"),
        class_=f"expectation {each['finding']}",
    )


def _link(run: Found) -> Html | None:
    if not run["recording"]:
        return None
    if not run["report"] or not run["recording"].startswith(f"{RUNS}/"):
        return el("p", "Recording: ", el("code", run["recording"]))
    return el("p", "Report of this run: ", el("a", run["recording"], href=f"{run['recording']}/{REPORT_NAME}"))


def _actions_section(found: Found) -> Html:
    rows: list[tuple[Content, ...]] = [
        (each["what"], each["name"], each["due"], each["from"]) for each in found["actions"]
    ]
    if not rows:
        return section("Action items", el("p", "None."))
    return section("Action items", table(("what", "who", "by", "from"), rows))
