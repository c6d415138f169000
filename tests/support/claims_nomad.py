"""Nomad agents for the tests of the audit's claims: on the loopback, each in process and mount namespaces of its own.

So nothing outlives an agent: neither its tasks nor what it mounts for them. It sees no cgroups, because those that it
makes have one name on a machine, and nobody removes them.
"""

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import httpx2
import pytest

from hashidrill.lab.sandbox.sandbox import work_parent
from polled import wait
from ports import free_ports

_CONFINED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_WITHOUT_CGROUPS = ("sh", "-c", 'umount -R -l /sys/fs/cgroup && exec "$@"', "sh")
_SLOW_FINGERPRINTS = "env_aws,env_azure,env_digitalocean,env_gce,cni,plugins_cni,bridge,vault"
CLIENT_WITHIN_S = 60
ANSWERS_WITHIN_S = 30
"""A busy machine keeps an agent from answering for seconds."""
SLEEPS = {"command": "/bin/sleep", "args": ["600"]}
FAILS = {"command": "/bin/false"}


class Nomad:
    """An agent. `config` is added to what keeps it small, quick, and away from the Consul of this machine."""

    def __init__(self, binary, folder, name, **config):
        self.name = name
        self.http, self.rpc, self.serf = free_ports(3)
        self.url = f"http://127.0.0.1:{self.http}"
        self.log = folder / f"{name}.log"
        [nobody] = free_ports(1)
        document = {
            "name": name,
            "data_dir": str(folder / name),
            "bind_addr": "127.0.0.1",
            "ports": {"http": self.http, "rpc": self.rpc, "serf": self.serf},
            "advertise": dict.fromkeys(("http", "rpc", "serf"), "127.0.0.1"),
            "disable_update_check": True,
            "consul": {"address": f"127.0.0.1:{nobody}"},
            **config,
        }
        file = folder / f"{name}.json"
        file.write_text(json.dumps(document))
        with self.log.open("w") as log:
            command = [*_CONFINED, *_WITHOUT_CGROUPS, binary.path, "agent", "-config", file]
            # its tasks' sockets: a path that is short enough for them, and that is gone with the agent
            self._temporary = tempfile.TemporaryDirectory(prefix="nomad-", dir=work_parent())
            environment = {**os.environ, "TMPDIR": self._temporary.name}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def said(self, text):
        return self.log.read_text().count(text)

    def get(self, path):
        """The answer's document; None while there is none. Raises AssertionError once the agent has ended."""
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        try:
            answer = httpx2.get(f"{self.url}/v1/{path}", timeout=ANSWERS_WITHIN_S)
        except httpx2.HTTPError:
            return None
        return answer.json() if answer.status_code == 200 else None

    def leader(self):
        return self.get("status/leader") or None

    def nodes(self, status="ready"):
        """The names of the clients that this server takes for ready."""
        return {each["Name"] for each in self.get("nodes") or () if each["Status"] == status}

    def run(self, job):
        answer = httpx2.post(f"{self.url}/v1/jobs", json={"Job": job}, timeout=ANSWERS_WITHIN_S)
        assert answer.status_code == 200, answer.text

    def allocs(self, job):
        """The newest last."""
        return sorted(self.get(f"job/{job}/allocations") or (), key=lambda each: each["CreateIndex"])

    def task(self, job, which=-1):
        """The state of the one task of an allocation; an empty one as long as there is none."""
        found = self.allocs(job)
        return next(iter((found[which]["TaskStates"] or {}).values()), {}) if found else {}

    def events(self, job):
        return [event["Type"] for event in self.task(job).get("Events") or ()]

    def group(self, job):
        """The one group of a job as the server has it, defaults filled in."""
        [group] = self.get(f"job/{job}")["TaskGroups"]
        return group

    def signal(self, number):
        """To the agent itself, below what confines it."""
        [agent] = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(agent), number)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)  # the first process of the namespace: all others in it end with it
        self.process.wait(10)
        self._temporary.cleanup()


def server(**more):
    return {"enabled": True, "bootstrap_expect": 1, **more}


def client(**more):
    options = {"fingerprint.denylist": _SLOW_FINGERPRINTS}
    return {"enabled": True, "network_interface": "lo", "options": options, **more}


RAW_EXEC = {"raw_exec": [{"config": {"enabled": True}}]}


def job(name, task, *, kind="service", restart=None, **group):
    """A job of one group of one task, which runs as root and without a container. Durations are in nanoseconds."""
    small = {"Resources": {"CPU": 20, "MemoryMB": 20}, "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1}}
    ran = {"Name": "task", "Driver": "raw_exec", **small, **task}
    policy = {} if restart is None else {"RestartPolicy": restart}
    return {
        "ID": name,
        "Type": kind,
        "Datacenters": ["*"],
        "TaskGroups": [
            {"Name": "group", "Count": 1, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [ran], **policy, **group}
        ],
    }


@pytest.fixture(scope="session")
def nomad(binary):
    if os.geteuid() != 0:
        pytest.skip("Nomad's clients run as root")
    return binary("nomad")


def both(binary, folder, name, **more):
    """A server that is a client too, ready for jobs."""
    agent = Nomad(
        binary, folder, name, server=server(), client=client(**more.pop("client", {})), plugin=RAW_EXEC, **more
    )
    try:
        wait("the node", agent.nodes, within_s=CLIENT_WITHIN_S)
    except BaseException:
        agent.stop()
        raise
    return agent
