"""Findings for people: where, what, why, the default behind it, what to do, and where to read on."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from hashidrill.clients.audit.all_rules import RULES
from hashidrill.clients.audit.rule import Finding, Rule, Severity
from hashidrill.clients.audit.run import Audit
from hashidrill.clients.audit.unread import counted

_SHOWN = 3
"""Files of a kind that are named; `-v` and JSON name them all."""
_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def write_text(audit: Audit, console: Console) -> None:
    """All findings, each rule explained where it comes first; what was suppressed, muted and not read; and a summary.

    What could not be read although it should goes to standard error.
    """
    explained: set[str] = set()
    for finding in audit.findings:
        _finding(console, finding, explained=finding.rule_id in explained)
        explained.add(finding.rule_id)
    for finding, reason in audit.suppressed:
        _line(console, f"{_where(finding)}: {finding.rule_id} suppressed: {reason}", "dim")
    for finding, reason in audit.muted:
        _line(console, f"{_where(finding)}: {finding.rule_id} muted: {reason}", "dim")
    for what, paths in counted(audit.unread):
        shown = ", ".join(paths[:_SHOWN]) + (", ..." if len(paths) > _SHOWN else "")
        _line(console, f"seen and not read: {what}: {shown}", "dim")
    _line(console, summary(audit))


def summary(audit: Audit) -> str:
    """`7 files, 1 error, 2 warnings, 0 infos, 1 suppressed, 1 file not readable`."""
    counts = [(len([f for f in audit.findings if f.severity is each]), each.word) for each in reversed(Severity)]
    parts = [_count(len(audit.files), "file"), *(_count(number, word) for number, word in counts)]
    if audit.suppressed:
        parts.append(f"{len(audit.suppressed)} suppressed")
    if audit.muted:
        parts.append(f"{len(audit.muted)} muted")
    if audit.unread:
        parts.append(f"{_count(len(audit.unread), 'file')} not read")
    if audit.problems:
        parts.append(f"{_count(len(audit.problems), 'file')} not judged")
    return ", ".join(parts)


def explain(rule: Rule, console: Console) -> None:
    """One rule, whole."""
    _line(console, f"{rule.id} {rule.name} ({rule.severity.word})", "bold")
    for label, said in about(rule):
        _line(console, f"  {label + ':':<9} {said}")


def about(rule: Rule) -> list[tuple[str, str]]:
    """What a rule says of itself, in the order in which it is shown."""
    return [
        ("what", rule.what),
        ("why", rule.why),
        ("default", rule.default),
        ("fix", rule.fix),
        ("read", rule.link),
        ("source", rule.source),
        ("shown by", rule.verified or "no test on a real binary: taken from the source above"),
    ]


def _finding(console: Console, finding: Finding, *, explained: bool) -> None:
    rule = RULES[finding.rule_id]
    head = Text(f"{_where(finding)}: ")
    head.append(finding.severity.word, _COLOURS[finding.severity])
    head.append(f" {rule.id} {finding.message}")
    console.print(head, soft_wrap=True)
    for label, said in [] if explained else about(rule)[1:5]:
        _line(console, f"    {label + ':':<9} {said}", "dim")


def _where(finding: Finding) -> str:
    return f"{finding.path}:{finding.place.line}:{finding.place.column}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _line(console: Console, text: str, style: str = "") -> None:
    # what it found is not for rich to read: a rule may hold [brackets]
    console.print(Text(text, style), soft_wrap=True)
