"""What lets the parts of a control plane trust each other: an authority of its own, tokens, and kubeconfigs."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

NAMESPACE = "chaos-mesh"
"""Where the controller and the objects of experiments are."""
USER = "hashidrill"
_KEY_BITS = 2048


class Papers:
    """Of one datacenter alone, and known to nothing outside of it. `hide` keeps its secrets out of recordings."""

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
        """The same as Kubernetes has it in its objects."""
        return base64.b64encode(self._ca.cert_pem.bytes()).decode()

    def certificate(self, address: str) -> Mapping[str, str]:
        """`tls.crt` and `tls.key` of a server at that address."""
        made = self._ca.issue_cert(address, "127.0.0.1", "localhost")
        chain = b"".join(one.bytes() for one in made.cert_chain_pems)
        return {"tls.crt": chain.decode(), "tls.key": made.private_key_pem.bytes().decode()}

    def of_server(self, address: str) -> Mapping[str, str]:
        """All that the API server reads: its certificate, whom it knows, and the key that it signs accounts with."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        tokens = f'{self.admin},admin,1,"system:masters"\n{self.user},{USER},2\n'
        return {**self.certificate(address), "accounts.key": pem.decode(), "tokens.csv": tokens}

    def kubeconfig(self, server: str, token: str) -> str:
        """In JSON, which is YAML too."""
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
