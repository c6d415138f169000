"""Vault in an attached datacenter: how its command line logs in, and discovery of its servers.

The variables are those of https://developer.hashicorp.com/vault/docs/commands#environment-variables (1.21).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import Host
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.rights import Left
from hashidrill.products.vault import leftovers
from hashidrill.products.vault.api import Said, Seal, said_of
from hashidrill.products.vault.model import Vault
from hashidrill.products.vault.operator import VaultOperator
from hashidrill.staging.attach import product
from hashidrill.staging.attach.http import Login, Secret, WeakTokenError, Wire, read_json

_TELLS_WITHIN_S, _SNAPSHOT_WITHIN_S = 2.0, 60.0
_HA = 'path "sys/ha-status" { capabilities = ["read"] }'
_RAFT = 'path "sys/storage/raft/configuration" { capabilities = ["read"] }'


class Part(product.Part):
    """Vault of an attached datacenter."""

    namespace: str | None = Field(default=None, description="Namespace (Enterprise)")


class VaultAttach(product.Product):
    """Vault as a product that can be attached (hashidrill.staging.attach.product.Attachable)."""

    name: ClassVar[str] = "vault"
    Part: ClassVar[type[product.Part]] = Part
    default_address: ClassVar[str] = "https://127.0.0.1:8200"
    port: ClassVar[int] = 8200
    token_header: ClassVar[str] = "X-Vault-Token"  # noqa: S105 - the header's name
    health: ClassVar[str] = "/v1/sys/seal-status"
    alive: ClassVar[str] = "/v1/sys/health?standbyok=true&perfstandbyok=true"
    process: ClassVar[Sequence[str]] = ("vault", "server")
    pods: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "server": {"app.kubernetes.io/name": "vault", "component": "server"}
    }
    leads: ClassVar[Mapping[str, str]] = {"vault-active": "true"}
    variables: ClassVar[Mapping[str, str]] = {
        "address": "VAULT_ADDR",
        "ca_file": "VAULT_CACERT",
        "ca_path": "VAULT_CAPATH",
        "cert_file": "VAULT_CLIENT_CERT",
        "key_file": "VAULT_CLIENT_KEY",
        "server_name": "VAULT_TLS_SERVER_NAME",
        "skip_verify": "VAULT_SKIP_VERIFY",
        "token": "VAULT_TOKEN",
        "namespace": "VAULT_NAMESPACE",
    }

    def headers(self, said: Mapping[str, str]) -> Mapping[str, str]:
        return {"X-Vault-Namespace": said["namespace"]} if "namespace" in said else {}

    def fallback_token(self, environ: Mapping[str, str]) -> tuple[Secret, str]:
        """The token that `vault login` leaves in the home directory."""
        file = Path(environ.get("HOME", "/nonexistent")) / ".vault-token"
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return Secret(), ""
        return Secret(token), f"the file {file}"

    async def discover(self, wire: Wire) -> product.Found:
        """Takes the servers from the active server's list of peers, and from Raft if Vault stores its data there.

        Only Raft lists sealed servers. In pods of the official chart, Raft lists a server as `vault-0.vault-internal`,
        but the active server lists its peers by their pods' addresses: the host name connects the two.
        """
        seal = await read_json(wire, "/v1/sys/seal-status", needs="nothing")
        cluster, notes = str(seal.get("cluster_name", "")), list[str]()
        version = product.version_in(str(seal.get("version", "")))
        heard = (await read_json(wire, "/v1/sys/ha-status", needs=_HA)).get("nodes") or []
        ids, voters = await self._raft(wire, notes) if seal.get("storage_type") == "raft" else ({}, [])
        hostnames = Counter(str(one.get("hostname", "")) for one in heard)
        nodes: dict[str, product.Node] = {}
        leader, raft_names = "", set[str]()
        for one in heard:
            url = str(one.get("api_address", "")).rstrip("/")
            address = urlsplit(url).hostname or ""
            hostname = str(one.get("hostname", ""))
            by_name = next((each for each in ids if hostname and each.partition(".")[0] == hostname), "")
            in_raft = address if address in ids else by_name if hostnames[hostname] == 1 else ""
            raft_names.add(in_raft)
            name = ids.get(in_raft) or (hostname if hostname and hostnames[hostname] == 1 else address)
            nodes[address] = product.Node(name, address, "server", {"cluster": cluster}, url)
            leader = name if one.get("active_node") else leader
        for address, name in ids.items():
            if address not in raft_names:
                nodes[address] = product.Node(name, address, "server", {"cluster": cluster, "status": "not heard of"})
                notes.append(f"{name} is in Raft's configuration but not in the active server's list: sealed, or down")
        return product.Found(list(nodes.values()), version, leader, voters, cluster, notes)

    async def _raft(self, wire: Wire, notes: list[str]) -> tuple[dict[str, str], list[str]]:
        try:
            answer = await read_json(wire, "/v1/sys/storage/raft/configuration", needs=_RAFT)
        except WeakTokenError as weak:
            notes.append(f"the voters are unknown: {weak}")
            return {}, []
        servers = answer["data"]["config"]["servers"]
        ids = {product.host_of(one["address"]): one["node_id"] for one in servers}
        return ids, [one["node_id"] for one in servers if one.get("voter")]

    def parts(self, host: Host, login: Login) -> Mapping[type[Any], Any]:
        """The capability of an operator with a token but no keys; nothing without a token."""
        return {VaultOperator: ApiOperator(host)} if login.token else {}

    async def remove(self, wire: Wire, left: Left) -> int:
        return await leftovers.remove(wire, left)

    def spec(self, found: product.Found) -> Mapping[str, Any]:
        servers = product.at_most(len(found.nodes), Vault.model_fields["servers"])
        storage = "raft" if found.voters else "consul"
        return product.versioned(found, servers=servers, storage=storage, unseal="never")


class ApiOperator:
    """An operator that uses the token with which the datacenter was attached (VaultOperator)."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def seal_status(self) -> Seal:
        said = await self.ask("GET", "sys/seal-status", timeout_s=_TELLS_WITHIN_S)
        if not said.ok:
            return Seal(answered=False, text=said.text)
        return Seal(True, bool(said.data.get("initialized")), bool(said.data.get("sealed", True)))

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0
    ) -> Said:
        content = None if body is None else json.dumps(dict(body)).encode()
        try:
            answer = await self._host.use(AgentApi).api(
                method, f"/v1/{path}", body=content, timeout_s=timeout_s, agent="vault"
            )
        except FaultError as error:
            return Said(0, text=f"{method} {path}: {error}")
        return said_of(f"{method} {path}", answer.status, answer.body)

    async def take_snapshot(self) -> bytes:
        return await self._snapshot("GET")

    async def restore_snapshot(self, packed: bytes) -> None:
        await self._snapshot("POST", packed)

    async def _snapshot(self, method: str, packed: bytes | None = None) -> bytes:
        answer = await self._host.use(AgentApi).api(
            method, "/v1/sys/storage/raft/snapshot", body=packed, timeout_s=_SNAPSHOT_WITHIN_S, agent="vault"
        )
        if not 200 <= answer.status < 300:
            words = answer.body[:200].decode(errors="replace").strip()
            done = "taken" if method == "GET" else "restored"
            raise FaultError(f"{self._host.name}: no snapshot was {done}: HTTP {answer.status} {words}")
        return answer.body


ATTACH = VaultAttach()
