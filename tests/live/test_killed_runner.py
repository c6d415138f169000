"""A runner that is killed with SIGKILL, at whatever moment, leaves nothing on the machine but a journal that reads."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from drills import environment, experiment, hashidrill, start

from hashidrill.journal import JOURNAL_NAME, read_journal
from leaks import VARIABLE, Ground, processes_of

KILLS = 25
ENGINES = 6
"""In so many of them it is the engine that is killed, inside of the sandbox, and the runner has to cope."""
LIFE_S = 15.0
"""A whole run takes some fifteen seconds on two cores that have two of them to run."""
AT_ONCE = 2
GONE_WITHIN_S = 10.0
ENDS_WITHIN_S = 20.0
SEED = int(os.environ.get("HASHIDRILL_KILL_SEED", secrets.randbelow(10**6)))

METHOD = [
    {"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "50ms"}, "for": "3s"},
    {"fault": "network.partition", "on": "host:consul-2", "with": {"from": "host:client-1"}, "for": "3s"},
    {"fault": "cpu.throttle", "on": "host:consul-3", "with": {"cores": 0.5}, "for": "3s"},
    {"fault": "process.pause", "on": "host:client-1", "for": "2s", "at": "1s"},
]

LOAD = {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "value": "64B", "via": "consul:servers"}


@dataclass(frozen=True)
class Kill:
    """What was killed when, and what could be seen of it afterwards."""

    number: int
    victim: str
    at_s: float
    runs: Path
    left: list[str]
    gone_after_s: float
    exit_code: int
    phase: str
    in_force: int

    @property
    def journals(self):
        return journals(self.runs, self.number)

    def __str__(self):
        return (
            f"{self.number:>2}  {self.victim:<7} {self.at_s:6.2f}s  {self.phase:<9} {self.in_force} faults in force  "
            f"exit code {self.exit_code:>3}  gone after {self.gone_after_s:5.2f}s  "
            f"{'; '.join(self.left) or 'nothing left'}"
        )


@pytest.fixture(scope="module")
def kills(consul, tmp_path_factory, tell):
    """25 runs, each with a work directory of its own, and what became of them."""
    chance = random.Random(SEED)
    folder = tmp_path_factory.mktemp("killed")
    # one in each twenty-fifth of a life, so that none of it is left out
    moments = [(n + chance.random()) * LIFE_S / KILLS for n in range(KILLS)]
    engines = set(chance.sample(range(KILLS // 4, KILLS), ENGINES))
    plan = [(n, "engine" if n in engines else "runner", at_s) for n, at_s in enumerate(moments)]
    chance.shuffle(plan)
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as several:
        done = list(several.map(lambda each: kill(*each, folder), plan))
    tell(f"\n{KILLS} kills in {time.monotonic() - began:.0f}s, HASHIDRILL_KILL_SEED={SEED}")
    tell("\n".join(str(one) for one in sorted(done, key=lambda one: one.number)))
    return done


def kill(number, victim, at_s, folder):
    """Start a run, kill it `at_s` seconds later, and look at the machine until nothing is left, or 10 s are over."""
    runs, work = folder / "runs", Path(os.environ[VARIABLE]) / f"k{number}"
    work.mkdir()
    path = experiment(
        folder / f"k{number}.yaml",
        method=METHOD,
        servers=3,
        clients=1,
        steady="1s",
        recovery="1s",
        load={"kv-writes": LOAD},
    )
    ground = Ground(work)
    process = start("run", path, "--plain", "--runs", runs, env=environment(**{VARIABLE: work}))
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        wait_for_exit(process, at_s)
    struck_s = time.monotonic() - began
    victims = [process.pid] if victim == "runner" else engine_of(work)
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    struck = time.monotonic()
    # a runner whose engine died still has to judge and to report: that is its ordinary end
    process.communicate(timeout=ENDS_WITHIN_S)
    if victim == "engine":
        struck = time.monotonic()
    left = ground.left_after(GONE_WITHIN_S)
    gone_after_s = time.monotonic() - struck
    if not left:
        work.rmdir()
    phase, in_force = seen_by_the_journal(journals(runs, number))
    return Kill(number, victim, struck_s, runs, left, gone_after_s, process.returncode, phase, in_force)


def wait_for_exit(process, within_s):
    deadline = time.monotonic() + within_s
    while process.poll() is None:
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(0.005)


def engine_of(work):
    return [pid for pid, command in processes_of(work) if " hashidrill.sandboxed " in command]


def journals(runs, number):
    """One, or none when it was killed before the engine began."""
    return list(runs.glob(f"*-k{number}-*/{JOURNAL_NAME}"))


def seen_by_the_journal(journals):
    """(the last phase, how many faults were in force) as it was when the journal ends."""
    phase, in_force = "-", set()
    for journal in journals:
        for entry in read_journal(journal):
            if entry.event == "phase":
                phase = entry.data["phase"]
            elif entry.event == "fault.applied":
                in_force.add(entry.data["fault_id"])
            elif entry.event == "fault.reverted":
                in_force.discard(entry.data["fault_id"])
    return phase, len(in_force)


def test_nothing_is_left_10_s_after_a_kill(kills):
    assert [str(one) for one in kills if one.left] == []


def test_the_kills_met_runs_in_all_of_their_phases(kills):
    """Else this file would have shown nothing."""
    killed = [one for one in kills if one.exit_code == -signal.SIGKILL]
    assert len(killed) >= (KILLS - ENGINES) * 2 // 3
    assert any(one.in_force for one in killed)
    assert any(one.victim == "engine" and one.in_force for one in kills)
    assert any(one.phase == "-" for one in killed)
    assert {"start", "ready", "steady", "method"} & {one.phase for one in killed}


def test_every_journal_still_reads(kills):
    for one in kills:
        for journal in one.journals:
            entries = read_journal(journal)
            assert entries == sorted(entries, key=lambda entry: entry.t_ns), one
            if entries:
                assert entries[0].event in {"run", "end"}, one


def test_a_runner_outlives_its_engine_and_says_that_it_crashed(kills):
    for one in kills:
        if one.victim != "engine" or one.exit_code == 0:  # it was over before
            continue
        assert one.exit_code == 3, one
        [journal] = one.journals
        end = read_journal(journal)[-1]
        assert (end.event, end.data["outcome"]) == ("end", "crashed"), one


def test_heal_says_which_runs_died_and_has_nothing_to_do_afterwards(kills):
    open_at_death = {journal.parent: one.in_force for one in kills for journal in one.journals if not ended(journal)}
    runs = kills[0].runs
    healed = {
        Path(each["run"]): each for each in json.loads(hashidrill("heal", "--json", "--runs", runs).stdout)["healed"]
    }
    assert set(healed) == set(open_at_death)
    for run, in_force in open_at_death.items():
        assert healed[run]["stuck"] == []
        assert len(healed[run]["reverted"]) >= in_force
        assert ended(run / JOURNAL_NAME)
    again = hashidrill("heal", "--runs", runs)
    assert (again.returncode, again.stdout) == (0, "nothing to heal\n")


def ended(journal):
    return any(entry.event == "end" for entry in read_journal(journal))
