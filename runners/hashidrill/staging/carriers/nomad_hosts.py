"""Finds the hosts that are Nomad clients able to run hashidrill's jobs. This module only reads until a shell is
requested.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from anyio.abc import TaskGroup

from hashidrill.core.errors import AttachError, HashidrillError
from hashidrill.core.protocols import registry
from hashidrill.staging.attach.discovery import Estate, FoundHost
from hashidrill.staging.attach.http import Wire
from hashidrill.staging.attach.login import Login
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.carriers import nomad
from hashidrill.staging.carriers.lease import Patience
from hashidrill.staging.carriers.nomad_jobs import Jobs, Node, restarting, unfit
from hashidrill.staging.carriers.settings import Carriers, NomadSettings, carrier_rights
from hashidrill.staging.carriers.shell import Shell

Connect = Callable[[str, str], AbstractAsyncContextManager[Shell]]
"""(host, address) -> a shell there. Raises AttachError."""
Dial = Callable[[str, Sequence[str]], Awaitable[Any]]
"""(allocation, command) -> a program there, as a Stream (hashidrill.staging.carriers.nomad)."""
AWAITED_S = 90.0
"""How long heal waits for a host: a Nomad client returns some seconds after its agent, a machine takes longer."""


@dataclass(frozen=True)
class Reached:
    """`why_not`: by host, why Nomad cannot carry faults there; "" if it can."""

    why_not: Mapping[str, str]
    connect: Connect


Reaching = Callable[..., AbstractAsyncContextManager[Reached]]


@asynccontextmanager
async def by_nomad(
    target: AttachTarget,
    settings: NomadSettings,
    estate: Estate,
    *,
    run: str = "",
    tell: Callable[[str], None] = print,
    tasks: TaskGroup | None = None,
    awaited: Collection[str] = (),
    wired: Callable[..., Wire] = Wire,
    dialled: Callable[[Login], AbstractAsyncContextManager[Dial]] | None = None,
) -> AsyncIterator[Reached]:
    """Raises AttachError if Nomad is not attached, or does not answer. Waits for the hosts that are `awaited`."""
    if "nomad" not in target.logins:
        raise AttachError(f"{target.path}: carriers.nomad: Nomad is not attached; name it under `datacenter`")
    login = target.logins["nomad"]
    async with wired(login) as wire, (dialled or nomad.dialler)(login) as dial:
        jobs = Jobs(wire)
        try:
            lacks = await _lacks(wire, login.params.get("namespace", "default"))
            clients = (
                {} if lacks else await _waited_for(jobs, {estate.hosts[name].address: name for name in awaited}, tell)
            )
        except HashidrillError as error:
            raise AttachError(f"{target.path}: carriers.nomad: {error}") from None
        why_not, nodes = {}, {}
        for host in estate.hosts.values():
            why_not[host.name] = lacks or _why_not(host, clients)
            if (one := clients.get(host.address)) is not None:  # its fitness may change by the next look
                nodes[host.name] = Node(one["ID"], one["Name"], one["Datacenter"])
        wanted = nomad.Wanted(
            jobs,
            dial,
            settings.python,
            float(settings.lease),
            float(settings.placed_within),
            run,
            [host.address for host in estate.having("nomad", "server")],
            tell,
            tasks,
        )
        yield Reached(why_not, lambda name, _: nomad.shell(name, nodes[name], wanted))


async def _lacks(wire: Wire, namespace: str) -> str:
    """The rights that the token lacks; "" if none. Raises HashidrillError."""
    nomad = registry.services()["nomad"]
    rights = carrier_rights(Carriers(nomad=NomadSettings()), namespace)
    lacks = await nomad(nomad.Spec()).lacking(wire, rights)
    return f"the token of Nomad lacks {'; '.join(map(str, lacks))}" if lacks else ""


async def _waited_for(
    jobs: Jobs, names: Mapping[str, str], tell: Callable[[str], None]
) -> dict[str, Mapping[str, Any]]:
    """The clients, once those at these addresses have restarted, or after a while. Raises FaultError."""
    patience = Patience(AWAITED_S, tell)
    while True:
        clients = await _clients(jobs)
        late = [address for address, client in clients.items() if address in names and restarting(client)]
        if not late or not await patience.worth(f"{names[late[0]]}: {unfit(clients[late[0]])}"):
            return clients


async def _clients(jobs: Jobs) -> dict[str, Mapping[str, Any]]:
    """The nodes by address; of several with one address, the latest. Raises FaultError."""
    listed = await jobs.ask("GET", "/v1/nodes", needs="node:read")
    return {str(one["Address"]): one for one in sorted(listed, key=lambda one: int(one["CreateIndex"]))}


def _why_not(host: FoundHost, clients: Mapping[str, Mapping[str, Any]]) -> str:
    client = clients.get(host.address)
    if client is not None:
        return unfit(client)
    other = next((one["Address"] for one in clients.values() if one["Name"] == host.name), "")
    if other:
        return f"Nomad's client {host.name} has the address {other}, but the catalog says {host.address}"
    return f"no client of Nomad has its address {host.address}"
