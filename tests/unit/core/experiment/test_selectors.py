"""Selectors: how they are written, and which hosts they could ever match."""

import pytest

from hashidrill.core.errors import UnknownNameError
from hashidrill.core.experiment.selectors import Selector, forms, host_names, parse_selector
from hashidrill.products.consul.model import Consul
from hashidrill.products.consul.service import ConsulService


def consul(servers, clients, spares=0):
    """The services of a datacenter of that many."""
    return [ConsulService(Consul(servers=servers, clients=clients), spares=spares)]


@pytest.mark.parametrize(
    "text", [*(f"consul:{role}" for role in ConsulService.roles), "host:consul-1", "host:client-20"]
)
def test_a_selector_prints_as_it_was_written(text):
    assert str(parse_selector(text)) == text


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("consul:leeder", "consul:leader"),
        ("leader", "consul:leader"),
        ("consul:follower", "consul:followers"),
        ("hosts:consul-1", "there are: client:NAME, consul:all"),
        ("host:", "host:NAME"),
        ("host", "host:NAME"),
        ("", "there are: client:NAME, consul:all"),
        (":", "there are:"),
        ("consul:", "consul:"),
        ("konsul:leader", "consul:leader"),
        ("host: consul-1", "'host: consul-1' is not a selector"),
    ],
)
def test_what_is_no_selector_is_answered_with_near_ones(text, near):
    with pytest.raises(UnknownNameError) as error:
        parse_selector(text)
    assert near in str(error.value)


@pytest.mark.parametrize(
    ("text", "servers", "clients", "hosts"),
    [
        ("consul:leader", 3, 1, {"consul-1", "consul-2", "consul-3"}),
        ("consul:followers", 2, 0, {"consul-1", "consul-2"}),
        ("consul:followers", 1, 0, set()),
        ("consul:one-follower", 3, 0, {"consul-1", "consul-2", "consul-3"}),
        ("consul:one-follower", 1, 0, set()),
        ("consul:leader", 1, 0, {"consul-1"}),
        ("consul:servers", 1, 5, {"consul-1"}),
        ("consul:clients", 3, 2, {"client-1", "client-2"}),
        ("consul:clients", 3, 0, set()),
        ("consul:all", 1, 1, {"consul-1", "client-1"}),
        ("host:consul-2", 3, 0, {"consul-2"}),
        ("host:consul-4", 3, 9, set()),
        ("host:client-1", 3, 0, set()),
    ],
)
def test_the_hosts_a_selector_could_match_are_known_before_anything_starts(text, servers, clients, hosts):
    selector = parse_selector(text)
    assert selector.candidates(consul(servers, clients)) == hosts
    assert bool(selector.impossible(consul(servers, clients))) == (not hosts)


def test_an_impossible_selector_says_why():
    assert "consul-3" in Selector("host", "consul-4").impossible(consul(3, 1))
    assert "no client agents" in Selector("consul", "clients").impossible(consul(3, 0))
    assert "single server" in Selector("consul", "followers").impossible(consul(1, 0))


def test_the_forms_that_are_offered_are_selectors():
    for form in forms():
        parse_selector(form)


def test_hosts_are_numbered_from_one_servers_first():
    assert host_names(consul(2, 1, spares=2)) == ["consul-1", "consul-2", "client-1"]
