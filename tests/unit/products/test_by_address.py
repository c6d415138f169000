"""Faults of the products' own APIs keep the contract of faults where agents are only reached by their URLs."""

import functools

import anyio
import httpx2
import pytest

from attached_estates import TOKEN
from fault_cases import momentary
from hashidrill.core.errors import CapabilityError, FaultError
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.capabilities import CAPABILITIES, AgentApi
from hashidrill.staging.attach.datacenter import AttachedDatacenter
from hashidrill.staging.attach.discovery import Estate, FoundHost
from hashidrill.staging.attach.http import Login, Secret, Wire
from hashidrill.staging.attach.product import attachables
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.runs.attach_limits import possible_kinds
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.faults import check_fault
from hashidrill.testing.nomad import FakeNomad
from hashidrill.testing.vault import FakeVault
from nomad_fault_cases import NOMAD_CASES, prepared, sleepers


class Agents(httpx2.AsyncBaseTransport):
    """Hands each request to the fake agent at its address, if it has the token."""

    def __init__(self, hosts, service):
        self.hosts, self.service = hosts, service

    async def handle_async_request(self, request):
        host = next(one for one in self.hosts if one.address == request.url.host)
        header = attachables([self.service])[self.service].token_header
        if request.headers.get(header) != TOKEN:
            return httpx2.Response(403, text="Permission denied")
        try:
            answer = await host.use(AgentApi).api(
                request.method,
                request.url.path,
                agent=self.service,
                params=dict(request.url.params),
                body=await request.aread() or None,
            )
        except FaultError as error:
            raise httpx2.ConnectError(str(error), request=request) from None
        return httpx2.Response(answer.status, content=answer.body, headers=dict(answer.headers))


def by_address(service, hosts, artifacts, *, specs=None, names=lambda name: name, transport=None, token=TOKEN):
    """These hosts, as a datacenter that is attached; `names` are what other products call them."""
    port = attachables([service])[service].port
    login = Login(
        service,
        f"http://{hosts[0].address}:{port}",
        token=Secret(token),
        headers={attachables([service])[service].token_header: token},
    )
    found = {
        names(host.name): FoundHost(
            names(host.name), host.address, {service: host.roles[service]}, {service: f"http://{host.address}:{port}"}
        )
        for host in hosts
        if service in host.roles
    }
    estate = Estate("staging", found, specs={service: specs or {}})
    target = AttachTarget("staging", "", "staging.yaml", {service: login})
    transport = transport or Agents(hosts, service)
    spec = DatacenterSpec.model_validate(estate.as_datacenter())
    wires = {service: Wire(login, transport=transport)}
    return AttachedDatacenter(spec, target, estate, wires, artifacts=artifacts, make_transport=lambda _: transport)


def fault_of(kind, params, datacenter):
    cls = registry.fault(kind)
    return cls(cls.Params.model_validate(params), datacenter)


async def checked(datacenter, kind, params, on, *, momentary=False):
    [target, *_] = await datacenter.select(on)
    return await check_fault(fault_of(kind, params, datacenter), target, momentary=momentary)


BY_API = {
    "nomad.node.eligibility",
    "nomad.node.drain",
    "nomad.leader.transfer",
    "nomad.job.stop",
    "nomad.snapshot.save",
    "nomad.snapshot.restore",
}


@pytest.mark.parametrize(("kind", "params", "on"), [case for case in NOMAD_CASES if case[0] in BY_API])
async def test_faults_of_nomad(tmp_path, kind, params, on):
    world = FakeNomad(tmp_path)
    world.work.register(sleepers())
    datacenter = by_address("nomad", list(world.hosts.values()), tmp_path / "artifacts")
    [target, *_] = await datacenter.select(on)
    await prepared(datacenter, kind, target)
    assert (await checked(datacenter, kind, params, on, momentary=momentary(kind))).present.ok


def test_a_node_that_another_product_named_is_found_by_its_address(tmp_path):
    world = FakeNomad(tmp_path)
    for node in world.nodes.values():
        node["Address"] = world.hosts[node["Name"]].address
    named = {"node-1": "ip-10-0-0-1"}
    hosts = list(world.hosts.values())
    datacenter = by_address("nomad", hosts, tmp_path, names=lambda name: named.get(name, name))
    report = anyio.run(functools.partial(checked, datacenter, "nomad.node.eligibility", {}, "host:ip-10-0-0-1/nomad"))
    assert report.present.ok


@pytest.mark.parametrize(
    ("kind", "params", "on"),
    [
        ("consul.leader.transfer", {}, "consul:leader"),
        ("consul.leader.transfer", {"to": "consul-3"}, "consul:leader"),
        ("consul.session.expire", {}, "host:client-1"),
        ("consul.kv.bloat", {"keys": 10, "value": "1kB"}, "consul:leader"),
        ("consul.snapshot.save", {"name": "before"}, "consul:leader"),
    ],
)
def test_faults_of_consul(tmp_path, kind, params, on):
    world = FakeDatacenter(root=tmp_path)
    world.consul.make_session("client-1", "lock", "a-key")
    datacenter = by_address("consul", list(world.hosts.values()), tmp_path / "artifacts")
    momentary = kind in {"consul.leader.transfer", "consul.session.expire", "consul.snapshot.save"}
    report = anyio.run(functools.partial(checked, datacenter, kind, params, on, momentary=momentary))
    assert report.present.ok


def test_a_step_down_of_vault(tmp_path):
    fake = FakeVault()
    datacenter = by_address(
        "vault",
        list(fake.hosts.values()),
        tmp_path,
        specs={"storage": "raft", "unseal": "never"},
        transport=fake.transport(),
        token=fake.root,
    )
    report = anyio.run(functools.partial(checked, datacenter, "vault.step_down", {}, "vault:active", momentary=True))
    assert report.present.ok
    assert fake.active != "vault-1"


def test_a_proof_that_needs_the_processes_of_tasks_is_said_not_to_be_had(tmp_path):
    world = FakeNomad(tmp_path)
    datacenter = by_address("nomad", list(world.hosts.values()), tmp_path)
    kinds = possible_kinds(datacenter.target, datacenter.estate)
    assert kinds["nomad.alloc.signal"] == "no host has TaskProcesses"
    assert {kind for kind in BY_API if kinds[kind]} == set()


def test_what_a_carrier_would_have_to_bring_is_not_there(tmp_path):
    world = FakeDatacenter()
    datacenter = by_address("consul", list(world.hosts.values()), tmp_path)
    host = datacenter.host("consul-1")
    assert [one.__name__ for one in CAPABILITIES if host.can(one)] == ["AgentApi"]
    with pytest.raises(CapabilityError, match="consul-1 lacks DiskControl"):
        host.use(next(one for one in CAPABILITIES if one.__name__ == "DiskControl"))


def test_an_agent_that_refuses_the_token_is_not_taken_for_one_that_obeys(tmp_path):
    world = FakeDatacenter()
    datacenter = by_address("consul", list(world.hosts.values()), tmp_path)
    datacenter._wires["consul"].login.headers["X-Consul-Token"] = "somebody else's"
    with pytest.raises(FaultError, match="nothing was applied"):
        anyio.run(functools.partial(checked, datacenter, "consul.session.expire", {}, "host:client-1"))
