"""The replicated store in the lab: its planted bugs are shown by their faults, and a search that is killed goes on.

HASHIDRILL_KILLS says how often the search is killed; HASHIDRILL_KILL_SEED repeats a campaign. A kill takes about
fifteen seconds.
"""

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
from pathlib import Path

import pytest

from drills import Drill, environment, start
from hashidrill.rollouts.explore.lab_trials import LOG, RUNS, Trials
from leaks import VARIABLE, Ground
from store_trials import EXPERIMENT, SHOWN, USUAL
from store_world import OPTIONS

TRIES = 3
"""Runs in which a bug may show: the moment of a fault differs from run to run."""


def written(path, bug, *, planted):
    """An experiment with the faults that show the bug."""
    store = {**USUAL, **OPTIONS.get(bug, {}), **({"bug": bug} if planted else {})}
    path.write_text(EXPERIMENT.replace("{store: {}}", json.dumps({"store": store})))
    path.write_text(json.dumps(Trials.of(path).data(SHOWN[bug], 1.0)))
    return path


@pytest.mark.nightly
@pytest.mark.lie
@pytest.mark.parametrize("bug", SHOWN)
def test_a_planted_bug_breaks_a_promise_and_without_it_the_same_faults_break_none(bug, tmp_path, tell):
    broken = []
    while len(broken) < TRIES and "FAIL" not in broken:
        run = Drill(written(tmp_path / "planted.yaml", bug, planted=True), tmp_path / f"runs{len(broken)}")
        broken.append(run.result["verdict"])
    sound = Drill(written(tmp_path / "sound.yaml", bug, planted=False), tmp_path / "runs")
    what = [each["hypothesis"] for each in run.result["expectations"] if each["finding"] == "broken"]
    tell(f"{bug}: planted {', '.join(broken)} ({', '.join(what)}), without {sound.result['verdict']}")

    assert broken[-1] == "FAIL", run.result["invalid"]
    assert sound.result["verdict"] == "PASS", sound.result


# kill -9 of the search

SEED = int(os.environ.get("HASHIDRILL_KILL_SEED", secrets.randbelow(10**6)))
SEARCH = ("explore", "store.yaml", "--faults", "process.kill,process.pause", "--seed", "7", "--json")
LATEST_S, ENDS_WITHIN_S = 20.0, 300.0


def killed(words, place, after_s):
    """Starts it and kills it. Whether it ended by itself."""
    process = start(*words, env=place["env"], cwd=place["folder"])
    try:
        process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        return False
    return True


def lines_of(folder):
    """The whole lines of the log."""
    return [line for line in (folder / LOG).read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


@pytest.mark.parametrize(
    ("kills", "trials"), [pytest.param(3, 4, id="few"), pytest.param(20, 12, id="many", marks=pytest.mark.nightly)]
)
def test_a_search_that_is_killed_loses_no_trial_and_counts_none_twice(kills, trials, tmp_path, tell):
    kills = int(os.environ.get("HASHIDRILL_KILLS", kills))
    work = Path(os.environ[VARIABLE]) / "explore"
    for each in (work, tmp_path / "tmp"):
        each.mkdir()
    (tmp_path / "store.yaml").write_text(EXPERIMENT)
    env = environment(HASHIDRILL_WORK=work, XDG_STATE_HOME=tmp_path / "state", TMPDIR=tmp_path / "tmp")
    place, ground = {"env": env, "folder": tmp_path}, Ground(work)
    chance = random.Random(SEED)
    before: list[bytes] = []
    words = [*SEARCH, "--trials", trials]
    for number in range(kills):
        at_s = chance.uniform(0.5, LATEST_S)
        ended = killed(words, place, at_s)
        assert ground.left_after(15.0) == [] or all(line.startswith("directory") for line in ground.left())
        assert not [*(tmp_path / "tmp").iterdir()]
        if found := [*tmp_path.glob(f".hashidrill/explore/*/{LOG}")]:
            [log] = found
            now = lines_of(log.parent)
            assert now[: len(before)] == before, "a trial was lost"
            before, words = now, ["explore", "--resume", log.parent, "--trials", trials, "--json"]
        tell(f"kill {number + 1} at {at_s:4.1f}s: {max(len(before) - 1, 0)} trials in the log")
        if ended:
            break

    done = start(*words, env=env, cwd=tmp_path)
    stdout, stderr = done.communicate(timeout=ENDS_WITHIN_S)
    [log] = tmp_path.glob(f".hashidrill/explore/*/{LOG}")
    now = lines_of(log.parent)
    assert done.returncode in {0, 1}, stderr
    assert now[: len(before)] == before
    assert len(now) - 1 == json.loads(stdout)["trials"] == trials
    recordings = {json.loads(line)["recording"].rpartition("/")[2] for line in now[1:]}
    assert {path.name for path in (log.parent / RUNS).iterdir()} <= recordings
    sizes = [sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for path in (log.parent / RUNS).iterdir()]
    tell(f"{trials} trials: recordings of {max(sizes, default=0):,} bytes at most, log {log.stat().st_size:,}")
    assert ground.left_after(15.0) == []
    work.rmdir()
