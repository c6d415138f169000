"""All rules, by their ids. Importing this registers them."""

from __future__ import annotations

from hashidrill.audit import (
    rules_consul,
    rules_consul_entries,
    rules_nomad,
    rules_nomad_jobs,
    rules_python,
    rules_suppressions,
    rules_vault,
)
from hashidrill.audit.rule import RULES

__all__ = ["RULES"]

_MODULES = (
    rules_suppressions,
    rules_consul,
    rules_consul_entries,
    rules_nomad,
    rules_nomad_jobs,
    rules_vault,
    rules_python,
)
"""Named so that none of them is taken for unused; the order is that of the reference page."""
