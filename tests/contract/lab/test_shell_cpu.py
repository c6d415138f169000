"""A shell of a trainee has the CPU of its host, by the kernel's own limit."""

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import hashidrill
from hashidrill.lab.local.inside.hostd import HostDaemon
from hashidrill.lab.sandbox import cgroups
from hashidrill.lab.sandbox.rpc import Server

CORES, BURNT_S = 0.05, 0.1
WORK = """
import json, sys, time
sys.path.insert(0, {source!r})
from hashidrill.gamedays.training.inside import own
own.enter(json.loads({spec!r}))
ends, began = time.process_time() + {burnt}, time.monotonic()
while time.process_time() < ends:
    pass
print(time.monotonic() - began)
"""


@pytest.fixture
def host():
    """The hostd of a host that has a small part of a core."""
    with tempfile.TemporaryDirectory(prefix="hd-") as folder:  # a socket's path is short
        yield from _host(Path(folder))


def _host(root):
    group = cgroups.make(f"hashidrill-{root.name}/host")
    if group is None:
        pytest.skip("this user may have no cgroup")
    group.limit(CORES)
    daemon = HostDaemon(0)
    daemon._cgroups = group.procs_files()  # as `join`, which moves all that is in this namespace
    (root / "s").mkdir()
    with Server(str(root / "s/host.host"), daemon.answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield root
        server.shutdown()
    group.path.rmdir()
    group.path.parent.rmdir()
    cgroups.give_back()


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.may_skip("where root, or a delegated cgroup, is there, the same is shown")
def test_what_a_shell_computes_takes_as_long_as_its_host_makes_it(host):
    """A limit is a bound from above: a busy machine makes it longer, and nothing makes it shorter."""
    spec = json.dumps({"root": str(host), "host": "host"})
    text = WORK.format(source=str(Path(hashidrill.__file__).parents[1]), spec=spec, burnt=BURNT_S)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120)
    assert float(done.stdout) > BURNT_S / CORES / 2
