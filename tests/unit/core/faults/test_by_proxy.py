"""Link faults through the estate's own proxies: proven through them, and nobody else's toxics are touched."""

import copy

import pytest

import virtual_time
from fake_toxiproxy import FakeLinks, FakeToxiproxy
from hashidrill.core.errors import FaultError, SelectorError
from hashidrill.core.faults.links import BY_PROXY_OBSERVER, PROVABLE
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.capabilities import EstateLinks
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.faults import check_fault

HOST, ADDRESS = "consul-1", "10.73.0.11"
LATENCY = ("network.latency", {"delay": "200ms", "port": 8500})
FAULTS = [
    LATENCY,
    ("network.latency", {"delay": "100ms", "jitter": "50ms", "port": 8500}),
    ("network.reset", {"port": 8500}),
    ("network.reset", {"after": "300ms", "port": 8500}),
    ("network.timeout", {"port": 8500}),
    ("network.timeout", {"timeout": "500ms", "port": 8500}),
    ("toxiproxy.toxic", {"port": 8500, "type": "latency", "attributes": {"latency": 400}, "toxicity": "60%"}),
]


class Estate:
    """A host of somebody else, behind two proxies of theirs; a third leads elsewhere."""

    def __init__(self, **more):
        self.toxiproxy = FakeToxiproxy(
            consul_1=f"{ADDRESS}:8500", consul_1_too="consul-1.staging.example:8500", consul_2="10.73.0.12:8500"
        )
        self.toxiproxy.put("consul-1", "of-ben", "bandwidth", rate=50_000)
        self.toxiproxy.put("consul-2", "hashidrill-run-0-theirs", "latency", latency=900)
        self.world = FakeDatacenter()
        self.host = self.world.hosts[HOST]
        self.host.parts = {EstateLinks: FakeLinks(HOST, ADDRESS, self.toxiproxy, **more)}

    def fault(self, kind, params):
        cls = registry.fault(kind)
        return cls(cls.Params.model_validate(params), self.world)

    def target(self):
        return self.world.target(HOST)

    def names(self, proxy="consul-1"):
        return set(self.toxiproxy.toxics(proxy))


@pytest.mark.parametrize(("kind", "params"), FAULTS)
def test_it_keeps_the_contract_of_a_fault(kind, params):
    estate = Estate()
    before = copy.deepcopy(estate.toxiproxy.proxies)
    report = virtual_time.run(check_fault(estate.fault(kind, params), estate.target()))
    assert estate.toxiproxy.proxies == before, "theirs are as they were"
    assert "through consul-1, consul-1-too" in report.present.asked
    assert "toxics in 2 of 2" in report.present.measured
    assert {path[1] for _, *path in estate.toxiproxy.asked} == {"consul-1", "consul-1-too"}


@virtual_time.ran
async def in_force(estate, then, kind=LATENCY[0], params=LATENCY[1]):
    """What `then(fault, undo)` gives while it is in force."""
    fault = estate.fault(kind, params)
    undo = {**fault.plan(estate.target(), fault_id="0-slow"), "prior": dict(await fault.prior(estate.target()))}
    await fault.apply(undo)
    return await then(fault, undo)


def test_its_toxics_have_the_name_of_the_run_and_go_to_each_proxy_that_leads_there():
    estate = Estate(run="20261123-130000-short-ab12")

    async def then(fault, undo):
        return [estate.names("consul-1"), estate.names("consul-1-too"), estate.names("consul-2")]

    ours = "hashidrill-20261123-130000-short-ab12-0-slow-0"
    assert in_force(estate, then) == [{"of-ben", ours}, {ours}, {"hashidrill-run-0-theirs"}]


def test_one_that_is_disarmed_behind_its_back_is_noticed():
    estate = Estate()

    async def then(fault, undo):
        estate.toxiproxy.proxies["consul-1-too"]["toxics"].clear()
        seen = await fault.verify(undo, present=True)
        return seen, await fault.verify(undo, present=False)

    present, gone = in_force(estate, then)
    assert not present.ok
    assert "1ms through consul-1-too, toxics in 1 of 2" in present.measured
    assert not gone.ok, "it still is in the other one"


@pytest.mark.lie
def test_a_toxic_that_the_api_lists_and_that_does_nothing_proves_nothing():
    """The API is not believed: the delay is measured."""
    estate = Estate()

    async def then(fault, undo):
        for proxy in undo["proxies"]:
            for toxic in estate.toxiproxy.proxies[proxy]["toxics"]:
                if toxic["name"] in undo["toxics"]:
                    toxic["attributes"] = {"latency": 0, "jitter": 0}
        return await fault.verify(undo, present=True)

    seen = in_force(estate, then)
    assert not seen.ok
    assert "toxics in 2 of 2" in seen.measured


@pytest.mark.lie
def test_a_delay_of_somebody_else_is_not_taken_for_ours():
    estate = Estate()

    async def then(fault, undo):
        await fault.revert(undo)
        for proxy in undo["proxies"]:
            estate.toxiproxy.put(proxy, "of-ben-too", "latency", latency=200)
        return await fault.verify(undo, present=True), await fault.verify(undo, present=False)

    present, gone = in_force(estate, then)
    assert (present.ok, gone.ok) == (False, False)
    assert {"of-ben", "of-ben-too"} <= estate.names()


def test_a_link_that_is_as_slow_already_is_refused_before_anything_is_applied():
    estate = Estate()
    estate.toxiproxy.put("consul-1", "slow", "latency", latency=500)
    fault = estate.fault(*LATENCY)
    with pytest.raises(FaultError, match=r"the proxy consul-1: .* cannot be distinguished from this link"):
        virtual_time.run(fault.prior(estate.target()))
    assert estate.toxiproxy.asked == []


def test_what_cannot_be_is_said():
    estate = Estate(knows=())
    with pytest.raises(SelectorError, match="does not know what the agent on port 8500 answers"):
        estate.fault(*LATENCY).plan(estate.target(), fault_id="x")
    with pytest.raises(
        SelectorError, match="no proxy of the toxiproxy leads to its port 8300; `hashidrill staging proxies"
    ):
        estate.fault("network.latency", {"delay": "200ms", "port": 8300}).plan(estate.target(), fault_id="x")
    estate = Estate()
    estate.toxiproxy.refuses = "POST"
    fault = estate.fault(*LATENCY)
    with pytest.raises(FaultError, match="the toxic latency was refused: HTTP 500 it is on fire"):
        virtual_time.run(fault.apply(fault.plan(estate.target(), fault_id="x")))


def test_a_proxy_that_somebody_disabled_stays_disabled():
    estate = Estate()
    estate.toxiproxy.proxies["consul-1"]["enabled"] = False
    estate.host.parts = {EstateLinks: FakeLinks(HOST, ADDRESS, estate.toxiproxy)}
    fault = estate.fault(*LATENCY)
    with pytest.raises(FaultError, match="the proxy consul-1 is disabled"):
        virtual_time.run(fault.apply(fault.plan(estate.target(), fault_id="x")))
    assert not estate.toxiproxy.proxies["consul-1"]["enabled"]


def test_the_journal_names_the_observer_that_really_looked():
    estate = Estate()

    async def then(fault, undo):
        return fault.observer

    assert in_force(estate, then) == BY_PROXY_OBSERVER
    assert registry.fault("network.latency").observer != BY_PROXY_OBSERVER


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("network.bandwidth", {"rate": "100kB/s", "port": 8500}),
        ("network.slicer", {"port": 8500}),
        ("network.latency", {"delay": "200ms", "port": 8500, "direction": "both"}),
        ("network.latency", {"delay": "200ms", "port": 8500, "from": "consul:clients"}),
        ("toxiproxy.toxic", {"port": 8500, "type": "limit_data", "attributes": {"bytes": 100}}),
    ],
)
def test_what_a_proxy_of_somebody_else_cannot_do_or_show_needs_our_own(kind, params):
    fault = Estate().fault(kind, params)
    assert fault.requires().instead == frozenset()
    assert fault.requires().lacking(Estate().host)


def test_each_type_that_is_said_to_be_provable_is_proven_above():
    types = {toxic.type for kind, params in FAULTS for toxic in Estate().fault(kind, params).toxics()}
    assert types == PROVABLE
