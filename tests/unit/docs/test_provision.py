"""What tests need is got before the first of them, and what cannot be got fails those that need it, and no others."""

from __future__ import annotations

import ast
import re
from types import SimpleNamespace

import pytest

import places
import provision
from hashidrill.errors import BinaryError, MachineError
from hashidrill.provision.products import KUBERNETES_VERSIONS
from provision import FIXTURES, TOOLS, Provision, in_full, needs_of


class Item:
    def __init__(self, *needs, fixtures=()):
        self.marks = [SimpleNamespace(args=needs)] if needs else []
        self.fixturenames = fixtures

    def iter_markers(self, name):
        assert name == "needs"
        return self.marks


@pytest.fixture
def got(monkeypatch):
    """What binaries were asked for, in order; `broken` ones cannot be had."""
    asked = SimpleNamespace(order=[], broken=set(), said=[])

    def ensure(name, version, *, progress):
        asked.order.append(f"{name} {version}")
        if name in asked.broken:
            raise BinaryError(f"no way leads to {name}\n  go build: it failed")
        return f"/bin/{name}"

    monkeypatch.setattr("provision.binaries.ensure", ensure)
    monkeypatch.setattr("provision.machine.detect", list)
    monkeypatch.setattr("provision.machine.local_runs_possible", lambda found: True)
    monkeypatch.setattr("provision.packages.ensure_system_packages", lambda say, wanted: asked.order.append("packages"))
    return asked


def provided(got, *items, in_ci=False):
    one = Provision(got.said.append, in_ci=in_ci)
    one.provide(items)
    return one


def test_unit_tests_need_nothing(got, request):
    provided(got, Item(), Item(fixtures=("tmp_path", "monkeypatch")))
    assert got.order == []
    without = [item for item in request.session.items if item.path.is_relative_to(places.TESTS / "unit")]
    assert request.node in without
    assert {item.nodeid: needs_of(item) for item in without if needs_of(item)} == {}


def test_no_fixture_of_a_unit_test_is_called_like_one_that_needs_a_binary():
    """Seen without a run of everything: each who names a fake `nomad` has a real one built."""
    of_that_name = re.compile(rf"\bdef\s+({'|'.join(FIXTURES)})\b")  # to parse a thousand files for none takes seconds
    texts = {path.name: path.read_text() for path in (places.TESTS / "unit").rglob("*.py")}
    defined = [(name, node) for name, text in texts.items() if of_that_name.search(text)
               for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]  # fmt: skip
    named = {f"{file}: {node.name}" for file, node in defined
             if node.name in FIXTURES and any("fixture" in ast.unparse(d) for d in node.decorator_list)}  # fmt: skip
    assert named == set()


def test_what_takes_minutes_to_build_is_needed_in_its_own_tier_alone(request):
    """Whoever runs a tier gets what its tests need: one unmarked test built Nomad for all."""
    tiers = ("nomad", "vault", "nightly", "bench", "kubernetes")
    slow = {*tiers, *(name for name, _ in KUBERNETES_VERSIONS)}
    unmarked = [item for item in request.session.items if not any(map(item.get_closest_marker, tiers))]
    assert request.node in unmarked
    built = {item.nodeid: need for item in unmarked for need in needs_of(item) if need.split(" ")[0] in slow}
    assert built == {}


@pytest.mark.parametrize("consul", ["a value of the test's own"])
def test_a_parameter_with_the_name_of_a_fixture_needs_nothing(request, consul):
    assert "consul" in request.node.fixturenames
    assert needs_of(request.node) == []


def test_each_thing_is_got_once_and_the_machine_comes_first(got):
    one = provided(got, Item("bbolt"), Item("consul 1.10.3"), Item(fixtures=("consul",)), Item("consul 1.10.3"))
    assert got.order[0] == "packages"
    assert sorted(got.order[1:]) == ["bbolt 1.4.3", "consul 1.10.3", "consul 1.22.2"]
    assert one.got["consul 1.10.3"] == "/bin/consul"


def test_one_binary_that_cannot_be_had_is_told_once_and_hinders_no_other(got):
    got.broken = {"bbolt"}
    one = provided(got, Item("bbolt"), Item("bbolt"), Item("consul"))
    assert set(one.lacking) == {"bbolt 1.4.3"}
    assert not one.lacking["bbolt 1.4.3"].cannot
    assert "consul 1.22.2" in one.got
    assert len([line for line in got.said if "cannot get bbolt" in line]) == 1


def test_a_machine_that_truly_cannot_is_told_apart_from_one_that_was_not_set_up(got, monkeypatch):
    def lacks(_say, wanted):
        raise MachineError("This machine lacks nft")

    monkeypatch.setattr("provision.packages.ensure_system_packages", lacks)
    assert not provided(got, Item("datacenter")).lacking["datacenter"].cannot
    monkeypatch.setattr("provision.machine.local_runs_possible", lambda found: False)
    assert provided(got, Item("datacenter")).lacking["datacenter"].cannot


def test_a_tool_is_installed_in_ci_alone(got, monkeypatch):
    monkeypatch.setattr(provision, "_first", lambda commands: None)
    ran = []
    monkeypatch.setattr(
        "provision.subprocess.run", lambda command, **_: ran.append(command) or SimpleNamespace(returncode=0)
    )
    lacking = provided(got, Item("chromium")).lacking["chromium"]
    assert lacking.cannot
    assert "install" in lacking.why
    assert ran == []
    assert not provided(got, Item("chromium"), in_ci=True).lacking["chromium"].cannot
    assert "chromium" in ran[-1]


def test_a_need_that_nobody_can_get_is_a_mistake_in_the_test():
    with pytest.raises(ValueError, match="needs 'cromium'"):
        in_full("cromium")


@pytest.mark.parametrize("need", [*TOOLS, *(need for needs in FIXTURES.values() for need in needs)])
def test_all_needs_are_written_in_full(need):
    assert in_full(in_full(need)) == in_full(need)
