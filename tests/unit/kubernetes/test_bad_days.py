"""What goes wrong with a cluster before and during a run: one clear message, the right exit code, and nothing left.

Rows plant one trouble each in the API server in memory. Of the same troubles, `tests/contract/kubernetes` has what a
real one does. A controller that injects nothing, and an object that cannot go, are in test_external_faults.py; pods
that are not ready or of two releases in test_agents_in_pods.py; two runs at once in the tests of the lock.
"""

import re

import anyio
import pytest

from engine_game import Datacenter, Game
from external_faults import CHAOS_MESH, LITMUS, SYSTEMS
from fault_cases import fault_of
from hashidrill.core.engine.run import EXIT_CODES

METHODS = {"create": "POST", "delete": "DELETE", "patch": "PATCH"}
RESOURCES = {CHAOS_MESH.name: "physicalmachinechaos", LITMUS.name: "chaosengines"}
ENDS = "unable to create new content in namespace consul because it is being terminated"


def played(path, system, trouble, *, kind="", after_s=0.0):
    """(the game, its cluster, its exit code), with the trouble from the beginning or some seconds into the method."""
    world, kubernetes = system.world(Datacenter())
    one = Game(path, [{"fault": kind or system.silent, "on": "consul:leader", "for": "20s"}], world=world)

    async def later(_traffic):
        await anyio.sleep(after_s)
        trouble(kubernetes)

    if not after_s:
        trouble(kubernetes)
    code = EXIT_CODES[one.run(during=later) if after_s else one.run()]
    return one.error, kubernetes, code


def rights(system):
    return {(one.access, one.resource) for one in fault_of(None, system.silent, {}).rights()}


@pytest.mark.lie
@pytest.mark.parametrize(
    ("system", "verb", "resource"),
    [pytest.param(one, *right, id=":".join(right)) for one in SYSTEMS for right in sorted(rights(one))],
)
def test_a_role_that_lacks_one_verb_is_told_before_anything_is_created(system, verb, resource, tmp_path):
    """Without `delete` the object would be created, and stay: a server that is asked says so beforehand."""

    def lacks(kubernetes):
        kubernetes.refuses[METHODS.get(verb, "GET"), resource.partition(".")[0]] = 403

    told, kubernetes, code = played(tmp_path, system, lacks)
    assert (code, kubernetes.left()) == (3, [])
    assert "nothing was applied" in told
    assert verb in told or "CustomResourceDefinition" in told
    assert "`hashidrill staging acl kubernetes EXPERIMENT` prints the role that allows it" in told


def test_every_right_that_is_lacking_is_told_at_once(tmp_path):
    def lacks(kubernetes):
        kubernetes.refuses |= {(method, RESOURCES["litmus"]): 403 for method in METHODS.values()}

    told, _, _ = played(tmp_path, LITMUS, lacks)
    of = "chaosengines.litmuschaos.io"
    assert f"we may not create {of}, delete {of}, patch {of} in namespace consul" in told


def says(status, text=""):
    def trouble(kubernetes):
        kubernetes.refuses |= {("POST", resource): status for resource in RESOURCES.values()}
        kubernetes.says = text

    return trouble


def silent(kubernetes):
    kubernetes.silent_s = 30.0


def unknown(kubernetes):
    kubernetes.token = "of somebody else"


def uninstalled(kubernetes):
    kubernetes.definitions.clear()


def of_another_version(kubernetes):
    for one in kubernetes.definitions.values():
        one["spec"]["versions"][0]["name"] = "v2"


def not_ready(kubernetes):
    for pod in kubernetes.pods:
        kubernetes.ready(pod, ready=False)


BEFORE = {
    "admission": (says(403, 'webhook "x" denied the request: no chaos on Fridays'), "denied the request: no chaos on"),
    "quota": (says(403, "exceeded quota: chaos, used: 3, limited: 3"), "exceeded quota: chaos"),
    "namespace ends": (says(403, ENDS), "terminated: the namespace is being deleted"),
    "silent": (silent, "read CustomResourceDefinition .*no answer within 10s"),
    "login": (unknown, "not accept our login; log in again with `kubectl --context staging -n consul get pods`"),
    "uninstalled": (uninstalled, "is (Chaos Mesh|Litmus) installed there?"),
    "version": (of_another_version, "serves no .*, the version that hashidrill uses"),
}


@pytest.mark.parametrize("system", SYSTEMS, ids=repr)
@pytest.mark.parametrize(("trouble", "said"), BEFORE.values(), ids=BEFORE)
def test_what_is_wrong_before_a_fault_is_told_and_nothing_is_left(system, trouble, said, tmp_path):
    told, kubernetes, code = played(tmp_path, system, trouble)
    assert (code, kubernetes.left()) == (3, [])
    assert re.search(said, told), told


DURING = {"silent": (silent, "no answer within 10s"), "login": (unknown, "log in again with")}


@pytest.mark.parametrize("system", SYSTEMS, ids=repr)
@pytest.mark.parametrize(("trouble", "said"), DURING.values(), ids=DURING)
def test_a_server_that_is_lost_during_a_fault_ends_the_run_with_four(system, trouble, said, tmp_path):
    """The object is there and cannot be deleted. Its own duration ends its effect; heal deletes it."""
    told, kubernetes, code = played(tmp_path, system, trouble, after_s=6.0)
    assert code == 4
    assert said in told
    assert RESOURCES[system.name] in {plural for plural, _ in kubernetes.objects}


def slow(kubernetes):
    kubernetes.silent_s = 3.0


@pytest.mark.parametrize("system", SYSTEMS, ids=repr)
def test_a_slow_server_costs_time_and_no_verdict(system, tmp_path):
    _, kubernetes, code = played(tmp_path, system, slow)
    assert (code, kubernetes.left()) == (0, [])


@pytest.mark.lie
@pytest.mark.parametrize("system", SYSTEMS, ids=repr)
def test_a_namespace_that_is_deleted_under_a_fault_is_no_fault_that_lasted(system, tmp_path):
    world, kubernetes = system.world(Datacenter())
    one = Game(tmp_path, [{"fault": system.silent, "on": "consul:leader", "for": "20s"}], world=world)

    async def deleted(_traffic):
        await anyio.sleep(6)
        kubernetes.expire()
        for things in (kubernetes.objects, kubernetes.pods, kubernetes.namespaces):
            things.clear()

    one.run(during=deleted)
    [faded] = [entry for entry in one.journal if entry.event == "fault.faded"]
    assert faded.data["evidence"]["measured"] == "consul answers; there is no object of ours"
    assert "fault.gone" in one.events
    assert kubernetes.left() == []


KILLS = [(CHAOS_MESH, "chaos_mesh.pod_kill"), (LITMUS, "litmus.pod_delete")]


@pytest.mark.parametrize(("system", "kind"), KILLS)
def test_a_pod_that_never_becomes_ready_again_is_an_effect_that_is_not_gone(system, kind, tmp_path):
    told, kubernetes, code = played(tmp_path, system, not_ready, kind=kind, after_s=6.0)
    assert (code, kubernetes.left()) == (4, [])
    assert "expected the pod is ready, and no object of ours; measured the pod is not ready" in told


@pytest.mark.parametrize(("system", "kind"), KILLS)
def test_a_pod_that_is_not_ready_is_not_killed(system, kind, tmp_path):
    told, kubernetes, code = played(tmp_path, system, not_ready, kind=kind)
    assert (code, kubernetes.left()) == (3, [])
    assert "is not ready before the fault; find out why" in told
