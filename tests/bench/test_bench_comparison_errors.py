"""How often `no_worse_than` errs: equal sides that fail, and worse candidates that pass, by the number of rounds.

    pytest -m bench -s tests/bench/test_bench_comparison_errors.py

Rounds are planted with the seconds of both runs, so that a comparison sees what it sees of recordings: a difference
between two runs, and how much the seconds in them scatter. `quiet` is an idle machine, on which two equal runs of
raft/slow-leader-disk differ by 4 %; `busy` is one that others use. `luck` are quiet runs, one in four of which has a
leader that suits it less, which makes all its times half as long again: nothing in that run tells. `heavy` has the
tails of a Student's t with 3 degrees of freedom. The margin is 20 %, that of a p50.
"""

import math
import os

import numpy as np
import pytest

from bench_runs import table
from hashidrill.core import hypothesis
from hashidrill.core.compare.figures import figures
from hashidrill.core.compare.statistics import Decision, of_intervals
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

COMPARISONS = int(os.environ.get("HASHIDRILL_BENCH_COMPARISONS", "1000"))
ROUNDS = (2, 3, 5, 8)
MARGIN, SECONDS = 1.2, 20
APART = {"quiet": 0.03, "busy": 0.1, "luck": 0.03, "heavy": 0.1}
"""By how much one run differs from an equal one, and its seconds from each other: of their logarithms."""
LUCKLESS, LUCK = 0.25, math.log(1.5)


def _run(draw, shape):
    """The logarithm of a run's latency, second by second."""
    apart = draw.standard_t(3) / math.sqrt(3) if shape == "heavy" else draw.standard_normal()
    luck = LUCK if shape == "luck" and draw.random() < LUCKLESS else 0.0
    return APART[shape] * (apart + draw.standard_normal(SECONDS)) + luck


def _shares(decide, shape, worse, rounds):
    """The shares of comparisons that fail, that pass, and that cannot tell."""
    draw, said = np.random.default_rng(2026), []
    for _ in range(COMPARISONS):
        pairs = [of_intervals(math.log(worse) + _run(draw, shape) - _run(draw, shape)) for _ in range(rounds)]
        said.append(decide(pairs))
    fails, unknown = (said.count(each) / COMPARISONS for each in (Decision.WORSE, Decision.CANNOT_TELL))
    return fails, abs(1 - fails - unknown), unknown


def test_how_often_a_comparison_errs(capsys):
    measured = hypothesis.get("no_worse_than").function.__globals__["_Measured"]
    known = figures(resolve(find_experiment("raft/slow-leader-disk")).experiment)
    [figure] = [each for each in known if each.name == "kv-writes.latency.p50"]
    ones = [1.0] * max(ROUNDS)

    def decide(pairs):
        return measured(figure, ones, ones, pairs).decided(MARGIN)

    rows = [("noise", "rounds", "candidate", "fails", "passes", "cannot tell")]
    for shape in APART:
        for rounds in ROUNDS:
            for worse in (1.0, MARGIN, 1.3, 1.5):
                fails, passes, unknown = _shares(decide, shape, worse, rounds)
                shown = (f"{share:.1%}" for share in (fails, passes, unknown))
                rows.append((shape, str(rounds), f"{worse - 1:+.0%}", *shown))
                assert rounds > 2 or unknown == 1, "two rounds tell nothing"
                if worse == 1.0:
                    assert fails <= 0.01, (shape, rounds, fails)
                else:
                    assert passes <= (0.04 if worse == MARGIN else 0.01), (shape, rounds, worse, passes)
    table(capsys, f"{COMPARISONS} comparisons each, margin {MARGIN - 1:.0%}", rows)
