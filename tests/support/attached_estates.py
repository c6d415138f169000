"""A datacenter that is reached by address alone, in memory: a FakeConsul, and a few answers of Nomad and Vault."""

import json
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2

from hashidrill.staging.attach.discovery import Estate, discover
from hashidrill.staging.attach.http import Wire
from hashidrill.staging.attach.target import AttachTarget, read_target
from hashidrill.testing.fakes import FakeDatacenter

TOKEN = "6f1c2f0e-5a5e-4a1c-9d53-2f8a4b7c0e11"
FILE = """\
apiVersion: hashidrill/v1
kind: Attach
metadata: {name: staging}
datacenter:
"""
Answers = Callable[[httpx2.Request], httpx2.Response]


class FakeEstate:
    """Answers as the agents of `world` would, at their addresses; `10.73.0.11` is where it is attached."""

    def __init__(self, world: FakeDatacenter | None = None) -> None:
        self.world = world or FakeDatacenter()
        self.asked: list[httpx2.Request] = []
        self.weak: set[str] = set()
        """Paths that the token may not read."""
        self.filtered = False
        self.silent: set[str] = set()
        """Addresses that nobody answers at."""
        self.answers: dict[tuple[str, str], Any] = {}
        """By service and path: what others than Consul answer."""

    def transport(self, service: str) -> httpx2.MockTransport:
        return httpx2.MockTransport(lambda request: self._answer(service, request))

    def _answer(self, service: str, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        if request.url.host in self.silent:
            raise httpx2.ConnectError("connection refused", request=request)
        path = request.url.path
        if path in self.weak:
            return httpx2.Response(403, text="Permission denied: token with AccessorID 'x' lacks permission")
        if service != "consul":
            found = self.answers.get((service, path))
            return httpx2.Response(404, text="no such path") if found is None else httpx2.Response(200, json=found)
        token = request.headers.get("X-Consul-Token")
        if token != TOKEN:
            return httpx2.Response(403, text="ACL not found" if token else "Permission denied: anonymous token")
        host = next((one for one in self.world.hosts.values() if one.address == request.url.host), None)
        if host is None:
            raise httpx2.ConnectError("no route to host", request=request)
        said = self.world.consul.answer(host, request.method, path, dict(request.url.params), request.content)
        headers = {**said.headers, **({"X-Consul-Results-Filtered-By-ACLs": "true"} if self.filtered else {})}
        return httpx2.Response(said.status, content=said.body, headers=headers)

    def wires(self, target: AttachTarget) -> dict[str, Wire]:
        return {name: Wire(login, transport=self.transport(name)) for name, login in target.logins.items()}

    async def found(self, target: AttachTarget) -> Estate:
        return await discover(target, self.wires(target))


def attach_file(folder: Path, body: str, *, name: str = "staging.yaml") -> Path:
    """A file of `kind: Attach` with that under `datacenter:`, and a token beside it in the file `token`."""
    (folder / "token").write_text(f"{TOKEN}\n")
    path = folder / name
    path.write_text(FILE + body)
    return path


def consul_target(folder: Path, environ: Mapping[str, str] | None = None) -> AttachTarget:
    body = '  consul: {address: "http://10.73.0.11:8500", token_file: token}\n'
    return read_target(attach_file(folder, body), environ or {})


def of_vault() -> dict[tuple[str, str], Any]:
    """What three Vault servers on integrated storage say; the third one is sealed."""
    nodes = [{"hostname": "box", "api_address": f"https://10.73.0.5{n}:8200", "active_node": n == 1} for n in (1, 2)]
    servers = [{"node_id": f"vault-{n}", "address": f"10.73.0.5{n}:8201", "voter": True} for n in (1, 2, 3)]
    return {
        ("vault", "/v1/sys/seal-status"): {
            "version": "1.21.0+ent",
            "storage_type": "raft",
            "cluster_name": "vault-staging",
            "sealed": False,
        },
        ("vault", "/v1/sys/ha-status"): {"nodes": nodes},
        ("vault", "/v1/sys/storage/raft/configuration"): {"data": {"config": {"servers": servers}}},
    }


def of_nomad(servers: int = 1) -> dict[tuple[str, str], Any]:
    """What a Nomad of so many servers and two nodes says; `node-2` is on a host that Consul knows as `client-1`."""
    places = [(f"nomad-{n}.global", f"10.73.0.2{n}") for n in range(1, servers + 1)]
    tags = {"role": "nomad", "region": "global", "dc": "dc1", "build": "1.10.5"}
    stubs = [
        {
            "ID": f"id-{n}",
            "Name": name,
            "Address": address,
            "Datacenter": "dc1",
            "NodeClass": "",
            "CreateIndex": n,
            "Status": "ready",
            "SchedulingEligibility": "eligible",
        }
        for n, name, address in ((1, "node-1", "10.73.0.41"), (2, "node-2", "10.73.0.31"))
    ]
    return {
        ("nomad", "/v1/agent/members"): {
            "Members": [{"Name": name, "Addr": at, "Tags": tags, "Status": "alive"} for name, at in places]
        },
        ("nomad", "/v1/operator/raft/configuration"): {
            "Servers": [
                {"Node": name, "Address": f"{at}:4647", "Leader": name == "nomad-1.global", "Voter": True}
                for name, at in places
            ]
        },
        ("nomad", "/v1/nodes"): stubs,
        **{
            ("nomad", f"/v1/node/id-{n}"): {"Meta": {"environment": "staging"}, "HTTPAddr": f"{one['Address']}:4646"}
            for n, one in enumerate(stubs, start=1)
        },
    }


def certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError("certificate verify failed")
    error.verify_message = "self-signed certificate in certificate chain"
    return error


def as_json(value: Any) -> str:
    return json.dumps(value, default=str)
