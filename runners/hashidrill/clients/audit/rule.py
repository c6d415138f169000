"""A rule: answers whether retry is configured, and sanely, and why. rules.toml has its texts."""

import enum
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hashidrill.clients.audit.audited import Audited
from hashidrill.clients.audit.sources import Document
from hashidrill.clients.audit.tree import Place


class Severity(enum.IntEnum):
    """ERROR: the configured setting cannot serve its purpose. WARNING: users will notice a fault that passes by itself.
    INFO: a default that you should know, and may well keep.
    """

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Hit:
    """A rule's match: place and sentence. `muted`: why it is not a finding after all; "" if it is one."""

    document: Document
    place: Place
    message: str
    muted: str = ""


Check = Callable[["Audited"], Iterator[Hit]]


@dataclass(frozen=True)
class Rule:
    """`source` says where the claim comes from; `verified` names the live test that proves it on the real program."""

    id: str
    name: str
    severity: Severity
    what: str
    why: str
    default: str
    fix: str
    link: str
    source: str
    check: Check
    verified: str | None = None


@dataclass(frozen=True, order=True)
class Finding:
    """A finding that is not suppressed. Sorted by file and line."""

    path: str
    place: Place
    rule_id: str
    message: str
    severity: Severity


REGISTERED: dict[str, Rule] = {}
"""The rules registered so far; `hashidrill.clients.audit.run` imports all modules with rules."""

_WORDS = tomllib.loads((Path(__file__).parent / "rules.toml").read_text(encoding="utf-8"))


def rule(rule_id: str) -> Callable[[Check], Check]:
    """A decorator that registers a check for the rule with this id in rules.toml."""

    def register(check: Check) -> Check:
        words = _WORDS[rule_id]
        REGISTERED[rule_id] = Rule(rule_id, **words | {"severity": Severity[words["severity"].upper()]}, check=check)
        return check

    return register
