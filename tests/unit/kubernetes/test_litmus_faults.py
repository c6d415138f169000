"""What the faults of Litmus refuse, what their engines hold, and what a ChaosResult is worth."""

import pytest
from pydantic import ValidationError

from external_faults import litmus_world, put_on
from fault_cases import fault_of
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.kubernetes.litmus import engines
from hashidrill.kubernetes.objects import ours, problems
from virtual_time import ran, run


@ran
async def made_by(kind, params):
    world, kubernetes = litmus_world()
    await put_on(world, kind, params)
    return next(one for (resource, _), one in kubernetes.objects.items() if resource == "chaosengines")


@pytest.mark.lie
async def test_a_history_that_stays_at_injected_counts_neither_as_in_force_nor_as_gone():
    world, kubernetes = litmus_world()
    kubernetes.controller = "passes"
    fault, undo = await put_on(world, "litmus.pod_http_reset_peer", {})
    present, gone = await fault.verify(undo, present=True), await fault.verify(undo, present=False)
    assert not present.ok
    assert "(history: injected)" in present.measured
    assert not gone.ok, "the engine is still there"


def test_an_engine_has_one_target_and_an_end_of_its_own():
    one = made_by("litmus.pod_http_reset_peer", {})
    assert one["spec"]["selectors"] == {"pods": [{"namespace": "consul", "names": "consul-1"}]}
    assert one["spec"]["chaosServiceAccount"] == "litmus-admin"
    env = {each["name"]: each["value"] for each in one["spec"]["experiments"][0]["spec"]["components"]["env"]}
    assert env["TOTAL_CHAOS_DURATION"] == "90"
    assert (env["TARGET_PODS"], env["NODE_LABEL"]) == ("", ""), "what the ChaosExperiment may have of its own"
    assert env["TARGET_SERVICE_PORT"] == "8500"
    assert all(isinstance(value, str) for value in env.values())


def test_what_is_over_at_once_is_done_once():
    env = made_by("litmus.pod_delete", {})["spec"]["experiments"][0]["spec"]["components"]["env"]
    said = {one["name"]: one["value"] for one in env}
    assert (said["TOTAL_CHAOS_DURATION"], said["CHAOS_INTERVAL"]) == ("1", "1")


def test_quantities_are_written_in_the_units_of_litmus():
    def env(kind, params):
        listed = made_by(kind, params)["spec"]["experiments"][0]["spec"]["components"]["env"]
        return {one["name"]: one["value"] for one in listed}

    assert env("litmus.pod_network_latency", {"delay": "0.2s"})["NETWORK_LATENCY"] == "200"
    assert env("litmus.pod_network_loss", {})["NETWORK_PACKET_LOSS_PERCENTAGE"] == "100"
    hog = env("litmus.pod_memory_hog", {"size": "1GiB", "effect": "restarted"})
    assert hog["MEMORY_CONSUMPTION"] == "1024"
    cpu = env("litmus.pod_cpu_hog", {"cores": 2, "load": "80%", "effect": "slow", "by": "300ms"})
    assert (cpu["CPU_CORES"], cpu["CPU_LOAD"]) == ("2", "80")


@pytest.mark.lie
def test_a_typo_in_a_field_of_an_engine_is_an_error_though_the_server_would_keep_it():
    world, kubernetes = litmus_world()
    definition = kubernetes.definitions["chaosengines"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = definition["properties"]["spec"]
    typo = {"engineState": "active", "chaosServiceAcount": "x"}
    assert list(problems(typo, spec)) == [], "as the server reads it"
    [told] = problems(typo, spec, closed=True)
    assert told == (
        "spec.chaosServiceAcount: the cluster's definition does not have it, and nothing would read it:"
        " did you mean chaosServiceAccount?"
    )
    del spec["properties"]["selectors"]
    with pytest.raises(
        FaultError, match=r"(?s)nothing was applied.*spec\.selectors: the cluster's definition does not"
    ):
        run(put_on(world, "litmus.pod_delete", {}))
    assert kubernetes.left() == []


@pytest.mark.lie
def test_a_typo_in_an_environment_is_an_error_and_creates_nothing():
    world, kubernetes = litmus_world()
    params = {"experiment": "pod-dns-error", "env": {"TARGET_HOSTNAME": "a"}, "effect": "silent"}
    with pytest.raises(FaultError, match=r"(?s)pod-dns-error does not list these.*did you mean TARGET_HOSTNAMES"):
        run(put_on(world, "litmus.experiment", params))
    assert kubernetes.left() == []


def test_an_experiment_that_is_not_installed_is_told_before_anything_is_created():
    world, kubernetes = litmus_world()
    del kubernetes.objects["chaosexperiments", "pod-delete"]
    with pytest.raises(FaultError, match="the namespace consul has no ChaosExperiment pod-delete, which Litmus would"):
        run(put_on(world, "litmus.pod_delete", {}))
    assert kubernetes.left() == []


def test_a_cluster_without_litmus_is_told():
    world, kubernetes = litmus_world()
    del kubernetes.definitions["chaosengines"]
    with pytest.raises(FaultError, match=r"has no ChaosEngine of litmuschaos\.io; is Litmus installed there\?"):
        run(put_on(world, "litmus.pod_delete", {}))


async def test_a_revert_stops_the_engine_before_it_deletes_it():
    world, kubernetes = litmus_world()
    fault, undo = await put_on(world, "litmus.pod_http_reset_peer", {})
    del kubernetes.asked[:]
    await fault.revert(undo)
    assert [one[:2] for one in kubernetes.asked if one[0] != "GET"] == [
        ("PATCH", "chaosengines"),
        ("DELETE", "chaosresults"),
        ("DELETE", "chaosengines"),
    ]


async def test_a_stuck_finalizer_is_told_with_the_commands_that_help_and_waits_no_longer_than_its_limit():
    world, kubernetes = litmus_world()
    fault, undo = await put_on(world, "litmus.pod_http_reset_peer", {})
    kubernetes.controller = "stuck"
    with pytest.raises(FaultError) as stuck:
        await fault.revert(undo)
    assert "waited 35s for the pods of ChaosEngine hashidrill-run-1-0-x-" in str(stuck.value)
    assert "pods of Litmus run for it" in str(stuck.value)
    assert "`kubectl --context staging -n consul delete jobs,pods -l chaosUID=uid-" in str(stuck.value)
    assert """--type merge -p '{"metadata":{"finalizers":null}}'`""" in str(stuck.value)


async def test_a_finalizer_that_stays_without_pods_is_told_with_the_commands_that_help():
    world, kubernetes = litmus_world()
    fault, undo = await put_on(world, "litmus.pod_http_reset_peer", {})
    kubernetes.controller = "stuck"
    kubernetes.chaos_pods.clear()
    with pytest.raises(FaultError, match=r"waited 8s for ChaosEngine hashidrill-run-1-0-x-.*it is being deleted, and"):
        await fault.revert(undo)


class Died(BaseException):
    """The runner, between two requests."""


@pytest.mark.long
@pytest.mark.parametrize("controller", ["works", "absent", "no-runner", "fails"])
def test_whenever_a_runner_dies_its_engine_is_found_by_its_labels_and_all_of_it_goes(controller):
    """At every moment of a fault's life: before each request that it makes, of each of its kinds of answers."""

    async def cut_off(requests):
        world, kubernetes = litmus_world()
        kubernetes.controller = controller
        fault = fault_of(world, "litmus.pod_http_reset_peer", {})
        undo = await planned(fault, world.target("consul-1"), "0-x")
        answer, before = kubernetes.answer, len(kubernetes.asked)

        def until_it_dies(*args, **kwargs):
            if len(kubernetes.asked) - before >= requests:
                raise Died
            return answer(*args, **kwargs)

        kubernetes.answer = until_it_dies
        died = False
        try:
            await fault.apply(undo)
            await fault.verify(undo, present=True)
            await fault.revert(undo)
        except Died:
            died = True
        kubernetes.answer = answer
        for _, name, _ in await ours(kubernetes.cluster(), engines.OBJECTS, "staging"):
            await engines.remove(kubernetes.cluster(), name)
        gone = await fault.verify(undo, present=False)
        return died, kubernetes.left(), gone.ok

    moments = []
    while not moments or moments[-1][0]:
        moments.append(run(cut_off(len(moments))))
    assert len(moments) > 6
    assert [(left, gone) for _, left, gone in moments if left or not gone] == []


@pytest.mark.lie
async def test_an_engine_that_was_deleted_by_force_is_not_gone_while_its_pods_run():
    """Its finalizer was taken away: the API server has forgotten it, and its experiment goes on."""
    world, kubernetes = litmus_world()
    fault, undo = await put_on(world, "litmus.pod_cpu_hog", {"effect": "slow", "by": "300ms"})
    del kubernetes.objects["chaosengines", undo["object"]["name"]]
    kubernetes.slow_s.clear()
    gone = await fault.verify(undo, present=False)
    assert not gone.ok
    assert "its engine is gone, and pods of Litmus run for it: hashidrill-run-1-0-x-" in gone.measured


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_a_helper_that_has_ended_keeps_no_engine(phase):
    """An experiment that fails leaves its helper pod behind: seen on a real node, where the revert waited for it."""
    world, kubernetes = litmus_world()
    fault, undo = await put_on(world, "litmus.pod_http_reset_peer", {})
    [helper] = kubernetes.chaos_pods.values()
    kubernetes.chaos_pods["helper"] = {**helper, "status": {"phase": phase}}
    await fault.revert(undo)
    assert "helper" in kubernetes.chaos_pods
    assert (await fault.verify(undo, present=False)).ok


def test_a_node_is_drained_only_where_the_file_allows_it_and_one_agent_is_there():
    world, kubernetes = litmus_world(drain=False)
    with pytest.raises(FaultError, match=r"`drain` of the attach file does not say"):
        run(put_on(world, "litmus.node_drain", {}))
    world, kubernetes = litmus_world()
    kubernetes.pods["consul-2"]["spec"]["nodeName"] = "node-of-consul-1"
    with pytest.raises(FaultError, match="the node node-of-consul-1 also runs consul-2: draining it would stop"):
        run(put_on(world, "litmus.node_drain", {}))
    assert kubernetes.left() == []


def test_a_node_that_somebody_else_cordoned_is_not_drained():
    world, kubernetes = litmus_world()
    kubernetes.cordoned.add("node-of-consul-1")
    with pytest.raises(FaultError, match="the node node-of-consul-1 of consul-1 is already cordoned"):
        run(put_on(world, "litmus.node_drain", {}))


@pytest.mark.lie
def test_what_drains_a_node_runs_on_another_that_accepts_pods():
    """On the node itself it would evict itself, and revert."""
    world, kubernetes = litmus_world()
    kubernetes.cordoned |= {"node-of-client-1", "node-of-consul-2"}
    run(put_on(world, "litmus.node_drain", {}))
    [engine] = [one for (resource, _), one in kubernetes.objects.items() if resource == "chaosengines"]
    away = {"kubernetes.io/hostname": "host-of-node-of-consul-3"}
    assert engine["spec"]["components"]["runner"]["nodeSelector"] == away
    assert [one["spec"]["components"]["nodeSelector"] for one in engine["spec"]["experiments"]] == [away]
    world, kubernetes = litmus_world()
    kubernetes.cordoned |= {f"node-of-{name}" for name in kubernetes.pods} - {"node-of-consul-1"}
    with pytest.raises(FaultError, match="Litmus's own pods would have to run on node-of-consul-1"):
        run(put_on(world, "litmus.node_drain", {}))
    assert kubernetes.left() == []


async def test_a_cordoned_node_is_not_drained_while_its_pod_stays_and_not_back_while_it_takes_none():
    world, kubernetes = litmus_world()
    kubernetes.controller = "passes"
    fault, undo = await put_on(world, "litmus.node_drain", {})
    kubernetes.cordoned.add("node-of-consul-1")
    present = await fault.verify(undo, present=True)
    await fault.revert(undo)
    gone = await fault.verify(undo, present=False)
    assert not present.ok
    assert not gone.ok
    assert "the node is cordoned" in gone.measured


def test_answers_that_are_so_already_are_refused():
    world, _ = litmus_world()
    with pytest.raises(FaultError, match="already answers with the status 200: the fault would not show"):
        run(put_on(world, "litmus.pod_http_status_code", {"code": 200}))


@pytest.mark.parametrize(
    ("kind", "params", "why"),
    [
        ("litmus.pod_network_latency", {"delay": "1ms"}, "from 20ms to 2s"),
        ("litmus.pod_network_loss", {"percent": "30%"}, "lost packets are not counted"),
        ("litmus.pod_io_stress", {}, "effect"),
        ("litmus.pod_memory_hog", {"size": "10MiB"}, "use 64MiB or more"),
        ("litmus.pod_cpu_hog", {"effect": "slow"}, "needs `by`"),
        ("litmus.pod_memory_hog", {"size": "1GiB", "effect": "silent", "by": "300ms"}, "no other effect has"),
        ("litmus.pod_memory_hog", {"size": "10B", "effect": "silent"}, "greater than or equal"),
        ("litmus.pod_http_status_code", {"code": 418}, "503"),
        ("litmus.pod_http_modify_body", {"body": 'a"; rm -rf /'}, "pattern"),
        ("litmus.pod_http_modify_header", {"header": "X Y", "value": "1"}, "pattern"),
        ("litmus.experiment", {"experiment": "node-drain", "effect": "silent"}, "hits a node and everything on it"),
        (
            "litmus.experiment",
            {"experiment": "pod-network-partition", "effect": "silent"},
            "hits every pod with the engine's label, or, if it has none, every pod of the namespace",
        ),
        ("litmus.experiment", {"experiment": "pod-autoscaler", "effect": "replaced"}, "hits every workload"),
        ("litmus.experiment", {"experiment": "x", "env": {"TARGET_PODS": "a"}, "effect": "silent"}, "`on` names"),
        (
            "litmus.experiment",
            {"experiment": "x", "env": {"TOTAL_CHAOS_DURATION": "9"}, "effect": "silent"},
            "the duration",
        ),
        ("litmus.experiment", {"experiment": "x", "env": {"A": 1}, "effect": "silent"}, "string"),
    ],
)
def test_parameters_that_cannot_be_are_told(kind, params, why):
    with pytest.raises(ValidationError, match=why):
        registry.fault(kind).Params.model_validate(params)
