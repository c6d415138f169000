"""Which capabilities carriers add to which hosts: looked at before a run, and held while it goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup

from hashidrill.capabilities import (
    CpuCanary,
    CpuControl,
    DiskCanary,
    DiskControl,
    NetworkCanary,
    PacketFilter,
    ProcessControl,
    Processes,
)
from hashidrill.carriers.host import CarriedHost, cannot
from hashidrill.carriers.leased import Terms
from hashidrill.carriers.settings import SshSettings, carriers_of
from hashidrill.carriers.shell import Shell
from hashidrill.datacenter.attach.estate import Estate, FoundHost
from hashidrill.datacenter.attach.product import attachables
from hashidrill.datacenter.attach.target import AttachTarget
from hashidrill.datacenter.attach.wire import UnansweredError, Wire
from hashidrill.errors import AttachError, HashidrillError
from hashidrill.util.tasks import all_at_once

Connect = Callable[[str, str], AbstractAsyncContextManager[Shell]]
"""(host, address): a shell there. Raises AttachError."""
_DISK = frozenset({DiskControl, DiskCanary})
_NEEDS: dict[str, frozenset[type[Any]]] = {
    "nft": frozenset({PacketFilter}), "strace": _DISK,
    "agent": _DISK | {Processes, ProcessControl, CpuControl, CpuCanary},
}  # fmt: skip
"""What a host lacks, and which capabilities it takes away."""
_UNDONE_WITHOUT = frozenset({"nft", "strace", "agent"})
"""What a host may lack while faults are only reverted: the agent may be what the fault killed."""
CARRIED = _DISK | {PacketFilter, NetworkCanary, Processes, ProcessControl, CpuControl, CpuCanary}
_NEEDS["host"] = CARRIED


@dataclass(frozen=True)
class Offer:
    """What can be done to one host by a carrier; `lacks` says why the rest cannot, `said` what was found there."""

    capabilities: frozenset[type[Any]] = frozenset()
    lacks: Mapping[type[Any], str] = field(default_factory=dict)
    said: str = ""
    cores: int = 1
    """How many the host has."""

    def refuses(self, fault: Any) -> str:
        """Why this fault cannot be had there though its capabilities can; "" where it can."""
        if ProcessControl in self.capabilities and getattr(fault, "ends_by_its_api", False):
            return (
                "an agent that leaves by its own API is not started again: a host starts what it ended itself, and"
                " would not know of this one; without `leave`, it gets SIGTERM and is started again"
            )
        rule = getattr(fault, "rule", None)
        return cannot(rule()) if DiskControl in self.capabilities and rule is not None else ""


Offers = Mapping[str, Offer]


def settings_of(target: AttachTarget) -> SshSettings | None:
    """None for a datacenter whose hosts nothing is carried to. Raises AttachError."""
    return carriers_of(target.carriers, target.path).ssh


def connecting(settings: SshSettings, target: AttachTarget) -> Connect:
    """Over SSH."""
    from hashidrill.carriers.ssh import shell  # noqa: PLC0415 - asyncssh takes long to import, and few runs need it

    return partial(shell, settings, target.path)


async def look(
    target: AttachTarget, estate: Estate, connect: Connect | None = None, *, undoing: bool = False
) -> Offers:
    """What carriers can do on each host; it changes nothing. Empty without carriers. Raises AttachError.

    `undoing`: what they can take away there, for which no agent has to run.
    """
    settings = settings_of(target)
    if settings is None:
        return {}
    unknown = sorted({*settings.addresses} - {*estate.hosts})
    if unknown:
        known = ", ".join(estate.hosts)
        raise AttachError(f"{target.path}: carriers.ssh.addresses: there is no host {unknown[0]!r}; there are: {known}")
    connect = connect or connecting(settings, target)
    offers: dict[str, Offer] = {}

    async def one(host: FoundHost) -> None:
        try:
            async with connect(host.name, host.address) as shell, anyio.create_task_group() as tasks:
                offers[host.name] = await _offered(
                    _host(host, shell, tasks=tasks, settings=settings, wires={}, terms=Terms(), tell=lambda _: None),
                    host.roles,
                    without=_UNDONE_WITHOUT if undoing else frozenset(),
                )
        except* HashidrillError as errors:
            said = "; ".join(str(error) for error in errors.exceptions)
            offers[host.name] = Offer(lacks=dict.fromkeys(CARRIED, said), said=said)

    await all_at_once(partial(one, host) for host in estate.hosts.values())
    return {name: offers[name] for name in estate.hosts}


async def _offered(
    host: CarriedHost, roles: Mapping[str, str], *, without: frozenset[str] = frozenset()
) -> Offer:  # fmt: skip
    """`without`: what it may lack."""
    try:
        facts = await host.facts()
    finally:
        await host.close()
    lacks: dict[type[Any], str] = {}
    for what, why in facts["lacks"].items():
        lacks |= {} if what in without else dict.fromkeys(_NEEDS[what], why)
    for service, product in attachables(roles).items():
        if product.starts_jobs(roles[service]) and "strace" not in without:
            lacks |= dict.fromkeys(
                _DISK, f"strace would follow {service}'s {roles[service]} into the jobs that it starts"
            )  # fmt: skip
    had = ", ".join(what for what in ("nft", "strace") if what not in facts["lacks"])
    said = f"root, Python {facts['python']}{had and ', ' + had}" if facts["root"] else "no root there"
    if not facts["root"]:
        lacks = dict.fromkeys(CARRIED, "what was started there is not root")
    text = "; ".join([said, *dict.fromkeys(lacks.values())])
    return Offer(CARRIED - {*lacks}, lacks, text, int(facts["cores"]))


def _host(
    host: FoundHost, shell: Shell, *, tasks: TaskGroup, settings: SshSettings, wires: Mapping[str, Wire], terms: Terms,
    tell: Callable[[str], None],
) -> CarriedHost:  # fmt: skip
    products = attachables(host.roles)
    commands = {service: product.process for service, product in products.items() if product.process}

    async def answers(agent: str, timeout_s: float) -> bool:
        try:
            await wires[agent].request("GET", products[agent].health, url=host.urls[agent], timeout_s=timeout_s)
        except UnansweredError:
            return False
        return True

    listen = {service: _listens(url) for service, url in host.urls.items()}
    return CarriedHost(
        host.name, shell, commands, answers, terms=terms, tasks=tasks, tell=tell, data=settings.data, listen=listen,
        address=host.address if settings.check_address else None,
    )  # fmt: skip


def _listens(url: str) -> tuple[str, int]:
    """(address, port) of an agent's API."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


@asynccontextmanager
async def carried(
    target: AttachTarget, estate: Estate, wires: Mapping[str, Wire], *, deadline_s: float,
    tell: Callable[[str], None], who: str = "", connect: Connect | None = None, undoing: bool = False,
    run: str = "",
) -> AsyncIterator[dict[str, dict[type[Any], Any]]]:  # fmt: skip
    """By host, the capabilities that carriers add, held inside the block. Raises AttachError.

    A host that is not offered any by `look` (which says what `undoing` is) has none here. At the end of the block, and
    when this process dies, what is still in force is reverted by its agents.
    """
    settings = settings_of(target)
    if settings is None:
        yield {}
        return
    offers = await look(target, estate, connect, undoing=undoing)
    connect = connect or connecting(settings, target)
    terms = Terms(float(settings.lease), deadline_s, who, settings.notes, run)
    try:
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            hosts: dict[str, CarriedHost] = {}
            for name, host in estate.hosts.items():
                if offers[name].capabilities:
                    shell = await stack.enter_async_context(connect(name, host.address))
                    hosts[name] = _host(
                        host, shell, tasks=tasks, settings=settings, wires=wires, terms=terms, tell=tell
                    )
                    hosts[name].cores = offers[name].cores
                    stack.push_async_callback(hosts[name].close)
            for one in hosts.values():
                one.peers = [each for each in hosts.values() if each is not one]
            yield {name: dict.fromkeys(offers[name].capabilities, host) for name, host in hosts.items()}
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
