"""Asks an HTTP endpoint: status, latency, and a value in the body. Probes of Prometheus' API share parts of it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol
from urllib.parse import SplitResult, parse_qsl, urljoin, urlsplit

import anyio
import httpx2
from pydantic import Field, field_validator, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.declared import (
    OK,
    TLS,
    DeclaredProbe,
    Look,
    ProbeContext,
    ProbeParams,
    Source,
    TlsFiles,
    UnservedError,
)
from hashidrill.core.units import Duration, shown
from hashidrill.core.util.redaction import is_secret_name
from hashidrill.core.util.safe_json import parse

MOST_BYTES = 1_048_576
"""A larger body is not read to its end, and its signals are unknown."""
_LONGEST_LINE = 1000
_CLOSES_WITHIN_S = 1.0
_NESTED = re.compile(r"[*+}]\)+[*+{]")
"""A repeated group that ends with a repetition, like `(a+)+`: a search for such a pattern may never end."""
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_STATUS = Annotated[int, Field(ge=100, le=599)]


class Basic(Strict):
    """A user's name, and where the password is."""

    username: str = Field(min_length=1, description="The name of the user")
    password: Source


class HttpAccess(ProbeParams):
    """How to reach an HTTP server."""

    url: str = Field(description="http:// or https://, with an address or the name of a host of the datacenter")
    headers: dict[str, str | Source] = Field(
        default={}, max_length=20, description="Headers; write a secret as `{env: NAME}` or `{file: PATH}`"
    )
    basic: Basic | None = Field(default=None, description="User and password")
    tls: TlsFiles | None = TLS

    @field_validator("url")
    @classmethod
    def _whole(cls, value: str) -> str:
        parts = _split(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{shown(value)} is not a URL; write it like http://client-1:8500/v1/status/leader")
        if parts.username is not None or parts.password is not None:
            raise ValueError("a URL with a user or password would be recorded; use `basic` or `headers`")
        if secret := next((name for name, _ in parse_qsl(parts.query) if is_secret_name(name)), ""):
            raise ValueError(f"the parameter {secret} is a secret, which a URL would record; send it in `headers`")
        if parts.fragment or not value.isascii() or re.search(r"[\s\x00-\x1f]", value):
            raise ValueError(f"{shown(value)}: a URL has no fragment, no spaces, and only ASCII characters")
        return value

    @field_validator("headers")
    @classmethod
    def _no_secrets(cls, value: dict[str, str | Source]) -> dict[str, str | Source]:
        for name, written in value.items():
            if not _TOKEN.fullmatch(name) or name.lower() in {"host", "content-length", "transfer-encoding"}:
                raise ValueError(f"{shown(name)} is not a header that a probe can set")
            if isinstance(written, str) and is_secret_name(name):
                raise ValueError(f"{name} is a secret: write `{{env: NAME}}` or `{{file: PATH}}` instead of its value")
            if isinstance(written, str) and not written.isprintable():
                raise ValueError(f"{name}: {shown(written)} has characters that no header can have")
        return value

    def hosts(self) -> Sequence[str]:
        return [str(_split(self.url).hostname)]


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    _ = parts.port  # raises ValueError if the port is not a number
    return parts


class HttpParams(HttpAccess):
    """The parameters of an http probe."""

    method: Literal["GET", "HEAD", "POST", "PUT"] = Field(default="GET", description="The request's method")
    body: str | None = Field(default=None, max_length=MOST_BYTES, description="The request's body")
    status: list[_STATUS] = Field(
        default=[], max_length=20, description="The statuses of a good answer; default: any from 200 to 299"
    )
    json_: str | None = Field(
        default=None,
        alias="json",
        min_length=1,
        description="The place of a value in a JSON body, like `data.items.0.ready`",
    )
    regex: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="A pattern that a line of the body must match; its first group is the value",
    )
    equals: str | None = Field(default=None, description="The value of a good answer, as text")
    redirects: int = Field(
        default=0, ge=0, le=5, description="How many redirects to follow, to the same host and port only"
    )
    keep: bool = Field(default=False, description="Whether samples quote the body's first 200 characters")

    @model_validator(mode="after")
    def _fits(self) -> HttpParams:
        if self.json_ is not None and self.regex is not None:
            raise ValueError("the value is either at a place in JSON (`json`) or matched by a pattern (`regex`)")
        if self.equals is not None and self.json_ is None and self.regex is None:
            raise ValueError("`equals` compares a value: say where it is with `json` or `regex`")
        if self.regex is not None:
            check_pattern(self.regex)
        if self.method in {"GET", "HEAD"} and self.body is not None:
            raise ValueError(f"a {self.method} has no body; use POST or PUT")
        return self


def check_pattern(text: str) -> None:
    """Raises ValueError if the text is not a regular expression, or is one whose search may never end."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{shown(text)} is not a regular expression: {error}") from None
    if _NESTED.search(text):
        raise ValueError(f"{shown(text)} repeats a repetition, so that a search may never end")


@dataclass(frozen=True)
class Reply:
    """A complete reply, and how long it took from the start of the connection."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    took_s: float


class HttpAsker:
    """Sends requests to one server, each on a new connection: a kept one would hide that no new one can be opened.

    `keeps`: keeps connections, for a server that is not judged itself: to open one takes most of the CPU time.
    """

    def __init__(
        self,
        params: HttpAccess,
        context: ProbeContext,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        keeps: bool = False,
    ) -> None:
        """Raises TlsFileError."""
        self._context = context
        self._server_name = params.tls.server_name if params.tls else ""
        verify: Any = (params.tls or TlsFiles()).files().context() if params.url.startswith("https") else False
        real = httpx2.AsyncHTTPTransport(
            verify=verify,
            trust_env=False,
            limits=httpx2.Limits(max_keepalive_connections=2 if keeps else 0),
            local_address=context.local_address,
        )
        # the probe's own deadline covers the whole look
        self._client = httpx2.AsyncClient(trust_env=False, timeout=None, transport=transport or real)
        self._headers = context.filled(params.headers)
        if params.basic is not None:
            pair = f"{params.basic.username}:{context.secret(params.basic.password)}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"

    async def send(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
    ) -> Reply:
        """Raises UnservedError if no complete reply comes, SickError if the reply is too large or encoded."""
        parts = urlsplit(url)
        host = str(parts.hostname)
        address = self._context.address(host)
        port = f":{parts.port}" if parts.port else ""
        there = parts._replace(netloc=(f"[{address}]" if ":" in address else address) + port).geturl()
        said = {
            "Accept-Encoding": "identity",
            "User-Agent": "hashidrill",
            **self._headers,
            **headers,
            "Host": host + port,
        }
        began_s = anyio.current_time()
        request = self._client.build_request(
            method, there, content=body, headers=said, extensions={"sni_hostname": self._server_name or host}
        )
        try:
            reply = await self._client.send(request, stream=True)
            try:
                if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise SickError(
                        f"the body is encoded ({reply.headers['Content-Encoding'][:40]}), which was not requested"
                    )
                content = bytearray()
                async for chunk in reply.aiter_bytes():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        raise SickError(f"HTTP {reply.status_code} with a body over {MOST_BYTES} bytes: not read")
            finally:
                with anyio.move_on_after(_CLOSES_WITHIN_S, shield=True):
                    await reply.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise UnservedError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from None
        return Reply(reply.status_code, reply.headers, bytes(content), anyio.current_time() - began_s)

    async def aclose(self) -> None:
        await self._client.aclose()


class _Asks(Protocol):
    async def aclose(self) -> None: ...


class ServerProbe(DeclaredProbe):
    """A probe that asks one server over HTTP, through its `_asker`."""

    _asker: _Asks

    def __init__(
        self,
        name: str,
        params: Any,
        context: ProbeContext,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        **times: float,
    ) -> None:
        super().__init__(name, params, context, **times)
        self._asker = self._opened(transport)

    def _opened(self, transport: httpx2.AsyncBaseTransport | None) -> _Asks:
        """The client for its requests. Raises TlsFileError."""
        return HttpAsker(self.params, self.context, transport=transport)

    async def aclose(self) -> None:
        await self._asker.aclose()


class HttpProbe(ServerProbe):
    """Sends a request and judges the answer: `ok` is 1 for an expected status, and a body that matches.

    Signals: `ok`, `latency` (to the end of the body, in seconds), `status`, and `value` (the number at `json`, or in
    the first group of `regex`). Without a complete answer, `ok` is 0 and the others are unknown. All are unknown for an
    answer with a body over 1 MiB. Each look opens a new connection. Bodies are recorded only with `keep`.
    """

    kind = "http"
    Params: ClassVar = HttpParams
    signals: ClassVar = {OK: None, "latency": Duration, "status": None, "value": None}
    params: HttpParams
    _asker: HttpAsker

    async def look(self) -> Look:
        params, url = self.params, self.params.url
        body = None if params.body is None else params.body.encode()
        began_s = anyio.current_time()
        reply = await self._asker.send(params.method, url, body=body)
        for _ in range(params.redirects):
            if reply.status not in _REDIRECTS:
                break
            url = _same_server(url, reply.headers.get("Location", ""))
            method = params.method if reply.status in {307, 308} else "GET"
            reply = await self._asker.send(method, url, body=body if method == params.method else None)
        if params.redirects and reply.status in _REDIRECTS:
            raise UnservedError(f"more than {params.redirects} redirects")
        values = {"latency": anyio.current_time() - began_s, "status": float(reply.status)}
        wanted = reply.status in params.status if params.status else 200 <= reply.status < 300
        text = f"HTTP {reply.status}"
        if params.json_ is not None or params.regex is not None:
            found, why = _found(params, reply.body)
            if found is None:
                wanted, text = False, f"{text}: {why}"
            elif params.equals is not None and found != params.equals:
                wanted, text = False, f"{text}: {shown(found)} instead of {shown(params.equals)}"
            if found is not None and wanted and _NUMBER.fullmatch(found.strip()):
                values["value"] = float(found)
        if params.keep:
            text += f" {shown(reply.body[:200].decode(errors='replace'))}"
        return Look({OK: float(wanted), **values}, text)


def _same_server(url: str, location: str) -> str:
    """The URL of a redirect. Raises UnservedError if it is on another server, which the probe does not name."""
    try:
        target, here = _split(urljoin(url, location)), _split(url)
    except ValueError:
        raise UnservedError(f"redirects to {shown(location)}, which is not a URL") from None
    there = target.scheme, target.hostname, target.port
    if not location or there != (here.scheme, here.hostname, here.port):
        raise UnservedError(f"redirects to {shown(location)}; the probe names only {here.scheme}://{here.netloc}")
    return target._replace(fragment="").geturl()


def _found(params: HttpParams, body: bytes) -> tuple[str | None, str]:
    """The value in the body as text, or None; and the reason if there is no value."""
    if params.regex is not None:
        pattern = re.compile(params.regex)
        for line in body.decode(errors="replace").splitlines():
            if match := pattern.search(line[:_LONGEST_LINE]):
                return (match[1] if pattern.groups and match[1] is not None else match[0]), ""
        return None, f"no line matches {shown(params.regex)}"
    try:
        value = parse(body)
    except ValueError:
        return None, "the body is not JSON"
    for step in str(params.json_).split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None, f"there is no {params.json_} in the body"
    if isinstance(value, bool) or value is None or isinstance(value, dict | list):
        return json.dumps(value), ""
    return str(value), ""
