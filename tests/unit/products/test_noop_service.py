"""The example of a service keeps the contract of services and faults; the plants that break it are caught."""

from unittest.mock import AsyncMock

import anyio
import pytest
from typer.testing import CliRunner

import places
from hashidrill.core.errors import NOT_READY, OWN_CONFIGURATION, DatacenterError
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.experiment.selectors import host_names, parse_selector
from hashidrill.core.protocols.abc import Target
from hashidrill.core.protocols.service import AgentPlace, AgentPlan, Service, Wanted, roles_of
from hashidrill.faces.cli.app import app
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.lab.local.hosts import LocalHost
from hashidrill.products.consul.service import ConsulService
from hashidrill.testing.fakes import FakeDatacenter, FakeHost
from hashidrill.testing.faults import check_fault
from virtual_time import run

with places.importable(places.SUPPORT / "noop_service"):
    from hashidrill_noop import TOKEN, NoopService, Silence, Spec


@pytest.fixture
def world():
    """One server of Consul, and two hosts of the example beside it."""
    world = FakeDatacenter(servers=1, clients=0)
    for place in NoopService(Spec(agents=2)).places():
        host = FakeHost(place.host, f"10.73.0.6{place.host[-1]}", place.role, world)
        host.roles = {"noop": place.role}
        host.process = world.new_process()
        world.hosts[place.host] = host
    return world


def test_the_example_has_all_that_a_service_has():
    wanted = set(Service.__annotations__) | {name for name in vars(Service) if not name.startswith("_")}
    assert [name for name in sorted(wanted) if not hasattr(NoopService(Spec()), name)] == []


def test_its_role_is_resolved_to_its_own_hosts_alone(world):
    service = NoopService(Spec(agents=2))
    chosen = anyio.run(roles_of(service).select, "agents", world)
    assert [host.name for host in chosen] == ["noop-1", "noop-2"]
    assert roles_of(service).candidates("agents") == {"noop-1", "noop-2"} == {*host_names([service])}
    assert parse_selector("host:noop-2").candidates([service]) == {"noop-2"}


def test_its_fault_keeps_the_contract_of_faults(world):
    target = Target("noop-1", "10.73.0.61", "noop", world.hosts["noop-1"].process.reference)
    proof = anyio.run(lambda: check_fault(Silence(Silence.Params(), world), target, recreate=False))
    assert (proof.present.measured, proof.gone.measured) == ("it does not answer", "it answers")


@pytest.mark.lie
def test_a_fault_of_the_example_that_does_nothing_is_caught_by_its_observer(world):
    class Idle(Silence):
        async def apply(self, undo):
            return

    target = Target("noop-1", "10.73.0.61", "noop", world.hosts["noop-1"].process.reference)
    with pytest.raises(AssertionError, match="to be in force"):
        run(check_fault(Idle(Idle.Params(), world), target, recreate=False))


def test_its_probe_says_who_answers(world):
    first, second = NoopService(Spec(agents=2)).probes(world)
    world.hosts["noop-2"].process = None
    [yes], [no] = anyio.run(first.sample), anyio.run(second.sample)
    assert (yes.signal, yes.host, yes.value) == ("noop.answers", "noop-1", 1.0)
    assert (no.signal, no.host, no.value) == ("noop.answers", "noop-2", 0.0)


def test_a_shell_on_its_host_gets_its_own_agent_and_elsewhere_the_first_one_and_the_token(tmp_path):
    datacenter = LocalDatacenter(DatacenterSpec(), tmp_path, {})
    service = NoopService(Spec(agents=2))
    datacenter.services = [service]
    for name in ("consul-1", "noop-1", "noop-2"):
        host = LocalHost(name, f"10.73.0.{len(datacenter.hosts)}", {}, tmp_path, 1)
        if name != "consul-1":
            host.plans["noop"] = AgentPlan({}, [], f"http://{name}:8080", "/")
        datacenter.hosts[name] = host
    assert datacenter.environment("noop-2") == {"NOOP_ADDR": "http://noop-2:8080", "NOOP_TOKEN": TOKEN}
    assert datacenter.environment("consul-1")["NOOP_ADDR"] == "http://noop-1:8080"
    assert datacenter.pages() == {}, "it has no page for people"


class Operated(NoopService):
    """An operator has another token than the loads."""

    def login(self):
        return {"NOOP_TOKEN": "the operator's"}


@pytest.mark.lie
def test_a_shell_gets_the_operators_token_and_a_load_does_not(tmp_path):
    datacenter = LocalDatacenter(DatacenterSpec(), tmp_path, {})
    datacenter.services = [Operated(Spec(agents=1))]
    assert datacenter.environment("noop-1") == {"NOOP_TOKEN": "the operator's"}
    assert datacenter.access("noop:agents") == {"NOOP_TOKEN": TOKEN}


class Told(NoopService):
    """Is ready when it is told to be, and notes in which order things happen."""

    def __init__(self, name, after, order):
        super().__init__(Spec(agents=1))
        self.name, self.after, self.order = name, after, order
        self.let = anyio.Event()

    async def wait_ready(self, hosts, *, within_s, agents_run):
        self.order.append(f"{self.name} waits")
        await self.let.wait()
        self.order.append(f"{self.name} is ready")


async def test_what_does_not_wait_for_each_other_is_made_ready_side_by_side(tmp_path, monkeypatch):
    """Nomad and Vault both wait for Consul; neither for the other."""
    order = []
    first, one, other = Told("first", (), order), Told("one", ("first",), order), Told("other", ("first",), order)
    datacenter = LocalDatacenter(DatacenterSpec(), tmp_path, {})
    datacenter.services = [first, one, other]

    async def start(service):
        order.append(f"{service.name} starts")

    monkeypatch.setattr(datacenter, "_start_agents", start)
    async with anyio.create_task_group() as group:
        group.start_soon(datacenter.wait_ready)
        await anyio.wait_all_tasks_blocked()
        first.let.set()
        await anyio.wait_all_tasks_blocked()
        other.let.set()
        one.let.set()
    assert order[:3] == ["first starts", "first waits", "first is ready"]
    assert set(order[3:5]) | set(order[5:7]) == {"one starts", "one waits", "other starts", "other waits"}
    assert set(order[7:]) == {"one is ready", "other is ready"}


def test_a_binary_that_no_run_could_get_is_said_at_validate(monkeypatch):
    monkeypatch.setattr(ConsulService, "binaries", lambda _service: [Wanted("etcdx", "3.6.0")])
    said = CliRunner().invoke(app, ["validate", "raft/killed-leader"])
    assert said.exit_code == 2
    assert (
        "killed-leader.yaml: datacenter.consul: hashidrill cannot get its binary 'etcdx'; it gets consul,"
        in said.stderr
    )


@pytest.mark.lie
@pytest.mark.parametrize(
    ("product", "role", "spec", "said"),
    [
        ("consul", "server", {"server_config": {"typo": 1}}, "datacenter.consul.server_config"),
        ("consul", "client", {"server_config": {"typo": 1}}, ""),
        (
            "nomad",
            "client",
            {"config": {"a": 1}, "client_config": {"b": 1}},
            "config and datacenter.nomad.client_config",
        ),
        ("vault", "server", {"config": {"typo": 1}}, "datacenter.vault.config"),
    ],
)
def test_an_agent_that_ended_early_says_which_configuration_of_the_experiment_it_had(
    tmp_path, product, role, spec, said
):
    datacenter = LocalDatacenter(DatacenterSpec(**{product: spec}), tmp_path, {})
    host = LocalHost("one", "10.73.0.11", {}, tmp_path, 1)
    host.logs.mkdir(parents=True)
    (host.logs / f"{product}.log").write_text("invalid config key typo\n")
    host.agent_process = AsyncMock(return_value=None)
    datacenter.hosts["one"] = host
    datacenter._placed_agents.append((product, AgentPlace("one", role)))
    with pytest.raises(DatacenterError) as ended:
        anyio.run(datacenter._all_agents_run)
    had = f", {OWN_CONFIGURATION} (" if said else ""
    assert str(ended.value).startswith(f"one: {product} {NOT_READY}{had}")
    assert str(ended.value).endswith(f"{said}{')' if said else ''}: invalid config key typo")
