"""A periodic job on a real Nomad fires by itself, also after its leader changed, and each run is in the history."""

import json
import os
import shlex
import time

import httpx2
import pytest

from docs_pages import ROOT
from hashidrill.gamedays.history.store import VARIABLE as HISTORY
from hashidrill.gamedays.history.store import Store, opened
from ordinary_user import ordinary_user

pytestmark = [
    pytest.mark.live,
    pytest.mark.nomad,
    pytest.mark.nightly,
    pytest.mark.needs("datacenter", "nomad", "consul 1.22.2", "setpriv"),
    pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot become another one"),
    pytest.mark.may_skip("as root, the same is shown for an ordinary user"),
]
_FIRES_WITHIN_S = 90.0
"""Each minute by its cron expression, and what Nomad takes to start it."""
_JOB = "hashidrill-raft-frozen-leader"


def planted(user):
    """Leaves a recording and stores it, as `hashidrill run` does at its end, in a second and without a datacenter."""
    program = user.home / "hashidrill"
    paths = [str(ROOT / "tests/support"), *user.environment["PYTHONPATH"].split(os.pathsep)]
    program.write_text(
        f"#!{user.python}\n"
        "import sys, time; from pathlib import Path\n"
        f"sys.path[:0] = {paths!r}\n"
        "from history_runs import recorded; from hashidrill.gamedays.history.from_recording import record_run\n"
        "stored = record_run(recorded(Path('.hashidrill/runs'), f'run-{time.time_ns()}').path)\n"
        "sys.exit(stored is None)\n"
    )
    program.chmod(0o755)
    return program


def runs_in(file):
    if not file.exists():
        return []
    with opened(file) as database:
        return [run.id for run in Store(database).runs()]


class Nomad:
    """What its HTTP API says. `url` may be that of its pages."""

    def __init__(self, url):
        self.url = url.partition("/ui")[0]

    def get(self, path):
        return httpx2.get(self.url + path, trust_env=False, timeout=10).json()

    def evidence(self):
        """What became of the tasks, for a message."""
        told = [
            each["DisplayMessage"]
            for alloc in self.get("/v1/allocations?task_states=true")
            for task in (alloc["TaskStates"] or {}).values()
            for each in task["Events"]
        ]
        failed = [evaluation.get("FailedTGAllocs") for evaluation in self.get("/v1/evaluations")]
        return f"tasks: {told}; not placed: {[each for each in failed if each]}"

    def until(self, what, condition, within_s):
        deadline = time.monotonic() + within_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited {within_s} s for {what}: {self.evidence()}"
            time.sleep(0.5)
        return found


def test_a_job_fires_twice_once_after_the_leader_changed_and_both_runs_are_in_the_history(binary):
    with ordinary_user(binary("nomad"), binary("consul", "1.22.2")) as user:
        history = user.home / "history.sqlite"
        done = user("lab", "up", "--json", "--servers", "1", "--clients", "0", "--nomad", "3+1", "--expose", "nomad=0")
        assert done.returncode == 0, done.stderr
        try:
            nomad = Nomad(json.loads(done.stdout)["urls"]["nomad"])
            user.environment |= {"NOMAD_ADDR": nomad.url, HISTORY: str(history)}
            # its clients run as one user, and are no other's
            done = user(
                *shlex.split(
                    "schedule raft/frozen-leader --cron '* * * * *' --nomad --submit --node any --user '' --command"
                ),
                planted(user),
            )
            assert done.returncode == 0, done.stderr
            assert f"registered: {_JOB}" in done.stdout
            [first] = nomad.until("the first run", lambda: runs_in(history), _FIRES_WITHIN_S)

            before = nomad.get("/v1/status/leader")
            other = next(peer for peer in nomad.get("/v1/status/peers") if peer != before)
            moved = httpx2.put(
                f"{nomad.url}/v1/operator/raft/transfer-leadership",
                params={"address": other},
                trust_env=False,
                timeout=30,
            )
            assert moved.status_code == 200, moved.text
            nomad.until("another leader", lambda: nomad.get("/v1/status/leader") not in {"", before}, 30)
            known = runs_in(history)
            later = nomad.until("a run after that", lambda: set(runs_in(history)) - {*known}, _FIRES_WITHIN_S)
            assert first in runs_in(history)
            assert later
        finally:
            user("lab", "down")
