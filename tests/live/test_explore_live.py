"""The replicated store in the lab: its planted bugs are shown by their faults, and a search that is killed goes on."""

import json

import pytest

from drills import CLI, Drill
from hashidrill.rollouts.explore.lab_trials import LOG, MOST_BYTES, RUNS, Trials
from killed_searches import Campaign
from store_trials import EXPERIMENT, SHOWN, USUAL
from store_world import OPTIONS

LATEST_S = 30.0
"""When a search is killed at the latest: it has played a trial by then."""
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


@pytest.mark.nightly
def test_a_search_that_is_killed_loses_no_trial_and_counts_none_twice(tmp_path, tell):
    folder = Campaign(CLI, tmp_path).run(20, 12, LATEST_S, tell)

    runs = [*(folder / RUNS).iterdir()]
    sizes = [sum(file.stat().st_size for file in run.rglob("*") if file.is_file()) for run in runs]
    log = (folder / LOG).stat().st_size
    tell(f"12 trials: {len(runs)} recordings of {max(sizes, default=0):,} bytes at most, log {log:,} bytes")
    assert 800 * (log / 12) + MOST_BYTES + max(sizes, default=0) < 2e9
