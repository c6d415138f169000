"""Hosts that a fault took out of the membership: `heal` still has to reach them.

Consul's autopilot removes a server that does not answer for some seconds. Nobody lists it any more while the fault
that silences it is in force, and once that is reverted it comes back by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.core.engine.inject import open_faults
from hashidrill.core.recording.writer import RESOLVED_NAME
from hashidrill.core.util import foreign
from hashidrill.lab.runs.heal import began_in
from hashidrill.staging.attach.estate import FoundHost

if TYPE_CHECKING:
    from hashidrill.core.recording.ours import OurRun
    from hashidrill.staging.attach.estate import Estate
    from hashidrill.staging.attach.target import AttachTarget


def with_lost(estate: Estate, target: AttachTarget, runs: Mapping[Path, OurRun], tell: Callable[[str], None]) -> Estate:
    """With each host that a fault of these runs may still be in force on, where its run had found it.

    The addresses get the operator's tokens: they are those of resolved.json as this machine wrote it.
    """
    hosts = dict(estate.hosts)
    for run, known in runs.items():
        for found in _hosts_of(run, known, target):
            if found.name not in hosts and all(found.address != host.address for host in hosts.values()):
                hosts[found.name] = found
                tell(
                    f"{found.name} is not a member of {target.name} any more: a fault may have taken it out; what was"
                    f" done to it is reverted, and looked for at {found.address}, where {run.name} had found it"
                )
    return replace(estate, hosts=hosts)


def _hosts_of(run: Path, known: OurRun, target: AttachTarget) -> Iterator[FoundHost]:
    """Those with an open fault, as the experiment over that datacenter has them."""
    if (began_in(known.entries).get("attached") or {}).get("name") != target.name:
        return
    faulted = {str(undo.get("host", "")) for undo in open_faults(known.entries)}
    for name, one in _recorded(run).items():
        if name in faulted:
            roles = {service: str(role) for service, role in one["agents"].items() if service in target.logins}
            urls = {service: target.logins[service].url_of(name, str(one["address"])) for service in roles}
            yield FoundHost(name, str(one["address"]), roles, urls)


def _recorded(run: Path) -> Mapping[str, Any]:
    """By name, address and agents; empty for a run that did not come so far as to resolve its experiment."""
    try:
        hosts = foreign.parse((run / RESOLVED_NAME).read_text())["experiment"]["datacenter"]["attached"]["hosts"]
        return {str(name): {"address": one["address"], "agents": dict(one["agents"])} for name, one in hosts.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
