"""What all built-in faults share: parameters and host are in the undo, so that a fresh process can revert."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from hashidrill.abc import Host, Hosts, Needs, Target, Undo
from hashidrill.errors import FaultError
from hashidrill.experiment.model import Strict
from hashidrill.util.wait import pause

P = TypeVar("P", bound=Strict)
F = TypeVar("F")
Prior: TypeAlias = Callable[[F, Target], Coroutine[Any, Any, Mapping[str, Any]]]
_BASELINES, _GAP_S = 3, 0.1


def patient(prior: Prior[F]) -> Prior[F]:
    """A baseline that the fault cannot be told from is taken again: the machine may have been busy for a moment."""

    @wraps(prior)
    async def taken(fault: F, target: Target) -> Mapping[str, Any]:
        for _ in range(_BASELINES - 1):
            try:
                return await prior(fault, target)
            except FaultError:
                await pause(_GAP_S)
        return await prior(fault, target)

    return taken


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
    """`undo` holds `fault_id`, `kind`, `host`, `agent`, `reference` and `params` (as written in YAML)."""

    kind: ClassVar[str]
    Params: ClassVar[type[Strict]] = NoParams

    def __init__(self, params: P, hosts: Hosts) -> None:
        self.params = params
        self.hosts = hosts

    def needs(self) -> Needs:
        return Needs()

    def plan(self, target: Target, *, fault_id: str) -> Undo:
        return {
            "fault_id": fault_id, "kind": self.kind, "host": target.host, "agent": target.agent,
            "reference": target.reference, "params": self.params.model_dump(mode="json", by_alias=True),
            **self.plan_more(target),
        }  # fmt: skip

    def plan_more(self, target: Target) -> dict[str, Any]:
        """What a kind of fault adds to the undo. Pure."""
        return {}

    async def prior(self, target: Target) -> Mapping[str, Any]:
        return {}

    def _host(self, undo: Undo) -> Host:
        return self.hosts.host(undo["host"])
