"""The sections of the HTML report, each from a recording or a verdict to markup."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hashidrill.core.judging.verdict import Finding, Judgement, RunVerdict, Verdict
from hashidrill.core.util.redaction import Redactor
from hashidrill.reports.figures import (
    asked,
    experiment_name,
    experiment_title,
    found_on_the_way,
    how_it_ended,
    load_figures,
    marked,
    state_of,
)
from hashidrill.reports.markup import Content, Html, el, joined
from hashidrill.reports.text import (
    NOTHING,
    counted,
    human_bytes,
    human_duration,
    human_figure,
    human_number,
    human_rate,
    human_share,
    paragraphs,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hashidrill.core.recording.reader import FaultWindow, Recording

MOST_ROWS = 200
LONGEST_CONFIG = 40_000

SYMBOLS = {Verdict.PASS: "✓", Verdict.FAIL: "✗", Verdict.INVALID: "!"}
_MEANINGS = {
    Verdict.PASS: "All expectations held.",
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
PARTS = {"steady": "steady state", "fault": "faults in force", "mark": "marked", "recovery": "recovery"}


def banner(recording: Recording, verdict: RunVerdict) -> Html:
    """The verdict first, then every reason against it."""
    result = verdict.verdict
    reasons: list[Content] = [
        *(
            el("li", el("b", judgement.title), ": ", FINDINGS[judgement.finding][1])
            for judgement in verdict.judgements
            if judgement.finding.verdict is not Verdict.PASS
        ),
        *(el("li", reason) for reason in [*verdict.invalid, *verdict.doubts, *verdict.notes][:MOST_ROWS]),
    ]
    if not verdict.judgements and not verdict.invalid:
        reasons.append(el("li", "There was no expectation to judge."))
    ended = how_it_ended(recording)
    return el(
        "header",
        el("p", el("span", SYMBOLS[result], class_="symbol", aria_hidden="true"), " ", result.value, class_="verdict"),
        el("h1", experiment_title(recording)),
        el("p", meaning(verdict)),
        el("p", ended, class_="ended") if ended else None,
        el("ul", reasons, class_="reasons") if reasons else None,
        el("p", _when(recording), class_="when"),
        class_=f"banner {result.value.lower()}",
    )


def meaning(verdict: RunVerdict) -> str:
    """The verdict in a sentence, and how many expectations held."""
    known = any(judgement.finding is Finding.KNOWN for judgement in verdict.judgements)
    passed_with_issues = known and verdict.verdict is Verdict.PASS
    said = "No unexpected failures." if passed_with_issues else _MEANINGS[verdict.verdict]
    return f"{said} {tally(verdict)}".rstrip()


def tally(verdict: RunVerdict) -> str:
    """`3 of 4 expectations held, 1 broken by a known issue.`"""
    total = len(verdict.judgements)
    if not total:
        return ""
    held = sum(judgement.finding is Finding.HELD for judgement in verdict.judgements)
    known = sum(judgement.finding is Finding.KNOWN for judgement in verdict.judgements)
    tail = f", {known} broken by a known issue" if known else ""
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
    rows = [
        (
            row.load,
            PARTS[row.part],
            human_number(row.operations),
            human_rate(row.rate_per_s),
            human_duration(row.p50_s),
            human_duration(row.p99_s),
            human_duration(row.max_s),
            human_share(row.errors),
        )
        for row in load_figures(recording)
    ]
    if not rows:
        return section("Key figures", el("p", "This recording holds no operations."))
    headings = ("load", "part", "operations", "rate", "p50", "p99", "longest", "errors")
    found = [el("p", text) for text in found_on_the_way(recording)]
    note = "Latency counts from when an operation was due, so a stall shows up as the latency users would have seen."
    return section("Key figures", table(headings, rows, numbers_from=2), *found, el("p", note, class_="note"))


def timeline_frame() -> Html:
    """The place that the page's script draws into; the sentence in it stands where scripts are not allowed to run."""
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
    """What the observer looked through, and what that shares with the injector."""
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
    """Hosts, and each agent's configuration; those that are the same are shown once."""
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


def section(title: str, *children: Content | Iterable[Content], id: str | None = None) -> Html:  # noqa: A002 - HTML's word
    return el("section", el("h2", title), *children, id=id)


def definitions(pairs: Sequence[tuple[str, str]]) -> Html | None:
    """Names with their values, None when there are none."""
    if not pairs:
        return None
    return el("dl", [el("div", el("dt", name), el("dd", value)) for name, value in pairs[:MOST_ROWS]])


def table(headings: Sequence[str], rows: Sequence[Sequence[Content]], *, numbers_from: int | None = None) -> Html:
    """A table that scrolls inside itself on a narrow screen; cells from column `numbers_from` on are aligned right."""

    def kind(column: int) -> str | None:
        return "number" if numbers_from is not None and column >= numbers_from else None

    head = el("tr", [el("th", title, scope="col", class_=kind(n)) for n, title in enumerate(headings)])
    body = [el("tr", [el("td", cell, class_=kind(n)) for n, cell in enumerate(row)]) for row in rows]
    return el(
        "div",
        el("table", el("thead", head), el("tbody", body)),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=f"table: {', '.join(headings)}",
    )
