"""What a rule is: an answer to "is retry configured here, and sanely?", with its reasons."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hashidrill.clients.audit.tree import Place

if TYPE_CHECKING:
    from hashidrill.clients.audit.audited import Audited
    from hashidrill.clients.audit.sources import Document


class Severity(enum.IntEnum):
    """How much it matters. ERROR: what is configured cannot do what it is for. WARNING: a fault that passes by itself
    will be felt. INFO: a default that one should know, and may well keep.
    """

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Hit:
    """Where a rule found something, and what, in one sentence. `muted`: why it is not a finding after all."""

    document: Document
    place: Place
    message: str
    muted: str = ""


Check = Callable[["Audited"], Iterator[Hit]]


@dataclass(frozen=True)
class Rule:
    """`source` says where the claim was read; `verified` names the live test that showed it on the real binary."""

    id: str
    name: str
    severity: Severity
    what: str
    why: str
    default: str
    fix: str
    link: str
    source: str
    verified: str | None
    check: Check


@dataclass(frozen=True, order=True)
class Finding:
    """A hit that stands. Sorted by file and line."""

    path: str
    place: Place
    rule_id: str
    message: str
    severity: Severity


REGISTERED: dict[str, Rule] = {}
"""What `rule` has registered so far; `hashidrill.clients.audit.all_rules` imports all of them."""


def rule(
    rule_id: str,
    name: str,
    severity: Severity,
    *,
    what: str,
    why: str,
    default: str,
    fix: str,
    link: str,
    source: str,
    verified: str | None = None,
) -> Callable[[Check], Check]:
    """Registers the check below it as a rule."""

    def register(check: Check) -> Check:
        assert rule_id not in REGISTERED, f"two rules are called {rule_id}"
        REGISTERED[rule_id] = Rule(rule_id, name, severity, what, why, default, fix, link, source, verified, check)
        return check

    return register
