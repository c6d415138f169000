"""Seals a server: it runs, answers, and serves nobody until somebody brings the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import BaseFault, Cases, NoParams
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi, ProcessControl
from hashidrill.core.protocols.claims import AGENT, START, needs, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.wait import wait_until
from hashidrill.products.vault import rights
from hashidrill.products.vault.faults import seen
from hashidrill.products.vault.operator import VaultKeys, VaultOperator
from hashidrill.products.vault.policy import PROBE_SECRET

_SEALED_WITHIN_S = 20.0


class Seal(BaseFault[NoParams]):
    """Seals the server, and keeps it sealed. Vault seals only its active server on request: a standby is restarted.

    Limits: on `vault:active`, another server takes over, so the fault is also a failover. A sealed server has no vote
    in integrated storage: sealing two of three is an outage.
    """

    kind: ClassVar[str] = "vault.seal"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, ProcessControl, VaultKeys, VaultOperator})
    observer: ClassVar[Observer] = Observer(
        "how the server answers a request for a secret", "Vault's HTTP API, which also takes the request to seal"
    )
    cases: ClassVar[Cases] = Cases(on=(("vault:one-standby", {}), ("vault:active", {})))

    def rights(self) -> Sequence[Right]:
        return rights.path("sys/seal", "update", "sudo")

    @property
    def observed_within_s(self) -> float:
        """A server that was unsealed still has to find the active one before it can pass a request on."""
        return 30.0

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), takes(AGENT), needs(START))

    def troubles(self, place: Place) -> Iterable[Trouble]:
        return seen.only_on_vault(self.kind, place)

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a server that is sealed already: nothing would change."""
        host = self.hosts.host(target.host)
        seal = await host.use(VaultOperator).seal_status()
        if not seal.open:
            raise FaultError(f"{target.host}: its vault cannot be sealed: {seal}")
        return {"active": target.host in await seen.actives(self.hosts)}

    async def apply(self, undo: Undo) -> None:
        host = self._host(undo)
        operator = host.use(VaultOperator)
        await host.use(VaultKeys).keep_sealed(undo["fault_id"])
        if undo["prior"]["active"]:
            said = await operator.ask("PUT", "sys/seal", timeout_s=_SEALED_WITHIN_S)
            if not said.ok:
                raise FaultError(f"{host.name}: it was not sealed: {said.text}")
            return
        process = host.use(ProcessControl)
        await process.stop_agent(seen.AGENT)
        await process.start_agent(seen.AGENT)

        async def answers() -> tuple[bool | None, str]:
            seal = await operator.seal_status()
            return (True if seal.answered and seal.initialized else None), str(seal)

        await wait_until(f"vault on {host.name} to start again", answers, within_s=_SEALED_WITHIN_S)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        served = await seen.asked_for_a_secret(self._host(undo), PROBE_SECRET)
        asked = (
            "a request for a secret is answered: Vault is sealed" if present else "a request is refused for its token"
        )
        return Evidence(
            served.sealed if present else served.refuses,
            asked,
            f"HTTP {served.status} {served.words}" if served.status else served.words,
            {"status": served.status},
        )

    async def revert(self, undo: Undo) -> None:
        operator = self._host(undo).use(VaultKeys)
        await operator.leave(undo["fault_id"])
        await operator.unseal()
