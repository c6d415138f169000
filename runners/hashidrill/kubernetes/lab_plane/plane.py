"""The local Kubernetes control plane: its certificates, tokens, roles, and Chaos Mesh's definitions and webhooks."""

import base64
import json
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hashidrill.core.errors import DatacenterError
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.wait import all_at_once, wait_until
from hashidrill.kubernetes.lab_plane import NAMESPACE
from hashidrill.kubernetes.rbac import policy

USER = "hashidrill"
_KEY_BITS = 2048


class Papers:
    """The certificates and keys of one datacenter. `hide` keeps its secrets out of recordings."""

    def __init__(self, hide: Callable[..., None]) -> None:
        self._ca = trustme.CA()
        self.admin, self.user = secrets.token_hex(16), secrets.token_hex(16)
        hide(self.admin, self.user)

    @property
    def trusted(self) -> str:
        """The authority's own certificate, PEM."""
        return self._ca.cert_pem.bytes().decode()

    @property
    def bundle(self) -> str:
        """The same certificate, encoded as in Kubernetes' objects."""
        return base64.b64encode(self._ca.cert_pem.bytes()).decode()

    def certificate(self, address: str) -> Mapping[str, str]:
        """`tls.crt` and `tls.key` of a server at that address."""
        made = self._ca.issue_cert(address, "127.0.0.1", "localhost")
        chain = b"".join(one.bytes() for one in made.cert_chain_pems)
        return {"tls.crt": chain.decode(), "tls.key": made.private_key_pem.bytes().decode()}

    def of_server(self, address: str) -> Mapping[str, str]:
        """The files that the API server reads: its certificate, its users' tokens, and the key that signs accounts."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        tokens = f'{self.admin},admin,1,"system:masters"\n{self.user},{USER},2\n'
        return {**self.certificate(address), "accounts.key": pem.decode(), "tokens.csv": tokens}

    def kubeconfig(self, server: str, token: str) -> str:
        """A kubeconfig in JSON, which is also YAML."""
        one = {"cluster": USER, "user": USER, "namespace": NAMESPACE}
        return (
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": USER,
                    "contexts": [{"name": USER, "context": one}],
                    "clusters": [
                        {"name": USER, "cluster": {"server": server, "certificate-authority-data": self.bundle}}
                    ],
                    "users": [{"name": USER, "user": {"token": token}}],
                },
                indent=1,
            )
            + "\n"
        )


_ANSWERS_WITHIN_S = 30.0
_THERE_WITHIN_S = 1.0
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_WHERE = {"Role": f"{_RBAC}/namespaces/{NAMESPACE}/roles", "ClusterRole": f"{_RBAC}/clusterroles"}
_BINDINGS = {"Role": f"{_RBAC}/namespaces/{NAMESPACE}/rolebindings", "ClusterRole": f"{_RBAC}/clusterrolebindings"}
_KINDS = ("physicalmachinechaos",)
"""The kinds of objects that are created here; without pods, no other kind can inject."""
_GAP_S = 0.2
_LARGE = 100_000
_SCHEMA = re.compile(r"^    schema:\n(?:     .*\n|\n)+", re.MULTILINE)
_OPEN = """    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""

Run = Callable[[], Awaitable[None]]


class Plane:
    """The API server at `url`; requests are sent as its administrator. `transport` is for tests."""

    def __init__(self, url: str, papers: Papers, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self.url, self._papers, self._transport = url, papers, transport

    @asynccontextmanager
    async def _asked(self) -> AsyncIterator[httpx2.AsyncClient]:
        context = ssl.create_default_context(cadata=self._papers.trusted)
        head = {"Authorization": f"Bearer {self._papers.admin}"}
        async with httpx2.AsyncClient(
            base_url=self.url,
            verify=context,
            headers=head,
            timeout=_ANSWERS_WITHIN_S,
            trust_env=False,
            transport=self._transport,
        ) as client:
            yield client

    async def answers(self, within_s: float, agents_run: Run) -> None:
        """Returns once the server is ready. Raises WaitTimeoutError with its answer, and what `agents_run` raises."""
        async with self._asked() as client:

            async def ready() -> tuple[bool | None, str]:
                await agents_run()
                try:
                    said = await client.get("/readyz", timeout=2.0)
                except httpx2.HTTPError as error:
                    return None, f"{type(error).__name__}: {error}".rstrip(": ")
                return (True, "") if said.status_code == 200 else (None, said.text[-300:])

            await wait_until("the Kubernetes API server to be ready", ready, within_s=within_s, gap_s=_GAP_S)

    async def furnish(self, definitions: Path, rights: Iterable[Right]) -> None:
        """Creates the definitions, the namespace, and the role for running experiments. Raises DatacenterError."""
        text = await anyio.Path(definitions).read_text()
        documents = text.split("\n---\n")[1:]
        async with self._asked() as client:
            await all_at_once(
                [
                    *(partial(self._made, client, _DEFINITIONS, lighter(each)) for each in documents),
                    partial(self._permit, client, list(rights)),
                ]
            )

    async def admit(self, webhook: str) -> None:
        """Registers the controller's webhooks at that URL: without them objects get no uid, and chaosd cannot tell
        them apart. Raises DatacenterError.
        """
        async with self._asked() as client:
            for what in ("mutat", "validat"):
                made = self._webhook(f"{what}e", webhook)
                await self._made(client, f"{_ADMISSION}/{what}ingwebhookconfigurations", made)

    async def takes(self, kind: str, within_s: float) -> None:
        """Returns once the server serves that kind. Raises WaitTimeoutError."""
        async with self._asked() as client:

            async def serves() -> tuple[bool | None, str]:
                said = await client.get(f"/apis/chaos-mesh.org/v1alpha1/namespaces/{NAMESPACE}/{kind}")
                return (True, "") if said.status_code == 200 else (None, said.text[:200])

            await wait_until(f"the API server to serve {kind}", serves, within_s=within_s, gap_s=_GAP_S)

    async def _permit(self, client: httpx2.AsyncClient, rights: list[Right]) -> None:
        """Creates the roles that `hashidrill staging acl kubernetes` prints, and binds them to our user."""
        await self._made(client, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for manifest in filter(None, policy(rights, {}).split("---\n")):
            kind = next(line for line in manifest.splitlines() if line.startswith("kind: ")).removeprefix("kind: ")
            await self._made(client, _WHERE[kind], manifest)
            who = {"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "hashidrill"}
            bound = {"metadata": {"name": "hashidrill"}, "subjects": [who], "roleRef": role}
            await self._made(client, _BINDINGS[kind], bound)

    async def _made(self, client: httpx2.AsyncClient, path: str, what: str | Mapping[str, Any]) -> None:
        """Sends YAML unchanged, because the server parses it faster than Python."""
        given: dict[str, Any] = (
            {"content": what.encode(), "headers": {"Content-Type": "application/yaml"}}
            if isinstance(what, str)
            else {"json": what}
        )
        try:
            said = await client.post(path, **given)
        except httpx2.HTTPError as error:
            raise DatacenterError(f"the Kubernetes API server: POST {path}: {type(error).__name__}: {error}") from None
        if said.status_code not in {200, 201, 409}:
            raise DatacenterError(f"the Kubernetes API server: POST {path}: HTTP {said.status_code}: {said.text[:300]}")

    def _webhook(self, what: str, url: str) -> Mapping[str, Any]:
        return {
            "metadata": {"name": f"chaos-mesh-{what}"},
            "webhooks": [
                {
                    "name": f"{kind}.chaos-mesh.org",
                    "sideEffects": "None",
                    "timeoutSeconds": 5,
                    "rules": [
                        {
                            "apiGroups": ["chaos-mesh.org"],
                            "apiVersions": ["v1alpha1"],
                            "operations": ["CREATE", "UPDATE"],
                            "resources": [kind],
                        }
                    ],
                    "admissionReviewVersions": ["v1"],
                    "failurePolicy": "Ignore",
                    "clientConfig": {
                        "url": f"{url}/{what}-chaos-mesh-org-v1alpha1-{kind}",
                        "caBundle": self._papers.bundle,
                    },
                }
                for kind in _KINDS
            ],
        }


def lighter(definition: str) -> str:
    """Removes a large definition's schema: unused here, it would double the server's memory and time."""
    return definition if len(definition) < _LARGE else _SCHEMA.sub(_OPEN, definition, count=1)


async def listens(address: str, port: int) -> bool:
    """Whether a process accepts connections there."""
    try:
        with anyio.fail_after(_THERE_WITHIN_S):
            await (await anyio.connect_tcp(address, port)).aclose()
    except (OSError, TimeoutError):
        return False
    return True
