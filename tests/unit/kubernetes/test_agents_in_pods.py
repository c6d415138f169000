"""`datacenter.kubernetes`: agents are found by the labels of their pods, and each way in which they cannot be, told."""

import json
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from attached_estates import TOKEN, FakeEstate, attach_file
from fake_kubernetes import NAMESPACE, FakeKubernetes, a_pod
from hashidrill.core.errors import AttachError, ExperimentError
from hashidrill.core.experiment.attached import inline
from hashidrill.core.experiment.library import read_experiment
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.protocols.capabilities import ChaosPod
from hashidrill.faces.cli.doctor_attach import Looked, as_data, lines
from hashidrill.faces.cli.validate import _error_of
from hashidrill.kubernetes.attach_capabilities import located, look
from hashidrill.kubernetes.client import cluster_of
from hashidrill.staging.attach.datacenter import AttachedDatacenter
from hashidrill.staging.attach.discovery import discover, troubles
from hashidrill.staging.attach.interlocks import names_of
from hashidrill.staging.attach.target import AttachTarget, read_target
from hashidrill.staging.runs import launch_attached
from hashidrill.staging.runs.attach_limits import check_attach_file
from hashidrill.staging.runs.launch_attached import Attached
from hashidrill.testing.fakes import FakeDatacenter
from virtual_time import ran, run

SERVERS = ("consul-1", "consul-2", "consul-3")
CONSUL = "{token_file: token}"
KUBECONFIG = {
    "current-context": "staging",
    "contexts": [{"name": "staging", "context": {"cluster": "c", "user": "u", "namespace": "other"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://api.staging.example:6443"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}
EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: killed, title: Killed, why: because}}
datacenter: {datacenter}
load: {{kv-writes: {{kind: consul.kv.write, rate: 5/s}}}}
steady_state: {{require: ["raft.leader >= 0"]}}
method: [{{fault: chaos_mesh.pod_kill, on: "consul:leader", for: 20s}}]
expect: [{{no_acknowledged_write_lost: {{load: kv-writes}}}}]
"""


def pods_part(consul=CONSUL, more=""):
    return f"  kubernetes: {{kubeconfig: kube, context: staging, namespace: consul, consul: {consul}{more}}}\n"


class There:
    """Three Consul servers that are pods, and a client that is none."""

    def __init__(self, folder, part=None, environ=None):
        self.fake = FakeEstate(FakeDatacenter(servers=3, clients=1))
        self.kubernetes = FakeKubernetes(self.fake.world, pods=SERVERS)
        (folder / "kube").write_text(json.dumps(KUBECONFIG))
        self.target = read_target(attach_file(folder, part or pods_part()), environ or {})

    def located(self):
        return run(located(self.target, self.kubernetes.cluster))

    @ran
    async def attached(self):
        """What commands have of it."""
        target = await located(self.target, self.kubernetes.cluster)
        estate = await discover(target, self.fake.wires(target))
        return Attached(target, estate, await look(target, estate, self.kubernetes.cluster))

    def refused(self):
        with pytest.raises(AttachError) as caught:
            self.located()
        assert caught.value.exit_code == 2
        return str(caught.value)

    def pod(self, name, address, labels):
        self.kubernetes.pods[name] = a_pod(name, address, "StatefulSet", labels, {"http": 8500})


@pytest.fixture
def there(tmp_path):
    return There(tmp_path)


def rename(there, old, new):
    pod = there.kubernetes.pods[new] = there.kubernetes.pods.pop(old)
    pod["metadata"]["name"] = new


def test_servers_are_found_by_the_labels_of_the_official_chart_and_asked_at_their_pods(there):
    found = there.attached()
    assert found.target.logins["consul"].address == "http://10.73.0.11:8500"
    assert found.estate.hosts["consul-2"].urls == {"consul": "http://10.73.0.12:8500"}
    assert found.target.kubernetes["found"]["consul"]["server"]["consul-3"] == {
        "address": "10.73.0.13",
        "ready": True,
        "phase": "ready",
        "keeper": "",
    }
    assert troubles(found.target, found.estate) == []
    assert TOKEN in found.target.logins["consul"].token.reveal()


@pytest.mark.lie
def test_the_leader_is_its_pod_by_the_address_and_never_a_pod_that_has_its_name(there):
    """A machine's name says nothing in a cluster: another pod of the namespace may have it."""
    rename(there, "consul-1", "consul-server-0")
    there.pod("consul-1", "10.73.0.99", {"app": "web"})
    found = there.attached()
    assert found.offers["consul-1"].said == "pod consul-server-0 in consul"

    datacenter = AttachedDatacenter(
        DatacenterSpec.model_validate(found.estate.as_datacenter()),
        found.target,
        found.estate,
        there.fake.wires(found.target),
    )
    [one] = run(datacenter.select("consul:leader"))
    assert one.host == "consul-1"
    assert ChaosPod in found.offers["consul-1"].capabilities


def test_clients_may_be_anywhere(there):
    """Machines may join servers in pods; and no label need lead to a client."""
    found = there.attached()
    assert found.offers["client-1"].said == "no pod there has the name client-1 or the address 10.73.0.31"
    assert troubles(found.target, found.estate) == []


def test_selectors_take_the_place_of_the_labels_of_the_chart(tmp_path):
    there = There(tmp_path, pods_part("{token_file: token, servers: {app: hashi, tier: raft}}"))
    said = there.refused()
    assert "datacenter.kubernetes.consul: no pod in namespace consul of context staging has the labels" in said
    assert "app=hashi,tier=raft" in said
    assert "kubectl --context staging -n consul get pods --show-labels" in said
    for pod in there.kubernetes.pods.values():
        pod["metadata"]["labels"] = {"app": "hashi", "tier": "raft", "release": "a"}
    assert there.located().logins["consul"].address == "http://10.73.0.11:8500"


def test_a_namespace_that_is_not_there_is_told_as_such(tmp_path):
    there = There(tmp_path, pods_part().replace("namespace: consul", "namespace: consull"))
    assert "consul: there is no namespace consull of context staging; `kubectl get namespaces`" in there.refused()
    there.kubernetes.refuses["GET", "namespaces"] = 403
    assert "no pod in namespace consull of context staging has the labels" in there.refused()


def test_a_context_that_is_not_in_the_kubeconfig_is_told_with_those_that_are(tmp_path):
    there = There(tmp_path, pods_part().replace("context: staging", "context: stagin"))
    with pytest.raises(AttachError) as caught:
        run(located(there.target, cluster_of))
    assert "kube: Context 'stagin' not found; datacenter.kubernetes.context: did you mean staging" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("context: staging, ", ""),
            "datacenter.kubernetes: context is missing: Context in the kube",
        ),
        (("namespace: consul, ", ""), "datacenter.kubernetes: namespace is missing: Namespace of the agents"),
        ((f", consul: {CONSUL}", ""), "datacenter.kubernetes: must name a product, like `consul: {}`; there are:"),
        (("consul: {", "consul: {token: x, "), "a token must not be in this file"),
        (("consul: {", "consul: {selector: x, "), "datacenter.kubernetes.consul: unknown key 'selector'"),
        (("consul: {", "consul: {servers: {}, "), "kubernetes.consul.servers"),
        (("consul: {", "consul: {servers: {vault-active: true}, "), "kubernetes.consul.servers.vault-active"),
        (("consul: {", "nomad: {}, consul: {"), "nomad: there is no official chart of nomad: write the labels of its"),
        (("consul: {", "consol: {"), "datacenter.kubernetes: unknown key 'consol'"),
        (
            ("  kubernetes:", "  consul: {address: x}\n  kubernetes:"),
            "datacenter.consul describes it too: keep one of the two",
        ),
    ],
)
def test_a_mistake_in_the_file_is_shown_where_it_is(tmp_path, change, said):
    with pytest.raises(ExperimentError) as caught:
        There(tmp_path, pods_part().replace(*change))
    told = " ".join(str(caught.value).split())
    assert said in told
    assert caught.value.exit_code == 2


def test_one_kubernetes_is_said_in_one_place(tmp_path):
    with pytest.raises(ExperimentError, match=r"services\.kubernetes: datacenter\.kubernetes already describes"):
        There(tmp_path, pods_part() + "services: {kubernetes: {netem: true}}\n")


def test_pods_that_are_not_ready_keep_a_run_from_beginning_and_not_heal(there, tmp_path):
    there.kubernetes.ready("consul-1", ready=False)
    there.kubernetes.pods["consul-2"]["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
    found = there.attached()
    assert found.target.logins["consul"].address == "http://10.73.0.13:8500", "one that is ready is asked"
    [said] = troubles(found.target, found.estate)
    assert said.startswith(
        "datacenter.kubernetes.consul: 2 of its 3 pods are not ready: consul-1 (Running), consul-2 (it is being"
    )
    path = tmp_path / "killed.yaml"
    path.write_text(EXPERIMENT.format(datacenter="{consul: {servers: 3}}"))
    with pytest.raises(
        AttachError, match=r"staging\.yaml: datacenter\.kubernetes\.consul: 2 of its 3 pods are not ready"
    ):
        found.over(path)


def test_pods_without_an_address_are_not_started(there):
    for pod in there.kubernetes.pods.values():
        pod["status"] = {"phase": "Pending"}
    assert (
        "none of consul-1, consul-2, consul-3 in namespace consul of context staging has an address" in there.refused()
    )


@pytest.mark.lie
def test_two_clusters_in_one_namespace_are_told(there):
    """Two releases of the chart: the labels lead to the servers of both, and any of them would be broken."""
    for number in (0, 1):
        there.pod(f"other-server-{number}", f"10.73.0.9{number}", {"app": "consul", "component": "server"})
    found = there.attached()
    [said] = troubles(found.target, found.estate)
    assert "it does not know other-server-0, other-server-1, which have app=consul,component=server in" in said
    assert "and have not joined again: wait some minutes; or two clusters are mixed" in said


def test_a_pod_that_came_back_is_no_cluster_of_its_own(there):
    """Gossip keeps the address of the killed pod for half a minute."""
    there.kubernetes.pods["consul-2"]["status"]["podIP"] = "10.73.0.77"
    found = there.attached()
    [said] = troubles(found.target, found.estate)
    assert "it still lists consul-2 at 10.73.0.12, but its pod is at 10.73.0.77: a pod came back;" in said


@pytest.mark.lie
def test_an_address_of_another_cluster_is_told(tmp_path):
    """Faults would go into the pods, and the figures would be those of another Consul."""
    there = There(tmp_path, pods_part('{token_file: token, address: "http://10.73.0.11:8500"}'))
    for number, pod in enumerate(there.kubernetes.pods.values()):
        pod["status"]["podIP"] = f"10.99.0.{number}"
    found = there.attached()
    first, second = troubles(found.target, found.estate)
    assert "at http://10.73.0.11:8500 it has the servers consul-1 (10.73.0.11), consul-2" in first
    assert "which are not pods with app=consul,component=server in namespace consul of context staging" in first
    assert "it does not know consul-1, consul-2, consul-3" in second


def test_doctor_says_that_no_run_may_begin(there):
    there.kubernetes.ready("consul-1", ready=False)
    found = there.attached()
    looked = Looked(found.target, found.estate, {}, {}, {}, {}, {}, found.offers)
    assert any(
        "no run may begin: datacenter.kubernetes.consul: 1 of its 3 pods is not ready" in one for one in lines(looked)
    )
    assert as_data(looked)["troubles"] == troubles(found.target, found.estate)
    assert any("reached: consul-2: pod consul-2 in consul" in one for one in lines(looked))


@pytest.mark.lie
def test_a_variable_is_no_address_of_a_pod(tmp_path):
    """`CONSUL_HTTP_ADDR` of a shell is that of some other Consul."""
    there = There(tmp_path, environ={"CONSUL_HTTP_ADDR": "https://consul.dev.example:8501"})
    assert there.target.logins["consul"].address == ""
    assert there.located().logins["consul"].address == "http://10.73.0.11:8500"


@pytest.mark.lie
def test_a_pod_that_its_kubelet_calls_ready_and_that_a_fault_silences_is_not_asked_first(tmp_path):
    """`heal` comes right after a runner died, and a readiness probe fails only seconds later."""
    there = There(tmp_path)

    async def cut_off(login, url):
        return "no answer" if url == "http://10.73.0.11:8500" else ""

    there.kubernetes.unrouted = cut_off
    found = there.located()
    assert found.logins["consul"].address == "http://10.73.0.12:8500"
    assert found.kubernetes["unrouted"] == {}


@pytest.mark.lie
@pytest.mark.parametrize("undoing", [True, False])
def test_heal_asks_another_pod_if_a_fault_silences_the_first_one_meanwhile(tmp_path, monkeypatch, undoing):
    """The object of a killed runner may come into force after a pod was chosen, and before all of it was read."""
    there = There(tmp_path)
    good, tries = there.attached(), []

    @asynccontextmanager
    async def reached(target):
        yield target

    async def attached(target, stack):
        tries.append(target)
        if len(tries) == 1:
            raise AttachError("no answer in time")
        return good.estate, {}

    async def same(target, *_):
        return target

    kubernetes = SimpleNamespace(located=same, reached=reached, look=same)
    monkeypatch.setattr(launch_attached, "in_kubernetes", lambda: kubernetes)
    monkeypatch.setattr(launch_attached, "attach", attached)
    path = Path(there.target.path)
    with nullcontext() if undoing else pytest.raises(AttachError, match="no answer in time"):
        assert Attached.read(path, undoing=undoing).estate is good.estate
    assert len(tries) == (2 if undoing else 1)


@pytest.mark.parametrize(
    ("ports", "part", "address"),
    [
        ({"https": 8501}, CONSUL, "https://10.73.0.11:8501"),
        ({"http": 8500, "https": 8501}, CONSUL, "http://10.73.0.11:8500"),
        ({"http": 8500, "https": 8501}, "{token_file: token, verify: false}", "https://10.73.0.11:8501"),
        ({}, CONSUL, "http://10.73.0.11:8500"),
    ],
)
def test_the_port_is_that_which_the_chart_names(tmp_path, ports, part, address):
    there = There(tmp_path, pods_part(part))
    listens = [{"name": name, "containerPort": port} for name, port in ports.items()]
    for pod in there.kubernetes.pods.values():
        pod["spec"] = {"containers": [{"name": "consul", "ports": listens}]}
    assert there.located().logins["consul"].address == address


def test_an_address_in_the_file_is_where_loads_go(tmp_path):
    """That of a Service: a pod that is killed comes back with another address."""
    there = There(tmp_path, pods_part('{token_file: token, address: "http://10.73.0.11:8500"}'))
    found = there.attached()
    spec = DatacenterSpec.model_validate(found.estate.as_datacenter())

    async def urls(target, via):
        return await AttachedDatacenter(spec, target, found.estate, there.fake.wires(target)).endpoints(via)

    assert run(urls(found.target, "consul:servers")) == ["http://10.73.0.11:8500"]
    assert run(urls(found.target, "host:consul-2")) == ["http://10.73.0.12:8500"]
    plain = There(tmp_path)
    assert len(run(urls(plain.located(), "consul:servers"))) == 3


def test_the_engine_gets_what_was_found_and_interlocks_see_its_names(there):
    found = there.attached()
    again = AttachTarget.received(json.loads(json.dumps(found.target.handed_over())))
    assert again.kubernetes == found.target.kubernetes
    names = {one.name for one in names_of(again, found.estate)}
    assert {"staging", NAMESPACE, "api.staging.example"} <= names


def test_a_file_that_says_it_is_checked_as_a_file_and_not_as_an_experiment(tmp_path):
    there = There(tmp_path)
    check_attach_file(tmp_path / "staging.yaml")
    assert list(there.target.logins) == ["consul"]


# in an experiment


@pytest.fixture
def written(tmp_path):
    (tmp_path / "kube").write_text(json.dumps(KUBECONFIG))

    def write(kubernetes="{kubeconfig: kube, context: staging, namespace: consul, consul: {}}", **more):
        path = tmp_path / "killed.yaml"
        said = "".join(f", {name}: {value}" for name, value in more.items())
        path.write_text(EXPERIMENT.format(datacenter=f"{{kubernetes: {kubernetes}{said}}}"))
        return path

    return write


def test_an_experiment_names_it_by_itself(written):
    target = read_target(written(), {})
    assert target.name == "kubernetes-staging-consul"
    assert target.kubernetes["pods"]["consul"]["server"] == {"app": "consul", "component": "server"}
    experiment = load_experiment(written())
    assert experiment.datacenter.stands == "datacenter.kubernetes"
    assert list(experiment.datacenter.services) == ["consul"]
    assert _error_of(written()) is None


def test_its_name_is_one_that_can_be_armed_however_long_the_context_is(written):
    context = "arn:aws:eks:eu-central-1:123456789012:cluster/staging-of-the-platform-team"
    names = set()
    for end in ("a", "b"):
        part = f'{{kubeconfig: kube, context: "{context}-{end}", namespace: consul, consul: {{}}}}'
        name = inline(read_experiment(written(part)))["metadata"]["name"]
        assert len(name) <= 60
        names.add(name)
    assert len(names) == 2


@pytest.mark.parametrize(
    ("kubernetes", "more", "said"),
    [
        ("{context: staging, consul: {}}", {}, "datacenter.kubernetes: namespace is missing: Namespace of the agents"),
        ("{context: staging, namespace: consul}", {}, "must name a product"),
        ("{context: staging, namespace: consul, consul: {}}", {"attach": "x.yaml"}, "both name an existing datacenter"),
        ("{context: staging, namespace: consul, consul: {}, netm: true}", {}, "netm"),
    ],
)
def test_validate_tells_what_is_wrong_with_it(written, kubernetes, more, said):
    assert said in " ".join(_error_of(written(kubernetes, **more)).split())
