"""`# hashidrill: ignore HD101 -- reason`: takes out a finding, and is judged itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hashidrill.clients.audit.audited import Audited
from hashidrill.clients.audit.rule import Finding, Hit, Severity, rule
from hashidrill.clients.audit.sources import Document
from hashidrill.clients.audit.tree import Place

_COMMENT = re.compile(r"hashidrill:\s*ignore\b\s*(?P<ids>[A-Za-z0-9, ]*?)\s*(?:--\s*(?P<reason>.*))?$")


@dataclass(frozen=True)
class Suppression:
    """A comment that takes out findings of `ids` on `line`."""

    document: Document
    ids: frozenset[str]
    reason: str
    line: int
    place: Place


def suppressions(document: Document) -> Iterator[Suppression]:
    """Of a file. A comment beside something is for that line; one of its own for the next line that says something."""
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


def apply(
    findings: Sequence[Finding], documents: Sequence[Document]
) -> tuple[list[Finding], list[tuple[Finding, str]]]:
    """(what stands, what was taken out and why). A suppression without a reason takes nothing out."""
    said: dict[tuple[str, int, str], str] = {}
    for document in documents:
        for each in suppressions(document):
            said |= {(document.path, each.line, rule_id): each.reason for rule_id in each.ids if each.reason}
    stands, taken = [], []
    for finding in findings:
        reason = said.get((finding.path, finding.place.line, finding.rule_id))
        if reason is None:
            stands.append(finding)
        else:
            taken.append((finding, reason))
    return stands, taken


@rule(
    "HD001",
    "suppression-without-reason",
    Severity.WARNING,
    what="`# hashidrill: ignore` without a reason, or without the id of a rule.",
    why="In a year nobody knows whether it still holds. Such a comment suppresses nothing.",
    default="None.",
    fix="`# hashidrill: ignore HD101 -- a single node on purpose`.",
    link="playbooks/audit-your-config.md",
    source="this page",
)
def suppression_without_reason(audited: Audited) -> Iterator[Hit]:
    for document in audited.documents:
        for each in suppressions(document):
            if not each.reason or not each.ids:
                yield Hit(document, each.place, "say which rule and why: `hashidrill: ignore HD101 -- reason`")


@rule(
    "HD002",
    "suppression-of-nothing",
    Severity.WARNING,
    what="`# hashidrill: ignore HD101 -- reason` where HD101 finds nothing.",
    why="What it was for is gone, or it stands in the wrong line: it would hide the next finding there.",
    default="None.",
    fix="Take it out, or put it beside the line of the finding, or on the line before.",
    link="playbooks/audit-your-config.md",
    source="this page",
)
def suppression_of_nothing(_audited: Audited) -> Iterator[Hit]:
    """Needs the findings of all other rules, so `hashidrill.clients.audit.run` calls `idle` instead."""
    yield from ()


def idle(documents: Sequence[Document], found: Sequence[Finding]) -> Iterator[Hit]:
    """The suppressions that hide none of what was found."""
    places = {(each.path, each.place.line, each.rule_id) for each in found}
    for document in documents:
        for each in suppressions(document):
            for rule_id in sorted(each.ids):
                if each.reason and (document.path, each.line, rule_id) not in places:
                    yield Hit(document, each.place, f"{rule_id} finds nothing in line {each.line}")
