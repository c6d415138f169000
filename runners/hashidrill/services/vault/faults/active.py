"""Has the active server step down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from hashidrill.abc import Claim, Evidence, Observer, Place, Target, Trouble, Undo
from hashidrill.capabilities import AgentApi
from hashidrill.claims import ANSWERS, EVERYWHERE, needs, takes
from hashidrill.errors import FaultError
from hashidrill.faults.base import BaseFault, NoParams
from hashidrill.services.vault.faults import seen
from hashidrill.services.vault.operator import VaultOperator

_STEPPED_WITHIN_S = 20.0


class StepDown(BaseFault[NoParams]):
    """Makes another server active, once. The one that stepped down does not compete for 10 s."""

    kind: ClassVar[str] = "vault.step_down"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, VaultOperator})
    observer: ClassVar[Observer] = Observer(
        "what each server says of itself at sys/leader", "Vault's HTTP API, which also takes the request to step down"
    )
    once: ClassVar[bool] = True

    @property
    def observed_within_s(self) -> float:
        """A server that takes over restores its leases first. Measured: 1 s with integrated storage, 2 s on Consul."""
        return 15.0

    def uses(self, place: Place) -> Sequence[Claim]:
        alone = takes(seen.ACTIVE, "both are about which server is active", where=EVERYWHERE, local=False)
        return (*super().uses(place), needs(ANSWERS), alone)

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from seen.only_on_vault(self.kind, place)
        if place.many and len(place.hosts) > 1:
            yield ("on",), f"{self.kind} is put on one server, and {place.on} may be several; write vault:active"

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a server that is not active, and where no other could take over."""
        active = await seen.actives(self.hosts)
        if active != [target.host]:
            raise FaultError(f"{target.host} is not active, {', '.join(active) or 'nobody'} is; put it on vault:active")
        others = [host for host in seen.servers_of(self.hosts) if host.name != target.host]
        able = [host.name for host in others if (await host.use(VaultOperator).seal_status()).open]
        if not able:
            raise FaultError(f"{target.host}: no other server is unsealed, so that none could take over")
        return {"standbys": able}

    async def apply(self, undo: Undo) -> None:
        said = await self._host(undo).use(VaultOperator).ask("PUT", "sys/step-down", timeout_s=_STEPPED_WITHIN_S)
        if not said.ok:
            raise FaultError(f"{undo['host']}: it did not step down: {said.text}")

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """In force: another one is active. Gone: one is."""
        active = await seen.actives(self.hosts)
        others = [name for name in active if name != undo["host"]]
        return Evidence(
            len(active) == 1 and (not present or active == others),
            f"another server than {undo['host']} is active" if present else "one server is active",
            f"active: {', '.join(active) or 'none'}",
        )

    async def revert(self, undo: Undo) -> None:
        """Nothing: which server is active is nobody's right."""


KINDS = (StepDown,)
