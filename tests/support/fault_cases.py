"""What each kind of fault declares as its `cases`, in the groups that tests try together."""

from collections.abc import Iterable
from typing import Any

from hashidrill.core.faults.base import Cases
from hashidrill.core.faults.links import LinkFault
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import OnTap

Case = tuple[str, dict[str, Any]]


def of_package(package: str) -> dict[str, Any]:
    """The fault classes by kind that are built in below `hashidrill.PACKAGE`."""
    return {k: cls for k, cls in registry.faults().items() if cls.__module__.startswith(f"hashidrill.{package}.")}


def each_of(classes: Iterable[Any]) -> list[Case]:
    """`Cases.each` of these."""
    return [(cls.kind, dict(params)) for cls in classes for params in cls.cases.each]


def on_products(package: str) -> list[tuple[str, dict[str, Any], str]]:
    """`Cases.on` of these, as (kind, parameters, selector)."""
    return [(kind, dict(params), on) for kind, cls in of_package(package).items() for on, params in cls.cases.on]


_HOSTS = of_package("core.faults")
_LINKS = {kind: cls for kind, cls in _HOSTS.items() if issubclass(cls, LinkFault)}
_TAPS = {kind: cls for kind, cls in _HOSTS.items() if isinstance(cls, OnTap)}
_CONSUL = of_package("products.consul.faults")
_STATE = {kind: cls for kind, cls in _CONSUL.items() if kind.startswith(("consul.snapshot.", "consul.raft."))}

HOST_CASES = each_of(cls for kind, cls in _HOSTS.items() if kind not in {**_LINKS, **_TAPS})
LINK_CASES = each_of(_LINKS.values())
"""Disarmed in real_links.py."""
TAP_CASES = each_of(_TAPS.values())
"""On a client; of every class, on a real tap, and disarmed: see test_clients_real.py."""
CONSUL_CASES = each_of(cls for kind, cls in _CONSUL.items() if kind not in _STATE)
"""On consul-1, which leads the fake and has a session there; on the real thing: see real_consul_faults.py."""
STATE_CASES = each_of(_STATE.values())
"""Checked and disarmed in test_state_faults_fake.py and test_state_faults_real.py: they need a state to begin with."""
CASES = [*HOST_CASES, *LINK_CASES, *CONSUL_CASES, *TAP_CASES]
UNDISARMABLE = {kind: cls.cases.disarm for kind, cls in _HOSTS.items() if isinstance(cls.cases.disarm, str)}
DISARMED: list[Case] = [case for case in dict(reversed(HOST_CASES)).items() if case[0] not in UNDISARMABLE]
"""One case of each kind of fault on a host that can be taken away behind its back."""
OLD = {"consul.streams.gather": "1.10.3"}
"""The Consul of faults that are not for the current one."""


def momentary(kind: str) -> bool:
    cases: Cases = registry.fault(kind).cases
    return cases.momentary


def name(kind, params):
    """A case as tests are called."""
    return " ".join([kind, *(f"{key}={value}" for key, value in params.items())])


def fault_of(world, kind, params=None, **more):
    cls = registry.fault(kind)
    return cls(cls.Params.model_validate({**(params or {}), **more}), world)


def nature(kind: str) -> dict[str, bool]:
    """What check_fault must know of a kind of fault."""
    return {"has_effect": kind != "noop", "momentary": momentary(kind)}


async def without_rules(host):
    """Takes all packet rules of a host away, behind the back of whoever set them."""
    for table in await host.packet_tables():
        await host.clear_packet_rules(table)
