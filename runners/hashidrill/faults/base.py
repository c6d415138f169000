"""What all built-in faults share: parameters and host are in the undo, so that a fresh process can revert."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from hashidrill.abc import Host, Hosts, Needs, Target, Undo
from hashidrill.model import Strict

P = TypeVar("P", bound=Strict)


class NoParams(Strict):
    """For faults that take none."""


def peers_of(hosts: Hosts, target: Target, who: str) -> list[Host]:
    """The hosts on the other side of a network fault: `all`, `servers`, `clients` or `host:NAME`, never the target."""
    others = [host for host in hosts.all_hosts() if host.name != target.host]
    if who.startswith("host:"):
        return [host for host in others if host.name == who.removeprefix("host:")]
    return [host for host in others if who in ("all", f"{host.role}s")]


def table_of(fault_id: str) -> str:
    """The name of the nft table that belongs to a fault, and to nothing else."""
    return "hashidrill_" + re.sub(r"\W", "_", fault_id)


class BaseFault(Generic[P]):
    """`undo` holds `fault_id`, `kind`, `host`, `agent`, `pid`, `start_time` and `params` (as written in YAML)."""

    kind: ClassVar[str]
    Params: ClassVar[type[Strict]] = NoParams

    def __init__(self, params: P, hosts: Hosts) -> None:
        self.params = params
        self.hosts = hosts

    def needs(self) -> Needs:
        return Needs()

    def plan(self, target: Target, *, fault_id: str) -> Undo:
        return {
            "fault_id": fault_id, "kind": self.kind, "host": target.host, "agent": target.agent, "pid": target.pid,
            "start_time": target.start_time, "params": self.params.model_dump(mode="json", by_alias=True),
            **self.plan_more(target),
        }  # fmt: skip

    def plan_more(self, target: Target) -> dict[str, Any]:
        """What a kind of fault adds to the undo. Pure."""
        return {}

    async def prior(self, target: Target) -> Mapping[str, Any]:
        return {}

    def _host(self, undo: Undo) -> Host:
        return self.hosts.host(undo["host"])
