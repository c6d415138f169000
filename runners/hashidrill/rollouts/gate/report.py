"""A gate's result in every form: JSON, JUnit and SARIF for machines; lines, Markdown and pages for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from hashidrill import __version__
from hashidrill.clients.audit.report import SARIF_SCHEMA, json_text, location, sarif_result, xml, xml_text
from hashidrill.clients.audit.run import RULES
from hashidrill.core.compare.comparison import Compared
from hashidrill.core.compare.statistics import Decision
from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import write_whole
from hashidrill.reports.html import Html, el, page, section, timeline_frame, verdict_banner
from hashidrill.reports.html import table as html_table
from hashidrill.reports.markdown import code, plain, row_table
from hashidrill.reports.text import human_duration, printable
from hashidrill.reports.timeline import two_timelines
from hashidrill.rollouts.gate.differences import Change, LeftOut
from hashidrill.rollouts.gate.verdict import GateVerdict, PlayedRound, Ran, Result, Slo, SloState, figure_line, needed

FORMAT = 1


def as_document(result: Result) -> dict[str, Any]:
    """Plain data. Of a figure, null is what was not measured, and "never" stands for infinity."""
    return {
        "format": FORMAT,
        "hashidrill": __version__,
        "verdict": result.verdict.value,
        "exit_code": result.verdict.exit_code,
        "reasons": result.reasons,
        "product": result.differences.product,
        "sides": {
            side: {"name": result.names[index], "version": result.versions[index] or None}
            for index, side in enumerate(("baseline", "candidate"))
        },
        "changes": [
            {
                "key": change.key,
                "role": change.role or None,
                "baseline": change.shown()[0],
                "candidate": change.shown()[1],
                "file": change.place.file if change.place else None,
                "line": change.place.line if change.place else None,
            }
            for change in result.differences.changes
        ],
        "left_out": [
            {"key": each.key, "why": each.why, "differs": each.differs} for each in result.differences.left_out
        ],
        "audit": [
            {
                "rule": each.rule_id,
                "severity": each.severity.word,
                "file": each.path,
                "line": each.place.line,
                "message": each.message,
                "new": each in result.audit.new,
            }
            for each in result.audit.findings
        ],
        "experiments": [_experiment(each) for each in result.ran],
        "not_run": [member.name for member in result.not_run],
        "unmapped_keys": list(result.picked.unmapped),
        "seconds": round(result.seconds, 1),
    }


def as_text(result: Result) -> str:
    return json.dumps(as_document(result), indent=2, allow_nan=False) + "\n"


def _experiment(ran: Ran) -> dict[str, Any]:
    outcome = ran.outcome
    return {
        "experiment": ran.member.name,
        "verdict": outcome.verdict.value,
        "regressions": outcome.regressions,
        "improvements": outcome.improvements,
        "unsure": [] if outcome.no_change else outcome.unsure,
        "without_effect": list(outcome.without),
        "mattering": list(ran.member.mattering),
        "expectations": [_slo(each) for each in outcome.slos],
        "figures": [_figure(each) for each in outcome.figures],
        "rounds": [
            {
                "baseline": str(each.baseline) if each.baseline else None,
                "candidate": str(each.candidate) if each.candidate else None,
                "invalid": each.invalid,
            }
            for each in ran.rounds
        ],
        "stopped": ran.stopped,
        "seconds": round(ran.seconds, 1),
    }


def _slo(slo: Slo) -> dict[str, Any]:
    sides = {side: [pair[index] for pair in slo.pairs] for index, side in enumerate(("baseline", "candidate"))}
    return {"title": slo.title, "state": slo.state.value, "held": sides, "text": slo.text}


def _figure(each: Compared) -> dict[str, Any]:
    return each.as_dict() | {"text": figure_line(each)}


REGRESSION = "gate/regression"
_LONGEST = 4000


# JUnit


def as_junit(result: Result) -> str:
    """A regression is a failure, what cannot be told an error. No case passes without having been measured."""
    root = Element("testsuites", name="hashidrill gate")
    _add(root, "hashidrill gate", [_change_case(result)], result.seconds)
    for ran in result.ran:
        cases = [*map(_slo_case, ran.outcome.slos), *map(_figure_case, ran.outcome.figures)]
        if ran.outcome.no_change:
            cases.append(Element("testcase", name=GateVerdict.NO_CHANGE.value))
        elif ran.outcome.doubts or not cases:
            told = Element("testcase", name="rounds")
            SubElement(told, "error", message=_xml("; ".join(ran.outcome.doubts or ran.outcome.unsure)))
            cases.append(told)
        _add(root, ran.member.name, cases, ran.seconds)
    return xml_text(root)


def _add(root: Element, name: str, cases: Sequence[Element], seconds: float) -> None:
    counted = {what: sum(case.find(what) is not None for case in cases) for what in ("failure", "error", "skipped")}
    suite = SubElement(
        root,
        "testsuite",
        name=_xml(name),
        tests=str(len(cases)),
        failures=str(counted["failure"]),
        errors=str(counted["error"]),
        skipped=str(counted["skipped"]),
        time=f"{seconds:.1f}",
    )
    for case in cases:
        case.set("classname", _xml(f"hashidrill.rollouts.gate.{name}"))
        suite.append(case)


def _change_case(result: Result) -> Element:
    case = Element("testcase", name="audit of the changed files")
    if failing := result.audit.failing:
        failure = SubElement(case, "failure", message=_xml("; ".join(f"{f.rule_id} {f.message}" for f in failing)))
        failure.text = _xml("\n".join(RULES[each.rule_id].fix for each in failing))
    elif result.verdict is GateVerdict.CANNOT_TELL and (
        result.untested or result.verdict not in [ran.outcome.verdict for ran in result.ran]
    ):
        SubElement(case, "error", message=_xml("; ".join(result.reasons)))
    nothing = "nothing that can be compared differs"
    said = [*map(str, result.differences.changes), *(line for ran in result.ran for line in ran.outcome.without)]
    SubElement(case, "system-out").text = _xml("\n".join(dict.fromkeys(said)) or nothing)
    return case


def _slo_case(slo: Slo) -> Element:
    case = Element("testcase", name=_xml(slo.title))
    held = f"held in {slo.counted(0)} rounds of the baseline and {slo.counted(1)} of the candidate"
    if slo.state is SloState.BROKEN:
        SubElement(case, "failure", message=_xml(f"broken by the candidate: {held}")).text = _xml(slo.text)
    elif slo.state is not SloState.HELD:
        SubElement(case, "error", message=_xml(f"{slo.state.value}: {held}")).text = _xml(slo.text)
    return case


def _figure_case(each: Compared) -> Element:
    case = Element("testcase", name=_xml(f"{each.figure.name} is not worse"))
    if each.decision is Decision.WORSE:
        SubElement(case, "failure", message=_xml(figure_line(each)))
    elif each.decision is Decision.CANNOT_TELL:
        kind = "error" if each.is_open else "skipped"
        SubElement(case, kind, message=_xml(f"cannot tell: {figure_line(each)}{needed(each)}"))
    SubElement(case, "system-out").text = _xml(figure_line(each))
    return case


def _xml(text: str) -> str:
    return xml(printable(text, _LONGEST))


# SARIF


def as_sarif(result: Result) -> str:
    """The audit's findings on the changed files, and each regression on the keys that it is blamed on."""
    used = sorted({each.rule_id for each in result.audit.findings})
    results = [sarif_result(each, used.index(each.rule_id) + 1) for each in result.audit.findings]
    for ran in result.ran:
        if ran.outcome.verdict is GateVerdict.REGRESSION:
            results += [_regression(result, ran, line) for line in ran.outcome.regressions]
    run = {
        "tool": {
            "driver": {
                "name": "hashidrill gate",
                "version": __version__,
                "rules": [_OWN_RULE, *({"id": rule, "shortDescription": {"text": RULES[rule].what}} for rule in used)],
            }
        },
        "results": results,
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": result.verdict is not GateVerdict.CANNOT_TELL}],
        "properties": {"verdict": result.verdict.value, "reasons": result.reasons},
    }
    return json_text({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


_OWN_RULE = {
    "id": REGRESSION,
    "name": "GateRegression",
    "shortDescription": {"text": "With this change the datacenter does worse in an experiment than without it."},
    "fullDescription": {
        "text": "hashidrill ran the experiment with the baseline and with the candidate, in turn, under the same load."
    },
    "defaultConfiguration": {"level": "error"},
}


def _regression(result: Result, ran: Ran, line: str) -> dict[str, Any]:
    changes = result.blamed(ran)
    keys = "; ".join(map(str, changes)) or f"version {result.versions[0]} -> {result.versions[1]}"
    located = [_of_change(change) for change in changes if change.place]
    found: dict[str, Any] = {
        "ruleId": REGRESSION,
        "ruleIndex": 0,
        "level": "error",
        "message": {"text": printable(f"{ran.member.name}: {line}. Changed: {keys}", _LONGEST)},
        "locations": located[:1],
    }
    return found | ({"relatedLocations": located[1:]} if located[1:] else {})


def _of_change(change: Change) -> dict[str, Any]:
    assert change.place is not None
    return location(change.place.file, change.place.line, change.place.column)


_TONES = dict(zip(GateVerdict, ("fail", "invalid", "pass", "pass", "pass"), strict=True))
SYMBOLS = {verdict: {"fail": "✗", "invalid": "?", "pass": "✓"}[tone] for verdict, tone in _TONES.items()}
_FIGURES = ("figure", "baseline", "candidate", "difference", "95 %", "margin", "verdict")
_SLOS = ("expectation", "baseline held", "candidate held", "verdict")


# the terminal


def change_lines(result: Result) -> Iterator[str]:
    """Before anything runs: what differs, and what nobody gets."""
    found = result.differences
    one, other = result.names
    yield f"{found.product.capitalize()}: {one} against {other}"
    if result.versions[0] != result.versions[1]:
        yield f"  version: {result.versions[0]} -> {result.versions[1]}"
    for change in found.changes:
        yield f"  {change}" + (f"  ({change.place})" if change.place else "")
    yield from left_out_lines(found.left_out)
    yield from (f"{each}; so this gate finds a regression, or cannot tell" for each in result.untested)
    for each in result.audit.findings:
        new = "new: " if each in result.audit.new else ""
        yield f"audit: {new}{each.path}:{each.place.line}: {each.severity.word} {each.rule_id} {each.message}"


def left_out_lines(left_out: Sequence[LeftOut]) -> Iterator[str]:
    for why, group in groupby(sorted(left_out, key=lambda each: each.why), key=lambda each: each.why):
        keys = ", ".join(f"{each.shown}{' (differs)' if each.differs else ''}" for each in group)
        yield f"left out on both sides: {keys}: {why}"


def plan_lines(result: Result) -> Iterator[str]:
    """Which experiments run, and why those."""
    picked = result.picked
    for member in picked.members:
        why = f": matters for {', '.join(member.mattering)}: {member.why}" if member.mattering else ""
        yield f"runs {member.name} (about {human_duration(member.run_s)} a run){why}"
    if picked.left:
        names = ", ".join(member.name for member in picked.left)
        yield f"if time is left: {names}; a longer --time-budget runs them for sure"
    if picked.unmapped:
        yield f"no experiment is known to matter for {', '.join(picked.unmapped)}; --key-map can name some"


def verdict_lines(result: Result) -> Iterator[str]:
    """At the end: the verdict, its reasons, and what was measured."""
    for ran in result.ran:
        yield f"{ran.member.name}: {ran.outcome.verdict}, {_rounds(ran)}"
        yield from (f"  {each.title}: {_slo_words(each)}" for each in ran.outcome.slos)
        yield from (f"  {figure_line(each)}: {_figure_words(each)}" for each in ran.outcome.figures)
    if result.not_run:
        known = result.tested in {GateVerdict.REGRESSION, GateVerdict.NO_CHANGE}
        why = "the answer was known" if known else "there was no time"
        yield f"not run, {why}: {', '.join(member.name for member in result.not_run)}"
    yield f"{result.verdict.value.upper()} after {human_duration(result.seconds)}"
    yield from (f"  {reason}" for reason in result.reasons)


def _rounds(ran: Ran) -> str:
    many = ran.outcome.rounds
    text = f"{many} round{'' if many == 1 else 's'} count"
    if lost := len(ran.rounds) - many:
        text += f", {lost} did not"
    return f"{text} ({ran.stopped})" if ran.stopped else text


def _slo_words(slo: Slo) -> str:
    state = slo.state
    return state.value if state is SloState.HELD else f"{state.value} (held in {slo.counted(0)} and {slo.counted(1)})"


def _figure_words(each: Compared) -> str:
    return f"{each.decision.value}{needed(each) if each.decision is Decision.CANNOT_TELL else ''}"


# Markdown


def as_markdown(result: Result) -> str:
    """For a GitHub step summary or a comment: the verdict first, then why, then the figures."""
    verdict = result.verdict
    changes = [
        (code(change.named), code(change.shown()[0]), code(change.shown()[1]), code(str(change.place or "")))
        for change in result.differences.changes
    ]
    if result.versions[0] != result.versions[1]:
        changes.insert(0, ("version", code(result.versions[0]), code(result.versions[1]), ""))
    blocks = [
        f"### {SYMBOLS[verdict]} {verdict.value}: {plain(result.names[0])} against {plain(result.names[1])}",
        "\n".join(f"- {plain(reason)}" for reason in result.reasons),
        row_table(("key", "baseline", "candidate", "where"), changes),
        *(block for ran in result.ran for block in _member_markdown(ran)),
        "\n".join(f"- {plain(line)}" for line in left_out_lines(result.differences.left_out)),
        "\n".join(f"- {plain(line)}" for line in plan_lines(result) if not line.startswith("runs ")),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _member_markdown(ran: Ran) -> list[str]:
    slos = [[plain(cell) for cell in row] for row in _slo_rows(ran)]
    figures = [[plain(cell) for cell in row] for row in _figure_rows(ran)]
    return [
        f"#### {SYMBOLS[ran.outcome.verdict]} {plain(ran.member.name)}: {ran.outcome.verdict}, {plain(_rounds(ran))}",
        row_table(_SLOS, slos),
        row_table(_FIGURES, figures, numbers_from=1),
    ]


def _slo_rows(ran: Ran) -> list[tuple[str, ...]]:
    return [(slo.title, slo.counted(0), slo.counted(1), slo.state.value) for slo in ran.outcome.slos]


def _figure_rows(ran: Ran) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in ran.outcome.figures:
        shown = each.figure.shown
        much, bounds = each.difference
        rows.append(
            (
                each.figure.name,
                shown(each.baseline),
                shown(each.candidate),
                much if bounds else "",
                bounds,
                f"{each.margin:g}",
                _figure_words(each),
            )
        )
    return rows


# pages


def pages(result: Result) -> dict[str, Html]:
    """File name to page: `report.html` for the whole, and one for each experiment, with both sides on one timeline."""
    made = {_file(ran): _experiment_page(result, ran) for ran in result.ran}
    made["report.html"] = page(_title(result), [_banner(result), _changes(result), *map(_member_section, result.ran)])
    return made


def _file(ran: Ran) -> str:
    return f"{ran.member.name.strip('/').replace('/', '-').removesuffix('.yaml')}.html"


def _title(result: Result) -> str:
    return f"{result.verdict.value}: {result.names[0]} against {result.names[1]}"


def _banner(result: Result) -> Html:
    verdict = result.verdict
    return verdict_banner(
        (SYMBOLS[verdict], verdict.value, _TONES[verdict]),
        f"{result.names[0]} against {result.names[1]}",
        el("ul", [el("li", reason) for reason in result.reasons], class_="reasons") if result.reasons else None,
    )


def _changes(result: Result) -> Html:
    rows = [(change.named, *change.shown(), str(change.place or "")) for change in result.differences.changes]
    return section(
        "What differs",
        html_table(("key", "baseline", "candidate", "where"), rows) if rows else el("p", "No key differs."),
        *(el("p", line, class_="note") for line in left_out_lines(result.differences.left_out)),
        *(el("p", line, class_="note") for line in plan_lines(result) if not line.startswith("runs ")),
    )


def _member_section(ran: Ran, *, link: bool = True) -> Html:
    return section(
        f"{ran.member.name}: {ran.outcome.verdict}",
        el("p", _rounds(ran)),
        el("p", el("a", "Both sides on one timeline", href=_file(ran))) if link else None,
        el("ul", [el("li", slo.text) for slo in ran.outcome.slos if slo.state is SloState.BROKEN and slo.text]),
        html_table(_SLOS, _slo_rows(ran)) if ran.outcome.slos else None,
        html_table(_FIGURES, _figure_rows(ran), numbers_from=1) if ran.outcome.figures else None,
    )


def _experiment_page(result: Result, ran: Ran) -> Html:
    parts = [_banner(result), _member_section(ran, link=False)]
    shown = _telling(ran.rounds)
    data = None
    if shown is not None and shown.baseline is not None and shown.candidate is not None:
        try:
            data = two_timelines({"baseline": Recording(shown.baseline), "candidate": Recording(shown.candidate)})
        except HashidrillError as error:
            parts.append(el("p", f"No timeline: {error}"))
        else:
            parts += [el("p", f"{shown.baseline.name} against {shown.candidate.name}:"), timeline_frame()]
    return page(f"{ran.member.name}: {_title(result)}", parts, data)


def _telling(rounds: Sequence[PlayedRound]) -> PlayedRound | None:
    """The last round that counts; one that does not, where there is no other."""
    whole = [each for each in rounds if each.baseline and each.candidate]
    return next((each for each in reversed(whole) if not each.invalid), whole[-1] if whole else None)


FILES = ("gate.json", "junit.xml", "gate.sarif", "summary.md", "report.html")
"""What is always there; each experiment that ran has a page too."""


def write_all(result: Result, folder: Path) -> list[Path]:
    """Returns what was written. Raises UsageError where that cannot be."""
    texts = {
        "gate.json": as_text(result),
        "junit.xml": as_junit(result),
        "gate.sarif": as_sarif(result),
        "summary.md": as_markdown(result),
        **{name: str(page) for name, page in pages(result).items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: cannot be written: {(error.strerror or '').lower()}") from None
    return [folder / name for name in texts]


def clear(folder: Path) -> None:
    """Takes away the result of an earlier gate: one that ends without a result must not leave the last one's.

    Raises UsageError where that cannot be.
    """
    try:
        if folder.is_dir():
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be cleared: {(error.strerror or '').lower()}") from None


def check_writable(folder: Path) -> None:
    """Raises UsageError before anything runs, rather than after ten minutes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be written: {(error.strerror or '').lower()}") from None
