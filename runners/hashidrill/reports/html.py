"""The report of a run: one HTML file that holds everything, asks the network for nothing, and stays under 2 MB.

Nothing can inject HTML: everything that is not `Html` is text, and is escaped. Titles, keys, errors and log lines
come from YAML and from a cluster that is being broken on purpose; none of them may become markup. A policy inside the
page allows this page's own script and style by their hashes and nothing else, so that even markup that got past the
escaping could neither run nor load anything.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from hashidrill.core.judging.verdict import Finding, Judgement, RunVerdict, Verdict
from hashidrill.core.recording.reader import FaultWindow, Recording
from hashidrill.core.units import counted
from hashidrill.core.util.files import write_whole
from hashidrill.core.util.redaction import Redactor
from hashidrill.reports.document import (
    Content,
    Html,
    data_script,
    el,
    joined,
    raw_script,
    raw_style,
    section,
    table,
    to_html,
)
from hashidrill.reports.figures import (
    FIGURES,
    asked,
    experiment_name,
    experiment_title,
    figure_rows,
    found_on_the_way,
    how_it_ended,
    marked,
    state_of,
)
from hashidrill.reports.flame import profiles_section
from hashidrill.reports.followed import followed_section
from hashidrill.reports.story import ALERTS, NOTICED, Story, alert_rows, story
from hashidrill.reports.text import (
    NOTHING,
    human_bytes,
    human_duration,
    human_figure,
    paragraphs,
)

MOST_ROWS = 200
LONGEST_CONFIG = 40_000

SYMBOLS = {Verdict.PASS: "✓", Verdict.FAIL: "✗", Verdict.INVALID: "!"}
_MEANINGS = {
    Verdict.FAIL: "At least one expectation did not hold.",
    Verdict.INVALID: "This run proves nothing, good or bad.",
}
FINDINGS = {
    Finding.HELD: ("✓", "held"),
    Finding.BROKEN: ("✗", "broken"),
    Finding.INVALID: ("!", "could not be judged"),
    Finding.KNOWN: ("~", "broken by a known issue"),
    Finding.FIXED: ("✗", "held, although it names a known issue"),
}
_ORDER = (Finding.BROKEN, Finding.FIXED, Finding.INVALID, Finding.KNOWN, Finding.HELD)


def banner(recording: Recording, verdict: RunVerdict, told: Story) -> Html:
    """The verdict, what happened and why the experiment is run, every reason against a PASS, and what to do now."""
    result = verdict.verdict
    reasons: list[Content] = [
        *(
            el("li", el("b", judgement.title), ": ", FINDINGS[judgement.finding][1])
            for judgement in verdict.judgements
            if judgement.finding.verdict is not Verdict.PASS
        ),
        *(el("li", reason) for reason in [*verdict.invalid, *verdict.doubts][:MOST_ROWS]),
    ]
    if not verdict.judgements and not verdict.invalid:
        reasons.append(el("li", "There was no expectation to judge."))
    ended = how_it_ended(recording)
    said_already = any(ended.partition(".")[0].lower() in reason.lower() for reason in verdict.invalid)
    notes = [el("li", note) for note in verdict.notes[:MOST_ROWS]]
    return verdict_banner(
        (SYMBOLS[result], result.value, result.value.lower()),
        experiment_title(recording),
        el("p", meaning(verdict)),
        el("p", told.warning, class_="warning") if told.warning else None,
        el("p", ended, class_="ended") if ended and not said_already else None,
        el("ul", reasons, class_="reasons") if reasons else None,
        el("p", " ".join(told.sentences), class_="story") if told.sentences else None,
        el("p", told.closest) if told.closest else None,
        _next_steps(told),
        el("p", "Why this experiment: ", told.why, class_="why") if told.why else None,
        el("details", el("summary", counted(len(notes), "note")), el("ul", notes)) if notes else None,
        el("p", _when(recording), class_="when"),
    )


def _next_steps(told: Story) -> Html | None:
    if not told.next:
        return None
    steps = [
        joined([el("p", f"{what}:" if how else f"{what}."), el("pre", el("code", how)) if how else None])
        for what, how in told.next
    ]
    return el("div", *steps, class_="next")


def verdict_banner(verdict: tuple[str, str, str], title: str, *below: Html | None) -> Html:
    """The top of a page. `verdict`: its symbol, its name, and the class of its colour."""
    symbol, name, tone = verdict
    head = el("p", el("span", symbol, class_="symbol", aria_hidden="true"), " ", name, class_="verdict")
    return el("header", head, el("h1", title), *below, class_=f"banner {tone}")


def meaning(verdict: RunVerdict) -> str:
    """The verdict in a sentence, and how many expectations held."""
    known = any(judgement.finding is Finding.KNOWN for judgement in verdict.judgements)
    if verdict.verdict is Verdict.PASS and not known:
        total = len(verdict.judgements)
        return "The expectation held." if total == 1 else f"All {total} expectations held."
    said = "No unexpected failures." if known and verdict.verdict is Verdict.PASS else _MEANINGS[verdict.verdict]
    if verdict.verdict is Verdict.INVALID and any(each.finding is not Finding.INVALID for each in verdict.judgements):
        said = "This run gives no verdict."
    return f"{said} {tally(verdict)}".rstrip()


def tally(verdict: RunVerdict) -> str:
    """`3 of 4 expectations held, 1 broken by a known issue.`"""
    total = len(verdict.judgements)
    if not total:
        return ""
    held = sum(judgement.finding is Finding.HELD for judgement in verdict.judgements)
    known = sum(judgement.finding is Finding.KNOWN for judgement in verdict.judgements)
    unjudged = sum(judgement.finding is Finding.INVALID for judgement in verdict.judgements)
    tail = f", {known} broken by a known issue" if known else ""
    tail += f", {unjudged} could not be judged" if unjudged else ""
    return f"{held} of {counted(total, 'expectation')} held{tail}."


def _when(recording: Recording) -> str:
    run = recording.run
    started, ended = _instant(run.get("started_at")), _instant(run.get("ended_at"))
    took = f", took {human_duration((ended - started).total_seconds())}" if started and ended else ""
    at = f"{started:%Y-%m-%d %H:%M:%S %Z}".strip() if started else "at an unknown time"
    return f"{experiment_name(recording)} · run {run.get('id') or recording.path.name} · {at}{took}"


def _instant(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def expectations(verdict: RunVerdict) -> Html:
    ordered = sorted(verdict.judgements, key=lambda judgement: _ORDER.index(judgement.finding))
    return section("Expectations", *[expectation(judgement, verdict.text_of(judgement)) for judgement in ordered])


def expectation(judgement: Judgement, text: str) -> Html:
    symbol, word = FINDINGS[judgement.finding]
    figures = [human_figure(str(name), value) for name, value in judgement.figures.items()]
    return el(
        "article",
        el("p", el("span", f"{symbol} {word}", class_="badge"), " ", el("code", judgement.title), class_="head"),
        *[el("pre" if rows else "p", part, class_="text") for rows, part in paragraphs(text)],
        el("p", "Known issue: ", _issue(judgement.known_issue)) if judgement.known_issue else None,
        definitions(figures),
        class_=f"expectation {judgement.finding.value}",
    )


def _issue(issue: str) -> Html:
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", issue)
    if match:
        return el("a", issue, href=f"https://github.com/{match[1]}/issues/{match[2]}", rel="noreferrer")
    if re.fullmatch(r"https?://[^\s\"'<>]+", issue):
        return el("a", issue, href=issue, rel="noreferrer")
    return el("span", issue)


def figures(recording: Recording) -> Html:
    rows = figure_rows(recording)
    if not rows:
        return section("Key figures", el("p", "This recording holds no operations."))
    found = [el("p", text) for text in found_on_the_way(recording)]
    if alerts := alert_rows(recording):
        found += [el("h3", "Alerts"), table(ALERTS, alerts)]
    note = (
        "Latency counts from when an operation was due, so a stall shows up as the latency users would have seen."
        f" {NOTICED}"
    )
    return section("Key figures", table(FIGURES, rows, numbers_from=2), *found, el("p", note, class_="note"))


def timeline_frame() -> Html:
    """The element that the page's script draws into; its sentence is shown where scripts may not run."""
    return section(
        "Timeline",
        el(
            "div",
            el("p", "A script draws the timeline, and it did not run. The tables on this page hold the same figures."),
            id="timeline",
        ),
        id="timeline-section",
    )


def fault_proofs(recording: Recording) -> Html:
    marks = [el("p", f"Mark: {text}.") for text in marked(recording)[:MOST_ROWS]]
    if not recording.faults:
        return section("Fault proofs", el("p", "No fault was applied."), *marks)
    headings = (
        "fault",
        "asked for",
        "measured in force",
        "before its revert",
        "measured afterwards",
        "in force for",
        "state",
    )
    rows = [_proof_row(fault) for fault in recording.faults[:MOST_ROWS]]
    more = len(recording.faults) - MOST_ROWS
    return section(
        "Fault proofs",
        el(
            "p",
            "An independent observer measures each fault. Where the observer shares something with the injector, the"
            " proof says what.",
            class_="note",
        ),
        table(headings, rows),
        el("p", f"and {more} more in the journal") if more > 0 else None,
        *marks,
    )


def _proof_row(fault: FaultWindow) -> tuple[Content, ...]:
    state = state_of(fault)
    good = (fault.proven or fault.moved_ns is not None) and fault.gone_ns is not None and fault.faded_ns is None
    held = (fault.reverted_ns - fault.applied_ns) / 1e9 if fault.reverted_ns and fault.applied_ns else None
    badge = el("span", f"{'✓' if good else '!'} {state}", class_=f"badge {'held' if good else 'invalid'}")
    return (
        joined([el("b", fault.kind), el("br"), f"{fault.agent} on {fault.host}"]),
        asked(fault) or NOTHING,
        _evidence(fault.proof),
        _evidence(fault.still_proof or fault.faded_proof),
        _evidence(fault.gone_proof),
        human_duration(held),
        joined([badge, el("br"), fault.error] if fault.error else [badge]),
    )


def observed_through(evidence: Mapping[str, Any]) -> str:
    """The means of the observer, and what they share with the injector."""
    return f"observed through {evidence['through']}; shared with the injector: {evidence.get('shares') or 'nothing'}"


def _evidence(evidence: Mapping[str, Any] | None) -> Html:
    if not evidence:
        return el("span", NOTHING)
    figures_ = [human_figure(str(name), value) for name, value in dict(evidence.get("figures") or {}).items()]
    return joined(
        [
            el("span", "✓ " if evidence.get("ok") else "✗ ", str(evidence.get("measured", NOTHING))),
            el("br"),
            el("span", f"asked: {evidence.get('asked', NOTHING)}", class_="note"),
            *([el("br"), el("span", observed_through(evidence), class_="note")] if "through" in evidence else []),
            el("details", el("summary", "figures"), definitions(figures_)) if figures_ else None,
        ]
    )


def how_to_reproduce(recording: Recording) -> Html:
    command = str(recording.run.get("command") or "")
    again = el("p", "To judge this recording again without running anything:")
    judge = el("pre", el("code", f"hashidrill check {recording.path}"))
    if not command:
        return section(
            "How to reproduce", el("p", "The recording does not say which command started it."), again, judge
        )
    return section("How to reproduce", el("pre", el("code", command)), again, judge)


def versions_and_machine(recording: Recording) -> Html:
    run = recording.run
    versions = {"hashidrill": run.get("hashidrill"), **_mapping(run.get("versions"))}
    machine = _mapping(run.get("machine"))
    binaries = _mapping(run.get("binaries"))
    generator = [human_figure(str(name), value) for name, value in _mapping(run.get("generator")).items()]
    rows = [
        (name, str(binary.get("path", NOTHING)), str(binary.get("source", NOTHING)), str(binary.get("sha256", NOTHING)))
        for name, binary in binaries.items()
        if isinstance(binary, Mapping)
    ]
    return section(
        "Versions and machine",
        definitions([(str(name), str(value)) for name, value in versions.items() if value is not None]),
        definitions([_machine_figure(str(name), value) for name, value in machine.items()]),
        joined([el("h3", "Load generator"), definitions(generator)]) if generator else None,
        table(("binary", "path", "from", "sha256"), rows) if rows else None,
    )


def _machine_figure(name: str, value: object) -> tuple[str, str]:
    if name == "memory_bytes" and isinstance(value, (int, float)):
        return "memory", human_bytes(value)
    return human_figure(name, value)


def configuration(recording: Recording) -> Html:
    """Hosts, and each agent's configuration; equal configurations are shown once."""
    run = recording.run
    hosts = [
        (str(host.get("name")), str(host.get("role", NOTHING)), str(host.get("address", NOTHING)))
        for host in run.get("hosts") or []
        if isinstance(host, Mapping)
    ]
    same: dict[str, list[str]] = {}
    for host, config in _mapping(Redactor().clean(run.get("config"))).items():
        same.setdefault(json.dumps(config, indent=2, sort_keys=True, default=str), []).append(str(host))
    left = LONGEST_CONFIG
    blocks = []
    for text, names in same.items():
        shown = text if len(text) <= left else f"{text[:left]}\n… cut; run.json holds all of it"
        left = max(left - len(text), 0)
        lines = [el("code", f"{line}\n") for line in shown.splitlines()]
        blocks.append(el("details", el("summary", ", ".join(names)), el("pre", lines)))
    return section("Agent configuration", table(("host", "role", "address"), hosts) if hosts else None, *blocks)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def definitions(pairs: Sequence[tuple[str, str]]) -> Html | None:
    if not pairs:
        return None
    return el("dl", [el("div", el("dt", name), el("dd", value)) for name, value in pairs[:MOST_ROWS]])


SEEN = (
    "It was reached through its APIs alone: the figures are the answers to the loads' requests, and what the products "
    "report about themselves. Logs, and figures of disks and processes, are not recorded. Each fault was proven "
    "through the observer that is named with its proof."
)


def attached_to(recording: Recording) -> str:
    """The name of the attached datacenter; "" for a local one."""
    return str(_mapping(recording.run.get("attached")).get("name") or "")


def attached_datacenter(recording: Recording) -> Html | None:
    """The report's section about the existing datacenter; None for a run in a local one."""
    said = _mapping(recording.run.get("attached"))
    if not said:
        return None
    names = {"name": said.get("name"), "title": said.get("title"), "file": said.get("file")}
    products = {
        str(product): " ".join(filter(None, (str(_mapping(said.get("versions")).get(product) or ""), f"at {address}")))
        for product, address in _mapping(said.get("addresses")).items()
    }
    notes = [el("li", str(note)) for note in said.get("notes") or []]
    return section(
        "Attached datacenter",
        definitions([(name, str(value)) for name, value in {**names, **products}.items() if value]),
        el("p", SEEN, class_="note"),
        el("ul", *notes) if notes else None,
    )


REPORT_NAME = "report.html"


def write_html(recording: Recording, verdict: RunVerdict, into: Path) -> Path:
    """Write the report to `into` (a directory gets `report.html`) and return the file's path.

    Raises RecordingError when the recording cannot be read.
    """
    path = into / REPORT_NAME if into.is_dir() else into
    write_whole(path, str(render_html(recording, verdict)))
    return path


def render_html(recording: Recording, verdict: RunVerdict) -> Html:
    from hashidrill.reports.timeline import timeline  # noqa: PLC0415 - what prints a verdict takes words from this module

    title = f"{verdict.verdict}: {experiment_title(recording)}"
    # the verdict of a rehearsal depends on the results of all loads
    reads = set(recording.loads) if isinstance(recording.run.get("rehearsal"), Mapping) else named_in(verdict)
    return page(title, _sections(recording, verdict), timeline(recording, reads=reads))


def page(title: str, content: Sequence[Html], timeline_data: Any = None) -> Html:
    """A whole page. With `timeline_data`, its script draws the timeline."""
    css, javascript = _asset("page.css"), _timeline_script()
    policy = f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(javascript)}'; img-src data:"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        raw_style(css),
    )
    drawn = [] if timeline_data is None else [data_script("timeline-data", timeline_data), raw_script(javascript)]
    body = el("body", el("main", *content), *drawn)
    return joined([Html("<!doctype html>\n"), el("html", head, "\n", body, lang="en"), "\n"])


def named_in(verdict: RunVerdict) -> set[str]:
    """The values of the expectations' parameters; some of them name loads and signals."""
    return {value for each in verdict.judgements for value in re.findall(r"=([\w.-]+)", each.title)}


def _sections(recording: Recording, verdict: RunVerdict) -> list[Html]:
    attached, rehearsed = attached_datacenter(recording), followed_section(recording)
    return [
        banner(recording, verdict, story(recording, verdict)),
        timeline_frame(),
        expectations(verdict),
        *(to_html([rehearsed]) if rehearsed is not None else []),
        figures(recording),
        fault_proofs(recording),
        *filter(None, [profiles_section(recording)]),
        *([attached] if attached is not None else []),
        how_to_reproduce(recording),
        versions_and_machine(recording),
        configuration(recording),
    ]


def _timeline_script() -> str:
    """Joins the two files into one script: a self-contained page cannot import a module."""
    charts = _asset("charts.js").replace("\nexport const ", "\nconst ")
    return f'"use strict";\n(() => {{\n{charts}{_asset("report.js")}}})();\n'


def _asset(name: str) -> str:
    return files("hashidrill.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
