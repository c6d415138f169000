"""Runs that end at the same moment, in processes of their own, are all in the history, whoever made its file."""

import subprocess
import sys

import pytest

from hashidrill.gamedays.history.store import Store, history_file, opened
from history_runs import recorded

_PROCESSES, _EACH = 4, 5
_STORES = """
import sys
from pathlib import Path
from hashidrill.gamedays.history.from_recording import record_run
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
stored = [record_run(Path(path)) for path in sys.argv[1:]]
sys.exit(None in stored)
"""


@pytest.mark.long
def test_runs_of_four_processes_are_all_stored_though_none_had_made_the_file(tmp_path):
    names = [[f"run-{process}-{number}" for number in range(_EACH)] for process in range(_PROCESSES)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _STORES, *(str(recorded(tmp_path, name).path) for name in mine)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for mine in names
    ]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:  # all at once
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        _, said = process.communicate(timeout=100)
        assert (process.returncode, said) == (0, "")
    with opened(history_file()) as database:
        assert {run.id for run in Store(database).runs()} == {name for mine in names for name in mine}


@pytest.mark.long
def test_a_process_that_dies_while_it_writes_leaves_the_runs_before_it(tmp_path):
    with opened(history_file()):
        pass
    dies = _STORES.replace(
        "stored =",
        "import os; from hashidrill.gamedays.history import store\n"
        "def turn(*_): os._exit(9)\n"
        "record_run(Path(sys.argv.pop(1))); store.Store._turn = turn\nstored =",
    )
    paths = [str(recorded(tmp_path, name).path) for name in ("a", "b")]
    done = subprocess.run(
        [sys.executable, "-c", dies, paths[0], paths[1]],
        input="go\n",
        text=True,
        check=False,
        capture_output=True,
        timeout=100,
    )
    assert done.returncode == 9, done.stderr
    with opened(history_file()) as database:
        assert [run.id for run in Store(database).runs()] == ["a"]
        assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
