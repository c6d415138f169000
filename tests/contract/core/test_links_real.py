"""Faults on links keep their contract on a real datacenter; their proofs fail when they are disarmed behind them."""

import json
import sys
from pathlib import Path

import pytest

import hashidrill
import places
from fault_cases import LINK_CASES
from hashidrill.lab.sandbox.sandbox import sandbox

pytestmark = pytest.mark.live
SCRIPT = places.SUPPORT / "real_links.py"
DISARMABLE = (
    ("network.latency", "delete_toxics"),
    ("network.latency", "delete_toxics_of_the_canary"),
    ("network.latency", "flush_rules"),
    ("network.latency", "kill_toxiproxy"),
    ("network.latency", "stop_toxiproxy"),
    ("network.bandwidth", "delete_toxics_of_the_canary"),
    ("network.timeout", "delete_toxics_of_the_canary"),
    ("network.reset", "flush_rules"),
    ("network.slow_close", "delete_toxics_of_the_canary"),
    ("network.slicer", "delete_toxics_of_the_canary"),
    ("network.limit_data", "flush_rules"),
    ("toxiproxy.toxic", "delete_toxics"),
)


EACH_TIME = {"delete_toxics", "flush_rules"}
"""By what a fault is disarmed each time; by the others in `-m long`, as are other parameters of the same kind."""


@pytest.fixture(scope="session")
def reported(consul, toxiproxy, tmp_path_factory, request):
    """The cases of the tests that were selected, one after the other on one datacenter; then the disarmed ones."""
    of_this_file = [
        item.callspec.params
        for item in request.session.items
        if item.path == Path(__file__) and hasattr(item, "callspec")
    ]
    numbers = [params["number"] for params in of_this_file if "number" in params]
    disarming = [(params["kind"], params["by"]) for params in of_this_file if "by" in params]
    log = tmp_path_factory.mktemp("faults") / "log"
    command = [
        sys.executable,
        str(SCRIPT),
        str(consul.path),
        "{root}",
        consul.version,
        str(toxiproxy.path),
        json.dumps(numbers),
        json.dumps(disarming),
    ]
    with sandbox(command, {"PYTHONPATH": str(Path(hashidrill.__file__).parents[1])}, log) as box:
        lines = [json.loads(line) for line in box.output]
    checked = {(line["kind"], json.dumps(line["params"])): line for line in lines if "kind" in line}
    disarmed = {(line["disarmed"], line["by"]): line for line in lines if "disarmed" in line}
    assert (len(checked), len(disarmed)) == (len(numbers), len(disarming)), log.read_text()
    connections = next(line["connections"] for line in lines if "connections" in line)
    return checked, disarmed, connections


def _name(case):
    kind, params = case
    return f"{kind}-{'-'.join(map(str, params.values()))}"


def _cases():
    """The first case of each kind each time, the others in `-m long`."""
    seen = set()
    for number, case in enumerate(LINK_CASES):
        yield pytest.param(number, marks=[pytest.mark.long] if case[0] in seen else [], id=_name(case))
        seen.add(case[0])


@pytest.mark.parametrize("number", list(_cases()))
def test_a_fault_keeps_its_contract_on_the_real_thing(reported, number):
    kind, params = LINK_CASES[number]
    line = reported[0][kind, json.dumps(params)]
    assert "error" not in line, line["error"]
    figures = line["figures"]
    if "asked_s" in figures and not line["params"].get("jitter"):
        # 5 % or 10 ms, and what the canaries' exchanges take on this machine without it
        own_s = 2 * figures["own_s"]
        assert figures["measured_s"] == pytest.approx(
            figures["asked_s"], abs=max(0.05 * figures["asked_s"], 0.01) + own_s
        )
    if "asked_bytes_per_s" in figures:
        assert figures["measured_bytes_per_s"] == pytest.approx(figures["asked_bytes_per_s"], rel=0.05)


def _disarmed():
    return [pytest.param(*each, marks=[] if each[1] in EACH_TIME else [pytest.mark.long]) for each in DISARMABLE]


@pytest.mark.parametrize(("kind", "by"), _disarmed())
def test_the_proof_fails_when_the_fault_is_disarmed_behind_its_back(reported, kind, by):
    line = reported[1][kind, by]
    assert "error" not in line, line["error"]
    assert line["result"]["armed"], "it was not in force to begin with"
    assert not line["result"]["disarmed"], line["result"]["measured"]


def test_connections_older_than_a_slow_link_or_than_its_end_are_cut(reported):
    seen = reported[2]
    assert seen["before_s"] < 0.1
    assert seen["older"] == "ConnectionResetError"
    assert 0.2 <= seen["during_s"] < 0.3
    assert seen["proxied"] in {"ConnectionResetError", "BrokenPipeError"}  # also for the end of the connection
    assert seen["waiting"], "who waits for an answer on a proxied connection never hears of its end"
    assert seen["after_s"] < 0.1


def test_what_was_asked_for_beside_what_was_measured(reported, capsys):
    with capsys.disabled():
        print("\n\nfault, asked for, measured in force, measured afterwards")
        for line in reported[0].values():
            print(f"  {line['kind']:<18} {line['asked']:<46} {line['measured']:<52} {line['gone']}")
    assert all(line["asked"] for line in reported[0].values())
