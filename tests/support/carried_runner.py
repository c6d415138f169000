"""A runner over a carrier, to be killed or cut off: `python carried_runner.py FOLDER`, told by standard input.

It applies and reverts one fault after the other, for ever, and journals as a run does. FOLDER becomes a recording that
`heal` can read.
"""

import json
import sys
from pathlib import Path

import anyio

from hashidrill.core.engine.inject import injected
from hashidrill.core.errors import HashidrillError
from hashidrill.core.faults.network import NetworkPartition, PartitionParams
from hashidrill.core.faults.process import NoParams, ProcessPause
from hashidrill.core.protocols.abc import Target
from hashidrill.core.protocols.capabilities import Processes
from hashidrill.core.recording.journal import Clock, Journal
from hashidrill.staging.attach.datacenter import AttachedHost
from hashidrill.staging.attach.discovery import Estate
from hashidrill.staging.attach.http import Login, UnansweredError
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.carriers.open_carriers import carried

VICTIM = "consul-2"
HELD_S = 3.0
LOGINS = {"consul": Login("consul", "http://10.99.0.1:8500"), "nomad": Login("nomad", "http://10.99.0.1:4646")}


class Hosts:
    """What faults ask for."""

    def __init__(self, estate, parts):
        self._hosts = {
            name: AttachedHost(one, LOGINS, carried=parts.get(name, {})) for name, one in estate.hosts.items()
        }

    def host(self, name):
        return self._hosts[name]

    def all_hosts(self):
        return list(self._hosts.values())

    def load_addresses(self):
        return []


class Asked:
    """In the place of an agent's API: a process that is stopped does not answer. `pids`: by the address of its host."""

    def __init__(self, pids):
        self._pids = pids

    async def request(self, method, path, *, url, timeout_s):
        pid = next(pid for address, pid in self._pids.items() if address in url)
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "X"
        if state in {"T", "Z", "X"}:
            raise UnansweredError(f"{url}: no answer in time")


def faults(hosts):
    return {
        "network.partition": NetworkPartition(PartitionParams.model_validate({"from": "host:consul-3"}), hosts),
        "process.pause": ProcessPause(NoParams(), hosts),
    }


async def target_of(hosts, estate, kind):
    reference = ""
    if kind == "process.pause":
        process = await hosts.host(VICTIM).use(Processes).agent_process("consul")
        reference = process.reference if process else ""
    return Target(VICTIM, estate.hosts[VICTIM].address, "consul", reference)


async def main(folder, told):
    target, estate = AttachTarget.received(told["target"]), Estate.from_data(told["estate"])
    with Journal(folder / "journal.jsonl", Clock()) as journal:
        journal.write("run", sync=True, id=folder.name, experiment="killed", root="", attached={"name": estate.name})
        async with carried(
            target, estate, {"consul": Asked(told["pids"])}, deadline_s=600, tell=print, run=folder.name
        ) as parts:
            hosts = Hosts(estate, parts)
            journal.write("connected", sync=True)
            step = 0
            while True:
                kind = told["faults"][step % len(told["faults"])]
                step += 1
                try:
                    aim = await target_of(hosts, estate, kind)
                    async with injected(
                        faults(hosts)[kind], aim, fault_id=f"{step}-{kind}", step=step, journal=journal
                    ):
                        await anyio.sleep(HELD_S)
                except HashidrillError as error:
                    print(error, flush=True)
                    await anyio.sleep(HELD_S)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), json.load(sys.stdin))
