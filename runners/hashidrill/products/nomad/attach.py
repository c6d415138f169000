"""Nomad in an attached datacenter: how its command line logs in, and which servers and nodes it knows.

The variables are those of https://developer.hashicorp.com/nomad/commands#environment-variables (1.10).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from pydantic import Field

from hashidrill.core.errors import AttachError
from hashidrill.core.protocols.rights import Left
from hashidrill.core.util.wait import all_at_once
from hashidrill.products.nomad import leftovers
from hashidrill.products.nomad.model import Nomad
from hashidrill.staging.attach import product
from hashidrill.staging.attach.http import Wire, read_json

_NODE = 'node { policy = "read" }'
_AGENT = 'agent { policy = "read" }'
_OPERATOR = 'operator { policy = "read" }'
_AT_ONCE = 20


class Part(product.Part):
    """Nomad of an attached datacenter."""

    namespace: str | None = Field(default=None, description="Namespace of the observed jobs")
    region: str | None = Field(default=None, description="Region")


class NomadAttach(product.Product):
    """Nomad as a product that can be attached (hashidrill.staging.attach.product.Attachable)."""

    name: ClassVar[str] = "nomad"
    Part: ClassVar[type[product.Part]] = Part
    default_address: ClassVar[str] = "http://127.0.0.1:4646"
    port: ClassVar[int] = 4646
    token_header: ClassVar[str] = "X-Nomad-Token"  # noqa: S105 - the header's name
    health: ClassVar[str] = "/v1/agent/health"
    alive: ClassVar[str] = "/v1/status/leader"
    process: ClassVar[Sequence[str]] = ("nomad", "agent")
    variables: ClassVar[Mapping[str, str]] = {
        "address": "NOMAD_ADDR",
        "ca_file": "NOMAD_CACERT",
        "ca_path": "NOMAD_CAPATH",
        "cert_file": "NOMAD_CLIENT_CERT",
        "key_file": "NOMAD_CLIENT_KEY",
        "server_name": "NOMAD_TLS_SERVER_NAME",
        "skip_verify": "NOMAD_SKIP_VERIFY",
        "token": "NOMAD_TOKEN",
        "namespace": "NOMAD_NAMESPACE",
        "region": "NOMAD_REGION",
    }

    def params(self, said: Mapping[str, str]) -> Mapping[str, str]:
        """Nomad accepts namespace and region only as parameters."""
        return {key: said[key] for key in ("namespace", "region") if key in said}

    async def discover(self, wire: Wire) -> product.Found:
        """Takes servers from the members, voters from Raft's configuration, and clients from the nodes."""
        members = (await read_json(wire, "/v1/agent/members", needs=_AGENT)).get("Members") or []
        there = [one for one in members if one["Status"] != "left"]
        if not there:
            raise AttachError(f"{wire.login.address}: Nomad lists no server among its members")
        region = there[0]["Tags"].get("region", "")
        names = {one["Addr"]: one["Name"].removesuffix(f".{region}") for one in there}
        servers = [
            product.Node(names[one["Addr"]], one["Addr"], "server", {"datacenter": one["Tags"].get("dc", "")})
            for one in there
        ]
        notes = [f"{names[one['Addr']]} is {one['Status']}" for one in there if one["Status"] != "alive"]
        leader, voters, said = await product.raft_of(
            wire, names, lambda one: names.get(product.host_of(one["Address"]), ""), needs=_OPERATOR
        )
        clients = await self._clients(wire, notes)
        versions = [found for one in there if (found := product.version_in(one["Tags"].get("build", "")))]
        return product.Found([*servers, *clients], min(versions, default=""), leader, voters, region, [*said, *notes])

    async def _clients(self, wire: Wire, notes: list[str]) -> list[product.Node]:
        """Reads each node separately: the list of nodes has neither their meta nor the addresses of their APIs."""
        listed = await read_json(wire, "/v1/nodes", needs=_NODE)
        newest = {one["Name"]: one for one in sorted(listed, key=lambda one: int(one["CreateIndex"]))}
        found: dict[str, product.Node] = {}

        async def look(stub: Mapping[str, Any]) -> None:
            node = await read_json(wire, f"/v1/node/{stub['ID']}", needs=_NODE)
            meta = {**(node.get("Meta") or {}), "datacenter": stub["Datacenter"], "class": stub.get("NodeClass", "")}
            secure = wire.login.address.startswith("https:")
            at = node.get("HTTPAddr", "")
            url = f"{'https' if secure else 'http'}://{at}" if at else ""
            found[stub["Name"]] = product.Node(stub["Name"], stub["Address"], "client", meta, url)

        for some in _by(newest.values(), _AT_ONCE):
            await all_at_once(partial(look, stub) for stub in some)
        for name, stub in newest.items():
            if stub["Status"] != "ready" or stub["SchedulingEligibility"] != "eligible":
                notes.append(f"{name} is {stub['Status']}, {stub['SchedulingEligibility']}")
        return [found[name] for name in newest]

    def starts_jobs(self, role: str) -> bool:
        return role == "client"

    async def remove(self, wire: Wire, left: Left) -> int:
        return await leftovers.remove(wire, left)

    def spec(self, found: product.Found) -> Mapping[str, Any]:
        return product.spec_by_role(found, Nomad)


def _by(values: Iterable[Mapping[str, Any]], number: int) -> Iterable[list[Mapping[str, Any]]]:
    rest = iter(values)
    while some := list(islice(rest, number)):
        yield some


ATTACH = NomadAttach()
