"""Connects to a port: over TCP, or with a TLS handshake that shows how long the certificate remains valid."""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

import anyio
from anyio.abc import ByteStream
from pydantic import Field

from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.declared import (
    OK,
    TLS,
    Address,
    DeclaredProbe,
    Look,
    ProbeContext,
    ProbeParams,
    TlsFiles,
    UnservedError,
)
from hashidrill.core.units import Duration

_DAY_S = 86400.0


class TcpParams(ProbeParams):
    """The parameters of a tcp probe."""

    address: Address = Field(description="HOST:PORT; HOST may be the name of a host of the datacenter")

    def hosts(self) -> Sequence[str]:
        return [self.address.rpartition(":")[0]]


class TlsParams(TcpParams):
    """The parameters of a tls probe."""

    tls: TlsFiles | None = TLS


class TcpProbe(DeclaredProbe):
    """Opens a TCP connection and closes it: `ok` is 1 if it was accepted within `timeout`.

    Signals: `ok`, `latency` (of the handshake, in seconds). The kernel accepts connections even if the program
    hangs: only a request (an `http` probe) shows that it serves.
    """

    kind = "tcp"
    Params: ClassVar = TcpParams
    signals: ClassVar = {OK: None, "latency": Duration}

    async def look(self) -> Look:
        began_s = anyio.current_time()
        async with await self._connected():
            took_s = anyio.current_time() - began_s
        return Look({OK: 1.0, "latency": took_s})

    async def _connected(self) -> ByteStream:
        host, _, port = self.params.address.rpartition(":")
        try:
            return await anyio.connect_tcp(self.context.address(host), int(port), local_host=self.context.local_address)
        except (OSError, anyio.ConnectionFailed) as error:
            raise UnservedError(str(error) or type(error).__name__) from None


class TlsProbe(TcpProbe):
    """Makes a TLS handshake: `ok` is 1 if the server's certificate is trusted, not expired, and has the right name.

    Signals: `ok`, `latency` (of connection and handshake), `days_left` (until the server's certificate expires; only a
    probe with `verify: false` can see a negative value, of an expired one).
    """

    kind = "tls"
    Params: ClassVar = TlsParams
    signals: ClassVar = {OK: None, "latency": Duration, "days_left": None}

    def __init__(self, name: str, params: Any, context: ProbeContext, **times: float) -> None:
        """Raises TlsFileError."""
        super().__init__(name, params, context, **times)
        self._tls = (params.tls or TlsFiles()).files().context()

    async def look(self) -> Look:
        from anyio.streams.tls import TLSAttribute, TLSStream  # noqa: PLC0415 - the tcp probe does not need it

        host = self.params.address.rpartition(":")[0].strip("[]")
        name = (self.params.tls and self.params.tls.server_name) or host
        began_s = anyio.current_time()
        async with await self._connected() as plain:
            try:
                stream = await TLSStream.wrap(
                    plain, server_side=False, hostname=name, ssl_context=self._tls, standard_compatible=False
                )
            except (ssl.SSLError, OSError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
                said = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
                raise UnservedError(f"TLS: {said or type(error).__name__}") from None
            took_s = anyio.current_time() - began_s
            certificate = stream.extra_attributes[TLSAttribute.peer_certificate_binary]()
        return Look({OK: 1.0, "latency": took_s, "days_left": _days_left(certificate)})


def _days_left(certificate: bytes | None) -> float:
    from cryptography import x509  # noqa: PLC0415 - as above

    if not certificate:
        raise SickError("the server showed no certificate")
    try:
        ends = x509.load_der_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        raise SickError(f"the certificate is not readable: {error}") from None
    return (ends - datetime.now(UTC)).total_seconds() / _DAY_S
