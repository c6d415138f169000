"""200 faults in random order, overlapping where validation lets them, some of their runners killed: nothing is left.

Each run is a random method. What `hashidrill validate` refuses is left out of it; what it lets through must work: every
fault is proven in force and proven gone, in whatever company.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from drills import environment, experiment, hashidrill, start

from hashidrill import registry
from hashidrill.errors import ExperimentError
from hashidrill.journal import JOURNAL_NAME
from hashidrill.loader import load_experiment
from hashidrill.recording import Recording
from leaks import VARIABLE, Ground

pytestmark = pytest.mark.long

FAULTS = 200
EACH = 20
KILLED = 3
AT_ONCE = 2
SPREAD_S = 24.0
LONGEST_S = 5.0
GONE_WITHIN_S = 15.0
ENDS_WITHIN_S = 240.0
SEED = int(os.environ.get("HASHIDRILL_KILL_SEED", secrets.randbelow(10**6)))
HOSTS = ["consul-1", "consul-2", "consul-3", "client-1"]
LOAD = {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "value": "64B", "via": "consul:servers"}

POOL: list[tuple[str, dict[str, object]]] = [
    ("noop", {}),
    ("disk.latency", {"op": "fsync", "delay": "150ms"}),
    ("disk.latency", {"op": "write", "delay": "20ms"}),
    ("disk.bandwidth", {"rate": "512kB/s"}),
    ("disk.bandwidth", {"rate": "64kB/s", "op": "read"}),
    ("process.pause", {}),
    ("process.kill", {}),
    ("process.restart", {}),
    ("cpu.throttle", {"cores": 0.3}),
    ("network.partition", {"from": "all"}),
    ("network.partition", {"from": "servers"}),
    ("network.loss", {"percent": "30%"}),
    ("network.block", {"port": 8500, "from": "clients"}),
    ("network.latency", {"port": 8300, "delay": "200ms", "from": "servers"}),
    ("network.latency", {"port": 8500, "delay": "300ms"}),
    ("network.bandwidth", {"port": 8500, "rate": "64kB/s", "from": "clients"}),
    ("network.timeout", {"port": 8500, "from": "clients"}),
    ("network.reset", {"port": 8500, "from": "clients"}),
    ("network.slow_close", {"port": 8500, "from": "clients", "delay": "300ms"}),
    ("network.slicer", {"port": 8500, "from": "clients"}),
    ("network.limit_data", {"port": 8500, "from": "clients", "bytes": "2kB"}),
    ("toxiproxy.toxic", {"port": 8500, "from": "clients", "type": "latency", "attributes": {"latency": 200}}),
]
LEFT_OUT = {
    "tap.fail": "it is put on a client, and these runs have none",
    "disk.error": "an error on fsync ends the agent, as it should: what else was on it is then gone too",
    "disk.full": "it needs a disk of a size, on which the others have no room to work",
}


@dataclass(frozen=True)
class Outcome:
    """What became of one run."""

    number: int
    recording: Path | None
    killed: bool
    left: list[str]
    exit_code: int
    refused: int
    said: str


def method(chance, folder, number):
    """`EACH` random steps that validate together, where that many can be found; how many were refused on the way."""
    steps, refused = [], 0
    for _ in range(EACH * 20):
        if len(steps) == EACH:
            break
        kind, params = chance.choice(POOL)
        begin, length = chance.uniform(0, SPREAD_S - LONGEST_S), chance.uniform(1, LONGEST_S)
        step = {"fault": kind, "on": f"host:{chance.choice(HOSTS)}", "at": f"{begin:.1f}s", "for": f"{length:.1f}s"}
        step |= {"with": params} if params else {}
        try:
            load_experiment(draft(folder / f"draft{number}.yaml", [*steps, step]))
        except ExperimentError:
            refused += 1
        else:
            steps.append(step)
    return steps, refused


def draft(path, steps):
    return experiment(path, method=steps, servers=3, clients=1, steady="1s", recovery="2s", load={"kv-writes": LOAD})


@pytest.fixture(scope="module")
def outcomes(consul, toxiproxy, tmp_path_factory, tell):
    folder = tmp_path_factory.mktemp("random")
    chance = random.Random(SEED)
    killed = set(chance.sample(range(FAULTS // EACH), KILLED))
    runs = range(FAULTS // EACH)
    plans = [(n, method(chance, folder, n), chance.random() if n in killed else None) for n in runs]
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as several:
        done = list(several.map(lambda plan: play(*plan, folder), plans))
    tell(f"\n{sum(len(plan[1][0]) for plan in plans)} faults in {time.monotonic() - began:.0f}s, {len(killed)} runners"
         f" killed, {sum(one.refused for one in done)} overlaps refused, HASHIDRILL_KILL_SEED={SEED}")  # fmt: skip
    kinds = Counter(step["fault"] for plan in plans for step in plan[1][0])
    tell(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    return done


def play(number, drawn, moment, folder):
    """One run to its end, or, with a `moment` (0 to 1), until it is killed there in its method."""
    steps, refused = drawn
    work, runs = Path(os.environ[VARIABLE]) / f"r{number}", folder / f"runs{number}"
    work.mkdir()
    ground = Ground(work)
    path = draft(folder / f"random{number}.yaml", steps)
    process = start("run", path, "--plain", "--runs", runs, env=environment(**{VARIABLE: work}))
    if moment is not None:
        wait_for_method(runs)
        time.sleep(moment * SPREAD_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    said = "".join(process.communicate(timeout=ENDS_WITHIN_S))
    left = ground.left_after(GONE_WITHIN_S)
    if not left:
        work.rmdir()
    recording = next((journal.parent for journal in runs.glob(f"*/{JOURNAL_NAME}")), None)
    return Outcome(number, recording, moment is not None, left, process.returncode, refused, said)


def wait_for_method(runs, within_s=90.0):
    deadline = time.monotonic() + within_s
    while not any('"phase":"method"' in j.read_text().replace(" ", "") for j in runs.glob(f"*/{JOURNAL_NAME}")):
        assert time.monotonic() < deadline, "the run never got to its method"
        time.sleep(0.05)


def test_every_kind_is_in_the_pool_or_said_not_to_be():
    # these ask Consul itself, or restart it: what else is broken at random takes that away from their proofs
    of_consul = {kind for kind in registry.faults() if kind.startswith("consul.")}
    assert {kind for kind, _ in POOL} | set(LEFT_OUT) | of_consul == set(registry.faults())


def test_200_faults_leave_nothing(outcomes):
    assert {one.number: one.left for one in outcomes if one.left} == {}


def test_each_fault_that_validation_let_through_was_proven_and_is_gone(outcomes):
    wrong, count = [], 0
    for one in outcomes:
        windows = Recording(one.recording).faults
        count += len(windows)
        if one.killed:
            continue
        if Recording(one.recording).outcome != "complete":
            wrong.append(f"run {one.number}: {Recording(one.recording).run.get('error')}")
        wrong += [f"run {one.number}: {w.fault_id}: {w.error}" for w in windows if not w.proven or w.gone_ns is None]
    assert wrong == []
    assert count >= (FAULTS - KILLED * EACH), "too few faults were ever applied for this to say anything"


def test_what_died_heals(outcomes):
    for one in outcomes:
        if not one.killed:
            continue
        runs = one.recording.parent
        assert hashidrill("heal", "--runs", runs).returncode == 0
        assert hashidrill("heal", "--runs", runs).stdout == "nothing to heal\n"
