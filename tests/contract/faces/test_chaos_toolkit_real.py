"""The real `chaos run` ends with success for a PASS of ours, and for nothing else.

Chaos Toolkit is in an environment of its own, with this package. Most runs call a stand-in for hashidrill, which prints
and ends as the test says.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from hashidrill.core.experiment.loader import load_experiment
from hashidrill.kubernetes.interchange import to_chaos_toolkit
from places import ROOT

pytestmark = pytest.mark.nightly

CHAOS_TOOLKIT = "chaostoolkit==1.19.0"
BRIEF = "raft/slow-leader-disk-brief"
STAND_IN = """\
import json, os, signal, sys, time
verdict, code, count = os.environ["STANDS_IN"].split()
if verdict == "WAITS":
    signal.signal(signal.SIGTERM, lambda *_: (open("reverted", "w").close(), sys.exit(130)))
    open("waits", "w").close()
    time.sleep(60)
one = {"experiment": "mine", "verdict": verdict, "expectations": [], "faults": [{"kind": "disk.latency", "proof": {}}]}
print(json.dumps([one] * int(count)))
sys.exit(int(code))
"""


@pytest.fixture(scope="module")
def chaos(tmp_path_factory):
    """The program of an environment that has Chaos Toolkit and hashidrill."""
    uv = os.environ.get("UV") or shutil.which("uv")
    place = tmp_path_factory.mktemp("chaos") / "venv"
    for words in (("venv", place), ("pip", "install", "--python", place, CHAOS_TOOLKIT, "--editable", ROOT)):
        done = subprocess.run([uv, "--quiet", *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return place / "bin/chaos"


def exported(named="mine", **arguments):
    metadata = load_experiment(ROOT / f"experiments/{BRIEF}.yaml").metadata
    found = to_chaos_toolkit.experiment(metadata, named)
    found["method"][0]["provider"]["arguments"] |= arguments
    return found


@pytest.fixture
def runs(chaos, tmp_path):
    """`runs(experiment, *options, ends=...)`: exit code of `chaos run`, and its journal."""

    def runs(experiment, *options, ends=""):
        (tmp_path / "experiment.json").write_text(json.dumps(experiment))
        (tmp_path / "journal.json").unlink(missing_ok=True)
        done = subprocess.run(
            [chaos, "run", *options, "experiment.json"],
            cwd=tmp_path,
            env={**os.environ, "STANDS_IN": ends},
            capture_output=True,
            text=True,
            check=False,
        )
        journal = tmp_path / "journal.json"
        return done.returncode, json.loads(journal.read_text()) if journal.exists() else {"status": done.stdout}

    return runs


@pytest.fixture
def stand_in(tmp_path):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    return exported(program=[sys.executable, str(tmp_path / "stand_in.py")])


def test_a_pass_is_success_and_the_journal_has_the_proofs(runs, stand_in):
    code, journal = runs(stand_in, ends="PASS 0 1")
    assert (code, journal["status"], journal["deviated"]) == (0, "completed", False)
    assert journal["hashidrill"][0]["faults"] == [{"kind": "disk.latency", "proof": {}}]


def test_a_fail_deviates(runs, stand_in):
    code, journal = runs(stand_in, ends="FAIL 1 1")
    assert (code, journal["status"], journal["deviated"]) == (1, "completed", True)


@pytest.mark.lie
@pytest.mark.parametrize("ends", ["INVALID 3 1", "PASS 4 1", "FAIL 0 1", "PASS 0 2", "PASS 0 0", "PASS 2 0"])
def test_what_is_no_pass_is_failed(runs, stand_in, ends):
    code, journal = runs(stand_in, ends=ends)
    assert (code, journal["status"]) == (1, "failed")


@pytest.mark.lie
@pytest.mark.parametrize("strategy", ["before-method-only", "during-method-only", "continuously", "default"])
def test_no_strategy_hides_a_fail(runs, stand_in, strategy):
    """In two of them no hypothesis is asked after the method: the control has the last word."""
    code, _ = runs(stand_in, "--hypothesis-strategy", strategy, ends="FAIL 1 1")
    assert code == 1


@pytest.mark.lie
@pytest.mark.parametrize("part", ["controls", "steady-state-hypothesis", "method"])
def test_what_is_cut_out_hides_no_fail(runs, stand_in, part):
    rest = {key: value for key, value in stand_in.items() if key != part}
    code, _ = runs({"method": [], **rest}, ends="FAIL 1 1")
    assert code == 1


@pytest.mark.lie
def test_a_run_that_does_nothing_is_no_success(runs, stand_in):
    assert runs(stand_in, "--dry", "actions", ends="PASS 0 1")[0] == 1


def test_an_interrupted_run_reverts_first(chaos, stand_in, tmp_path):
    (tmp_path / "experiment.json").write_text(json.dumps(stand_in))
    command = [chaos, "run", "experiment.json"]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "STANDS_IN": "WAITS 0 1"}, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "waits").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 1
    assert (tmp_path / "reverted").exists()
    assert json.loads((tmp_path / "journal.json").read_text())["status"] == "failed"


def test_an_experiment_that_is_not_there_is_no_success(runs):
    code, journal = runs(exported("raft/no-such-experiment"))
    assert (code, journal["hashidrill"][0]["exit_code"]) == (1, 2)


@pytest.mark.needs("datacenter", "consul 1.22.2")
def test_a_real_run_is_what_it_is_without_chaos_toolkit(runs):
    code, journal = runs(exported(BRIEF))
    [result] = journal["hashidrill"]
    assert (code, journal["status"], result["verdict"]) == (0, "completed", "PASS")
    assert all(fault["proof"]["ok"] and fault["gone_proof"]["ok"] for fault in result["faults"])
    assert result["faults"][0]["kind"] == "disk.latency"
