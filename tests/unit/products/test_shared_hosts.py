"""Services share hosts: one asks for agents of another beside its own, and is started after it."""

import pytest

import places
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.datacenter import together
from hashidrill.core.experiment.selectors import aimed, host_names, parse_selector, place_of
from hashidrill.core.faults.base import across_troubles
from hashidrill.core.protocols import registry

with places.importable(places.SUPPORT / "noop_service"):
    from hashidrill_noop import NoopService, Spec

CONSUL = registry.services()["consul"]


@pytest.fixture(autouse=True)
def _with_the_example(monkeypatch):
    """As its entry point would have it."""
    monkeypatch.setattr(registry, "services", lambda: {"consul": CONSUL, "noop": NoopService})
    built_in = registry.product_of
    monkeypatch.setattr(registry, "product_of", lambda kind: "noop" if kind == "noop.silence" else built_in(kind))


def both(agents=2, clients=0):
    return together({"noop": Spec(agents=agents), "consul": CONSUL.Spec(servers=1, clients=clients)})


def test_the_other_service_puts_a_client_on_each_host_that_asks_for_one():
    consul, noop = both(clients=1)
    assert [(p.host, p.role, p.guest) for p in consul.places()] == [
        ("consul-1", "server", False),
        ("client-1", "client", False),
        ("noop-1", "client", True),
        ("noop-2", "client", True),
    ]
    assert consul.candidates("clients") == {"client-1", "noop-1", "noop-2"}
    assert host_names([consul, noop]) == ["consul-1", "client-1", "noop-1", "noop-2"]


def test_without_the_other_service_nobody_is_asked():
    [noop] = together({"noop": Spec(agents=1)})
    assert [place.host for place in noop.places()] == ["noop-1"]


def test_a_service_is_started_after_those_that_it_names_whatever_their_order():
    assert [service.name for service in both()] == ["consul", "noop"]


def test_services_that_wait_for_each_other_are_refused(monkeypatch):
    class Circular(CONSUL):
        after = ("noop",)

    monkeypatch.setattr(registry, "services", lambda: {"noop": NoopService, "consul": Circular})
    with pytest.raises(UsageError, match="consul, noop each start after another"):
        both()


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("host:noop-1/consul", {"noop-1"}),
        ("host:noop-1/noop", {"noop-1"}),
        ("host:consul-1/noop", set()),
        ("consul:clients/noop", {"noop-1", "noop-2"}),
        ("consul:all/noop", {"noop-1", "noop-2"}),
        ("consul:servers/noop", set()),
    ],
)
def test_a_selector_may_name_the_agent_of_its_hosts(text, hosts):
    selector = parse_selector(text)
    assert str(selector) == text
    assert selector.candidates(both(clients=1)) == hosts


def test_one_that_has_no_such_agent_says_which_there_are():
    selector = parse_selector("consul:servers/consul")
    assert selector.candidates(both()) == {"consul-1"}
    reason = type(selector)("consul", "servers", "noop").impossible(both())
    assert reason == "consul:servers/noop never matches: there is no noop on these hosts, but consul"


def test_a_fault_of_a_product_is_about_that_products_agent_on_the_host():
    assert aimed("consul.agent.stop", "host:noop-1") == "host:noop-1/consul"
    assert aimed("noop.silence", "host:noop-1") == "host:noop-1/noop"
    assert aimed("process.kill", "host:noop-1") == "host:noop-1"
    assert aimed("consul.agent.stop", "consul:clients") == "consul:clients"


@pytest.mark.lie
@pytest.mark.parametrize(
    ("on", "who", "hosts"),
    [
        ("consul:leader", "clients", {"client-1", "noop-1", "noop-2"}),
        ("consul:leader", "servers", {"consul-1"}),
        ("noop:agents", "servers", set()),
        ("noop:agents", "agents", {"noop-1", "noop-2"}),
        ("noop:agents/consul", "servers", {"consul-1"}),
        ("host:noop-1", "consul:servers", {"consul-1"}),
        ("host:noop-1", "noop:agents", {"noop-1", "noop-2"}),
        ("host:noop-1", "noop:all", {"noop-1", "noop-2"}),
        ("host:noop-1", "noop:leader", set()),
        ("host:noop-1", "all", {"consul-1", "client-1", "noop-1", "noop-2"}),
        ("host:noop-1", "host:client-1", {"client-1"}),
    ],
)
def test_the_other_side_of_a_network_fault_is_of_the_product_that_it_names_or_else_of_the_one_at_hand(on, who, hosts):
    place = place_of(on, 0.0, 1.0, both(clients=1), {})
    assert place.across(who) == hosts


def test_a_side_that_nobody_is_on_says_which_there_are():
    place = place_of("host:consul-1", 0.0, 1.0, both(), {})
    [(where, text)] = across_troubles(place, "noop:servers")
    assert where == ("with", "from")
    assert text.startswith("noop:servers names no host of this datacenter: did you mean ")
    assert "noop:agents" in text or "consul:servers" in text
