"""Faults of Consul's state keep their contract on a real datacenter of either version, and cost what they say."""

import json
import sys

import pytest

import places
from hashidrill.core.util.processes import python_path
from hashidrill.lab.sandbox.sandbox import sandbox

SCRIPT = places.SUPPORT / "real_state_faults.py"
pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.needs("datacenter", "consul", "bbolt")]


OLD = pytest.param("1.10.3", marks=[pytest.mark.nightly, pytest.mark.needs("consul 1.10.3")])


@pytest.fixture(scope="module", params=["1.22.2", OLD])
def results(request, tmp_path_factory, binary, tell):
    """One datacenter a version, every check in it one after the other: {check: line}."""
    log = tmp_path_factory.mktemp("state") / "log"
    consul, bbolt = binary("consul", request.param), binary("bbolt")
    command = [
        sys.executable,
        str(SCRIPT),
        str(consul.path),
        "{root}",
        request.param,
        str(bbolt.path),
    ]
    with sandbox(command, {"PYTHONPATH": python_path()}, log) as box:
        lines = [json.loads(line) for line in box.output]
        box.process.wait()
    for line in lines:
        tell(f"\n{request.param}: {line}")
    return {line["check"]: line for line in lines}, log.read_text()[-4000:]


def result(results, check):
    found, log = results
    assert check in found, f"the sandbox ended before it came to this check:\n{log}"
    assert "error" not in found[check], found[check]["error"]
    return found[check]


def test_a_snapshot_is_saved_and_restored_exactly(results):
    line = result(results, "save_and_restore_keep_their_contract")
    assert line["saved"]["ok"]
    assert line["restored"]["ok"]
    assert line["gone"]["ok"]


def test_a_restore_that_did_not_happen_is_noticed(results):
    line = result(results, "a_restore_that_did_not_happen_is_noticed")
    assert line["armed"]["ok"]
    assert not line["lost"]["ok"]
    assert not line["disarmed"]["ok"]


def test_a_damaged_snapshot_is_noticed_and_not_restored(results):
    line = result(results, "a_save_that_is_damaged_is_noticed")
    assert line["armed"]["ok"]
    assert not line["disarmed"]["ok"]
    assert "there is no snapshot 'damaged' to restore" in line["refused"]


def test_bloat_keeps_its_contract(results):
    line = result(results, "bloat_keeps_its_contract")
    assert line["present"]["ok"]
    assert line["gone"]["ok"]
    figures = line["present"]["figures"]
    assert figures["bytes_per_commit"] > 20 * figures["bytes_per_commit_before"]
    assert line["gone"]["figures"]["bytes_per_commit"] < 2 * figures["bytes_per_commit_before"]


def test_a_bloated_leader_writes_twenty_times_as_much_and_compaction_brings_it_back(results):
    line = result(results, "a_bloated_leader_writes_many_times_as_much")
    assert line["bloated"] > 20 * line["fresh"]
    assert line["compacted"] < 2 * line["fresh"]
    assert line["compact"]["ok"]
    assert not line["disarmed"]["ok"]


@pytest.mark.parametrize("results", [OLD], indirect=True)
def test_bloat_by_writes_keeps_its_contract(results):
    """It takes more than a minute, of which one version is enough."""
    line = result(results, "bloat_by_writes_keeps_its_contract")
    assert line["present"]["ok"]
    assert line["gone"]["ok"]
