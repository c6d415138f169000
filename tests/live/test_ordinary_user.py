"""Without root: user namespaces are enough for whole runs and for datacenters that stay up.

When the tests themselves run as an ordinary user, all of the other live tests show this, and these are left out.
"""

import contextlib
import json
import os
from pathlib import Path

import pytest

from drills import experiment
from ordinary_user import ordinary_user

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already"),
    pytest.mark.may_skip("as an ordinary user, all other live tests show this"),
    pytest.mark.needs("setpriv"),
]

FAULTS = [
    {"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "100ms"}, "for": "2s"},
    {"fault": "network.partition", "on": "host:consul-2", "with": {"from": "host:consul-3"}, "for": "2s"},
    {"fault": "process.pause", "on": "host:consul-3", "at": "1s", "for": "1s"},
    {"fault": "cpu.throttle", "on": "host:consul-3", "with": {"cores": 0.3}, "at": "10s", "for": "2s"},
]


@pytest.fixture(scope="module")
def user(consul):
    with ordinary_user(consul) as one:
        yield one


def test_a_run_with_faults_of_every_family_passes(user):
    path = experiment(user.home / "short.yaml", method=FAULTS, servers=3, clients=0)
    path.chmod(0o644)
    done = user("run", path, "--json", "--runs", user.home / "runs")
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)
    assert (result["verdict"], result["outcome"], result["invalid"]) == ("PASS", "complete", [])
    journal = (Path(result["recording"]) / "journal.jsonl").read_text()
    assert journal.count('"fault.proven"') == journal.count('"fault.gone"') == len(FAULTS)
    assert user.ground.left_after(10) == []


def test_a_datacenter_stands_and_a_shell_gets_in(user):
    up = user("lab", "up", "--servers", "1", "--clients", "0", "--expose", "0", "--json")
    assert up.returncode == 0, up.stderr
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(user, "lab", "down")
        members = user("lab", "shell", "consul-1", "--", "consul", "members")
        assert members.returncode == 0, members.stderr
        assert " alive " in members.stdout
    assert user.ground.left_after(10) == []


def test_doctor_says_what_this_user_cannot_have(user):
    done = user("doctor", "--json")
    assert done.returncode == 0, done.stdout
    capabilities = {row["name"]: row for row in json.loads(done.stdout)["capabilities"]}
    assert capabilities["namespaces"]["ok"]
    group = capabilities["CPU cgroup"]
    assert group["ok"] or "cpu.throttle" in group["cost"]
