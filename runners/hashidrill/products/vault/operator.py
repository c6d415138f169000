"""An operator's work on a Vault server: keep its keys, unseal it, keep it sealed, call it with a token.

The keys are made when Vault is initialised, and kept in one private file of the sandbox, which ends with it. The keys
never appear in a command line, an agent's environment, a recording or a log.

A server that starts is sealed and serves no requests. So a server that restarts during a run is unsealed, as an
auto-unseal or an operator on call would do it. A server that a fault seals on purpose stays sealed (`Sealed`).
"""

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
    """`unseal` opens a sealed server, `root` may do everything, and `load` is the token of hashidrill's loads."""

    unseal: str
    root: str
    load: str

    def __repr__(self) -> str:  # a traceback or an assertion may show it
        return "Keys(...)"


def new_load_token() -> str:
    """A token with a chosen id, so that the same token can be made again after it was revoked."""
    return f"hashidrill-{secrets.token_hex(16)}"


class KeyRing:
    """Keeps the keys of one Vault in a folder, and registers them as secrets before their first use."""

    def __init__(self, folder: Path, hide: Callable[..., None]) -> None:
        self._path = folder / _FILE
        self._hide = hide

    def keep(self, keys: Keys) -> None:
        """Stores the keys. Call it before any key is used."""
        self._hide(*asdict(keys).values())
        write_whole(self._path, json.dumps(asdict(keys)) + "\n")

    @property
    def keys(self) -> Keys:
        """Raises DatacenterError if Vault has no keys yet."""
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
"""To revoke a token, Vault first revokes all tokens that were created with it."""


@runtime_checkable
class VaultOperator(Protocol):
    """Call the host's Vault server as its operator."""

    async def seal_status(self) -> Seal: ...

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0
    ) -> Said:
        """One request to `/v1/PATH`, with the operator's token."""

    async def take_snapshot(self) -> bytes:
        """A snapshot of integrated storage, encrypted as stored. Raises FaultError."""

    async def restore_snapshot(self, packed: bytes) -> None:
        """Makes Vault restore that snapshot; the restore begins some time after Vault's answer. Raises FaultError."""


@runtime_checkable
class VaultKeys(Protocol):
    """Unseal the host's Vault server, and keep it sealed."""

    async def keep_sealed(self, fault_id: str) -> None:
        """Stops hashidrill from unsealing the server. Returns once no attempt is in progress."""

    async def leave(self, fault_id: str) -> None:
        """Allows unsealing again; does nothing if it is allowed."""

    async def unseal(self) -> None:
        """Returns once the server is unsealed. Raises FaultError with the server's last answer."""


@runtime_checkable
class LoadTokens(Protocol):
    """Revoke the token of hashidrill's loads, and create it again."""

    async def revoke_loads(self) -> None:
        """Revokes the token, and all tokens that were created with it. Raises FaultError."""

    async def allow_loads(self) -> None:
        """Creates the same token again; does nothing if it exists. Raises FaultError."""

    async def loads_are_allowed(self) -> Said:
        """The server's answer when the token looks itself up."""


class Sealed:
    """The servers that must stay sealed, and the faults that require it."""

    def __init__(self) -> None:
        self._faults: defaultdict[str, set[str]] = defaultdict(set)
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    def lock(self, host: str) -> anyio.Lock:
        """The lock to hold while unsealing that server."""
        return self._locks[host]

    def stays(self, host: str) -> bool:
        return bool(self._faults[host])

    async def add(self, host: str, fault_id: str) -> None:
        async with self.lock(host):
            self._faults[host].add(fault_id)

    def remove(self, host: str, fault_id: str) -> None:
        self._faults[host].discard(fault_id)


async def try_unseal(api: VaultApi, address: str, key: str, *, timeout_s: float = _TRIED_WITHIN_S) -> Seal:
    """One attempt to unseal. A server refuses it until it has joined the other servers in Raft."""
    said = await api.call(address, "PUT", "sys/unseal", {"key": key}, timeout_s=timeout_s)
    if not said.ok:
        return Seal(answered=said.status != 0, text=said.text)
    return Seal(True, bool(said.data.get("initialized")), bool(said.data.get("sealed", True)))


class HostOperator:
    """The operator of one host of a local datacenter (VaultOperator, VaultKeys, LoadTokens)."""

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
                await wait_until(
                    "the token of hashidrill's loads to be made", allowed, within_s=_ALLOWED_WITHIN_S, gap_s=0.2
                )
        except WaitTimeoutError as error:
            raise FaultError(f"{self._host.name}: {error}") from None

    async def loads_are_allowed(self) -> Said:
        async with self._make_api() as api:
            token = self._ring.keys.load
            return await api.call(self._host.address, "GET", "auth/token/lookup-self", token=token)


OF_OURS: tuple[type[Any], ...] = (VaultOperator, VaultKeys, LoadTokens)
"""The capabilities of a host whose keys hashidrill has."""


LOOK_EVERY_S = 0.25
"""An auto-unseal by a cloud's key service takes about as long."""

Tell = Callable[[str], None]


async def keep_unsealed(api: VaultApi, hosts: Sequence[Host], ring: KeyRing, sealed: Sealed, tell: Tell) -> None:
    """Runs until cancelled. Handles each server independently, so that a hanging one does not keep others sealed."""
    await all_at_once(partial(_watch, api, host, ring, sealed, tell) for host in hosts)


async def _watch(api: VaultApi, host: Host, ring: KeyRing, sealed: Sealed, tell: Tell) -> None:
    while True:
        await look(api, host, ring, sealed, tell)
        await pause(LOOK_EVERY_S)


async def look(api: VaultApi, host: Host, ring: KeyRing, sealed: Sealed, tell: Tell) -> None:
    """Unseals the server if it came up sealed, and notes that."""
    async with sealed.lock(host.name):
        if sealed.stays(host.name):
            return
        seal = await api.seal(host.address)
        if not seal.answered or seal.open:
            return
        if (await try_unseal(api, host.address, ring.keys.unseal)).open:
            tell(f"{host.name}: its vault came up sealed; hashidrill unsealed it (datacenter.vault.unseal: auto)")
