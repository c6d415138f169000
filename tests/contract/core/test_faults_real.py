"""Every fault keeps its contract on a real datacenter, and its observer notices when it is no longer in force."""

import json
import sys

import pytest

import places
from consul_fault_cases import RUNS, disarmed_of
from external_faults import CHAOS_MESH_CASES, LITMUS_CASES
from fault_cases import DISARMED, HOST_CASES, LINK_CASES, STATE_CASES, TAP_CASES, UNDISARMABLE, name
from hashidrill.core.protocols import registry
from hashidrill.core.util.processes import python_path
from hashidrill.lab.sandbox.sandbox import sandbox
from nomad_fault_cases import NOMAD_CASES
from vault_fault_cases import CASES as VAULT_CASES

SCRIPT = places.SUPPORT / "real_faults.py"
pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def results(consul, tmp_path_factory, tell, request):
    """One sandbox, one datacenter, every selected case in it one after the other: {(check, name): line}."""
    log = tmp_path_factory.mktemp("faults") / "log"
    here = [item for item in request.session.items if item.path == request.path and "results" in item.fixturenames]
    asked = [item.callspec.params for item in here]
    # the agent of the test about rights is killed and started again by the cases
    wanted = "all" if any("when" in each for each in asked) else json.dumps([name(*each["case"]) for each in asked])
    command = [sys.executable, str(SCRIPT), str(consul.path), "{root}", consul.version, wanted]
    with sandbox(command, {"PYTHONPATH": python_path()}, log) as box:
        lines = [json.loads(line) for line in box.output]
        box.process.wait()
    assert lines, log.read_text()[-4000:]
    tell("\n" + table(lines))
    found = {(line["check"], name(line["kind"], line["params"])): line for line in lines}
    return found, log.read_text()[-4000:]


def table(lines):
    rows = [("fault", "asked for", "measured in force", "measured afterwards", "seconds")]
    rows += [
        (
            name(line["kind"], line["params"]),
            line["present"]["asked"],
            line["present"]["measured"],
            line["gone"]["measured"],
            str(line["seconds"]),
        )
        for line in lines
        if "error" not in line
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def result(results, check, case):
    found, log = results
    assert (check, name(*case)) in found, f"the sandbox ended before it came to this case:\n{log}"
    line = found[check, name(*case)]
    assert "error" not in line, line["error"]
    return line


@pytest.mark.parametrize("case", HOST_CASES, ids=lambda case: name(*case))
def test_a_fault_keeps_its_contract_on_a_real_datacenter(case, results):
    line = result(results, "_keeps_its_contract", case)
    assert line["present"]["ok"]
    assert line["gone"]["ok"]
    figures = line["present"]["figures"]
    if case[0] == "disk.latency" and not case[1].get("jitter"):
        # 5 % or, where the disk's own time counts, 10 ms
        assert figures["measured_s"] == pytest.approx(figures["asked_s"], rel=0.05, abs=0.01)


@pytest.mark.parametrize("case", DISARMED, ids=lambda case: name(*case))
def test_an_observer_notices_that_a_fault_was_disarmed_behind_its_back(case, results):
    line = result(results, "_sees_that_it_was_disarmed", case)
    assert line["present"]["ok"]
    assert not line["gone"]["ok"]


@pytest.mark.lie
@pytest.mark.parametrize("when", ["present", "gone"])
def test_an_agent_has_no_capability_also_after_it_was_killed_and_started_again(when, results):
    """As root, too: what an agent under test does wrong must not mount, trace, route or load anything."""
    line = result(results, "_rights", ("agent", {}))
    rights = line[when]
    assert line["present"]["pid"] != line["gone"]["pid"]
    assert rights["own CapEff"], "nobody here has any: this says nothing"
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert {name: rights[f"agent {name}"] for name in sets} == dict.fromkeys(sets, 0)
    assert rights["agent NoNewPrivs"] == 1


def test_every_kind_of_fault_is_disarmed_or_says_why_it_cannot_be():
    elsewhere = {kind for kind, _ in LINK_CASES}  # disarmed in test_links_real.py
    elsewhere |= {kind for kind, _ in TAP_CASES}  # disarmed in test_clients_real.py
    elsewhere |= {kind for kind, _ in STATE_CASES}  # disarmed in test_state_faults_real.py
    elsewhere |= {kind for run in RUNS for kind, *_ in disarmed_of(run)}  # disarmed in test_consul_faults_real.py
    elsewhere |= {kind for kind, *_ in NOMAD_CASES}  # disarmed in test_nomad_faults_real.py
    elsewhere |= {kind for kind, *_ in VAULT_CASES}  # disarmed in test_vault_faults_real.py
    elsewhere |= {kind for kind, _ in [*CHAOS_MESH_CASES, *LITMUS_CASES]}  # on fakes, in tests/unit/kubernetes
    assert {kind for kind, _ in DISARMED} | set(UNDISARMABLE) | elsewhere == set(registry.faults())
    assert not {kind for kind, _ in DISARMED} & set(UNDISARMABLE)
