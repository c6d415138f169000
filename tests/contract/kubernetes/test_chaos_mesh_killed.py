"""A runner that is killed at moments chosen by a seed, while a real Chaos Mesh breaks a real Consul for it.

`HASHIDRILL_KILLS=20 uv run pytest -m nightly tests/contract/kubernetes/test_chaos_mesh_killed.py` kills at twenty
moments, 3 by default. HASHIDRILL_ALONE (1) more are healed by nobody: their objects last for two minutes.
"""

from __future__ import annotations

import os
import secrets

import pytest

from hashidrill.lab.provision.products import KUBERNETES_VERSIONS
from real_chaos_kills import LASTS_S, OWN_S, SLACK_S
from sandboxed_cases import CONSUL, played

VERSIONS = dict(KUBERNETES_VERSIONS)
KILLS = int(os.environ.get("HASHIDRILL_KILLS", "3"))
ALONE = int(os.environ.get("HASHIDRILL_ALONE", "1"))
SEED = os.environ.get("HASHIDRILL_KILL_SEED") or str(secrets.randbelow(10**6))
pytestmark = [
    pytest.mark.live,
    pytest.mark.nightly,
    pytest.mark.timeout(300 + 60 * KILLS + 240 * ALONE),
    pytest.mark.needs("datacenter", f"consul {CONSUL}", "go", *(f"{name} {one}" for name, one in VERSIONS.items())),
]


@pytest.fixture(scope="module")
def cases(binary, definitions, tmp_path_factory, tell):
    tell(f"HASHIDRILL_KILL_SEED={SEED}")
    return played(
        "real_chaos_kills.py",
        definitions,
        binary=binary,
        versions=VERSIONS,
        tell=tell,
        log=tmp_path_factory.mktemp("killed") / "log",
        HASHIDRILL_KILLS=str(KILLS),
        HASHIDRILL_ALONE=str(ALONE),
        HASHIDRILL_KILL_SEED=SEED,
    )


def nothing_is_left(line):
    assert (line["healed"]["exit"], line["healed"]["left"]) == (0, []), line["healed"]["said"]
    assert line["again"]["exit"] == 0, line["again"]["said"]
    assert line["then"] not in {"T", "gone"}
    assert line["answers"]


@pytest.mark.lie
@pytest.mark.parametrize("number", range(1, KILLS + 1))
def test_what_a_run_left_that_was_killed_at_any_moment_is_healed(cases, number):
    line = cases[f"moment:{number}"]
    nothing_is_left(line)
    if number == 1:
        assert line["process"] == "T", "there was something to heal"
        assert [kind for kind, *_ in line["found"]] == ["PhysicalMachineChaos"]
    if line["process"] == "T":
        assert line["found"], "a fault is in force, and no object says whose it is"


@pytest.mark.lie
def test_a_fault_on_a_server_that_autopilot_removed_meanwhile_is_healed(cases):
    line = cases["lost"]
    assert line["process"] == "T"
    nothing_is_left(line)
    assert "consul-2 is not a member of theirs any more" in line["healed"]["said"]


@pytest.mark.parametrize("number", range(1, ALONE + 1))
def test_a_fault_whose_runner_is_killed_and_that_nobody_heals_ends_by_itself(cases, number):
    line = cases[f"alone:{number}"]
    assert line["process"] == "T"
    assert [kind for kind, *_ in line["found"]] == ["PhysicalMachineChaos"]
    assert OWN_S / 2 < line["alone_s"] < LASTS_S + OWN_S + SLACK_S, "by its own duration, and not by anything else"
    nothing_is_left(line)
