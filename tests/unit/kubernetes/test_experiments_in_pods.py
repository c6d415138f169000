"""The experiments on pods, against a Kubernetes in memory: each is right, and each is planned as the doctor says."""

import json

import jsonschema
import pytest

from attached_estates import FakeEstate, attach_file, of_nomad, of_vault
from fake_kubernetes import FakeKubernetes, a_pod
from fake_litmus import FakeLitmus
from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.library import experiment_name, list_experiments, read_experiment
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.faces.cli.validate import _error_of
from hashidrill.kubernetes.attach_capabilities import located, look
from hashidrill.staging.attach.discovery import discover
from hashidrill.staging.attach.target import read_target
from hashidrill.staging.runs.attach_limits import lacking
from hashidrill.staging.runs.launch_attached import Attached
from hashidrill.testing.fakes import FakeDatacenter
from library_runs import OF_KUBERNETES
from places import ROOT
from virtual_time import run

PATHS = {experiment_name(path): path for path in list_experiments() if experiment_name(path).startswith("kubernetes/")}
SERVERS = ("consul-1", "consul-2", "consul-3")
LOCAL = {
    "consul-leader-pod-killed": "raft/killed-leader",
    "consul-server-partitioned": "network/partitioned-minority",
    "consul-io-latency": "raft/slow-leader-disk",
    "vault-active-pod-killed": "vault/killed-active",
}
"""Which experiment in a datacenter of ours is the same drill."""
ATTACH = (
    "  kubernetes: {kubeconfig: kube, context: staging, namespace: consul, netem: true, drain: true,"
    " consul: {token_file: token}, vault: {}, nomad: {servers: {app: nomad}}}\n"
)
CONSUL_ALONE = ATTACH.replace(", vault: {}, nomad: {servers: {app: nomad}}", "")
PLANNED = {
    "consul-leader-pod-killed": ("chaos_mesh.pod_kill", SERVERS),
    "consul-server-partitioned": ("chaos_mesh.network.partition", SERVERS),
    "consul-io-latency": ("chaos_mesh.io.latency", SERVERS),
    "vault-active-pod-killed": ("chaos_mesh.pod_kill", ("vault-1", "vault-2", "vault-3")),
    "nomad-leader-pod-killed": ("chaos_mesh.pod_kill", ("nomad-1", "nomad-2", "nomad-3")),
    "node-drain-with-quorum": ("litmus.node_drain", SERVERS),
    "clock-skew-on-leader": ("chaos_mesh.time", SERVERS),
}


def kubernetes_of(world):
    """Three servers each of Consul, Vault and Nomad that are pods."""
    fake = FakeLitmus(world, pods=SERVERS)
    labels = {"app.kubernetes.io/name": "vault", "component": "server"}
    for number in (1, 2, 3):
        active = {"vault-active": "true" if number == 2 else "false"}
        name = f"vault-{number}"
        fake.pods[name] = a_pod(name, f"10.73.0.5{number}", "StatefulSet", labels | active, {"https": 8200})
        name = f"nomad-{number}"
        fake.pods[name] = a_pod(name, f"10.73.0.2{number}", "StatefulSet", {"app": "nomad"}, {"http": 4646})
    return fake


@pytest.fixture
def attached(tmp_path):
    estates = FakeEstate(FakeDatacenter(servers=3, clients=0))
    estates.answers = of_vault() | of_nomad(3)
    cluster = kubernetes_of(estates.world).cluster
    (tmp_path / "kube").write_text(json.dumps({"contexts": []}))

    async def found():
        target = await located(read_target(attach_file(tmp_path, ATTACH), {}), cluster)
        estate = await discover(target, estates.wires(target))
        return Attached(target, estate, await look(target, estate, cluster))

    return run(found())


def test_the_list_of_those_that_no_live_test_runs_is_whole():
    assert {*PATHS} == {*OF_KUBERNETES} == {f"kubernetes/{name}" for name in PLANNED}


@pytest.mark.parametrize("name", sorted(PATHS))
def test_it_is_right_and_so_says_the_published_schema(name):
    path = PATHS[name]
    assert _error_of(path) is None
    published = json.loads((ROOT / "experiments" / "schema.json").read_text())
    assert list(jsonschema.Draft202012Validator(published).iter_errors(read_experiment(path).data)) == []
    assert load_experiment(path).datacenter.stands == "datacenter.kubernetes"


@pytest.mark.parametrize("name", sorted(PLANNED))
def test_it_is_planned_on_the_pods_of_the_chart(name, attached):
    path = PATHS[f"kubernetes/{name}"]
    plan = attached.plan(attached.over(path))
    faults = [(one.what, one.hosts) for one in plan.actions if one.verb == "apply"]
    assert faults == [PLANNED[name]]
    assert {one.service for one in plan.actions} == {name.partition("-")[0] if "-pod" in name else "consul"}


@pytest.mark.parametrize("name", sorted(LOCAL))
def test_it_judges_by_the_hypotheses_of_the_same_drill_in_a_datacenter_of_ours(name):
    here = load_experiment(PATHS[f"kubernetes/{name}"])
    [there] = [load_experiment(path) for path in list_experiments() if experiment_name(path) == LOCAL[name]]
    judged = [[(one.hypothesis, one.params.get("load")) for one in each.expect] for each in (here, there)]
    assert judged[0] == judged[1]
    assert {each: load.kind for each, load in here.load.items()} == {
        each: load.kind for each, load in there.load.items()
    }


def test_the_active_one_of_vault_is_asked_first(attached):
    assert attached.target.logins["vault"].address == "https://10.73.0.52:8200"


@pytest.mark.parametrize("name", sorted(PATHS))
def test_without_pods_it_is_refused_and_says_why(name, tmp_path):
    """Planted: an estate that is reached by addresses alone."""
    estates = FakeEstate(FakeDatacenter(servers=3, clients=0))
    estates.answers = of_vault() | of_nomad(3)
    body = '  consul: {address: "http://10.73.0.11:8500", token_file: token}\n  vault: {address: "https://10.73.0.51:8200"}\n'
    body += '  nomad: {address: "http://10.73.0.21:4646"}\n'
    target = read_target(attach_file(tmp_path, body), {})
    estate = run(estates.found(target))
    reasons = lacking(read_experiment(PATHS[name]), target, estate, path=PATHS[name])
    assert any("its host lacks" in one for one in reasons)
    with pytest.raises(AttachError, match="cannot run on staging"):
        Attached(target, estate).over(PATHS[name])


@pytest.mark.lie
@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("consul-io-latency", "lacks: [IOChaos], ", "`lacks` of the attach file says that no IOChaos can be injected"),
        ("consul-server-partitioned", "forwarded", "it could not be proven: its agent is reached by a forward, which"),
        ("node-drain-with-quorum", "one node", "the node node-1 also runs consul-2, consul-3: draining it would stop"),
    ],
)
async def test_a_fault_that_cannot_be_there_is_refused_before_a_run(name, change, said, tmp_path):
    estates = FakeEstate(FakeDatacenter(servers=3, clients=0))
    kubernetes = FakeLitmus(estates.world, pods=SERVERS)
    if change == "one node":
        for pod in kubernetes.pods.values():
            pod.setdefault("spec", {})["nodeName"] = "node-1"
    body = CONSUL_ALONE.replace("namespace:", f"{change if ':' in change else ''}namespace:")

    async def nowhere(_login, _url):
        return "no route" if change == "forwarded" else ""

    kubernetes.unrouted = nowhere
    target = await located(read_target(attach_file(tmp_path, body), {}), kubernetes.cluster)
    estate = await discover(target, estates.wires(target))
    there = Attached(target, estate, await look(target, estate, kubernetes.cluster))
    for other, path in PATHS.items():
        if "vault" in other or "nomad" in other:
            continue
        if other == f"kubernetes/{name}":
            with pytest.raises(AttachError) as caught:
                there.over(path)
            assert said in str(caught.value)
        elif other != "kubernetes/node-drain-with-quorum":
            there.over(path)


async def test_a_kind_that_chaos_mesh_does_not_have_is_told(tmp_path):
    estates = FakeEstate(FakeDatacenter(servers=3, clients=0))
    kubernetes = FakeLitmus(estates.world, pods=SERVERS)
    body = CONSUL_ALONE.replace("namespace:", "lacks: [IoChaos], namespace:")
    target = await located(read_target(attach_file(tmp_path, body), {}), kubernetes.cluster)
    with pytest.raises(
        AttachError, match=r"kubernetes\.lacks: 'IoChaos' is not a kind of Chaos Mesh: did you mean IOChaos"
    ):
        await look(target, await discover(target, estates.wires(target)), kubernetes.cluster)


async def test_a_pod_that_is_not_ready_keeps_each_of_them_from_beginning(tmp_path):
    estates = FakeEstate(FakeDatacenter(servers=3, clients=0))
    kubernetes = FakeKubernetes(estates.world, pods=SERVERS)
    kubernetes.ready("consul-3", ready=False)

    target = await located(read_target(attach_file(tmp_path, CONSUL_ALONE), {}), kubernetes.cluster)
    estate = await discover(target, estates.wires(target))
    there = Attached(target, estate, await look(target, estate, kubernetes.cluster))
    for name in set(PLANNED) - {"vault-active-pod-killed", "nomad-leader-pod-killed"}:
        with pytest.raises(AttachError, match="1 of its 3 pods is not ready: consul-3"):
            there.over(PATHS[f"kubernetes/{name}"])
