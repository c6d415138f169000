"""The ChaosEngines that a run creates, each aimed at one pod or its node.

Each lasts for its experiment's TOTAL_CHAOS_DURATION, after which Litmus reverts it even if hashidrill has died.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.wait import wait_until
from hashidrill.kubernetes import objects
from hashidrill.kubernetes.client import Cluster
from hashidrill.kubernetes.objects import Owned
from hashidrill.kubernetes.vocabulary import ENGINE, EXPERIMENT, LITMUS, RESULT, one, why_not_drained

OBJECTS = [(LITMUS, ENGINE)]
UID = "chaosUID"
"""The label that Litmus puts on everything that it starts for an engine: runner, job, helper, ChaosResult."""
ENDED_WITHIN_S, GONE_WITHIN_S = 35.0, 8.0
"""How long Litmus's pods, which have 30 s of grace, may take to revert and end, and then the engine. The sum is less
than one attempt to revert may take."""
_STATED = {"TARGET_PODS": "", "NODE_LABEL": "", "DEFAULT_HEALTH_CHECK": "false"}
"""Set in every engine, because a ChaosExperiment's own values of these could hit other targets than the engine's."""
READ_BY_ALL = {
    *_STATED,
    "TOTAL_CHAOS_DURATION",
    "CHAOS_INTERVAL",
    "RAMP_TIME",
    "SEQUENCE",
    "PODS_AFFECTED_PERC",
    "STATUS_CHECK_DELAY",
    "STATUS_CHECK_TIMEOUT",
    "CONTAINER_RUNTIME",
    "SOCKET_PATH",
    "TARGET_CONTAINER",
    "TERMINATION_GRACE_PERIOD_SECONDS",
    "SET_HELPER_DATA",
}
"""Variables that experiments read, whether or not their definition lists them."""
HOSTNAME = "kubernetes.io/hostname"
"""The label of a node that each kubelet sets; a nodeSelector selects by labels alone."""
_NOT_RUN = ("ChaosExperiment Not Found", "Skipped")
Spec = Mapping[str, Any]


def whole(
    spec: Spec, aim: Spec, account: str, *, lasts_s: int, more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The spec of an engine that ends by itself after `lasts_s` seconds; with 1, it injects once. `more`: added env."""
    env = {**_STATED, "TOTAL_CHAOS_DURATION": str(lasts_s), **(more or {})}
    env |= {"CHAOS_INTERVAL": "1"} if lasts_s == 1 else {}
    experiments = [one(each["name"], {**env_of(each), **env}) for each in spec["experiments"]]
    return {
        "engineState": "active",
        "chaosServiceAccount": account,
        "jobCleanUpPolicy": "delete",
        **aim,
        "experiments": experiments,
    }


def env_of(experiment: Spec) -> dict[str, str]:
    """The environment of one of an engine's experiments."""
    components = experiment.get("spec", {}).get("components", {})
    return {each["name"]: each.get("value", "") for each in components.get("env") or ()}


async def check(cluster: Cluster, spec: Spec, asked: Spec, rights: Sequence[Right] = ()) -> None:
    """Raises FaultError if the cluster would refuse or ignore a part of the spec, or refuse one of the `rights`.

    `asked`: the fault's own part of the spec.
    """
    # Litmus's operator reads the nodeSelector of `components.runner`; its definition keeps it, but does not list it.
    listed = {name: value for name, value in spec.items() if name != "components"}
    await objects.check(cluster, LITMUS, ENGINE, listed, rights)
    for each in asked["experiments"]:
        name = each["name"]
        found = await cluster.get(LITMUS.api, EXPERIMENT, name)
        if found is None:
            raise FaultError(
                f"the namespace {cluster.namespace} has no {EXPERIMENT} {name}, which Litmus would skip; install it"
                f" from a ChaosHub: `{cluster.kubectl('apply -f fault.yaml')}`"
            )
        definition = found.get("spec", {}).get("definition", {})
        known = {str(given.get("name")) for given in definition.get("env") or ()} | READ_BY_ALL
        if wrong := [name for name in env_of(each) if name not in known]:
            told = "".join(f"\n  {each}: {near(each, known)}" for each in wrong)
            raise FaultError(f"the {EXPERIMENT} {name} does not list these, so nothing would read them:{told}")


async def remove(cluster: Cluster, name: str, *, within_s: float = ENDED_WITHIN_S) -> None:
    """Stops the engine, waits for its pods, deletes its ChaosResult, then the engine. Raises FaultError with a remedy.

    The engine is deleted last, because heal uses it to find what a run that died left behind. If the engine is already
    gone, for example deleted by force, its ChaosResult still tells which pods belong to it.
    """
    engine = await cluster.get(LITMUS.api, ENGINE, name)
    if engine is not None and engine.get("spec", {}).get("engineState") != "stop":
        await cluster.patch(LITMUS.api, ENGINE, name, {"spec": {"engineState": "stop"}})
    uid = _uid(engine, await _results(cluster, name))
    helps = way_out(cluster, name, uid)

    async def ended() -> tuple[bool | None, str]:
        pods = await _pods(cluster, uid)
        return (None, _running(pods)) if pods else (True, "")

    try:
        await wait_until(f"the pods of {ENGINE} {name} to be gone", ended, within_s=within_s, gap_s=0.5)
    except WaitTimeoutError as error:
        await cluster.delete(LITMUS.api, ENGINE, name)  # its operator, once back, ends it without us
        raise FaultError(f"{error}; {helps}") from None
    for each in await _results(cluster, name):
        await cluster.delete(LITMUS.api, RESULT, each["metadata"]["name"])
    await objects.remove(
        cluster, LITMUS, ENGINE, name, said=lambda found: said_of(found, (), ()), way_out=helps, within_s=GONE_WITHIN_S
    )


def way_out(cluster: Cluster, name: str, uid: str) -> str:
    """A remedy for an engine or pods that stay: the operator is gone, or an experiment cannot revert."""
    pods = cluster.kubectl(f"delete jobs,pods -l {UID}={uid}")
    freed = cluster.kubectl(f"""patch chaosengine {name} --type merge -p '{{"metadata":{{"finalizers":null}}}}'""")
    return (
        f"check that chaos-operator runs: it ends the pods, and then releases the engine; without it, `{pods}`, check"
        f" that the fault is over, and release the engine: `{freed}`"
    )


async def said(cluster: Cluster, name: str) -> str:
    """Litmus's report, in words for people; it proves nothing. "" if neither the engine nor one of its pods exists."""
    engine = await cluster.get(LITMUS.api, ENGINE, name)
    results = await _results(cluster, name)
    pods = await _pods(cluster, _uid(engine, results))
    if engine is None:
        return f"its engine is gone, and {_running(pods)}" if pods else ""
    return said_of(engine, results, pods)


def said_of(engine: Spec, results: Sequence[Spec], pods: Sequence[Spec]) -> str:
    """What engine, ChaosResult and pods report and, if known, what that means."""
    deleted = "it is being deleted, and " if (engine.get("metadata") or {}).get("deletionTimestamp") else ""
    if results:
        return deleted + "; ".join(_result(each) for each in results)
    return deleted + (_of_status(engine) or _not_begun(engine, pods))


def _of_status(engine: Spec) -> str:
    """The experiment's status, or why the engine has no status; "" if only the experiment has none yet."""
    status = engine.get("status") or {}
    if not status and not (engine.get("metadata") or {}).get("finalizers"):
        return (
            "no operator has started on it: is chaos-operator running, and does it watch this namespace? If it does,"
            " the CustomResourceDefinitions may be older than it, and it cannot write to the object: update them"
        )
    if not status:
        return (
            "its status stays empty although an operator has started: the CustomResourceDefinition is older than the"
            " operator; update Litmus's definitions to its version"
        )
    experiments = status.get("experiments") or ()
    if skipped := [each for each in experiments if each.get("status") in _NOT_RUN]:
        return f"Litmus did not run {skipped[0].get('name')}: {skipped[0]['status']}"
    if experiments:
        return f"Litmus says {experiments[0].get('status')} of {experiments[0].get('name')}, without a result"
    return ""


def _not_begun(engine: Spec, pods: Sequence[Spec]) -> str:
    if pods:
        return f"its runner has not reported yet ({_running(pods)})"
    account = engine.get("spec", {}).get("chaosServiceAccount")
    return (
        f"its operator says {engine['status'].get('engineStatus')}, and has started no runner: is there a"
        f" ServiceAccount {account}, which services.kubernetes.litmus_account of the attach file names?"
    )


def _result(result: Spec) -> str:
    """What a ChaosResult says; its `Pass` only means that the experiment ended."""
    status = result.get("status") or {}
    said = status.get("experimentStatus") or {}
    text = f"its ChaosResult says {said.get('phase', 'nothing')}, {said.get('verdict', 'no verdict')}"
    if why := (said.get("errorOutput") or {}).get("reason") or said.get("failStep"):
        text += f": {why}"
    if said.get("verdict") == "Pass" and not status.get("probeStatuses"):
        text += f" of {said.get('probeSuccessPercentage', '?')} without a single probe, which says nothing"
    targets = (status.get("history") or {}).get("targets") or ()
    if marks := sorted({str(each.get("chaosStatus")) for each in targets}):
        text += f" (history: {', '.join(marks)})"
    return text


def _running(pods: Sequence[Spec]) -> str:
    names = ", ".join(sorted(each["metadata"]["name"] for each in pods))
    return f"pods of Litmus run for it: {names}" if names else ""


def _uid(engine: Spec | None, results: Sequence[Spec]) -> str:
    if engine is not None:
        return str(engine["metadata"].get("uid", ""))
    return next((str(each["metadata"].get("labels", {}).get(UID, "")) for each in results), "")


async def _results(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """The engine's ChaosResults: Litmus names them ENGINE-EXPERIMENT, and our engines' names are unique."""
    found = await cluster.listed(LITMUS.api, RESULT)
    return [each for each in found if each["metadata"]["name"].startswith(f"{name}-")]


async def _pods(cluster: Cluster, uid: str) -> list[dict[str, Any]]:
    """The engine's running pods; a failed experiment also leaves its helper pod, which has ended and holds nothing."""
    found = await cluster.listed("v1", "Pod", {UID: uid}) if uid else []
    return [each for each in found if (each.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}]


@dataclass(frozen=True)
class AimedAt:
    """Engines that target exactly one pod (hashidrill.core.protocols.capabilities.LitmusPod)."""

    cluster: Cluster
    owned: Owned
    netem: bool
    account: str
    """The ServiceAccount under which experiments run."""
    pod: str

    def object_of(self, kind: str, fault_id: str) -> Mapping[str, str]:
        return {"kind": kind, "name": self.owned.named(fault_id), "namespace": self.cluster.namespace}

    async def whole(self, spec: Mapping[str, Any], *, once: bool) -> dict[str, Any]:
        """The whole engine for a fault's spec."""
        aim = {"selectors": {"pods": [{"namespace": self.cluster.namespace, "names": self.pod}]}}
        return whole(spec, aim, self.account, lasts_s=self.lasts_s(once=once))

    def lasts_s(self, *, once: bool) -> int:
        return 1 if once else max(2, self.owned.seconds)

    async def check(self, kind: str, spec: Mapping[str, Any], rights: Sequence[Right] = ()) -> None:
        await check(self.cluster, await self.whole(spec, once=False), spec, rights)

    async def create(self, made: Mapping[str, str], spec: Mapping[str, Any], *, once: bool) -> None:
        manifest = await self.whole(spec, once=once)
        await objects.create(self.cluster, LITMUS, ENGINE, self.owned.metadata(made["name"]), manifest)

    async def said(self, made: Mapping[str, str]) -> str:
        return await said(self.cluster, made["name"])

    async def remove(self, made: Mapping[str, str]) -> None:
        await remove(self.cluster, made["name"])


@dataclass(frozen=True)
class AimedAtNode(AimedAt):
    """Engines that name the node of one pod (hashidrill.core.protocols.capabilities.LitmusNode)."""

    agents: Sequence[str]
    """The pods of all agents of the estate: only one of them may be on that node."""
    allowed: bool
    """Whether the estate's file allows nodes to be drained."""

    async def whole(self, spec: Mapping[str, Any], *, once: bool) -> dict[str, Any]:
        """The whole engine. Raises FaultError if the node may not be drained."""
        node = await node_of(self.cluster, self.pod)
        pods = await self.cluster.listed("v1", "Pod")
        there = {one["metadata"]["name"] for one in pods if (one.get("spec") or {}).get("nodeName") == node}
        if why := why_not_drained(node, sorted(there & {*self.agents} - {self.pod}), allowed=self.allowed):
            raise FaultError(why)
        away = await self._away_from(node, pods)
        aim = {"components": {"runner": {"nodeSelector": away}}}
        made = whole(spec, aim, self.account, lasts_s=self.lasts_s(once=once), more={"TARGET_NODE": node})
        for each in made["experiments"]:
            each["spec"]["components"]["nodeSelector"] = away
        return made

    async def _away_from(self, node: str, pods: Sequence[Spec]) -> dict[str, str]:
        """Selects the node of another agent for Litmus's own pods: a drain that evicts them reverts itself."""
        on = {
            str((one.get("spec") or {}).get("nodeName") or "") for one in pods if one["metadata"]["name"] in self.agents
        }
        for other in sorted(on - {node, ""}):
            found = await self.cluster.node(other) or {}
            label = (found.get("metadata", {}).get("labels") or {}).get(HOSTNAME)
            if label and not (found.get("spec") or {}).get("unschedulable"):
                return {HOSTNAME: label}
        raise FaultError(
            f"no other agent is on another node that accepts pods: Litmus's own pods would have to run on {node}, and a"
            " drain that evicts them ends at once"
        )


@dataclass(frozen=True)
class WatchedNode:
    """The node of a pod (hashidrill.core.protocols.capabilities.NodeStatus)."""

    cluster: Cluster
    pod: str

    async def name(self) -> str:
        return await node_of(self.cluster, self.pod)

    async def takes_pods(self, name: str) -> bool:
        found = await self.cluster.node(name)
        return found is not None and not (found.get("spec") or {}).get("unschedulable")


async def node_of(cluster: Cluster, pod: str) -> str:
    """Raises FaultError if the pod is on no node."""
    found = await cluster.get("v1", "Pod", pod)
    if name := ((found or {}).get("spec") or {}).get("nodeName"):
        return str(name)
    raise FaultError(f"the pod {pod} is on no node")
