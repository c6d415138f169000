"""`hashidrill capacity`, as a person types it, on the smallest of datacenters."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from drills import hashidrill

SMALL = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: small, title: The smallest one, why: It tests the search}
datacenter: {consul: {servers: 1, clients: 0, config: {performance: {raft_multiplier: 1}}}}
load:
  kv-writes: {kind: consul.kv.write, rate: 20/s, keys: 10}
steady_state: {for: 1s, require: ["kv-writes.errors < 50%"]}
method: [{fault: noop, on: "consul:leader", for: 1s}]
recovery: {for: 1s}
expect: [{no_acknowledged_write_lost: {load: kv-writes}}]
"""


@pytest.mark.nightly
def test_the_search_runs_real_experiments_and_names_the_bracket(tmp_path):
    """The SLO is one that breaks at a known place: the rate itself, between 20/s and 40/s."""
    (tmp_path / "small.yaml").write_text(SMALL)
    done = hashidrill(
        "capacity",
        "small.yaml",
        "--vary",
        "load.kv-writes.rate",
        "--until",
        "kv-writes.rate < 30/s",
        "--until",
        "kv-writes.latency.p50 < 5s",
        "--tries",
        "2",
        "--repeat",
        "1",
        "--json",
        cwd=tmp_path,
        within_s=200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["held"], found["not_held"]) == ("20/s", "40/s")
    assert found["answer"] == "it holds at load.kv-writes.rate = 20/s, and fails at 40/s"
    written = [YAML(typ="safe").load((Path(p["recording"]) / "experiment.yaml").read_text()) for p in found["probes"]]
    assert [each["load"]["kv-writes"]["rate"] for each in written] == ["20/s", "40/s"]
    assert (tmp_path / "small.yaml").read_text() == SMALL
