"""A user without any right, in a home of their own: runs the command line as that user."""

import contextlib
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
from drills import CLI
from hashidrill.lab.sandbox.sandbox import work_parent
from leaks import VARIABLE, Ground

USER = "nobody"
_SOURCE = Path(hashidrill.__file__).parents[1]
_LONGEST_S = 150


class OrdinaryUser:
    """Runs the command line as somebody without any right, in a home of their own."""

    def __init__(self, home, *found):
        self.account = pwd.getpwnam(USER)
        self.home = home
        self.work = home / "work"
        for folder in (home, self.work):
            folder.mkdir(exist_ok=True)
            os.chown(folder, self.account.pw_uid, self.account.pw_gid)
        self.environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "HOME": str(home),
            VARIABLE: str(self.work),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "SHELL": "/bin/sh",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([str(_SOURCE), *site.getsitepackages()]),
            **{f"HASHIDRILL_{binary.path.name.upper()}": str(_readable(binary, home)) for binary in found},
        }
        self.python = self._usable_python()
        self.ground = Ground(self.work)

    def _usable_python(self):
        """One of this version that they may run, with our dependencies; None where there is none."""
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        # setpriv itself gets through doors that what it starts does not: so it has to start itself once more
        trial = (
            "import subprocess, sys, hashidrill.faces.cli.app, hashidrill.core.loads.in_generator; "
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
            ["setpriv", *ids, "--inh-caps=-all", *command],
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )


def _readable(binary, home):
    """The binary where everybody may read it: the cache of root is behind a closed door."""
    path = home / binary.path.name
    try:
        path.hardlink_to(binary.path)
    except OSError:
        shutil.copyfile(binary.path, path)
        path.chmod(0o755)
    return path


@contextlib.contextmanager
def ordinary_user(*found):
    """`found` are binaries that they may use. At the end, nothing of theirs is left on this machine."""
    home = Path(tempfile.mkdtemp(prefix="hdt-user-", dir=work_parent().parent))
    home.chmod(0o755)
    try:
        one = OrdinaryUser(home, *found)
        if one.python is None:
            pytest.skip(
                f"{USER} can run no python here that has our dependencies: not {sys.executable}, nor the system's"
            )
        yield one
        assert one.ground.left_after(10) == []
    finally:
        shutil.rmtree(home, ignore_errors=True)
