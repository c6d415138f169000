"""Findings for people and for machines (JSON, SARIF 2.1.0 for code scanning, JUnit for any CI); the reference page."""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from rich.console import Console
from rich.text import Text

from hashidrill import __version__
from hashidrill.clients.audit.audited import Finding, Rule, Severity
from hashidrill.clients.audit.run import RULES, Audit
from hashidrill.clients.audit.sources import by_kind
from hashidrill.core.units import counted

_SHOWN = 3
"""How many files of a kind are named; `-v` and JSON name all files."""
_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def write_text(audit: Audit, console: Console) -> None:
    """Writes all findings, with each rule explained at its first finding; suppressed and muted findings; relevant files
    that the audit cannot read; and a summary.
    """
    explained: set[str] = set()
    for finding in audit.findings:
        _print(console, finding, explained=finding.rule_id in explained)
        explained.add(finding.rule_id)
    for finding, reason in audit.suppressed:
        _line(console, f"{_where(finding)}: {finding.rule_id} suppressed: {reason}", "dim")
    for finding, reason in audit.muted:
        _line(console, f"{_where(finding)}: {finding.rule_id} muted: {reason}", "dim")
    for what, paths in by_kind(audit.unread):
        shown = ", ".join(paths[:_SHOWN]) + (", ..." if len(paths) > _SHOWN else "")
        script = paths[0] if "/" in paths[0] else f"./{paths[0]}"
        hint = f"; try `hashidrill retry -- {shlex.quote(script)}`" if "shell script" in what else ""
        _line(console, f"found but not read: {what}: {shown}{hint}", "dim")
    _line(console, summary(audit))


def summary(audit: Audit) -> str:
    """`7 files, 1 error, 2 warnings, 0 infos, 1 suppressed, 1 file not read`."""
    counts = [(len([f for f in audit.findings if f.severity is each]), each.word) for each in reversed(Severity)]
    parts = [counted(len(audit.files), "file"), *(counted(number, word) for number, word in counts)]
    if audit.suppressed:
        parts.append(f"{len(audit.suppressed)} suppressed")
    if audit.muted:
        parts.append(f"{len(audit.muted)} muted")
    if audit.unread:
        parts.append(f"{counted(len(audit.unread), 'file')} not read")
    if audit.problems:
        parts.append(f"{counted(len(audit.problems), 'file')} not judged")
    return ", ".join(parts)


def explain(rule: Rule, console: Console) -> None:
    _line(console, f"{rule.id} {rule.name} ({rule.severity.word})", "bold")
    for label, said in about(rule):
        _line(console, f"  {label + ':':<9} {said}")


def about(rule: Rule) -> list[tuple[str, str]]:
    """The texts that describe a rule, in the order of display."""
    return [
        ("what", rule.what),
        ("why", rule.why),
        ("default", rule.default),
        ("fix", rule.fix),
        ("read", rule.link),
        ("source", rule.source),
        ("shown by", rule.verified or "no test on a real binary: taken from the source above"),
    ]


def _print(console: Console, finding: Finding, *, explained: bool) -> None:
    rule = RULES[finding.rule_id]
    head = Text(f"{_where(finding)}: ")
    head.append(finding.severity.word, _COLOURS[finding.severity])
    head.append(f" {rule.id} {finding.message}")
    console.print(head, soft_wrap=True)
    for label, said in [] if explained else about(rule)[1:5]:
        _line(console, f"    {label + ':':<9} {said}", "dim")


def _where(finding: Finding) -> str:
    return f"{finding.path}:{finding.place.line}:{finding.place.column}"


def _line(console: Console, text: str, style: str = "") -> None:
    # rich must not interpret the findings as markup: a rule may hold [brackets]
    console.print(Text(text, style), soft_wrap=True)


LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain, even escaped: control characters, and bytes of a file name that are not
UTF-8.
"""


def as_data(audit: Audit) -> Any:
    """One object: `findings`, `suppressed`, `muted`, `problems`, `unread`, and `files`: each file's kind."""
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
    return _readable(value)


def _readable(value: Any) -> Any:
    """A value that every JSON reader accepts: bytes of a file name that are not UTF-8 would become lone surrogates."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def json_text(value: Any) -> str:
    return json.dumps(_readable(value), indent=2) + "\n"


def rule_data(rule: Rule) -> dict[str, Any]:
    return {"id": rule.id, "name": rule.name, "severity": rule.severity.word, **dict(about(rule))}


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
    """One SARIF run with every rule. Includes suppressed findings with their justification, and unreadable files."""
    indexes = {rule_id: index for index, rule_id in enumerate(RULES)}
    results = [sarif_result(each, indexes[each.rule_id]) for each in audit.findings]
    for each, reason in audit.suppressed:
        taken = {"kind": "inSource", "justification": reason}
        results.append({**sarif_result(each, indexes[each.rule_id]), "suppressions": [taken]})
    run = {
        "tool": {
            "driver": {"name": "hashidrill", "version": __version__, "rules": list(map(_sarif_rule, RULES.values()))}
        },
        "results": results,
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not audit.problems,
                "toolExecutionNotifications": [
                    *(_note("error", each.path, each.line, each.column, each.what) for each in audit.problems),
                    *(_note("note", each.path, 0, 0, f"found but not read: {each.what}") for each in audit.unread),
                    *(
                        _note("note", each.path, each.place.line, each.place.column, f"{each.rule_id} muted: {reason}")
                        for each, reason in audit.muted
                    ),
                ],
            }
        ],
    }
    return json_text({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _note(level: str, path: str, line: int, column: int, text: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": text}, "locations": [location(path, line, column)]}


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\nDefault: {rule.default}\nFix: {rule.fix}"},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
    }
    if rule.link.startswith("https://"):
        described["helpUri"] = rule.link
    return described


def sarif_result(finding: Finding, index: int) -> dict[str, Any]:
    """`index`: the position of the finding's rule among the run's rules."""
    return {
        "ruleId": finding.rule_id,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [location(finding.path, finding.place.line, finding.place.column)],
    }


def location(path: str, line: int, column: int) -> dict[str, Any]:
    """A SARIF location; line 0 means the whole file."""
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(path)}}
    if line:
        physical["region"] = {"startLine": line, "startColumn": column}
    return {"physicalLocation": physical}


def _uri(path: str) -> str:
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(os.fsencode(pure))


def as_junit(audit: Audit) -> str:
    """A test case for each file: errors, warnings and unreadable files make it fail; infos go to its output."""
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
        case = SubElement(suite, "testcase", classname="hashidrill.clients.audit", name=xml(path))
        if loud := _loud(found):
            failure = SubElement(case, "failure", message=xml("; ".join(f"{f.rule_id} {f.message}" for f in loud)))
            failure.text = xml(_told(loud))
        if quiet := [finding for finding in found if finding.severity is Severity.INFO]:
            SubElement(case, "system-out").text = xml(_told(quiet))
    for problem in audit.problems:
        case = SubElement(suite, "testcase", classname="hashidrill.clients.audit", name=xml(problem.path))
        SubElement(case, "error", message=xml(str(problem)))
    root = Element("testsuites")
    root.append(suite)
    return xml_text(root)


def _loud(found: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity > Severity.INFO]


def _told(found: Iterable[Finding]) -> str:
    return "\n".join(
        f"{f.path}:{f.place.line}:{f.place.column}: {f.severity.word} {f.rule_id} {f.message}\n{RULES[f.rule_id].fix}"
        for f in found
    )


def xml_text(root: Element) -> str:
    """The whole document in ASCII, which is well-formed in any encoding."""
    indent(root)
    return str(tostring(root, encoding="us-ascii", xml_declaration=True), "ascii") + "\n"


def xml(text: str) -> str:
    """The text of an element or attribute, without characters that XML cannot contain."""
    return _NOT_XML.sub("\ufffd", text)


FORMATS: dict[str, Callable[[Audit], str]] = {"sarif": as_sarif, "junit": as_junit}
"""The formats that `--format` accepts, apart from text."""


_HEAD = """\
# Reference: the rules of the audit

Generated from the rules by `python -m hashidrill.clients.audit.report > playbooks/reference-audit.md`.
`hashidrill audit --rules` lists them, `hashidrill audit --explain HD101` shows one.
[audit-your-config.md](audit-your-config.md) says how to use them.

An error is a configuration that cannot work. A warning is a configuration that lets users notice a passing fault.
An info is a default that you should know about, and may well keep.

"Shown by" names the test that proves the claim on the real program: Consul 1.22.2, Nomad 1.10.5, Vault 1.21.0,
consul-template 0.41.0, or the Python library itself. For Consul's config entries, these tests show what Consul sends to
Envoy; what Envoy then does, and claims without a test, come from the named source or documentation.

| rule | severity | name |
| --- | --- | --- |
"""


def page() -> str:
    rows = "".join(
        f"| [{each.id}](#{each.id.lower()}) | {each.severity.word} | {each.name} |\n" for each in RULES.values()
    )
    sections = []
    for each in RULES.values():
        lines = "".join(f"- **{label}**: {said}\n" for label, said in about(each))
        sections.append(f"\n## {each.id}\n\n{each.name}, {each.severity.word}\n\n{lines}")
    return _HEAD + rows + "".join(sections)


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
