"""The full stack, as a person has it: `hashidrill lab up`, the vendors' own commands in a shell, `hashidrill lab down`.

`call(*arguments)` runs the command line and returns what subprocess.run does: `drills.hashidrill`, or an OrdinaryUser.
"""

import json
import re
import secrets
import time
from pathlib import Path

from hashidrill.products.vault.rights import MOUNT
from leaks import processes_of

FLAGS = ("--stack", "--clients", "2")
"""Three servers of each product, two Nomad clients, two Consul clients beside the one on each other host."""
AGENTS = {"consul": 13, "nomad": 5, "vault": 3}
_JOB = {
    "ID": "batch",
    "Type": "batch",
    "Datacenters": ["*"],
    "ParameterizedJob": {"MetaRequired": ["mark"]},
    "TaskGroups": [
        {
            "Name": "group",
            "Count": 1,
            "EphemeralDisk": {"SizeMB": 10},
            "Tasks": [
                {
                    "Name": "task",
                    "Driver": "raw_exec",
                    "Config": {"command": "/bin/true"},
                    "Resources": {"CPU": 20, "MemoryMB": 20},
                    "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1, "Disabled": True},
                }
            ],
        }
    ],
}
_ENDS_WITHIN_S = 30


class Stack:
    """One that is up."""

    def __init__(self, call, name="default"):
        self._call, self._name = call, name

    def shell(self, host, *command):
        """What the command prints on that host. Fails with what it said."""
        done = self._call("lab", "shell", "--name", self._name, host, "--", *command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def use(self):
        """A KV write, a dispatched job, a secret: each read back on another host than it was written on."""
        mark = secrets.token_hex(8)
        self.shell("client-1", "consul", "kv", "put", "stack/mark", mark)
        job = json.dumps({"Job": _JOB})
        self.shell("nomad-1", "sh", "-c", f"echo '{job}' | nomad job run -json -detach -")
        self.shell("nomad-1", "nomad", "job", "dispatch", "-detach", "-meta", f"mark={mark}", "batch")
        self.shell("vault-1", "vault", "kv", "put", f"{MOUNT}/stack", f"mark={mark}")

        assert self.shell("node-1", "consul", "kv", "get", "stack/mark").strip() == mark
        assert self.shell("vault-2", "vault", "kv", "get", "-field=mark", f"{MOUNT}/stack").strip() == mark
        assert self._ended(mark) == "complete"

    def _ended(self, mark):
        """How the dispatched job's one allocation ended, as another server and another host know it."""
        deadline, status = time.monotonic() + _ENDS_WITHIN_S, "not there"
        while time.monotonic() < deadline and status not in {"complete", "failed"}:
            jobs = json.loads(self.shell("nomad-2", "nomad", "operator", "api", "/v1/jobs?prefix=batch/&meta=true"))
            [job] = [each for each in jobs if (each.get("Meta") or {}).get("mark") == mark]
            allocs = json.loads(self.shell("consul-1", "nomad", "operator", "api", f"/v1/job/{job['ID']}/allocations"))
            status = allocs[0]["ClientStatus"] if allocs else "not placed"
        return status


def memory_mb(work):
    """Proportional memory (PSS) of all that runs below a work directory: by agent's program, and `ours`."""
    return sums((pid, command) for pid, command in processes_of(work))


def sums(processes):
    found = {"ours": 0.0, **dict.fromkeys(AGENTS, 0.0)}
    for pid, command in processes:
        program = Path(command.split()[0]).name if command.split() else ""
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:  # it has ended meanwhile
            continue
        pss = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
        found[program if program in AGENTS else "ours"] += int(pss[1]) / 1024 if pss else 0.0
    return {name: round(mb) for name, mb in found.items()} | {"all": round(sum(found.values()))}
