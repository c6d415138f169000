"""Unseals servers that restart during a run, as an auto-unseal or an operator on call would.

A Vault server that starts is sealed and serves nobody. Without this, each fault that restarts one would leave it so for
the rest of the run. What a fault seals on purpose stays sealed (`Sealed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hashidrill.core.protocols.abc import Host
from hashidrill.core.util.wait import all_at_once, pause
from hashidrill.products.vault.api import VaultApi
from hashidrill.products.vault.keys import KeyRing
from hashidrill.products.vault.operator import Sealed, try_unseal

LOOK_EVERY_S = 0.25
"""An auto-unseal by a cloud's key service takes about as long."""

Tell = Callable[[str], None]


async def keep_unsealed(api: VaultApi, hosts: Sequence[Host], ring: KeyRing, sealed: Sealed, tell: Tell) -> None:
    """Until cancelled. Each server on its own: one that hangs keeps no other sealed."""
    await all_at_once(partial(_watch, api, host, ring, sealed, tell) for host in hosts)


async def _watch(api: VaultApi, host: Host, ring: KeyRing, sealed: Sealed, tell: Tell) -> None:
    while True:
        await look(api, host, ring, sealed, tell)
        await pause(LOOK_EVERY_S)


async def look(api: VaultApi, host: Host, ring: KeyRing, sealed: Sealed, tell: Tell) -> None:
    """Unseal it if it came up sealed, and tell so."""
    async with sealed.lock(host.name):
        if sealed.stays(host.name):
            return
        seal = await api.seal(host.address)
        if not seal.answered or seal.open:
            return
        if (await try_unseal(api, host.address, ring.keys.unseal)).open:
            tell(f"{host.name}: its vault came up sealed; hashidrill unsealed it (datacenter.vault.unseal: auto)")
