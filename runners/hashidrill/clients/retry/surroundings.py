"""What surrounds a tested command: a private name server whose name does not resolve at first, and a private CA.

The command runs in a mount namespace in which /etc/resolv.conf names this server and /etc/nsswitch.conf names DNS.
That needs root (port 53 and the mounts); without root, DNS failure cannot be tested.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import ssl
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import trustme

from hashidrill.core.errors import FaultError
from hashidrill.lab.sandbox.sandbox import scratch_folder

NAME = "tap.hashidrill.test"
"""RFC 6761 reserves .test for this: no other resolver knows the name."""
_A, _AAAA, _IN = 1, 28, 1
_NO_SUCH_NAME, _REFUSED = 3, 5
_QUESTION_AT = 12
_SCRIPT = 'mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/nsswitch.conf && shift 2 && exec "$@"'


class NameServer:
    """Answers for NAME: NXDOMAIN for the first `failures` lookups, then 127.0.0.1. Calls `on_failure` at each NXDOMAIN.

    Counts lookups by their A queries; a lookup's AAAA query is not counted.
    """

    def __init__(self, failures: float, on_failure: Callable[[], None]) -> None:
        self._failures = failures
        self._on_failure = on_failure
        self._failed = 0
        self._transport: asyncio.DatagramTransport | None = None
        # a random address in 127/8, so that it does not clash with this machine's resolver or with other runs
        self.address = f"127.73.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"
        self._folder: Path | None = None
        self._scratch = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        if os.geteuid() != 0:
            raise FaultError("a name that does not resolve needs root here, for port 53 and a mount namespace")
        if shutil.which("unshare") is None:
            raise FaultError("a name that does not resolve needs unshare (util-linux), which is not installed")
        try:
            self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: _Answers(self._answer), local_addr=(self.address, 53)
            )
        except OSError as error:
            raise FaultError(f"a name server cannot listen on {self.address}:53: {error.strerror}") from None
        self._folder = self._scratch.enter_context(scratch_folder())
        self._folder.chmod(0o755)
        (self._folder / "resolv.conf").write_text(f"nameserver {self.address}\noptions timeout:2 attempts:1\n")
        (self._folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._transport is not None:
            self._transport.close()
        self._scratch.close()

    def wrapped(self, command: Sequence[str]) -> list[str]:
        folder = self._folder or Path()
        files = [str(folder / "resolv.conf"), str(folder / "nsswitch.conf")]
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SCRIPT, "sh", *files, *command]

    def _answer(self, query: bytes) -> bytes:
        name, kind, end = _question(query)
        known = name == NAME
        failing = self._failed < self._failures
        if known and failing and kind == _A:
            self._failed += 1
            self._on_failure()
        code = _REFUSED if not known else _NO_SUCH_NAME if failing else 0
        found = known and not failing and kind == _A
        # response, authoritative, recursion available; recursion desired as in the query (RFC 1035 section 4.1.1)
        flags = 0x8480 | (query[2] & 1) << 8 | code
        head = query[:2] + struct.pack("!HHHHH", flags, 1, int(found), 0, 0)
        record = struct.pack("!HHHIH4B", 0xC000 | _QUESTION_AT, _A, _IN, 0, 4, 127, 0, 0, 1) if found else b""
        return head + query[_QUESTION_AT:end] + record


class _Answers(asyncio.DatagramProtocol):
    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(data) > _QUESTION_AT:
            self._transport.sendto(self._answer(data), addr)


def _question(query: bytes) -> tuple[str, int, int]:
    labels, at = [], _QUESTION_AT
    while at < len(query) and query[at]:
        length = query[at]
        labels.append(query[at + 1 : at + 1 + length].decode("ascii", errors="replace"))
        at += 1 + length
    kind = struct.unpack_from("!H", query, at + 1)[0] if at + 5 <= len(query) else 0
    return ".".join(labels).lower(), kind, at + 5


NAMES = ("127.0.0.1", "localhost", "tap.hashidrill.test")
_VARIABLES = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CONSUL_CACERT", "NOMAD_CACERT", "VAULT_CACERT")


class Authority:
    """A certificate authority, as a context manager: its files are in a private directory, which it removes at exit."""

    def __enter__(self) -> Self:
        self._scratch = scratch_folder()
        self._folder = self._scratch.__enter__()
        made = trustme.CA()
        made.cert_pem.write_to_path(str(self.trusted))
        made.issue_cert(*NAMES).private_key_and_cert_chain_pem.write_to_path(str(self.certificate))
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.__exit__(None, None, None)

    @property
    def trusted(self) -> Path:
        """The authority's own certificate (PEM), which clients must trust."""
        return self._folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        """The file with the tap's key and certificate (PEM)."""
        return self._folder / "tap.pem"

    def environment(self) -> dict[str, str]:
        return dict.fromkeys(_VARIABLES, str(self.trusted))


def server_side(certificate: Path) -> ssl.SSLContext:
    """The TLS context of a server that listens with that key and certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
