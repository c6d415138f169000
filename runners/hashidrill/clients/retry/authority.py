"""A certificate authority for one test: the tap listens with its certificate, and clients are told to trust it."""

from __future__ import annotations

import shutil
import ssl
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme

from hashidrill.lab.sandbox.sandbox import work_parent

NAMES = ("127.0.0.1", "localhost", "tap.hashidrill.test")
_VARIABLES = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CONSUL_CACERT", "NOMAD_CACERT", "VAULT_CACERT")


class Authority:
    """A context manager: its files are in a private directory, which is gone afterwards."""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="hashidrill-ca-", dir=work_parent()))
        made = trustme.CA()
        made.cert_pem.write_to_path(str(self.trusted))
        made.issue_cert(*NAMES).private_key_and_cert_chain_pem.write_to_path(str(self.certificate))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def trusted(self) -> Path:
        """The authority's own certificate, PEM: what clients have to trust."""
        return self._folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        """Key and certificate of the tap, PEM."""
        return self._folder / "tap.pem"

    def environment(self) -> dict[str, str]:
        """The variables in which clients look for whom to trust."""
        return dict.fromkeys(_VARIABLES, str(self.trusted))


def server_side(certificate: Path) -> ssl.SSLContext:
    """What listens with that key and certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
