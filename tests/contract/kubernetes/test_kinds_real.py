"""Each kind of fault on pods that this node can do, on real pods of Consul, with no more rights than its role has."""

from __future__ import annotations

import json
from dataclasses import asdict

import anyio
import pytest

from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.testing.faults import check_fault
from kubernetes import chaos_mesh, kinds
from polled import wait
from sandboxed_cases import CONSUL
from told_cases import looked, seen

pytestmark = [
    pytest.mark.live,
    pytest.mark.kubernetes,
    pytest.mark.needs("kubernetes-node", f"consul {CONSUL}", "toxiproxy-server", "toxiproxy-cli"),
]


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.label)
def test_a_kind_is_proven_in_force_and_gone_with_the_rights_of_its_role(pods, kind):
    async def case(fault, target):
        report = await check_fault(fault, target, momentary=kind.disarm is None)
        return {"present": asdict(report.present), "gone": asdict(report.gone)}

    told = pods(kind, case)
    assert told["present"]["ok"]
    assert told["gone"]["ok"]


@pytest.mark.lie
@pytest.mark.parametrize("kind", kinds.LASTING, ids=lambda kind: kind.label)
def test_an_effect_that_is_taken_away_behind_its_back_is_noticed(node, pods, kind):
    """The object stays, and its controller says that it is in force."""

    async def case(fault, target):
        undo = await planned(fault, target, f"disarmed-{kind.label}")
        await fault.apply(undo)
        try:
            await seen(fault, undo, within_s=fault.observed_within_s)
            await anyio.to_thread.run_sync(kind.disarm, node)
            after = await looked(fault, undo, ok=False, within_s=30.0)
        finally:
            try:
                await fault.revert(undo)
            except FaultError:  # tried again, as the engine does: a controller waits longer after each failed try
                await fault.revert(undo)
        await seen(fault, undo, present=False, within_s=60.0)
        return after.ok, after.measured

    noticed, measured = pods(kind, case)
    assert not noticed, measured


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("chaos_mesh.network.delay", {"delay": "200ms"}, "modprobe sch_netem"),
        ("litmus.pod_network_latency", {"delay": "200ms"}, "modprobe sch_netem"),
        ("litmus.node_drain", {}, "the node node-1 also runs consul-server-0, consul-server-2"),
    ],
)
def test_what_this_node_cannot_do_is_refused_before_anything_is_created(pods, name, params, said):
    async def case(fault, target):
        with pytest.raises(FaultError) as told:
            await planned(fault, target, "refused")
        return str(told.value)

    assert said in pods(kinds.Kind(name, params), case)


async def _applied(node, fault, undo, noticed):
    await fault.apply(undo)
    return await noticed()


async def _without_a_daemon(node, fault, undo, noticed):
    """Nothing can inject; its controller says AllRecovered. Once the daemon is back, it does inject."""
    of = ("-n", chaos_mesh.NAMESPACE)
    selector = {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": "true"}}}}}
    node.kubectl(*of, "patch", "daemonset", "chaos-daemon", "-p", json.dumps(selector))
    try:
        wait("no daemon", lambda: not node.get(*of, "pods", "-l", "app=chaos-daemon")["items"], 30, 0.2)
        await fault.apply(undo)
        await looked(fault, undo, ok=True, within_s=5.0)
        told = await noticed()
        found = node.get("-n", kinds.NAMESPACE, "stresschaos", undo["object"]["name"])["status"]["conditions"]
        said = {one["type"]: one["status"] for one in found}
        assert (said["AllInjected"], said["AllRecovered"]) == ("False", "True")
    finally:
        removed = [{"op": "remove", "path": "/spec/template/spec/nodeSelector"}]
        node.kubectl(*of, "patch", "daemonset", "chaos-daemon", "--type=json", "-p", json.dumps(removed))
        node.kubectl(*of, "rollout", "status", "daemonset/chaos-daemon", "--timeout=60s", timeout=70)
    return told


async def _disarmed(node, fault, undo, noticed):
    await fault.apply(undo)
    await seen(fault, undo, within_s=fault.observed_within_s)
    await anyio.to_thread.run_sync(kinds.hog_killed, node)
    return await noticed()


_HITS_NOTHING = {"TARGET_SERVICE_PORT": "9999", "PROXY_PORT": "20001"}
_RESET = {"experiment": "pod-http-reset-peer", "effect": "silent"}


@pytest.mark.lie
@pytest.mark.parametrize(
    ("kind", "plant", "said"),
    [
        pytest.param(
            kinds.Kind("chaos_mesh.stress.cpu", {"load": "50%"}),
            _without_a_daemon,
            "its controller failed",
            id="AllRecovered before anything was injected",
        ),
        pytest.param(
            kinds.Kind("litmus.experiment", {**_RESET, "env": _HITS_NOTHING}),
            _applied,
            "Pass of 100 without a single probe, which says nothing",
            id="zero probes, and Pass although nothing was hit",
        ),
        pytest.param(
            kinds.Kind("litmus.pod_cpu_hog", {"load": "50%"}),
            _disarmed,
            "(history: injected)",
            id="history left at injected",
        ),
    ],
)
def test_a_success_that_a_real_controller_claims_is_no_proof(node, pods, kind, plant, said):
    async def case(fault, target):
        undo = await planned(fault, target, "claimed")

        async def noticed():
            with anyio.fail_after(90):
                while said not in (evidence := await fault.verify(undo, present=True)).measured:
                    assert not evidence.ok, evidence
                    await anyio.sleep(0.5)
            assert not evidence.ok, evidence
            return evidence.measured

        try:
            told = await plant(node, fault, undo, noticed)
        finally:
            await fault.revert(undo)
        await seen(fault, undo, present=False, within_s=60.0)
        return told

    assert said in pods(kind, case, lasts_s=30.0)


@pytest.mark.lie
def test_a_typo_in_a_chaos_engine_is_admitted_there_and_refused_by_us(node, pods):
    typo = {"TARGET_SERVICE_PROT": "8500"}

    async def case(fault, target):
        with pytest.raises(FaultError) as told:
            await planned(fault, target, "typo")
        return str(told.value)

    told = pods(kinds.Kind("litmus.experiment", {**_RESET, "env": typo}), case)
    assert "nothing would read them:\n  TARGET_SERVICE_PROT: did you mean TARGET_SERVICE_PORT" in told
    environment = [{"name": name, "value": value} for name, value in typo.items()]
    experiment = {"name": _RESET["experiment"], "spec": {"components": {"env": environment}}}
    metadata, spec = (
        {"name": "typo", "namespace": kinds.NAMESPACE},
        {"engineState": "stop", "experiments": [experiment]},
    )
    engine = {"apiVersion": "litmuschaos.io/v1alpha1", "kind": "ChaosEngine", "metadata": metadata, "spec": spec}
    took = node.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(engine))
    assert "created" in took
