"""A real Nomad and a real Vault that hashidrill did not start: TLS, client certificates and ACLs.

They are ordinary processes on loopback addresses of their own, as the Consul of tests/support/attached_consul.py.
"""

import base64
import contextlib
import json
import os
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import trustme

_WITHIN_S = 90.0
_NOBODY = 65534
PORTS = {"consul": 8501, "nomad": 4646, "vault": 8200}
HEADERS = {"consul": "X-Consul-Token", "nomad": "X-Nomad-Token", "vault": "X-Vault-Token"}


class Product:
    """`hosts` are its agents' addresses by name. Its files may be read by the user that its agents run as."""

    service = ""
    names: tuple[str, ...] = ()
    """In the certificates, beside the addresses."""

    def __init__(self, binary, hosts, folder=None):
        self.hosts, self._binary = hosts, binary
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"hashidrill-{self.service}-", dir="/tmp"))
        self.management = str(uuid.uuid4())
        self._processes = {}
        ca = trustme.CA()
        ca.cert_pem.write_to_path(self.folder / "ca.pem")
        certificate = ca.issue_cert(*self.names, "localhost", *hosts.values())
        certificate.private_key_pem.write_to_path(self.folder / "key.pem")
        (self.folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))

    def pem(self, name):
        return str(self.folder / f"{name}.pem")

    def url(self, host):
        return f"https://{self.hosts[host]}:{PORTS[self.service]}"

    def _start(self, name, config, *words, as_nobody=False):
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(config))
        (self.folder / name).mkdir(exist_ok=True)
        who = []
        if as_nobody and os.geteuid() == 0:
            self.folder.chmod(0o755)
            for each in (path, self.folder / name, self.folder / "key.pem", self.folder / "cert.pem"):
                os.chown(each, _NOBODY, _NOBODY)
            who = ["--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups"]
        self._run(name, *words, f"-config={path}", who=who)

    def _run(self, name, *words, who=()):
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *who, str(self._binary), *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self):
        for process in self._processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def running(self):
        """Its agents run in the block, and none is left after it."""
        try:
            self.start()
            yield self
        finally:
            self.stop()

    def request(self, method, path, data=None, *, host="", token=""):
        """The bytes that answer one request of an operator of theirs. Raises urllib's errors."""
        context = ssl.create_default_context(cafile=self.pem("ca"))
        context.load_cert_chain(self.pem("cert"), self.pem("key"))
        request = urllib.request.Request(self.url(host or next(iter(self.hosts))) + path, data=data, method=method)
        request.add_header(HEADERS[self.service], token or self.management)
        with urllib.request.urlopen(request, timeout=5, context=context) as reply:
            return reply.read()

    def ask(self, method, path, body=None, **more):
        """The same in JSON."""
        answer = self.request(method, path, None if body is None else json.dumps(body).encode(), **more)
        return json.loads(answer) if answer else None

    def until(self, holds, what):
        """Asks again while it raises, or says no."""
        deadline, last = time.monotonic() + _WITHIN_S, ""
        while time.monotonic() < deadline:
            try:
                if holds():
                    return
                last = "not yet"
            except (OSError, ValueError) as error:
                last = str(error)
            time.sleep(0.3)
        logs = {name: (self.folder / f"{name}.log").read_text(errors="replace")[-600:] for name in self._processes}
        raise RuntimeError(f"{self.service}: no {what} within {_WITHIN_S:g}s: {last}: {logs}")

    def part(self, token_file):
        """Its part of an attach file."""
        return {
            "address": self.url(next(iter(self.hosts))),
            "token_file": str(token_file),
            "ca_file": self.pem("ca"),
            "cert_file": self.pem("cert"),
            "key_file": self.pem("key"),
        }


class Nomad(Product):
    """Servers, and clients that run as nobody: these use no cgroups, and share one machine."""

    service, names = "nomad", ("server.global.nomad", "client.global.nomad")

    def __init__(self, binary, *, network, servers, clients):
        hosts = {f"nomad-{n}": f"127.{network}.2.{n}" for n in range(1, servers + 1)}
        self._servers = list(hosts.values())
        super().__init__(binary, hosts | {f"node-{n}": f"127.{network}.3.{n}" for n in range(1, clients + 1)})

    def start(self):
        gossip = base64.b64encode(secrets.token_bytes(32)).decode()
        for name, address in self.hosts.items():
            config = {
                "name": name,
                "bind_addr": address,
                "disable_update_check": True,
                "data_dir": str(self.folder / name / "data"),  # what is mounted goes beside it
                "log_level": "WARN",
                "advertise": dict.fromkeys(("http", "rpc", "serf"), address),
                "acl": {"enabled": True},
                "telemetry": {"disable_hostname": True},
                "consul": {"server_auto_join": False, "client_auto_join": False, "auto_advertise": False},
                "tls": {
                    "http": True,
                    "rpc": True,
                    "verify_server_hostname": True,
                    "verify_https_client": True,
                    "ca_file": self.pem("ca"),
                    "cert_file": self.pem("cert"),
                    "key_file": self.pem("key"),
                },
            }
            if server := address in self._servers:
                config["server"] = {
                    "enabled": True,
                    "bootstrap_expect": len(self._servers),
                    "encrypt": gossip,
                    "raft_multiplier": 1,
                    "server_join": {"retry_join": [f"{one}:4648" for one in self._servers], "retry_interval": "500ms"},
                }
            else:
                config["client"] = {
                    "enabled": True,
                    "network_interface": "lo",
                    "cpu_total_compute": 1000,
                    "memory_total_mb": 1024,
                    "cpu_disable_dmidecode": True,
                    "gc_disk_usage_threshold": 99,
                    "gc_inode_usage_threshold": 99,
                    "server_join": {"retry_join": [f"{one}:4647" for one in self._servers], "retry_interval": "500ms"},
                    "options": {
                        "driver.allowlist": "raw_exec",
                        "fingerprint.denylist": "env_aws,env_azure,env_digitalocean,env_gce,cni,plugins_cni,bridge",
                    },
                }
                config["plugin"] = {"raw_exec": [{"config": {"enabled": True}}]}
            self._start(name, config, "agent", as_nobody=not server)
        self.until(lambda: self.ask("POST", "/v1/acl/bootstrap", {"BootstrapSecret": self.management}), "leader")
        wanted = len(self.hosts) - len(self._servers)
        self.until(lambda: [one["Status"] for one in self.ask("GET", "/v1/nodes")] == ["ready"] * wanted, "nodes")
        self.until(lambda: len(self.ask("GET", "/v1/status/peers")) == len(self._servers), "peers")

    def token(self, rules):
        name = f"least-{uuid.uuid4()}"
        self.ask("POST", f"/v1/acl/policy/{name}", {"Name": name, "Rules": rules})
        made = self.ask("POST", "/v1/acl/token", {"Name": name, "Type": "client", "Policies": [name]})
        return made["SecretID"]

    def dump(self):
        """All that its operators can list, without what changes by itself."""
        nodes = self.ask("GET", "/v1/nodes")
        moving = ("Index", "CreateTime", "Hash")
        found = {f"node {one['Name']}": (one["Status"], one["SchedulingEligibility"], one["Drain"]) for one in nodes}
        for what, path, key in (
            ("job", "/v1/jobs?namespace=*", "ID"),
            ("token", "/v1/acl/tokens", "AccessorID"),
            ("policy", "/v1/acl/policies", "Name"),
            ("namespace", "/v1/namespaces", "Name"),
            ("variable", "/v1/vars?namespace=*", "Path"),
            ("allocation", "/v1/allocations?namespace=*", "ID"),
        ):
            for one in self.ask("GET", path) or []:
                found[f"{what} {one[key]}"] = {k: v for k, v in one.items() if not k.endswith(moving)}
        servers = self.ask("GET", "/v1/operator/raft/configuration")["Servers"]
        return found | {"raft": sorted((one["Node"], one["Voter"]) for one in servers)}


class Vault(Product):
    """Servers on integrated storage, with one key share."""

    service = "vault"

    def __init__(self, binary, *, network, servers=3):
        super().__init__(binary, {f"vault-{n}": f"127.{network}.4.{n}" for n in range(1, servers + 1)})

    def start(self):
        tls = {"tls_cert_file": self.pem("cert"), "tls_key_file": self.pem("key")}
        joined = {
            "leader_ca_cert_file": self.pem("ca"),
            "leader_client_cert_file": self.pem("cert"),
            "leader_client_key_file": self.pem("key"),
        }
        for name, address in self.hosts.items():
            others = [one for one in self.hosts if one != name]
            config = {
                "disable_mlock": True,
                "log_level": "warn",
                "api_addr": self.url(name),
                "cluster_addr": f"https://{address}:8201",
                "cluster_name": "vault-staging",
                "listener": {
                    "tcp": {
                        "address": f"{address}:8200",
                        "cluster_address": f"{address}:8201",
                        "tls_require_and_verify_client_cert": True,
                        "tls_client_ca_file": self.pem("ca"),
                        **tls,
                    }
                },
                "storage": {
                    "raft": {
                        "path": str(self.folder / name),
                        "node_id": name,
                        "performance_multiplier": 1,
                        "autopilot_reconcile_interval": "1s",
                        "autopilot_update_interval": "500ms",
                        "retry_join": [{"leader_api_addr": self.url(one), **joined} for one in others],
                    }
                },
            }
            self._start(name, config, "server")
        first, *others = self.hosts
        self.until(lambda: self.ask("GET", "/v1/sys/seal-status", host=first) is not None, "API")
        made = self.ask("PUT", "/v1/sys/init", {"secret_shares": 1, "secret_threshold": 1}, host=first)
        self.management, self.key = made["root_token"], made["keys_base64"][0]
        for name in (first, *others):
            self.until(lambda name=name: self._unsealed(name), f"unsealed {name}")
        self.until(lambda: len(self._voters()) == len(self.hosts), "voters")

    def _unsealed(self, name):
        with contextlib.suppress(urllib.error.HTTPError):  # it has not joined yet
            self.ask("PUT", "/v1/sys/unseal", {"key": self.key}, host=name)
        return not self.ask("GET", "/v1/sys/seal-status", host=name)["sealed"]

    def _voters(self):
        servers = self.ask("GET", "/v1/sys/storage/raft/configuration")["data"]["config"]["servers"]
        return sorted(one["node_id"] for one in servers if one["voter"])

    def active(self):
        nodes = self.ask("GET", "/v1/sys/ha-status")["data"]["nodes"]
        address = next(one["api_address"] for one in nodes if one["active_node"])
        return next(name for name in self.hosts if self.url(name) == address)

    def token(self, rules):
        name = f"least-{uuid.uuid4()}"
        self.ask("PUT", f"/v1/sys/policies/acl/{name}", {"policy": rules})
        return self.ask("POST", "/v1/auth/token/create", {"policies": [name], "ttl": "1h"})["auth"]["client_token"]

    def dump(self):
        mounts = self.ask("GET", "/v1/sys/mounts")["data"]
        return {
            "mounts": sorted(mounts),
            "auth": sorted(self.ask("GET", "/v1/sys/auth")["data"]),
            "policies": sorted(self.ask("LIST", "/v1/sys/policies/acl")["data"]["keys"]),
            "tokens": sorted(self.ask("LIST", "/v1/auth/token/accessors")["data"]["keys"]),
            "voters": self._voters(),
            "sealed": [self.ask("GET", "/v1/sys/seal-status", host=name)["sealed"] for name in self.hosts],
        }
