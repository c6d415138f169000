"""The verdict on one question about a client, with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hashidrill.core.judging.verdict import Verdict, merge


@dataclass(frozen=True)
class Judged:
    """One verdict on one fault. `text` is a line for a person, `evidence` the figures behind it.

    `applies`: False where the client has nothing of the kind (no write, no blocking query, no retry to judge). That is
    INVALID as well, but no reason to distrust the rest.
    """

    name: str
    fault: str
    verdict: Verdict
    text: str
    evidence: dict[str, Any] = field(default_factory=dict)
    applies: bool = True

    def as_json(self) -> dict[str, Any]:
        """As `hashidrill retry --json` prints it."""
        evidence = {"text": self.text, **self.evidence}
        if not self.applies:
            evidence["applies"] = False
        return {"name": self.name, "fault": self.fault, "verdict": self.verdict.value, "evidence": evidence}


def passed(name: str, fault: str, text: str, /, **evidence: Any) -> Judged:
    return Judged(name, fault, Verdict.PASS, text, evidence)


def failed(name: str, fault: str, text: str, /, **evidence: Any) -> Judged:
    return Judged(name, fault, Verdict.FAIL, text, evidence)


def unknown(name: str, fault: str, text: str, /, **evidence: Any) -> Judged:
    """INVALID: it should have been measured, and was not."""
    return Judged(name, fault, Verdict.INVALID, text, evidence)


def not_for_it(name: str, fault: str, text: str, /, **evidence: Any) -> Judged:
    """INVALID: the client has nothing that this question is about."""
    return Judged(name, fault, Verdict.INVALID, text, evidence, applies=False)


def overall(judged: Sequence[Judged]) -> Verdict:
    """FAIL over INVALID over PASS, where what does not apply to the client counts for nothing."""
    return merge(one.verdict for one in judged if one.applies)
