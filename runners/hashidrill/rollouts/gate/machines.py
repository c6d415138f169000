"""A gate's result for machines: JUnit, with one suite an experiment, and SARIF, on the changed file and key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from hashidrill import __version__
from hashidrill.clients.audit.report import LEVELS, SARIF_SCHEMA, json_text, uri, xml, xml_text
from hashidrill.clients.audit.rule import Finding
from hashidrill.clients.audit.run import RULES
from hashidrill.core.compare.comparison import Compared
from hashidrill.core.compare.statistics import Decision
from hashidrill.reports.text import printable
from hashidrill.rollouts.gate.differences import Change
from hashidrill.rollouts.gate.result import Ran, Result
from hashidrill.rollouts.gate.verdict import GateVerdict, Slo, SloState, figure_line, needed

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
    """The audit, and what differs."""
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
    results = [_finding(each, used.index(each.rule_id) + 1) for each in result.audit.findings]
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


def _finding(finding: Finding, index: int) -> dict[str, Any]:
    return {
        "ruleId": finding.rule_id,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [_location(finding.path, finding.place.line, finding.place.column)],
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
    return _location(change.place.file, change.place.line, change.place.column)


def _location(path: str, line: int, column: int) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri(path)},
            "region": {"startLine": max(line, 1), "startColumn": max(column, 1)},
        }
    }
