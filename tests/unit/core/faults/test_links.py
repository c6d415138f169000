"""Faults on links, on a datacenter in memory: where they are put, and that their proof is not taken in."""

import anyio
import pytest

from hashidrill.core.errors import SelectorError
from hashidrill.core.faults.trials import TYPES, median, trial_of
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Exchange, Toxic
from hashidrill.testing.fakes import FakeDatacenter


def fault(world, kind="network.latency", **params):
    cls = registry.fault(kind)
    return cls(cls.Params.model_validate({"port": 8300, "delay": "200ms"} | params), world)


def sites(**params):
    world = FakeDatacenter()
    undo = fault(world, **params).plan(world.target("consul-1"), fault_id="0-x")
    return {site["host"]: site["addresses"] for site in undo["sites"]}


def test_what_comes_in_is_redirected_on_the_target_and_what_goes_out_on_the_others():
    others = ["10.73.0.12", "10.73.0.13"]
    assert sites(**{"from": "servers"}) == {"consul-1": others}
    assert sites(direction="out", **{"from": "servers"}) == {"consul-2": ["10.73.0.11"], "consul-3": ["10.73.0.11"]}
    assert sites(direction="both", **{"from": "host:consul-2"}) == {
        "consul-1": ["10.73.0.12"],
        "consul-2": ["10.73.0.11"],
    }


def test_loads_count_as_clients_and_the_control_address_is_never_named():
    assert sites(**{"from": "clients"}) == {"consul-1": ["10.73.0.31", "10.73.0.2"]}
    assert all("10.73.0.1" not in addresses for addresses in sites(direction="both").values())


def test_another_side_that_is_not_there_is_an_error():
    with pytest.raises(SelectorError, match="names no other host"):
        sites(direction="out", **{"from": "host:consul-1"})


def forget_toxics(host, name):
    host.proxies[name].toxics.clear()


def weaken_toxics(host, name):
    host.proxies[name].toxics[:] = [Toxic("latency", {"latency": 100, "jitter": 0})]


def lose_proxy(host, name):
    del host.proxies[name]


def flush(host, _name):
    host.tables.clear()


@pytest.mark.parametrize("which", ["", "_canary"])
@pytest.mark.parametrize("disarm", [forget_toxics, weaken_toxics, lose_proxy, flush])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_the_proof_fails_when_one_link_is_disarmed(disarm, which, direction):
    async def check():
        world = FakeDatacenter()
        one = fault(world, direction=direction)
        undo = one.plan(world.target("consul-1"), fault_id="0-x")
        await one.apply(undo)
        before = await one.verify(undo, present=True)
        disarm(world.hosts["consul-1" if direction == "in" else "consul-3"], undo["table"] + which)
        after = await one.verify(undo, present=True)
        gone = await one.verify(undo, present=False)
        return before.ok, after.ok, gone.ok

    fully = disarm is flush and direction == "in"
    assert anyio.run(check)[:2] == (True, False)
    assert anyio.run(check)[2] is False or fully


async def test_two_faults_on_two_ports_of_one_host_do_not_disturb_each_other():
    world = FakeDatacenter()
    slow, slower = fault(world), fault(world, port=8500, delay="400ms")
    undo = [f.plan(world.target("consul-1"), fault_id=f"{n}-x") for n, f in enumerate((slow, slower))]
    await slow.apply(undo[0])
    await slower.apply(undo[1])
    both = [await slow.verify(undo[0], present=True), await slower.verify(undo[1], present=True)]
    await slow.revert(undo[0])
    left = [await slow.verify(undo[0], present=False), await slower.verify(undo[1], present=True)]
    assert ([evidence.ok for evidence in both + left]) == [True] * 4


ATTRIBUTES = {
    "latency": {"latency": 200},
    "bandwidth": {"rate": 64},
    "timeout": {"timeout": 0},
    "reset_peer": {"timeout": 300},
    "slow_close": {"delay": 200},
    "slicer": {"average_size": 64, "delay": 10_000},
    "limit_data": {"bytes": 1000},
}


@pytest.mark.parametrize("type_", TYPES)
def test_an_untouched_connection_shows_no_toxic(type_):
    trial = trial_of([Toxic(type_, ATTRIBUTES[type_], "downstream")])
    untouched = Exchange(0.001, 0, trial.request.download_bytes)
    refused = Exchange(0.001, 111, 0)
    assert trial.free(untouched)
    assert not trial.shows(untouched)
    assert not trial.free(refused)
    assert not trial.shows(refused)


def test_six_percent_off_is_not_what_was_asked_for():
    trial = trial_of([Toxic("latency", {"latency": 1000})])
    assert trial.shows(Exchange(1.04, 0, 1))
    assert not trial.shows(Exchange(1.06, 0, 1))
    assert not trial.shows(Exchange(0.94, 0, 1))


def test_there_is_no_trial_for_a_toxic_that_nobody_knows():
    with pytest.raises(ValueError, match="there is no toxic 'noise'; there are: latency"):
        trial_of([Toxic("noise", {})])


def test_the_median_is_one_of_the_exchanges():
    assert median([Exchange(3.0), Exchange(1.0), Exchange(2.0)]) == Exchange(2.0)
