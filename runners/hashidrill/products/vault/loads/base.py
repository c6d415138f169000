"""The base of loads on Vault: the servers that they call, their token, and the outcome of their requests."""

import json
from typing import Annotated, Any, ClassVar

from pydantic import Field

from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.base import AgentLoad, LoadContext
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.util.safe_json import parse
from hashidrill.products.vault.rights import MOUNT

Via = Annotated[str, Field(description="Selector of the servers to send to, in turn; a standby forwards requests")]
TOKEN = "VAULT_TOKEN"  # noqa: S105 - the name of the variable


class VaultLoad(AgentLoad):
    """The parameter `via` selects the servers. Raises ValueError if the address or the token is missing."""

    asks: ClassVar[str] = "server"

    def __init__(self, name: str, params: Any, context: LoadContext) -> None:
        super().__init__(name, params, context)
        if TOKEN not in context.access:
            raise ValueError(f"load {name!r} has no token: its `via` must name Vault's servers, like vault:servers")
        self._timeout_s = float(params.timeout)

    def url(self, n: int, path: str) -> str:
        """The URL of that path, at the next server in rotation."""
        return f"{self.endpoint(n)}/v1/{path}"

    def client(self) -> HttpClient:
        headers = {"X-Vault-Token": self.context.access[TOKEN], "Content-Type": "application/json"}
        return self.context.http(headers)


def data_path(key: str) -> str:
    """The path of a secret's newest version, in the loads' own engine."""
    return f"{MOUNT}/data/{key}"


def body_of(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_json(answer: Answer) -> dict[str, Any]:
    """The answer's JSON object; empty if it is not an object."""
    try:
        found = parse(answer.body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def listed_names(answer: Answer) -> list[str] | None:
    """The names under one path, from the storage, because Vault keeps no list in memory. None if no answer came."""
    if answer.status == 404:
        return []
    data = read_json(answer).get("data")
    names = data.get("keys") if answer.status == 200 and isinstance(data, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else None


def write_reply(answer: Answer) -> Reply:
    """The outcome of a change in Vault.

    `ok` is 200 or 204. `fail` means that the change certainly had no effect: there was no connection, or Vault refused
    the request (4xx: no such token, a rate limit). Any other result is `unknown`, even a 5xx: a standby may have
    forwarded a write to an active server that applied it and ended before it answered, and a server that is sealed
    during a write answers 503.
    """
    if not answer.sent:
        return Reply("fail", error=answer.error, reason=answer.why)
    if answer.status == 0:
        return Reply("unknown", error=answer.error, reason=answer.why)
    if answer.status in {200, 204}:
        return Reply("ok", status=answer.status)
    # 408 is the one 4xx about the exchange, not about the request
    refused = 400 <= answer.status < 500 and answer.status != 408
    return Reply("fail" if refused else "unknown", status=answer.status, error=read_error(answer), reason=answer.why)


def read_reply(answer: Answer, value: str | None) -> Reply:
    """The outcome of a read, which changes nothing: `ok` or `fail`. `value`: the value found, or None."""
    if answer.status == 200 and value is not None:
        return Reply("ok", status=200, value=value)
    reason = Reason.UNEXPECTED if answer.status == 200 else answer.why
    return Reply("fail", status=answer.status, error=read_error(answer), reason=reason)
