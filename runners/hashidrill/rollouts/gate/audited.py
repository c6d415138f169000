"""The audit of a gate: of the files that changed, what the candidate's have that the baseline's have not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hashidrill.clients.audit.rule import Finding, Severity
from hashidrill.clients.audit.run import audit
from hashidrill.rollouts.gate.configuration import PRODUCTS, Source
from hashidrill.rollouts.gate.result import Audited


def audited(
    product: str, baseline: Sequence[Source], candidate: Sequence[Source], *, limit: Severity | None
) -> Audited:
    """Starts nothing. Findings name files as people know them.

    A file that is gone changes what the others come to: what is new since then counts, wherever it stands.
    """
    if [source.text for source in baseline] == [source.text for source in candidate]:
        return Audited(limit=limit)
    before = {source.text for source in baseline}
    names = {source.shown for source in candidate if source.text not in before}
    known = {(each.rule_id, each.message) for each in _findings(product, baseline)}
    found = _findings(product, candidate)  # together: what one file lacks another one may say
    new = tuple(each for each in found if (each.rule_id, each.message) not in known)
    return Audited(tuple(each for each in found if each.path in names or each in new), new, limit)


def _findings(product: str, sources: Sequence[Source]) -> list[Finding]:
    shown = {str(source.path): source.shown for source in sources}
    result = audit([source.path for source in sources], kind=PRODUCTS[product])
    return [replace(each, path=shown.get(each.path, each.path)) for each in result.findings]
