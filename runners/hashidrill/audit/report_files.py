"""Findings for machines: JSON, SARIF 2.1.0 (code scanning) and JUnit (any CI)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from hashidrill import __version__
from hashidrill.audit.all_rules import RULES
from hashidrill.audit.rule import Finding, Rule, Severity
from hashidrill.audit.run import Audit

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_NOT_XML = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF], "\ufffd")
"""Characters that XML 1.0 cannot hold, also not escaped."""


def as_json(audit: Audit) -> str:
    """One object: `findings`, `suppressed`, `muted`, `problems`, `unread`, and `files` with what each was taken for."""
    value = {
        "findings": [_finding(each) for each in audit.findings],
        "suppressed": [{**_finding(each), "reason": reason} for each, reason in audit.suppressed],
        "muted": [{**_finding(each), "reason": reason} for each, reason in audit.muted],
        "unread": [{"file": each.path, "what": each.what} for each in audit.unread],
        "problems": [
            {"file": each.path, "line": each.line, "column": each.column, "what": each.what} for each in audit.problems
        ],
        "files": audit.files,
    }
    return json.dumps(value, indent=2) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    rule = RULES[finding.rule_id]
    return {
        "rule": rule.id,
        "name": rule.name,
        "severity": finding.severity.word,
        "file": finding.path,
        "line": finding.place.line,
        "column": finding.place.column,
        "message": finding.message,
        "why": rule.why,
        "default": rule.default,
        "fix": rule.fix,
        "link": rule.link,
        "verified": rule.verified,
    }


def as_sarif(audit: Audit) -> str:
    """One SARIF run with every rule. Suppressed findings are in it with their justification, unreadable files too."""
    indexes = {rule_id: index for index, rule_id in enumerate(RULES)}
    results = [_result(each, indexes) for each in audit.findings]
    for each, reason in audit.suppressed:
        taken = {"kind": "inSource", "justification": reason}
        results.append({**_result(each, indexes), "suppressions": [taken]})
    run = {
        "tool": {
            "driver": {
                "name": "hashidrill",
                "version": __version__,
                "rules": [_sarif_rule(rule) for rule in RULES.values()],
            }
        },
        "results": results,
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not audit.problems,
                "toolExecutionNotifications": [
                    {
                        "level": "error",
                        "message": {"text": each.what},
                        "locations": [_location(each.path, each.line, each.column)],
                    }
                    for each in audit.problems
                ]
                + [_note(each.path, 0, 0, f"seen and not read: {each.what}") for each in audit.unread]
                + [
                    _note(each.path, each.place.line, each.place.column, f"{each.rule_id} muted: {reason}")
                    for each, reason in audit.muted
                ],
            }
        ],
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _note(path: str, line: int, column: int, text: str) -> dict[str, Any]:
    return {"level": "note", "message": {"text": text}, "locations": [_location(path, line, column)]}


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\nDefault: {rule.default}\nFix: {rule.fix}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }
    if rule.link.startswith("https://"):
        described["helpUri"] = rule.link
    return described


def _result(finding: Finding, indexes: dict[str, int]) -> dict[str, Any]:
    return {
        "ruleId": finding.rule_id,
        "ruleIndex": indexes[finding.rule_id],
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [_location(finding.path, finding.place.line, finding.place.column)],
    }


def _location(path: str, line: int, column: int) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(path)}}
    if line:
        physical["region"] = {"startLine": line, "startColumn": column}
    return {"physicalLocation": physical}


def _uri(path: str) -> str:
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(pure.as_posix())


def as_junit(audit: Audit) -> str:
    """One case a file: it fails with its errors and warnings; infos are in its output. Unreadable files are errors."""
    by_file: dict[str, list[Finding]] = {path: [] for path in audit.files}
    for finding in audit.findings:
        by_file[finding.path].append(finding)
    broken = [path for path, found in by_file.items() if _loud(found)]
    suite = Element(
        "testsuite",
        name="hashidrill audit",
        tests=str(len(by_file) + len(audit.problems)),
        failures=str(len(broken)),
        errors=str(len(audit.problems)),
    )
    for path, found in by_file.items():
        case = SubElement(suite, "testcase", classname="hashidrill.audit", name=_xml(path))
        if loud := _loud(found):
            failure = SubElement(case, "failure", message=_xml("; ".join(f"{f.rule_id} {f.message}" for f in loud)))
            failure.text = _xml(_told(loud))
        if quiet := [finding for finding in found if finding.severity is Severity.INFO]:
            SubElement(case, "system-out").text = _xml(_told(quiet))
    for problem in audit.problems:
        case = SubElement(suite, "testcase", classname="hashidrill.audit", name=_xml(problem.path))
        SubElement(case, "error", message=_xml(str(problem)))
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _loud(found: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity > Severity.INFO]


def _told(found: Iterable[Finding]) -> str:
    return "\n".join(
        f"{f.path}:{f.place.line}:{f.place.column}: {f.severity.word} {f.rule_id} {f.message}\n{RULES[f.rule_id].fix}"
        for f in found
    )


def _xml(text: str) -> str:
    return text.translate(_NOT_XML)


FORMATS: dict[str, Callable[[Audit], str]] = {"json": as_json, "sarif": as_sarif, "junit": as_junit}
"""What `--format` takes beside text."""
