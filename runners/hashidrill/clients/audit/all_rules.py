"""All rules, by their ids. Importing this registers them."""

from __future__ import annotations

from hashidrill.clients.audit import (
    rules_consul,
    rules_consul_entries,
    rules_nomad,
    rules_nomad_jobs,
    rules_python,
    rules_suppressions,
    rules_vault,
)
from hashidrill.clients.audit.rule import REGISTERED, Rule

_MODULES = (
    rules_consul,
    rules_consul_entries,
    rules_nomad,
    rules_nomad_jobs,
    rules_python,
    rules_suppressions,
    rules_vault,
)
"""Named so that none of them is taken for an import without a use."""

RULES: dict[str, Rule] = dict(sorted(REGISTERED.items()))
"""In the order of their ids, which is that of every list and of the reference page."""
