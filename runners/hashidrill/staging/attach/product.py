"""The protocol of products whose datacenters can be attached."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from hashidrill.core.errors import AttachError, FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Host
from hashidrill.core.protocols.rights import Left
from hashidrill.core.units import shown
from hashidrill.core.util.tls import Tls, TlsFileError
from hashidrill.staging.attach.http import Login, Secret, WeakTokenError, Wire, read_json


def in_kubernetes() -> Any:
    """What pods and their injectors add to an attached datacenter, from a higher room through its entry point."""
    return registry.plugin("hashidrill.attached", "kubernetes")


class Part(Strict):
    """The part of one product in a file of `kind: Attach`. The environment provides missing keys."""

    address: str | None = Field(default=None, description="URL of any agent, like https://consul.staging.example:8501")
    token_file: str | None = Field(default=None, description="File that holds only the ACL token")
    ca_file: str | None = Field(default=None, description="Certificate of the CA that signed the agents' certificates")
    ca_path: str | None = Field(default=None, description="Folder of CA certificates")
    cert_file: str | None = Field(default=None, description="Client certificate")
    key_file: str | None = Field(default=None, description="Key of the client certificate")
    server_name: str | None = Field(default=None, description="Name in the agents' certificates")
    verify: bool | None = Field(default=None, description="Whether certificates are checked")
    agents: dict[str, str] = Field(
        default={}, description="URL of an agent's own API, by host, if it is not at the node's address"
    )


@dataclass(frozen=True)
class Node:
    """One agent that a product knows. Agents of other products may share its host."""

    name: str
    address: str
    role: str
    meta: Mapping[str, str] = field(default_factory=dict)
    """Meta data of the machine: node meta, datacenter and class. Interlocks search it for `production`."""
    url: str = ""
    """The URL of its API, if the product reports it; "" means the node's address with the login's port."""


@dataclass(frozen=True)
class Found:
    """The result of one product's discovery."""

    nodes: Sequence[Node]
    version: str
    """Like 1.22.2; "" if unknown."""
    leader: str = ""
    """The leading or active host; "" for none."""
    voters: Sequence[str] = ()
    """The hosts whose majority decides."""
    datacenter: str = ""
    """The product's own name for the datacenter: `dc1`, a region, a cluster's name."""
    notes: Sequence[str] = ()
    """What was left out, and why."""


class Product:
    """Base of attachable products, with defaults that suit most of them."""

    name: ClassVar[str]
    pods: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    leads: ClassVar[Mapping[str, str]] = {}
    writes_nothing: ClassVar[str] = ""
    large: ClassVar[str] = ""

    def params(self, said: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002 - subclasses use it
        return {}

    def headers(self, said: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002 - subclasses use it
        return {}

    def fallback_token(self, environ: Mapping[str, str]) -> tuple[Secret, str]:  # noqa: ARG002 - subclasses use it
        return Secret(), ""

    def parts(self, host: Host, login: Login) -> Mapping[type[Any], Any]:  # noqa: ARG002 - subclasses use it
        return {}

    async def remove(self, wire: Wire, left: Left) -> int:  # noqa: ARG002 - subclasses use it
        raise FaultError(f"{left}: hashidrill does not know how to remove it from {self.name}")

    def hello(self, port: int) -> bytes:  # noqa: ARG002 - subclasses use it
        """A request that an agent answers at once on a port other than its API's; b"" if none is known."""
        return b""

    def ports(self, role: str) -> Sequence[int]:  # noqa: ARG002 - subclasses use it
        """The ports, besides the API's, that others connect to and that answer a hello, of an agent in that role."""
        return ()

    def starts_jobs(self, role: str) -> bool:  # noqa: ARG002 - subclasses use it
        """Whether an agent in that role starts users' programs, which tracing would follow."""
        return False


class Attachable(Protocol):
    """Login and discovery of one product. Found by the entry points of `hashidrill.attach`."""

    name: ClassVar[str]
    Part: ClassVar[type[Part]]
    default_address: ClassVar[str]
    port: ClassVar[int]
    """The usual port of its agents: `http://ADDRESS:PORT` means that agent."""
    variables: ClassVar[Mapping[str, str]]
    """The variables of its command line by their meaning: the keys of Part, and `token`, `ssl`, `http_auth`."""
    token_header: ClassVar[str]
    health: ClassVar[str]
    """A path that each of its agents answers without a token."""
    alive: ClassVar[str]
    """A path that a server answers with a status below 500 while it serves."""
    pods: ClassVar[Mapping[str, Mapping[str, str]]]
    """For each role, the labels of its pods in the official chart; empty without such a chart."""
    leads: ClassVar[Mapping[str, str]]
    """Additional labels of the active server's pod; empty if no label marks it."""
    writes_nothing: ClassVar[str]
    """A path whose DELETE is committed like any write, but changes nothing; "" if none is known."""
    large: ClassVar[str]
    """A path whose answer is some kilobytes long and costs the agent little; "" if none is known."""
    process: ClassVar[Sequence[str]]
    """The start of its agents' command line, by which carriers find them on their hosts."""

    def headers(self, said: Mapping[str, str]) -> Mapping[str, str]:
        """Headers of each request, besides the token's; `said` has the file's and the environment's values, by key."""

    def params(self, said: Mapping[str, str]) -> Mapping[str, str]:
        """Query parameters of each request."""

    def fallback_token(self, environ: Mapping[str, str]) -> tuple[Secret, str]:
        """(token, its origin) from where the product's command line keeps it, like ~/.vault-token."""

    async def discover(self, wire: Wire) -> Found:
        """Discovers the datacenter by reads alone. Raises AttachError: what is missing, and which part needs it."""

    def parts(self, host: Host, login: Login) -> Mapping[type[Any], Any]:
        """Capabilities that the product adds to its agents' hosts, with their implementations."""

    def hello(self, port: int) -> bytes: ...

    def ports(self, role: str) -> Sequence[int]: ...

    def starts_jobs(self, role: str) -> bool: ...

    async def remove(self, wire: Wire, left: Left) -> int:
        """Removes what a run left, and returns how many there were. Idempotent. Raises FaultError."""

    def spec(self, found: Found) -> Mapping[str, Any]:
        """The product's part of `datacenter:` for the discovered agents: the version and their number."""


def at_most(number: int, field: FieldInfo) -> int:
    """The number of agents, capped at the limit for local datacenters; the hosts hold the real number."""
    return min(number, next((int(limit.le) for limit in field.metadata if hasattr(limit, "le")), 0))


def versioned(found: Found, **counts: Any) -> Mapping[str, Any]:
    """A part of `datacenter:`, with the version if known."""
    return {**({"version": found.version} if found.version else {}), **counts}


def spec_by_role(found: Found, model: type[BaseModel]) -> Mapping[str, Any]:
    """The part of a product that has servers and clients."""
    roles = [node.role for node in found.nodes]
    counts = {f"{role}s": at_most(roles.count(role), model.model_fields[f"{role}s"]) for role in ("server", "client")}
    return versioned(found, **counts)


def host_of(address: str) -> str:
    """The host part of an address, without the port and without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")


def version_in(build: str) -> str:
    """`1.22.2` of `1.22.2+ent:abc`; "" where there is none."""
    found = re.match(r"\d+\.\d+\.\d+", build)
    return found[0] if found else ""


async def raft_of(
    wire: Wire, names: Mapping[str, str], name_of: Callable[[Mapping[str, Any]], str], *, needs: str
) -> tuple[str, list[str], list[str]]:
    """(leader, voters, notes). Any token may read the peers; only a token with `needs` may read the voters.

    `names` maps the servers' addresses to their names; `name_of` returns the name of a server in Raft's configuration.
    """
    try:
        answer = await read_json(wire, "/v1/operator/raft/configuration", needs=needs, params={"stale": ""})
        servers = [(name_of(one), one) for one in answer["Servers"]]
        leader = next((name for name, one in servers if one["Leader"]), "")
        return leader, [name for name, one in servers if one["Voter"] and name], []
    except WeakTokenError as weak:
        peers = await read_json(wire, "/v1/status/peers", needs="nothing")
        leader = str(await read_json(wire, "/v1/status/leader", needs="nothing"))
        voters = [names[address] for address in map(host_of, peers) if address in names]
        return names.get(host_of(leader), ""), voters, [f"all peers count as voters: {weak}"]


def attachables(names: Iterable[str] = ()) -> dict[str, Attachable]:
    """All products that can be attached, or only those with these names."""
    every = registry.entries(registry.ATTACH)
    return {name: registry.plugin(registry.ATTACH, name) for name in (names or every) if name in every}


_FILES = ("token_file", "ca_file", "ca_path", "cert_file", "key_file")
_TRUE, _FALSE = {"1", "t", "true"}, {"0", "f", "false"}
"""The values of Go's strconv.ParseBool, which the products' command lines use, in lower case."""


def login_of_environment(product: Attachable, environ: Mapping[str, str]) -> Login:
    """The login from the environment variables of the product's own command line alone. Raises AttachError."""
    return login_from(product, product.Part(), environ, Path())


def login_from(
    product: Attachable, part: Part, environ: Mapping[str, str], path: Path, *, of_pod: bool = False
) -> Login:
    """The login from a product's part in the file at `path`.

    `of_pod`: the address comes from the file, or later from a pod (""). Raises AttachError.
    """
    said = {key: environ[variable] for key, variable in product.variables.items() if environ.get(variable, "").strip()}
    if of_pod:
        said.pop("address", None)
    no_keys = {"agents", "servers", "clients"}
    from_file = {key: value for key, value in part.model_dump(exclude=no_keys).items() if value is not None}
    for key in _FILES:
        if key in from_file:
            from_file[key] = str(path.parent / Path(from_file[key]).expanduser())
    if "token_file" in from_file:
        said.pop("token", None)
    said |= {key: value if isinstance(value, str) else str(value).lower() for key, value in from_file.items()}
    token, came_from = _token(product, said, environ)
    named = {key: said.get(key, "") for key in ("ca_file", "ca_path", "cert_file", "key_file", "server_name")}
    tls = Tls(**named, verify=_verifies(product, said))
    address = "" if of_pod and "address" not in said else _url(product, said)
    headers = dict(product.headers(said))
    if token:
        headers[product.token_header] = token.reveal()
    try:
        tls.context()  # reports an unusable file before any request
    except TlsFileError as error:
        raise AttachError(str(error)) from None
    return Login(
        product.name,
        address,
        tls,
        headers,
        product.params(said),
        token,
        came_from,
        {
            host: whole_url(product.name, product.port, url, f"datacenter.{product.name}.agents.{host}")
            for host, url in part.agents.items()
        },
        ", ".join(f"{key} {said[key]}" for key in ("namespace", "partition", "region") if key in said),
    )


def _token(product: Attachable, said: Mapping[str, str], environ: Mapping[str, str]) -> tuple[Secret, str]:
    """The token; a file has precedence over a variable, as in Consul's own command line."""
    if "token_file" in said:
        file = Path(said["token_file"]).expanduser()
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise AttachError(f"{file}: the token of {product.name} cannot be read: {why}") from None
        if not token or len(token.split()) > 1:
            raise AttachError(f"{file}: expected the token of {product.name} and nothing else")
        return Secret(token), f"the file {file}"
    if "token" in said:
        return Secret(said["token"].strip()), f"the variable {product.variables['token']}"
    return product.fallback_token(environ)


def _verifies(product: Attachable, said: Mapping[str, str]) -> bool:
    if "verify" in said:
        return _bool(said["verify"], product.variables.get("verify", "verify"))
    if "skip_verify" in said:
        return not _bool(said["skip_verify"], product.variables["skip_verify"])
    return True


def _bool(text: str, where: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise AttachError(f"{where}: expected true or false, got {shown(text)}")


def _url(product: Attachable, said: Mapping[str, str]) -> str:
    secure = "ssl" in said and _bool(said["ssl"], product.variables["ssl"])
    return address_of(product, said.get("address", product.default_address), secure=secure)


def address_of(product: Attachable, written: str, *, secure: bool = False) -> str:
    """The URL of a product, written with or without its scheme. Raises AttachError."""
    whole = written if "://" in written else f"{'https' if secure else 'http'}://{written}"
    return whole_url(product.name, product.port, whole, f"the address of {product.name}")


def whole_url(name: str, port: int, url: str, what: str) -> str:
    """A URL without a path, and with a port. Raises AttachError."""
    hint = f"like https://{name}.staging.example:{port}"
    try:
        parts = urlsplit(url.strip())
        given = parts.port
    except ValueError as error:
        raise AttachError(f"{what}: {shown(url)}: {error}; write a URL {hint}") from None
    if parts.scheme not in {"http", "https"}:
        raise AttachError(f"{what}: {shown(url)} must start with http:// or https://; write a URL {hint}")
    if not parts.hostname or parts.username is not None or given == 0:
        raise AttachError(f"{what}: expected a URL {hint}, without a name or password in it")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise AttachError(f"{what}: {shown(url)} has a path, which would be left out; write a URL {hint}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{given or (443 if parts.scheme == 'https' else 80)}"
