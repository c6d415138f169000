"""The machine that a local chaosd runs on, for the faults of Chaos Mesh (core.protocols.capabilities.ChaosMachine)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.commands import tool
from hashidrill.kubernetes.lab_plane import NAMESPACE
from hashidrill.lab.provision.packages import CHAOSD_PACKAGES, install_command

if TYPE_CHECKING:
    from hashidrill.kubernetes.chaos_mesh.objects import AimedAt
    from hashidrill.kubernetes.client import Connect

LASTS_S = 3600.0
"""Seconds after which the controller reverts an object; in a local datacenter everything ends earlier anyway."""
CHAOSD_TOOLS = {
    "stress-cpu": ("stress-ng",),
    "network-partition": ("iptables", "ipset"),
    "network-bandwidth": ("iptables", "tc"),
}
"""The programs that chaosd starts for an action; this machine must have them."""


def lacking(*tools: str) -> str:
    """The missing tools, and how to get them; "" if none is missing."""
    missing = [name for name in tools if tool(name) is None]
    if not missing:
        return ""
    command = install_command(*dict.fromkeys(CHAOSD_PACKAGES[name] for name in missing))
    return f"this machine has no {' and no '.join(missing)}, which chaosd starts; get it with: {command}"


@dataclass(frozen=True)
class Machine:
    """One local host. Each request opens its own connection, because a Machine does not know when its datacenter ends.

    `tell` receives the reason of a long wait. `connect` is for tests.
    """

    kubeconfig: Path
    url: str
    netem: bool = False
    """No fault on a local host needs netem."""
    tell: Callable[[str], None] = lambda _: None
    connect: Connect | None = None
    _deleted_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def object_of(self, kind: str, fault_id: str) -> Mapping[str, str]:
        from hashidrill.kubernetes.objects import Owned  # noqa: PLC0415 - lightkube takes long to import

        name = Owned("local", "local", "hashidrill", LASTS_S).named(f"{self.url}-{fault_id}")
        return {"kind": kind, "name": name, "namespace": NAMESPACE}

    async def check(self, kind: str, spec: Mapping[str, Any], rights: Sequence[Right] = ()) -> None:
        """Raises FaultError, also if this machine lacks a program that chaosd starts: chaosd reports that only late."""
        if missing := lacking(*CHAOSD_TOOLS.get(str(spec.get("action")), ())):
            raise FaultError(missing)
        async with self._aimed() as aimed:
            await aimed.check(kind, spec, rights)

    async def create(self, made: Mapping[str, str], spec: Mapping[str, Any], *, once: bool) -> None:
        async with self._aimed() as aimed:
            await aimed.create(made, spec, once=once)

    async def said(self, made: Mapping[str, str]) -> str:
        async with self._aimed() as aimed:
            return await aimed.said(made)

    async def remove(self, made: Mapping[str, str]) -> None:
        async with self._aimed() as aimed:
            await aimed.remove(made)

    @asynccontextmanager
    async def _aimed(self) -> AsyncIterator[AimedAt]:
        from hashidrill.kubernetes.chaos_mesh.objects import of_machine  # noqa: PLC0415 - lightkube takes long to import
        from hashidrill.kubernetes.client import cluster_of, connected  # noqa: PLC0415 - as above
        from hashidrill.kubernetes.objects import Owned  # noqa: PLC0415 - as above

        owned = Owned("local", "local", "hashidrill", LASTS_S)
        settings = {"kubeconfig": str(self.kubeconfig)}
        async with connected(settings, self.connect or cluster_of) as cluster:
            cluster.tell, cluster.deleted_s = self.tell, self._deleted_s
            yield of_machine(cluster, owned, self.url, netem=self.netem)
