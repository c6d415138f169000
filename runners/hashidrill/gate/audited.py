"""The audit of a gate: of the files that changed, what the candidate's have that the baseline's have not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hashidrill.audit.rule import Finding, Severity
from hashidrill.audit.run import audit
from hashidrill.gate.configuration import PRODUCTS, Configuration, Source
from hashidrill.gate.result import Audited


def audited(baseline: Configuration, candidate: Configuration, *, limit: Severity | None) -> Audited:
    """Starts nothing. Findings name files as people know them."""
    before = {source.text for source in baseline.sources}
    changed = [source for source in candidate.sources if source.text not in before]
    if not changed:
        return Audited(limit=limit)
    known = {(each.rule_id, each.message) for each in _findings(baseline, baseline.sources)}
    found = _findings(candidate, candidate.sources)  # together: what one file lacks another one may say
    names = {source.shown for source in changed}
    ours = tuple(each for each in found if each.path in names)
    return Audited(ours, tuple(each for each in ours if (each.rule_id, each.message) not in known), limit)


def _findings(config: Configuration, sources: Sequence[Source]) -> list[Finding]:
    shown = {str(source.path): source.shown for source in sources}
    result = audit([source.path for source in sources], kind=PRODUCTS[config.product])
    return [replace(each, path=shown.get(each.path, each.path)) for each in result.findings]
