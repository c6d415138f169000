"""What is to break a host keeps root's rights over it and sees its processes alone; agents beside it have none."""

import json
import sys

import pytest

from hashidrill.core.util.processes import python_path
from hashidrill.lab.sandbox.sandbox import sandbox

pytestmark = pytest.mark.needs("datacenter")
INSIDE = """
import json, os, subprocess, sys, time
from hashidrill.lab.local.inside.hostd import Armed
from hashidrill.lab.local.inside.hostd import HostDaemon
from hashidrill.core.util import syscalls as sc

folder = sys.argv[1]
elsewhere = subprocess.Popen(["/bin/sleep", "60"])
sc.unshare(sc.CLONE_NEWNET)
shown = os.path.join(folder, "proc")
armed = Armed(shown)
sc.disarm_programs()
daemon = HostDaemon(os.getpid(), folder=folder, armed=armed)
bounds = {}
for name, how in (("agent", {}), ("breaker", {"armed": True})):
    log = os.path.join(folder, name)
    daemon.do_start(name, argv=["/bin/sh", "-c", "grep CapBnd /proc/self/status; sleep 60"], log=log, **how)
    until = time.monotonic() + 20
    while not open(log).read().endswith("\\n") and time.monotonic() < until:
        time.sleep(0.02)
    bounds[name] = int(open(log).read().split()[1], 16)
pids = {name: daemon.do_agent(name)["pid"] for name in bounds}
until = time.monotonic() + 20
while not set(map(str, pids.values())) <= set(os.listdir(shown)) and time.monotonic() < until:
    time.sleep(0.02)
seen = os.listdir(shown)
command = open(os.path.join(shown, str(pids["agent"]), "cmdline")).read()
os.kill(pids["agent"], 9)
daemon.do_agent("agent")
os.waitpid(pids["agent"], 0) if daemon.do_agent("agent")["pid"] else None
until = time.monotonic() + 20
while str(pids["agent"]) in os.listdir(shown) and time.monotonic() < until:
    time.sleep(0.02)
print(json.dumps({"bounds": bounds, "pids": pids, "seen": seen, "elsewhere": elsewhere.pid, "command": command,
                  "after": os.listdir(shown)}), flush=True)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    log = tmp_path_factory.mktemp("armed") / "log"
    with sandbox([sys.executable, "-c", INSIDE, "{root}"], {"PYTHONPATH": python_path()}, log) as box:
        line = box.output.readline()
    assert line, log.read_text()[-3000:]
    return json.loads(line)


@pytest.mark.lie
def test_it_keeps_the_rights_that_agents_lose(said):
    assert said["bounds"]["agent"] == 0
    assert said["bounds"]["breaker"] != 0


@pytest.mark.lie
def test_it_sees_the_processes_of_its_own_host_and_no_other(said):
    assert {str(pid) for pid in said["pids"].values()} <= {*said["seen"]}
    assert str(said["elsewhere"]) not in said["seen"]
    assert "sleep 60" in said["command"], "each is what /proc has of it"


def test_a_process_that_ended_is_shown_no_more(said):
    assert str(said["pids"]["agent"]) not in said["after"]
