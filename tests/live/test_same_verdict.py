"""One experiment, broken by the local datacenter's own fault and by a real Chaos Mesh: the verdict is the same.

`HASHIDRILL_REPEATS=3 uv run pytest -m nightly tests/live/test_same_verdict.py` makes each run three times.
"""

import json
import os
import time
from dataclasses import dataclass

import pytest

from drills import Drill, environment
from hashidrill.core.recording.reader import Recording
from hashidrill.lab.provision.products import KUBERNETES_VERSIONS

pytestmark = [
    pytest.mark.live,
    pytest.mark.nightly,
    pytest.mark.needs("datacenter", "consul 1.22.2", *(f"{name} {version}" for name, version in KUBERNETES_VERSIONS)),
]
REPEATS = int(os.environ.get("HASHIDRILL_REPEATS", "1"))
STEP = "frozen-leader"
BACKENDS = {"process.pause": {}, "chaos_mesh.physical.process": {"chaos_mesh": {}}}
"""All that the two files differ in: who freezes the leader, and what the datacenter needs for it."""
HOLDS = "held"
TAKEN_OVER = "15s"
"""From when it was asked for: a controller and chaosd took 3 to 7 s to freeze it, and the election is 2 to 4 s."""
SAFE = {"no_acknowledged_write_lost": {"load": "kv-writes"}}
EXPECTATIONS = {
    "a-new-leader-takes-over": [
        {"leadership_leaves": {"fault": STEP, "within": TAKEN_OVER}},
        {"leader_elected": {"fault": STEP, "within": TAKEN_OVER}},
        {"writes_recover": {"load": "kv-writes", "fault": STEP, "p50_below": "300ms", "within": "4s"}},
        SAFE,
    ],
    "the-leader-stays": [{"leadership_stays": {"fault": STEP}}, SAFE],
}
JUDGED = {
    "a-new-leader-takes-over": (0, "PASS", set()),
    "the-leader-stays": (1, "FAIL", {"leadership_stays"}),
}
"""Of each: exit code, verdict, and which expectations must not hold. A frozen leader loses its lease of 500 ms."""


def written(folder, name, kind):
    """The experiment with that name, broken by that kind of fault."""
    path = folder / f"{kind}.yaml"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "hashidrill/v1",
                "kind": "Experiment",
                "metadata": {
                    "name": name,
                    "title": "The leader freezes",
                    "why": "Who injects must not change the verdict",
                },
                "datacenter": {
                    "consul": {"servers": 3, "clients": 0, "config": {"performance": {"raft_multiplier": 1}}},
                    **BACKENDS[kind],
                },
                "load": {
                    "kv-writes": {
                        "kind": "consul.kv.write",
                        "rate": "20/s",
                        "keys": 50,
                        "value": "128B",
                        "via": "consul:followers",
                    },
                },
                "steady_state": {"for": "2s", "within": "20s", "require": ["kv-writes.latency.p50 < 300ms"]},
                "method": [{"name": STEP, "fault": kind, "on": "consul:leader", "for": TAKEN_OVER}],
                "recovery": {"for": "6s"},
                "expect": EXPECTATIONS[name],
            },
            indent=1,
        )
    )
    return path


@dataclass(frozen=True)
class Judged:
    """What a run was judged to be; equal for two runs that mean the same."""

    exit_code: int
    verdict: str
    outcome: str
    invalid: tuple
    findings: tuple


def run_of(path, folder):
    """(how it was judged, its one fault, its texts)."""
    drill = Drill(path, folder / "runs", env=environment(), within_s=240)
    result = drill.result
    found = tuple((one["hypothesis"], one["finding"]) for one in result["expectations"])
    judged = Judged(drill.exit_code, result["verdict"], result["outcome"], tuple(result["invalid"]), found)
    [window] = Recording(drill.recording).faults
    return judged, window, [one["text"] for one in result["expectations"]]


@pytest.mark.lie
@pytest.mark.parametrize("name", EXPECTATIONS)
def test_who_injects_does_not_change_the_verdict(name, tmp_path, tell):
    exit_code, verdict, broken = JUDGED[name]
    seen = []
    for n in range(1, REPEATS + 1):
        for kind in BACKENDS:
            folder = tmp_path / f"{n}-{kind}"
            folder.mkdir()
            began = time.monotonic()
            judged, window, texts = run_of(written(folder, name, kind), folder)
            tell(
                f"{name} {n} of {REPEATS}, {kind} on {window.host}: {judged.verdict} {judged.findings} {texts}"
                f" ({time.monotonic() - began:.1f}s)"
            )
            assert (window.kind, window.proven, window.gone_ns is not None) == (kind, True, True)
            assert (judged.exit_code, judged.verdict, judged.outcome, judged.invalid) == (
                exit_code,
                verdict,
                "complete",
                (),
            ), texts
            assert {hypothesis for hypothesis, finding in judged.findings if finding != HOLDS} == broken, texts
            seen.append(judged)
    assert len(seen) == REPEATS * len(BACKENDS)
    assert len(set(seen)) == 1, seen
