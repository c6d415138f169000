"""Real Consul servers on loopback addresses, without any sandbox: for what talks to Consul and does not break it."""

import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from hashidrill.lab.provision.build import find_go, module_folder
from hashidrill.lab.provision.products import KUBERNETES_VERSIONS, PRODUCTS
from polled import wait
from ports import free_ports

CONSUL_VERSIONS = [
    pytest.param("1.22.2", marks=pytest.mark.needs("datacenter", "consul 1.22.2")),
    pytest.param("1.10.3", marks=[pytest.mark.needs("datacenter", "consul 1.10.3"), pytest.mark.nightly]),
]


@dataclass
class Servers:
    """Three servers. `hosts` maps names to addresses, on each of which `port` is the HTTP API."""

    version: str
    hosts: dict
    port: int
    processes: dict

    @property
    def urls(self):
        return [f"http://{address}:{self.port}" for address in self.hosts.values()]

    def leader(self):
        """The leader's address, or an empty string."""
        try:
            with urllib.request.urlopen(f"{self.urls[0]}/v1/status/leader", timeout=1) as reply:
                return json.load(reply).rpartition(":")[0]
        except (OSError, urllib.error.URLError):
            return ""


@pytest.fixture(scope="module", params=CONSUL_VERSIONS)
def consul_servers(request, tmp_path_factory, binary):
    consul = binary("consul", request.param).path
    folder = tmp_path_factory.mktemp("consul")
    hosts = {f"consul-{n}": f"127.0.0.{10 + n}" for n in (1, 2, 3)}
    http, serf, rpc = free_ports(3, hosts.values())
    ports = {"http": http, "serf_lan": serf, "server": rpc, "dns": -1, "grpc": -1, "serf_wan": -1}
    if request.param != "1.10.3":
        ports["grpc_tls"] = -1
    config = folder / "config.json"
    config.write_text(json.dumps({"ports": ports, "performance": {"raft_multiplier": 1}, "log_level": "warn"}))
    servers = Servers(request.param, hosts, http, {})
    try:
        for name, address in hosts.items():
            join = [f"-retry-join={other}:{serf}" for other in hosts.values()]
            where = [f"-node={name}", f"-bind={address}", f"-client={address}", f"-data-dir={folder / name}"]
            command = [consul, "agent", "-server", "-bootstrap-expect=3", f"-config-file={config}", *where, *join]
            with (folder / f"{name}.log").open("wb") as log:
                servers.processes[name] = subprocess.Popen(
                    command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
        wait(f"a leader; the logs are in {folder}", servers.leader, 30, 0.1)
        yield servers
    finally:
        for process in servers.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def definitions(tmp_path_factory):
    """The CustomResourceDefinitions of the Chaos Mesh that is pinned: its module has them."""
    product = PRODUCTS["chaos-controller-manager"]
    folder = tmp_path_factory.mktemp("module")
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(module_folder(product, dict(KUBERNETES_VERSIONS)[product.name]) / name, folder / name)
    said = subprocess.run(
        [str(find_go().path), "mod", "download", "-json", "github.com/chaos-mesh/chaos-mesh"],
        cwd=folder,
        env=os.environ | {"GOFLAGS": "-mod=readonly"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return Path(json.loads(said.stdout)["Dir"]) / "config/crd/bases"
