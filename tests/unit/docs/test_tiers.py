"""Every test is in a tier, the table of tiers is true, and each fault kind is run on the real thing each time.
What tests need is got before the first of them, and what cannot be got fails those that need it, and no others.
"""

import ast
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import consul_fault_cases
import external_faults
import fault_cases
import library_runs
import nomad_fault_cases
import places
import real_chaos_machines
import vault_fault_cases
from docs_pages import ROOT
from hashidrill.core.errors import BinaryError, MachineError
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.protocols import registry
from hashidrill.lab.provision.build import Go
from hashidrill.lab.provision.packages import GO, NotAllowedError, NotOfferedError
from hashidrill.lab.provision.products import KUBERNETES_VERSIONS
from provision import FIXTURES, TOOLS, Provision, in_full, needs_of

TESTS = places.TESTS
HERE = Path(__file__).name


def test_no_two_files_of_tests_have_one_name():
    """pytest collects them into one namespace: with two of a name, a run of everything ends before its first test."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_is_marked_with_what_no_command_runs():
    """`pyproject.toml` leaves some tiers out, and the table has a command for each."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    left_out = re.search(r'"-m", "([^"]+)"', (ROOT / "pyproject.toml").read_text())[1]
    tiers = ("bench", "collector", "kubernetes", "long", "nightly", "nomad", "prometheus", "vault")
    assert sorted(left_out.split(" and ")) == [f"not {tier}" for tier in tiers]
    for tier in tiers:
        assert f"`uv run pytest -m {tier}" in page, tier


def test_ci_runs_the_tests_of_a_product_whose_binary_is_there():
    """And leaves them out where it would have to be built first: that takes longer than all other tests."""
    script = (ROOT / ".ci/run").read_text()
    [products] = re.findall(r"^for product in ([\w ]+); do", script, re.MULTILINE)
    assert products.split() == ["nomad", "vault"]
    [left_out] = re.findall(r'^left_out="([^"]+)"', script, re.MULTILINE)
    assert left_out == "bench or collector or nightly or kubernetes or prometheus"


@pytest.fixture
def conftest(request):
    plugins = request.config.pluginmanager.get_plugins()
    [found] = [each for each in plugins if getattr(each, "__file__", None) == str(TESTS / "conftest.py")]
    return found


@pytest.mark.lie
@pytest.mark.parametrize(
    ("file", "marks", "long"),
    [
        ("live/test_up.py", [pytest.mark.needs("datacenter")], True),
        ("live/test_up.py", [pytest.mark.needs("datacenter"), pytest.mark.smoke], False),
        ("contract/core/test_tap.py", [pytest.mark.needs("consul 1.22.2")], True),
        ("contract/core/test_tap.py", [pytest.mark.needs("strace")], False),
        ("unit/lab/test_x.py", [pytest.mark.needs("datacenter")], False),
    ],
)
def test_what_starts_agents_is_long_but_for_smoke(conftest, file, marks, long):
    given = [each.mark for each in marks]
    item = SimpleNamespace(
        nodeid=f"tests/{file}::test_it",
        path=TESTS / file,
        iter_markers=lambda name: [mark for mark in given if mark.name == name],
        get_closest_marker=lambda name: next((mark for mark in given if mark.name == name), None),
        add_marker=lambda name: given.append(getattr(pytest.mark, name).mark),
    )
    conftest.pytest_collection_modifyitems([item])
    assert ("long" in {mark.name for mark in given}) == long


@pytest.mark.lie
def test_what_takes_cpu_alone_goes_first_and_what_measures_goes_alone(conftest):
    """Whatever room a test is in: Consul's faults go on beside the first, the library's runs beside what comes last."""
    turns = {
        path: conftest.turn(
            SimpleNamespace(path=path, nodeid=f"{path.relative_to(ROOT)}::x", get_closest_marker=lambda _: None)
        )
        for path in TESTS.rglob("test_*.py")
    }
    folders = {
        folder: {turn for path, turn in turns.items() if path.is_relative_to(TESTS / folder)}
        for folder in ("unit", "plugin", "contract", "live")
    }
    assert folders == {"unit": {0}, "plugin": {0}, "contract": {0, 1, 2}, "live": {2, 3, 4}}


def test_nothing_is_skipped_without_a_reason_that_holds():
    """A plain skip or xfail is a test that was dropped."""
    dropped = re.compile(r"pytest\.mark\.(skip\b|xfail)")
    assert [path.name for path in TESTS.rglob("*.py") if dropped.search(path.read_text()) and path.name != HERE] == []


@pytest.fixture
def on_the_real_thing():
    """Kinds that `uv run pytest` puts on a real datacenter: by contract, or in an experiment."""
    by_contract = {kind for kind, *_ in (*fault_cases.HOST_CASES, *fault_cases.LINK_CASES, *fault_cases.TAP_CASES)}
    of_consul = {
        kind for run in consul_fault_cases.RUNS for kind, *_ in consul_fault_cases.cases_of(run) if "long" not in run
    }
    methods = [load_experiment(library_runs.LIBRARY[name]).method for name in library_runs.IN_CI]
    return by_contract | of_consul | {step.fault for method in methods for step in method}


@pytest.mark.lie
def test_every_fault_kind_is_run_on_the_real_thing_each_time(on_the_real_thing):
    of_state = set(re.findall(r'"(consul\.[\w.]+)"', (places.SUPPORT / "real_state_faults.py").read_text()))
    in_a_tier_of_its_own = {kind for kind, *_ in (*nomad_fault_cases.NOMAD_CASES, *vault_fault_cases.CASES)}
    by_a_real_chaosd = {*real_chaos_machines.MACHINE_CASES, "chaos_mesh.physical.process"}
    on_no_real_pod_yet = {kind for kind, _ in external_faults.CHAOS_MESH_CASES} - by_a_real_chaosd
    assert not [kind for kind in on_no_real_pod_yet if ".physical." in kind]  # reference-kubernetes.md says so
    on_no_real_pod_yet |= {kind for kind, _ in external_faults.LITMUS_CASES}  # and so does reference-litmus.md
    left = set(registry.faults()) - on_the_real_thing - of_state
    assert left == in_a_tier_of_its_own | by_a_real_chaosd | on_no_real_pod_yet


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
    asked = SimpleNamespace(
        order=[], broken=set(), said=[], installed=[], fails={}, go=Go(Path("/go"), (1, 26), "go1.26")
    )

    def ensure(name, version, *, progress):
        asked.order.append(f"{name} {version}")
        if name in asked.broken:
            raise BinaryError(f"no way leads to {name}\n  go build: it failed")
        return f"/bin/{name}"

    monkeypatch.setattr("provision.binaries.ensure", ensure)
    monkeypatch.setattr("provision.machine.detect", list)
    monkeypatch.setattr("provision.machine.local_runs_possible", lambda found: True)

    def install(wanted, say, ask=None):
        asked.installed.append([package.debian for package in wanted])
        for package in wanted:
            if package.debian in asked.fails:
                raise asked.fails[package.debian]

    monkeypatch.setattr("provision.packages.install_packages", install)
    monkeypatch.setattr("provision.find_go", lambda: asked.go)
    monkeypatch.setattr("provision.lacks_compilers", lambda product: [] if asked.go else [GO])
    monkeypatch.setattr("provision.binaries.must_be_built", lambda name, version: name == "bbolt")
    monkeypatch.setattr("provision._first", lambda commands: f"/bin/{commands[0]}" if asked.installed else None)
    return asked


def provided(got, *items):
    one = Provision(got.said.append)
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
    defined = [
        (name, node)
        for name, text in texts.items()
        if of_that_name.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    named = {
        f"{file}: {node.name}"
        for file, node in defined
        if node.name in FIXTURES and any("fixture" in ast.unparse(d) for d in node.decorator_list)
    }
    assert named == set()


def test_what_takes_minutes_to_build_is_needed_in_its_own_tier_alone(request):
    """Whoever runs a tier gets what its tests need: one unmarked test built Nomad for all."""
    tiers = ("nomad", "vault", "nightly", "bench", "kubernetes", "prometheus")
    slow = {*tiers, "promtool", *(name for name, _ in KUBERNETES_VERSIONS)}
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
    assert got.installed == []
    assert sorted(got.order) == ["bbolt 1.4.3", "consul 1.10.3", "consul 1.22.2"]
    assert one.got["consul 1.10.3"] == "/bin/consul"


@pytest.mark.lie
def test_one_binary_that_cannot_be_had_is_told_once_and_hinders_no_other(got):
    got.broken = {"bbolt"}
    one = provided(got, Item("bbolt"), Item("bbolt"), Item("consul"))
    assert set(one.lacking) == {"bbolt 1.4.3"}
    assert not one.lacking["bbolt 1.4.3"].cannot
    assert "consul 1.22.2" in one.got
    assert len([line for line in got.said if "cannot get bbolt" in line]) == 1


def test_a_machine_that_truly_cannot_is_told_apart_from_one_that_was_not_set_up(got, monkeypatch):
    monkeypatch.setattr("provision.machine.local_runs_possible", lambda found: False)
    assert provided(got, Item("datacenter")).lacking["datacenter"].cannot


def test_all_that_is_to_be_installed_is_installed_at_once_and_only_what_is_needed(got):
    got.go = None
    one = provided(got, Item("chromium"), Item("strace", "wrk"), Item("bbolt"), Item("consul"), Item("strace"))
    assert got.installed == [["chromium", "strace", "wrk", "golang-go"]], "Consul can be downloaded, bbolt cannot"
    assert one.got["strace"] == "/bin/strace"


def test_what_nobody_allows_to_install_leaves_out_its_own_tests_and_no_others(got):
    got.go, got.fails = None, dict.fromkeys(("strace", "golang-go"), NotAllowedError("there is no terminal to ask on"))
    one = provided(got, Item("strace"), Item("bbolt"), Item("consul"))
    assert len(got.installed) == 1, "asked again"
    assert set(one.got) == {"consul 1.22.2"}
    assert {need: lacking.cannot for need, lacking in one.lacking.items()} == {"strace": True, "bbolt 1.4.3": True}
    assert "bbolt 1.4.3" not in got.order


@pytest.mark.parametrize(
    ("error", "cannot"), [(NotOfferedError("no package wrk"), True), (MachineError("down"), False)]
)
def test_a_package_that_cannot_be_installed_hinders_no_other(got, error, cannot):
    got.fails = {"wrk": error}
    one = provided(got, Item("strace"), Item("wrk"))
    assert set(one.got) == {"strace"}
    assert {need: lacking.cannot for need, lacking in one.lacking.items()} == {"wrk": cannot}


def test_a_need_that_nobody_can_get_is_a_mistake_in_the_test():
    with pytest.raises(ValueError, match="needs 'cromium'"):
        in_full("cromium")


@pytest.mark.parametrize("need", [*TOOLS, *(need for needs in FIXTURES.values() for need in needs)])
def test_all_needs_are_written_in_full(need):
    assert in_full(in_full(need)) == in_full(need)
