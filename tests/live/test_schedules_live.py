"""A periodic job on a real Nomad fires by itself, also after its leader changed, and each run is in the history."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import pytest

from docs_pages import ROOT
from drills import environment, hashidrill
from hashidrill.history.database import opened
from hashidrill.history.place import VARIABLE as HISTORY
from hashidrill.history.store import Store
from leaks import VARIABLE

pytestmark = [pytest.mark.live, pytest.mark.nomad, pytest.mark.nightly, pytest.mark.needs("datacenter", "nomad")]
_FIRES_WITHIN_S = 90.0
"""Each minute by its cron expression, and what Nomad takes to start it."""


@pytest.fixture
def place(tmp_path):
    """A Nomad that is up, and the environment of commands about it."""
    work = Path(os.environ[VARIABLE]) / "scheduled"
    work.mkdir()
    env = environment(XDG_STATE_HOME=tmp_path / "state", **{VARIABLE: work})
    done = hashidrill("up", "--json", "--nomad", "3+1", "--expose", "nomad=0", env=env, within_s=200)
    assert done.returncode == 0, done.stderr
    try:
        yield env | {"NOMAD_ADDR": json.loads(done.stdout)["urls"]["nomad"]}
    finally:
        hashidrill("down", env=env)
        with contextlib.suppress(OSError):
            work.rmdir()


def planted(folder):
    """Leaves a recording and stores it, as `hashidrill run` does at its end, in a second and without a datacenter."""
    program = folder / "hashidrill"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys, time; from pathlib import Path\n"
        f"sys.path[:0] = [{str(ROOT / 'tests/support')!r}]\n"
        "from history_runs import recorded; from hashidrill.history.store import record_run\n"
        "record_run(recorded(Path('.hashidrill/runs'), f'run-{time.time_ns()}').path)\n"
    )
    program.chmod(0o755)
    return program


def runs_in(file):
    if not file.exists():
        return []
    with opened(file) as database:
        return [run.id for run in Store(database).runs()]


def until(condition, within_s=_FIRES_WITHIN_S):
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not fire"
        time.sleep(0.5)
    return found


def test_a_job_fires_twice_once_after_the_leader_changed_and_both_runs_are_in_the_history(place, tmp_path):
    history = tmp_path / "history.sqlite"
    tmp_path.chmod(0o755)
    done = hashidrill(
        "schedule", "raft/frozen-leader", "--cron", "* * * * *", "--nomad", "--submit", "--node", "any", "--command",
        planted(tmp_path), env=place | {HISTORY: str(history)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "registered: hashidrill-frozen-leader" in done.stdout
    [first] = until(lambda: runs_in(history))

    def leader():
        said = hashidrill("shell", "nomad-1", "--", "nomad", "operator", "raft", "list-peers", env=place)
        return next((line.split()[0] for line in said.stdout.splitlines() if " leader " in line), "")

    before = leader()
    moved = hashidrill("shell", "nomad-1", "--", "nomad", "operator", "raft", "transfer-leadership", "-peer-address",
                       other(before, place), env=place)  # fmt: skip
    assert moved.returncode == 0, moved.stdout + moved.stderr
    until(lambda: leader() not in {"", before}, 30)
    runs = until(lambda: found if len(found := runs_in(history)) > 1 else None)
    assert first in runs


def other(leader, place):
    """The address in Raft of a server that does not lead."""
    said = hashidrill("shell", "nomad-1", "--", "nomad", "operator", "raft", "list-peers", env=place)
    rows = [line.split() for line in said.stdout.splitlines()[1:] if line.strip()]
    return next(row[2] for row in rows if row[0] != leader)
