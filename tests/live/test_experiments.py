"""The whole library, run as a user would; and what raft/slow-leader-disk is there to show, in figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from drills import hashidrill

from hashidrill.library import experiment_name, list_experiments
from hashidrill.recording import Recording

NOT_RUN: dict[str, str] = {}
"""Experiments that no test runs: name -> why."""

SLOW_LEADER = "raft/slow-leader-disk"
LIBRARY = [experiment_name(path) for path in list_experiments()]


@pytest.fixture(scope="session")
def run_of(tmp_path_factory):
    """Runs an experiment, once a session; (exit code, what --json printed)."""
    runs = tmp_path_factory.mktemp("runs")
    done = {}

    def run(name):
        if name not in done:
            result = hashidrill("run", name, "--json", "--runs", runs, within_s=240)
            [line] = json.loads(result.stdout)
            done[name] = (result, line)
        return done[name]

    return run


def test_what_is_not_run_exists_and_has_a_reason():
    assert set(NOT_RUN) <= set(LIBRARY)
    assert all(NOT_RUN.values())


@pytest.mark.parametrize("name", [name for name in LIBRARY if name not in NOT_RUN])
def test_an_experiment_of_the_library_passes(run_of, name):
    result, line = run_of(name)
    assert line["verdict"] == "PASS", line
    assert result.returncode == 0, result.stderr
    recording = Recording(line["recording"])
    assert recording.faults
    assert all(window.proven and window.gone_ns for window in recording.faults)
    assert Path(line["report"]).stat().st_size < 2_000_000


class TestSlowLeaderDisk:
    """The leader's disk takes 500 ms for each fsync, for 15 s."""

    @pytest.fixture
    def recording(self, run_of):
        return Recording(run_of(SLOW_LEADER)[1]["recording"])

    def p50(self, recording, start_ns, end_ns):
        return recording.operations("kv-writes").between(start_ns, end_ns).percentile_s(50)

    def test_the_observer_measures_what_was_asked_for(self, recording):
        [window] = recording.faults
        assert window.proof["figures"]["measured_s"] == pytest.approx(0.5, rel=0.02, abs=0.002)

    def test_writes_take_twenty_times_as_long_while_it_is_in_force(self, recording):
        [window] = recording.faults
        steady = self.p50(recording, recording.phases["steady"][0], recording.phases["steady"][1])
        sick = self.p50(recording, window.proven_ns, window.reverted_ns)
        assert sick >= 20 * steady, (sick, steady)

    def test_writes_are_quick_again_within_ten_seconds(self, recording):
        [window] = recording.faults
        later = window.gone_ns + 10_000_000_000
        ops = recording.operations("kv-writes").between(later, recording.phases["recovery"][1])
        assert len(ops) > 100
        assert np.percentile(ops.latency_s, 50) < 0.3

    @pytest.mark.parametrize("hypothesis", ["green_but_sick", "no_acknowledged_write_lost", "writes_recover"])
    def test_what_it_teaches_is_seen(self, run_of, hypothesis):
        found = {row["hypothesis"]: row["finding"] for row in run_of(SLOW_LEADER)[1]["expectations"]}
        assert found[hypothesis] == "held"

    def test_the_slow_leader_stays_which_is_a_known_issue(self, run_of):
        found = {row["hypothesis"]: row for row in run_of(SLOW_LEADER)[1]["expectations"]}
        assert found["leadership_leaves"]["finding"] == "known"
        assert found["leadership_leaves"]["known_issue"] == "hashicorp/consul#22064"


class TestSlowLeaderLinks:
    """What the Raft leader sends to its followers takes 200 ms longer, for 15 s."""

    @pytest.fixture
    def recording(self, run_of):
        return Recording(run_of("raft/slow-leader-links")[1]["recording"])

    def test_a_write_takes_one_to_two_of_the_slow_round_trips(self, recording):
        [window] = recording.faults
        operations = recording.operations("kv-writes").between(window.proven_ns, window.reverted_ns)
        assert 0.2 <= operations.percentile_s(50) < 0.4

    def test_the_run_says_which_toxiproxy_it_used(self, recording):
        assert recording.run["versions"]["toxiproxy-server"] == "2.12.0"
        assert len(recording.run["binaries"]["toxiproxy-server"]["sha256"]) == 64
