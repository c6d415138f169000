"""The conditions for touching an attached datacenter, before and during a run.

`check` only reads, and refuses before there is a recording. `hold` surrounds the whole run in the engine's process,
before the first write. `Held.admits` surrounds each fault. `staging/interlocks/` makes the decisions; this module
gives it the facts of a plan.
"""

import datetime as dt
import getpass
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from hashidrill.core.errors import FaultError, InterlockError
from hashidrill.core.experiment.model import Experiment, make_fault
from hashidrill.core.experiment.rights import rights_of
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import DisturbsFew, SetsBack
from hashidrill.core.protocols.service import HasAcls
from hashidrill.core.recording.journal import UNSIGNED, LineKey
from hashidrill.core.recording.signed_runs import AUDIT_NAME
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.wait import all_at_once, beside
from hashidrill.staging.attach.discovery import Estate
from hashidrill.staging.attach.http import InTurn, Wire
from hashidrill.staging.attach.leftovers import Told
from hashidrill.staging.attach.plan import Action, Plan, digest_of, sets_back
from hashidrill.staging.attach.product import attachables
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.interlocks import anchor, lock
from hashidrill.staging.interlocks.audit import Audit
from hashidrill.staging.interlocks.blast_radius import Window
from hashidrill.staging.interlocks.guard import CONSUL, Elsewhere, Guard, Held, Subject
from hashidrill.staging.interlocks.kv import Kv
from hashidrill.staging.interlocks.production import Named
from hashidrill.staging.interlocks.settings import interlock_rights, settings_of

BREAKS_QUORUM = "breaks-quorum"
"""It is in `AttachTarget.said` if the command line allows a broken quorum."""
_NAMED_BY_NODES = frozenset({"datacenter", "class"})
"""Properties of a product's nodes whose values are names chosen by operators."""
_ANSWERS_WITHIN_S = 2.0
_REVERTS_S = 60.0
"""Seconds that the last reverts of a run may take."""


class Interlocks:
    """The interlocks of an attached datacenter."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def check(self, plan: Plan) -> None:
        """Reads, and raises InterlockError if this run is not allowed."""
        await self._guard.check(subject_of(plan))

    def hold(
        self, plan: Plan, tell: Callable[[str], None], recording: Path | None = None, key: LineKey = UNSIGNED
    ) -> AbstractAsyncContextManager[Held]:
        """Surrounds the whole run, from before its first write. The audit lines also go to `recording`, signed with

        `key`. Raises InterlockError.
        """
        return self._guard.held(subject_of(plan), tell, recording, key)


def open_interlocks(target: AttachTarget, estate: Estate, wires: Mapping[str, Wire]) -> Interlocks:
    """The interlocks of that datacenter. Raises InterlockError for invalid settings."""
    services = registry.services()
    built = {name: services[name](services[name].Spec()) for name in wires if name in services}
    lacking = {name: one.lacking for name, one in built.items() if isinstance(one, HasAcls)}
    return Interlocks(
        Guard(
            settings_of(target.interlocks, target.path),
            {**wires, **_by_each_server(estate, wires)},
            lacking=lacking,
            down=partial(servers_down, estate, wires),
            now=lambda: dt.datetime.now(dt.UTC),
            redactor=Redactor(target.secrets()),
            folder=Path(target.path).parent,
            post=post,
        )
    )


def _by_each_server(estate: Estate, wires: Mapping[str, Wire]) -> dict[str, InTurn]:
    """Consul through each of its servers: if a fault silences one, the run keeps its lock and its stop button."""
    if CONSUL not in wires:
        return {}
    return {CONSUL: InTurn(wires[CONSUL], [one.urls[CONSUL] for one in estate.having(CONSUL, "server")])}


def subject_of(plan: Plan) -> Subject:
    """The facts of a run for the interlocks."""
    target, estate, experiment = plan.target, plan.estate, plan.experiment
    settings = settings_of(target.interlocks, target.path)
    guards = {"interlocks": interlock_rights(settings, sets_back=sets_back(experiment))}
    return Subject(
        datacenter=target.name,
        attach_file=target.path,
        experiment=experiment.metadata.name,
        digest=digest_of(experiment, settings),
        run=plan.run_id or f"plan-of-{experiment.metadata.name}",
        who=who(),
        names=tuple(names_of(target, estate)),
        metas={host.name: host.meta for host in estate.hosts.values()},
        roles={host.name: host.roles for host in estate.hosts.values()},
        voters=estate.voters,
        windows=tuple(
            window_of(action, experiment, frozenset(estate.hosts)) for action in plan.actions if action.verb == "apply"
        ),
        loads={name: load.kind for name, load in experiment.load.items()},
        agents=tuple(
            Elsewhere(product, host.name, host.address)
            for host in estate.hosts.values()
            for product in host.roles
            if CONSUL not in host.roles
        ),
        rights=rights_of(experiment, guards),
        needs_s=longest_s(experiment),
        may_break_quorum=experiment.breaks_quorum,
        breaks_quorum=BREAKS_QUORUM in target.said,
        sets_clock=any(getattr(make_fault(step, None), "sets_clock", False) for step in experiment.faults),
    )


def who() -> str:
    """The user who runs this, for locks and audit lines."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def names_of(target: AttachTarget, estate: Estate) -> list[Named]:
    """Every name of the datacenter: the attach file, the products' datacenters, addresses, hosts, and the ways to them.

    A shared toxiproxy could have a production proxy whose upstream has a host's name: that proxy would get toxics. A
    shared product's namespaces, partitions, regions and node classes distinguish production from the rest.
    """
    addresses = [urlsplit(login.address).hostname or "" for login in target.logins.values()]
    addresses.append(urlsplit(target.toxiproxy).hostname or "")
    addresses.append(urlsplit(target.kubernetes.get("server", "")).hostname or "")
    upstreams = {proxy: link.to_host for host in estate.hosts.values() for proxy, link in host.links.items()}
    return [
        Named("attach file", target.name),
        *(Named(f"datacenter of {service}", name) for service, name in estate.datacenters.items() if name),
        *(Named("address", name) for name in addresses if not _is_ip(name)),
        *(Named("host", host) for host in estate.hosts),
        *_parts_of_products(target, estate),
        *_places_of_ssh(target),
        *(Named("proxy", proxy) for proxy in upstreams),
        *(Named(f"upstream of proxy {proxy}", name) for proxy, name in upstreams.items() if not _is_ip(name)),
        *(
            Named(f"{what} of Kubernetes", target.kubernetes[what])
            for what in ("context", "namespace")
            if target.kubernetes.get(what)
        ),
        *(
            Named(f"chaosd of {host}", name)
            for host, url in target.kubernetes.get("chaosd", {}).items()
            if not _is_ip(name := urlsplit(url).hostname or "")
        ),
    ]


def _parts_of_products(target: AttachTarget, estate: Estate) -> Iterator[Named]:
    """The selected namespaces, partitions and regions, and the nodes' datacenters and classes."""
    for service, login in target.logins.items():
        for part in filter(None, login.said.split(", ")):
            what, _, name = part.partition(" ")
            yield Named(f"{what} of {service}", name)
    said = {(key, value) for host in estate.hosts.values() for key, value in host.meta.items() if value}
    for key, value in sorted(said):
        service, _, what = key.partition(".")
        if what in _NAMED_BY_NODES and value != estate.datacenters.get(service):
            yield Named(f"{what} of nodes of {service}", value)


def _places_of_ssh(target: AttachTarget) -> Iterator[Named]:
    """The SSH destinations in the file; the carrier's own settings are read only later."""
    ssh = target.carriers.get("ssh")
    said: Mapping[str, Any] = ssh if isinstance(ssh, Mapping) else {}
    addresses, jump = said.get("addresses"), said.get("jump")
    ways = dict(addresses) if isinstance(addresses, Mapping) else {}
    places = [(f"SSH address of {host}", place) for host, place in ways.items()]
    places += [("jump host", hop) for hop in jump.split(",")] if isinstance(jump, str) else []
    for what, place in places:
        with suppress(ValueError):  # unbalanced brackets: not a reachable address
            name = urlsplit(f"ssh://{str(place).strip()}").hostname or ""
            if not _is_ip(name):
                yield Named(what, name)


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return not name
    return True


def window_of(action: Action, experiment: Experiment, everyone: frozenset[str]) -> Window:
    """The blast radius of one fault of the method. `everyone`: all hosts of the datacenter."""
    step = experiment.method[action.step]
    named = {one.name: number for number, one in enumerate(experiment.method) if one.name}
    kind = registry.fault(action.what)
    window = Window(
        action.step,
        f"{action.what} on {action.on}",
        frozenset(action.hosts),
        action.at_s,
        action.at_s + action.for_s,
        len(action.hosts) if action.many else 1,
        kind.at_a_time if isinstance(kind, DisturbsFew) else None,
        frozenset(named[name] for name in step.after if name in named),
    )
    if not (isinstance(kind, SetsBack) and kind.sets_back):
        return window
    return replace(window, hosts=everyone, most=len(everyone), at_a_time=None, sets_back=True)


def longest_s(experiment: Experiment) -> float:
    """The longest time of a run, in seconds, until all is reverted."""
    method_s = max(float(step.at + step.for_) for step in experiment.method)
    method_s += sum(step.waits_s for step in experiment.method)
    before_s = float(experiment.datacenter.ready_within) + float(experiment.steady_state.within)
    return before_s + method_s + float(experiment.recovery.for_) + _REVERTS_S


@asynccontextmanager
async def witnessed(
    target: AttachTarget,
    wires: Mapping[str, Wire],
    run: str,
    experiment: str,
    *,
    tell: Callable[[str], None],
    recording: Path | None,
    key: LineKey = UNSIGNED,
) -> AsyncIterator[Told]:
    """Receives the audit lines of actions after a run; reports and continues if they cannot be written."""
    try:
        written = settings_of(target.interlocks, target.path).audit
    except InterlockError as error:
        tell(f"no audit lines are written: {error}")
        yield _unheard
        return
    if CONSUL not in wires:
        tell("no audit lines are written: the attach file names no consul")
        yield _unheard
        return
    now = dt.datetime.now(dt.UTC)
    file = recording and recording / AUDIT_NAME
    if file is not None:
        _end_line(file)
    audit = Audit(
        Kv(wires[CONSUL]),
        written.prefix,
        run,
        experiment,
        who(),
        now=lambda: dt.datetime.now(dt.UTC),
        tell=tell,
        redactor=Redactor(target.secrets()),
        file=file,
        key=key,
        webhook=written.webhook,
        post=post,
        series=f"heal-{now:%Y%m%dT%H%M%SZ}-",
    )

    def note(verb: str, what: str = "", where: str = "", note: str = "") -> None:
        audit.note(verb, what, where, note=note)

    try:
        async with beside(audit.keep):
            yield note
    finally:
        await audit.finish()


def _end_line(path: Path) -> None:
    """Ends a torn line of a dead writer, so that the next line stays separate."""
    with suppress(OSError):
        if path.is_file() and not path.read_bytes().endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")


def _unheard(verb: str, what: str = "", where: str = "", note: str = "") -> None:
    """Ignores audit lines that have no destination."""


async def alone(
    target: AttachTarget,
    wires: Mapping[str, Wire],
    run: str,
    experiment: str,
    *,
    do: Callable[[], Awaitable[None]],
    tell: Callable[[str], None],
) -> None:
    """Calls `do` while no other run is in progress there. Raises InterlockError."""
    if CONSUL not in wires:
        raise InterlockError("the lock is kept in Consul, but the attach file names no Consul")
    said = (await anchor.anchored(Kv(wires[CONSUL]), settings_of(target.interlocks, target.path))).lock
    since = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    await lock.alone(
        Kv(wires[CONSUL]), said.key, said.ttl, lock.Holder(who(), run, experiment, since), do=do, tell=tell
    )


async def servers_down(estate: Estate, wires: Mapping[str, Wire]) -> frozenset[str]:
    """The voting servers that do not answer or do not serve."""
    down: set[str] = set()

    async def look(service: str, name: str) -> None:
        try:
            host, alive = estate.hosts[name], attachables([service])[service].alive
            answer = await wires[service].request("GET", alive, url=host.urls[service], timeout_s=_ANSWERS_WITHIN_S)
        except FaultError:
            down.add(name)
            return
        if answer.status >= 500:
            down.add(name)

    await all_at_once(partial(look, service, name) for service, names in estate.voters.items() for name in names)
    return frozenset(down)


async def post(url: str, data: dict[str, Any]) -> None:
    """Sends one audit line. Raises FaultError if it is refused."""
    try:
        async with httpx2.AsyncClient(timeout=5.0) as client:
            answer = await client.post(url, json=data)
    except httpx2.HTTPError as error:
        raise FaultError(f"{type(error).__name__}") from None
    if answer.is_error:
        raise FaultError(f"HTTP {answer.status_code}")
