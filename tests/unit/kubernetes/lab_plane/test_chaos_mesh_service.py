"""Chaos Mesh as a service of a local datacenter: who gets a chaosd, who trusts whom, what is put into the server."""

import json
import ssl
from pathlib import Path

import anyio
import httpx2
import pytest
from ruamel.yaml import YAML

from fake_kubernetes import FakeKubernetes
from hashidrill.core.errors import DatacenterError, ExperimentError, FaultError, UnknownNameError, WaitTimeoutError
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.experiment.model import DatacenterSpec, services_of
from hashidrill.core.experiment.selectors import parse_selector
from hashidrill.core.protocols.capabilities import ChaosMachine
from hashidrill.core.protocols.claims import is_across
from hashidrill.core.protocols.service import HandsOutTokens, Site, Workspace
from hashidrill.kubernetes.client import cluster_of
from hashidrill.kubernetes.lab_plane import NAMESPACE, plane
from hashidrill.kubernetes.lab_plane import machine as machines
from hashidrill.kubernetes.lab_plane.plane import Papers, Plane
from hashidrill.kubernetes.lab_plane.service import (
    API_PORT,
    CHAOSD_PORT,
    ETCD_PORT,
    METRICS_PORT,
    PEERS_PORT,
    WEBHOOK_PORT,
    ChaosMeshService,
)
from hashidrill.lab.provision import packages
from hashidrill.staging.attach.target import read_target
from hashidrill.testing.fakes import FakeDatacenter
from tasks import raising
from virtual_time import run

PLANE = {"etcd-1": "control-etcd", "kube-1": "control-api", "controller-1": "control-controller"}
ADDRESSES = {"etcd-1": "10.73.0.61", "kube-1": "10.73.0.62", "controller-1": "10.73.0.63", "consul-1": "10.73.0.11"}
EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: x, title: x, why: x}
datacenter: {consul: {servers: 3}, chaos_mesh: {}, disk: {size: SIZE}}
load: {w: {kind: consul.kv.write, rate: 5/s, keys: 5, value: 64B}}
steady_state: {require: ["w.errors < 1%"]}
method: [{fault: chaos_mesh.physical.process, on: "consul:leader", for: 5s}]
expect: [{no_acknowledged_write_lost: {load: w}}]
"""


def placed(**parts):
    spec = DatacenterSpec.model_validate({**parts, "chaos_mesh": {}})
    [service] = [one for one in services_of(spec) if one.name == "chaos_mesh"]
    return service.places()


@pytest.fixture
def service(tmp_path):
    """With one machine, configured as a datacenter does it."""
    one = ChaosMeshService(ChaosMeshService.Spec(), guests=["consul-1"])
    one.hidden = []
    one.open(Workspace(tmp_path, lambda *secrets: one.hidden.extend(secrets)))
    one.plans = {place.host: one.agent(site(tmp_path, place.host, place.role)) for place in one.places()}
    return one


def site(folder, host, role):
    binaries = {one.name: Path("/bin") / one.name for one in ChaosMeshService(ChaosMeshService.Spec()).binaries()}
    data = folder / "hosts" / host / "data" / "chaos_mesh"
    return Site(host, role, ADDRESSES[host], data, folder / "x.json", binaries, ADDRESSES, {}, folder / "proc")


def test_every_host_of_the_others_gets_one_chaosd_and_the_control_plane_none():
    """Consul's guests on Nomad's hosts, spare hosts and clients too; each once."""
    places = placed(consul={"servers": 3, "clients": 1}, nomad={"servers": 1, "clients": 1})
    machines_ = [place.host for place in places if place.role == "machine"]
    assert sorted(machines_) == ["client-1", "consul-1", "consul-2", "consul-3", "node-1", "nomad-1"]
    assert {place.host: place.role for place in places if place.role != "machine"} == PLANE
    assert all(place.armed and place.guest for place in places if place.role == "machine")
    assert not any(place.armed for place in places if place.role != "machine"), "they are ordinary programs"


def test_the_controller_is_started_once_its_server_is_ready_and_not_with_the_others():
    assert [place.host for place in placed(consul={}) if not place.starts] == ["controller-1"]


@pytest.mark.lie
def test_a_fault_from_all_does_not_cut_off_whoever_has_to_revert_it():
    for host, role in PLANE.items():
        assert not is_across("all", host, {"chaos_mesh": role}, "consul")
        assert is_across(f"host:{host}", host, {"chaos_mesh": role}, "consul"), "by name it can be meant"
    assert is_across("all", "consul-2", {"consul": "server", "chaos_mesh": "machine"}, "consul")


def test_no_selector_means_its_control_plane_but_the_name_of_a_host():
    services = services_of(DatacenterSpec.model_validate({"consul": {"clients": 0}, "chaos_mesh": {}}))
    assert parse_selector("host:controller-1").candidates(services) == frozenset(), "it is started later than others"
    assert parse_selector("host:kube-1").candidates(services) == {"kube-1"}
    with pytest.raises(UnknownNameError, match="is not a selector"):
        parse_selector("chaos_mesh:")


def test_no_secret_is_on_a_command_line_or_in_what_is_recorded(service):
    written = json.dumps([[*plan.command, *plan.environment.values(), plan.config] for plan in service.plans.values()])
    assert len(service.hidden) == 2
    assert not [secret for secret in service.hidden if secret in written]
    assert "PRIVATE KEY" not in written
    assert json.dumps(service.describe({"consul-1": {}})).count("chaosd") == 1


def test_the_operator_gets_the_administrators_kubeconfig_and_a_load_nothing(service, tmp_path):
    assert service.login() == {"KUBECONFIG": str(tmp_path / "kubeconfig")}
    assert not isinstance(service, HandsOutTokens)


def test_each_part_listens_on_its_own_host_alone(service):
    for host, plan in service.plans.items():
        said = " ".join([*plan.command, *plan.environment.values()])
        assert ADDRESSES[host] in said
        assert "0.0.0.0" not in said


def test_chaosd_looks_for_processes_of_its_own_host_and_finds_system_tools(service, tmp_path):
    environment = service.plans["consul-1"].environment
    assert environment["HOST_PROC"] == str(tmp_path / "proc")
    assert "/usr/sbin" in environment["PATH"].split(":")


def test_only_hosts_with_a_chaosd_can_be_broken_by_it(service):
    world = FakeDatacenter(servers=1, clients=0)
    host = world.hosts["consul-1"]
    host.roles = {"consul": "server", "chaos_mesh": "machine"}
    [(capability, made)] = service.parts(host).items()
    assert capability is ChaosMachine
    assert made.url == f"http://{host.address}:31767"
    host.roles = {"chaos_mesh": "control-etcd"}
    assert service.parts(host) == {}


async def test_a_dead_controller_of_ours_is_waited_for_once_too_and_told_of_in_the_journal(service):
    """Each request has a connection of its own; what they waited for already is common to them."""
    kubernetes, told = FakeKubernetes(FakeDatacenter(), pods=[]), []
    one = machines.Machine(Path("/nowhere"), "http://10.73.0.11:31767", tell=service.say, connect=kubernetes.cluster)

    await service.keep(None, told.append)
    made = one.object_of("PhysicalMachineChaos", "0-x")
    spec = {"action": "process", "process": {"process": "consul", "signal": 19}}
    await one.create(made, spec, once=False)
    kubernetes.controller = "stuck"
    began_s = anyio.current_time()
    for _ in range(6):
        with pytest.raises(FaultError, match="annotate physicalmachinechaos"):
            await one.remove(made)
    assert (anyio.current_time() - began_s) < 60
    assert len(told) == 1
    assert "still exists 5s after it was deleted" in told[0]


def test_what_it_writes_is_a_kubeconfig_of_each_user_and_an_attach_file_that_can_be_used(service, tmp_path):
    world = FakeDatacenter(servers=1, clients=0)
    assert service.left() == {}, "nothing before it is there"
    service._write(world)
    left = service.left()
    assert set(left) == {"kubeconfig", "attach file"}
    for name in ("kubeconfig", "hashidrill.kubeconfig"):
        one = cluster_of({"kubeconfig": str(tmp_path / name)})
        assert (one.server, one.namespace) == ("https://10.73.0.62:6443", NAMESPACE)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    target = read_target(Path(left["attach file"]), {})
    assert target.name == "local"
    assert target.kubernetes["chaosd"] == {"consul-1": "http://10.73.0.11:31767"}
    assert target.kubernetes["kubeconfig"].endswith("hashidrill.kubeconfig"), "with the rights of the role alone"


def test_the_attach_file_names_the_hosts_alone_that_consul_knows(service):
    """Whoever attaches finds hosts in Consul's catalog, and refuses a chaosd on any other one."""
    world = FakeDatacenter(servers=1, clients=0)
    service.guests, service._addresses = ["consul-1", "store-1"], {**ADDRESSES, "store-1": "10.73.0.70"}
    service._write(world)
    assert set(read_target(Path(service.left()["attach file"]), {}).kubernetes["chaosd"]) == {"consul-1"}


def test_without_consul_there_is_no_attach_file(service):
    world = FakeDatacenter(servers=1, clients=0)
    world.hosts["consul-1"].roles = {"sample": "store"}
    service._write(world)
    assert set(service.left()) == {"kubeconfig"}


@pytest.mark.lie
@pytest.mark.parametrize(
    ("spec", "tools", "package"),
    [
        ({"action": "stress-cpu"}, "stress-ng", "stress-ng"),
        ({"action": "network-partition"}, "iptables and no ipset", "iptables ipset"),
        ({"action": "network-bandwidth"}, "iptables and no tc", "iptables iproute2"),
    ],
)
def test_what_chaosd_would_start_and_cannot_is_told_before_anything_is_applied(spec, tools, package, monkeypatch):
    monkeypatch.setattr(machines, "tool", lambda _: None)
    monkeypatch.setattr(packages, "tool", lambda _: None)
    monkeypatch.setattr(packages.shutil, "which", lambda name, **_: "/usr/bin/apt-get" if name == "apt-get" else None)
    one = machines.Machine(Path("/nowhere"), "http://10.73.0.11:31767")
    with pytest.raises(FaultError, match=rf"no {tools}, which chaosd starts; get it with: .*{package}"):
        run(one.check("PhysicalMachineChaos", spec))


@pytest.mark.parametrize(("size", "why"), [("64MB", "etcd"), ("256MB", "")])
def test_a_disk_that_is_too_small_for_etcd_is_refused_where_it_stands(size, why, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(EXPERIMENT.replace("SIZE", size))
    if not why:
        assert load_experiment(path)
        return
    with pytest.raises(ExperimentError) as refused:
        load_experiment(path)
    said = " ".join(str(refused.value).split())
    assert "x.yaml:4:65: datacenter.disk.size: with chaos_mesh, disks need at least 200MB: etcd is on one of" in said


# what is put into the server


class FakeServer:
    """Remembers what it is given; `refuses`: part of a path to what it answers."""

    def __init__(self):
        self.given, self.refuses, self.not_ready = [], {}, 0

    def transport(self):
        return httpx2.MockTransport(self.handle)

    def handle(self, request):
        path = request.url.path
        if path == "/readyz":
            self.not_ready -= 1
            return httpx2.Response(500 if self.not_ready >= 0 else 200, text="[-]etcd failed")
        for part, status in self.refuses.items():
            if part in path:
                return httpx2.Response(status, text=f"{part}: no")
        yaml = "yaml" in request.headers.get("content-type", "")
        body = (
            YAML(typ="safe", pure=True).load(request.content.decode()) if yaml else json.loads(request.content or "{}")
        )
        self.given.append((path.rpartition("/")[2], body, request.headers["authorization"]))
        return httpx2.Response(201, json=body)


async def no_matter():
    """Agents run."""


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def there(server):
    return Plane("https://10.73.0.62:6443", Papers(lambda *_: None), transport=server.transport())


LARGE = """\
kind: CustomResourceDefinition
metadata:
  name: schedules.chaos-mesh.org
spec:
  group: chaos-mesh.org
  versions:
  - name: v1alpha1
    schema:
      openAPIV3Schema:
        description: |-
          long

          text
        type: object
    served: true
    storage: true
"""


def definitions(folder):
    path = folder / "definitions"
    path.write_text("# chaos-mesh-definitions 1.0.0\n---\nkind: One\n---\nkind: Two\n")
    return path


def test_each_definition_goes_to_the_server_and_the_role_is_the_printed_one(server, there, tmp_path):
    from hashidrill.kubernetes.lab_plane.service import _rights

    run(there.furnish(definitions(tmp_path), _rights()))
    kinds = {what: body for what, body, _ in server.given}
    assert [body["kind"] for what, body, _ in server.given if what == "customresourcedefinitions"] == ["One", "Two"]
    assert kinds["namespaces"] == {"metadata": {"name": NAMESPACE}}
    rules = {rule["resources"][0]: sorted(rule["verbs"]) for rule in kinds["roles"]["rules"]}
    assert rules == {"physicalmachinechaos": ["create", "delete", "get", "list"], "pods": ["list"]}
    assert kinds["rolebindings"]["subjects"][0]["name"] == "hashidrill"
    assert {"clusterroles", "clusterrolebindings"} <= set(kinds)


def test_what_the_server_refuses_is_told_with_its_words(server, there, tmp_path):
    server.refuses["customresourcedefinitions"] = 422
    with pytest.raises(
        DatacenterError, match=r"POST \S+customresourcedefinitions: HTTP 422: customresourcedefinitions: no"
    ):
        run(there.furnish(definitions(tmp_path), []))


def test_what_is_there_already_is_no_error(server, there, tmp_path):
    server.refuses[""] = 409
    run(there.furnish(definitions(tmp_path), []))


def test_a_server_that_is_not_ready_is_waited_for_and_named_when_it_never_is(server, there):
    server.not_ready = 3
    run(there.answers(10.0, no_matter))
    server.not_ready = 10_000
    with pytest.raises(WaitTimeoutError, match=r"the Kubernetes API server to be ready; last seen: \[-\]etcd failed"):
        run(there.answers(10.0, no_matter))


def test_an_agent_that_ended_is_told_at_once_and_not_after_the_wait(server, there):
    server.not_ready = 10_000
    with pytest.raises(DatacenterError, match="etcd-1: chaos_mesh ended"):
        run(there.answers(10.0, raising(DatacenterError("etcd-1: chaos_mesh ended: no space left"))))


def test_a_large_definition_goes_without_its_schema_and_stays_one(monkeypatch):
    whole = {
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "schedules.chaos-mesh.org"},
        "spec": {"group": "chaos-mesh.org"},
    }
    assert plane.lighter(LARGE) == LARGE, "a small one stays as it is"
    monkeypatch.setattr(plane, "_LARGE", 10)
    light = YAML(typ="safe", pure=True).load(plane.lighter(LARGE))
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "schema": schema, "served": True, "storage": True}
    assert light == {**whole, "spec": {"group": "chaos-mesh.org", "versions": [version]}}


def test_both_webhooks_lead_to_the_controller_and_trust_its_certificate(server, there):
    run(there.admit("https://10.73.0.63:9443"))
    assert [what for what, *_ in server.given] == ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
    for _, body, _ in server.given:
        [hook] = body["webhooks"]
        assert hook["clientConfig"]["url"].startswith("https://10.73.0.63:9443/")
        assert hook["clientConfig"]["caBundle"]


def test_a_certificate_is_good_for_its_own_address_and_signed_by_the_authority():
    papers = Papers(lambda *_: None)
    made = papers.certificate("10.73.0.62")
    assert set(made) == {"tls.crt", "tls.key"}
    context = ssl.create_default_context(cadata=papers.trusted)
    assert context.cert_store_stats()["x509_ca"] == 1
    assert ssl.PEM_cert_to_DER_cert(made["tls.crt"][: made["tls.crt"].index("-----END CERTIFICATE-----") + 25])


def test_two_datacenters_have_no_token_and_no_authority_in_common():
    one, other = Papers(lambda *_: None), Papers(lambda *_: None)
    assert len({one.admin, one.user, other.admin, other.user}) == 4
    assert one.trusted != other.trusted


def test_nobody_listens_where_nobody_is():
    from hashidrill.kubernetes.lab_plane.plane import listens

    assert not anyio.run(listens, "127.0.0.1", 1)


def test_the_ports_do_not_meet_those_of_canaries_and_agents():
    assert len({ETCD_PORT, PEERS_PORT, API_PORT, WEBHOOK_PORT, METRICS_PORT, CHAOSD_PORT}) == 6
