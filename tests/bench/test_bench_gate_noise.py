"""What a gate says of planted noise: false alarms of equal sides, and how often it tells what is far worse.

    pytest -m bench -s tests/bench/test_bench_gate_noise.py

Rounds of raft/killed-leader are planted, one number a figure and side, with the noise of a shape in each round. `quiet`
is what an idle machine of 2 cores showed, `busy` what one beside eight other jobs did. `bursts` are busy rounds in one
of five of which other work hit one side alone, unnoticed, and made all times three times as long. `heavy` has the tails
of a Student's t with 3 degrees of freedom. `far` is what raft_multiplier 10 did to it in the place of 1 (busy machine).
"""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from bench_runs import table
from hashidrill.core.compare.comparison import compared, is_sure, together
from hashidrill.core.compare.figures import figures
from hashidrill.core.compare.measured import Measured
from hashidrill.core.compare.statistics import ALARMS, Decision
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.lab.runs.rounds import Played, Round

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

GATES = int(os.environ.get("HASHIDRILL_BENCH_GATES", "1000"))
ROUNDS, EXPERIMENTS = 6, 8
"""What 8 minutes last for, and how many experiments share the alarms."""
USUAL = {
    "kv-writes.latency.p50": 0.007,
    "kv-writes.latency.p99": 2.5,
    "kv-writes.steady.p50": 0.006,
    "kv-writes.errors": 0.08,
    "kv-writes.recovery": 0.2,
    "kv-writes.lost": 0.0,
    "kv-reads.latency.p50": 0.003,
    "kv-reads.latency.p99": 0.03,
    "kv-reads.steady.p50": 0.003,
    "kv-reads.errors": 0.001,
    "kv-reads.recovery": 0.2,
    "ready": 6.5,
    "cpu": 4.0,
    "memory": 5.1e8,
    "written": 1.1e7,
}
FAR = USUAL | {"kv-writes.latency.p50": 20.0, "kv-writes.latency.p99": 20.0, "kv-writes.errors": 0.7, "ready": 23.0}
SPREAD = {"quiet": 0.1, "busy": 0.25, "bursts": 0.25, "heavy": 0.25}
"""Of the logarithm of one run's number."""


def _numbers(draw, usual, shape):
    sd = SPREAD[shape]
    noise = draw.standard_t(3, len(usual)) / math.sqrt(3) if shape == "heavy" else draw.standard_normal(len(usual))
    burst = 3.0 if shape == "bursts" and draw.random() < 0.1 else 1.0
    found = {}
    for (name, value), each in zip(usual.items(), noise * sd, strict=True):
        slower = burst if name.endswith(("p50", "p99", "recovery", "ready", "errors")) else 1.0
        number = value * math.exp(each) * slower
        found[name] = Measured(min(number, 0.99) if name.endswith("errors") else number, of=1000, at_most=20.0)
    return found


def _gate(draw, wanted, candidate, shape):
    """What it says, after how many rounds."""
    rounds = []
    for number in range(ROUNDS):
        sides = [
            Played(side, Path(), _numbers(draw, usual, shape))
            for side, usual in (("baseline", USUAL), ("candidate", candidate))
        ]
        rounds.append(Round(number, sides, ("baseline", "candidate")))
        found = compared(rounds, wanted, at_most=8, alarms=ALARMS / EXPERIMENTS)
        if is_sure(found):
            break
    return together(found), len(rounds)


def test_what_a_gate_says_of_planted_noise(capsys):
    wanted = figures(resolve(find_experiment("raft/killed-leader")).experiment)
    assert {each.name for each in wanted} == set(USUAL)
    rows = [("noise", "sides", "regression", "no regression", "cannot tell", "rounds")]
    for shape in SPREAD:
        for name, candidate in (("equal", USUAL), ("far", FAR)):
            draw = np.random.default_rng(2026)
            ends = [_gate(draw, wanted, candidate, shape) for _ in range(GATES)]
            said = {each: sum(end[0] is each for end in ends) / GATES for each in Decision}
            passed = said[Decision.NO_WORSE] + said[Decision.BETTER]
            rows.append(
                (
                    shape,
                    name,
                    f"{said[Decision.WORSE]:.1%}",
                    f"{passed:.1%}",
                    f"{said[Decision.CANNOT_TELL]:.1%}",
                    f"{np.mean([end[1] for end in ends]):.1f}",
                )
            )
            if name == "equal":
                assert said[Decision.WORSE] <= 0.01, (shape, said)
                assert passed >= {"quiet": 0.97, "busy": 0.85}.get(shape, 0.0), (shape, said)
            else:
                assert said[Decision.WORSE] >= 0.99, (shape, said)
    table(capsys, f"{GATES} gates of at most {ROUNDS} rounds", rows)
