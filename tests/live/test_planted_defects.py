"""What is wrong with a fault, a load, an objective or a datacenter shows in the verdict and in the exit code."""

import json

import pytest

from drills import Drill, drilled, environment, experiment, hashidrill

SLOW = {"on": "consul:leader", "with": {"delay": "100ms"}, "for": "2s"}
FSYNC = {"fault": "disk.latency", **SLOW}


def run_of(name, **written):
    """The run of an experiment with this in it, ahead of the test."""
    return drilled(lambda folder: Drill(experiment(folder / f"{name}.yaml", **written), folder / "runs"))


@run_of("idle", method=[{"fault": "planted.idle", **SLOW}])
def test_a_fault_whose_apply_does_nothing_makes_the_run_invalid(drill):
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (3, "INVALID", "fault")
    assert "fault.unproven" in drill.events
    assert "fault.proven" not in drill.events
    assert any("not proven in force" in reason and "fsync takes" in reason for reason in drill.result["invalid"])


@run_of("stuck", method=[{"fault": "planted.stuck", **SLOW}])
def test_a_fault_that_cannot_be_reverted_ends_with_exit_code_4(drill):
    assert (drill.exit_code, drill.result["outcome"]) == (4, "revert")
    assert "fault.proven" in drill.events
    assert "fault.stuck" in drill.events
    assert any("the planted fault stays" in reason for reason in drill.result["invalid"])


@run_of(
    "fading",
    method=[{"fault": "planted.fading", **SLOW, "for": "4s"}],
    expect=[{"available_during": {"load": "kv-writes"}}, {"no_acknowledged_write_lost": {"load": "kv-writes"}}],
)
def test_a_fault_that_vanishes_half_way_through_makes_invalid_what_is_judged_from_then_on(drill):
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (3, "INVALID", "complete")
    assert drill.events.index("fault.proven") < drill.events.index("fault.faded") < drill.events.index("fault.gone")
    assert {each["finding"] for each in drill.result["expectations"]} == {"invalid"}
    assert drill.result["invalid"] == []
    assert any("no longer in force just before its revert" in doubt for doubt in drill.result["doubts"])


@run_of(
    "quitter",
    method=[{**FSYNC, "for": "10s"}],
    load={"kv-writes": {"kind": "planted.quitter", "rate": "30/s", "keys": 20, "value": "128B"}},
    expect=[{"available_during": {"load": "kv-writes"}}, {"leadership_stays": {}}],
)
def test_a_load_that_stops_half_way_through_spoils_whatever_is_measured_meanwhile(drill):
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (3, "INVALID", "complete")
    assert {each["finding"] for each in drill.result["expectations"]} == {"invalid"}
    assert any("load kv-writes stopped: it started no operation for" in doubt for doubt in drill.result["doubts"])


@run_of(
    "liar",
    method=[FSYNC],
    load={"kv-writes": {"kind": "planted.liar", "rate": "30/s", "keys": 20, "value": "128B"}},
)
def test_a_claimed_write_that_is_not_there_is_lost_and_its_key_is_named(drill):
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (1, "FAIL", "complete")
    finding, text = drill.finding("no_acknowledged_write_lost")
    assert finding == "broken"
    assert "lost acknowledged writes on 3 keys" in text
    assert all(f"hashidrill/kv-writes/{n}" in text for n in range(3))


@run_of("slo", method=[FSYNC], expect=[{"writes_recover": {"load": "kv-writes", "p50_below": "1ms", "within": "2s"}}])
def test_an_objective_of_1_ms_fails_with_a_message_that_a_person_can_read(drill):
    assert (drill.exit_code, drill.result["verdict"]) == (1, "FAIL")
    finding, text = drill.finding("writes_recover")
    assert finding == "broken"
    assert "kv-writes" in text
    assert "1ms" in text
    assert "2s" in text
    assert text.splitlines()[0][:40] in drill.said  # as the person at the terminal sees it


@run_of("unsteady", method=[FSYNC], require=["kv-writes.latency.p50 < 1us"], steady="1s", within="3s")
def test_a_datacenter_that_never_gets_steady_is_invalid_and_no_fault_is_applied(drill):
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (3, "INVALID", "steady-state")
    assert "fault.intent" not in drill.events
    assert any("kv-writes.latency.p50 < 1us (measured" in reason for reason in drill.result["invalid"])


@pytest.mark.smoke
@run_of(
    "guarded",
    method=[{**FSYNC, "with": {"delay": "900ms"}, "for": "30s"}],
    guardrails=["kv-writes.latency.p50 > 300ms for 2s"],
)
def test_a_guardrail_that_trips_reverts_and_ends_the_method(drill):
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (1, "FAIL", "guardrail")
    assert drill.events.index("guardrail") < drill.events.index("fault.reverted") < drill.events.index("fault.gone")
    gone = next(entry.t_ns for entry in drill.journal if entry.event == "fault.gone")
    proven = next(entry.t_ns for entry in drill.journal if entry.event == "fault.proven")
    assert gone - proven < 20e9


def test_the_planted_kinds_are_found_through_entry_points_alone():
    with_them = json.loads(hashidrill("list", "faults", "--json").stdout)
    without = json.loads(hashidrill("list", "faults", "--json", env=environment(PYTHONPATH="")).stdout)
    kinds = {row["kind"] for row in with_them} - {row["kind"] for row in without}
    assert kinds == {"planted.fading", "planted.idle", "planted.reluctant", "planted.stuck"}


_ON_BOLTDB = {"version": "1.22.2", "server_config": {"raft_logstore": {"backend": "boltdb"}}}


@pytest.mark.lie
@pytest.mark.nightly
@pytest.mark.parametrize(
    "consul",
    [
        pytest.param(of, marks=pytest.mark.needs("datacenter", f"consul {of['version']}"), id=of["version"])
        for of in (_ON_BOLTDB, {"version": "1.10.3"})
    ],
)
def test_a_profile_of_a_slow_disk_or_a_busy_cpu_names_neither_the_free_pages_nor_the_streams(consul, tmp_path):
    """Both are as sick as raft/bloated-leader and incidents/roblox-2021-attempt-2, which ask the same of a profile."""
    path = experiment(
        tmp_path / "look-alikes.yaml",
        method=[
            {**FSYNC, "name": "slow-disk", "with": {"delay": "200ms"}, "for": "9s"},
            {"mark": "busy", "at": "14s", "for": "9s"},
        ],
        load={
            "kv-writes": {
                "kind": "consul.kv.write",
                "rate": "100/s",
                "profile": {"spike": {"to": "500%", "at": "12s", "for": "12s"}},
            },
            # without them a leader with a slow disk is idle
            "kv-reads": {"kind": "consul.kv.read", "rate": "400/s", "via": "consul:leader"},
            "views": {"kind": "consul.views", "service": "watched", "count": 300},
        },
        expect=[
            {"profile_names": {"function": function, "fault": fault, "host": "leader", "share": "10%", "times": 5}}
            for function in ("(?i)freelist", r"consul/stream\.")
            for fault in ("slow-disk", "busy")
        ],
        steady="6s",
        servers=3,
        clients=1,
    )
    written = json.loads(path.read_text()) | {"profiles": "always"}
    written["datacenter"]["consul"] |= consul
    path.write_text(json.dumps(written))
    findings = Drill(path, tmp_path / "runs").result["expectations"]
    assert [each["finding"] for each in findings] == ["broken"] * 4, findings
