"""An audit from paths to findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hashidrill.clients.audit.all_rules import RULES
from hashidrill.clients.audit.audited import Audited
from hashidrill.clients.audit.rule import Finding, Hit, Rule, Severity
from hashidrill.clients.audit.rules_suppressions import apply, idle
from hashidrill.clients.audit.sources import Problem, collect
from hashidrill.clients.audit.unread import Unread

_IDLE = "HD002"


@dataclass(frozen=True)
class Audit:
    """The result of an audit. `suppressed` holds suppressed findings with their reasons."""

    findings: list[Finding]
    suppressed: list[tuple[Finding, str]]
    muted: list[tuple[Finding, str]]
    """What a rule would have found, and why it did not: what it saw around it."""
    problems: list[Problem]
    unread: list[Unread]
    """What was seen and is in a language that is not read."""
    skipped: list[str]
    files: dict[str, str]
    """The files that were judged, and what each was taken for."""

    def at_least(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity >= severity]


def audit(
    paths: Sequence[Path],
    *,
    kind: str | None = None,
    exclude: Sequence[str] = (),
    ignore: Mapping[str, str] | None = None,
) -> Audit:
    """Judges everything under `paths`. `ignore` maps ids of rules to the reasons for leaving them out everywhere."""
    ignore = ignore or {}
    sources = collect(paths, kind=kind, exclude=exclude)
    audited = Audited(tuple(sources.documents))
    hits = [(each, hit) for each in RULES.values() for hit in each.check(audited)]
    found = [_finding(each, hit) for each, hit in hits if not hit.muted]
    muted = [(_finding(each, hit), hit.muted) for each, hit in hits if hit.muted]
    stands, taken = apply(found, sources.documents)
    stands += [_finding(RULES[_IDLE], hit) for hit in idle(sources.documents, found)]
    taken += [(finding, ignore[finding.rule_id]) for finding in stands if finding.rule_id in ignore]
    stands = [finding for finding in stands if finding.rule_id not in ignore]
    return Audit(
        sorted(set(stands)),
        sorted(set(taken)),
        sorted(set(muted)),
        sorted(sources.problems, key=str),
        sorted(sources.unread),
        sources.skipped,
        {document.path: document.kind for document in sources.documents},
    )


def _finding(each: Rule, hit: Hit) -> Finding:
    return Finding(hit.document.path, hit.place, each.id, hit.message, each.severity)
