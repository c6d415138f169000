"""A real Kubernetes control plane without nodes: etcd, kube-apiserver, Chaos Mesh's controller; and a chaosd on a host.

For use inside of a sandbox, whose namespaces take it all away. It listens on the loopback of that sandbox alone; chaosd
on the address of its host, in whose network namespace it runs.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from pathlib import Path

import anyio
import httpx
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from ruamel.yaml import YAML

from hashidrill.backends.kubernetes.rbac import policy
from hashidrill.util.wait import wait_until

ETCD, PEERS, API, WEBHOOK, METRICS, CHAOSD = 2379, 2380, 6443, 9443, 10080, 31767
ADMIN, USER = "admin-token", "hashidrill-token"
NAMESPACE = "consul"
_READY_WITHIN_S = 120.0


class ControlPlane:
    """`binaries`: etcd, kube-apiserver, chaos-controller-manager, chaosd; `crds`: the folder of the definitions."""

    def __init__(self, folder: Path, binaries, crds: Path) -> None:
        self.folder, self.binaries, self.crds = folder, binaries, crds
        self.processes: dict[str, subprocess.Popen] = {}
        self.machine = None
        """The host that chaosd runs on."""
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = trustme.CA()
        made = self.ca.issue_cert("127.0.0.1", "localhost")
        (folder / "certs").mkdir(exist_ok=True)
        made.private_key_pem.write_to_path(folder / "certs/tls.key")
        (folder / "certs/tls.crt").write_bytes(b"".join(one.bytes() for one in made.cert_chain_pems))
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (folder / "accounts.key").write_bytes(pem)
        (folder / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n{USER},hashidrill,2\n')

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{API}"

    def kubeconfig(self, token: str, *, name: str = "kubeconfig") -> Path:
        pem = base64.b64encode(self.ca.cert_pem.bytes()).decode()
        path = self.folder / name
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
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self._within(name), str(self.binaries[name]), *self._arguments(name)], cwd=folder,
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment(name),
            )  # fmt: skip

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
        return f"http://{self.machine.address}:{CHAOSD}"

    def _within(self, name: str) -> list[str]:
        return ["nsenter", f"--net={self.machine.namespace}"] if name == "chaosd" else []

    def _arguments(self, name: str) -> list[str]:
        here, certs = "127.0.0.1", self.folder / "certs"
        if name == "etcd":
            return [
                "--data-dir", str(self.folder / "etcd/data"), "--unsafe-no-fsync", "--log-level", "warn",
                "--listen-client-urls", f"http://{here}:{ETCD}", "--advertise-client-urls", f"http://{here}:{ETCD}",
                "--listen-peer-urls", f"http://{here}:{PEERS}",
                "--initial-advertise-peer-urls", f"http://{here}:{PEERS}",
                "--initial-cluster", f"default=http://{here}:{PEERS}",
            ]  # fmt: skip
        if name == "kube-apiserver":
            accounts = str(self.folder / "accounts.key")
            return [
                "--etcd-servers", f"http://{here}:{ETCD}", "--secure-port", str(API), "--bind-address", here,
                "--advertise-address", here, "--tls-cert-file", str(certs / "tls.crt"),
                "--tls-private-key-file", str(certs / "tls.key"), "--cert-dir", str(self.folder / "kube-apiserver"),
                "--token-auth-file", str(self.folder / "tokens.csv"), "--authorization-mode", "RBAC",
                "--disable-admission-plugins", "ServiceAccount", "--service-account-issuer", self.url,
                "--service-account-key-file", accounts, "--service-account-signing-key-file", accounts,
                "--service-cluster-ip-range", "10.96.0.0/16", "--watch-cache=true",
            ]  # fmt: skip
        if name == "chaosd":
            return ["server", "--host", self.machine.address, "--port", str(CHAOSD)]
        return []

    def _environment(self, name: str) -> dict[str, str]:
        if name != "chaos-controller-manager":
            return dict(os.environ)
        return {
            **os.environ, "KUBECONFIG": str(self.kubeconfig(ADMIN, name="controller")), "NAMESPACE": NAMESPACE,
            "CERTS_DIR": str(self.folder / "certs"), "WEBHOOK_HOST": "127.0.0.1", "WEBHOOK_PORT": str(WEBHOOK),
            "METRICS_HOST": "127.0.0.1", "METRICS_PORT": str(METRICS), "SECURITY_MODE": "false",
            "CHAOSD_SECURITY_MODE": "false", "ENABLE_LEADER_ELECTION": "false",
        }  # fmt: skip

    async def ask(self, method: str, path: str, body=None, *, token: str = ADMIN, patch: str = "") -> httpx.Response:
        """One request as the administrator. `patch`: what kind of patch the body is, like `merge-patch`."""
        import ssl

        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        async with httpx.AsyncClient(verify=context, trust_env=False, timeout=20.0) as client:
            return await client.request(
                method, self.url + path, json=body,
                headers={"Authorization": f"Bearer {token}"}
                | ({"Content-Type": f"application/{patch}+json"} if patch else {}),
            )  # fmt: skip

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
            await self._made(where, self._webhook(f"{what}e", ("physicalmachinechaos", "networkchaos")))

    async def server_ready(self) -> None:
        async def ready():
            try:
                said = await self.ask("GET", "/readyz")
            except httpx.HTTPError as error:
                return None, f"{error}; {self._tail('kube-apiserver')}"
            return (True, "") if said.status_code == 200 else (None, said.text[-300:])

        await wait_until("the API server to be ready", ready, within_s=_READY_WITHIN_S, gap_s=0.3)

    async def controller_ready(self) -> None:
        await self._listens("chaos-controller-manager", "127.0.0.1", WEBHOOK)

    async def chaosd_ready(self) -> None:
        await self._listens("chaosd", self.machine.address, CHAOSD)

    async def _listens(self, name: str, address: str, port: int) -> None:
        async def ready():
            try:
                with anyio.fail_after(1):
                    await (await anyio.connect_tcp(address, port)).aclose()
            except (OSError, TimeoutError) as error:
                return None, f"{error}; {self._tail(name)}"
            return True, ""

        await wait_until(f"{name} to be ready", ready, within_s=_READY_WITHIN_S, gap_s=0.3)

    def _webhook(self, what: str, plurals):
        """Without the mutating one, objects get no uid, and chaosd forgets whose they are."""
        pem = base64.b64encode(self.ca.cert_pem.bytes()).decode()
        return {
            "metadata": {"name": f"chaos-mesh-{what}"},
            "webhooks": [
                {
                    "name": f"{plural}.chaos-mesh.org", "sideEffects": "None", "timeoutSeconds": 5,
                    "rules": [{
                        "apiGroups": ["chaos-mesh.org"], "apiVersions": ["v1alpha1"],
                        "operations": ["CREATE", "UPDATE"], "resources": [plural],
                    }],
                    "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
                    "clientConfig": {
                        "url": f"https://127.0.0.1:{WEBHOOK}/{what}-chaos-mesh-org-v1alpha1-{plural}", "caBundle": pem,
                    },
                }
                for plural in plurals
            ],
        }  # fmt: skip

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
        await plane.ask("POST", binding, {
            "metadata": {"name": "hashidrill"}, "subjects": [subject], "roleRef": reference,
        })  # fmt: skip
    for text in policy(rights, {}).split("---\n"):
        manifest = YAML(typ="safe", pure=True).load(text)
        said = await plane.ask("POST", wheres[manifest["kind"]], manifest)
        assert said.status_code == 201, said.text
