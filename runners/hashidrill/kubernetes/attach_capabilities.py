"""The capabilities that Kubernetes and carriers add to attached hosts, checked before a run and held during it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hashidrill.core.errors import AttachError, HashidrillError
from hashidrill.core.protocols.capabilities import ChaosMachine, ChaosPod, LitmusNode, LitmusPod, NodeStatus, PodStatus
from hashidrill.core.protocols.registry import near
from hashidrill.staging.attach.target import PLACE
from hashidrill.staging.carriers import open_carriers
from hashidrill.staging.carriers.open_carriers import Offer, Offers

if TYPE_CHECKING:
    from hashidrill.kubernetes.client import Cluster, Connect
    from hashidrill.staging.attach.discovery import Estate, FoundHost, LookAtPods
    from hashidrill.staging.attach.http import Wire
    from hashidrill.staging.attach.target import AttachTarget

Parts = dict[str, dict[type[Any], Any]]
_OF_PODS: frozenset[type[Any]] = frozenset({ChaosPod, LitmusNode, LitmusPod, NodeStatus, PodStatus})
_NO_MACHINE = "services.kubernetes.chaosd names no chaosd on it"


async def located(target: AttachTarget, connect: Connect | None = None) -> AttachTarget:
    """Adds an address for each product whose agents are pods; changes nothing without pods. Raises AttachError."""
    if not target.kubernetes.get("pods"):
        return target
    from hashidrill.kubernetes import pods  # noqa: PLC0415 - see _cluster

    return await pods.located(target, connect)


@asynccontextmanager
async def reached(
    target: AttachTarget, tell: Callable[[str], None] = lambda _: None, connect: Connect | None = None
) -> AsyncIterator[AttachTarget]:
    """The target, whose agents' pods are reachable inside the block: by forwards if `located` found no route to them.

    Raises AttachError.
    """
    if not target.kubernetes.get("unrouted"):
        yield target
        return
    from hashidrill.kubernetes import port_forward  # noqa: PLC0415 - see _cluster

    async with port_forward.forwarded(target, connect, tell) as forwarded:
        yield forwarded


@asynccontextmanager
async def watched(target: AttachTarget, connect: Connect | None = None) -> AsyncIterator[LookAtPods | None]:
    """A function that reads the pods' current addresses; None if the agents are not pods. Raises AttachError."""
    if not target.kubernetes.get("pods"):
        yield None
        return
    from hashidrill.kubernetes import pods  # noqa: PLC0415 - see _cluster

    async with pods.watched(target, connect) as looks:
        yield looks


async def look(target: AttachTarget, estate: Estate, connect: Connect | None = None) -> Offers:
    """What is possible on each host beyond its agents' APIs; changes nothing. Empty without carriers and backends.

    Raises AttachError. `connect` is for tests.
    """
    carried = await open_carriers.look(target, estate)
    if not target.kubernetes:
        return carried
    found = await _looked(target, estate, connect)
    return {name: _both(carried.get(name), found[name]) for name in estate.hosts}


def _both(one: Offer | None, two: Offer) -> Offer:
    if one is None:
        return two
    said = "; ".join(filter(None, (one.said, two.said)))
    capabilities, lacks = one.capabilities | two.capabilities, {**one.lacks, **two.lacks}
    return replace(one, capabilities=capabilities, lacks=lacks, said=said, cluster=two.cluster)


@asynccontextmanager
async def held(
    target: AttachTarget,
    estate: Estate,
    wires: Mapping[str, Wire],
    *,
    deadline_s: float,
    tell: Callable[[str], None],
    who: str = "",
    undoing: bool = False,
    run: str = "",
    armed: str = "",
    connect: Connect | None = None,
    awaited: Collection[str] = (),
) -> AsyncIterator[Parts]:
    """For each host, the capabilities that carriers and backends add, held inside the block. Raises AttachError.

    `deadline_s`: how long their effects may last without a renewal. `undoing`: effects are only reverted; then the
    `awaited` hosts may be restarting.
    """
    async with open_carriers.carried(
        target,
        estate,
        wires,
        deadline_s=deadline_s,
        tell=tell,
        who=who,
        undoing=undoing,
        run=run,
        armed=armed,
        awaited=awaited,
    ) as carried:
        if not target.kubernetes:
            yield carried
            return
        parts: Parts = {name: dict(carried.get(name, {})) for name in estate.hosts}
        async with AsyncExitStack() as stack:
            try:
                cluster = await stack.enter_async_context(_cluster(target, connect))
                places = await _places(target, estate, cluster)
            except AttachError as error:
                if not undoing:
                    raise
                tell(f"no object of Chaos Mesh or Litmus is deleted: {error}")  # carriers still revert their effects
            else:
                cluster.tell = tell
                owner = {"run": run or "heal", "datacenter": target.name, "who": who, "deadline_s": deadline_s}
                _add(parts, target, places, cluster, owner, undoing=undoing)
            yield parts


def _add(
    parts: Parts,
    target: AttachTarget,
    places: Mapping[str, _Place],
    cluster: Cluster,
    owner: Mapping[str, Any],
    *,
    undoing: bool,
) -> None:
    """Adds capabilities to `parts`. To undo, an object's name is enough, even if its pod or chaosd is gone."""
    from hashidrill.kubernetes.chaos_mesh.objects import of_machine, of_pod  # noqa: PLC0415 - see _cluster
    from hashidrill.kubernetes.litmus.engines import AimedAt, AimedAtNode, WatchedNode  # noqa: PLC0415 - as above
    from hashidrill.kubernetes.objects import Owned  # noqa: PLC0415 - as above
    from hashidrill.kubernetes.pods import Watched  # noqa: PLC0415 - as above

    owned = Owned(**owner)
    netem = bool(target.kubernetes.get("netem"))
    account = str(target.kubernetes.get("litmus_account") or "")
    agents, drain = tuple(place.pod for place in places.values() if place.pod), bool(target.kubernetes.get("drain"))
    for name, place in places.items():
        if place.chaosd or undoing:
            parts[name][ChaosMachine] = of_machine(cluster, owned, place.chaosd, netem=netem)
        if place.pod or undoing:
            parts[name][ChaosPod] = of_pod(cluster, owned, place.pod or name, netem=netem)
            parts[name][LitmusPod] = AimedAt(cluster, owned, netem, account, place.pod or name)
            parts[name][LitmusNode] = AimedAtNode(cluster, owned, netem, account, place.pod or name, agents, drain)
            parts[name][NodeStatus] = WatchedNode(cluster, place.pod or name)
            parts[name][PodStatus] = Watched(cluster, place.pod or name)


class _Place(NamedTuple):
    chaosd: str
    pod: str
    why_no_pod: str
    node: str = ""
    """The node of the pod."""


async def _looked(target: AttachTarget, estate: Estate, connect: Connect | None) -> dict[str, Offer]:
    from hashidrill.kubernetes.vocabulary import CHAOS  # noqa: PLC0415 - see _cluster

    said = {name: target.kubernetes.get(name, default) for name, default in _SAID.items()}
    said["forward"] = bool(target.kubernetes.get("unrouted"))
    if unknown := sorted({*said["lacks"]} - {*CHAOS}):
        where = f"{target.path}: {target.kubernetes.get('place', PLACE)}.lacks"
        raise AttachError(f"{where}: {unknown[0]!r} is not a kind of Chaos Mesh: {near(unknown[0], CHAOS)}")
    async with _cluster(target, connect) as cluster:
        places = await _places(target, estate, cluster)
    on: dict[str, list[str]] = {}
    for place in places.values():
        if place.node:
            on.setdefault(place.node, []).append(place.pod)
    return {
        name: _offered(
            place, cluster, {**said, "node": place.node, "others": sorted({*on.get(place.node, ())} - {place.pod})}
        )
        for name, place in places.items()
    }


_SAID = {"netem": False, "lacks": [], "drain": False}
"""Keys of the attach file that say which faults are possible, and their defaults."""


def _offered(place: _Place, cluster: Cluster, said: Mapping[str, Any]) -> Offer:
    has: frozenset[type[Any]] = frozenset({ChaosMachine} if place.chaosd else ())
    has |= _OF_PODS if place.pod else frozenset()
    lacks = {} if place.chaosd else {ChaosMachine: _NO_MACHINE}
    lacks |= {} if place.pod else dict.fromkeys(_OF_PODS, place.why_no_pod)
    found = [f"pod {place.pod} in {cluster.namespace}"] if place.pod else []
    found += [f"chaosd at {place.chaosd}"] if place.chaosd else []
    return Offer(has, lacks, ", ".join(found) or place.why_no_pod, cluster=said)


async def _places(target: AttachTarget, estate: Estate, cluster: Cluster) -> dict[str, _Place]:
    from hashidrill.kubernetes.pods import pod_of  # noqa: PLC0415 - see _cluster

    chaosd: Mapping[str, str] = target.kubernetes.get("chaosd", {})
    where = f"{target.path}: {target.kubernetes.get('place', PLACE)}"
    if (unknown := sorted({*chaosd} - {*estate.hosts})) and not target.undoing:
        known = ", ".join(estate.hosts)
        said = f"there is no host {unknown[0]!r}; there are: {known}"
        raise AttachError(f"{where}.chaosd: {said}")
    try:
        pods = await cluster.listed("v1", "Pod")
    except HashidrillError as error:
        raise AttachError(f"{where}: {error}") from None
    ours = {name for roles in target.kubernetes.get("found", {}).values() for pods in roles.values() for name in pods}
    meant = [one for one in pods if not ours or one["metadata"]["name"] in ours]

    nodes = {one["metadata"]["name"]: str((one.get("spec") or {}).get("nodeName") or "") for one in meant}

    def place(host: FoundHost) -> _Place:
        pod, why = pod_of(meant, host.name, host.address, by_address=bool(ours))
        return _Place(chaosd.get(host.name, ""), pod, why, nodes.get(pod, ""))

    return {name: place(host) for name, host in estate.hosts.items()}


@asynccontextmanager
async def _cluster(target: AttachTarget, connect: Connect | None) -> AsyncIterator[Cluster]:
    from hashidrill.kubernetes.client import cluster_of, connected  # noqa: PLC0415 - lightkube takes long to import

    async with connected(target.kubernetes, connect or cluster_of) as cluster:
        yield cluster


async def objects_left(target: AttachTarget, tell: Callable[[str], None], connect: Connect | None = None) -> list[str]:
    """Objects of all hashidrill runs in that datacenter's Kubernetes; `tell` reports what cannot be listed.

    Raises HashidrillError.
    """
    if not target.kubernetes:
        return []
    async with _cluster(target, connect) as cluster:
        return [f"{kind} {name}" for kind, name, _ in await _ours(cluster, target.name, tell)]


async def remove_objects(
    target: AttachTarget,
    removed: Callable[[str], None],
    connect: Connect | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Deletes the objects that `objects_left` lists, reports each, and returns why others stay. Raises HashidrillError.

    `tell` receives the reason of each wait.
    """
    from hashidrill.kubernetes.chaos_mesh import objects  # noqa: PLC0415 - see _cluster
    from hashidrill.kubernetes.litmus import engines  # noqa: PLC0415 - see _cluster
    from hashidrill.kubernetes.vocabulary import ENGINE  # noqa: PLC0415 - as above

    stuck = []
    async with _cluster(target, connect) as cluster:
        cluster.tell = tell
        for kind, name, _ in await _ours(cluster, target.name):
            try:
                if kind == ENGINE:
                    await engines.remove(cluster, name)
                else:
                    await objects.remove(cluster, kind, name)
            except HashidrillError as error:
                stuck.append(str(error))
            else:
                removed(f"{kind} {name}")
    return stuck


async def _ours(
    cluster: Cluster, datacenter: str, tell: Callable[[str], None] | None = None
) -> list[tuple[str, str, str]]:
    from hashidrill.kubernetes.chaos_mesh.objects import OBJECTS as OF_CHAOS_MESH  # noqa: PLC0415 - see _cluster
    from hashidrill.kubernetes.litmus.engines import OBJECTS as OF_LITMUS  # noqa: PLC0415 - as above
    from hashidrill.kubernetes.objects import ours  # noqa: PLC0415 - as above

    return await ours(cluster, [*OF_CHAOS_MESH, *OF_LITMUS], datacenter, tell)
