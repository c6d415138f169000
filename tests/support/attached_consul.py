"""A real Consul of somebody else, reached by address alone: TLS, client certificates, ACLs, gossip encryption.

Its agents are ordinary processes on loopback addresses of their own, in no sandbox of ours, and hashidrill has started
none of them. `python tests/support/attached_consul.py CONSUL FOLDER` keeps one running until it is interrupted.
"""

import base64
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import trustme

from attached_products import Product

PORT = 8501
_ENTRIES = (
    "service-defaults",
    "proxy-defaults",
    "service-router",
    "service-splitter",
    "service-resolver",
    "service-intentions",
    "ingress-gateway",
    "terminating-gateway",
    "mesh",
    "exported-services",
    "api-gateway",
    "http-route",
    "tcp-route",
)
_MOVING = frozenset({"CreateTime", "Hash", "ServiceConnect", "ServiceProxy"})
_READS = """\
node_prefix "" { policy = "read" }
agent_prefix "" { policy = "read" }
service_prefix "" { policy = "read" }
operator = "read"
"""
_DRILLS = """\
node_prefix "" { policy = "read" }
agent_prefix "" { policy = "read" }
service_prefix "" { policy = "read" }
operator = "write"
key_prefix "" { policy = "write" }
session_prefix "" { policy = "write" }
"""


class Staging(Product):
    """Three servers and a client. `network` is the second number of their addresses, 127.NETWORK.0.x."""

    service, names = "consul", ("server.staging.consul", "client.staging.consul")

    def __init__(
        self,
        consul: Path,
        folder: Path,
        *,
        network: int = 77,
        servers: int = 3,
        clients: int = 1,
        of_clients: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`of_clients`: more keys of the configuration of the clients."""
        folder.mkdir(parents=True, exist_ok=True)
        hosts = {
            f"{name}-{n}": f"127.{network}.{net}.{n}"
            for name, net, count in (("stage", 0, servers), ("worker", 1, clients))
            for n in range(1, count + 1)
        }
        super().__init__(consul, hosts, folder)
        self._of_clients, self._servers = of_clients, servers
        self.drill, self.reader = str(uuid.uuid4()), str(uuid.uuid4())
        trustme.CA().cert_pem.write_to_path(self.folder / "other-ca.pem")
        for name, token in (("drill", self.drill), ("reader", self.reader), ("management", self.management)):
            (self.folder / f"{name}.token").write_text(token + "\n")

    def start(self) -> None:
        gossip = base64.b64encode(secrets.token_bytes(32)).decode()
        join = [address for name, address in self.hosts.items() if name.startswith("stage")]
        for name, address in self.hosts.items():
            config = {
                "datacenter": "staging",
                "node_name": name,
                "bind_addr": address,
                "client_addr": address,
                "data_dir": str(self.folder / name),
                "retry_join": join,
                "retry_interval": "500ms",
                "encrypt": gossip,
                "log_level": "warn",
                "disable_update_check": True,
                "performance": {"raft_multiplier": 1},
                "node_meta": {"environment": "staging"},
                "leave_on_terminate": False,
                "ports": {"http": -1, "https": PORT, "dns": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1},
                "tls": {
                    "defaults": {
                        "ca_file": self.pem("ca"),
                        "cert_file": self.pem("cert"),
                        "key_file": self.pem("key"),
                        "verify_incoming": True,
                        "verify_outgoing": True,
                    },
                    "internal_rpc": {"verify_server_hostname": True},
                },
                "acl": {
                    "enabled": True,
                    "default_policy": "deny",
                    "tokens": {"initial_management": self.management, "agent": self.management},
                },
                "telemetry": {"disable_hostname": True},
            }
            if name.startswith("stage"):
                config |= {"server": True, "bootstrap_expect": self._servers}
            else:
                config |= self._of_clients
            path = self.conf(name)
            path.mkdir()
            (path / "agent.json").write_text(json.dumps(config))
            self._run(name, "agent", f"-config-dir={path}")
        self.until(self._whole, "whole Consul")
        for name, token, rules in (("drill", self.drill, _DRILLS), ("reader", self.reader, _READS)):
            self.make_token(name, token, rules)

    def stop(self) -> None:
        for name in self._processes:
            self.kill(name)
        for pid in self._restarted():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _restarted(self) -> list[int]:
        """Agents of this one that faults have started again: nobody's children."""
        marks = {f"-config-dir={self.conf(name)}" for name in self.hosts}
        found = []
        for home in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if marks & {*(home / "cmdline").read_text().split("\0")}:
                    found.append(int(home.name))
        return found

    def conf(self, host: str) -> Path:
        """The folder of that agent's configuration."""
        return self.folder / f"{host}.d"

    def dump(self) -> dict[str, Any]:
        """All that its operators can list, and the files of its agents, without what changes by itself."""
        found = {name: value for path, named in _LISTS for one in self.listed(path) for name, value in [named(one)]}
        for kind in _ENTRIES:
            for entry in self.listed(f"/v1/config/{kind}"):
                found[f"config entry {kind} {entry['Name']}"] = _steady(entry)
        for service in self.listed("/v1/catalog/services"):
            for one in self.listed(f"/v1/catalog/service/{service}"):
                found[f"service {one['Node']}/{one['ServiceID']}"] = _steady(one)
        servers = self.listed("/v1/operator/raft/configuration")["Servers"]
        found["raft"] = sorted((one["Node"], one["Address"], one["Voter"]) for one in servers)
        found["autopilot"] = _steady(self.listed("/v1/operator/autopilot/configuration"))
        for name in self.hosts:
            found[f"files {name}"] = {one.name: one.read_text() for one in self.conf(name).iterdir()}
        return found

    def listed(self, path: str) -> Any:
        """Empty where there is none."""
        try:
            return json.loads(self.ask("GET", path)) or []
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise

    def attach_file(
        self,
        *,
        name: str = "staging.yaml",
        token: str = "drill",
        ca: str = "ca",
        address: str = "",
        interlocks: str = "",
    ) -> Path:
        path = self.folder / name
        path.write_text(
            "apiVersion: hashidrill/v1\nkind: Attach\nmetadata: {name: staging-1}\ndatacenter:\n"
            f"  consul:\n    address: {address or self.url('stage-1')}\n    token_file: {token}.token\n"
            f"    ca_file: {ca}.pem\n    cert_file: cert.pem\n    key_file: key.pem\n{interlocks}"
        )
        return path

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, host: str = "stage-1", token: str = ""
    ) -> bytes:
        """One request of an operator of theirs: by another client than ours. Raises urllib's errors."""
        answer: bytes = self.request(method, path, body, host=host, token=token)
        return answer

    def leader(self) -> str:
        """The name of the server that leads, as the first that answers says; "" for none."""
        for host in self.hosts:
            with contextlib.suppress(OSError, ValueError):
                address = json.loads(self.ask("GET", "/v1/status/leader", host=host)).rpartition(":")[0]
                return next((name for name, at in self.hosts.items() if at == address), "")
        return ""

    def kill(self, host: str) -> None:
        self._processes[host].kill()
        self._processes[host].wait()

    def _whole(self) -> bool:
        members = json.loads(self.ask("GET", "/v1/agent/members"))
        alive = [one for one in members if one["Status"] == 1]
        told = [node for node in self.listed("/v1/catalog/nodes") if "environment" in (node["Meta"] or {})]
        whole = len(alive) == len(told) == len(self.hosts)  # each has told its own meta
        return bool(self.leader() and whole and self.ask("PUT", "/v1/kv/ready", b"x") == b"true")

    def make_token(self, name: str, token: str, rules: str) -> None:
        policy = {"Name": name, "Rules": rules}
        self.ask("PUT", "/v1/acl/policy", json.dumps(policy).encode())
        made = {"SecretID": token, "Policies": [{"Name": name}]}
        self.ask("PUT", "/v1/acl/token", json.dumps(made).encode())


def _steady(one: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in one.items() if not key.endswith("Index") and key not in _MOVING}


def _of_acls(what: str, key: str) -> Callable[[Any], tuple[str, Any]]:
    return lambda one: (f"acl {what} {one[key]}", _steady(one))


_LISTS: tuple[tuple[str, Callable[[Any], tuple[str, Any]]], ...] = (
    ("/v1/kv/?recurse", lambda one: (f"key {one['Key']}", (one["Value"], one["Flags"], one.get("Session")))),
    ("/v1/session/list", lambda one: (f"session {one['ID']}", one["Name"])),
    ("/v1/acl/tokens", _of_acls("token", "AccessorID")),
    ("/v1/acl/policies", _of_acls("policy", "ID")),
    ("/v1/acl/roles", _of_acls("role", "ID")),
    ("/v1/acl/auth-methods", _of_acls("auth method", "Name")),
    ("/v1/catalog/nodes", lambda one: (f"node {one['Node']}", _steady(one))),
    ("/v1/health/state/any", lambda one: (f"check {one['Node']}/{one['CheckID']}", one["Status"])),
    ("/v1/agent/members", lambda one: (f"member {one['Name']}", one["Status"])),
    ("/v1/query", lambda one: (f"query {one['ID']}", one["Name"])),
)
"""What an API lists, and the name and the value that each thing of it has."""


if __name__ == "__main__":
    with Staging(Path(sys.argv[1]), Path(sys.argv[2])).running() as staging:
        sys.stdout.write(f"{staging.attach_file()}\n")
        sys.stdout.flush()
        if len(sys.argv) > 3:
            sys.exit(subprocess.run(sys.argv[3:], env=os.environ, check=False).returncode)
        signal.pause()
