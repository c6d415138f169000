"""An audit from paths to findings, and `# hashidrill: ignore HD101 -- reason`, which suppresses a finding."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hashidrill.clients.audit import rules_consul, rules_nomad, rules_python, rules_vault
from hashidrill.clients.audit.audited import REGISTERED, Audited, Finding, Hit, Rule, Severity, rule
from hashidrill.clients.audit.sources import Document, Problem, Unread, collect
from hashidrill.clients.audit.tree import Place

_COMMENT = re.compile(r"hashidrill:\s*ignore\b\s*(?P<ids>[A-Za-z0-9, ]*?)\s*(?:--\s*(?P<reason>.*))?$")
_IDLE = "HD002"
_MODULES = (rules_consul, rules_nomad, rules_python, rules_vault)
"""Importing them registers their rules."""


@dataclass(frozen=True)
class Suppression:
    """A comment that suppresses findings of the rules `ids` on `line`."""

    document: Document
    ids: frozenset[str]
    reason: str
    line: int
    place: Place


def _suppressions(documents: Sequence[Document]) -> Iterator[Suppression]:
    """A comment at the end of a line applies to that line; a comment on its own line to the next line with content."""
    for document in documents:
        lines = document.text.split("\n")
        commented = {comment.line for comment in document.comments if not comment.trailing}
        for comment in document.comments:
            found = _COMMENT.search(comment.text)
            if found is None:
                continue
            line = comment.line
            if not comment.trailing:
                line += 1
                while line <= len(lines) and (line in commented or not lines[line - 1].strip()):
                    line += 1
            ids = frozenset(re.findall(r"HD\d+", found["ids"].upper()))
            yield Suppression(document, ids, (found["reason"] or "").strip(), line, Place(comment.line, 1))


@rule("HD001")
def suppression_without_reason(audited: Audited) -> Iterator[Hit]:
    for each in _suppressions(audited.documents):
        if not each.reason or not each.ids:
            yield Hit(each.document, each.place, "name the rule and the reason: `hashidrill: ignore HD101 -- reason`")


@rule(_IDLE)
def suppression_of_nothing(_audited: Audited) -> Iterator[Hit]:
    """Finds nothing itself: this rule needs the findings of all other rules, so `audit` applies it."""
    yield from ()


RULES: dict[str, Rule] = dict(sorted(REGISTERED.items()))
"""In the order of their ids; every list and the reference page use the same order."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit. `suppressed` has suppressed findings and their reasons."""

    findings: list[Finding]
    suppressed: list[tuple[Finding, str]]
    muted: list[tuple[Finding, str]]
    """Findings that other settings or files rule out, with the reasons."""
    problems: list[Problem]
    unread: list[Unread]
    """Relevant files in languages that are not supported."""
    skipped: list[str]
    files: dict[str, str]
    """The judged files, with the kind of each."""

    def at_least(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity >= severity]


def audit(
    paths: Sequence[Path],
    *,
    kind: str | None = None,
    exclude: Sequence[str] = (),
    ignore: Mapping[str, str] | None = None,
) -> Audit:
    """Judges everything under `paths`. `ignore` maps ids of rules to the reasons for suppressing them everywhere."""
    ignore = ignore or {}
    sources = collect(paths, kind=kind, exclude=exclude)
    audited = Audited(tuple(sources.documents))
    hits = [(each, hit) for each in RULES.values() for hit in each.check(audited)]
    found = [_finding(each, hit) for each, hit in hits if not hit.muted]
    muted = [(_finding(each, hit), hit.muted) for each, hit in hits if hit.muted]
    stands, suppressed = [], []
    said = {
        (each.document.path, each.line, rule_id): each.reason
        for each in _suppressions(sources.documents)
        for rule_id in each.ids
        if each.reason
    }
    for finding in [*found, *_idle(sources.documents, found)]:
        where = (finding.path, finding.place.line, finding.rule_id)
        reason = said.get(where) if finding.rule_id != _IDLE else None
        reason = ignore.get(finding.rule_id) if reason is None else reason
        if reason is None:
            stands.append(finding)
        else:
            suppressed.append((finding, reason))
    return Audit(
        sorted(set(stands)),
        sorted(set(suppressed)),
        sorted(set(muted)),
        sorted(sources.problems, key=str),
        sorted(sources.unread),
        sources.skipped,
        {document.path: document.kind for document in sources.documents},
    )


def _idle(documents: Sequence[Document], found: Sequence[Finding]) -> Iterator[Finding]:
    """The suppressions that match no finding."""
    places = {(each.path, each.place.line, each.rule_id) for each in found}
    for each in _suppressions(documents):
        for rule_id in sorted(each.ids):
            if each.reason and (each.document.path, each.line, rule_id) not in places:
                text = f"{rule_id} finds nothing in line {each.line}"
                yield _finding(RULES[_IDLE], Hit(each.document, each.place, text))


def _finding(each: Rule, hit: Hit) -> Finding:
    return Finding(hit.document.path, hit.place, each.id, hit.message, each.severity)
