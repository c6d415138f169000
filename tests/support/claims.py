"""What the tests of the audit's claims share: Consul agents on the loopback, programs, and how late the machine is."""

import json
import os
import re
import subprocess
import threading
import time

import httpx2
import pytest

from ports import free_ports

START_WITHIN_S = 20
"""For a test whose binary may have to be built first: Vault takes a quarter of an hour on two idle cores."""


class Naps:
    """Naps while a block goes on, and knows how late each end of one came: how long the machine held everybody up."""

    def __init__(self, nap_s=0.02):
        self._nap_s, self._late, self._ended = nap_s, [], threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def _go_on(self):
        began = time.monotonic()
        while not self._ended.wait(self._nap_s):
            now = time.monotonic()
            self._late.append((began, now, now - began - self._nap_s))
            began = now

    def late_s(self, since, until):
        """Of all naps that were taken in that time, by time.monotonic."""
        return sum(late for began, ended, late in self._late if ended > since and began < until)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


class Agent:
    """A Consul agent on the loopback. `config` is added to what keeps it small and apart from others."""

    def __init__(self, binary, folder, name, *, ports=(), **config):
        self.name = name
        self.http, self.serf, rpc = free_ports(3)
        self.url = f"http://127.0.0.1:{self.http}"
        self.log = folder / f"{name}.log"
        off = dict.fromkeys(("serf_wan", "dns", "grpc", "grpc_tls"), -1)
        document = {
            "node_name": name,
            "data_dir": str(folder / name),
            "bind_addr": "127.0.0.1",
            "disable_update_check": True,
            "performance": {"raft_multiplier": 1},
            "ports": {"http": self.http, "serf_lan": self.serf, "server": rpc, **off, **dict(ports)},
            **config,
        }
        file = folder / f"{name}.json"
        file.write_text(json.dumps(document))
        with self.log.open("w") as log:
            self.process = subprocess.Popen([binary.path, "agent", "-config-file", file], stdout=log, stderr=log)

    def said(self, pattern):
        return re.findall(pattern, self.log.read_text())

    def get(self, path):
        try:
            return httpx2.get(f"{self.url}/v1/{path}", timeout=2)
        except httpx2.HTTPError:
            return None

    def members(self, of="agent/members"):
        """Names of those it sees alive; None while it does not answer."""
        answer = self.get(of)
        return None if answer is None else {each["Name"] for each in answer.json() if each["Status"] == 1}

    def leader(self):
        answer = self.get("status/leader")
        return None if answer is None else answer.json() or None

    def stop(self):
        self.process.kill()
        self.process.wait(10)


class Running:
    """A program with its output in a file; `said` finds in it what matches."""

    def __init__(self, folder, name, *command, **environment):
        self.log = folder / f"{name}.log"
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("VAULT_", "CONSUL_", "NOMAD_"))}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdout=log, stderr=log, env=kept | environment, cwd=folder
            )

    def said(self, pattern):
        return re.findall(pattern, self.log.read_text())

    def ended(self, within_s=START_WITHIN_S):
        """Its exit code."""
        return self.process.wait(within_s)

    @property
    def alive(self):
        return self.process.poll() is None

    def stop(self):
        """As a supervisor does; what does not heed that is killed."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture
def run(tmp_path):
    """`run(name, *command, **environment)` starts a program that ends with the test."""
    running = []

    def start(name, *command, **environment):
        running.append(Running(tmp_path, name, *command, **environment))
        return running[-1]

    yield start
    for each in reversed(running):
        each.stop()
