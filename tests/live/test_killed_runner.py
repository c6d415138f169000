"""A runner that is killed with SIGKILL, at whatever moment, leaves nothing on the machine but a journal that reads."""

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from drills import environment, experiment, hashidrill, start
from hashidrill.core.recording.journal import read_journal
from hashidrill.core.util.files import JOURNAL_NAME
from leaks import VARIABLE, Ground, processes_of

LAUNCHED = "launched"
PHASES = ("start", "ready", "load", "steady", "method", "recovery", "quiesce")
OF_FAULTS = ("fault.intent", "fault.applied", "fault.proven", "fault.reverted", "fault.gone")
TWICE = ("ready", "steady", *OF_FAULTS[:4])
ENGINES = ("ready", "steady", "fault.intent", "fault.applied", "fault.proven", "recovery")
"""Moments at which it is the engine that is killed, inside of the sandbox, and the runner has to cope."""
KILLS = [("runner", moment) for moment in (LAUNCHED, *PHASES, *OF_FAULTS, *TWICE)] + [("engine", m) for m in ENGINES]
"""What is killed, and at which event of its journal: a machine that is faster or slower is killed at the same ones."""
FEW = [("runner", m) for m in (LAUNCHED, "start", "ready", "steady", "method", "fault.applied", "fault.gone")]
FEW += [("engine", "fault.proven")]
"""Those of them that a contributor waits for: one of each kind of moment."""
LATER_S = 0.2
"""At most that long after an event of a fault, by chance; a phase may be over sooner, and is met at once."""
COMES_WITHIN_S = 90.0
AT_ONCE = 2
GONE_WITHIN_S = 10.0
ENDS_WITHIN_S = 20.0
SEED = int(os.environ.get("HASHIDRILL_KILL_SEED", secrets.randbelow(10**6)))

METHOD = [
    {"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "50ms"}, "for": "1s"},
    {"fault": "network.partition", "on": "host:consul-2", "with": {"from": "host:client-1"}, "for": "1s"},
    {"fault": "process.pause", "on": "host:client-1", "for": "1s", "at": "500ms"},
    {"fault": "cpu.throttle", "on": "host:client-1", "with": {"cores": 0.05}, "at": "2s", "for": "1s"},
]
"""Short: three runs of these are killed after the last of them, and the others wait for no more than the first."""

LOAD = {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "value": "64B", "via": "consul:servers"}


@dataclass(frozen=True)
class Kill:
    """What was killed when, and what could be seen of it afterwards."""

    number: int
    victim: str
    moment: str
    at_s: float
    runs: Path
    left: list[str]
    gone_after_s: float
    exit_code: int
    phase: str
    in_force: int
    open: int
    """Faults that were meant to be applied and were never seen to be gone: what heal has to look after."""

    @property
    def journals(self):
        return journals(self.runs, self.number)

    def __str__(self):
        return (
            f"{self.number:>2}  {self.victim:<7} {self.moment:<14} {self.at_s:6.2f}s  {self.phase:<9} "
            f"{self.in_force} faults in force  "
            f"exit code {self.exit_code:>3}  gone after {self.gone_after_s:5.2f}s  "
            f"{'; '.join(self.left) or 'nothing left'}"
        )


@pytest.fixture(scope="module", params=[FEW, pytest.param(KILLS, marks=pytest.mark.nightly)], ids=["few", "all"])
def asked(request):
    return request.param


@pytest.fixture(scope="module")
def kills(asked, consul, tmp_path_factory, tell):
    """A run for each kill, with a work directory of its own, and what became of it."""
    chance = random.Random(SEED)
    folder = tmp_path_factory.mktemp("killed")
    plan = [
        (number, victim, moment, 0.0 if moment in (LAUNCHED, *PHASES) else chance.uniform(0, LATER_S))
        for number, (victim, moment) in enumerate(asked)
    ]
    chance.shuffle(plan)
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as several:
        done = list(several.map(lambda each: kill(*each, folder), plan))
    tell(f"\n{len(asked)} kills in {time.monotonic() - began:.0f}s, HASHIDRILL_KILL_SEED={SEED}")
    tell("\n".join(str(one) for one in sorted(done, key=lambda one: one.number)))
    return done


def kill(number, victim, moment, later_s, folder):
    """Start a run, kill it `later_s` after the moment came, and look until nothing is left, or 10 s are over."""
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
    wait_for(moment, process, runs, number, work)
    with contextlib.suppress(subprocess.TimeoutExpired):  # it ends by itself: then there is nothing to kill
        process.wait(later_s)
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
    seen = seen_by_the_journal(journals(runs, number))
    return Kill(number, victim, moment, struck_s, runs, left, gone_after_s, process.returncode, *seen)


def wait_for(moment, process, runs, number, work):
    """Until the journal says that the moment has come; `launched` is when the sandbox's directory is there."""
    deadline = time.monotonic() + COMES_WITHIN_S
    while process.poll() is None and not came(moment, journals(runs, number), work):
        assert time.monotonic() < deadline, f"{moment} did not come within {COMES_WITHIN_S:g}s"
        time.sleep(0.005)


def came(moment, found, work):
    if moment == LAUNCHED:
        return any(work.iterdir())
    return any(moment in {entry.event, entry.data.get("phase")} for path in found for entry in read_journal(path))


def engine_of(work):
    return [pid for pid, command in processes_of(work) if "hashidrill.lab.runs.in_sandbox" in command]


def journals(runs, number):
    """One, or none when it was killed before the engine began."""
    return list(runs.glob(f"*-k{number}-*/{JOURNAL_NAME}"))


def seen_by_the_journal(journals):
    """(the last phase, how many faults were in force, how many were not seen to be gone), when the journal ends.

    A fault is open from before it is applied until after it is reverted: a kill may come in either gap.
    """
    phase, in_force, open_ = "-", set(), set()
    for journal in journals:
        for entry in read_journal(journal):
            if entry.event == "phase":
                phase = entry.data["phase"]
            elif entry.event == "fault.intent":
                open_.add(entry.data["fault_id"])
            elif entry.event == "fault.applied":
                in_force.add(entry.data["fault_id"])
            elif entry.event == "fault.reverted":
                in_force.discard(entry.data["fault_id"])
            elif entry.event == "fault.gone":
                open_.discard(entry.data["fault_id"])
    return phase, len(in_force), len(open_)


def test_nothing_is_left_10_s_after_a_kill(kills):
    assert [str(one) for one in kills if one.left] == []


def test_the_kills_met_runs_in_all_of_their_phases(asked, kills):
    """Else this file would have shown nothing."""
    met = [one for one in kills if one.exit_code == (3 if one.victim == "engine" else -signal.SIGKILL)]
    assert sorted({one.moment for one in met}) == sorted({moment for _, moment in asked})
    assert [str(one) for one in met if one.moment in {"fault.applied", "fault.proven"} and not one.in_force] == []
    assert any(one.phase == "-" for one in met)
    assert {"start", "ready", "steady", "method"} <= {one.phase for one in met}


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


def test_heal_says_what_died_or_left_faults_open_and_has_nothing_to_do_afterwards(kills):
    """An engine that was killed left faults, and its runner ended the journal: that they are gone, heal says."""
    left = {journal.parent: one.open for one in kills for journal in one.journals if one.open or not ended(journal)}
    runs = kills[0].runs
    said = json.loads(hashidrill("heal", "--json", "--runs", runs).stdout)["healed"]
    healed = {Path(each["run"]): each for each in said}
    assert set(healed) == set(left)
    for run, open_ in left.items():
        assert (healed[run]["stuck"], healed[run]["refused"]) == ([], "")
        assert len(healed[run]["ended"]) == open_
        assert ended(run / JOURNAL_NAME)
    again = hashidrill("heal", "--runs", runs)
    assert (again.returncode, again.stdout) == (0, "nothing to heal\n")


def ended(journal):
    return any(entry.event == "end" for entry in read_journal(journal))
