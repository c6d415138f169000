"""Hosts of our own to carry faults to: a user and network namespace each, in which programs of ours are root."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from hashidrill.staging.carriers.shell import STARTER, handed, program

PATIENCE_S = 40.0
"""How long a test waits for what must come: longer than any busy machine needs."""
FSYNCS = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    os.pwrite(file, b"x", 0)
    began = time.monotonic()
    try:
        os.fsync(file)
        error = 0
    except OSError as failed:
        error = failed.errno
    print(round(time.monotonic() - began, 4), error, flush=True)
    time.sleep(0.01)
"""
"""A process that writes, syncs, and says how long each fsync took: what is under test, and an observer of its own."""


def environment():
    """Of this moment: what is started knows the tests' own folder, by which the check for leaks knows it. With the
    folders that root's tools are in, as an ordinary user may lack them."""
    return os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"}


class Box:
    """One such host. Whatever runs in it ends with it."""

    def __init__(self, outer=None):
        """`outer`: a box whose user this one shares, so that links can lead from one to the other."""
        into = ["unshare", "--user", "--map-root-user"] if outer is None else [*outer.inside, "unshare"]
        self._holder = subprocess.Popen(
            [*into, "--net", "sh", "-c", "ip link set lo up; echo up; exec setpriv --pdeathsig KILL sleep 100000"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self._holder.stdout.readline() == "up\n"
        self.pid = self._holder.pid
        self.inside = [
            "nsenter",
            "--target",
            str(self.pid),
            "--user",
            "--net",
            "--preserve-credentials",
            "--setuid",
            "0",
            "--setgid",
            "0",
        ]
        self._started = []

    def start(self, command, **more):
        started = subprocess.Popen([*self.inside, *command], **({"env": environment()} | more))
        self._started.append(started)
        return started

    def run(self, *command):
        return subprocess.run(
            [*self.inside, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=True, env=environment()
        ).stdout

    def tables(self):
        """As nft says, which no agent is asked for."""
        items = json.loads(self.run("nft", "-j", "list", "tables"))["nftables"]
        return [item["table"]["name"] for item in items if "table" in item]

    def close(self):
        for one in self._started:
            with contextlib.suppress(ProcessLookupError):
                one.send_signal(signal.SIGCONT)
                one.kill()
            one.wait()
            for pipe in (one.stdin, one.stdout, one.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()


class Linked:
    """Boxes that reach each other at `addresses`, over a bridge in a box around them."""

    def __init__(self, addresses):
        self.outer = Box()
        self.boxes = {name: Box(self.outer) for name in addresses}
        self.outer.run("ip", "link", "add", "bridge0", "type", "bridge")
        self.outer.run("ip", "link", "set", "bridge0", "up")
        for number, (name, address) in enumerate(addresses.items()):
            box, port = self.boxes[name], f"p{number}"
            self.outer.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(box.pid))
            self.outer.run("ip", "link", "set", port, "master", "bridge0", "up")
            box.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
            box.run("ip", "link", "set", "eth0", "up")

    def close(self):
        for box in (*self.boxes.values(), self.outer):
            box.close()


class RealAgent:
    """An agent in a box, with pipes as sshd gives them."""

    def __init__(
        self, box, folder, kind, args, *, fault_id="f", lease_s=1000, deadline_s=1000, renewals="lines", **more
    ):
        self.folder = folder
        spec = {
            "id": fault_id,
            "kind": kind,
            "args": args,
            "lease_s": lease_s,
            "deadline_s": deadline_s,
            "renewals": renewals,
            "folder": str(folder),
            "who": "test",
            **more,
        }
        self.process = box.start(
            [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._write(handed(program(spec)))
        self._rest = b""
        self.events = []

    def _write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def tell(self, **line):
        self._write(json.dumps(line).encode() + b"\n")

    def event(self, *names):
        """The next of these events. None when the agent, and its guardian, have ended without one."""
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                self.events.append(json.loads(line))
                if self.events[-1]["event"] in names:
                    return self.events[-1]
            if select.select([self.process.stdout], [], [], 1.0)[0]:
                part = os.read(self.process.stdout.fileno(), 65536)
                if not part:
                    return None
                self._rest += part
        raise AssertionError(f"none of {names} within {PATIENCE_S:g}s; there were {self.events}")

    def applied(self):
        said = self.event("applied", "refused", "failed")
        assert said is not None, "the agent ended without a word"
        assert said["event"] == "applied", said
        return said

    @property
    def guardian(self):
        return int(self.events[-1]["guardian"].partition("@")[0])

    def notes(self):
        return sorted(one.name for one in self.folder.iterdir()) if self.folder.exists() else []


def undone(box, folder, fault_id="f"):
    """What a later process, which finds the note alone, says."""
    told = {"undo": True, "id": fault_id, "folder": str(folder)}
    process = box.start([sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    said, _ = process.communicate(program(told).encode(), timeout=PATIENCE_S)
    return json.loads(said.splitlines()[-1])


def reference(pid):
    return f"{pid}@{stat(pid)[1]}"


def stat(pid):
    """(state, start time) of a process; ("", 0) when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[19])


def wait_for(condition, what):
    ends = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < ends, f"waited {PATIENCE_S:g}s for {what}"
        time.sleep(0.05)
    return found
