"""Chaos Mesh as a service of a datacenter: etcd, an API server, its controller, and a chaosd on every other host.

Imports little, because the command line reads roles here, and most commands start no datacenter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hashidrill.core.experiment.strict import VERSION_PATTERN, Strict
from hashidrill.core.protocols.abc import Host, Hosts
from hashidrill.core.protocols.capabilities import ChaosMachine, ProcessControl
from hashidrill.core.protocols.claims import CONTROL
from hashidrill.core.protocols.service import AgentPlace, AgentPlan, BaseService, Site, Standing, Wanted, Workspace
from hashidrill.core.util.files import write_whole
from hashidrill.core.util.wait import wait_until
from hashidrill.kubernetes.lab_plane import NAMESPACE
from hashidrill.lab.provision.products import CHAOS_MESH_VERSION, KUBERNETES_VERSIONS

if TYPE_CHECKING:
    from hashidrill.core.experiment.checks import Note
    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.protocols.rights import Right
    from hashidrill.kubernetes.lab_plane.plane import Papers


class ChaosMesh(Strict):
    """Chaos Mesh with the control plane that it needs, and a chaosd on every host: for `chaos_mesh.physical.*`."""

    chaosd: str = Field(default="1.4.0", pattern=VERSION_PATTERN, description="chaosd version, like 1.4.0")
    kubernetes: str = Field(default="1.34.4", pattern=VERSION_PATTERN, description="Version of its kube-apiserver")


ETCD_PORT, PEERS_PORT, API_PORT, WEBHOOK_PORT, METRICS_PORT, CHAOSD_PORT = 2379, 2380, 6443, 9443, 10080, 31767


def etcd(site: Site) -> list[str]:
    """The command of etcd, without fsync, because its data ends with the datacenter."""
    clients, peers = f"http://{site.address}:{ETCD_PORT}", f"http://{site.address}:{PEERS_PORT}"
    options = {
        "data-dir": site.data / "data",
        "unsafe-no-fsync": "true",
        "log-level": "warn",
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
    }
    return [str(site.binaries["etcd"]), *(f"--{name}={value}" for name, value in options.items())]


def api_server(site: Site, etcd_address: str) -> list[str]:
    """The command of the API server: with RBAC, but without accounts in pods, because there are no pods."""
    options = {
        "etcd-servers": f"http://{etcd_address}:{ETCD_PORT}",
        "secure-port": API_PORT,
        "bind-address": site.address,
        "advertise-address": site.address,
        "tls-cert-file": site.data / "tls.crt",
        "tls-private-key-file": site.data / "tls.key",
        "cert-dir": site.data,
        "token-auth-file": site.data / "tokens.csv",
        "authorization-mode": "RBAC",
        "disable-admission-plugins": "ServiceAccount",
        "service-account-issuer": f"https://{site.address}:{API_PORT}",
        "service-account-key-file": site.data / "accounts.key",
        "service-account-signing-key-file": site.data / "accounts.key",
        "service-cluster-ip-range": "10.96.0.0/16",
    }
    return [str(site.binaries["kube-apiserver"]), *(f"--{name}={value}" for name, value in options.items())]


def controller(site: Site) -> Mapping[str, str]:
    """The controller's environment, which holds all its settings. Its files are in its folder."""
    return {
        "KUBECONFIG": str(site.data / "kubeconfig"),
        "NAMESPACE": NAMESPACE,
        "CERTS_DIR": str(site.data),
        "WEBHOOK_HOST": site.address,
        "WEBHOOK_PORT": str(WEBHOOK_PORT),
        "METRICS_HOST": site.address,
        "METRICS_PORT": str(METRICS_PORT),
        "SECURITY_MODE": "false",
        "CHAOSD_SECURITY_MODE": "false",
        "ENABLE_LEADER_ELECTION": "false",
    }


def chaosd(site: Site) -> list[str]:
    """The command of chaosd, which listens for the controller on the address of its host."""
    return [str(site.binaries["chaosd"]), "server", "--host", site.address, "--port", str(CHAOSD_PORT)]


def chaosd_environment(path: str, folders: tuple[str, ...], processes: Path) -> Mapping[str, str]:
    """The environment of chaosd: PATH with the folders of system tools, and HOST_PROC, where it looks for processes."""
    named = [*filter(None, path.split(":"))]
    return {"PATH": ":".join(dict.fromkeys([*named, *folders])), "HOST_PROC": str(processes)}


ETCD_HOST, API_HOST, CONTROLLER_HOST = "etcd-1", "kube-1", "controller-1"
ETCD, API, CONTROLLER = (f"{CONTROL}{name}" for name in ("etcd", "api", "controller"))
MACHINE = "machine"
_CONSUL_PORT = 8500
_LEAST_DISK = 200_000_000
"""In bytes: etcd keeps two segments of 64 MB for its log, and the definitions."""


class ChaosMeshService(BaseService):
    """Chaos Mesh of a local datacenter (hashidrill.core.protocols.service.Service)."""

    name: ClassVar[str] = "chaos_mesh"
    Spec: ClassVar[type[ChaosMesh]] = ChaosMesh
    agent_bytes: ClassVar[int] = 110_000_000  # all of its processes together, divided by their number (2026-11)
    everywhere: ClassVar[Literal[True]] = True
    roles: ClassVar[tuple[str, ...]] = ()

    _papers: Papers
    _workspace: Workspace
    _addresses: Mapping[str, str]
    _definitions: Path

    def __init__(self, spec: Any, *, spares: int = 0, guests: Sequence[str] = ()) -> None:
        super().__init__(spec, spares=spares, guests=guests)
        self._tell: Callable[[str], None] = lambda _: None

    def places(self) -> Sequence[AgentPlace]:
        """Its own three hosts, and every other host. The controller is started once the API server is ready."""
        return [
            AgentPlace(ETCD_HOST, ETCD),
            AgentPlace(API_HOST, API),
            AgentPlace(CONTROLLER_HOST, CONTROLLER, starts=False),
            *(AgentPlace(host, MACHINE, guest=True, armed=True) for host in self.guests),
        ]

    def check(self, experiment: Experiment, note: Note) -> None:
        disk = experiment.datacenter.disk
        if not isinstance(self, Standing) and disk.size is not None and disk.size < _LEAST_DISK:
            note(("datacenter", "disk", "size"), "with chaos_mesh, disks need at least 200MB: etcd is on one of them")

    def binaries(self) -> Sequence[Wanted]:
        versions = dict(KUBERNETES_VERSIONS)
        return [
            Wanted("etcd", versions["etcd"]),
            Wanted("kube-apiserver", self.spec.kubernetes),
            *(Wanted(name, CHAOS_MESH_VERSION) for name in ("chaos-controller-manager", "chaos-mesh-definitions")),
            Wanted("chaosd", self.spec.chaosd),
        ]

    def open(self, workspace: Workspace) -> None:
        from hashidrill.kubernetes.lab_plane.plane import Papers  # noqa: PLC0415 - see above

        self._workspace, self._papers = workspace, Papers(workspace.hide)

    def parts(self, host: Host) -> Mapping[type[Any], Any]:
        if host.roles.get(self.name) != MACHINE:
            return {}
        from hashidrill.kubernetes.lab_plane.machine import Machine  # noqa: PLC0415 - see above

        made = Machine(self._file("hashidrill.kubeconfig"), self._chaosd(host.address), tell=self.say)
        return {ChaosMachine: made}

    def agent(self, site: Site) -> AgentPlan:
        """Files with keys are in the agent's own folder; kubeconfigs for people are in the service's folder."""
        from hashidrill.core.util.commands import SYSTEM_FOLDERS  # noqa: PLC0415 - see above

        self._addresses, self._definitions = site.addresses, site.binaries["chaos-mesh-definitions"]
        if site.role == ETCD:
            return AgentPlan({}, etcd(site), f"http://{site.address}:{ETCD_PORT}", "/health")
        if site.role == API:
            command = api_server(site, site.addresses[ETCD_HOST])
            return AgentPlan({}, command, self._server, "/livez", files=self._papers.of_server(site.address))
        if site.role == CONTROLLER:
            files = {
                **self._papers.certificate(site.address),
                "kubeconfig": self._papers.kubeconfig(self._server, self._papers.admin),
            }
            return AgentPlan(
                {},
                [str(site.binaries["chaos-controller-manager"])],
                f"http://{site.address}:{METRICS_PORT}",
                "/metrics",
                controller(site),
                files=files,
            )
        environment = chaosd_environment(os.environ.get("PATH", ""), SYSTEM_FOLDERS, site.processes)
        return AgentPlan({}, chaosd(site), self._chaosd(site.address), "/api/system/health", environment)

    async def wait_ready(self, hosts: Hosts, *, within_s: float, agents_run: Callable[[], Awaitable[None]]) -> None:
        """Waits until the API server answers and has Chaos Mesh's kinds and roles, and controller and chaosd listen.

        Raises WaitTimeoutError that says what was missing, or DatacenterError if the server refused a request.
        """
        from hashidrill.kubernetes.lab_plane import plane  # noqa: PLC0415 - see above

        there = plane.Plane(self._server, self._papers)
        await there.answers(within_s, agents_run)
        await there.furnish(self._definitions, _rights())
        await hosts.host(CONTROLLER_HOST).use(ProcessControl).start_agent(self.name)
        controller = self._addresses[CONTROLLER_HOST]
        wanted = {CONTROLLER_HOST: (controller, WEBHOOK_PORT)}
        wanted |= {host: (self._addresses[host], CHAOSD_PORT) for host in self.guests}

        async def listen() -> tuple[bool | None, str]:
            await agents_run()
            silent = [host for host, where in wanted.items() if not await plane.listens(*where)]
            return (None if silent else True), f"nothing listens yet on {', '.join(silent)}"

        await wait_until("Chaos Mesh's controller and chaosd to listen", listen, within_s=within_s, gap_s=0.2)
        await there.admit(f"https://{controller}:{WEBHOOK_PORT}")
        await there.takes("physicalmachinechaos", within_s)
        self._write(hosts)

    def _write(self, hosts: Hosts) -> None:
        write_whole(self._file("kubeconfig"), self._papers.kubeconfig(self._server, self._papers.admin))
        own = self._papers.kubeconfig(self._server, self._papers.user)
        write_whole(self._file("hashidrill.kubeconfig"), own)
        known = {host.name: host for host in hosts.all_hosts() if host.roles.get("consul") in {"server", "client"}}
        consul = [host.address for host in known.values() if host.roles["consul"] == "server"]
        if consul:
            chaosd = {host: self._chaosd(self._addresses[host]) for host in self.guests if host in known}
            attach = {
                "apiVersion": "hashidrill/v1",
                "kind": "Attach",
                "metadata": {"name": "local"},
                "datacenter": {"consul": {"address": f"http://{consul[0]}:{_CONSUL_PORT}"}},
                "services": {"kubernetes": {"kubeconfig": str(self._file("hashidrill.kubeconfig")), "chaosd": chaosd}},
            }
            write_whole(self._file("attach.yaml"), json.dumps(attach, indent=1) + "\n")

    async def keep(self, hosts: Hosts, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def say(self, text: str) -> None:
        """Writes the text to the run's journal, once there is a run."""
        self._tell(text)

    def login(self) -> Mapping[str, str]:
        """The path of a file with the administrator's token, for kubectl."""
        return {"KUBECONFIG": str(self._file("kubeconfig"))}

    def left(self) -> Mapping[str, str]:
        named = {"kubeconfig": self._file("kubeconfig"), "attach file": self._file("attach.yaml")}
        return {what: str(path) for what, path in named.items() if path.exists()}

    def describe(self, configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {self.name: {"hosts": sorted(configs), "chaosd": self.spec.chaosd, "controller": CHAOS_MESH_VERSION}}

    @property
    def _server(self) -> str:
        return f"https://{self._addresses[API_HOST]}:{API_PORT}"

    @staticmethod
    def _chaosd(address: str) -> str:
        return f"http://{address}:{CHAOSD_PORT}"

    def _file(self, name: str) -> Path:
        return self._workspace.folder / name


def _rights() -> Sequence[Right]:
    """The rights that every fault by chaosd needs: all these faults are objects of one kind."""
    from hashidrill.kubernetes.chaos_mesh.machines import PhysicalProcess, ProcessParams  # noqa: PLC0415 - see above

    return PhysicalProcess(ProcessParams(), None).rights()  # type: ignore[arg-type]
