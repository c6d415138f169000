"""The login of a product in an attached datacenter: its address, TLS files and token.

The settings come from the Attach file, and from the environment variables of the product's command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn
from urllib.parse import urlsplit

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
