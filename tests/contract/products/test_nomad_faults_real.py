"""Faults of Nomad keep their contract on a real datacenter, and their proofs fail when they are disarmed."""

import json
import sys

import pytest

import hashidrill
import places
from hashidrill.lab.sandbox.sandbox import sandbox
from nomad_fault_cases import NOMAD_CASES

pytestmark = [pytest.mark.live, pytest.mark.nomad, pytest.mark.needs("datacenter", "nomad")]
KINDS = [kind for kind, *_ in NOMAD_CASES]


@pytest.fixture(scope="module")
def reported(binary, tmp_path_factory):
    log = tmp_path_factory.mktemp("nomad") / "faults.log"
    script = places.SUPPORT / "real_nomad_faults.py"
    command = [sys.executable, str(script), str(binary("nomad").path), "{root}"]
    path = f"{hashidrill.__path__[0]}/.."
    with sandbox(command, {"PYTHONPATH": path}, log) as box:
        lines = [json.loads(line) for line in box.output]
    assert lines, log.read_text()
    return lines


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_keeps_its_contract_on_the_real_thing(reported, kind):
    [line] = [line for line in reported if line.get("kind") == kind]
    assert "error" not in line, line["error"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_proof_fails_when_the_fault_is_disarmed_behind_its_back(reported, kind):
    [line] = [line for line in reported if line.get("disarmed") == kind]
    assert "error" not in line, line["error"]


def test_what_was_asked_for_beside_what_was_measured(reported, capsys):
    with capsys.disabled():
        for line in reported:
            print("\n  " + json.dumps(line), end="")
    assert reported[0]["ready_s"] < 60
