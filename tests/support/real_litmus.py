"""Inside of a sandbox: a real datacenter, a real API server with Litmus's definitions. One JSON line a case.

python real_litmus.py CONSUL ROOT VERSION CRDS NAME=PATH...
"""

import json
import signal
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import anyio
from ruamel.yaml import YAML

from control_plane import ADMIN, NAMESPACE, USER, ControlPlane, grant
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.library import list_experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.protocols.capabilities import LitmusPod, PodStatus
from hashidrill.kubernetes import objects
from hashidrill.kubernetes.client import cluster_of
from hashidrill.kubernetes.interchange import to_litmus
from hashidrill.kubernetes.interchange.document import UnsupportedError
from hashidrill.kubernetes.litmus import engines
from hashidrill.kubernetes.litmus.engines import AimedAt
from hashidrill.kubernetes.objects import Owned, ours
from hashidrill.kubernetes.pods import Watched
from hashidrill.kubernetes.vocabulary import ENGINE, LITMUS
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.consul.model import Consul
from hashidrill.testing.faults import check_fault
from litmus_operator import GROUP, MERGE, Operator
from told_cases import fault_of, play, refused_without_each, say, seen

HOST = "consul-2"
OWNED = Owned("run-1", "sandbox", "me@here", 60.0)
KINDS = ("litmus.pod_http_reset_peer", "litmus.pod_network_loss", "litmus.pod_delete", "litmus.container_kill")
RESET = KINDS[0]
HUB = {
    "pod-http-reset-peer": ("RESET_TIMEOUT", "TARGET_SERVICE_PORT", "PROXY_PORT", "TOXICITY"),
    "pod-network-loss": ("NETWORK_PACKET_LOSS_PERCENTAGE", "NETWORK_INTERFACE"),
    "pod-delete": ("FORCE",),
    "container-kill": ("SIGNAL",),
}


class Plane(ControlPlane):
    """With Litmus's definitions, and without a controller of Chaos Mesh."""

    async def start(self) -> None:
        for name in ("etcd", "kube-apiserver"):
            self.begin(name)
        await self.server_ready()
        for path in sorted(self.crds.glob("*.yaml")):
            definition = YAML(typ="safe", pure=True).load(path.read_text())
            await self._made("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        await self._made("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})


class World:
    """A datacenter of ours whose host is a pod to Litmus, as the user of the role of `staging acl kubernetes`."""

    def __init__(self, datacenter, plane) -> None:
        self.datacenter, self.plane = datacenter, plane
        self.cluster = cluster_of({"kubeconfig": str(plane.kubeconfig(USER))})
        self.admin = cluster_of({"kubeconfig": str(plane.kubeconfig(ADMIN, name="admin"))})
        self.host = datacenter.hosts[HOST]
        self.host.parts[LitmusPod] = AimedAt(self.cluster, OWNED, True, "litmus-admin", HOST)
        self.host.parts[PodStatus] = Watched(self.cluster, HOST)
        self.operator = Operator(plane, NAMESPACE, self.host)

    async def install(self) -> None:
        """The pod, and the experiments of a hub. A definition takes a moment to be served."""
        await self.operator.make_pod(HOST, ready=True)
        for name, env in HUB.items():
            made = {
                "apiVersion": "litmuschaos.io/v1alpha1",
                "kind": "ChaosExperiment",
                "metadata": {"name": name},
                "spec": {"definition": {"image": "none", "env": [{"name": one, "value": ""} for one in env]}},
            }
            with anyio.fail_after(60):
                while True:
                    said = await self.plane.ask("POST", f"{GROUP}/namespaces/{NAMESPACE}/chaosexperiments", made)
                    if said.status_code in {201, 409}:
                        break
                    await anyio.sleep(0.3)

    def fault(self, kind):
        return fault_of(self.datacenter, kind)

    async def target(self):
        [found] = await self.datacenter.select(f"host:{HOST}")
        return found

    async def put_on(self, kind, fault_id):
        fault = self.fault(kind)
        undo = json.loads(json.dumps(dict(await planned(fault, await self.target(), fault_id))))
        await fault.apply(undo)
        return fault, undo

    async def tidy(self) -> None:
        self.operator.mode = "works"
        for _, name, _ in await ours(self.admin, engines.OBJECTS, "sandbox"):
            await engines.remove(self.admin, name)
        await self.operator.signal(signal.SIGCONT)

    async def left(self):
        """What of Litmus's is there: engines, results and pods that it started."""
        pods = await self.admin.listed("v1", "Pod")
        found = [f"pod {one['metadata']['name']}" for one in pods if one["metadata"]["name"] != HOST]
        for kind in (engines.ENGINE, engines.RESULT):
            listed = await self.admin.listed("litmuschaos.io/v1alpha1", kind)
            found += [f"{kind} {one['metadata']['name']}" for one in listed]
        return found


async def keeps_its_contract(world):
    reports = {}
    for kind in KINDS:
        momentary = kind in {"litmus.pod_delete", "litmus.container_kill"}
        report = await check_fault(world.fault(kind), await world.target(), momentary=momentary)
        reports[kind] = {"present": asdict(report.present), "gone": asdict(report.gone), "left": await world.left()}
    return {"reports": reports}


async def a_pass_of_a_hundred_without_an_effect_is_none(world):
    world.operator.mode = "passes"
    fault, undo = await world.put_on(RESET, "0-passes")

    with anyio.fail_after(60):
        while "ChaosResult" not in (evidence := await fault.verify(undo, present=True)).measured:
            await anyio.sleep(0.3)
    await fault.revert(undo)
    return {"ok": evidence.ok, "measured": evidence.measured, "left": await world.left()}


async def an_operator_that_is_away_is_told(world):
    world.operator.mode = "away"
    fault, undo = await world.put_on(RESET, "0-away")
    evidence = await fault.verify(undo, present=True)
    await fault.revert(undo)
    return {"ok": evidence.ok, "measured": evidence.measured, "left": await world.left()}


async def a_typo_is_kept_by_the_server_and_refused_by_us(world):
    """First as anybody else would send it."""
    spec = {"engineState": "stop", "chaosServiceAcount": "litmus-admin", "experiments": [{"name": "pod-delete"}]}
    made = {
        "apiVersion": "litmuschaos.io/v1alpha1",
        "kind": "ChaosEngine",
        "metadata": {"name": "typo"},
        "spec": spec,
    }
    said = await world.plane.ask("POST", f"{GROUP}/namespaces/{NAMESPACE}/chaosengines", made)
    kept = said.json().get("spec", {})
    await world.plane.ask("DELETE", f"{GROUP}/namespaces/{NAMESPACE}/chaosengines/typo")
    try:
        await engines.check(world.cluster, spec, {"experiments": []})
        told = ""
    except FaultError as error:
        told = str(error)
    return {"status": said.status_code, "kept": "chaosServiceAcount" in kept, "told": told}


async def what_is_exported_is_taken(world):
    """What `convert export litmus` writes of the library, and each experiment by the check that refuses typos."""
    refused, taken = {}, set()
    for path in list_experiments():
        try:
            made, _ = to_litmus.engine("exported", load_experiment(path).method, NAMESPACE)
        except UnsupportedError:
            continue
        where = f"{GROUP}/namespaces/{NAMESPACE}/chaosengines?dryRun=All&fieldValidation=Strict"
        said = await world.plane.ask("POST", where, made)
        taken |= {one["name"] for one in made["spec"]["experiments"]}
        try:
            await objects.check(world.cluster, LITMUS, ENGINE, made["spec"])
        except FaultError as error:
            refused[str(path)] = str(error)
        if said.status_code != 201:
            refused[str(path)] = said.text[:1000]
    return {"refused": refused, "taken": sorted(taken)}


async def a_stuck_finalizer_is_told_and_the_way_out_works(world):
    fault, undo = await world.put_on(RESET, "0-stuck")
    await seen(fault, undo, present=True, within_s=60)
    world.operator.mode = "away"
    name = undo["object"]["name"]
    try:
        await engines.remove(world.cluster, name, within_s=3.0)
        told = ""
    except FaultError as error:
        told = str(error)
    of = f"{GROUP}/namespaces/{NAMESPACE}/chaosengines/{name}"
    for pod in await world.left():
        if pod.startswith("pod "):
            await world.plane.ask("DELETE", f"{world.operator.pods}/{pod.removeprefix('pod ')}")
    await world.operator.signal(signal.SIGCONT)
    await world.plane.ask("PATCH", of, {"metadata": {"finalizers": None}}, patch=MERGE)
    await fault.revert(undo)
    gone = await seen(fault, undo, present=False)
    return {"told": told, "gone": gone.ok, "left": await world.left()}


async def what_is_left_is_found_by_its_labels(world):
    fault, undo = await world.put_on(RESET, "0-left")
    await seen(fault, undo, present=True, within_s=60)
    found = await ours(world.cluster, engines.OBJECTS, "sandbox")
    for _, name, _ in found:
        await engines.remove(world.cluster, name)
    gone = await seen(fault, undo, present=False)
    return {"found": [(kind, run) for kind, _, run in found], "gone": gone.ok, "left": await world.left()}


async def without_a_rule_it_is_refused(world):
    fault = world.fault("litmus.container_kill")

    async def tidy():
        await world.tidy()
        for one in await world.admin.listed("litmuschaos.io/v1alpha1", engines.RESULT):
            await world.admin.delete("litmuschaos.io/v1alpha1", engines.RESULT, one["metadata"]["name"])
        await world.operator.ready(HOST, restarts=0)

    rights, give = list(dict.fromkeys(fault.rights())), partial(grant, world.plane)
    return {"told": await refused_without_each(rights, fault, await world.target(), give, tidy, momentary=True)}


CASES = (
    keeps_its_contract,
    a_pass_of_a_hundred_without_an_effect_is_none,
    an_operator_that_is_away_is_told,
    a_typo_is_kept_by_the_server_and_refused_by_us,
    what_is_exported_is_taken,
    a_stuck_finalizer_is_told_and_the_way_out_works,
    what_is_left_is_found_by_its_labels,
    without_a_rule_it_is_refused,
)


async def main() -> None:
    consul, root, version, crds, *named = sys.argv[1:]
    spec = DatacenterSpec(consul=Consul(version=version, clients=0, config={"performance": {"raft_multiplier": 1}}))
    datacenter = LocalDatacenter(spec, Path(root), {"consul": Path(consul)}, frozenset())
    plane = Plane(Path(root) / "plane", dict(one.split("=", 1) for one in named), Path(crds))
    began = time.monotonic()
    await plane.start()
    ready_s = time.monotonic() - began
    await datacenter.start()
    await datacenter.wait_ready()
    world = World(datacenter, plane)
    await world.install()
    rights = [right for kind in KINDS for right in world.fault(kind).rights()]
    await grant(plane, list(dict.fromkeys(rights)))
    say(case="start", plane_s=round(ready_s, 1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.operator.run)
        await play(world, CASES)
        tasks.cancel_scope.cancel()
    await world.cluster.aclose()
    await world.admin.aclose()
    plane.stop()


if __name__ == "__main__":
    anyio.run(main)
