"""`hashidrill bisect`, as a person types it, on real runs."""

from __future__ import annotations

import json

import pytest

from drills import hashidrill
from uber_commits import bisected, write_history

SMALL = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: small, title: The smallest one, why: It tests the search}
datacenter: {consul: {servers: 1, clients: 0, server_config: {performance: {raft_multiplier: 1}}}}
load:
  kv-writes: {kind: consul.kv.write, rate: 20/s, keys: 10, value: 2kB}
steady_state: {for: 1s, within: 10s, require: ["kv-writes.rate > 1/s"]}
method: [{mark: writing, for: 1s}]
recovery: {for: 1s}
expect: [{available_during: {load: kv-writes, fault: writing}}]
"""
GOOD = 'server = true\nlog_level = "INFO"\nleave_on_terminate = true\nlimits { kv_max_value_size = 524288 }\n'
BAD = 'server = true\nlog_level = "DEBUG"\nleave_on_terminate = false\nlimits { kv_max_value_size = 1000 }\n'


@pytest.mark.nightly
@pytest.mark.needs("datacenter", "consul 1.22.2")
def test_the_changed_key_that_breaks_a_real_datacenter_is_found_after_an_interrupt(tmp_path):
    """A KV limit below the size of the values: of four changed keys, that one. A run is cut short by --tries."""
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "good.hcl").write_text(GOOD)
    (tmp_path / "bad.hcl").write_text(BAD)

    first = hashidrill(
        "bisect", "--experiment", "small.yaml", "--good", "good.hcl", "--bad", "bad.hcl", "--log", "log.jsonl",
        "--tries", "3", "--json", cwd=tmp_path, within_s=200,
    )  # fmt: skip
    assert first.returncode == 3, first.stderr
    done = hashidrill("bisect", "--resume", "log.jsonl", "--json", cwd=tmp_path, within_s=400)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["found"] == ["limits.kv_max_value_size"]
    assert "524288 -> 1000  (bad.hcl:4:" in found["answer"]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.needs("datacenter")
def test_the_commit_of_64_that_doubles_the_p99_is_found_with_at_most_8_builds(tmp_path):
    history = write_history(tmp_path / "m3", 41)

    found = bisected(history)

    assert found["found"] == [history.culprit]
    assert len(found["candidates"]) <= 8
