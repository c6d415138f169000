"""Faults in random order, overlapping where validation lets them, some of their runners killed: nothing is left.

Each run is a random method. What `hashidrill validate` refuses is left out of it; what it lets through must work: every
fault is proven in force and proven gone, in whatever company.
"""

import contextlib
import json
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
from fault_cases import of_package
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.faults.base import SERVERS
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import JOURNAL_NAME
from leaks import VARIABLE, Ground
from polled import wait

pytestmark = pytest.mark.nightly

Drawn = tuple[str, dict[str, object], list[str]]
"""A kind of fault, its parameters, and where it may be put."""

AT_ONCE = 2
GONE_WITHIN_S = 15.0
ENDS_WITHIN_S = 600.0
SEED = int(os.environ.get("HASHIDRILL_KILL_SEED", secrets.randbelow(10**6)))
CLIENT = "host:client-1"
ANY = [*SERVERS, CLIENT]
LOAD = {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "value": "64B", "via": "consul:servers"}


def declared(package) -> list[Drawn]:
    """What the faults there declare to be overlapped with others, each on any host unless it says otherwise."""
    return [
        (kind, each[1], each[0]) if isinstance(each, tuple) else (kind, each, ANY)
        for kind, cls in of_package(package).items()
        if not isinstance(cls.cases.overlaps, str)
        for each in cls.cases.overlaps or cls.cases.each
    ]


OF_HOSTS = declared("core.faults")
OF_CONSUL: list[Drawn] = [
    *declared("products.consul.faults"),
    # what goes on beside them, and leaves a majority that answers
    ("disk.latency", {"op": "write", "delay": "5ms"}, ANY),
    ("network.latency", {"port": 8500, "delay": "300ms"}, ANY),
    ("network.block", {"port": 8500, "from": "clients"}, SERVERS),
    ("cpu.throttle", {"cores": 0.5}, [CLIENT]),
]


@dataclass(frozen=True)
class Company:
    """Faults that are drawn beside each other."""

    pool: list[Drawn]
    faults: int
    each: int
    killed: int
    spread_s: float
    longest_s: float


COMPANIES = {"hosts": Company(OF_HOSTS, 200, 20, 3, 24.0, 5.0), "consul": Company(OF_CONSUL, 60, 10, 1, 90.0, 5.0)}
"""Apart from each other: Consul's faults ask Consul, or restart it, and need a majority that answers."""


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


def method(company, chance, folder, number):
    """Random steps that validate together, where that many can be found; how many were refused on the way."""
    steps, refused = [], 0
    for drawn in range(company.each * 20):
        if len(steps) == company.each:
            break
        kind, params, where = chance.choice(company.pool)
        begin, length = chance.uniform(0, company.spread_s - company.longest_s), chance.uniform(1, company.longest_s)
        step = {"fault": kind, "on": chance.choice(where), "at": f"{begin:.1f}s", "for": f"{length:.1f}s"}
        step |= {"with": {**params, **({"name": f"s{drawn}"} if "name" in params else {})}} if params else {}
        try:
            load_experiment(draft(folder / f"draft{number}.yaml", [*steps, step]))
        except ExperimentError:
            refused += 1
        else:
            steps.append(step)
    return steps, refused


def draft(path, steps):
    experiment(path, method=steps, servers=3, clients=1, steady="1s", recovery="2s", load={"kv-writes": LOAD})
    document = json.loads(path.read_text())
    document["datacenter"]["consul"]["server_config"] = {"raft_logstore": {"backend": "boltdb"}}
    path.write_text(json.dumps(document, indent=2))
    return path


@pytest.fixture(scope="module", params=COMPANIES)
def company(request):
    return COMPANIES[request.param]


@pytest.fixture(scope="module")
def outcomes(company, toxiproxy, tmp_path_factory, tell):
    folder = tmp_path_factory.mktemp("random")
    chance = random.Random(SEED)
    runs = range(company.faults // company.each)
    killed = set(chance.sample(runs, company.killed))
    plans = [
        (n, method(company, chance, folder, n), chance.random() * company.spread_s if n in killed else None)
        for n in runs
    ]
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as several:
        done = list(several.map(lambda plan: play(*plan, folder), plans))
    tell(
        f"\n{sum(len(plan[1][0]) for plan in plans)} faults in {time.monotonic() - began:.0f}s, {len(killed)} runners"
        f" killed, {sum(one.refused for one in done)} overlaps refused, HASHIDRILL_KILL_SEED={SEED}"
    )
    kinds = Counter(step["fault"] for plan in plans for step in plan[1][0])
    tell(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    return done


def play(number, drawn, moment, folder):
    """One run to its end, or, with a `moment` in s, until it is killed so long into its method."""
    steps, refused = drawn
    work, runs = Path(os.environ[VARIABLE]) / f"r{number}", folder / f"runs{number}"
    work.mkdir()
    ground = Ground(work)
    path = draft(folder / f"random{number}.yaml", steps)
    process = start("run", path, "--plain", "--runs", runs, env=environment(**{VARIABLE: work}))
    if moment is not None:
        wait("its method", lambda: in_its_method(runs), 90.0, 0.05)
        time.sleep(moment)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    said = "".join(process.communicate(timeout=ENDS_WITHIN_S))
    left = ground.left_after(GONE_WITHIN_S)
    if not left:
        work.rmdir()
    recording = next((journal.parent for journal in runs.glob(f"*/{JOURNAL_NAME}")), None)
    return Outcome(number, recording, moment is not None, left, process.returncode, refused, said)


def in_its_method(runs):
    return any('"phase":"method"' in j.read_text().replace(" ", "") for j in runs.glob(f"*/{JOURNAL_NAME}"))


def test_so_many_faults_leave_nothing(outcomes):
    assert {one.number: one.left for one in outcomes if one.left} == {}


def test_each_fault_that_validation_let_through_was_proven_and_is_gone(company, outcomes):
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
    assert count >= company.faults - company.killed * company.each, (
        "too few faults were ever applied for this to say anything"
    )


def test_what_died_heals(outcomes):
    for one in outcomes:
        if not one.killed:
            continue
        runs = one.recording.parent
        assert hashidrill("heal", "--runs", runs).returncode == 0
        assert hashidrill("heal", "--runs", runs).stdout == "nothing to heal\n"
