"""What a product must say of itself so that a datacenter of it can be attached."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import Field

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols import registry

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from hashidrill.core.protocols.abc import Host
    from hashidrill.core.protocols.rights import Left
    from hashidrill.staging.attach.login import Login, Secret
    from hashidrill.staging.attach.wire import Wire


class Part(Strict):
    """The part of one product in a file of `kind: Attach`. What it leaves out is taken from the environment."""

    address: str | None = Field(default=None, description="URL of any agent, like https://consul.staging.example:8501")
    token_file: str | None = Field(default=None, description="File that holds the ACL token, and nothing else")
    ca_file: str | None = Field(default=None, description="CA certificate that the agents' certificates are signed by")
    ca_path: str | None = Field(default=None, description="Folder of CA certificates")
    cert_file: str | None = Field(default=None, description="Client certificate")
    key_file: str | None = Field(default=None, description="Key of the client certificate")
    server_name: str | None = Field(default=None, description="Name that the agents' certificates have")
    verify: bool | None = Field(default=None, description="Whether certificates are checked")
    agents: dict[str, str] = Field(
        default={}, description="URL of an agent's own API, by host, where it is not at its node's address"
    )


@dataclass(frozen=True)
class Node:
    """One agent that a product knows, as a host that it shares with agents of other products."""

    name: str
    address: str
    role: str
    meta: Mapping[str, str] = field(default_factory=dict)
    """What was said of the machine: node meta, datacenter and class. Interlocks look for `production` in it."""
    url: str = ""
    """Of its API, where the product knows it; "" for the node's address and the port of the login's address."""


@dataclass(frozen=True)
class Found:
    """What a product said about itself, by reading alone."""

    nodes: Sequence[Node]
    version: str
    """Like 1.22.2; "" where it does not say."""
    leader: str = ""
    """The host that leads, or is active; "" for none."""
    voters: Sequence[str] = ()
    """The hosts whose majority decides."""
    datacenter: str = ""
    """The product's own name of it: `dc1`, a region, a cluster's name."""
    notes: Sequence[str] = ()
    """What was left out and why."""


class Product:
    """Base of attachable products: what most of them need not do."""

    name: ClassVar[str]
    pods: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    leads: ClassVar[Mapping[str, str]] = {}
    writes_nothing: ClassVar[str] = ""

    async def remove(self, wire: Wire, left: Left) -> int:  # noqa: ARG002 - subclasses ask by it
        raise FaultError(f"{left}: hashidrill does not know how to take it out of {self.name}")

    def hello(self, port: int) -> bytes:  # noqa: ARG002 - subclasses look at it
        """What an agent answers at once on a port of its that is not its API's; b"" where nothing is known."""
        return b""

    def ports(self, role: str) -> Sequence[int]:  # noqa: ARG002 - subclasses look at it
        """The ports of an agent in that role that others connect to, beside its API's, and that answer a hello."""
        return ()

    def starts_jobs(self, role: str) -> bool:  # noqa: ARG002 - subclasses look at it
        """Whether an agent in that role starts programs of its users: what traces it would follow into them."""
        return False


class Attachable(Protocol):
    """How one product is logged in to and looked through. One object a product: `ATTACH` of its `Service.attach`."""

    name: ClassVar[str]
    Part: ClassVar[type[Part]]
    default_address: ClassVar[str]
    port: ClassVar[int]
    """Where its agents listen by convention: what asks `http://ADDRESS:PORT` means that agent."""
    variables: ClassVar[Mapping[str, str]]
    """The variables of its command line by what they say: the keys of Part, and `token`, `ssl`, `http_auth`."""
    token_header: ClassVar[str]
    health: ClassVar[str]
    """A path that each of its agents answers, to everybody."""
    pods: ClassVar[Mapping[str, Mapping[str, str]]]
    """By role, the labels that its pods have by the official chart; empty where there is no such chart."""
    leads: ClassVar[Mapping[str, str]]
    """The labels that the pod of the active one has besides; empty where no label says it."""
    writes_nothing: ClassVar[str]
    """A path whose DELETE is committed like any write, and changes nothing; "" where none is known."""
    process: ClassVar[Sequence[str]]
    """How the command line of its agents begins, for carriers that look for them on their hosts."""

    def headers(self, said: Mapping[str, str]) -> Mapping[str, str]:
        """Of each request, beside the token's; `said` has what the file and the environment say, by key."""

    def params(self, said: Mapping[str, str]) -> Mapping[str, str]:
        """Of each request."""

    def fallback_token(self, environ: Mapping[str, str]) -> tuple[Secret, str]:
        """(token, where from) of a place of its command line's own, like ~/.vault-token."""

    async def discover(self, wire: Wire) -> Found:
        """Looks, and changes nothing. Raises AttachError that says what is missing, and for which purpose."""

    def parts(self, host: Host, login: Login) -> Mapping[type[Any], Any]:
        """Capabilities that it adds to a host of one of its agents, with what carries them out."""

    def hello(self, port: int) -> bytes: ...

    def ports(self, role: str) -> Sequence[int]: ...

    def starts_jobs(self, role: str) -> bool: ...

    async def remove(self, wire: Wire, left: Left) -> int:
        """Takes away what a run left, and says how many there were: keys of a folder. Idempotent. Raises FaultError."""

    def spec(self, found: Found) -> Mapping[str, Any]:
        """Its part of `datacenter:` for what was found: the version and how many there are."""


def most(field: FieldInfo) -> int:
    """The largest count that the model of our own datacenters allows; how many there really are is in the hosts."""
    return next((int(limit.le) for limit in field.metadata if hasattr(limit, "le")), 0)


def attachable(service: str) -> Attachable | None:
    """None for a product that cannot be attached."""
    module = getattr(registry.services()[service], "attach", "")
    found: Attachable | None = importlib.import_module(module).ATTACH if module else None
    return found


def attachables(names: Iterable[str] = ()) -> dict[str, Attachable]:
    """All products that can be attached, or those of these names."""
    every = {name: attachable(name) for name in (names or registry.services())}
    return {name: product for name, product in every.items() if product is not None}
