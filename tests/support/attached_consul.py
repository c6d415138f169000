"""A real Consul of somebody else, reached by address alone: TLS, client certificates, ACLs, gossip encryption.

Its agents are ordinary processes on loopback addresses of their own, in no sandbox of ours, and hashidrill has started
none of them. `python tests/support/attached_consul.py CONSUL FOLDER` keeps one running until it is interrupted.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import trustme

PORT = 8501
_LED_WITHIN_S = 60.0
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


class Staging:
    """Three servers and a client. `network` is the second number of their addresses, 127.NETWORK.0.x."""

    def __init__(self, consul: Path, folder: Path, *, network: int = 77, servers: int = 3, clients: int = 1) -> None:
        self.folder, self._consul = folder, consul
        self.hosts = {f"{name}-{n}": f"127.{network}.{net}.{n}" for name, net, count in
                      (("stage", 0, servers), ("worker", 1, clients)) for n in range(1, count + 1)}  # fmt: skip
        self._servers = servers
        self.management, self.drill, self.reader = (_uuid() for _ in range(3))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._files()

    def _files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        ca, other = trustme.CA(), trustme.CA()
        ca.cert_pem.write_to_path(self.folder / "ca.pem")
        other.cert_pem.write_to_path(self.folder / "other-ca.pem")
        names = ["server.staging.consul", "client.staging.consul", "localhost", *self.hosts.values()]
        certificate = ca.issue_cert(*names)
        certificate.private_key_pem.write_to_path(self.folder / "key.pem")
        with (self.folder / "cert.pem").open("wb") as file:
            for blob in certificate.cert_chain_pems:
                file.write(blob.bytes())
        for name, token in (("drill", self.drill), ("reader", self.reader), ("management", self.management)):
            (self.folder / f"{name}.token").write_text(token + "\n")

    def start(self) -> None:
        gossip = base64.b64encode(secrets.token_bytes(32)).decode()
        join = [address for name, address in self.hosts.items() if name.startswith("stage")]
        for name, address in self.hosts.items():
            file = str(self.folder / "{}.pem")
            config = {
                "datacenter": "staging", "node_name": name, "bind_addr": address, "client_addr": address,
                "data_dir": str(self.folder / name), "retry_join": join, "retry_interval": "500ms", "encrypt": gossip,
                "log_level": "warn", "disable_update_check": True, "performance": {"raft_multiplier": 1},
                "node_meta": {"environment": "staging"}, "leave_on_terminate": False,
                "ports": {"http": -1, "https": PORT, "dns": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1},
                "tls": {
                    "defaults": {
                        "ca_file": file.format("ca"), "cert_file": file.format("cert"), "key_file": file.format("key"),
                        "verify_incoming": True, "verify_outgoing": True,
                    },
                    "internal_rpc": {"verify_server_hostname": True},
                },
                "acl": {
                    "enabled": True, "default_policy": "deny",
                    "tokens": {"initial_management": self.management, "agent": self.management},
                },
                "telemetry": {"disable_hostname": True},
            }  # fmt: skip
            if name.startswith("stage"):
                config |= {"server": True, "bootstrap_expect": self._servers}
            path = self.folder / f"{name}.json"
            path.write_text(json.dumps(config))
            with (self.folder / f"{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    [str(self._consul), "agent", f"-config-file={path}"], stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True, preexec_fn=_dies_with_us,  # noqa: PLW1509 - no threads at this point
                )  # fmt: skip
        self._wait()
        self._make_tokens()

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def url(self, host: str) -> str:
        return f"https://{self.hosts[host]}:{PORT}"

    def attach_file(self, *, name: str = "staging.yaml", token: str = "drill", ca: str = "ca", address: str = "",
                    interlocks: str = "") -> Path:  # fmt: skip
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
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        context.load_cert_chain(self.folder / "cert.pem", self.folder / "key.pem")
        request = urllib.request.Request(self.url(host) + path, data=body, method=method)
        request.add_header("X-Consul-Token", token or self.management)
        with urllib.request.urlopen(request, timeout=5, context=context) as reply:
            answer: bytes = reply.read()
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

    def _wait(self) -> None:
        deadline = time.monotonic() + _LED_WITHIN_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                members = json.loads(self.ask("GET", "/v1/agent/members"))
                alive = [one for one in members if one["Status"] == 1]
                if self.leader() and len(alive) == len(self.hosts) and self.ask("PUT", "/v1/kv/ready", b"x") == b"true":
                    return
            time.sleep(0.2)
        logs = {name: (self.folder / f"{name}.log").read_text(errors="replace")[-500:] for name in self.hosts}
        raise RuntimeError(f"no Consul within {_LED_WITHIN_S:g}s: {logs}")

    def _make_tokens(self) -> None:
        for name, token, rules in (("drill", self.drill, _DRILLS), ("reader", self.reader, _READS)):
            self.make_token(name, token, rules)

    def make_token(self, name: str, token: str, rules: str) -> None:
        policy = {"Name": name, "Rules": rules}
        self.ask("PUT", "/v1/acl/policy", json.dumps(policy).encode())
        made = {"SecretID": token, "Policies": [{"Name": name}]}
        self.ask("PUT", "/v1/acl/token", json.dumps(made).encode())


def _uuid() -> str:
    return str(uuid.uuid4())


def _dies_with_us() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    staging = Staging(Path(sys.argv[1]), Path(sys.argv[2]))
    try:
        staging.start()
        sys.stdout.write(f"{staging.attach_file()}\n")
        sys.stdout.flush()
        if len(sys.argv) > 3:
            sys.exit(subprocess.run(sys.argv[3:], env=os.environ, check=False).returncode)
        signal.pause()
    finally:
        staging.stop()
