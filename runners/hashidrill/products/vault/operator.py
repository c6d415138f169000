"""What an operator does with a Vault server: keeps its keys, unseals it, leaves it sealed, and asks it with a token.

The keys are made when Vault is initialised, and kept in one private file of the sandbox, which ends with it. Nothing
else ever holds them: no command line, no environment of an agent, no recording, no log.

A server that starts is sealed and serves nobody. So what restarts during a run is unsealed, as an auto-unseal or an
operator on call would do it. What a fault seals on purpose stays sealed (`Sealed`).
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import anyio

from hashidrill.core.errors import DatacenterError, FaultError, WaitTimeoutError
from hashidrill.core.protocols.abc import Host
from hashidrill.core.util.files import write_whole
from hashidrill.core.util.wait import all_at_once, pause, wait_until
from hashidrill.products.vault.api import Said, Seal, VaultApi
from hashidrill.products.vault.rights import allow_loads

_FILE = "keys.json"


@dataclass(frozen=True)
class Keys:
    """`unseal` opens a sealed server, `root` may do everything, and `load` is the token of our own loads."""

    unseal: str
    root: str
    load: str

    def __repr__(self) -> str:  # a traceback or an assertion may show it
        return "Keys(...)"


def new_load_token() -> str:
    """Of our own choice: so that it can be made again as it was, after somebody revoked it."""
    return f"hashidrill-{secrets.token_hex(16)}"


class KeyRing:
    """Keeps the keys of one Vault in a folder, and has them hidden before anybody can read them anywhere."""

    def __init__(self, folder: Path, hide: Callable[..., None]) -> None:
        self._path = folder / _FILE
        self._hide = hide

    def keep(self, keys: Keys) -> None:
        """Before any of them is used."""
        self._hide(*asdict(keys).values())
        write_whole(self._path, json.dumps(asdict(keys)) + "\n")

    @property
    def keys(self) -> Keys:
        """Raises DatacenterError before there are any."""
        try:
            written: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            raise DatacenterError("Vault is not initialised yet: it has no keys") from None
        return Keys(**written)


_UNSEALED_WITHIN_S = 30.0
_ALLOWED_WITHIN_S = 30.0
_TRIED_WITHIN_S = 2.0
_SNAPSHOT_WITHIN_S = 30.0
_REVOKED_WITHIN_S = 10.0
"""Revoking a token revokes all that were made with it first."""


@runtime_checkable
class VaultOperator(Protocol):
    """Ask the host's Vault server as its operator."""

    async def seal_status(self) -> Seal: ...

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0
    ) -> Said:
        """One request to `/v1/PATH`, with the operator's token."""

    async def take_snapshot(self) -> bytes:
        """Of integrated storage, encrypted as it is stored. Raises FaultError."""

    async def restore_snapshot(self, packed: bytes) -> None:
        """Has Vault restore that: it begins some time after it has answered. Raises FaultError."""


@runtime_checkable
class VaultKeys(Protocol):
    """Unseal the host's Vault server, and keep it sealed."""

    async def keep_sealed(self, fault_id: str) -> None:
        """From now on, hashidrill does not unseal it. Returns once nobody is about to."""

    async def leave(self, fault_id: str) -> None:
        """Ends that again; nothing when it was not so."""

    async def unseal(self) -> None:
        """Returns once it is unsealed. Raises FaultError with what it said last."""


@runtime_checkable
class LoadTokens(Protocol):
    """Revoke the token of our own loads, and make it again."""

    async def revoke_loads(self) -> None:
        """Revokes it, and those that were made with it. Raises FaultError."""

    async def allow_loads(self) -> None:
        """Makes that token again, as it was; nothing when it is there. Raises FaultError."""

    async def loads_are_allowed(self) -> Said:
        """What this server answers to that token, about itself."""


class Sealed:
    """Which servers are to stay sealed, and for which faults."""

    def __init__(self) -> None:
        self._faults: defaultdict[str, set[str]] = defaultdict(set)
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    def lock(self, host: str) -> anyio.Lock:
        """Held by whoever unseals that server."""
        return self._locks[host]

    def stays(self, host: str) -> bool:
        return bool(self._faults[host])

    async def add(self, host: str, fault_id: str) -> None:
        async with self.lock(host):
            self._faults[host].add(fault_id)

    def remove(self, host: str, fault_id: str) -> None:
        self._faults[host].discard(fault_id)


async def try_unseal(api: VaultApi, address: str, key: str, *, timeout_s: float = _TRIED_WITHIN_S) -> Seal:
    """One attempt. A server that has yet to join Raft's others says no until it has."""
    said = await api.call(address, "PUT", "sys/unseal", {"key": key}, timeout_s=timeout_s)
    if not said.ok:
        return Seal(answered=said.status != 0, text=said.text)
    return Seal(True, bool(said.data.get("initialized")), bool(said.data.get("sealed", True)))


class HostOperator:
    """The operator of one host of a datacenter of ours (VaultOperator, VaultKeys, LoadTokens)."""

    def __init__(self, host: Host, ring: KeyRing, sealed: Sealed, make_api: Callable[[], VaultApi] = VaultApi) -> None:
        self._host, self._ring, self._sealed, self._make_api = host, ring, sealed, make_api

    async def keep_sealed(self, fault_id: str) -> None:
        await self._sealed.add(self._host.name, fault_id)

    async def leave(self, fault_id: str) -> None:
        self._sealed.remove(self._host.name, fault_id)

    async def unseal(self) -> None:
        async def unsealed() -> tuple[bool | None, str]:
            async with self._sealed.lock(self._host.name):
                seal = await api.seal(self._host.address)
                if not seal.open:
                    seal = await try_unseal(api, self._host.address, self._ring.keys.unseal)
            return (True if seal.open else None), str(seal)

        try:
            async with self._make_api() as api:
                await wait_until(
                    f"vault on {self._host.name} to be unsealed", unsealed, within_s=_UNSEALED_WITHIN_S, gap_s=0.1
                )
        except WaitTimeoutError as error:
            raise FaultError(str(error)) from None

    async def seal_status(self) -> Seal:
        async with self._make_api() as api:
            return await api.seal(self._host.address)

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0
    ) -> Said:
        async with self._make_api() as api:
            token = self._ring.keys.root
            return await api.call(self._host.address, method, path, body, token=token, timeout_s=timeout_s)

    async def take_snapshot(self) -> bytes:
        return await self._raft_snapshot("GET")

    async def restore_snapshot(self, packed: bytes) -> None:
        await self._raft_snapshot("POST", packed)

    async def _raft_snapshot(self, method: str, packed: bytes = b"") -> bytes:
        async with self._make_api() as api:
            said, answer = await api.raw(
                self._host.address,
                method,
                "sys/storage/raft/snapshot",
                packed,
                token=self._ring.keys.root,
                timeout_s=_SNAPSHOT_WITHIN_S,
            )
        if not said.ok:
            raise FaultError(
                f"{self._host.name}: no snapshot was {'taken' if method == 'GET' else 'restored'}: {said.text}"
            )
        return answer

    async def revoke_loads(self) -> None:
        said = await self.ask("POST", "auth/token/revoke", {"token": self._ring.keys.load}, timeout_s=_REVOKED_WITHIN_S)
        if not said.ok:
            raise FaultError(f"{self._host.name}: the token was not revoked: {said.text}")

    async def allow_loads(self) -> None:
        async def allowed() -> tuple[bool | None, str]:
            said = await allow_loads(
                partial(api.call, self._host.address, timeout_s=_REVOKED_WITHIN_S), keys.root, keys.load
            )
            return (True if said.ok else None), said.text

        keys = self._ring.keys
        try:
            async with self._make_api() as api:  # a token that is being revoked cannot be made again at once
                await wait_until("the token of our loads to be made", allowed, within_s=_ALLOWED_WITHIN_S, gap_s=0.2)
        except WaitTimeoutError as error:
            raise FaultError(f"{self._host.name}: {error}") from None

    async def loads_are_allowed(self) -> Said:
        async with self._make_api() as api:
            token = self._ring.keys.load
            return await api.call(self._host.address, "GET", "auth/token/lookup-self", token=token)


OF_OURS: tuple[type[Any], ...] = (VaultOperator, VaultKeys, LoadTokens)
"""What can be done to a host whose keys we have."""


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
