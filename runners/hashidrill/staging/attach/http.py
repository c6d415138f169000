"""HTTP requests to the agents of an attached datacenter, with their TLS files and tokens.

`Wire` calls an agent by its URL: discovery, interlocks and faults use it. `AgentTransport` serves probes and other
code that calls `http://ADDRESS:PORT` of an agent: the request goes to that agent's own URL, with its login.

The login of a product in an attached datacenter: its address, TLS files and token.

The settings come from the Attach file, and from the environment variables of the product's command line.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

import httpx2

from hashidrill.core.errors import AttachError, FaultError
from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.core.util.redaction import MARK
from hashidrill.core.util.tls import Tls


class Secret:
    """A value that is never printed, compared or pickled by accident: only `reveal()` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    def reveal(self) -> str:
        """The value, for a request or for redaction."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return MARK if self._value else "(none)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is handed over by name, and never pickled")


@dataclass(frozen=True)
class Login:
    """The access to one product of an attached datacenter. `address` is a URL without a path."""

    service: str
    address: str
    tls: Tls = field(default_factory=Tls)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of each request, including the token's; `secrets` has the values to redact."""
    params: Mapping[str, str] = field(default_factory=dict)
    """Parameters of each request: a namespace or region, if the product expects it there."""
    token: Secret = field(default_factory=Secret)
    token_from: str = ""
    """The token's origin, for messages: `the file /etc/x`, `the variable CONSUL_HTTP_TOKEN`; "" without one."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """The URL of an agent's API by host, if it is not the host's address with the port of `address`."""
    said: str = ""
    """The selected namespace, partition or region, for messages."""
    forwards: Mapping[str, str] = field(default_factory=dict)
    """If pods are forwarded: the local URL that leads to an agent's pod, by the pod's name and by its address."""
    of_agents: str = ""
    """A URL with the scheme and the port of agents' own APIs, if they differ from those of `address`."""

    def url_of(self, host: str, address: str) -> str:
        """The URL of the agent on the host with this name and address."""
        if said := self.said_url_of(host, address):
            return said
        parts = urlsplit(self.of_agents or self.address)
        bracketed = f"[{address}]" if ":" in address else address
        return f"{parts.scheme}://{bracketed}" + (f":{parts.port}" if parts.port else "")

    def said_url_of(self, host: str, address: str) -> str:
        """The URL of that agent in the file, or of the forward to its pod; "" if there is neither.

        An address may be the name of a pod: `vault-0.vault-internal`.
        """
        of_pod = self.forwards.get(address) or self.forwards.get(address.partition(".")[0], "")
        return self.agents.get(host, of_pod)

    def entrance(self) -> dict[str, Any]:
        """The loads' credentials as plain data with the token in it (hashidrill.core.loads.http_client)."""
        return {"tls": asdict(self.tls), "headers": dict(self.headers), "params": dict(self.params)}

    @property
    def secrets(self) -> list[str]:
        return [value for value in (self.token.reveal(), self.headers.get("Authorization", "")) if value]

    def handed_over(self) -> dict[str, Any]:
        """Plain data with the token in it: only for the standard input of a child process, never for a file."""
        plain = {key: dict(value) if isinstance(value, Mapping) else value for key, value in vars(self).items()}
        return {**plain, "tls": asdict(self.tls), "token": self.token.reveal()}

    @classmethod
    def received(cls, data: Mapping[str, Any]) -> Login:
        """The reverse of `handed_over`."""
        return cls(**{**data, "tls": Tls(**data["tls"]), "token": Secret(data["token"])})


_CONNECT_WITHIN_S = 5.0
_LONGEST_S = 600.0
_SERVER_ERROR = 500


class UnansweredError(FaultError):
    """An agent did not answer. `certificate` says whether TLS is the reason."""

    def __init__(self, text: str, *, certificate: bool = False) -> None:
        super().__init__(text)
        self.certificate = certificate


class Wire:
    """An async context manager around one connection pool for one product."""

    def __init__(self, login: Login, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        """Raises AttachError for unusable TLS files. `transport` is for tests."""
        self.login = login
        self._moved: dict[str, str] = {}
        # no proxy of the environment between this client and an agent; each request has its own deadline
        self._transport = transport or httpx2.AsyncHTTPTransport(verify=login.tls.context(), trust_env=False)
        self._client = httpx2.AsyncClient(transport=self._transport, trust_env=False, timeout=_LONGEST_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    def move(self, old: str, new: str) -> None:
        """Sends requests for the URL `old` to `new` from now on: the agent has a new address."""
        self._moved = {asked: new if at == old else at for asked, at in self._moved.items() if asked != new}
        if old != new:
            self._moved[old] = new

    async def request(
        self,
        method: str,
        path: str,
        *,
        url: str = "",
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> ApiAnswer:
        """Sends one request to `url` (default: the login's address). Raises UnansweredError; any status is an
        answer.
        """
        base = url or self.login.address
        base = self._moved.get(base, base)
        try:
            answer = await self._client.request(
                method,
                base + path,
                params={**self.login.params, **(params or {})},
                content=body,
                headers={**self.login.headers, **(headers or {})},
                extensions=extensions(self.login),
                timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_WITHIN_S)),
            )
        except (httpx2.HTTPError, OSError) as error:  # httpx2 does not wrap the error of a TLS 1.3 alert
            text, certificate = why(error)
            raise UnansweredError(f"{base}: {method} {path}: {text}", certificate=certificate) from None
        return ApiAnswer(answer.status_code, answer.content, {k.lower(): v for k, v in answer.headers.items()})


class InTurn:
    """Requests to a product through several of its agents. If an agent does not answer, or answers with a server error,
    the next request goes to the next agent, so a caller that repeats its request survives a silenced agent.
    """

    def __init__(self, wire: Wire, urls: Iterable[str]) -> None:
        """The first request goes to the login's address."""
        self._wire = wire
        self._urls = list(dict.fromkeys([wire.login.address, *urls]))

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> ApiAnswer:
        """Sends one request, as `Wire.request`."""
        url = self._urls[0]
        try:
            answer = await self._wire.request(method, path, url=url, params=params, body=body, timeout_s=timeout_s)
        except UnansweredError:
            self._leave(url)
            raise
        if answer.status >= _SERVER_ERROR:
            self._leave(url)
        return answer

    def _leave(self, url: str) -> None:
        if self._urls[0] == url:  # no other request has left it meanwhile
            self._urls.append(self._urls.pop(0))


def extensions(login: Login) -> dict[str, Any]:
    """The httpx2 settings that check a certificate by a name other than the address."""
    return {"sni_hostname": login.tls.server_name} if login.tls.server_name else {}


def why(error: Exception) -> tuple[str, bool]:
    """Why there was no answer, in words, and whether TLS is the reason."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message}", True
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {_reason(cause)}", True
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx2.TimeoutException):
        return "no answer in time", False
    return str(error) or type(error).__name__, False


def _reason(error: ssl.SSLError) -> str:
    known = {
        "WRONG_VERSION_NUMBER": "it does not speak TLS on this port",
        "HTTP_REQUEST": "it does not speak TLS on this port",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client certificate",
        "TLSV1_ALERT_UNKNOWN_CA": "it does not accept our client certificate",
    }
    return known.get(error.reason or "", error.reason or str(error))


@dataclass(frozen=True)
class Place:
    """One agent: its real URL, and the login for it."""

    url: str
    login: Login


class AgentTransport(httpx2.AsyncBaseTransport):
    """Sends a request for `http://ADDRESS:PORT` to the agent that `place_of` returns.

    An unknown address is a connect error.
    """

    def __init__(
        self,
        place_of: Callable[[str, int], Place | None],
        make: Callable[[Login], httpx2.AsyncBaseTransport] | None = None,
    ) -> None:
        self._place_of = place_of
        self._make = make or (lambda login: httpx2.AsyncHTTPTransport(verify=login.tls.context(), trust_env=False))
        self._made: dict[str, httpx2.AsyncBaseTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        place = self._place_of(request.url.host, request.url.port or 80)
        if place is None:
            raise httpx2.ConnectError(f"{request.url.host} is not an agent of the attached datacenter", request=request)
        real, login = httpx2.URL(place.url), place.login
        request.url = request.url.copy_with(scheme=real.scheme, host=real.host, port=real.port)
        if login.params:
            request.url = request.url.copy_merge_params(dict(login.params))
        request.headers["Host"] = real.netloc.decode()
        for name, value in login.headers.items():
            request.headers.setdefault(name, value)
        request.extensions = {**request.extensions, **extensions(login)}
        if login.service not in self._made:
            self._made[login.service] = self._make(login)
        try:
            return await self._made[login.service].handle_async_request(request)
        except ssl.SSLError as error:
            raise httpx2.ReadError(why(error)[0], request=request) from error

    async def aclose(self) -> None:
        """Does nothing: each of the clients that share this transport calls it. `close` closes the transport."""

    async def close(self) -> None:
        for transport in self._made.values():
            await transport.aclose()
        self._made.clear()


_REFUSED = (401, 403)
_UNKNOWN = (b"ACL not found", b"token not found", b"invalid token", b"bad token")
_PLAIN_TO_TLS = b"HTTP request to an HTTPS server"
_WITHIN_S = 10.0


class WeakTokenError(AttachError):
    """The token may not read this; some callers can do without it."""


class LeaderlessError(AttachError):
    """The agent cannot answer now, for example because its cluster is electing a leader."""


async def read(
    wire: Wire,
    path: str,
    *,
    needs: str,
    url: str = "",
    params: Mapping[str, str] | None = None,
    accept: frozenset[int] = frozenset({200}),
) -> ApiAnswer:
    """The answer to a GET.

    `needs` is the rule that the token needs, for the message: `operator:read`. Raises AttachError; WeakTokenError if
    the token may not read it, LeaderlessError for a server error.
    """
    where = url or wire.login.address
    try:
        answer = await wire.request("GET", path, url=url, params=params, timeout_s=_WITHIN_S)
    except UnansweredError as error:
        raise AttachError(f"{error}; {_hint(certificate=error.certificate)}") from None
    if answer.status in accept:
        return answer
    if _PLAIN_TO_TLS in answer.body:
        raise AttachError(f"{where} speaks TLS: write its address as {where.replace('http://', 'https://', 1)}")
    words = answer.body[:200].decode(errors="replace").strip()
    if answer.status in _REFUSED:
        raise _refused(wire, f"{where}: GET {path}", words, answer.body, needs)
    if answer.status >= _SERVER_ERROR:
        raise LeaderlessError(f"{where}: GET {path}: HTTP {answer.status} {words}")
    raise AttachError(f"{where}: GET {path}: HTTP {answer.status} {words}; is this {wire.login.service}?")


async def read_json(
    wire: Wire, path: str, *, needs: str, url: str = "", params: Mapping[str, str] | None = None
) -> Any:
    """Like `read`, but returns the JSON of the answer."""
    return parsed(wire, await read(wire, path, needs=needs, url=url, params=params), path, url=url)


def parsed(wire: Wire, answer: ApiAnswer, path: str, *, url: str = "") -> Any:
    """The JSON of an answer. Raises AttachError."""
    try:
        return answer.json()
    except FaultError:
        where = url or wire.login.address
        raise AttachError(f"{where}: GET {path}: its answer is not JSON; is this {wire.login.service}?") from None


def _hint(*, certificate: bool) -> str:
    if certificate:
        return "set ca_file, server_name, or cert_file and key_file, in the file or by the variables of its CLI"
    return "is the address right, and is it reachable from this machine?"


def _refused(wire: Wire, where: str, words: str, body: bytes, needs: str) -> AttachError:
    login = wire.login
    if not login.token:
        return WeakTokenError(f"{where}: refused without a token ({words}); give token_file a token with {needs}")
    if any(said in body for said in _UNKNOWN):
        return AttachError(f"{where}: the token from {login.token_from} is not known there ({words})")
    return WeakTokenError(f"{where}: the token from {login.token_from} is too weak: it needs {needs} ({words})")
