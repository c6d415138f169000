"""`hashidrill gameday`, as a timer starts it: killed at random moments, and resumed to the report of an unbroken day.

Takes a minute and a half.
"""

import json
import os
import random
import secrets
import signal
import subprocess
import time

import pytest

import places
from drills import environment, hashidrill, start
from hashidrill.core.util.files import COMPARISON_NAME, JOURNAL_NAME
from hashidrill.gamedays.gameday.journal import DAY_JOURNAL

SMALL = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: {name}, title: A small one, why: It tests the day}}
datacenter: {{consul: {{servers: 1, clients: 0, config: {{performance: {{raft_multiplier: 1}}}}}}}}
load:
  kv-writes: {{kind: consul.kv.write, rate: 20/s, keys: 10}}
steady_state: {{for: 1s, require: ["kv-writes.errors < 50%"]}}
method: [{{fault: disk.latency, on: "consul:leader", with: {{op: fsync, delay: 100ms}}, for: 2s}}]
recovery: {{for: 1s}}
expect: [{{no_acknowledged_write_lost: {{load: kv-writes}}}}]
"""
DAY = """\
apiVersion: hashidrill/v1
kind: GameDay
metadata: {name: small-day, title: A small day}
people: {ada: {role: lead}, grace: {role: on-call}}
before: [{check: machine}]
questions:
  leader: {measure: leader, ask: Who leads afterwards?}
  stop: {measure: stop, load: kv-writes, ask: How long do writes stop?}
experiments: [{experiment: one.yaml}, {experiment: two.yaml}]
repeat_invalid: 3
"""
COMPARED = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: both, title: One agent or two, why: It tests the day}
datacenter: {noop: {agents: 1}}
load: {gets: {kind: noop.get, rate: 20/s}}
steady_state: {for: 1s, within: 20s, require: ["noop.answers >= 1"]}
method: [{mark: ordinary, for: 2s}]
recovery: {for: 1s}
expect: [{latency_stays: {load: gets, fault: ordinary, p50_below: 500ms}}]
variants:
  one:
  two: {datacenter: {noop: {agents: 2}}}
rounds: 1
compare:
  - no_worse_than: {candidate: two, baseline: one, figure: gets.latency.p50, or_below: 500ms}
"""
COMPARING = """\
apiVersion: hashidrill/v1
kind: GameDay
metadata: {name: comparing-day, title: A day that compares}
people: {ada: {role: lead}}
before: [{check: machine}]
questions: {which: {measure: verdict, ask: Are two as good as one?}}
experiments: [{experiment: both.yaml, compare: true}]
repeat_invalid: 3
"""
SEED = int(os.environ.get("HASHIDRILL_KILL_SEED", secrets.randbelow(10**6)))
KILLS = 5
LATEST_S = 9.0
"""A run of these experiments ends about as long after the command was typed."""


def facts(found):
    """What does not depend on when and how often it was interrupted."""
    runs = [
        (
            run["name"],
            run["state"],
            run["verdict"],
            [(each["title"], each["finding"]) for each in run["expectations"]],
            [(q["name"], q["measured"], [(a["person"], a["came"]) for a in q["answers"]]) for q in run["questions"]],
        )
        for run in found["runs"]
    ]
    return found["outcome"], found["verdict"], found["exit_code"], [each["ok"] for each in found["checks"]], runs


@pytest.mark.nightly
def test_a_day_killed_at_five_random_moments_is_resumed_to_the_same_report(tmp_path):
    (tmp_path / "day.yaml").write_text(DAY)
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(SMALL.format(name=name))
    whole = hashidrill("gameday", "run", tmp_path / "day.yaml", "--yes", "--json", cwd=tmp_path, within_s=200)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    runs = tmp_path / "broken" / "runs"
    chance = random.Random(SEED)
    for _ in range(KILLS):
        days = list(runs.parent.glob(f"days/*/{DAY_JOURNAL}"))
        begin = ("resume", days[0].parent) if days else ("run", tmp_path / "day.yaml")
        process = start("gameday", *begin, "--yes", "--plain", "--runs", runs, cwd=tmp_path)
        try:
            stdout, stderr = process.communicate(timeout=chance.uniform(1, LATEST_S))
        except subprocess.TimeoutExpired:
            process.send_signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT]))
            stdout, stderr = process.communicate(timeout=60)
        assert "Traceback" not in stdout + stderr, f"seed {SEED}: {stdout}{stderr}"
    [day] = [path.parent for path in runs.parent.glob(f"days/*/{DAY_JOURNAL}")]
    hashidrill("gameday", "resume", day, "--yes", "--runs", runs, cwd=tmp_path, within_s=200)
    done = hashidrill("gameday", "report", day, "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert facts(found) == facts(json.loads(whole.stdout)), f"seed {SEED}: {done.stdout}"
    for entry in found["interrupted"]:
        assert not entry["recording"] or (day / entry["recording"]).is_dir()
    recordings = {run["recording"] for run in found["runs"]} | {each["recording"] for each in found["interrupted"]}
    recordings |= {each["recording"] for run in found["runs"] for each in run["before"]}
    assert {f"runs/{path.name}" for path in (day / "runs").iterdir()} <= recordings, "a recording that nothing names"


@pytest.mark.nightly
def test_a_day_that_compares_variants_is_interrupted_in_the_second_one_and_made_again(tmp_path):
    """Each variant is a datacenter of its own; what was interrupted is kept beside the comparison that counts.

    Agents of the example service start in a moment, and are all that a comparison needs.
    """
    env = environment(PYTHONPATH=places.SUPPORT / "noop_service")
    (tmp_path / "day.yaml").write_text(COMPARING)
    (tmp_path / "both.yaml").write_text(COMPARED)
    runs = tmp_path / "runs"
    words = ("run", tmp_path / "day.yaml", "--yes", "--plain", "--runs", runs)
    process = start("gameday", *words, cwd=tmp_path, env=env)
    until = time.monotonic() + 120
    while len(journals := list(tmp_path.glob(f"days/*/runs/*/*/{JOURNAL_NAME}"))) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in stdout + stderr) == (130, False), stdout + stderr
    done = hashidrill("gameday", "resume", "--yes", "--json", "--runs", runs, cwd=tmp_path, env=env, within_s=200)
    found = json.loads(done.stdout)
    [run], [broken] = found["runs"], found["interrupted"]
    assert (done.returncode, run["verdict"], run["questions"][0]["happened"]) == (0, "PASS", "PASS"), done.stdout
    assert [each["title"].partition("(")[0] for each in run["expectations"]] == ["no_worse_than"]
    day = journals[0].parents[3]
    assert (day / broken["recording"] / COMPARISON_NAME).is_file()
    compared = day / run["recording"]
    assert compared != day / broken["recording"]
    ran = [
        json.loads((path.parent / "run.json").read_text()) for path in sorted(compared.parent.glob(f"*/{JOURNAL_NAME}"))
    ]
    assert [([host["name"] for host in each["hosts"]], each["outcome"]) for each in ran] == [
        (["noop-1"], "complete"),
        (["noop-1", "noop-2"], "complete"),
    ]
    assert (compared / "report.html").is_file()
