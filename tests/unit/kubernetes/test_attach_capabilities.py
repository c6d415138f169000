"""Which host is which pod or machine, what that adds to it, and what heal finds there by labels alone."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from attached_estates import FakeEstate, attach_file
from external_faults import OWNED, litmus_world
from fake_kubernetes import FakeKubernetes
from fake_litmus import FakeLitmus
from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.library import read_experiment
from hashidrill.core.protocols.capabilities import ChaosMachine, ChaosPod, LitmusNode, LitmusPod, NodeStatus, PodStatus
from hashidrill.core.protocols.rights import Right
from hashidrill.faces.cli.app import app
from hashidrill.kubernetes.attach_capabilities import held, look
from hashidrill.kubernetes.chaos_mesh.objects import of_pod
from hashidrill.kubernetes.rbac import policy
from hashidrill.kubernetes.vocabulary import CHAOS, one
from hashidrill.staging.attach.discovery import discover
from hashidrill.staging.attach.interlocks import names_of
from hashidrill.staging.attach.target import AttachTarget, read_target
from hashidrill.staging.runs.attach_limits import lacking, possible_kinds
from hashidrill.staging.runs.heal_attached import heal_attached
from virtual_time import ran, run

BODY = '  consul: {address: "http://10.73.0.11:8500", token_file: token}\n'
EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: pods, title: Pods, why: because}
datacenter: {consul: {servers: 3}}
load: {kv-writes: {kind: consul.kv.write, rate: 5/s}}
steady_state: {require: ['raft.leader >= 0']}
method: [{fault: %s, on: 'consul:leader', for: 5s}]
expect: [{no_acknowledged_write_lost: {load: kv-writes}}]
"""


class There:
    """An estate of Consul whose first two servers are pods, and whose client has a chaosd."""

    fake_kubernetes, pods = FakeKubernetes, ("consul-1", "consul-2")

    def __init__(
        self, folder, services="kubernetes: {kubeconfig: kube, chaosd: {client-1: 'http://10.73.0.31:31767'}}"
    ):
        self.fake = FakeEstate()
        self.kubernetes = self.fake_kubernetes(self.fake.world, pods=self.pods)
        self.target = read_target(attach_file(folder, f"{BODY}services: {{{services}}}\n"), {})
        self.wires = self.fake.wires(self.target)

    def estate(self):
        return run(discover(self.target, self.wires))

    def offers(self):
        return run(look(self.target, self.estate(), self.kubernetes.cluster))

    @ran
    async def held(self, **more):
        """What each host has during a run."""
        settings = {"deadline_s": 60.0, "tell": [].append, "who": "me", "run": "run-7", **more}
        estate, connect = await discover(self.target, self.wires), self.kubernetes.cluster
        async with held(self.target, estate, self.wires, connect=connect, **settings) as found:
            return found

    def heal(self, runs=()):
        self.told = []

        async def found(_target, _stack):
            return await discover(self.target, self.wires), self.wires

        return run(heal_attached(self.target, runs, self.told.append, look=found, connect=self.kubernetes.cluster))


class Litmus(There):
    """An estate of Consul whose first server is a pod, in a cluster with Litmus."""

    fake_kubernetes, pods = FakeLitmus, ("consul-1",)

    def __init__(self, folder, more=""):
        super().__init__(folder, f"kubernetes: {{kubeconfig: kube{more}}}")


@pytest.fixture
def there(tmp_path):
    return There(tmp_path)


@pytest.fixture
def litmus(tmp_path):
    return Litmus(tmp_path)


def test_each_host_is_offered_what_its_pod_or_its_chaosd_allows(there):
    offers = there.offers()
    assert offers["consul-1"].capabilities == {ChaosPod, LitmusNode, LitmusPod, NodeStatus, PodStatus}
    assert offers["client-1"].capabilities == {ChaosMachine}
    assert offers["consul-3"].capabilities == set()
    assert offers["consul-1"].said == "pod consul-1 in consul"
    assert offers["consul-3"].said == "no pod there has the name consul-3 or the address 10.73.0.13"
    assert "names no chaosd" in offers["consul-3"].lacks[ChaosMachine]


def test_a_pod_of_another_name_is_found_by_its_address_unless_two_have_it(there):
    there.kubernetes.pods["consul-server-0"] = there.kubernetes.pods.pop("consul-1")
    there.kubernetes.pods["consul-server-0"]["metadata"]["name"] = "consul-server-0"
    assert there.offers()["consul-1"].said == "pod consul-server-0 in consul"
    there.kubernetes.pods["consul-2"]["status"]["podIP"] = "10.73.0.11"
    assert "the pods consul-2, consul-server-0 all have the address" in there.offers()["consul-1"].said


def test_what_is_held_names_the_run_and_how_long_it_may_last(there):
    found = there.held()
    names, owned = {name: set(one) for name, one in found.items()}, found["consul-1"][ChaosPod].owned
    assert names["consul-1"] == {ChaosPod, LitmusNode, LitmusPod, NodeStatus, PodStatus}
    assert names["client-1"] == {ChaosMachine}
    assert (owned.run, owned.datacenter, owned.who, owned.duration) == ("run-7", "staging", "me", "60s")


def test_doctor_and_validation_know_which_faults_can_be_there(there, tmp_path):
    kinds = possible_kinds(there.target, there.estate(), there.offers())
    assert (kinds["chaos_mesh.pod_failure"], kinds["chaos_mesh.physical.process"]) == ("", "")
    path = tmp_path / "x.yaml"
    path.write_text(EXPERIMENT % "chaos_mesh.pod_failure")
    reasons = lacking(read_experiment(path), there.target, there.estate(), path=path, offers=there.offers())
    assert "its host consul-3 lacks ChaosPod, PodStatus: no pod there has the name consul-3" in reasons[0]


def test_a_file_without_kubernetes_is_asked_nothing_of_it(tmp_path):
    there = There(tmp_path, "")
    assert there.target.kubernetes == {}
    assert there.offers() == {}
    assert there.kubernetes.asked == []
    assert "no host has" in possible_kinds(there.target, there.estate())["chaos_mesh.pod_kill"]


def test_a_chaosd_on_a_host_that_is_not_there_is_told(tmp_path):
    there = There(tmp_path, "kubernetes: {kubeconfig: kube, chaosd: {clint-1: 'http://10.0.0.1:31767'}}")
    with pytest.raises(AttachError, match=r"services\.kubernetes\.chaosd: there is no host 'clint-1'; there are: c"):
        there.offers()


@pytest.mark.lie
def test_to_take_faults_back_a_chaosd_may_be_on_a_host_that_its_fault_took_out_of_the_membership(tmp_path):
    there = There(tmp_path, "kubernetes: {kubeconfig: kube, chaosd: {clint-1: 'http://10.0.0.1:31767'}}")
    there.target = replace(there.target, undoing=True)
    assert set(there.offers()) == set(there.estate().hosts)


def test_a_cluster_that_refuses_is_told_before_a_run(there):
    there.kubernetes.refuses["GET", "pods"] = 403
    with pytest.raises(AttachError, match=r"staging\.yaml: services\.kubernetes: .*list Pod: .*acl kubernetes"):
        there.offers()


@pytest.mark.lie
def test_the_engine_gets_it_and_interlocks_see_its_names(tmp_path):
    (tmp_path / "kube").write_text(
        "{current-context: prod-eu, contexts: [{name: prod-eu, context: {cluster: c, user: u, namespace: live}}],"
        " clusters: [{name: c, cluster: {server: 'https://api.production.example:6443'}}], users: []}"
    )
    there = There(tmp_path)
    target = AttachTarget.received(json.loads(json.dumps(there.target.handed_over())))
    assert target.kubernetes == there.target.kubernetes
    names = {one.name for one in names_of(target, there.estate())}
    assert {"prod-eu", "live", "api.production.example"} <= names


@ran
async def left(there, name="0-x", run_id="run-1"):
    """An object that a run of ours left, whose recording is nowhere."""
    part = of_pod(there.kubernetes.cluster(), OWNED, "consul-1", netem=True)
    await part.create(part.object_of("PodChaos", name), {"action": "pod-failure"}, once=False)


def test_an_object_that_nobody_has_the_recording_of_is_removed_by_heal(there):
    left(there)
    by_others = {"metadata": {"name": "theirs", "labels": {"app.kubernetes.io/managed-by": "helm"}}, "kind": "PodChaos"}
    there.kubernetes.objects["podchaos", "theirs"] = by_others
    elsewhere = {
        "metadata": {
            "name": "prod",
            "labels": {"app.kubernetes.io/managed-by": "hashidrill", "hashidrill/datacenter": "another"},
        }
    }
    there.kubernetes.objects["podchaos", "prod"] = elsewhere
    [done] = there.heal()
    assert done.cleaned == [f"PodChaos {OWNED.named('0-x')}"]
    assert done.left == []
    assert set(there.kubernetes.objects) == {("podchaos", "theirs"), ("podchaos", "prod")}
    kv = there.fake.world.consul.kv.entries
    lines = [json.loads(entry.value) for key, entry in kv.items() if key.startswith("hashidrill-audit/heal/")]
    assert [line["verb"] for line in lines] == ["clean-up"]
    assert there.heal() == []


@pytest.mark.lie
def test_heal_needs_no_more_than_the_role_of_an_experiment_and_says_what_it_does_not_see(there):
    """That role reads the definitions of its own kinds, and lists these: an API server refuses all others."""
    left(there)
    for kind in CHAOS:
        if kind != "PodChaos":
            there.kubernetes.refuses["GET", kind.lower()] = 403
    there.kubernetes.refuses["GET", "customresourcedefinitions"] = 403
    [done] = there.heal()
    assert done.cleaned == [f"PodChaos {OWNED.named('0-x')}"]
    assert done.left == []
    [told] = [one for one in there.told if "may not list" in one]
    assert "NetworkChaos" in told
    assert "PodChaos" not in told


@pytest.mark.lie
def test_a_login_that_sees_no_kind_at_all_has_not_looked(there):
    left(there)
    for kind in CHAOS:
        there.kubernetes.refuses["GET", kind.lower()] = 403
    [done] = there.heal()
    assert "is forbidden" in done.left[0]
    assert len(there.kubernetes.objects) == 1


def test_a_kind_that_cannot_be_listed_for_another_reason_is_no_clean_datacenter(there):
    there.kubernetes.refuses["GET", "networkchaos"] = 500
    [done] = there.heal()
    assert "list NetworkChaos" in done.left[0]


@pytest.mark.lie
def test_a_cluster_that_is_away_keeps_nobody_from_taking_back_the_rest(there):
    there.kubernetes.refuses["GET", "pods"] = 503
    told = []

    assert all(one == {} for one in there.held(undoing=True, tell=told.append).values())
    assert "no object of Chaos Mesh or Litmus is deleted" in told[0]
    with pytest.raises(AttachError, match="list Pod"):
        there.held()


def test_what_was_aimed_at_a_pod_that_is_gone_can_still_be_taken_back(there):
    left(there)
    there.kubernetes.pods.clear()

    async def taken():
        async with held(
            there.target,
            await discover(there.target, there.wires),
            there.wires,
            deadline_s=1.0,
            tell=[].append,
            undoing=True,
            connect=there.kubernetes.cluster,
        ) as found:
            made = {"kind": "PodChaos", "name": OWNED.named("0-x"), "namespace": "consul"}
            await found["consul-1"][ChaosPod].remove(made)

    there.kubernetes.controller = "absent"  # the fake's controller looks for the pod
    for made in there.kubernetes.objects.values():
        made["metadata"].pop("finalizers")
    run(taken())
    assert there.kubernetes.objects == {}


def test_one_whose_finalizer_is_stuck_is_left_with_the_command_that_helps(there):
    left(there)
    there.kubernetes.controller = "stuck"
    [done] = there.heal()
    assert done.cleaned == []
    assert "cleanFinalizer=forced" in done.left[0]


def test_objects_stay_while_a_run_goes_on_that_they_may_belong_to(there):
    left(there)
    consul, lock = there.fake.world.consul, "hashidrill-interlocks/lock"
    session = consul.make_session("consul-1", "hashidrill", lock)
    value = json.dumps({"held_by": "ben", "run": "run-9", "experiment": "slow", "since": "12:00"}).encode()
    consul.answer(there.fake.world.hosts["consul-1"], "PUT", f"/v1/kv/{lock}", {"acquire": session}, value)
    [done] = there.heal()
    assert "another game day holds" in done.left[0]
    assert len(there.kubernetes.objects) == 1


def test_a_policy_has_a_rule_for_each_right_and_nothing_more():
    rights = [
        Right("kubernetes", "pods", access="get"),
        Right("kubernetes", "pods", access="list"),
        Right("kubernetes", "podchaos.chaos-mesh.org", access="create"),
        Right("kubernetes", "customresourcedefinitions.apiextensions.k8s.io", "podchaos.chaos-mesh.org", "get"),
    ]
    text = policy(rights, dict.fromkeys(rights, "for chaos_mesh.pod_kill"))
    role, cluster = text.split("---\n")
    assert '  - apiGroups: [""]\n    resources: [pods]\n    verbs: [get, list]\n' in role
    assert '  - apiGroups: ["chaos-mesh.org"]\n    resources: [podchaos]\n    verbs: [create]\n' in role
    assert "kind: ClusterRole" in cluster
    assert "resourceNames: [podchaos.chaos-mesh.org]\n    verbs: [get]" in cluster
    assert "*" not in text
    assert text.count("# for chaos_mesh.pod_kill") == 3
    assert policy([], {}) == ""


# Litmus


def left_engine(there):
    """An engine that a run of ours left, whose recording is nowhere."""
    world, _ = litmus_world(there.fake.world)
    part = world.hosts["consul-1"].use(LitmusPod)
    object.__setattr__(part, "cluster", there.kubernetes.cluster())
    spec = {"experiments": [one("pod-cpu-hog", {"CPU_CORES": "1"})]}
    run(part.create(part.object_of("ChaosEngine", "0-x"), spec, once=False))


def test_a_host_that_is_a_pod_can_be_broken_by_litmus_and_others_cannot(litmus):
    offers = run(look(litmus.target, litmus.estate(), litmus.kubernetes.cluster))
    assert LitmusPod in offers["consul-1"].capabilities
    assert LitmusPod not in offers["consul-2"].capabilities
    assert "no pod there has the name consul-2" in offers["consul-2"].lacks[LitmusPod]
    kinds = possible_kinds(litmus.target, litmus.estate(), offers)
    assert {why for kind, why in kinds.items() if kind.startswith("litmus.")} == {""}


def test_experiments_run_as_the_account_that_the_attach_file_names(tmp_path):
    assert Litmus(tmp_path).held()["consul-1"][LitmusPod].account == "litmus-admin"
    assert Litmus(tmp_path, ", litmus_account: chaos").held()["consul-1"][LitmusPod].account == "chaos"


def test_an_engine_that_nobody_has_the_recording_of_is_removed_by_heal_with_all_that_runs_for_it(litmus):
    left_engine(litmus)
    by_others = {"metadata": {"name": "theirs", "labels": {"app.kubernetes.io/managed-by": "helm"}}, "spec": {}}
    litmus.kubernetes.objects["chaosengines", "theirs"] = by_others
    [done] = litmus.heal()
    assert done.cleaned == [f"ChaosEngine {OWNED.named('0-x')}"]
    assert litmus.kubernetes.left() == [("chaosengines", "theirs")]
    assert litmus.heal() == []


def test_an_engine_whose_finalizer_is_stuck_is_left_with_the_command_that_helps(litmus):
    left_engine(litmus)
    litmus.kubernetes.controller = "stuck"
    [done] = litmus.heal()
    assert done.cleaned == []
    assert '"finalizers":null' in done.left[0]


def test_a_role_for_one_injector_heals_what_it_left_and_says_what_it_cannot_see(litmus):
    left_engine(litmus)
    for kind in litmus.kubernetes.definitions:
        if kind.endswith("chaos"):
            litmus.kubernetes.refuses["GET", kind] = 403
    [done] = litmus.heal()
    assert done.cleaned == [f"ChaosEngine {OWNED.named('0-x')}"]
    litmus.kubernetes.refuses["GET", "chaosengines"] = 403
    [done] = litmus.heal()
    assert "is forbidden" in done.left[0]


def test_the_role_has_a_rule_for_each_thing_that_litmus_is_asked_for(tmp_path):
    path = tmp_path / "pods.yaml"
    path.write_text(EXPERIMENT % "litmus.pod_http_reset_peer")
    said = CliRunner().invoke(app, ["staging", "acl", "kubernetes", str(path)]).stdout
    assert "resources: [chaosengines]\n    verbs: [create, delete, get, list, patch]" in said
    assert "resources: [chaosexperiments]\n    verbs: [get]" in said
    assert "resources: [chaosresults]\n    verbs: [delete, list]" in said
    assert "resources: [pods]\n    verbs: [list]" in said
    assert "resourceNames: [chaosengines.litmuschaos.io]\n    verbs: [get]" in said
    assert "nodes" not in said, "only where a node is drained"
    path.write_text(path.read_text().replace("pod_http_reset_peer", "node_drain"))
    drains = CliRunner().invoke(app, ["staging", "acl", "kubernetes", str(path)]).stdout
    assert 'apiGroups: [""]\n    resources: [nodes]\n    verbs: [get]' in drains.partition("kind: ClusterRole")[2]
    assert "*" not in said
    assert json.dumps("") not in said.replace('apiGroups: [""]', "")
