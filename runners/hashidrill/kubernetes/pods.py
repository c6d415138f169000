"""Pods as their kubelets report them, the pod of each host, and the agents that run in pods."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hashidrill.core.errors import AttachError, FaultError
from hashidrill.core.protocols.capabilities import ContainerUse, PodSeen
from hashidrill.core.util.wait import all_at_once
from hashidrill.kubernetes.client import Cluster, ClusterError, Connect, cluster_of, connected
from hashidrill.staging.attach.discovery import LookAtPods, PodNow, place_of
from hashidrill.staging.attach.http import Login
from hashidrill.staging.attach.product import attachables
from hashidrill.staging.attach.target import PODS_PLACE, AttachTarget, shown

_OF_CGROUPS = (
    "/sys/fs/cgroup/cpu.stat",
    "/sys/fs/cgroup/memory.stat",
    "/sys/fs/cgroup/cpuacct/cpuacct.usage",
    "/sys/fs/cgroup/memory/memory.stat",
)
"""Files of cgroups v2 and v1; a node has one of the two versions."""


@dataclass(frozen=True)
class Watched:
    """A pod as its kubelet reports it to the API server (hashidrill.core.protocols.capabilities.PodStatus)."""

    cluster: Cluster
    name: str

    async def pod(self) -> PodSeen | None:
        found = await self.cluster.get("v1", "Pod", self.name)
        return None if found is None else seen(found)

    async def used(self, container: str) -> ContainerUse:
        text = await self.cluster.run(self.name, container, ["cat", *_OF_CGROUPS])
        said = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        cpu_s = int(said["usage_usec"]) / 1e6 if "usage_usec" in said else None
        if cpu_s is None:  # cgroups v1: a line that is only a number
            cpu_s = next((int(line) / 1e9 for line in text.splitlines() if line.isdecimal()), None)
        memory = said.get("anon", said.get("total_rss"))
        if cpu_s is None or memory is None:
            raise FaultError(f"the container {container} of pod {self.name} does not let `cat` read its cgroup's files")
        return ContainerUse(cpu_s, int(memory))


def seen(found: Mapping[str, Any]) -> PodSeen:
    """A pod, from the API's object."""
    metadata, status = found["metadata"], found.get("status") or {}
    owners = [one["kind"] for one in metadata.get("ownerReferences") or () if one.get("controller")]
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    running = {one["name"]: int(one["restartCount"]) for one in status.get("containerStatuses") or ()}
    leaving = bool(metadata.get("deletionTimestamp"))
    return PodSeen(metadata["name"], metadata["uid"], ready and not leaving, owners[0] if owners else "", running)


def pod_of(pods: Sequence[Mapping[str, Any]], host: str, address: str, *, by_address: bool = False) -> tuple[str, str]:
    """(pod, why there is none): the one pod with that host's name, otherwise the one with its address.

    `by_address`: the reverse order, for hosts that are known to be pods, because another pod may have the name.
    """
    named = [one["metadata"]["name"] for one in pods if one["metadata"]["name"] == host]
    placed = [one["metadata"]["name"] for one in pods if (one.get("status") or {}).get("podIP") == address]
    at = (placed or named) if by_address else (named or placed)
    if len(at) == 1:
        return str(at[0]), ""
    if at:
        return "", f"the pods {', '.join(sorted(at))} all have the address {address}, and no pod has the name {host}"
    return "", f"no pod there has the name {host} or the address {address}"


Pods = list[dict[str, Any]]


def keeper(pod: Mapping[str, Any]) -> str:
    """The DaemonSet of a pod, and its node, where a DaemonSet runs one pod of any name; "" for any other pod."""
    owners = [one for one in pod["metadata"].get("ownerReferences") or () if one.get("controller")]
    node = (pod.get("spec") or {}).get("nodeName")
    return f"{owners[0]['uid']} on {node}" if node and owners and owners[0]["kind"] == "DaemonSet" else ""


def successor(pods: Pods, kept: str) -> dict[str, Any] | None:
    """The pod that a DaemonSet now has on a node; None while no such pod has an address."""
    return next((one for one in pods if kept and keeper(one) == kept and _address(one) and not _leaves(one)), None)


_ROUTES_TRIED = 3
"""How many pods are tried at their own addresses, ready pods first; one that answers is enough."""


async def located(target: AttachTarget, connect: Connect | None = None) -> AttachTarget:
    """The target with the pods that were found, and with an address for each product whose address the file lacks.

    Sends no request if no agents are pods. Raises AttachError for a context, a namespace or labels that lead to no
    pod. Before a run, `datacenter.attach.pods_found.troubles` says whether all the found pods are well.
    """
    wanted: Mapping[str, Mapping[str, Mapping[str, str]]] = target.kubernetes.get("pods", {})
    if not wanted:
        return target
    found: dict[str, dict[str, dict[str, Any]]] = {}
    unrouted: dict[str, dict[str, Any]] = {}
    logins = dict(target.logins)
    async with connected(target.kubernetes, connect or cluster_of) as cluster:
        for name, labels in wanted.items():
            try:
                pods = {role: await cluster.listed("v1", "Pod", each) for role, each in labels.items()}
                why = await _why_none(cluster, target, labels["server"], pods["server"])
            except ClusterError as error:
                why = str(error)
            if why:
                raise AttachError(f"{target.path}: {PODS_PLACE}.{name}: {why}")
            found[name] = {role: {_name(pod): _of(pod) for pod in each} for role, each in pods.items()}
            every = [pod for each in pods.values() for pod in each]
            silent = {} if logins[name].agents else await _silent(cluster, logins[name], every)
            if why := _no_route(logins[name], silent):
                unrouted[name] = {"why": why, **_to_forward(logins[name], pods["server"], every)}
            if not logins[name].address:
                first = _first(logins[name], pods["server"], {} if why else silent)
                logins[name] = replace(logins[name], address=_url(logins[name], first))
    return replace(target, logins=logins, kubernetes={**target.kubernetes, "found": found, "unrouted": unrouted})


@asynccontextmanager
async def watched(target: AttachTarget, connect: Connect | None = None) -> AsyncIterator[LookAtPods | None]:
    """If agents are pods, a function that reads their current addresses; None if they are not."""
    wanted: Mapping[str, Mapping[str, Mapping[str, str]]] = target.kubernetes.get("pods", {})
    if not wanted:
        yield None
        return
    async with connected(target.kubernetes, connect or cluster_of) as cluster:
        found = target.kubernetes.get("found", {}).values()
        kept = {name: one["keeper"] for roles in found for each in roles.values() for name, one in each.items()}

        async def look() -> dict[str, PodNow]:
            labels = [each for of_product in wanted.values() for each in of_product.values()]
            try:
                pods = [pod for each in labels for pod in await cluster.listed("v1", "Pod", each)]
            except ClusterError as error:
                raise AttachError(str(error)) from None
            now = {_name(pod): pod for pod in pods if _address(pod) and not _leaves(pod)}
            for name in kept.keys() - now.keys():
                if (pod := successor(pods, kept[name])) is not None:
                    now[name] = pod
            return {name: PodNow(_name(pod), _address(pod)) for name, pod in now.items()}

        yield look


async def _why_none(cluster: Cluster, target: AttachTarget, labels: Mapping[str, str], pods: Pods) -> str:
    where = place_of(target)
    if any(map(_address, pods)):
        return ""
    if pods:
        return f"none of {', '.join(sorted(map(_name, pods)))} in {where} has an address: no pod is started yet"
    try:
        there = await cluster.namespace_there()
    except ClusterError:  # the right to read it may be missing: assume that the namespace exists
        there = True
    if not there:
        return f"there is no {where}; `kubectl get namespaces` lists the namespaces"
    command = cluster.kubectl("get pods --show-labels")
    return (
        f"no pod in {where} has the labels {shown(labels)}; `{command}` shows the pods' labels: write the servers'"
        " labels under `servers`"
    )


def _name(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def _address(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _leaves(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _of(pod: Mapping[str, Any]) -> dict[str, Any]:
    ready, status = seen(pod).ready, pod.get("status") or {}
    phase = "ready" if ready else "it is being deleted" if _leaves(pod) else str(status.get("phase") or "Pending")
    return {"address": _address(pod), "ready": ready, "phase": phase, "keeper": keeper(pod)}


async def _silent(cluster: Cluster, login: Login, pods: Pods) -> dict[str, str]:
    """By the URL of a pod's own address: why the pod does not answer there; "" if it does."""
    ordered = sorted((pod for pod in pods if _address(pod)), key=lambda pod: not seen(pod).ready)
    whys = dict.fromkeys((_url(login, pod) for pod in ordered[:_ROUTES_TRIED]), "")

    async def ask(url: str) -> None:
        whys[url] = await cluster.unrouted(login, url)

    await all_at_once(partial(ask, url) for url in whys)
    return whys


def _no_route(login: Login, silent: Mapping[str, str]) -> str:
    """Why pods are not reached at their own addresses; "" if one of them answers there."""
    if not silent or not all(silent.values()):
        return ""
    told = "; ".join(sorted({*silent.values()}))
    return f"no {login.service} answers from here at {', '.join(silent)} ({told})"


def _to_forward(login: Login, servers: Pods, every: Pods) -> dict[str, Any]:
    """What hashidrill.kubernetes.port_forward needs, as plain data: the pod to begin with, and each pod's port."""
    first = _first(login, servers, {})
    return {
        "first": _name(first),
        "scheme": _api(login, first)[0],
        "ports": {_name(pod): _api(login, pod)[1] for pod in every},
        "addresses": {_name(pod): _address(pod) for pod in every if _address(pod)},
        "keepers": {_name(pod): keeper(pod) for pod in every},
    }


def _url(login: Login, pod: Mapping[str, Any]) -> str:
    scheme, port = _api(login, pod)
    address = _address(pod)
    bracketed = f"[{address}]" if ":" in address else address
    return f"{scheme}://{bracketed}:{port}"


def _first(login: Login, pods: Pods, silent: Mapping[str, str]) -> dict[str, Any]:
    """The active agent's pod if a label marks it, else a ready pod. Pods that do not answer come last, even if their
    kubelets still call them ready.
    """
    product = attachables([login.service])[login.service]

    def rank(pod: Mapping[str, Any]) -> tuple[bool, bool, bool, str]:
        leads = product.leads.items() <= (pod["metadata"].get("labels") or {}).items()
        return bool(silent.get(_url(login, pod))), not seen(pod).ready, not leads, _name(pod)

    return min((each for each in pods if _address(each)), key=rank)


def _api(login: Login, pod: Mapping[str, Any]) -> tuple[str, int]:
    """(scheme, port) of the port that the chart names `http` or `https`; if both exist, `https` if the file has TLS."""
    ports = {
        one.get("name"): int(one["containerPort"])
        for container in (pod.get("spec") or {}).get("containers") or ()
        for one in container.get("ports") or ()
    }
    tls = login.tls
    secure = any((tls.ca_file, tls.ca_path, tls.cert_file, tls.server_name)) or not tls.verify
    scheme = "https" if secure or ("https" in ports and "http" not in ports) else "http"
    return scheme, ports.get(scheme, attachables([login.service])[login.service].port)
