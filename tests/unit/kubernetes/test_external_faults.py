"""Faults of Chaos Mesh and Litmus keep their contract on a fake cluster, believe no status, and leave nothing."""

import anyio
import pytest

from engine_game import Datacenter, Game
from external_faults import CHAOS_MESH, LITMUS, SYSTEMS, put_on
from fault_cases import fault_of, momentary
from hashidrill.core.engine.run import EXIT_CODES
from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.testing.faults import check_fault

EVERY_CASE = pytest.mark.parametrize(
    ("system", "kind", "params"),
    [
        pytest.param(system, kind, params, id=f"{kind}-{number}")
        for system in SYSTEMS
        for number, (kind, params) in enumerate(system.cases)
    ],
)
EACH_SYSTEM = pytest.mark.parametrize("system", SYSTEMS, ids=repr)


async def checked(world, kind, params):
    fault = fault_of(world, kind, params)
    return fault, await check_fault(fault, lambda: world.target("consul-1"), momentary=momentary(kind))


@EVERY_CASE
async def test_a_fault_keeps_its_contract_within_its_declared_capabilities_and_rights(system, kind, params):
    """Each request of its whole life is one that the role of `staging acl kubernetes` allows."""
    world, kubernetes = system.world()
    used, host = set(), world.hosts["consul-1"]

    class Recorded(type(host)):
        def use(self, capability):
            used.add(capability)
            return super().use(capability)

    host.__class__ = Recorded
    fault, report = await checked(world, kind, params)
    assert report.present.ok
    assert report.gone.ok
    assert kubernetes.left() == []
    assert used == set(fault.requires().capabilities)
    allowed = {(right.resource.partition(".")[0], right.access) for right in fault.rights()}
    verbs = {"POST": "create", "DELETE": "delete", "PATCH": "patch"}
    for method, resource, name in kubernetes.asked:
        assert (resource, verbs.get(method) or ("get" if name else "list")) in allowed


@pytest.mark.lie
@EVERY_CASE
async def test_the_proof_fails_when_the_effect_is_taken_away_behind_its_back(system, kind, params):
    """The object and its status stay. What they claim is told, and not believed."""
    world, kubernetes = system.world()
    fault, undo = await put_on(world, kind, params)
    armed = await fault.verify(undo, present=True)
    system.disarm(kubernetes, undo)
    seen = await fault.verify(undo, present=True)
    assert armed.ok, armed
    assert system is CHAOS_MESH or "says Running, Awaited" in armed.figures["litmus"], "kept beside the proof"
    assert not seen.ok, seen
    assert system.claims in seen.measured


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize(
    ("system", "controller", "told"),
    [(system, mode, told) for system in SYSTEMS for mode, told in system.controllers.items()],
)
async def test_a_controller_that_injects_nothing_proves_nothing_and_says_why(system, controller, told):
    for kind, params in system.cases:
        world, kubernetes = system.world()
        kubernetes.controller = controller
        fault, undo = await put_on(world, kind, params)
        evidence = await fault.verify(undo, present=True)
        await fault.revert(undo)
        assert not evidence.ok, kind
        assert told in evidence.measured
        assert kubernetes.left() == []


@EACH_SYSTEM
async def test_every_object_names_our_run_its_owner_and_our_datacenter(system):
    world, kubernetes = system.world()
    _, undo = await put_on(world, system.silent, {})
    [made] = [one for one in kubernetes.objects.values() if one["metadata"]["name"] == undo["object"]["name"]]
    assert made["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "hashidrill",
        "hashidrill/run": "run-1",
        "hashidrill/datacenter": "staging",
    }
    assert made["metadata"]["annotations"]["hashidrill/owner"] == "amelie@laptop"


@EACH_SYSTEM
async def test_a_second_apply_creates_no_second_object(system):
    world, kubernetes = system.world()
    fault, undo = await put_on(world, system.silent, {})
    before = set(kubernetes.objects)
    await fault.apply(undo)
    assert set(kubernetes.objects) == before


@pytest.mark.lie
@EACH_SYSTEM
async def test_an_effect_that_outlives_its_object_is_not_proven_gone(system):
    """Deleted by force: the API server has forgotten the object, and the agent is still stopped."""
    world, kubernetes = system.world()
    fault, undo = await put_on(world, system.silent, {})
    kubernetes.objects.clear()
    if system is LITMUS:
        kubernetes.chaos_pods.clear()
    assert not (await fault.verify(undo, present=False)).ok


@pytest.mark.lie
@pytest.mark.parametrize(
    ("system", "kind"),
    [
        (CHAOS_MESH, "chaos_mesh.physical.process"),
        (CHAOS_MESH, "chaos_mesh.pod_failure"),
        (LITMUS, "litmus.pod_http_reset_peer"),
        (LITMUS, "litmus.pod_network_loss"),
    ],
)
async def test_our_own_broken_network_is_no_silent_agent(system, kind):
    world, kubernetes = system.world()
    kubernetes.controller = system.no_effect
    fault, undo = await put_on(world, kind, {})
    kubernetes.ready("consul-1", ready=False)
    for host in world.hosts.values():
        host.use(AgentApi).cut_off = True
    evidence = await fault.verify(undo, present=True)
    assert not evidence.ok
    assert "neither does any other" in evidence.measured


@pytest.mark.lie
@pytest.mark.parametrize(
    ("system", "kinds"),
    [
        (CHAOS_MESH, {"chaos_mesh.network.delay", "chaos_mesh.resource"}),
        (
            LITMUS,
            {*(f"litmus.pod_network_{what}" for what in ("latency", "loss", "corruption")), "litmus.experiment"},
        ),
    ],
)
async def test_netem_is_refused_before_anything_is_created_unless_the_file_says_that_it_is_there(system, kinds):
    world, kubernetes = system.world(netem=False)
    refused = set()
    for kind, params in system.cases:
        if fault_of(world, kind, params).by_netem:
            refused.add(kind)
            with pytest.raises(FaultError, match="nothing was applied: it needs netem"):
                await put_on(world, kind, params)
    assert kubernetes.left() == []
    assert refused == kinds


@pytest.mark.parametrize(("system", "kind"), [(CHAOS_MESH, "chaos_mesh.pod_kill"), (LITMUS, "litmus.pod_delete")])
async def test_a_pod_that_comes_back_under_another_name_is_not_deleted(system, kind):
    world, _ = system.world(owner="ReplicaSet")
    with pytest.raises(FaultError, match="belongs to a ReplicaSet: only a StatefulSet brings a pod back"):
        await put_on(world, kind, {})


@EACH_SYSTEM
def test_every_kind_has_a_case_and_its_rights(system):
    kinds = {kind for kind in registry.fault_kinds() if kind.startswith(f"{system.name}.")}
    assert {kind for kind, _ in system.cases} == kinds
    for kind, params in system.cases:
        rights = fault_of(None, kind, params).rights()
        by_writes = {"consul"} if kind == "chaos_mesh.io.latency" else set()
        assert {right.service for right in rights} == {"kubernetes"} | by_writes
        said = {(right.resource.partition(".")[0], right.access) for right in rights}
        if system is LITMUS:
            engines = {access for resource, access in said if resource == "chaosengines"}
            assert engines == {"create", "delete", "get", "list", "patch"}
            assert ("chaosexperiments", "get") in said
        assert any(access == "create" for _, access in said)


# whole runs


def game(path, system, kind, params, **world):
    world, kubernetes = system.world(Datacenter(), **world)
    step = {"fault": kind, "on": "consul:leader", "with": params, "for": "20s"}
    return Game(path, [step], world=world), kubernetes


@EVERY_CASE
def test_a_run_puts_it_on_proves_it_and_leaves_nothing(system, kind, params, tmp_path):
    one, kubernetes = game(tmp_path, system, kind, params)
    assert EXIT_CODES[one.run()] == 0, one.error
    assert [event for event in one.events if event in {"fault.proven", "fault.gone"}] == ["fault.proven", "fault.gone"]
    assert kubernetes.left() == []


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize(
    ("system", "kind", "controller"),
    [
        (system, kind, controller)
        for system, other in ((CHAOS_MESH, "chaos_mesh.pod_failure"), (LITMUS, "litmus.pod_delete"))
        for kind in (system.silent, other)
        for controller in system.controllers
    ],
)
def test_a_run_in_which_nothing_was_injected_is_invalid_whatever_a_status_says(system, kind, controller, tmp_path):
    one, kubernetes = game(tmp_path, system, kind, {})
    kubernetes.controller = controller
    assert EXIT_CODES[one.run()] == 3
    assert f"not proven in force within {fault_of(None, kind, {}).observed_within_s:g}s" in one.error
    assert kubernetes.left() == []


@pytest.mark.lie
@pytest.mark.parametrize(
    ("system", "helps"),
    [
        (CHAOS_MESH, "annotate physicalmachinechaos hashidrill-run-1"),
        (LITMUS, "patch chaosengine hashidrill-run-1"),
    ],
)
def test_an_object_that_cannot_go_ends_the_run_with_four_and_the_command_that_helps(system, helps, tmp_path):
    one, kubernetes = game(tmp_path, system, system.silent, {})

    async def then_stuck(_traffic):
        kubernetes.controller = "stuck"

    assert EXIT_CODES[one.run(during=then_stuck)] == 4
    told, *_ = [entry.data["error"] for entry in one.journal if entry.event == "fault.stuck"]
    assert helps in told
    first, *_, last = [entry.t_ns / 1e9 for entry in one.journal if entry.event in {"fault.still", "fault.stuck"}]
    assert system is LITMUS or last - first < 60, "it is not waited for anew at each try"


@EACH_SYSTEM
def test_an_interrupted_run_takes_its_object_with_it(system, tmp_path):
    one, kubernetes = game(tmp_path, system, system.silent, {})
    one.run(cancel_after_s=8)
    assert {"fault.proven", "fault.gone"} <= {*one.events}
    assert kubernetes.left() == []


@pytest.mark.lie
@EACH_SYSTEM
def test_a_fault_that_came_to_its_own_end_makes_the_run_invalid_though_its_status_stays(system, tmp_path):
    one, kubernetes = game(tmp_path, system, system.silent, {})

    async def over(_traffic):
        await anyio.sleep(6)
        kubernetes.expire()

    one.run(during=over)
    [faded] = [entry for entry in one.journal if entry.event == "fault.faded"]
    assert system.claims in faded.data["evidence"]["measured"]
    assert "fault.still" not in one.events
