"""Faults of other packages take part on equal terms: they are refused beside others, and get what they require."""

import importlib.metadata
from collections.abc import Iterator
from typing import ClassVar

import pytest

import places
from hashidrill.core.errors import ExperimentError, UsageError
from hashidrill.core.experiment.loader import load_text
from hashidrill.core.faults.base import BaseFault, NoParams
from hashidrill.core.faults.links import LinkFault, LinkParams
from hashidrill.core.faults.noop import Noop
from hashidrill.core.loads.base import BaseLoad
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Requires
from hashidrill.core.protocols.claims import AGENT, CANARY_TIMES, Restarts, connections, needs, takes
from hashidrill.lab.runs.launch import binaries_for

GOOD = places.GOOD.read_text()
[STEP] = [line for line in GOOD.splitlines() if "fault: disk.latency" in line]
ONE, TWO = "host:consul-1", "host:consul-2"


class Mirror(LinkFault):
    """Redirects a link, as the link faults that ship do."""

    kind: ClassVar[str] = "acme.mirror"
    Params: ClassVar[type[LinkParams]] = LinkParams


class Acme(Noop):
    """Does nothing, and says of itself what faults on hosts do."""

    def uses(self, place):
        return BaseFault.uses(self, place)


class Stopwatch(Acme):
    """Shares an instrument with others: the canary times it."""

    kind: ClassVar[str] = "acme.stopwatch"

    def uses(self, place):
        return (*super().uses(place), needs(CANARY_TIMES))


class Upgrade(Acme):
    """Restarts the agent of its host."""

    kind: ClassVar[str] = "acme.upgrade"
    restarts: ClassVar[Restarts | None] = Restarts(5.0)

    def uses(self, place):
        return (*super().uses(place), takes(AGENT))


class Bypass(Acme):
    """Takes a thing that only its own package names."""

    kind: ClassVar[str] = "acme.bypass"

    def uses(self, place):
        return (takes(connections(9), "both go round the same firewall", where=place.hosts, local=False),)


class Probing(Acme):
    kind: ClassVar[str] = "acme.probing"

    def requires(self):
        return Requires(tools=frozenset({"tcpdmp"}))


class Bare:
    """Has what a fault does, and says nothing of itself."""

    kind = "acme.bare"
    Params = NoParams


class BareLoad:
    kind = "acme.traffic"
    Params = NoParams


class Plugin:
    def __init__(self, cls) -> None:
        self.cls, self.name, self.value = cls, cls.__name__, f"acme:{cls.__name__}"

    def load(self):
        return self.cls


@pytest.fixture
def plugged(monkeypatch) -> Iterator[list[type]]:
    """Classes that entry points of another distribution register; add to it what a test wants beside."""
    classes: list[type] = [Mirror, Stopwatch, Upgrade, Bypass, Probing]

    ours = importlib.metadata.entry_points()

    class Installed:
        def select(self, *, group):
            if group not in {"hashidrill.faults", "hashidrill.loads"}:
                return ours.select(group=group)
            loads = [cls for cls in classes if issubclass(cls, (BaseLoad, BareLoad))]
            theirs = [Plugin(cls) for cls in classes if (cls in loads) == (group == "hashidrill.loads")]
            return [*ours.select(group=group), *theirs]

    monkeypatch.setattr(importlib.metadata, "entry_points", Installed)
    caches = (
        registry._installed,
        registry.entries,
        registry.plugin,
        registry._kinds,
        registry._by_entry,
        registry._checked,
    )
    for found in caches:
        found.cache_clear()
    yield classes
    for found in caches:
        found.cache_clear()


pytestmark = pytest.mark.usefixtures("plugged")


def step(fault, on=ONE, at="0s", **params):
    with_ = f", with: {{{', '.join(f'{key}: {value}' for key, value in params.items())}}}" if params else ""
    return f'{{fault: {fault}, on: "{on}"{with_}, at: {at}, for: 10s}}'


def load(*steps):
    return load_text(GOOD.replace(STEP, "\n".join(f"  - {step}" for step in steps)), "x.yaml")


def refused(*steps):
    with pytest.raises(ExperimentError) as error:
        load(*steps)
    return " ".join(str(error.value).split())


MIRROR = step("acme.mirror", port=8300)


@pytest.mark.lie
@pytest.mark.parametrize(
    ("one", "two", "why"),
    [
        (MIRROR, step("network.latency", port=8300, delay="1s"), "may be on the same connections"),
        (MIRROR, step("network.block", port=8300), "may be on the same connections"),
        (MIRROR, step("network.partition", TWO), "may be on the same connections"),
        (MIRROR, step("cpu.throttle", cores=0.2), "the throttle also slows down the observer"),
        (step("acme.stopwatch"), step("cpu.throttle", cores=0.2), "the throttle also slows down the observer"),
        (step("acme.stopwatch"), step("acme.stopwatch", "consul:servers"), "may be on the same host"),
        (step("acme.stopwatch"), step("consul.server.replace"), "which the replacement removes"),
        (step("acme.upgrade"), step("consul.agent.stop"), "one would stop the agent that the other needs"),
        (step("acme.upgrade"), step("process.pause"), "acme.upgrade restarts host:consul-1 while"),
        (step("acme.bypass"), step("acme.bypass"), "both go round the same firewall; let one end before the other"),
    ],
)
def test_a_plug_in_fault_that_shares_something_with_another_is_refused_at_validate(one, two, why):
    for pair in ((one, two), (two, one)):
        assert why in refused(*pair)


@pytest.mark.parametrize(
    "steps",
    [
        (MIRROR, step("network.latency", port=8500, delay="1s")),
        (MIRROR, step("network.latency", port=8300, delay="1s", at="10s")),
        (step("acme.stopwatch"), step("cpu.throttle", TWO, cores=0.2)),
        (step("acme.stopwatch"), step("disk.latency", delay="1s")),
        (step("acme.upgrade"), step("process.pause", TWO)),
        (step("acme.bypass"), step("acme.bypass", TWO)),
    ],
)
def test_a_plug_in_fault_that_shares_nothing_is_taken(steps):
    load(*steps)


def test_the_other_side_of_a_plug_in_link_is_checked():
    assert "there is no host 'consul-9'" in refused(step("acme.mirror", port=8300, **{"from": '"host:consul-9"'}))


@pytest.mark.lie
def test_a_plug_in_fault_that_requires_toxiproxy_gets_it_started():
    assert "toxiproxy-server" in dict(binaries_for(load(MIRROR)))
    assert "toxiproxy-server" not in dict(binaries_for(load(step("acme.stopwatch"))))


def test_a_tool_that_nobody_can_get_is_refused_at_validate():
    assert "acme.probing requires the tool 'tcpdmp', which hashidrill cannot install" in refused(step("acme.probing"))


@pytest.mark.lie
@pytest.mark.parametrize(
    ("bare", "lacks", "base"),
    [
        (Bare, "plan", "hashidrill.core.faults.base.BaseFault"),
        (BareLoad, "run", "hashidrill.core.loads.base.BaseLoad"),
    ],
)
def test_a_plug_in_that_does_not_say_what_it_needs_is_named_with_what_it_lacks(plugged, bare, lacks, base):
    plugged.append(bare)
    find = registry.load if bare is BareLoad else registry.fault
    with pytest.raises(UsageError, match=f"acme:{bare.__name__} .*lacks .*{lacks}.*{base}"):
        find(bare.kind)


def test_a_load_that_is_built_on_the_base_takes_part(plugged):
    class Traffic(BaseLoad):
        kind = "acme.load"
        Params = NoParams

        async def run(self, emit): ...

    plugged.append(Traffic)
    text = GOOD.replace(STEP, f"  - {step('noop')}").replace("load:\n", "load:\n  acme: {kind: acme.load}\n", 1)
    assert load_text(text, "x.yaml").load["acme"].kind == "acme.load"


def test_a_fault_in_place_of_a_built_in_one_is_the_one_that_is_asked(plugged):
    class Loud(Noop):
        def troubles(self, place):
            yield ("on",), f"not on {place.on}"

    plugged.append(Loud)
    assert f"not on {ONE}" in refused(step("noop"))
