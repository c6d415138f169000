"""Which capabilities carriers add to which hosts: checked before a run, and held during it."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup

from hashidrill.core.errors import AttachError, HashidrillError, UnreachedError
from hashidrill.core.protocols.capabilities import (
    AgentSettings,
    CpuCanary,
    CpuControl,
    DiskCanary,
    DiskControl,
    NetworkCanary,
    PacketFilter,
    ProcessControl,
    Processes,
)
from hashidrill.core.util.wait import all_at_once
from hashidrill.staging.attach.discovery import Estate, FoundHost
from hashidrill.staging.attach.http import UnansweredError, Wire
from hashidrill.staging.attach.product import attachables
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.carriers.host import CarriedHost, cannot
from hashidrill.staging.carriers.lease import Patience, Terms
from hashidrill.staging.carriers.nomad import AWAITED_S, Connect, Reaching, by_nomad
from hashidrill.staging.carriers.settings import NomadSettings, SshSettings, carriers_of
from hashidrill.staging.carriers.shell import Shell

SSH, NOMAD = "SSH", "Nomad"
_DISK = frozenset({DiskControl, DiskCanary})
_NEEDS: dict[str, frozenset[type[Any]]] = {
    "nft": frozenset({PacketFilter}),
    "strace": _DISK,
    "agent": _DISK | {Processes, ProcessControl, CpuControl, CpuCanary, AgentSettings},
    "settings": frozenset({AgentSettings}),
}
"""Missing tools of a host, and the capabilities that need them."""
_UNDONE_WITHOUT = frozenset({"nft", "strace", "agent", "settings"})
"""Missing parts that do not matter for a revert: the fault may have killed the agent itself."""
CARRIED = _DISK | {PacketFilter, NetworkCanary, Processes, ProcessControl, CpuControl, CpuCanary, AgentSettings}
_NEEDS["host"] = CARRIED


@dataclass(frozen=True)
class Offer:
    """A carrier's capabilities on one host; `lacks` says why others are missing, `said` the facts found there."""

    capabilities: frozenset[type[Any]] = frozenset()
    lacks: Mapping[type[Any], str] = field(default_factory=dict)
    said: str = ""
    cores: int = 1
    """How many cores the host has."""
    cannot_restart: str = ""
    """Why an ended agent could not be started again; "" if it could."""
    by: str = "SSH"
    """The carrier."""
    cluster: Mapping[str, Any] = field(default_factory=dict)
    """What Kubernetes faults need to know of the host's cluster (hashidrill.kubernetes.external_fault)."""

    def refuses(self, fault: Any, agent: str = "") -> str:
        """Why this fault on that agent is impossible there despite its capabilities; "" if it is possible."""
        if self.cluster and hasattr(fault, "impossible_in") and (why := fault.impossible_in(self.cluster)):
            return str(why)
        if self.by == NOMAD and agent == "nomad" and ProcessControl in getattr(fault, "capabilities", ()):
            return (
                "nomad carries faults to this host, so it could not end a fault on itself: carry this one over"
                " SSH (carriers.ssh)"
            )
        if ProcessControl in self.capabilities and getattr(fault, "ends_by_its_api", False):
            return (
                "an agent that leaves by its own API is not started again, because a host starts only agents that it"
                " ended itself; without `leave`, the agent gets SIGTERM and is started again"
            )
        if ProcessControl in self.capabilities and self.cannot_restart and getattr(fault, "ends_its_agent", False):
            return self.cannot_restart
        rule = getattr(fault, "rule", None)
        return cannot(rule()) if DiskControl in self.capabilities and rule is not None else ""


Offers = Mapping[str, Offer]


async def look(
    target: AttachTarget,
    estate: Estate,
    connect: Connect | None = None,
    *,
    undoing: bool = False,
    nomad: Reaching = by_nomad,
    awaited: Collection[str] = (),
    tell: Callable[[str], None] = print,
) -> Offers:
    """Finds the capabilities that carriers have on each host, without changing anything. Empty without carriers. Raises
    AttachError.

    `undoing`: also the capabilities that only revert, which need no running agent. SSH is tried first, then Nomad for
    the other hosts, whose tools are unknown before a job starts there. `awaited`: hosts that may be restarting, which
    it waits for.
    """
    carriers = carriers_of(target.carriers, target.path)
    offers: dict[str, Offer] = {}
    if carriers.ssh is not None:
        # if Nomad carries as well, it takes the hosts that SSH does not reach, and SSH does not wait
        patient = {} if carriers.nomad is not None else {name: Patience(AWAITED_S, tell) for name in awaited}
        offers |= await _by_ssh(target, carriers.ssh, estate, connect, undoing=undoing, patient=patient)
    if carriers.nomad is not None:
        rest = [host for host in estate.hosts.values() if not offers.get(host.name, Offer()).capabilities]
        wanted = {*awaited} & {host.name for host in rest}
        async with nomad(target, carriers.nomad, estate, awaited=wanted, tell=tell) as reached:
            for host in rest:
                before = offers.get(host.name)
                offers[host.name] = _promised(host, reached.why_not[host.name], before, undoing=undoing)
    return {name: offers[name] for name in estate.hosts if name in offers}


def _promised(host: FoundHost, why: str, before: Offer | None, *, undoing: bool) -> Offer:
    """Nomad's offer for a host whose tools are unknown yet. `before`: SSH's report on it."""
    also = f"; over SSH: {before.said}" if before is not None else ""
    if why:
        return Offer(lacks=dict.fromkeys(CARRIED, why + also), said=why + also, by=NOMAD)
    lacks = {} if undoing else _followed(host.roles)
    said = "; ".join(["raw_exec; its other tools are checked when a run begins", *dict.fromkeys(lacks.values())])
    return Offer(CARRIED - {*lacks}, lacks, said + also, by=NOMAD)


async def _by_ssh(
    target: AttachTarget,
    settings: SshSettings,
    estate: Estate,
    connect: Connect | None,
    *,
    undoing: bool,
    patient: Mapping[str, Patience],
) -> dict[str, Offer]:
    unknown = sorted({*settings.addresses} - {*estate.hosts})
    if unknown and not target.undoing:
        known = ", ".join(estate.hosts)
        raise AttachError(f"{target.path}: carriers.ssh.addresses: there is no host {unknown[0]!r}; there are: {known}")
    connect = connect or connecting(settings, target)
    offers: dict[str, Offer] = {}

    async def one(host: FoundHost) -> None:
        while (silent := await tried(host)) and host.name in patient:
            if not await patient[host.name].worth(silent):
                return

    async def tried(host: FoundHost) -> str:
        """Fills `offers`. Returns why the host does not answer now; "" if it does."""
        silent = ""
        try:
            async with connect(host.name, host.address) as shell, anyio.create_task_group() as tasks:
                made = _host(host, shell, tasks=tasks, settings=settings, wires={}, terms=Terms(), tell=lambda _: None)
                try:
                    offers[host.name] = await _offered(
                        made, host.roles, without=_UNDONE_WITHOUT if undoing else frozenset()
                    )
                finally:
                    await made.close()
        except* HashidrillError as errors:
            said = "; ".join(str(error) for error in errors.exceptions)
            offers[host.name] = Offer(lacks=dict.fromkeys(CARRIED, said), said=said)
            silent = said if any(isinstance(error, UnreachedError) for error in errors.exceptions) else ""
        return silent

    await all_at_once(partial(one, host) for host in estate.hosts.values())
    return offers


def _followed(roles: Mapping[str, str]) -> dict[type[Any], str]:
    lacks: dict[type[Any], str] = {}
    for service, product in attachables(roles).items():
        if product.starts_jobs(roles[service]):
            why = f"strace would follow {service}'s {roles[service]} into the jobs that it starts"
            lacks |= dict.fromkeys(_DISK, why)
    return lacks


async def _offered(host: CarriedHost, roles: Mapping[str, str], *, without: frozenset[str] = frozenset()) -> Offer:
    facts = await host.facts()
    lacks: dict[type[Any], str] = {}
    for what, why in facts["lacks"].items():
        lacks |= {} if what in without else dict.fromkeys(_NEEDS[what], why)
    if "strace" not in without:
        lacks |= _followed(roles)
    had = ", ".join(what for what in ("nft", "strace") if what not in facts["lacks"])
    said = f"root, Python {facts['python']}{had and ', ' + had}" if facts["root"] else "no root there"
    if not facts["root"]:
        lacks = dict.fromkeys(CARRIED, "programs that start there are not root")
    cannot_restart = str(facts.get("restarts", ""))
    text = "; ".join(dict.fromkeys([said, *lacks.values(), *filter(None, [cannot_restart])]))
    return Offer(CARRIED - {*lacks}, lacks, text, int(facts["cores"]), cannot_restart)


def connecting(settings: SshSettings, target: AttachTarget) -> Connect:
    """Connects over SSH."""
    from hashidrill.staging.carriers.ssh import shell  # noqa: PLC0415 - asyncssh takes long to import, and few runs need it

    return partial(shell, settings, target.path)


def _host(
    host: FoundHost,
    shell: Shell,
    *,
    tasks: TaskGroup,
    settings: SshSettings | NomadSettings,
    wires: Mapping[str, Wire],
    terms: Terms,
    tell: Callable[[str], None],
) -> CarriedHost:
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
        host.name,
        shell,
        commands,
        answers,
        terms=terms,
        tasks=tasks,
        tell=tell,
        data=settings.data,
        listen=listen,
        address=host.address if settings.check_address else None,
    )


def _listens(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


@asynccontextmanager
async def carried(
    target: AttachTarget,
    estate: Estate,
    wires: Mapping[str, Wire],
    *,
    deadline_s: float,
    tell: Callable[[str], None],
    who: str = "",
    connect: Connect | None = None,
    undoing: bool = False,
    run: str = "",
    armed: str = "",
    nomad: Reaching = by_nomad,
    awaited: Collection[str] = (),
) -> AsyncIterator[dict[str, dict[type[Any], Any]]]:
    """Yields the capabilities that carriers add to each host (see `look`), and keeps them open inside the block. Raises
    AttachError.

    At the end of the block, or when this process dies, agents on the hosts revert the faults still in force.
    """
    carriers = carriers_of(target.carriers, target.path)
    if carriers.ssh is None and carriers.nomad is None:
        yield {}
        return
    offers = dict(await look(target, estate, connect, undoing=undoing, nomad=nomad, awaited=awaited, tell=tell))
    try:
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            ways: dict[str, tuple[Connect, SshSettings | NomadSettings]] = {}
            if carriers.ssh is not None:
                ways[SSH] = connect or connecting(carriers.ssh, target), carriers.ssh
            if carriers.nomad is not None:
                reached = await stack.enter_async_context(
                    nomad(target, carriers.nomad, estate, run=run, tell=tell, tasks=tasks)
                )
                ways[NOMAD] = reached.connect, carriers.nomad
            hosts: dict[str, CarriedHost] = {}
            for name, host in estate.hosts.items():
                if offers[name].capabilities:
                    way, settings = ways[offers[name].by]
                    waits_s = AWAITED_S if name in awaited or not undoing else 0.0
                    terms = Terms(float(settings.lease), deadline_s, who, settings.notes, run, waits_s, armed)
                    shell = await stack.enter_async_context(way(name, host.address))
                    hosts[name] = _host(
                        host, shell, tasks=tasks, settings=settings, wires=wires, terms=terms, tell=tell
                    )
                    stack.push_async_callback(hosts[name].close)
            if not undoing:
                await _kept(hosts, estate, offers, tell)
            for name, one in hosts.items():
                one.cores = offers[name].cores
            for one in hosts.values():
                one.peers = [each for each in hosts.values() if each is not one]
            yield {name: dict.fromkeys(offers[name].capabilities, host) for name, host in hosts.items()}
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _kept(
    hosts: dict[str, CarriedHost], estate: Estate, offers: dict[str, Offer], tell: Callable[[str], None]
) -> None:
    """Checks the hosts that Nomad reaches, whose tools were unknown; drops hosts without capabilities."""

    async def one(name: str) -> None:
        try:
            found = await _offered(hosts[name], estate.hosts[name].roles)
        except HashidrillError as error:
            found = Offer(said=str(error))
        offers[name] = replace(found, by=NOMAD)
        if found.lacks or not found.capabilities:
            tell(f"{name}, reached by Nomad: {found.said}")

    await all_at_once(partial(one, name) for name in hosts if offers[name].by == NOMAD)
    for name in [name for name in hosts if not offers[name].capabilities]:
        del hosts[name]
