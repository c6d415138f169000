"""What comparisons find: regressions of 1.2, 1.5 and 2 times in KV latency, alarms of equal sides, and intervals.

    pytest -m bench -s tests/bench/test_bench_gate.py

Every block runs raft/slow-leader-disk-brief once at each strength of its fault, in an order of chance: the fault's
delay as it is, the same once more, and 1.2, 1.5 and 2 times of it. KV latency under that fault is made of its delay, so
the candidates' is worse by about as much; by how much in truth, all blocks together say. Comparisons are then played
from these runs as `play` would have played them: a round takes the two sides of one block, and blocks come in an order
of chance, 200 times. These share their runs, so their shares are less exact than 200 comparisons' would be.

A block takes five runs of 28 s, 2 min 20 s. HASHIDRILL_BENCH_BLOCKS says how many: 14, in 33 minutes, are enough for 6
that calibrate and 8 that compare. HASHIDRILL_BENCH_RUNS says where the runs are: what is there already is not run
again, so it can be interrupted.
"""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from bench_runs import table
from hashidrill.core.compare.comparison import compared, is_sure, together
from hashidrill.core.compare.figures import figures, paired
from hashidrill.core.compare.statistics import Decision
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.lab.runs.launch import run_experiment
from hashidrill.lab.runs.rounds import Round, played
from hashidrill.rollouts.gate.playing import noise

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3 * 3600)]  # its fixture makes all of the runs

BLOCKS = int(os.environ.get("HASHIDRILL_BENCH_BLOCKS", "14"))
RUNS = os.environ.get("HASHIDRILL_BENCH_RUNS")
EXPERIMENT = find_experiment("raft/slow-leader-disk-brief")
DELAY_MS = 200
SIDES = {"baseline": 1.0, "equal": 1.0, "1.2 times": 1.2, "1.5 times": 1.5, "2 times": 2.0}
P50 = "kv-writes.latency.p50"
COMPARISONS, AT_MOST, CALIBRATED_BY = 200, 8, 6


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """One run of each side for every block, measured: {side: Played}. Blocks with an INVALID run are left out."""
    folder = Path(RUNS) if RUNS else tmp_path_factory.mktemp("runs")
    wanted = figures(resolve(EXPERIMENT).experiment)
    found = []
    for number in range(BLOCKS):
        order = list(SIDES)
        random.Random(number).shuffle(order)
        runs = {
            side: played(side, _recording(folder / f"{number:03d}" / side.replace(" ", "-"), side), wanted)
            for side in order
        }
        if not any(run.invalid for run in runs.values()):
            found.append(runs)
    return found


def _recording(folder, side):
    """What is there already, or a new run."""
    there = sorted(path.parent for path in folder.glob(f"*/{JOURNAL_NAME}"))
    return there[-1] if there else run_experiment(resolve(_file(folder, side)), runs_dir=folder)


def _file(folder, side):
    """The experiment with the fault as strong as that side has it."""
    text = EXPERIMENT.read_text()
    asked = f"delay: {DELAY_MS}ms"
    assert text.count(asked) == 1
    folder.mkdir(parents=True, exist_ok=True)
    bases = EXPERIMENT.parents[1] / "bases"
    text = text.replace(asked, f"delay: {round(DELAY_MS * SIDES[side])}ms").replace("../bases", str(bases))
    (folder / "experiment.yaml").write_text(text)
    return folder / "experiment.yaml"


def _round(number, block, side):
    return Round(number, [block["baseline"], block[side]], ("baseline", side))


def _logs(blocks, side):
    [figure] = [each for each in figures(resolve(EXPERIMENT).experiment) if each.name == P50]
    pairs = [paired(figure, block["baseline"].measured[P50], block[side].measured[P50]) for block in blocks]
    return [pair for pair in pairs if pair is not None]


def _equal(figure, block):
    return paired(figure, block["baseline"].measured[figure.name], block["equal"].measured[figure.name])


def _compare(blocks, side, draw, *, calibrate):
    """One comparison: what it says, after how many rounds, and its interval of the KV latency."""
    wanted = figures(resolve(EXPERIMENT).experiment)
    order = draw.permutation(len(blocks))
    priors = {}
    if calibrate:  # by rounds that the comparison does not use
        known, order = order[:CALIBRATED_BY], order[CALIBRATED_BY:]
        for figure in wanted:
            pairs = [_equal(figure, blocks[n]) for n in known]
            if all(pairs):
                priors[figure.name] = noise(pairs)
    rounds = []
    for number in order[:AT_MOST]:
        rounds.append(_round(int(number), blocks[number], side))
        found = compared(rounds, wanted, at_most=AT_MOST, priors=priors)
        if is_sure(found):
            break
    [p50] = [each for each in found if each.figure.name == P50]
    return together(found), len(rounds), p50.interval


def test_what_comparisons_find(blocks, capsys):
    assert len(blocks) >= CALIBRATED_BY + AT_MOST - 2, f"{len(blocks)} of {BLOCKS} blocks are valid, which is too few"
    rows = [("a candidate with a KV latency of", "measured", "worse", "no worse", "cannot tell", "rounds", "covered")]
    shares = {}
    for calibrate in (False, True):
        rows.append((f"{'with' if calibrate else 'without'} a calibration", *[""] * 6))
        for side in list(SIDES)[1:]:
            truth = float(np.exp(np.mean([pair.log for pair in _logs(blocks, side)])))
            draw = np.random.default_rng(len(side))
            ends = [_compare(blocks, side, draw, calibrate=calibrate) for _ in range(COMPARISONS)]
            said = {each: float(np.mean([end[0] is each for end in ends])) for each in Decision}
            covered = float(np.mean([end[2].low <= truth <= end[2].high for end in ends]))
            shares[calibrate, side] = said[Decision.WORSE], covered
            no_worse = said[Decision.NO_WORSE] + said[Decision.BETTER]
            rows.append(
                (
                    side,
                    f"{truth:.2f}",
                    f"{said[Decision.WORSE]:.1%}",
                    f"{no_worse:.1%}",
                    f"{said[Decision.CANNOT_TELL]:.1%}",
                    f"{np.mean([end[1] for end in ends]):.1f}",
                    f"{covered:.1%}",
                )
            )
    table(capsys, f"comparisons from {len(blocks)} blocks, at most {AT_MOST} rounds each", rows)
    for (calibrate, side), (worse, covered) in shares.items():
        assert covered >= 0.9, (calibrate, side, covered)
        if side == "equal":
            assert worse <= 0.02, (calibrate, worse)
        if SIDES[side] >= 1.5:
            assert worse >= 0.95, (calibrate, side, worse)


def test_how_alike_equal_sides_are(blocks, capsys):
    rows = [("figure", "differs by", "in most rounds under")]
    for figure in figures(resolve(EXPERIMENT).experiment):
        pairs = [_equal(figure, block) for block in blocks]
        known = [pair for pair in pairs if pair is not None]
        if known:
            sd = noise(known).sd
            rows.append((figure.name, f"{np.exp(sd) - 1:.1%}", f"{np.exp(2 * sd) - 1:.1%}"))
    table(capsys, f"equal sides, {len(blocks)} rounds", rows)
