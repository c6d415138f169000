"""Revokes the token that our own loads use, as if somebody had taken it for a leaked one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import BaseFault, Cases, NoParams
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.claims import ANSWERS, EVERYWHERE, needs, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.products.vault import rights
from hashidrill.products.vault.faults import seen
from hashidrill.products.vault.operator import LoadTokens

_TOKEN = "the token of our loads"  # noqa: S105 - what the claim is about


class TokenRevoke(BaseFault[NoParams]):
    """Revokes the token of the loads: whatever they ask is refused with 403. Reverting makes the same token again.

    Tokens that were made with it (`vault.token.churn`) are revoked as well, and stay so.

    Limits: Vault also revokes every token that was made with it: those of `vault.token.churn` are gone for good, and
    `no_acknowledged_write_lost` on that load says so.
    """

    kind: ClassVar[str] = "vault.token.revoke"
    at_a_time: ClassVar[int | None] = 0
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, LoadTokens})
    observer: ClassVar[Observer] = Observer(
        "what another server answers to a look-up with that token",
        "Vault's HTTP API, which also takes the request; a standby asks the active server",
    )
    cases: ClassVar[Cases] = Cases(on=(("vault:active", {}),))

    def uses(self, place: Place) -> Sequence[Claim]:
        alone = takes(_TOKEN, "both revoke the same token", where=EVERYWHERE, local=False)
        return (*super().uses(place), needs(ANSWERS), alone)

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from seen.only_on_vault(self.kind, place)
        if place.many and len(place.hosts) > 1:
            yield ("on",), f"{self.kind} is put on one server, and {place.on} may be several; write vault:active"

    def rights(self) -> Sequence[Right]:
        return rights.path("auth/token/revoke", "update")

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError where the token is refused already."""
        said = await self.hosts.host(target.host).use(LoadTokens).loads_are_allowed()
        if not said.ok:
            raise FaultError(f"{target.host}: the token of our loads is refused already: {said.text}")
        return {}

    async def apply(self, undo: Undo) -> None:
        await self._host(undo).use(LoadTokens).revoke_loads()

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        servers = seen.servers_of(self.hosts)
        other = next((host for host in servers if host.name != undo["host"]), self._host(undo))
        said = await other.use(LoadTokens).loads_are_allowed()
        return Evidence(
            said.status == 403 if present else said.ok,
            "the token is refused (403)" if present else "the token is known (200)",
            f"{other.name}: {said.text}",
            {"status": said.status},
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(LoadTokens).allow_loads()
