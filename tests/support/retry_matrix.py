"""The confusion matrix of the battery: reference clients against all its verdicts."""

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import places
from clients.manifest import CLIENTS, ReferenceClient
from clients.prepare import command
from hashidrill.clients.retry.battery import Settings, run_battery
from hashidrill.clients.retry.private_consul import private_consul
from hashidrill.clients.retry.verdicts import Judged
from hashidrill.core.errors import HashidrillError
from hashidrill.core.tap.catalogue import CONFUSION_DEADLINE_S
from hashidrill.core.tap.upstream import HttpUpstream
from hashidrill.core.util.processes import is_machine_root

PREFORK = places.SUPPORT / "prefork.py"


JUDGED = [client for client in CLIENTS if not client.service]


_AT_ONCE = 12


_STARTING_AT_ONCE = 2


NEEDS_ROOT = ("dns", "refused")
"""What only root can observe: a name that does not resolve (port 53), and refused connections (SYNs are counted)."""


@dataclass
class Matrix:
    """What was right, and what was not, by verdict."""

    right: Counter = field(default_factory=Counter)
    wrong: list = field(default_factory=list)
    troubles: list = field(default_factory=list)

    def add(self, client: ReferenceClient, judged: list[Judged], faults=()):
        """`faults`: those that were selected, or none for all."""
        found = {(one.name, one.fault): one for one in judged}
        for pair, as_root in client.expected.items():
            name, fault = pair
            if faults and fault not in faults:
                continue
            # for others INVALID, which says that it needs root, and never a guess
            expected = "INVALID" if fault in NEEDS_ROOT and not is_machine_root() else as_root
            if pair not in found:
                self.wrong.append((name, f"{client.name}: {name} on {fault}: expected {expected}, got no verdict"))
            elif found[pair].verdict == expected:
                self.right[name, expected] += 1
            else:
                one = found[pair]
                told = f"expected {expected}, got {one.verdict} ({one.text}) {one.evidence}"
                self.wrong.append((name, f"{client.name}: {name} on {fault}: {told}"))

    def lines(self):
        names = sorted({name for name, _ in self.right} | {name for name, _ in self.wrong})
        yield f"{'verdict':<22}{'right':>8}{'wrong':>8}   of the right: PASS, FAIL, INVALID"
        for name in names:
            counts = [self.right[name, verdict] for verdict in ("PASS", "FAIL", "INVALID")]
            wrong = sum(1 for each, _ in self.wrong if each == name)
            yield f"{name:<22}{sum(counts):>8}{wrong:>8}   {', '.join(map(str, counts))}"
        yield f"{'all':<22}{sum(self.right.values()):>8}{len(self.wrong):>8}"
        yield from (f"  wrong: {text}" for _, text in self.wrong)
        yield from (f"  trouble: {text}" for text in self.troubles)


async def confusion(consul, bin_folder, clients=JUDGED, selections=((),)) -> Matrix:
    """Every client's battery for each selection of faults, several at a time, in front of one Consul."""
    matrix = Matrix()
    slots, at_once = asyncio.Semaphore(_STARTING_AT_ONCE), asyncio.Semaphore(_AT_ONCE)
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}

    async def one(client, faults):
        settings = Settings(CONFUSION_DEADLINE_S, faults=faults, environment=environment)
        argv = command(client.argv, url="{url}", bin_folder=bin_folder)
        if argv[0] == sys.executable:
            argv = [sys.executable, "-I", "-S", str(PREFORK), "run", starter, *argv[1:]]
        async with at_once:
            try:
                battery = run_battery(argv, HttpUpstream(url), settings, slots=slots, may_seed=True)
                matrix.add(client, await battery, faults)
            except HashidrillError as error:
                matrix.troubles.append(f"{client.name}: {error}")

    with prefork() as starter:
        async with private_consul(consul) as url, asyncio.TaskGroup() as group:
            for client, faults in itertools.product(clients, selections):
                group.create_task(one(client, faults))
    return matrix


@contextlib.contextmanager
def prefork():
    """The path of the socket at which Python clients are forked."""
    with tempfile.TemporaryDirectory(prefix="hdt-") as folder:
        path = str(Path(folder) / "s")
        with subprocess.Popen([sys.executable, PREFORK, "serve", path], stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout.readline() == b"ready\n"
                yield path
            finally:
                server.kill()
