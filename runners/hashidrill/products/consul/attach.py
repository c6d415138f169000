"""Consul in an attached datacenter: how its command line logs in, and discovery from its catalog and Raft.

The variables are those of https://developer.hashicorp.com/consul/commands#environment-variables (1.22).
"""

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from hashidrill.core.errors import AttachError
from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.core.protocols.rights import Left
from hashidrill.products.consul import leftovers
from hashidrill.products.consul.model import Consul
from hashidrill.staging.attach import product
from hashidrill.staging.attach.http import WeakTokenError, Wire, parsed, read

_ALIVE, _LEFT = 1, 3
_RPC_PORT = 8300
_STATES = {2: "leaving", 4: "failed"}
_FILTERED = "x-consul-results-filtered-by-acls"
_NODES = 'node_prefix "" { policy = "read" }'
_OPERATOR = 'operator = "read"'


class Part(product.Part):
    """Consul of an attached datacenter."""

    namespace: str | None = Field(default=None, description="Namespace (Enterprise)")
    partition: str | None = Field(default=None, description="Admin partition (Enterprise)")


class ConsulAttach(product.Product):
    """Consul as a product that can be attached (hashidrill.staging.attach.product.Attachable)."""

    name: ClassVar[str] = "consul"
    Part: ClassVar[type[product.Part]] = Part
    default_address: ClassVar[str] = "127.0.0.1:8500"
    port: ClassVar[int] = 8500
    token_header: ClassVar[str] = "X-Consul-Token"  # noqa: S105 - the header's name
    health: ClassVar[str] = "/v1/status/leader"
    alive: ClassVar[str] = "/v1/status/leader"
    writes_nothing: ClassVar[str] = "/v1/kv/hashidrill/nothing/canary"
    large: ClassVar[str] = "/v1/agent/self"
    process: ClassVar[Sequence[str]] = ("consul", "agent")
    pods: ClassVar[Mapping[str, Mapping[str, str]]] = {
        role: {"app": "consul", "component": role} for role in ("server", "client")
    }
    variables: ClassVar[Mapping[str, str]] = {
        "address": "CONSUL_HTTP_ADDR",
        "ssl": "CONSUL_HTTP_SSL",
        "verify": "CONSUL_HTTP_SSL_VERIFY",
        "ca_file": "CONSUL_CACERT",
        "ca_path": "CONSUL_CAPATH",
        "cert_file": "CONSUL_CLIENT_CERT",
        "key_file": "CONSUL_CLIENT_KEY",
        "server_name": "CONSUL_TLS_SERVER_NAME",
        "token": "CONSUL_HTTP_TOKEN",
        "token_file": "CONSUL_HTTP_TOKEN_FILE",
        "http_auth": "CONSUL_HTTP_AUTH",
        "namespace": "CONSUL_NAMESPACE",
        "partition": "CONSUL_PARTITION",
    }

    def headers(self, said: Mapping[str, str]) -> Mapping[str, str]:
        """Namespace and partition, and the name and password for a proxy in front of Consul (CONSUL_HTTP_AUTH)."""
        found = {"X-Consul-Namespace": said.get("namespace"), "X-Consul-Partition": said.get("partition")}
        if "http_auth" in said:
            found["Authorization"] = f"Basic {base64.b64encode(said['http_auth'].encode()).decode()}"
        return {name: value for name, value in found.items() if value}

    async def discover(self, wire: Wire) -> product.Found:
        """Takes hosts from the members, their meta from the catalog, leader and voters from Raft's configuration."""
        answer = await read(wire, "/v1/agent/members", needs=_NODES)
        members: list[dict[str, Any]] = _listed(answer, wire, "/v1/agent/members")
        catalog = await read(wire, "/v1/catalog/nodes", needs=_NODES, params={"stale": ""})
        meta = {node["Node"]: node.get("Meta") or {} for node in _listed(catalog, wire, "/v1/catalog/nodes")}
        if any(one.headers.get(_FILTERED) == "true" for one in (answer, catalog)) or not members:
            raise WeakTokenError(
                f"{wire.login.address}: the token sees only {len(members)} of Consul's nodes, so hosts would be missed;"
                f" it needs {_NODES}"
            )
        there = [one for one in members if one["Status"] != _LEFT]
        nodes = [self._node(one, meta.get(one["Name"], {})) for one in there]
        names = {one["Addr"]: one["Name"] for one in there}
        leader, voters, notes = await product.raft_of(wire, names, lambda one: str(one["Node"]), needs=_OPERATOR)
        notes += [f"{one['Name']} is {_state(one)}" for one in there if one["Status"] != _ALIVE]
        of_servers = [one for one in there if one["Tags"].get("role") == "consul"]
        if not of_servers:
            raise AttachError(f"{wire.login.address}: Consul lists no server among its members")
        version = min((product.version_in(one["Tags"].get("build", "")) for one in of_servers), key=_numbers)
        return product.Found(nodes, version, leader, voters, of_servers[0]["Tags"].get("dc", ""), notes)

    def _node(self, member: Mapping[str, Any], meta: Mapping[str, str]) -> product.Node:
        tags = member["Tags"]
        said = {**meta, "datacenter": tags.get("dc", "")}
        if member["Status"] != _ALIVE:
            said["status"] = _state(member)
        return product.Node(
            member["Name"], member["Addr"], "server" if tags.get("role") == "consul" else "client", said
        )

    def hello(self, port: int) -> bytes:
        """For the RPC port, the bytes that open a multiplexed connection (0x04) and send a yamux ping on it."""
        return b"\x04" + struct.pack(">BBHII", 0, 2, 1, 0, 7) if port == _RPC_PORT else b""

    def ports(self, role: str) -> Sequence[int]:
        return (_RPC_PORT,) if role == "server" else ()

    async def remove(self, wire: Wire, left: Left) -> int:
        return await leftovers.remove(wire, left)

    def spec(self, found: product.Found) -> Mapping[str, Any]:
        return product.spec_by_role(found, Consul)


def _listed(answer: ApiAnswer, wire: Wire, path: str) -> list[dict[str, Any]]:
    value = parsed(wire, answer, path)
    if not isinstance(value, list):
        raise AttachError(f"{wire.login.address}: GET {path}: expected a list; is this consul?")
    return value


def _state(member: Mapping[str, Any]) -> str:
    return _STATES.get(member["Status"], "not alive")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


ATTACH = ConsulAttach()
