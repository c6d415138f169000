"""Every command that runs something, killed with SIGKILL at random moments: nothing is left, and a second start works.

HASHIDRILL_KILLS says how often each is killed, HASHIDRILL_KILL_SEED repeats a campaign. A kill takes about half a
minute.
"""

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from attached_consul import Staging
from drills import environment, experiment, hashidrill, start
from hashidrill.core.recording.journal import read_journal
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.gamedays.gameday.journal import DAY_JOURNAL
from hashidrill.gamedays.history.store import VARIABLE as HISTORY
from leaks import VARIABLE, Ground, processes_of
from places import ROOT
from ssh_servers import Here, SshServers

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("HASHIDRILL_KILLS", "3"))
SEED = int(os.environ.get("HASHIDRILL_KILL_SEED", secrets.randbelow(10**6)))
AT_ONCE = 2
ENDS_WITHIN_S = 90.0
GOES_ON_WITHIN_S = 120.0

SMALL = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: {0}, title: A small one, why: It tests the commands}}
datacenter: {{consul: {{servers: 1, clients: 0, server_config: {{performance: {{raft_multiplier: 1}}}}}}}}
load: {{kv-writes: {{kind: consul.kv.write, rate: 20/s, keys: 10, value: 2kB}}}}
steady_state: {{for: 1s, within: 10s, require: ["consul.autopilot_healthy >= 1"]}}
method: [{{fault: disk.latency, on: "consul:leader", with: {{op: fsync, delay: 100ms}}, for: 1s}}]
recovery: {{for: 1s}}
expect: [{{available_during: {{load: kv-writes, fault: disk.latency}}}}]
"""
FIRST = (ROOT / "playbooks/training/first.yaml").read_text()
ONE = SMALL.format("one")
DAY = """\
apiVersion: hashidrill/v1
kind: GameDay
metadata: {name: small-day, title: A small day}
people: {ada: {role: lead}}
before: [{check: machine}]
questions: {stop: {measure: stop, load: kv-writes, ask: How long do writes stop?}}
experiments: [{experiment: one.yaml}, {experiment: two.yaml}]
"""
CONSUL = 'server = true\nlog_level = "{}"\nlimits {{ kv_max_value_size = {} }}\n'


@dataclass(frozen=True)
class Case:
    """One command. `again` goes on with it, or starts it anew; it goes on once it prints `goes_on`."""

    words: str
    again: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    latest_s: float = 40.0
    """Until about when it does something else every moment, on a busy machine."""
    goes_on: str = "phase load"
    outlives: str = ""
    """In the command line of what goes on when the command is killed alone: every second time it is killed too."""
    gives_up: str = ""
    """Ends what goes on, where that does not end by itself."""
    heal: str = "heal"
    gone_s: float = 15.0
    """How long what goes on may take to end."""


CAPACITY = "capacity one.yaml --vary load.kv-writes.rate --until kv-writes.latency.p50<5s --to 80/s --repeat 1 --plain"
CASES = {
    "bisect": Case(
        "bisect --experiment one.yaml --good good.hcl --bad bad.hcl --log log.jsonl --plain",
        "bisect --resume log.jsonl --plain",
        {"one.yaml": ONE, "good.hcl": CONSUL.format("INFO", 524288), "bad.hcl": CONSUL.format("WARN", 9)},
    ),
    "gameday": Case(
        "gameday run day.yaml --yes --plain",
        "gameday resume --yes --plain",
        {"day.yaml": DAY, "one.yaml": ONE, "two.yaml": SMALL.format("two")},
    ),
    "capacity": Case(CAPACITY, files={"one.yaml": ONE}),
    "train": Case(
        "train ./first.yaml --seed 1 --no-shell --trainee ada",
        files={"first.yaml": FIRST.replace("limit: 30m", "limit: 30m, quiet: 1s")},
        goes_on="all is quiet",
        outlives="hashidrill.gamedays.training",
        gives_up="say give-up --trainee ada",
        gone_s=60.0,
    ),
}


@dataclass
class Struck:
    """One kill, and what is wrong with what could be seen of it afterwards."""

    name: str
    number: int
    at_s: float
    victims: str = "command"
    last: str = ""
    """What it had said last."""
    wrong: list[str] = field(default_factory=list)

    def __str__(self):
        when = f"{self.name} {self.number:>2}  {self.at_s:5.1f}s  {self.victims:<8}"
        return f"{when} {self.last[:60]:<60}  {self.wrong or 'well'}"


class Place:
    """Where one command runs: a folder, a work directory, a state and a history of its own."""

    def __init__(self, case, folder, name):
        self.case, self.folder, self.work = case, folder / name, Path(os.environ[VARIABLE]) / name
        for each in (self.work, self.folder, self.folder / "tmp"):
            each.mkdir()
        for file, text in case.files.items():
            (self.folder / file).write_text(text)
        own = {VARIABLE: self.work, HISTORY: self.folder / "history.sqlite", "XDG_STATE_HOME": self.folder / "state"}
        self.env = environment(**own, TMPDIR=self.folder / "tmp")
        self.ground = Ground(self.work)

    def start(self, words):
        return start(*words.split(), env=self.env, cwd=self.folder)

    def says(self, *words):
        return hashidrill(*words, env=self.env, cwd=self.folder)

    def kill(self, process, *, others):
        """The command, and with `others` what outlives it."""
        victims = [
            pid
            for pid, command in processes_of(self.work)
            if others and self.case.outlives and self.case.outlives in command
        ]
        for pid in [process.pid, *victims]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wrong_afterwards(self):
        """A line for each thing that is not as it must be."""
        left = self.ground.left_after(self.case.gone_s)
        yield from (line for line in left if not line.startswith("directory"))  # a command's own: heal removes it
        heal = self.case.heal.split()
        first, again = self.says(*heal, "--json"), self.says(*heal)
        healed = json.loads(first.stdout or "{}").get("healed", [])
        yield from (f"{each}" for each in healed if each["stuck"] or each["refused"] or each["left"])
        if (again.returncode, again.stdout) != (0, "nothing to heal\n"):
            yield f"heal again: {again.returncode} {again.stdout}{again.stderr}"
        yield from self.ground.left()
        yield from (f"{path.name} in TMPDIR" for path in (self.folder / "tmp").iterdir())
        for journal in self.folder.glob(f".hashidrill/**/{JOURNAL_NAME}"):
            entries = read_journal(journal)
            if entries != sorted(entries, key=lambda entry: entry.t_ns):
                yield f"{journal}: out of order"
            if not any(entry.event == "end" for entry in entries):
                yield f"{journal}: has no end, and heal did not write it"
        history = [("history", what) for what in ("list", "state") if (self.folder / "history.sqlite").exists()]
        for words in [("list", "runs"), *history]:
            if (done := self.says(*words)).returncode != 0:
                yield f"{words}: {done.stderr}"
        if list(self.folder.glob(f".hashidrill/days/*/{DAY_JOURNAL}")):
            done = self.says("gameday", "report", "--json")
            if done.returncode != 0 or not json.loads(done.stdout)["runs"]:
                yield f"gameday report: {done.returncode} {done.stdout}{done.stderr}"

    def wrong_second_start(self):
        """A second start goes on, or says in one message what to do, and then the command starts anew."""
        says, until = "", time.monotonic() + GOES_ON_WITHIN_S
        words = [self.case.words, *filter(None, [self.case.again])]
        while words and time.monotonic() < until:
            code, says = self.goes_on(words[-1])
            if code not in {0, 2, 130} or "Traceback" in says or not says:
                break
            if code != 2:
                return self.ground.left_after(self.case.gone_s)
            if "already locked" not in says:  # that of a dead run ends by itself
                words.pop()
        return [f"the second start: {says[-1500:]}"]

    def goes_on(self, words):
        """Its exit code and what it says. It is interrupted once it goes on."""
        process, lines = self.start(words), []
        deadline = threading.Timer(GOES_ON_WITHIN_S, process.kill)
        deadline.start()
        try:
            for line in process.stdout:
                lines.append(line)
                if self.case.goes_on in line:
                    process.send_signal(signal.SIGINT)
                    break
            lines += process.communicate(timeout=ENDS_WITHIN_S)
        finally:
            deadline.cancel()
        return process.returncode, "".join(lines)


@pytest.fixture
def kills(request):
    """(number, seconds, whether what outlives it dies too), for a case."""
    chance = random.Random(f"{SEED}-{request.node.callspec.id if hasattr(request.node, 'callspec') else ''}")
    return [(number, chance.uniform(0, 1), chance.random() < 0.5) for number in range(KILLS)]


def strike(case, place, at_s, *, others):
    """Starts it and kills it. Returns its last line."""
    process = place.start(case.words)
    try:
        stdout, stderr = process.communicate(timeout=at_s)
    except subprocess.TimeoutExpired:
        place.kill(process, others=others)
        stdout, stderr = process.communicate(timeout=ENDS_WITHIN_S)
    assert "Traceback" not in stdout + stderr, stdout + stderr
    return (stdout.strip().splitlines() or [""])[-1]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.needs("datacenter", "consul 1.22.2")
def test_a_command_that_is_killed_leaves_nothing_and_starts_again(name, kills, tmp_path, tell):
    case = CASES[name]

    def one(number, share, others):
        place = Place(case, tmp_path, f"{name}-{number}")
        struck = Struck(name, number, share * case.latest_s, "all" if others else "command")
        struck.last = strike(case, place, struck.at_s, others=others)
        if case.gives_up and not others:
            place.says(*case.gives_up.split())
        struck.wrong += [*place.wrong_afterwards(), *place.wrong_second_start()]
        place.work.rmdir()
        tell(str(struck))
        return struck

    with ThreadPoolExecutor(AT_ONCE) as several:
        done = list(several.map(lambda each: one(*each), kills))
    assert [str(each) for each in done if each.wrong] == [], f"HASHIDRILL_KILL_SEED={SEED}"
    # a training game prints four lines until it pages
    assert len({each.last for each in done}) > min(KILLS / 2, 3), "too few moments for this to say anything"


LOAD = {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "value": "64B", "via": "consul:servers"}
METHOD = [
    {"fault": "process.pause", "on": "consul:clients", "for": "4s"},
    {"fault": "disk.latency", "on": "consul:leader", "with": {"op": "fsync", "delay": "100ms"}, "for": "4s"},
]
OF_RUNS = ("key hashidrill-audit/", "key hashidrill-interlocks/lock", "session ", "check ")
"""What a datacenter has of runs that are over, for a while, and what changes by itself."""
ATTACHED = Case(
    "run moved.yaml --attach {file} --plain",
    heal="heal --attach {file}",
    latest_s=45.0,
    outlives="hashidrill.staging.runs.in_attached",
    gone_s=60.0,
)


@pytest.fixture(scope="module")
def staging(consul, tmp_path_factory):
    """A datacenter of somebody else, and the attach file by which its hosts are reached over SSH."""
    there = Staging(consul.path, tmp_path_factory.mktemp("staging"), network=79)
    try:
        there.start()
        servers = SshServers(there.folder, dict.fromkeys(there.hosts, Here()))
        try:
            ssh = servers.settings(there.folder / "notes", check_address=False, lease="10s")
            more = f"carriers: {json.dumps({'ssh': ssh})}\ninterlocks: {{lock: {{ttl: 10s}}}}\n"
            yield (
                there,
                there.attach_file(interlocks=more),
                there.attach_file(
                    name="operator.yaml", token="management", interlocks="interlocks: {lock: {ttl: 10s}}\n"
                ),
            )
        finally:
            servers.close()
    finally:
        there.stop()


def touched(staging):
    """Agents of it that are stopped or traced."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"-config-dir={staging.folder}" in (status.parent / "cmdline").read_text():
                said = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
                if said["State"][0] in "Tt" or said["TracerPid"] != "0":
                    yield f"process {status.parent.name} is {said['State']}, traced by {said['TracerPid']}"


def kept(staging):
    """What of a datacenter a run must leave as it was."""
    return {name: value for name, value in staging.dump().items() if not name.startswith(OF_RUNS)}


@pytest.mark.needs("datacenter", "consul 1.22.2", "strace")
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user is not let in as root")
def test_a_run_against_an_existing_datacenter_that_is_killed_is_healed_and_starts_again(staging, kills, tmp_path, tell):
    there, file, operator = staging
    words = {name: str(getattr(ATTACHED, name)).format(file=file) for name in ("words", "heal")}
    case, done = replace(ATTACHED, **words), []
    for number, share, others in kills:
        place = Place(case, tmp_path, f"attached-{number}")
        experiment(place.folder / "moved.yaml", method=METHOD, load={"kv-writes": LOAD}, servers=3, clients=1)
        armed = place.says("staging", "arm", "moved.yaml", "--attach", str(operator), "--for", "30m")
        assert armed.returncode == 0, armed.stderr
        before = kept(there)
        struck = Struck("attached", number, share * case.latest_s, "all" if others else "command")
        struck.last = strike(case, place, struck.at_s, others=others)
        struck.wrong += [*place.wrong_afterwards(), *touched(there), *map(str, there.folder.glob("notes/*"))]
        after = kept(there)
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        struck.wrong += [f"{name} was {before.get(name)}, is {after.get(name)}" for name in changed]
        struck.wrong += place.wrong_second_start()
        place.work.rmdir()
        done.append(struck)
        tell(str(struck))
    assert [str(each) for each in done if each.wrong] == [], f"HASHIDRILL_KILL_SEED={SEED}"
