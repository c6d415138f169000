"""Without root: user namespaces are enough for whole runs and for datacenters that stay up.

When the tests themselves run as an ordinary user, all of the other live tests show this, and these are left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import hashidrill
from drills import CLI, experiment
from hashidrill.sandbox.sandbox import work_parent
from leaks import VARIABLE, Ground

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already"),
    pytest.mark.may_skip("as an ordinary user, all other live tests show this"),
    pytest.mark.needs("setpriv"),
]

USER = "nobody"
_SOURCE = Path(hashidrill.__file__).parents[1]
_LONGEST_S = 90
FAULTS = [
    {"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "100ms"}, "for": "2s"},
    {"fault": "network.partition", "on": "host:consul-2", "with": {"from": "host:consul-3"}, "for": "2s"},
    {"fault": "process.pause", "on": "host:consul-3", "at": "1s", "for": "1s"},
    {"fault": "cpu.throttle", "on": "host:consul-3", "with": {"cores": 0.3}, "at": "10s", "for": "2s"},
]


class OrdinaryUser:
    """Runs the command line as somebody without any right, in a home of their own."""

    def __init__(self, home, consul):
        self.account = pwd.getpwnam(USER)
        self.home = home
        self.work = home / "work"
        for folder in (home, self.work):
            folder.mkdir(exist_ok=True)
            os.chown(folder, self.account.pw_uid, self.account.pw_gid)
        self.environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(home), VARIABLE: str(self.work),
            "XDG_STATE_HOME": str(home / "state"), "XDG_CACHE_HOME": str(home / "cache"), "SHELL": "/bin/sh",
            "HASHIDRILL_CONSUL": str(_readable(consul, home)), "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([str(_SOURCE), *site.getsitepackages()]),
        }  # fmt: skip
        self.python = self._usable_python()
        self.ground = Ground(self.work)

    def _usable_python(self):
        """One of this version that they may run, with our dependencies; None where there is none."""
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        # setpriv itself gets through doors that what it starts does not: so it has to start itself once more
        trial = (
            "import subprocess, sys, hashidrill.cli.app, hashidrill.loads.in_generator; "
            "subprocess.run([sys.executable, '-c', ''], check=True)"
        )
        for path in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
            if self._run([path, "-c", trial]).returncode == 0:
                return path
        return None

    def __call__(self, *arguments):
        done = self._run([self.python, *CLI[1:], *map(str, arguments)])
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done

    def _run(self, command):
        ids = [f"--reuid={self.account.pw_uid}", f"--regid={self.account.pw_gid}", "--clear-groups"]
        return subprocess.run(
            ["setpriv", *ids, "--inh-caps=-all", *command], env=self.environment, cwd=self.home,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LONGEST_S, check=False,
        )  # fmt: skip


def _readable(consul, home):
    """The binary where everybody may read it: the cache of root is behind a closed door."""
    path = home / "consul"
    try:
        path.hardlink_to(consul.path)
    except OSError:
        shutil.copyfile(consul.path, path)
        path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def user(consul):
    home = Path(tempfile.mkdtemp(prefix="hdt-user-", dir=work_parent().parent))
    home.chmod(0o755)
    try:
        one = OrdinaryUser(home, consul)
        if one.python is None:
            pytest.skip(
                f"{USER} can run no python here that has our dependencies: not {sys.executable}, nor the system's"
            )
        yield one
        assert one.ground.left_after(10) == []
    finally:
        shutil.rmtree(home, ignore_errors=True)


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
    up = user("up", "--servers", "1", "--clients", "0", "--expose", "0", "--json")
    assert up.returncode == 0, up.stderr
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(user, "down")
        members = user("shell", "consul-1", "--", "consul", "members")
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
