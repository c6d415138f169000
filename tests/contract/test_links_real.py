"""Faults on links keep their contract on a real datacenter; their proofs fail when they are disarmed behind them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hashidrill
import places
from fault_cases import LINK_CASES
from hashidrill.sandbox.sandbox import sandbox

pytestmark = pytest.mark.live
SCRIPT = places.SUPPORT / "real_links.py"
DISARMABLE = (
    ("network.latency", "delete_toxics"), ("network.latency", "delete_toxics_of_the_canary"),
    ("network.latency", "flush_rules"), ("network.latency", "kill_toxiproxy"), ("network.latency", "stop_toxiproxy"),
    ("network.bandwidth", "delete_toxics_of_the_canary"), ("network.timeout", "delete_toxics_of_the_canary"),
    ("network.reset", "flush_rules"), ("network.slow_close", "delete_toxics_of_the_canary"),
    ("network.slicer", "delete_toxics_of_the_canary"), ("network.limit_data", "flush_rules"),
    ("toxiproxy.toxic", "delete_toxics"),
)  # fmt: skip


@pytest.fixture(scope="session")
def reported(consul, toxiproxy, tmp_path_factory):
    """All cases, checked one after the other on one datacenter, in the order of LINK_CASES; then the disarmed ones."""
    log = tmp_path_factory.mktemp("faults") / "log"
    command = [sys.executable, str(SCRIPT), str(consul.path), "{root}", consul.version, str(toxiproxy.path)]
    with sandbox(command, {"PYTHONPATH": str(Path(hashidrill.__file__).parents[1])}, log) as box:
        lines = [json.loads(line) for line in box.output]
    checked = [line for line in lines if "kind" in line]
    disarmed = {(line["disarmed"], line["by"]): line for line in lines if "disarmed" in line}
    assert len(checked) == len(LINK_CASES), log.read_text()
    connections = next(line["connections"] for line in lines if "connections" in line)
    return checked, disarmed, connections


def _name(case):
    kind, params = case
    return f"{kind}-{'-'.join(map(str, params.values()))}"


@pytest.mark.parametrize("number", range(len(LINK_CASES)), ids=[_name(case) for case in LINK_CASES])
def test_a_fault_keeps_its_contract_on_the_real_thing(reported, number):
    line = reported[0][number]
    assert (line["kind"], line["params"]) == LINK_CASES[number]
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


@pytest.mark.parametrize(("kind", "by"), DISARMABLE)
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
        for line in reported[0]:
            print(f"  {line['kind']:<18} {line['asked']:<46} {line['measured']:<52} {line['gone']}")
    assert all(line["asked"] for line in reported[0])
