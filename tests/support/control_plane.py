"""A real Kubernetes control plane without nodes: etcd, kube-apiserver, Chaos Mesh's controller; and a chaosd on a host.

For use inside of a sandbox, whose namespaces take it all away. It listens on the loopback of that sandbox alone; chaosd
on the address of its host, in whose network namespace it runs.
"""

import json
import os
import signal
import ssl
import subprocess
from pathlib import Path

import httpx2
from ruamel.yaml import YAML

from hashidrill.core.protocols.service import Site
from hashidrill.core.util.wait import wait_until
from hashidrill.kubernetes.lab_plane import service
from hashidrill.kubernetes.lab_plane.plane import Papers, listens
from hashidrill.kubernetes.lab_plane.service import API_PORT, CHAOSD_PORT, WEBHOOK_PORT
from hashidrill.kubernetes.rbac import policy

HERE = "127.0.0.1"
ADMIN, USER = "admin-token", "hashidrill-token"
NAMESPACE = "consul"
_READY_WITHIN_S = 120.0

ADMITTED = {
    **{plural: plural for plural in ("iochaos", "networkchaos", "physicalmachinechaos", "podchaos", "stresschaos")},
    "schedules": "schedule",
    "workflows": "workflow",
}
"""By resource: how the paths of Chaos Mesh's webhooks call it. A path that its controller does not have is ignored."""


class ControlPlane:
    """`binaries`: etcd, kube-apiserver, chaos-controller-manager, chaosd; `crds`: the folder of the definitions."""

    def __init__(self, folder: Path, binaries, crds: Path) -> None:
        self.folder, self.binaries, self.crds = folder, binaries, crds
        self.processes: dict[str, subprocess.Popen] = {}
        self.machine = None
        """The host that chaosd runs on."""
        self.papers = Papers(hide=lambda *_: None)
        self.papers.admin, self.papers.user = ADMIN, USER
        self._written("kube-apiserver", self.papers.of_server(HERE))
        self._written("chaos-controller-manager", self.papers.certificate(HERE))
        self.kubeconfig(ADMIN, name="chaos-controller-manager/kubeconfig")

    @property
    def url(self) -> str:
        return f"https://{HERE}:{API_PORT}"

    def kubeconfig(self, token: str, *, name: str = "kubeconfig") -> Path:
        path = self.folder / name
        pem = self.papers.bundle
        path.write_text(
            json.dumps(
                {
                    "current-context": "sandbox",
                    "contexts": [{"name": "sandbox", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
                    "clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority-data": pem}}],
                    "users": [{"name": "u", "user": {"token": token}}],
                }
            )
        )
        return path

    def begin(self, name: str) -> None:
        """Starts one of them, unless it runs."""
        if name in self.processes and self.processes[name].poll() is None:
            return
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        within = ["nsenter", f"--net={self.machine.namespace}"] if name == "chaosd" else []
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*within, *self._command(name)],
                cwd=folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment(name),
            )

    def end(self, name: str) -> None:
        """SIGKILL, as when its machine is gone."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def pause(self, name: str) -> None:
        """It takes connections and answers nothing, until `go_on`: as slow as a server can be."""
        self.processes[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    @property
    def chaosd(self) -> str:
        """Its URL."""
        return f"http://{self.machine.address}:{CHAOSD_PORT}"

    def _site(self, name: str) -> Site:
        address = self.machine.address if name == "chaosd" else HERE
        data = self.folder / name
        return Site(name, name, address, data, data / "unused", self.binaries, {})

    def _written(self, name: str, files) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)

    def _command(self, name: str) -> list[str]:
        """As the product starts each of them."""
        site = self._site(name)
        if name == "etcd":
            return service.etcd(site)
        if name == "kube-apiserver":
            return service.api_server(site, HERE)
        if name == "chaosd":
            return service.chaosd(site)
        return [str(self.binaries[name])]

    def _environment(self, name: str) -> dict[str, str]:
        if name != "chaos-controller-manager":
            return dict(os.environ)
        return {**os.environ, **service.controller(self._site(name)), "NAMESPACE": NAMESPACE}

    async def ask(self, method: str, path: str, body=None, *, token: str = ADMIN, patch: str = "") -> httpx2.Response:
        """One request as the administrator. `patch`: what kind of patch the body is, like `merge-patch`."""
        context = ssl.create_default_context(cadata=self.papers.trusted)
        async with httpx2.AsyncClient(verify=context, trust_env=False, timeout=20.0) as client:
            return await client.request(
                method,
                self.url + path,
                json=body,
                headers={"Authorization": f"Bearer {token}"}
                | ({"Content-Type": f"application/{patch}+json"} if patch else {}),
            )

    async def start(self) -> None:
        """All but chaosd, ready. Raises WaitTimeoutError with the end of the log of what is not."""
        for name in ("etcd", "kube-apiserver"):
            self.begin(name)
        await self.server_ready()
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for path in sorted(self.crds.glob("*.yaml")):
            await self._made(definitions, YAML(typ="safe", pure=True).load(path.read_text()))
        await self._made("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.begin("chaos-controller-manager")
        await self.controller_ready()
        for what in ("mutat", "validat"):
            where = f"/apis/admissionregistration.k8s.io/v1/{what}ingwebhookconfigurations"
            await self._made(where, self._webhook(f"{what}e", ADMITTED))

    async def server_ready(self) -> None:
        async def ready():
            try:
                said = await self.ask("GET", "/readyz")
            except httpx2.HTTPError as error:
                return None, f"{error}; {self._tail('kube-apiserver')}"
            return (True, "") if said.status_code == 200 else (None, said.text[-300:])

        await wait_until("the API server to be ready", ready, within_s=_READY_WITHIN_S, gap_s=0.3)

    async def controller_ready(self) -> None:
        await self._listens("chaos-controller-manager", HERE, WEBHOOK_PORT)

    async def chaosd_ready(self) -> None:
        await self._listens("chaosd", self.machine.address, CHAOSD_PORT)

    async def _listens(self, name: str, address: str, port: int) -> None:
        async def ready():
            return (True, "") if await listens(address, port) else (None, self._tail(name))

        await wait_until(f"{name} to be ready", ready, within_s=_READY_WITHIN_S, gap_s=0.3)

    def _webhook(self, what: str, plurals):
        """Without the mutating one, objects get no uid, and chaosd forgets whose they are."""
        return {
            "metadata": {"name": f"chaos-mesh-{what}"},
            "webhooks": [
                {
                    "name": f"{plural}.chaos-mesh.org",
                    "sideEffects": "None",
                    "timeoutSeconds": 5,
                    "rules": [
                        {
                            "apiGroups": ["chaos-mesh.org"],
                            "apiVersions": ["v1alpha1"],
                            "operations": ["CREATE", "UPDATE"],
                            "resources": [plural],
                        }
                    ],
                    "admissionReviewVersions": ["v1"],
                    "failurePolicy": "Ignore",
                    "clientConfig": {
                        "url": f"https://{HERE}:{WEBHOOK_PORT}/{what}-chaos-mesh-org-v1alpha1-{ADMITTED[plural]}",
                        "caBundle": self.papers.bundle,
                    },
                }
                for plural in plurals
            ],
        }

    async def _made(self, path: str, body) -> None:
        said = await self.ask("POST", path, body)
        assert said.status_code in {200, 201, 409}, said.text[:600]

    def _tail(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-1500:] if path.is_file() else "no log"

    def stop(self) -> None:
        for name in list(self.processes):
            self.end(name)


async def grant(plane, rights):
    """The manifests as they are printed, with what binds them."""
    of = "/apis/rbac.authorization.k8s.io/v1"
    wheres = {"Role": f"{of}/namespaces/{NAMESPACE}/roles", "ClusterRole": f"{of}/clusterroles"}
    for kind, where in wheres.items():
        await plane.ask("DELETE", f"{where}/hashidrill")
        binding = where.removesuffix("s") + "bindings"
        subject = {"kind": "User", "name": "hashidrill", "apiGroup": "rbac.authorization.k8s.io"}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "hashidrill"}
        await plane.ask(
            "POST",
            binding,
            {
                "metadata": {"name": "hashidrill"},
                "subjects": [subject],
                "roleRef": reference,
            },
        )
    for text in policy(rights, {}).split("---\n"):
        manifest = YAML(typ="safe", pure=True).load(text)
        said = await plane.ask("POST", wheres[manifest["kind"]], manifest)
        assert said.status_code == 201, said.text
