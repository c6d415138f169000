"""Detection on this very machine: what it says agrees with what can be done, and nothing of it is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hashidrill.core.util.commands import tool
from hashidrill.lab.provision import machine

# A user namespace has sysctls of its own: in one, user namespaces can be forbidden without touching the machine.
FORBIDDEN = """
echo 0 > /proc/sys/user/max_user_namespaces
exec "$0" -c '
import json, os
os.geteuid = lambda: 1000  # the trial is that of an ordinary user
from hashidrill.lab.provision import machine
trials = machine.run_trials("user")
print(json.dumps([trials, machine.namespace_fix(root=False)]))
'
"""


DROP = """
from pyroute2.nftables.expressions import verdict
from pyroute2.nftables.main import NFTables
with NFTables(nfgen_family=1) as kernel:
    kernel.table("add", name="t")
    kernel.chain("add", table="t", name="c", hook="input", type="filter", policy=1)
    kernel.rule("add", table="t", chain="c", expressions=[verdict(code=0)])
    assert len(kernel.get_rules()) == 1
"""


@pytest.fixture(scope="module")
def own():
    trials = machine.run_trials("own")
    if trials.get("namespaces"):
        pytest.skip(f"no namespaces here: {trials['namespaces']}")
    return trials


def test_what_the_trials_found_is_what_unshare_finds(own):
    """By util-linux and pyroute2, which share nothing with the trials."""
    flags = ["--net", "--mount", "--pid", "--fork"] + (["--user", "--map-root-user"] if os.geteuid() else [])
    assert subprocess.run(["unshare", *flags, "true"], check=False).returncode == 0
    loaded = subprocess.run(["unshare", *flags, sys.executable, "-c", DROP], check=False).returncode == 0
    assert loaded == (own["drop"] == "")


def test_the_trials_of_packet_rules_alone_say_the_same_as_those_of_everything(own):
    kinds = {kind: own[kind] for kind in machine.PACKET_FAULTS}
    assert machine.run_trials("packets") == {"namespaces": "", **kinds}


@pytest.mark.needs("tc")
def test_netem_is_found_exactly_where_tc_finds_it(own):
    tc = tool("tc")
    flags = ["--net"] + (["--user", "--map-root-user"] if os.geteuid() else [])
    command = ["unshare", *flags, tc, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    assert (subprocess.run(command, capture_output=True, check=False).returncode == 0) == (own["netem"] == "")


def test_user_namespaces_that_are_forbidden_are_found_out_and_the_setting_is_named(own):
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", FORBIDDEN, sys.executable]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert '"namespaces": "[Errno 28] unshare: No space left on device"' in run.stdout, run.stderr
    assert "sudo sysctl -w user.max_user_namespaces=15000" in run.stdout


@pytest.mark.long
def test_detection_leaves_nothing_behind():
    group = f"hashidrill-doctor-{os.getpid()}"

    def traces():
        return (
            sorted(path.name for path in Path("/sys/class/net").iterdir()),
            Path("/proc/self/mounts").read_text(),
            [str(path) for under in ("", "*/") for path in Path("/sys/fs/cgroup").glob(under + group)],
        )

    before = traces()
    found = machine.detect()
    assert traces() == before
    assert before[2] == []
    names = [capability.name for capability in found]
    assert len(set(names)) == len(names)
    for expected in ("namespaces", "packet rules (nf_tables)", "FUSE", "CPU cgroup", "netem", "Go", "consul 1.22.2"):
        assert expected in names


@pytest.mark.long
def test_whatever_is_missing_says_what_it_costs():
    assert all(capability.cost for capability in machine.detect() if not capability.ok)
