"""`hashidrill bisect`, as a person types it, on real runs."""

import json
import shlex

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
        *shlex.split("bisect --experiment small.yaml --good good.hcl --bad bad.hcl --log log.jsonl --tries 3 --json"),
        cwd=tmp_path,
        within_s=200,
    )
    assert first.returncode == 3, first.stderr
    done = hashidrill("bisect", "--resume", "log.jsonl", "--json", cwd=tmp_path, within_s=400)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["found"] == ["limits.kv_max_value_size"]
    assert "524288 -> 1000  (bad.hcl:4:" in found["answer"]


def rollout(end: int, **limits: str) -> str:
    """A configuration whose 22 settings outside of `limits` all differ between the ends 0 and 1, and harm nobody."""
    lines = ["server = true", *(f"{key} = {values[end]}" for key, values in HARMLESS.items())]
    return "\n".join([*lines, "limits {", *(f"  {key} = {value}" for key, value in limits.items()), "}"]) + "\n"


HARMLESS = {
    "log_level": ('"INFO"', '"DEBUG"'),
    "leave_on_terminate": ("true", "false"),
    "raft_snapshot_threshold": ("16384", "20000"),
    "raft_snapshot_interval": ('"30s"', '"40s"'),
    "raft_trailing_logs": ("10240", "12000"),
    "session_ttl_min": ('"10s"', '"12s"'),
    "check_update_interval": ('"5m"', '"6m"'),
    "disable_keyring_file": ("false", "true"),
    "dns_config": (
        '{ max_stale = "87600h" node_ttl = "1s" only_passing = false enable_truncate = false udp_answer_limit = 3 }',
        '{ max_stale = "80000h" node_ttl = "5s" only_passing = true enable_truncate = true udp_answer_limit = 4 }',
    ),
    "autopilot": (
        '{ cleanup_dead_servers = true last_contact_threshold = "200ms" max_trailing_logs = 250 }',
        '{ cleanup_dead_servers = false last_contact_threshold = "300ms" max_trailing_logs = 300 }',
    ),
    "performance": (
        '{ leave_drain_time = "5s" rpc_hold_timeout = "7s" }',
        '{ leave_drain_time = "6s" rpc_hold_timeout = "8s" }',
    ),
    "telemetry": (
        "{ disable_hostname = false filter_default = true }",
        "{ disable_hostname = true filter_default = false }",
    ),
    "gossip_lan": ("{ retransmit_mult = 4 suspicion_mult = 4 }", "{ retransmit_mult = 5 suspicion_mult = 5 }"),
}


def searched(folder, good: str, bad: str) -> dict:
    """What bisect says of two configurations of 24 different keys."""
    (folder / "small.yaml").write_text(SMALL)
    (folder / "good.hcl").write_text(good)
    (folder / "bad.hcl").write_text(bad)
    done = hashidrill(
        *shlex.split("bisect --experiment small.yaml --good good.hcl --bad bad.hcl --json"),
        cwd=folder,
        within_s=1500,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.needs("datacenter", "consul 1.22.2")
def test_the_one_of_24_changed_keys_that_breaks_is_found_with_at_most_8_datacenters(tmp_path):
    good = rollout(0, kv_max_value_size="524288", txn_max_req_len="524288")
    found = searched(tmp_path, good, rollout(1, kv_max_value_size="1000", txn_max_req_len="600000"))

    assert "this change breaks it, of 24:" in found["answer"]
    assert found["found"] == ["limits.kv_max_value_size"]
    assert len(found["candidates"]) <= 8


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.needs("datacenter", "consul 1.22.2")
def test_two_keys_of_24_that_only_break_together_are_found(tmp_path):
    """A limit of 2 writes a second harms nobody until it is enforced."""
    limits = '{{ mode = "{}" read_rate = -1 write_rate = {} }}'
    good = rollout(0, request_limits=limits.format("disabled", -1))
    found = searched(tmp_path, good, rollout(1, request_limits=limits.format("enforcing", 2)))

    assert found["found"] == ["limits.request_limits.mode", "limits.request_limits.write_rate"]
    assert "these 2 changes together break it, of 24:" in found["answer"]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.needs("datacenter")
def test_the_commit_of_64_that_doubles_the_p99_is_found_with_at_most_8_builds(tmp_path):
    history = write_history(tmp_path / "m3", 41)

    found = bisected(history)

    assert found["found"] == [history.culprit]
    assert len(found["candidates"]) <= 8
