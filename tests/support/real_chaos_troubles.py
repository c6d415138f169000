"""Cases of real_chaos_mesh.py: what a real cluster refuses, drops or does not answer, and what is said of it."""

import time

from control_plane import ADMIN, NAMESPACE
from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import list_experiments
from hashidrill.core.experiment.loader import load_document, load_experiment
from hashidrill.core.protocols.capabilities import ChaosMachine
from hashidrill.core.util.wait import wait_until
from hashidrill.kubernetes.client import cluster_of
from hashidrill.kubernetes.interchange import to_chaos_mesh
from hashidrill.kubernetes.interchange.document import UnsupportedError
from hashidrill.kubernetes.vocabulary import CHAOS_MESH, FIELDS, plural_of
from real_chaos_machines import in_force

PHYSICAL = "PhysicalMachineChaos"


async def a_typo_is_dropped_by_the_server_and_refused_by_us(world):
    """The server takes it, and forgets a field without a word; so does Chaos Mesh, whose object then does less."""
    part = world.host.use(ChaosMachine)
    spec = {"action": "process", "process": {"process": "nobody", "signal": 19, "recoverCmmd": "true"}}
    whole = {**spec, "mode": "all", "address": [world.plane.chaosd]}
    made = {"apiVersion": CHAOS_MESH.api, "kind": PHYSICAL, "metadata": {"name": "typo"}, "spec": whole}
    where = f"/apis/{CHAOS_MESH.api}/namespaces/{NAMESPACE}/{PHYSICAL.lower()}"
    taken = await world.plane.ask("POST", f"{where}?dryRun=All", made)
    kept = sorted(taken.json().get("spec", {}).get("process", {}))
    return {**await refused(part.check(PHYSICAL, spec)), "status": taken.status_code, "kept": kept}


async def what_admission_refuses_is_told(world):
    """Chaos Mesh takes no partition of a machine in both directions, and the schema says nothing of that."""
    part = world.host.use(ChaosMachine)
    cut = {"device": "eth0", "ip-address": "10.73.0.11", "direction": "both"}
    made, spec = part.object_of(PHYSICAL, "0-both"), {"action": "network-partition", "network-partition": cut}
    await part.check(PHYSICAL, spec)
    return {**await refused(part.create(made, spec, once=False)), "left": await part.said(made)}


async def a_server_that_answers_nothing_is_told(world):
    """Each call ends; the proof needs none; and when the server is back, so is the revert."""
    fault, undo = await world.put_on("0-slow")
    await in_force(fault, undo, present=True)
    world.plane.pause("kube-apiserver")
    began = time.monotonic()
    still = await fault.verify(undo, present=True)
    told = await refused(fault.revert(undo))
    took_s = time.monotonic() - began
    world.plane.go_on("kube-apiserver")
    await fault.revert(undo)
    evidence = await in_force(fault, undo, present=False)
    return {**told, "still": still.ok, "took_s": round(took_s, 1), "gone": evidence.ok}


async def a_server_that_is_gone_is_told(world):
    world.plane.end("kube-apiserver")
    return await refused(world.put_on("0-gone"))


async def a_namespace_that_is_being_deleted_is_told(world):
    """No controller of namespaces runs here, so that it stays as it is in the middle of its end."""
    await world.plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "doomed"}})
    await world.plane.ask("DELETE", "/api/v1/namespaces/doomed")
    doomed = cluster_of({"kubeconfig": str(world.plane.kubeconfig(ADMIN, name="doomed")), "namespace": "doomed"})
    world.lasts(60.0, doomed)
    told = await refused(world.put_on("0-doomed"))
    absent = cluster_of({"kubeconfig": str(world.plane.kubeconfig(ADMIN, name="absent")), "namespace": "absent"})
    world.lasts(60.0, absent)
    nowhere = await refused(world.put_on("0-nowhere"))
    await doomed.aclose()
    await absent.aclose()
    return {**told, "nowhere": nowhere["told"]}


async def a_definition_of_another_version_is_told(world):
    """First one that is older by a field, then one that serves a version that we do not speak."""
    where = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PHYSICAL.lower()}.chaos-mesh.org"
    whole = (await world.plane.ask("GET", where)).json()["spec"]["versions"]
    [version] = whole
    at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/process/properties/signal"
    told = {}
    for name, patch, kind in (
        ("older", [{"op": "remove", "path": at}], "json-patch"),
        (
            "other",
            {"spec": {"versions": [{**version, "served": False}, {**version, "name": "v2", "storage": False}]}},
            "merge-patch",
        ),
    ):
        said = await world.plane.ask("PATCH", where, patch, patch=kind)
        assert said.status_code == 200, said.text[:500]
        told[name] = (await refused(world.put_on(f"0-{name}")))["told"]
    back = await world.plane.ask("PATCH", where, {"spec": {"versions": whole}}, patch="merge-patch")
    assert back.status_code == 200, back.text[:500]

    async def served():
        said = await world.plane.ask("GET", f"/apis/{CHAOS_MESH.api}/namespaces/{NAMESPACE}/{PHYSICAL.lower()}")
        return (said.status_code == 200 or None), said.text[:200]

    await wait_until("the definition to be served again", served, within_s=60, gap_s=0.3)
    return told


async def refused(what):
    try:
        await what
    except FaultError as error:
        return {"told": str(error)}
    return {"told": ""}


METHOD = """\
- {fault: process.kill, on: "consul:leader", for: 10s}
- {fault: process.restart, on: "consul:leader", at: 20s, for: 10s}
- {fault: network.partition, on: "consul:one-follower", with: {from: clients, direction: in}, at: 40s, for: 10s}
- {fault: network.loss, on: "consul:servers", with: {percent: 30%}, at: 60s, for: 10s}
- {fault: network.latency, on: "consul:servers", with: {port: 8300, delay: 90ms, jitter: 9ms}, at: 80s, for: 10s}
- {fault: network.bandwidth, on: "consul:servers", with: {port: 8300, rate: 64KB/s}, at: 100s, for: 10s}
- {fault: disk.latency, on: "consul:servers", with: {op: fsync, delay: 50ms, percent: 50%}, at: 120s, for: 10s}
- {fault: disk.error, on: "consul:servers", with: {op: write, errno: ENOSPC}, at: 140s, for: 10s}
- {fault: chaos_mesh.pod_kill, on: "consul:servers", with: {grace: 5s}, at: 160s, for: 10s}
- {fault: chaos_mesh.pod_failure, on: "consul:servers", at: 180s, for: 10s}
- {fault: chaos_mesh.container_kill, on: "consul:servers", at: 200s, for: 10s}
- {fault: chaos_mesh.network.delay, on: "consul:servers", with: {delay: 200ms}, at: 220s, for: 10s}
- fault: chaos_mesh.resource
  on: "consul:servers"
  with: {chaos: StressChaos, spec: {stressors: {cpu: {workers: 1, load: 90}}}, effect: slow, by: 300ms}
  at: 240s
  for: 10s
"""
OURS = f"""\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: all, title: All, why: because}}
datacenter: {{consul: {{servers: 3, clients: 1}}}}
load: {{kv-writes: {{kind: consul.kv.write, rate: 5/s}}}}
steady_state: {{require: ['raft.leader >= 0']}}
method:
{METHOD}expect: [{{no_acknowledged_write_lost: {{load: kv-writes}}}}]
"""


async def what_is_exported_is_taken(world):
    """What `convert export chaos-mesh` writes, as definitions and admission see it: the library, and every writer.

    Each fault also by itself, because admission of a Workflow does not look into its templates. Nothing is created.
    """

    async def asked(kind, spec):
        where = f"/apis/{CHAOS_MESH.api}/namespaces/{NAMESPACE}/{plural_of(kind)}"
        made = {"apiVersion": CHAOS_MESH.api, "kind": kind, "metadata": {"name": "exported"}, "spec": spec}
        return await world.plane.ask("POST", f"{where}?dryRun=All&fieldValidation=Strict", made)

    refused, kinds = {}, set()
    documents = [load_document(Document("all", OURS)), *map(load_experiment, list_experiments())]
    for document in documents:
        try:
            made, _ = to_chaos_mesh.workflow("x", document.method, "0 3 * * *")
        except UnsupportedError:
            continue
        flow = made["spec"]["workflow"]
        parts = [(one["templateType"], one) for one in flow["templates"] if one["templateType"] in FIELDS]
        alone = [(kind, {**one[FIELDS[kind]], "duration": one["deadline"]}) for kind, one in parts]
        for kind, spec in [("Schedule", made["spec"]), ("Workflow", flow), *alone]:
            said = await asked(kind, spec)
            kinds.add(f"{kind} {spec.get('action', '')}".strip())
            if said.status_code != 201:
                refused[f"{document.metadata.name}: {kind}: {spec}"] = said.text[:1000]
    selector = {"labelSelectors": {"app": "consul"}}
    half = {"action": "loss", "mode": "one", "selector": selector, "loss": {"loss": "9"}, "direction": "from"}
    typo = {"action": "pod-kill", "mode": "one", "selector": selector, "gracePeriods": 1}
    lies = {
        "admission": await asked("NetworkChaos", half),
        "a typo": await asked("PodChaos", typo),
    }
    return {"refused": refused, "kinds": sorted(kinds), "lies": {name: said.text for name, said in lies.items()}}


CASES = (
    what_is_exported_is_taken,
    a_typo_is_dropped_by_the_server_and_refused_by_us,
    what_admission_refuses_is_told,
    a_server_that_answers_nothing_is_told,
    a_server_that_is_gone_is_told,
    a_namespace_that_is_being_deleted_is_told,
    a_definition_of_another_version_is_told,
)
"""The last one has the definition of the kind away for a while."""
