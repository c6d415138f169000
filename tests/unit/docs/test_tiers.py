"""Every test is in a tier, the table of tiers is true, and each fault kind is run on the real thing each time."""

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
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.protocols import registry

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
