"""Changed keys without effect: the agents themselves report the same of them on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hashidrill.core.protocols.agent_reports import alike
from hashidrill.core.recording.reader import Recording
from hashidrill.rollouts.gate.differences import Differences

Reports = Mapping[str, Mapping[str, Any]]


def without_effect(found: Differences, one: Recording, other: Recording) -> dict[str, str]:
    """The changes of which all agents that they are for report the same in both runs, each with what they report.

    By `Change.named`. Where an agent did not report, nothing is known: neither of it, nor of the others.
    """
    reports: list[Reports] = [run.run.get("reported", {}).get(found.product, {}) for run in (one, other)]
    roles = [_roles(found.product, run) for run in (one, other)]
    if roles[0] != roles[1] or any(set(each) != set(roles[0]) for each in reports):
        return {}
    told = {}
    for change in found.changes:
        whose = {change.role} if change.role else {*found.of}
        said = [
            alike(found.product, change.key, (change.baseline, change.candidate), reports[0][host], reports[1][host])
            for host, role in roles[0].items()
            if whose & {"all", role}
        ]
        if None not in said and any(said):
            told[change.named] = next(each for each in said if each)
    return told


def reports_differ(found: Differences, one: Recording, other: Recording) -> bool:
    """Whether the agents report anything else than on the other side: a key may show under another name."""
    said = [run.run.get("reported", {}).get(found.product) for run in (one, other)]
    return bool(said[0] != said[1])


def _roles(product: str, run: Recording) -> dict[str, str]:
    return {each["name"]: each["agents"][product] for each in run.run.get("hosts", ()) if product in each["agents"]}
