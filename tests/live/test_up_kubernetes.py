"""`lab up --kubernetes`, as a person types it, and what a machine slows down by the Chaos Mesh that it stands up."""

import contextlib
import json
import os
import time
from pathlib import Path

import psutil
import pytest

from drills import CLI, Drill, environment, experiment, hashidrill
from hashidrill.core.recording.reader import Recording
from hashidrill.lab.provision.products import KUBERNETES_VERSIONS
from leaks import VARIABLE, Ground

pytestmark = [
    pytest.mark.live,
    pytest.mark.kubernetes,
    pytest.mark.needs(
        "datacenter",
        "consul 1.22.2",
        "iptables",
        "tc",
        "ipset",
        "stress-ng",
        *(f"{name} {version}" for name, version in KUBERNETES_VERSIONS),
    ),
]
KIND = "chaos_mesh.physical.bandwidth"
OBJECTS = "/apis/chaos-mesh.org/v1alpha1/namespaces/chaos-mesh/physicalmachinechaos"
ASK = """
import base64, json, ssl, sys, urllib.error, urllib.request
config = json.load(open(sys.argv[1]))
cluster, [user] = config["clusters"][0]["cluster"], config["users"]
context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
head = {"Authorization": "Bearer " + user["user"]["token"]}
request = urllib.request.Request(cluster["server"] + sys.argv[2], headers=head)
try:
    print(urllib.request.urlopen(request, context=context, timeout=20).read().decode())
except urllib.error.HTTPError as error:
    sys.exit(f"HTTP {error.code}")
"""
"""What kubectl does, for machines without one."""
LISTED = "import urllib.request as u; print(u.urlopen('http://10.73.0.12:31767/api/experiments/').read().decode())"
"""What the chaosd of consul-2 has done."""


class Standing:
    """A datacenter that is up, and the command line with which it was started."""

    def __init__(self, work, env):
        self.env, self.ground = env, Ground(work)
        began = time.monotonic()
        done = self("lab", "up", "--kubernetes", "--servers", "3", "--clients", "0", "--json")
        self.ready_s = time.monotonic() - began
        assert done.returncode == 0, done.stderr
        self.one = json.loads(done.stdout)

    def __call__(self, *arguments, within_s=180):
        return hashidrill(*arguments, env=self.env, within_s=within_s)

    def shell(self, host, *command):
        done = self("lab", "shell", host, "--", *command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def asks(self, path, config="$KUBECONFIG"):
        """In the shell of a host, by the kubeconfig that it has."""
        return json.loads(self.shell("consul-2", "sh", "-c", f'python3 -c "$0" {config} {path}', ASK))

    def resident_mb(self):
        """(name, resident memory) of each process of the control plane, and of each chaosd."""
        first = (Path(self.one["root"]) / "pid").read_text().strip()
        inside = Path(f"/proc/{first}/ns/pid").readlink()
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if Path(f"/proc/{process.pid}/ns/pid").readlink() == inside:
                    found.setdefault(process.name(), []).append(process.memory_info().rss / 1e6)
        return {name: [round(one) for one in each] for name, each in found.items() if max(each) > 20}


@pytest.fixture(scope="module")
def standing(tmp_path_factory, tell):
    work = Path(os.environ[VARIABLE]) / "up-kubernetes"
    work.mkdir()
    folder = tmp_path_factory.mktemp("up")
    home = folder / "home"
    home.mkdir()
    one = Standing(work, environment(XDG_STATE_HOME=folder / "state", **{VARIABLE: work}))
    tell(f"up --kubernetes was ready after {one.ready_s:.1f} s; resident memory in MB: {one.resident_mb()}")
    try:
        yield one
    finally:
        down = one("lab", "down")
        left = one.ground.left_after(10)
        with contextlib.suppress(OSError):
            work.rmdir()
        assert (down.returncode, down.stdout) == (0, "default is down; nothing is left\n"), down.stderr
        assert left == []


def test_it_says_where_its_kubeconfig_and_its_attach_file_are(standing):
    status = standing("lab", "status")
    for what in ("kubeconfig", "attach file"):
        path = standing.one["left"][what]
        assert f"default: {what} {path}" in status.stdout
        assert Path(path).stat().st_mode & 0o777 == 0o600
    assert {"etcd-1", "kube-1", "controller-1", "consul-3"} <= {row["name"] for row in standing.one["hosts"]}


def test_a_shell_asks_its_api_server_as_the_administrator(standing):
    kinds = standing.asks("/apis/chaos-mesh.org/v1alpha1")["resources"]
    assert "PhysicalMachineChaos" in {one["kind"] for one in kinds}
    assert standing.asks(OBJECTS)["items"] == []


def test_its_other_user_may_do_what_experiments_need_and_nothing_else(standing):
    config = Path(standing.one["left"]["kubeconfig"]).with_name("hashidrill.kubeconfig")
    assert standing.asks(OBJECTS, config)["items"] == []
    refused = standing("lab", "shell", "consul-2", "--", "python3", "-c", ASK, str(config), "/api/v1/secrets")
    assert (refused.returncode, refused.stderr.strip()) == (1, "HTTP 403")


@pytest.mark.lie
def test_an_experiment_runs_against_it_as_against_one_of_somebody_else(standing, tmp_path):
    """From a host of its own network that no fault means; chaosd stops the one agent that it is to stop."""
    stop = {"fault": "chaos_mesh.physical.process", "on": "host:consul-2", "for": "4s"}
    load = {"kv-writes": {"kind": "consul.kv.write", "rate": "10/s", "keys": 10, "value": "64B"}}
    expect = [{"no_acknowledged_write_lost": {"load": "kv-writes"}}]
    path = experiment(tmp_path / "stopped.yaml", method=[stop], load=load, expect=expect, servers=3)
    attach, runs = standing.one["left"]["attach file"], tmp_path / "runs"
    inside = ("lab", "shell", "kube-1", "--", *CLI)
    armed = standing(*inside, "staging", "arm", str(path), "--attach", attach, "--for", "10m")
    assert armed.returncode == 0, armed.stderr
    done = standing(*inside, "run", str(path), "--attach", attach, "--json", "--runs", str(runs), within_s=180)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["verdict"] == "PASS"
    assert standing.asks(OBJECTS)["items"] == []
    [kept] = json.loads(standing.shell("kube-1", "python3", "-c", LISTED))
    assert len(json.loads(kept["recover_command"])["PIDs"]) == 1, "three agents of that name run on this machine"


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """The experiment of the library, in a datacenter of its own."""
    return Drill("physical/slow-leader-by-chaosd", tmp_path_factory.mktemp("slow"), env=environment(), within_s=240)


def test_a_leader_that_chaosd_makes_slow_is_proven_judged_and_well_again(slow):
    assert (slow.exit_code, slow.result["verdict"], slow.result["outcome"]) == (0, "PASS", "complete"), slow.said
    assert slow.result["invalid"] == []
    [window] = Recording(slow.recording).faults
    assert window.kind == KIND
    assert window.proven
    assert window.gone_ns is not None
    asked, measured = (window.proof["figures"][f"{name}_bytes_per_s"] for name in ("asked", "measured"))
    assert 0.25 * asked <= measured <= 1.5 * asked


def test_its_recording_holds_no_token_of_the_cluster(slow):
    """The API server's own file of tokens is on its host's disk alone."""
    for path in slow.recording.rglob("*"):
        if path.is_file() and path.suffix in {".json", ".jsonl", ".log", ".yaml", ".html"}:
            assert "system:masters" not in path.read_text(errors="replace"), path
