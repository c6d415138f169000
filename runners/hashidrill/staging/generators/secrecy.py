"""TLS between the runner and its workers without a shared secret, and the TLS files that loads need on a worker.

The runner's certificate is in the specification of a worker's job, and the worker's in the first line that it
prints, which the runner reads through Nomad. Both are public; the keys stay where they were made. Tokens go to a
worker only over that connection.
"""

from __future__ import annotations

import base64
import datetime as dt
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hashidrill.core.errors import DatacenterError

_VALID = dt.timedelta(days=2)
_EARLIER = dt.timedelta(days=1)
"""Clocks of two machines differ; the certificates are pinned, so their dates matter little."""


@dataclass(frozen=True)
class Identity:
    """A key of this process alone, and its certificate (both PEM)."""

    certificate: str
    key: bytes = field(repr=False)

    @classmethod
    def made(cls, name: str) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(certificate.public_bytes(serialization.Encoding.PEM).decode(), private)

    def worker_side(self, runner: str) -> ssl.SSLContext:
        """Admits only the runner, by its certificate. Raises ssl.SSLError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._loaded(context, runner)

    def runner_side(self, worker: str) -> ssl.SSLContext:
        """Accepts only that worker, by its certificate, at any address. Raises ssl.SSLError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return self._loaded(context, worker)

    def _loaded(self, context: ssl.SSLContext, other: str) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=other)
        # OpenSSL reads keys only from files; this one is in a private folder for a moment
        with tempfile.TemporaryDirectory(prefix="hashidrill-") as folder:
            path = Path(folder) / "identity.pem"
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(self.key + b"\n" + self.certificate.encode())
            context.load_cert_chain(path)
        return context


_FILES = ("ca_file", "cert_file", "key_file")
_FOLDER = "ca_path"


def packed(entrances: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The files that the entrances name, by path, in Base64. Raises DatacenterError for one that cannot be read."""
    paths = {one["tls"].get(key) for one in entrances.values() for key in _FILES}
    folders = {one["tls"].get(_FOLDER) for one in entrances.values()}
    try:
        found = [Path(path) for path in sorted(filter(None, paths))]
        for folder in sorted(filter(None, folders)):
            found += [path for path in sorted(Path(folder).iterdir()) if path.is_file()]
        return {str(path): base64.b64encode(path.read_bytes()).decode() for path in found}
    except OSError as error:
        raise DatacenterError(f"{error.filename}: cannot be read, and workers need it: {error.strerror}") from None


def unpacked(
    entrances: Mapping[str, Mapping[str, Any]], files: Mapping[str, str], folder: Path
) -> dict[str, dict[str, Any]]:
    """The same credentials, with files below `folder`, which only this process's user can read. Raises OSError."""
    places: dict[str, str] = {}
    for number, path in enumerate(sorted({str(Path(path).parent) for path in files})):
        (folder / str(number)).mkdir(mode=0o700)
        places[path] = str(folder / str(number))
    for path, content in files.items():
        place = Path(places[str(Path(path).parent)]) / Path(path).name
        place.touch(mode=0o600)
        place.write_bytes(base64.b64decode(content))

    def moved(key: str, value: Any) -> Any:
        if key in _FILES and value:
            return f"{places[str(Path(value).parent)]}/{Path(value).name}"
        return places[str(Path(value))] if key == _FOLDER and value else value

    return {
        url: {**one, "tls": {key: moved(key, value) for key, value in one["tls"].items()}}
        for url, one in entrances.items()
    }
