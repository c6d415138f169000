"""Two views of the same services: Nomad's, of the allocations that should run, and Consul's, of what is registered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ALLOC = "hashidrill-alloc"
"""In the meta data of each registration; Nomad fills it in."""
META = {ALLOC: "${NOMAD_ALLOC_ID}"}
MISSING, CRITICAL, STALE, DUPLICATE = "missing", "critical", "stale", "duplicate"
KINDS_OF_WRONG = (MISSING, CRITICAL, STALE, DUPLICATE)


@dataclass(frozen=True)
class Wrong:
    """A registration that is not what Nomad runs: `missing` of an instance, the others of an allocation's entry."""

    kind: str
    of: str


def running(allocs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The names of the allocations that Nomad's servers know to run, and want to run, by id."""
    return {
        alloc["ID"]: alloc["Name"]
        for alloc in allocs
        if alloc["ClientStatus"] == "running" and alloc["DesiredStatus"] == "run"
    }


def wrong(allocs: Iterable[Mapping[str, Any]], entries: Iterable[Mapping[str, Any]]) -> dict[Wrong, str]:
    """What Consul's entries (of `/v1/health/service/NAME`) have wrong, and where it is, in words.

    An entry of an allocation that starts is early, not stale: the agent on its node registers it before Nomad's servers
    hear that it runs. An allocation that is `unknown` (its node is away) may well run: its entry is neither.
    """
    allocs, entries = list(allocs), list(entries)
    here = running(allocs)
    may_run = {
        alloc["ID"]
        for alloc in allocs
        if alloc["DesiredStatus"] == "run" and alloc["ClientStatus"] in {"pending", "running", "unknown"}
    }
    found: dict[Wrong, str] = {}
    number = Counter(_alloc(entry) for entry in entries)
    for entry in entries:
        alloc, node = _alloc(entry), str(entry["Node"]["Node"])
        if alloc not in may_run:
            found[Wrong(STALE, alloc)] = node
        elif number[alloc] > 1:
            found[Wrong(DUPLICATE, alloc)] = node
        elif alloc in here and not _passing(entry):
            found[Wrong(CRITICAL, alloc)] = node
    for alloc, name in here.items():
        if alloc not in number:
            found[Wrong(MISSING, name)] = ""
    return found


def _alloc(entry: Mapping[str, Any]) -> str:
    """Its id; of an entry that Nomad did not write, what it is registered as."""
    return str((entry["Service"].get("Meta") or {}).get(ALLOC) or entry["Service"]["ID"])


def _passing(entry: Mapping[str, Any]) -> bool:
    return all(check["Status"] in {"passing", "warning"} for check in entry["Checks"])
