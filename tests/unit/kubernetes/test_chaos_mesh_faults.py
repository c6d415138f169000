"""The faults of Chaos Mesh keep their contract on a fake cluster, and believe no status of it."""

from __future__ import annotations

import json

import anyio
import pytest
from pydantic import ValidationError

from chaos_mesh_cases import CHAOS_MESH_CASES, OWNED, chaos_world, disarm
from fake_kubernetes import RECORDS
from fault_cases import momentary
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.capabilities import AgentApi, ChaosMachine
from hashidrill.kubernetes.chaos_mesh.objects import said_of
from hashidrill.testing.faults import check_fault
from virtual_time import run

IDS = [f"{kind}-{number}" for number, (kind, _) in enumerate(CHAOS_MESH_CASES)]


def fault_of(world, kind, params):
    cls = registry.fault(kind)
    return cls(cls.Params.model_validate(params), world)


async def put_on(world, kind, params):
    fault = fault_of(world, kind, params)
    undo = await planned(fault, world.target("consul-1"), "0-x")
    await fault.apply(undo)
    return fault, json.loads(json.dumps(dict(undo)))


@pytest.mark.parametrize(("kind", "params"), CHAOS_MESH_CASES, ids=IDS)
def test_a_fault_keeps_its_contract_on_the_fake(kind, params):
    world, kubernetes = chaos_world()
    fault = fault_of(world, kind, params)
    report = run(check_fault(fault, lambda: world.target("consul-1"), momentary=momentary(kind)))
    assert report.present.ok
    assert report.gone.ok
    assert kubernetes.objects == {}


@pytest.mark.lie
@pytest.mark.parametrize(("kind", "params"), CHAOS_MESH_CASES, ids=IDS)
def test_the_proof_fails_when_the_fault_is_disarmed_behind_its_back(kind, params):
    async def disarmed():
        world, kubernetes = chaos_world()
        fault, undo = await put_on(world, kind, params)
        armed = await fault.verify(undo, present=True)
        disarm(kubernetes, undo)
        return armed, await fault.verify(undo, present=True)

    armed, seen = run(disarmed())
    assert armed.ok, armed
    assert not seen.ok, seen
    assert "says AllInjected" in seen.measured, "what the controller says is told, and not believed"


@pytest.mark.lie
@pytest.mark.parametrize(
    ("controller", "told"),
    [
        ("absent", "no controller has taken it up: is chaos-controller-manager running?"),
        ("old-crd", "its status stays empty though a controller has it: the CustomResourceDefinition is older"),
        ("fails", "its controller failed: Failed to apply chaos: no"),
        ("lies", "its controller says AllInjected"),
    ],
)
@pytest.mark.parametrize(("kind", "params"), CHAOS_MESH_CASES, ids=IDS)
def test_a_controller_that_injects_nothing_proves_nothing_and_says_why(kind, params, controller, told):
    async def seen():
        world, kubernetes = chaos_world()
        kubernetes.controller = controller
        fault, undo = await put_on(world, kind, params)
        evidence = await fault.verify(undo, present=True)
        await fault.revert(undo)
        return evidence, kubernetes.objects

    evidence, left = run(seen())
    assert not evidence.ok
    assert told in evidence.measured
    assert left == {}


@pytest.mark.lie
def test_recovered_is_true_before_injection_too_and_counts_for_nothing():
    """The lie that a waiter for AllRecovered believes: the object is new, nothing was injected, and it "recovered"."""

    async def seen():
        world, kubernetes = chaos_world()
        kubernetes.controller = "fails"
        fault, undo = await put_on(world, "chaos_mesh.physical.process", {})
        [made] = kubernetes.objects.values()
        said = {one["type"]: one["status"] for one in made["status"]["conditions"]}
        return said, await fault.verify(undo, present=False)

    said, gone = run(seen())
    assert said["AllRecovered"] == "True"
    assert not gone.ok, "the object is still there"


def test_a_stack_trace_of_chaosd_is_told_in_its_one_sentence():
    trace = (
        '{"error":true,"message":"error.api: process \\"consull\\" not found\\n","full_text":"at\\n x.go:1"}: not OK'
    )
    failed = {"type": "Failed", "message": trace}
    found = {"status": {"experiment": {"containerRecords": [{"events": [failed]}]}}}
    assert said_of(found) == 'its controller failed: error.api: process "consull" not found'
    failed["message"] = ": Post http://10.0.0.1: refused\n and more"
    assert said_of(found) == "its controller failed: Post http://10.0.0.1: refused"


def test_a_failure_before_it_was_injected_is_no_failure_any_more():
    """The controller tries again, and keeps what failed before."""
    failed = {"type": "Failed", "message": "chaosd was not there"}
    injected = [{"type": "AllInjected", "status": "True"}]
    found = {"status": {"conditions": injected, "experiment": {"containerRecords": [{"events": [failed]}]}}}
    assert said_of(found) == "its controller says AllInjected"


def test_the_object_has_our_run_an_owner_and_a_duration_of_its_own():
    async def made():
        world, kubernetes = chaos_world()
        await put_on(world, "chaos_mesh.pod_failure", {})
        return next(iter(kubernetes.objects.values()))

    one = run(made())
    assert one["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "hashidrill",
        "hashidrill/run": "run-1",
        "hashidrill/datacenter": "staging",
    }
    assert one["metadata"]["annotations"]["hashidrill/owner"] == "amelie@laptop"
    assert one["spec"]["duration"] == "90s"
    assert one["spec"]["mode"] == "all"
    assert one["spec"]["selector"] == {"pods": {"consul": ["consul-1"]}}


def test_what_is_over_at_once_has_no_duration():
    async def made():
        world, kubernetes = chaos_world()
        await put_on(world, "chaos_mesh.pod_kill", {})
        return next(iter(kubernetes.objects.values()))

    assert "duration" not in run(made())["spec"]


def test_names_are_this_faults_alone_and_fit_kubernetes():
    long = OWNED.named("0-chaos_mesh.physical.process-" + "host" * 40)
    assert len(long) <= 53
    assert long.replace("-", "").isalnum()
    assert long.islower()
    assert OWNED.named("0-a.b") != OWNED.named("0-a-b"), "what a name may not hold must not make two faults one"


def test_a_field_that_the_clusters_definition_does_not_have_is_an_error_and_creates_nothing():
    world, kubernetes = chaos_world()
    del kubernetes.definitions["podchaos"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "properties"
    ]["gracePeriod"]
    with pytest.raises(
        FaultError, match=r"(?s)nothing was applied.*spec\.gracePeriod: the cluster's definition does not"
    ):
        run(put_on(world, "chaos_mesh.pod_kill", {}))
    assert kubernetes.objects == {}


@pytest.mark.lie
def test_a_typo_in_a_manifest_is_an_error():
    world, _ = chaos_world()
    params = {"chaos": "HTTPChaos", "spec": {**HTTP, "abrot": True}, "effect": "silent"}
    with pytest.raises(FaultError, match=r"spec\.abrot: .*would drop it: did you mean abort\?"):
        run(put_on(world, "chaos_mesh.resource", params))


HTTP = {"target": "Request", "port": 8500}


def test_a_kind_that_the_cluster_does_not_have_is_an_error():
    world, kubernetes = chaos_world()
    del kubernetes.definitions["podchaos"]
    with pytest.raises(FaultError, match=r"knows no PodChaos of chaos-mesh\.org; is Chaos Mesh installed there\?"):
        run(put_on(world, "chaos_mesh.pod_failure", {}))
    kubernetes.definitions["podchaos"] = {"spec": {"versions": [{"name": "v1", "served": True}]}}
    with pytest.raises(FaultError, match=r"serves no PodChaos of chaos-mesh\.org/v1alpha1"):
        run(put_on(world, "chaos_mesh.pod_failure", {}))


def test_a_stuck_finalizer_is_told_with_the_commands_that_help_and_waits_no_longer_than_its_limit():
    async def reverted():
        world, kubernetes = chaos_world()
        fault, undo = await put_on(world, "chaos_mesh.network.delay", {"delay": "200ms"})
        kubernetes.controller = "stuck"
        await fault.revert(undo)

    with pytest.raises(FaultError) as stuck:
        run(reverted())
    assert "waited 30s for NetworkChaos hashidrill-run-1-0-x-" in str(stuck.value)
    assert "`kubectl --context staging -n consul annotate networkchaos hashidrill-run-1-0-x-" in str(stuck.value)
    assert "chaos-mesh.chaos-mesh.org/cleanFinalizer=forced`" in str(stuck.value)
    assert "podnetworkchaos" in str(stuck.value)


@pytest.mark.lie
def test_a_dead_controller_is_waited_for_once_and_told_of_meanwhile_however_often_the_engine_tries():
    """Three tries, and three more without load, waited 30 s each: the run took 200 s to end with 4."""

    async def tries():
        world, kubernetes = chaos_world()
        fault, undo = await put_on(world, "chaos_mesh.physical.process", {})
        kubernetes.controller = "stuck"
        told = []
        world.hosts["consul-2"].use(ChaosMachine).cluster.tell = told.append
        began_s, errors = anyio.current_time(), []
        for _ in range(6):
            with pytest.raises(FaultError) as stuck:
                await fault.revert(undo)
            errors.append(str(stuck.value))
        return anyio.current_time() - began_s, errors, told

    took_s, errors, told = run(tries())
    assert took_s < 60
    assert all("annotate physicalmachinechaos" in error for error in errors)
    assert [error.partition(" for ")[0] for error in errors] == ["waited 30s", *["waited 5s"] * 5]
    assert len(told) == 1, "once, and not at each try"
    assert "is still there 5s after it was deleted: it is being deleted, and its controller says AllInjected" in told[0]
    assert told[0].endswith("it is waited for up to 30s")


def test_a_controller_that_comes_back_lets_the_next_try_succeed():
    async def tries():
        world, kubernetes = chaos_world()
        fault, undo = await put_on(world, "chaos_mesh.physical.process", {})
        kubernetes.controller = "stuck"
        with pytest.raises(FaultError):
            await fault.revert(undo)
        kubernetes.controller = "works"
        await fault.revert(undo)
        return (await fault.verify(undo, present=False)).ok, kubernetes.objects

    assert run(tries()) == (True, {})


def test_an_object_that_is_still_there_is_not_proven_gone_though_its_effect_is():
    async def seen():
        world, kubernetes = chaos_world()
        fault, undo = await put_on(world, "chaos_mesh.physical.process", {})
        kubernetes.expire()
        return await fault.verify(undo, present=False)

    gone = run(seen())
    assert not gone.ok
    assert "PhysicalMachineChaos hashidrill-run-1" in gone.measured


@pytest.mark.lie
def test_an_effect_that_outlives_its_object_is_not_proven_gone():
    """Deleted by force: the API server has forgotten the object, and the agent is still stopped."""

    async def seen():
        world, kubernetes = chaos_world()
        fault, undo = await put_on(world, "chaos_mesh.physical.process", {})
        kubernetes.objects.clear()
        return await fault.verify(undo, present=False)

    assert not run(seen()).ok


@pytest.mark.lie
@pytest.mark.parametrize("kind", ["chaos_mesh.physical.process", "chaos_mesh.pod_failure"])
def test_our_own_broken_network_is_no_silent_agent(kind):
    async def seen():
        world, kubernetes = chaos_world()
        kubernetes.controller = "lies"
        fault, undo = await put_on(world, kind, {})
        kubernetes.ready("consul-1", ready=False)
        for host in world.hosts.values():
            host.use(AgentApi).cut_off = True
        return await fault.verify(undo, present=True)

    evidence = run(seen())
    assert not evidence.ok
    assert "neither does any other" in evidence.measured


def test_a_pod_that_is_not_ready_while_its_agent_answers_has_not_failed():
    async def seen():
        world, kubernetes = chaos_world()
        kubernetes.controller = "lies"
        fault, undo = await put_on(world, "chaos_mesh.pod_failure", {})
        kubernetes.ready("consul-1", ready=False)
        return await fault.verify(undo, present=True)

    assert not run(seen()).ok


def test_another_pod_of_that_name_has_not_had_its_container_killed():
    async def seen():
        world, kubernetes = chaos_world()
        kubernetes.controller = "lies"
        fault, undo = await put_on(world, "chaos_mesh.container_kill", {})
        kubernetes.pods["consul-1"]["metadata"]["uid"] = "another"
        kubernetes.pods["consul-1"]["status"]["containerStatuses"][0]["restartCount"] = 7
        return await fault.verify(undo, present=True)

    assert not run(seen()).ok


@pytest.mark.lie
def test_netem_is_refused_before_anything_is_created_where_the_file_does_not_say_that_it_is_there():
    world, kubernetes = chaos_world(netem=False)
    for kind, params in CHAOS_MESH_CASES:
        if kind == "chaos_mesh.network.delay" or params.get("chaos") == "NetworkChaos":
            with pytest.raises(FaultError, match=r"nothing was applied: it needs netem .*cannot be deleted"):
                run(put_on(world, kind, params))
    assert kubernetes.objects == {}


def test_a_pod_that_comes_back_under_another_name_is_not_killed():
    world, _ = chaos_world(owner="ReplicaSet")
    with pytest.raises(FaultError, match="belongs to a ReplicaSet: only a StatefulSet brings it back"):
        run(put_on(world, "chaos_mesh.pod_kill", {}))


def test_a_container_that_is_not_there_is_told_with_those_that_are():
    world, _ = chaos_world()
    with pytest.raises(FaultError, match="the pod consul-1 has no container sidecar; it has: consul"):
        run(put_on(world, "chaos_mesh.container_kill", {"container": "sidecar"}))


def test_what_could_not_be_told_from_the_agent_as_it_is_is_refused():
    world, _ = chaos_world()
    for host in world.hosts.values():
        host.use(AgentApi).own_s = 0.15
    with pytest.raises(FaultError, match="takes 150ms for one answer as it is: a delay of 200ms could not be told"):
        run(put_on(world, "chaos_mesh.network.delay", {"delay": "200ms"}))
    world.hosts["consul-1"].process = None
    with pytest.raises(FaultError, match="does not answer as it is"):
        run(put_on(world, "chaos_mesh.physical.process", {}))


@pytest.mark.parametrize(
    ("kind", "params", "why"),
    [
        ("chaos_mesh.physical.process", {"signal": "KILL"}, "by `restart`"),
        ("chaos_mesh.physical.process", {"restart": "x"}, "goes on by itself"),
        ("chaos_mesh.physical.process", {"process": "consul; rm"}, "pattern"),
        ("chaos_mesh.network.delay", {"delay": "1ms"}, "from 20ms to 2s"),
        ("chaos_mesh.time", {"offset": "2s"}, "from 5s to 24h: answers say whole seconds"),
        ("chaos_mesh.time", {"offset": "48h"}, "from 5s to 24h"),
        ("chaos_mesh.http.delay", {"delay": "5s"}, "from 20ms to 2s"),
        ("chaos_mesh.resource", {"chaos": "PodChoas", "spec": {}, "effect": "silent"}, "did you mean PodChaos"),
        ("chaos_mesh.resource", {"chaos": "Schedule", "spec": {}, "effect": "silent"}, "no kind of Chaos Mesh"),
        ("chaos_mesh.resource", {"chaos": "PodChaos", "spec": {"mode": "one"}, "effect": "silent"}, "`on` says whom"),
        ("chaos_mesh.resource", {"chaos": "PodChaos", "spec": {}, "effect": "slow"}, "`by` how much"),
        (
            "chaos_mesh.resource",
            {"chaos": "NetworkChaos", "spec": {"action": "partition", "direction": "to"}, "effect": "silent"},
            "a partition needs somebody on the other side: `target` or `externalTargets`",
        ),
        ("chaos_mesh.resource", {"chaos": "PodChaos", "spec": {"action": "pod-kill"}, "effect": "silent"}, "pod_kill"),
    ],
)
def test_parameters_that_cannot_be_are_told(kind, params, why):
    with pytest.raises(ValidationError, match=why):
        registry.fault(kind).Params.model_validate(params)


def test_a_clock_that_was_wrong_before_is_measured_from_there():
    """And one that is wrong the other way, or by half of it, is not what was asked for."""

    async def seen(skew_s):
        world, kubernetes = chaos_world()
        kubernetes.skew_s["consul-1"] = 3600.0
        fault = fault_of(world, "chaos_mesh.time", {"offset": "10m", "direction": "behind"})
        undo = await planned(fault, world.target("consul-1"), "0-x")
        kubernetes.skew_s["consul-1"] = 3600.0 + skew_s
        return (await fault.verify(undo, present=True)).ok

    assert [run(seen(skew_s)) for skew_s in (-600.0, 600.0, -300.0, 0.0)] == [True, False, False, False]


def test_an_agent_whose_answers_say_no_time_is_refused():
    world, _ = chaos_world()
    world.hosts["consul-1"].use(AgentApi).says_time = False
    with pytest.raises(FaultError, match="its answers say no time: that its clock goes wrong would not show"):
        run(put_on(world, "chaos_mesh.time", {"offset": "10m"}))


def test_the_finalizer_of_the_fake_is_the_real_ones_and_a_second_apply_creates_no_second_object():
    async def twice():
        world, kubernetes = chaos_world()
        fault, undo = await put_on(world, "chaos_mesh.pod_failure", {})
        await fault.apply(undo)
        return kubernetes.objects

    [made] = run(twice()).values()
    assert made["metadata"]["finalizers"] == [RECORDS]


def test_every_kind_has_a_case_and_its_rights():
    kinds = {kind for kind in registry.fault_kinds() if kind.startswith("chaos_mesh.")}
    assert {kind for kind, _ in CHAOS_MESH_CASES} == kinds
    for kind, params in CHAOS_MESH_CASES:
        rights = fault_of(None, kind, params).rights()
        by_writes = {"consul"} if kind == "chaos_mesh.io.latency" else set()
        assert {right.service for right in rights} == {"kubernetes"} | by_writes
        assert any(right.access == "create" for right in rights)


@pytest.mark.parametrize(("kind", "params"), CHAOS_MESH_CASES, ids=IDS)
def test_a_fault_uses_the_capabilities_that_it_declares_and_no_others(kind, params):
    world, _ = chaos_world()
    used = set()
    host = world.hosts["consul-1"]

    class Recorded(type(host)):
        def use(self, capability):
            used.add(capability)
            return super().use(capability)

    host.__class__ = Recorded
    fault = fault_of(world, kind, params)
    run(check_fault(fault, lambda: world.target("consul-1"), momentary=momentary(kind)))
    assert used == set(fault.requires().capabilities)
