"""Reading from a product that may refuse: what went wrong, as a message that says what to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import AttachError, FaultError
from hashidrill.staging.attach.wire import UnansweredError

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import ApiAnswer
    from hashidrill.staging.attach.wire import Wire

_REFUSED = (401, 403)
_UNKNOWN = (b"ACL not found", b"token not found", b"invalid token", b"bad token")
_PLAIN_TO_TLS = b"HTTP request to an HTTPS server"
_WITHIN_S = 10.0


class WeakTokenError(AttachError):
    """The token may not read this: some callers can do without."""


async def read(
    wire: Wire,
    path: str,
    *,
    needs: str,
    url: str = "",
    params: Mapping[str, str] | None = None,
    accept: frozenset[int] = frozenset({200}),
) -> ApiAnswer:
    """The answer to a GET. `needs` is the rule that a token needs for it, for the message: `operator:read`.

    Raises AttachError for whatever is no answer of the product's, WeakTokenError where the token may not read it.
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
    raise AttachError(f"{where}: GET {path}: HTTP {answer.status} {words}; is this {wire.login.service}?")


async def read_json(
    wire: Wire, path: str, *, needs: str, url: str = "", params: Mapping[str, str] | None = None
) -> Any:
    """Like `read`, as JSON."""
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
        return "give ca_file, server_name, or cert_file and key_file, in the file or as the variables of its CLI"
    return "is the address right, and is it reachable from this machine?"


def _refused(wire: Wire, where: str, words: str, body: bytes, needs: str) -> AttachError:
    login = wire.login
    if not login.token:
        return WeakTokenError(f"{where}: refused without a token ({words}); give token_file a token with {needs}")
    if any(said in body for said in _UNKNOWN):
        return AttachError(f"{where}: the token from {login.token_from} is not known there ({words})")
    return WeakTokenError(f"{where}: the token from {login.token_from} is too weak: it needs {needs} ({words})")
