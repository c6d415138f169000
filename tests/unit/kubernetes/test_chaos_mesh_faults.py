"""What the faults of Chaos Mesh refuse, what its objects hold, and what its status is worth."""

import anyio
import pytest
from pydantic import ValidationError

from external_faults import OWNED, chaos_world, put_on
from fault_cases import fault_of
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.capabilities import AgentApi, ChaosMachine
from hashidrill.kubernetes.chaos_mesh.objects import said_of
from virtual_time import run


@pytest.mark.lie
async def test_recovered_is_true_before_injection_too_and_counts_for_nothing():
    """The lie that a waiter for AllRecovered believes: the object is new, nothing was injected, and it "recovered"."""
    world, kubernetes = chaos_world()
    kubernetes.controller = "fails"
    fault, undo = await put_on(world, "chaos_mesh.physical.process", {})
    [made] = kubernetes.objects.values()
    said = {one["type"]: one["status"] for one in made["status"]["conditions"]}
    gone = await fault.verify(undo, present=False)
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


async def test_an_object_has_one_target_and_a_duration_of_its_own():
    world, kubernetes = chaos_world()
    await put_on(world, "chaos_mesh.pod_failure", {})
    one = next(iter(kubernetes.objects.values()))
    assert one["spec"]["duration"] == "90s"
    assert one["spec"]["mode"] == "all"
    assert one["spec"]["selector"] == {"pods": {"consul": ["consul-1"]}}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["chaos_mesh.stress.cpu", "chaos_mesh.stress.memory"])
async def test_what_a_container_uses_is_read_from_cgroups_of_either_version(kind, version):
    world, kubernetes = chaos_world()
    kubernetes.cgroup = version
    fault, undo = await put_on(world, kind, {} if "cpu" in kind else {"size": "128MiB"})
    evidence = await fault.verify(undo, present=True)
    assert evidence.ok
    assert evidence.measured == ("1.05 cores, 0.05 before" if "cpu" in kind else "157 MiB, 29 before")


async def test_a_container_that_shows_no_cgroup_is_refused_before_anything_is_created():
    world, kubernetes = chaos_world()
    kubernetes.cgroup = 3
    with pytest.raises(FaultError, match="does not let `cat` read its cgroup's files"):
        await put_on(world, "chaos_mesh.stress.cpu", {})
    assert kubernetes.left() == []


@pytest.mark.lie
async def test_an_agent_that_is_as_busy_or_a_link_that_is_as_slow_without_the_fault_is_refused():
    world, kubernetes = chaos_world()
    kubernetes.cores["consul-1"], kubernetes.bytes_per_s["consul-1"] = 0.6, 100_000
    with pytest.raises(FaultError, match="before the fault: 1 more would not show"):
        await put_on(world, "chaos_mesh.stress.cpu", {})
    with pytest.raises(FaultError, match="for 80000 bytes before the fault: 64kB/s would not show"):
        await put_on(world, "chaos_mesh.network.bandwidth", {"rate": "64KB/s"})


@pytest.mark.lie
@pytest.mark.parametrize("factor", [1 / 8, 8])
async def test_a_link_of_bits_for_bytes_or_the_reverse_proves_no_bandwidth(factor):
    world, kubernetes = chaos_world()
    fault, undo = await put_on(world, "chaos_mesh.network.bandwidth", {"rate": "64KB/s"})
    kubernetes.bytes_per_s["consul-1"] *= factor
    assert not (await fault.verify(undo, present=True)).ok


async def test_what_is_over_at_once_has_no_duration():
    world, kubernetes = chaos_world()
    await put_on(world, "chaos_mesh.pod_kill", {})
    assert "duration" not in next(iter(kubernetes.objects.values()))["spec"]


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


def test_a_kind_that_the_cluster_does_not_have_is_an_error():
    world, kubernetes = chaos_world()
    del kubernetes.definitions["podchaos"]
    with pytest.raises(FaultError, match=r"has no PodChaos of chaos-mesh\.org; is Chaos Mesh installed there\?"):
        run(put_on(world, "chaos_mesh.pod_failure", {}))
    kubernetes.definitions["podchaos"] = {"spec": {"versions": [{"name": "v1", "served": True}]}}
    with pytest.raises(FaultError, match=r"serves no PodChaos of chaos-mesh\.org/v1alpha1"):
        run(put_on(world, "chaos_mesh.pod_failure", {}))


async def test_a_stuck_finalizer_is_told_with_the_commands_that_help_and_waits_no_longer_than_its_limit():
    world, kubernetes = chaos_world()
    fault, undo = await put_on(world, "chaos_mesh.network.delay", {"delay": "200ms"})
    kubernetes.controller = "stuck"
    with pytest.raises(FaultError) as stuck:
        await fault.revert(undo)
    assert "waited 30s for NetworkChaos hashidrill-run-1-0-x-" in str(stuck.value)
    assert "`kubectl --context staging -n consul annotate networkchaos hashidrill-run-1-0-x-" in str(stuck.value)
    assert "chaos-mesh.chaos-mesh.org/cleanFinalizer=forced`" in str(stuck.value)
    assert "podnetworkchaos" in str(stuck.value)


@pytest.mark.lie
async def test_a_dead_controller_is_waited_for_once_and_told_of_meanwhile_however_often_the_engine_tries():
    """Three tries, and three more without load, waited 30 s each: the run took 200 s to end with 4."""
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
    took_s = anyio.current_time() - began_s
    assert took_s < 60
    assert all("annotate physicalmachinechaos" in error for error in errors)
    assert [error.partition(" for ")[0] for error in errors] == ["waited 30s", *["waited 5s"] * 5]
    assert len(told) == 1, "once, and not at each try"
    assert "still exists 5s after it was deleted: it is being deleted, and its controller says AllInjected" in told[0]
    assert told[0].endswith("waiting for up to 30s")


async def test_a_controller_that_comes_back_lets_the_next_try_succeed():
    world, kubernetes = chaos_world()
    fault, undo = await put_on(world, "chaos_mesh.physical.process", {})
    kubernetes.controller = "stuck"
    with pytest.raises(FaultError):
        await fault.revert(undo)
    kubernetes.controller = "works"
    await fault.revert(undo)
    assert (await fault.verify(undo, present=False)).ok
    assert kubernetes.objects == {}


async def test_an_object_that_is_still_there_is_not_proven_gone_though_its_effect_is():
    world, kubernetes = chaos_world()
    fault, undo = await put_on(world, "chaos_mesh.physical.process", {})
    kubernetes.expire()
    gone = await fault.verify(undo, present=False)
    assert not gone.ok
    assert "PhysicalMachineChaos hashidrill-run-1" in gone.measured


async def test_a_pod_that_is_not_ready_while_its_agent_answers_has_not_failed():
    world, kubernetes = chaos_world()
    kubernetes.controller = "lies"
    fault, undo = await put_on(world, "chaos_mesh.pod_failure", {})
    kubernetes.ready("consul-1", ready=False)
    assert not (await fault.verify(undo, present=True)).ok


async def test_another_pod_of_that_name_has_not_had_its_container_killed():
    world, kubernetes = chaos_world()
    kubernetes.controller = "lies"
    fault, undo = await put_on(world, "chaos_mesh.container_kill", {})
    kubernetes.pods["consul-1"]["metadata"]["uid"] = "another"
    kubernetes.pods["consul-1"]["status"]["containerStatuses"][0]["restartCount"] = 7
    assert not (await fault.verify(undo, present=True)).ok


def test_a_container_that_is_not_there_is_told_with_those_that_are():
    world, _ = chaos_world()
    with pytest.raises(FaultError, match="the pod consul-1 has no container sidecar; it has: consul"):
        run(put_on(world, "chaos_mesh.container_kill", {"container": "sidecar"}))


def test_what_could_not_be_told_from_the_agent_as_it_is_is_refused():
    world, _ = chaos_world()
    for host in world.hosts.values():
        host.use(AgentApi).own_s = 0.15
    with pytest.raises(FaultError, match="150ms for one answer before the fault: a delay of 200ms would not show"):
        run(put_on(world, "chaos_mesh.network.delay", {"delay": "200ms"}))
    world.hosts["consul-1"].process = None
    with pytest.raises(FaultError, match="does not answer even before the fault"):
        run(put_on(world, "chaos_mesh.physical.process", {}))


@pytest.mark.parametrize(
    ("kind", "params", "why"),
    [
        ("chaos_mesh.physical.process", {"signal": "KILL"}, "with `restart`"),
        ("chaos_mesh.physical.process", {"restart": "x"}, "is continued, not restarted"),
        ("chaos_mesh.physical.process", {"process": "consul; rm"}, "pattern"),
        ("chaos_mesh.network.delay", {"delay": "1ms"}, "from 20ms to 2s"),
        ("chaos_mesh.time", {"offset": "2s"}, "from 5s to 24h: answers give whole seconds"),
        ("chaos_mesh.time", {"offset": "48h"}, "from 5s to 24h"),
        ("chaos_mesh.http.delay", {"delay": "5s"}, "from 20ms to 2s"),
        ("chaos_mesh.resource", {"chaos": "PodChoas", "spec": {}, "effect": "silent"}, "did you mean PodChaos"),
        ("chaos_mesh.resource", {"chaos": "Schedule", "spec": {}, "effect": "silent"}, "is not a kind of Chaos Mesh"),
        ("chaos_mesh.resource", {"chaos": "PodChaos", "spec": {"mode": "one"}, "effect": "silent"}, "`on` names"),
        ("chaos_mesh.resource", {"chaos": "PodChaos", "spec": {}, "effect": "slow"}, "needs `by`"),
        (
            "chaos_mesh.resource",
            {"chaos": "NetworkChaos", "spec": {"action": "partition", "direction": "to"}, "effect": "silent"},
            "a partition needs another side: `target` or `externalTargets`",
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
    with pytest.raises(FaultError, match="its answers have no Date header: a wrong clock would not show"):
        run(put_on(world, "chaos_mesh.time", {"offset": "10m"}))
