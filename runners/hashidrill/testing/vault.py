"""A Vault in memory, for tests of Vault's clients: servers that seal, elect, and keep secrets and tokens.

It answers HTTP, so the tested code talks to it as to a real Vault: `VaultApi(transport=vault.transport())`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import ApiAnswer, Target
from hashidrill.core.units import Duration
from hashidrill.products.vault.api import VaultApi
from hashidrill.products.vault.operator import OF_OURS, HostOperator, KeyRing, Keys, Sealed
from hashidrill.products.vault.rights import MOUNT, PROBE_SECRET
from hashidrill.testing.fakes import FakeDatacenter, FakeHost
from hashidrill.testing.snapshots import archive_of

_SNAPSHOT, _POLICIES = "sys/storage/raft/snapshot", "sys/policies/acl"
_SEALED = (503, {"errors": ["Vault is sealed"]})
_DENIED = (403, {"errors": ["permission denied"]})
Answered = tuple[int, Mapping[str, Any]]


def packed(keys: Sequence[str], *, index: int = 100) -> bytes:
    """A snapshot of integrated storage with entries of these keys."""
    state = b""
    for key in keys:
        entry = b"\x0a" + bytes([len(key)]) + key.encode() + b"\x12\x03abc"
        state += bytes([len(entry) & 0x7F | 0x80, len(entry) >> 7]) + entry
    return archive_of(state, index=index)


class FakeVaultHost(FakeHost):
    def __init__(self, name: str, address: str, world: FakeDatacenter, vault: FakeVault) -> None:
        super().__init__(name, address, "server", world)
        self.roles = {"vault": "server"}
        self.vault = vault
        self.config: dict[str, Any] = {"default_lease_ttl": "768h"}
        self.ran_with = self._shown()
        self.process = world.new_process()

    def _shown(self) -> dict[str, Any]:
        """The configuration as sys/config/state/sanitized shows it, with durations in seconds."""
        ttl = self.config.get("default_lease_ttl", "0s")
        return {**self.config, "default_lease_ttl": int(float(Duration(str(ttl))))}

    @property
    def hears(self) -> bool:
        return self.process is not None and self.process.state != "T"

    async def start_agent(self, agent: str) -> None:  # noqa: ARG002 - there is one agent a host
        """A server that starts is sealed."""
        if self.process is None:
            self.process, self.ran_with = self.world.new_process(), self._shown()
            self.vault.sealed.add(self.name)

    async def stop_agent(self, agent: str, *, within_s: float = 15.0) -> None:  # noqa: ARG002 - no time passes here
        self.process = None

    async def api(self, method: str, path: str, **more: Any) -> ApiAnswer:
        """Without a token, the request is anonymous."""
        if not self.hears:
            raise FaultError(f"{self.name}: {method} {path}: no answer")
        body = json.loads(more.get("body") or b"{}")
        status, data = self.vault.answer(self, method, path.removeprefix("/v1/"), "", body)
        return ApiAnswer(status, json.dumps(data).encode(), {})


@dataclass
class FakeVault:
    """Three servers, of which the first is active. `initialized=False`: as they are after their first start."""

    world: FakeDatacenter = field(default_factory=lambda: FakeDatacenter(servers=1, clients=0))
    servers: int = 3
    initialized: bool = True

    def __post_init__(self) -> None:
        self.key, self.root, self.load = (secrets.token_hex(16) for _ in range(3))
        self.tokens = {self.root, self.load} if self.initialized else set()
        self.secrets: dict[str, Any] = {PROBE_SECRET: {"ready": "ready"}} if self.initialized else {}
        self.policies: set[str] = set()
        self.mounts = {f"{MOUNT}/"} if self.initialized else set[str]()
        self.hosts = {
            f"vault-{n}": FakeVaultHost(f"vault-{n}", f"10.73.0.{60 + n}", self.world, self)
            for n in range(1, self.servers + 1)
        }
        self.sealed = set() if self.initialized else {*self.hosts}
        self._active, self._reign = "vault-1", 1
        self.hands_over = True
        """Whether another server takes over if the active one steps down; if not, the same server is active again."""
        self.members = {*self.hosts} if self.initialized else set()
        """The servers that have joined; a new server joins when it is first unsealed."""
        self.joins_after: dict[str, int] = {}
        """By server: after this many more requests for its seal status, a server with its key unseals itself."""
        self.without_vote: set[str] = set()
        self.saved: dict[bytes, tuple[set[str], set[str], dict[str, Any]]] = {}
        self.took: list[tuple[str, str]] = []
        self.asked: list[tuple[str, str, str]] = []
        """(host, method, path) of each request."""
        self.world.hosts.update(self.hosts)

    @property
    def active(self) -> str:
        """The name of the active host; "" if none can be active: a majority must be unsealed and must answer."""
        able = [name for name, host in self.hosts.items() if host.hears and name not in self.sealed]
        if 2 * len(able) <= len(self.members):
            return ""
        if self._active not in able:
            self._reigns(able[0])
        return self._active

    def _reigns(self, name: str) -> None:
        self._active, self._reign = name, self._reign + 1

    def transport(self) -> httpx2.MockTransport:
        def handle(request: httpx2.Request) -> httpx2.Response:
            host = next(one for one in self.hosts.values() if one.address == request.url.host)
            if not host.hears:
                raise httpx2.ConnectError("Connection refused")
            token, path = request.headers.get("X-Vault-Token", ""), request.url.path.removeprefix("/v1/")
            self.asked.append((host.name, request.method, path))
            if path == _SNAPSHOT and token == self.root and host.name not in self.sealed:
                return self._snapshot(request)
            body = json.loads(request.content or b"{}")
            status, data = self.answer(host, request.method, path, token, body)
            return httpx2.Response(status, json=data) if data else httpx2.Response(status)

        return httpx2.MockTransport(handle)

    def api(self, *, transport: object = None) -> VaultApi:  # noqa: ARG002 - as the real one is made
        return VaultApi(transport=self.transport())

    def operated(self, folder: Path, hide: Callable[..., None] = lambda *_: None) -> tuple[KeyRing, Sealed]:
        """Gives each host its operator, as the service does; the keys are in that folder."""
        ring, sealed = KeyRing(folder, hide), Sealed()
        if self.initialized:
            ring.keep(Keys(self.key, self.root, self.load))
        for host in self.hosts.values():
            host.parts |= dict.fromkeys(OF_OURS, HostOperator(host, ring, sealed, self.api))
        return ring, sealed

    def target(self, name: str) -> Target:
        """That host, with its server's process."""
        host = self.hosts[name]
        return Target(name, host.address, "vault", host.process.reference if host.process else "")

    # the API

    def answer(self, host: FakeVaultHost, method: str, path: str, token: str, body: Mapping[str, Any]) -> Answered:
        if path in {"sys/seal-status", "sys/unseal"}:
            return self._unseal(host, body) if path == "sys/unseal" else self._seal_status(host)
        if path == "sys/init":
            return self._init(host)
        if host.name in self.sealed:
            return _SEALED
        if path == "sys/leader":
            address = f"http://{self.hosts[self.active].address}:8200" if self.active else ""
            said = {"ha_enabled": True, "is_self": host.name == self.active, "leader_address": address}
            since = f"2026-01-01T00:00:{self._reign:02}Z" if said["is_self"] else "0001-01-01T00:00:00Z"
            return 200, {**said, "active_time": since}
        if not self.active:
            return 500, {"errors": ["local node not active but active cluster node not found"]}
        of_root = token == self.root
        found = self._read(method, path) if of_root else self._for_others(method, path, token, body)
        return found or self._for_root(host, path, body)

    def _snapshot(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            self.saved[packed := self.packed()] = (set(self.policies), set(self.tokens), dict(self.secrets))
            return httpx2.Response(200, content=packed)
        if request.content not in self.saved:
            return httpx2.Response(400, json={"errors": ["failed to open the sealed hashes"]})
        policies, tokens, kept = self.saved[request.content]
        self.policies, self.tokens, self.secrets = set(policies), set(tokens), dict(kept)
        return httpx2.Response(204)

    def packed(self) -> bytes:
        keys = [
            *(f"sys/policy/{name}" for name in self.policies),
            *(f"sys/token/id/{n}" for n in range(len(self.tokens))),
        ]
        return packed([*keys, *(f"logical/1/2/versions/0/{n}" for n in range(len(self.secrets)))])

    def _seal_status(self, host: FakeVaultHost) -> Answered:
        if host.name in self.joins_after and ("unseal", host.name) in self.took:
            self.joins_after[host.name] -= 1
            if self.joins_after[host.name] < 0:
                del self.joins_after[host.name]
                self.sealed.discard(host.name)
                self.members.add(host.name)
        return 200, {"initialized": self.initialized, "sealed": host.name in self.sealed}

    def _init(self, host: FakeVaultHost) -> Answered:
        if self.initialized:
            return 400, {"errors": ["Vault is already initialized"]}
        self.initialized = True
        self.tokens.add(self.root)
        self._active = host.name
        return 200, {"keys_base64": [self.key], "root_token": self.root}

    def _unseal(self, host: FakeVaultHost, body: Mapping[str, Any]) -> Answered:
        if not self.initialized:
            return 400, {"errors": ["Vault is not initialized"]}
        if body.get("key") == self.key and host.name in self.joins_after:
            self.took.append(("unseal", host.name))
        elif body.get("key") == self.key:
            self.sealed.discard(host.name)
            self.members.add(host.name)
        return self._seal_status(host)

    def _read(self, method: str, path: str) -> Answered | None:
        """The read-only requests of root, and policies."""
        if path.startswith(_POLICIES):
            return self._policy(method, path.removeprefix(_POLICIES).removeprefix("/"))
        if path == "sys/config/state/sanitized":
            return 200, {"data": self.hosts[self.active].ran_with}
        if path == "sys/storage/raft/configuration":
            servers = [{"node_id": name, "voter": name not in self.without_vote} for name in self.hosts]
            return 200, {"data": {"config": {"servers": servers}}}
        return (200, {"data": {mount: {} for mount in self.mounts}}) if path == "sys/mounts" else None

    def _for_root(self, host: FakeVaultHost, path: str, body: Mapping[str, Any]) -> Answered:
        if path == "sys/seal" and host.name != self.active:
            return 500, {"errors": ["vault cannot seal when in standby mode; please restart instead"]}
        if path == "sys/seal":
            self.sealed.add(host.name)
        if path == "sys/step-down":
            able = [name for name, one in self.hosts.items() if one.hears and name not in {*self.sealed, self.active}]
            self._reigns(able[0] if able and self.hands_over else self._active)
        if path.startswith("sys/mounts/"):
            self.mounts.add(path.removeprefix("sys/mounts/") + "/")
        if path == "auth/token/lookup":
            return (200, {"data": {}}) if body["token"] in self.tokens else (403, {"errors": ["bad token"]})
        if path == "auth/token/create-orphan":
            self.tokens.add(body["id"])
        if path == "auth/token/revoke":
            self.tokens.discard(body["token"])
        return 204, {}

    def _policy(self, method: str, name: str) -> Answered:
        if not name:
            return 200, {"data": {"keys": sorted(self.policies)}}
        (self.policies.add if method == "PUT" else self.policies.discard)(name)
        return 204, {}

    def _for_others(self, method: str, path: str, token: str, body: Mapping[str, Any]) -> Answered:
        if token not in self.tokens:
            return _DENIED
        if path == "auth/token/lookup-self":
            return 200, {"data": {"display_name": "hashidrill"}}
        if path.startswith(f"{MOUNT}/data/") and f"{MOUNT}/" in self.mounts:
            if method == "GET":
                known = path in self.secrets
                return (200, {"data": {"data": self.secrets[path]}}) if known else (404, {"errors": []})
            self.secrets[path] = body["data"]
            return 200, {"data": {"version": 1}}
        return _DENIED
