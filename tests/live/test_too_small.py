"""A machine that is too small for an experiment says so at once."""

import pytest

from drills import Drill, experiment

MINUTES = [{"fault": "noop", "on": "consul:leader", "for": "10m"}]
VIEWS = {"kind": "consul.views", "count": 100_000, "profile": {"spike": {"to": "10000%", "for": "9m"}}}
WRITES = {"kind": "consul.kv.write", "rate": "10/s"}
BUSY = {
    "kind": "consul.kv.write",
    "rate": "10/s",
    "profile": {
        "search": {
            "until": ["kv-writes.errors > 99%"],
            "from": "110%",
            "to": "120%",
            "every": "2s",
            "for": "9m",
        }
    },
}


def test_a_run_that_wants_more_memory_than_there_is_ends_before_anything_is_started(tmp_path):
    loads = {"kv-writes": WRITES, "views": VIEWS}
    drill = Drill(experiment(tmp_path / "large.yaml", method=MINUTES, load=loads, clients=1), tmp_path)
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (3, "INVALID", "unfit"), drill.said
    [reason] = drill.result["invalid"]
    assert "GB for 2 agents and 10000000 views" in reason
    assert [entry.data["phase"] for entry in drill.journal if entry.event == "phase"] == ["start"]


@pytest.mark.lie
@pytest.mark.nightly
def test_a_search_that_this_machine_outbears_ends_the_run_within_seconds(tmp_path):
    drill = Drill(experiment(tmp_path / "outborne.yaml", method=MINUTES, load={"kv-writes": BUSY}), tmp_path)
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (3, "INVALID", "unfit"), drill.said
    [found] = [entry.data for entry in drill.journal if entry.event == "search"]
    assert (found["found"], [level for level, _ in found["tried"]]) == (False, [1.1, 1.2])
    assert "and this machine can take more: raise `to` of kv-writes" in drill.result["invalid"][0]
