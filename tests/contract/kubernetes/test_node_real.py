"""A node of Kubernetes of our own: it runs pods, changes nothing of the machine, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import places
from hashidrill.core.errors import MachineError
from hashidrill.lab.provision.binaries import cache_root
from kubernetes import node as nodes
from polled import wait

COUNTED = (
    "fs/dentry-state",
    "fs/file-nr",
    "fs/inode-",
    "fs/quota",
    "kernel/ns_last_pid",
    "kernel/random",
    "kernel/pty",
)
"""What counts by itself: no setting."""
READY_WITHIN_S = 30.0


def sysctls():
    """All settings of the machine that can be read."""
    found = {}
    for path in Path("/proc/sys").rglob("*"):
        name = str(path.relative_to("/proc/sys"))
        if not name.startswith(COUNTED):
            try:
                found[name] = path.read_text(errors="replace")
            except OSError:
                continue
    return found


def state():
    """What a node could have left or changed."""
    links = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    return {
        "sysctls": sysctls(),
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "addresses": [line.split()[:4] for line in links.splitlines()],
        "cgroups": [str(each) for place in nodes.cgroup_mounts() for each in Path(place).glob("hashidrill-node-*")],
        "folders": [each.name for each in (cache_root() / "node" / "running").glob("*")],
    }


def pod(name, *, image="web", labels=None, on=None):
    container = {"name": "app", "image": f"hashidrill.test/{image}:1", "imagePullPolicy": "Never"}
    ready = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "nodeName": on,
            "terminationGracePeriodSeconds": 1,
            "containers": [{**container, "readinessProbe": ready}],
        },
    }


@pytest.mark.live
@pytest.mark.kubernetes
@pytest.mark.needs("kubernetes-node")
class TestNode:
    def test_it_is_ready_in_half_a_minute(self, kubernetes_node, tell):
        tell(f"ready in {kubernetes_node.ready_s:.1f} s: {kubernetes_node.timings}")
        assert kubernetes_node.ready_s < READY_WITHIN_S

    def test_a_pod_runs_and_is_reached_asked_and_read(self, kubernetes_node):
        one = kubernetes_node
        one.apply([pod("first")])
        try:
            one.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=30s")
            address = one.get("pod", "first")["status"]["podIP"]
            url = f"http://{address}:8080/"
            assert one.call_inside(lambda: urllib.request.urlopen(url, timeout=3).read()) == b"it works\n"
            assert one.kubectl("exec", "first", "--", "sh", "-c", "echo said > /proc/1/fd/1; hostname") == "first\n"
            assert one.kubectl("logs", "first") == "said\n"
            forwarded = one.forward(address, 8080)
            said = urllib.request.urlopen(f"http://127.0.0.1:{forwarded.port}/", timeout=3).read()
            assert said == b"it works\n"
        finally:
            one.kubectl("delete", "pod", "first", "--wait=true", "--timeout=30s")

    @pytest.mark.lie
    def test_its_pods_are_apart_from_this_machine(self, kubernetes_node):
        """What we reach through its network is reached by nobody else: the proof of a partition depends on it."""
        kubernetes_node.apply([pod("apart")])
        try:
            kubernetes_node.kubectl("wait", "--for=condition=Ready", "pod/apart", "--timeout=30s")
            address = kubernetes_node.get("pod", "apart")["status"]["podIP"]
            with pytest.raises(OSError):  # noqa: PT011 - by whichever way this machine's network refuses
                urllib.request.urlopen(f"http://{address}:8080/", timeout=1)
        finally:
            kubernetes_node.kubectl("delete", "pod", "apart", "--wait=true", "--timeout=30s")

    @pytest.mark.lie
    def test_an_account_without_a_role_may_do_nothing(self, kubernetes_node):
        """RBAC is on: otherwise each test of a missing right would pass for nothing."""
        said = kubernetes_node.kubectl("auth", "can-i", "list", "pods", "--as=nobody", check=False)
        assert said == "no\n"

    def test_what_the_kubelet_sets_it_sets_in_files_of_its_own(self, kubernetes_node):
        """It wants panic_on_oops; on a machine where that is set already, another of its settings differs."""
        names = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
        inside = kubernetes_node.enter(["cat", *(f"/proc/sys/{name}" for name in names)]).stdout.split()
        assert inside == ["1", "10", "1"]
        assert inside != [Path("/proc/sys", name).read_text().strip() for name in names]


@pytest.mark.live
@pytest.mark.kubernetes
@pytest.mark.needs("kubernetes-node")
class TestNothingIsLeft:
    def test_the_machine_is_as_it_was_while_it_runs_and_afterwards(self):
        before = state()
        with nodes.node(kubelets=2) as one:
            one.apply([pod("last", on="node-2")])
            one.kubectl("wait", "--for=condition=Ready", "pod/last", "--timeout=30s")
            address = one.get("pod", "last")["status"]["podIP"]
            assert one.call_inside(lambda: urllib.request.urlopen(f"http://{address}:8080/", timeout=3).read())
            one.kubectl("exec", "last", "--", "nc", "-w", "3", nodes.SERVICE, "443", "-e", "/bin/true")
            during = state()
            inside = processes(one.cgroup)
            assert len(inside) > 8
            for same in ("sysctls", "mounts", "addresses"):
                assert during[same] == before[same], same
            assert during["cgroups"] != before["cgroups"]
        assert state() == before
        assert alive(inside) == []

    @pytest.mark.parametrize("of", ["node-1", "node-2"])
    def test_everything_is_gone_when_the_first_process_of_a_node_dies(self, of):
        with nodes.node(kubelets=2) as one:
            inside = processes(one.cgroup)
            if of == nodes.NAME:
                os.kill(one.pid, signal.SIGKILL)
            else:
                one.enter(["kill", "-KILL", (one.folder / of / "ready").read_text()])
            wait("the node to be gone", lambda: not alive(inside), 10, 0.1)
            with pytest.raises(MachineError, match="the node is gone"):
                one.kubectl("get", "nodes")

    def test_everything_is_gone_when_whoever_started_it_is_killed(self):
        """What stays are empty cgroups and a folder, which the next node removes."""
        before = state()
        code = "from kubernetes.node import node\nwith node() as one:\n  print(one.cgroup, flush=True)\n  input()\n"
        with subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=places.SUPPORT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            cgroup = process.stdout.readline().strip()
            inside = processes(cgroup)
            assert len(inside) > 5
            process.kill()
        wait("the node to be gone", lambda: not alive(inside), 10, 0.1)
        nodes.sweep(cache_root() / "node" / "running")
        assert state() == before


def processes(cgroup):
    return [
        int(pid)
        for folder in Path("/sys/fs/cgroup/pids", cgroup).rglob("")
        for pid in (folder / "cgroup.procs").read_text().split()
    ]


def alive(pids):
    """Those that still run: whoever was killed may wait for its parent to take note."""
    found = []
    for pid in pids:
        try:
            state = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in {"Z", "X"}:
            found.append((pid, state))
    return found


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (lambda patch: patch.setattr(os, "geteuid", lambda: 1000), "needs root"),
        (lambda patch: patch.setattr(nodes, "cgroup_mounts", lambda: {"/sys/fs/cgroup": ""}), "cgroup v1"),
        (lambda patch: patch.setenv("PATH", "/nowhere"), "unshare, nsenter"),
    ],
)
def test_a_machine_that_cannot_have_one_is_told_why_in_one_line(monkeypatch, plant, why):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(nodes, "cgroup_mounts", lambda: {f"/{name}": name for name in nodes.CONTROLLERS})
    plant(monkeypatch)
    with pytest.raises(MachineError, match=why) as told, nodes.node():
        pass
    assert "\n" not in str(told.value)
