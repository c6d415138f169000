"""The confusion matrix of every shipped hypothesis.

`uv run pytest tests/unit/hypotheses/test_confusion_hypotheses.py -s` prints it.
"""

import pytest

import confusion_stack  # noqa: F401 - it adds its cases to CASES
import places
from confusion import LIE, NOTHING, TRUTH, Matrix, unplanted
from confusion_cases import CASES
from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.core.judging.reads import TracedRecording, unseen
from hashidrill.testing.recordings import RecordingBuilder

pytestmark = pytest.mark.lie

SHIPPED = places.ROOT / "hypotheses"
PLANTED = [
    pytest.param((name, planted, words, plant), id=f"{name}-{planted}-{words}")
    for name, cases in CASES.items()
    for planted, words, plant in cases
]


@pytest.fixture(scope="module")
def matrix():
    it = Matrix("hypotheses")
    yield it
    print(f"\n\n{it}")  # noqa: T201 - what `-s` is for


def shipped():
    return {name for name, found in hypothesis.all_hypotheses().items() if found.path.is_relative_to(SHIPPED)}


def found(name, recording, params):
    """What the hypothesis says, in the words of the matrix, in view of the looks that it goes by."""
    traced = TracedRecording(recording)
    try:
        hypothesis.get(name).check(traced, params)
    except Broken:
        return LIE
    except HypothesisInvalidError as invalid:
        return "crash" if " crashed: " in str(invalid) else NOTHING
    return NOTHING if unseen(recording, traced.reads) else TRUTH


def test_every_shipped_hypothesis_has_a_planted_truth_and_a_planted_lie():
    assert unplanted({name: [each[0] for each in cases] for name, cases in CASES.items()}, shipped()) == {}
    assert set(CASES) <= shipped()


def test_one_without_a_lie_would_be_named():
    assert unplanted({"a": [TRUTH, LIE], "b": [TRUTH]}, {"a", "b", "c"}) == {"b": [LIE], "c": [TRUTH, LIE]}


@pytest.mark.parametrize("case", PLANTED)
def test_what_is_planted_is_what_it_says(case, matrix, tmp_path):
    name, planted, words, plant = case
    recording, params = plant(tmp_path / "run")
    row = matrix.note(name, words, planted, found(name, recording, params))
    assert row.right, row


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"steady_state_holds"}))  # a run has what its steady state asks
def test_where_there_is_nothing_to_judge_it_says_so(name, matrix, tmp_path):
    """A run with a fault that was proven, in which nothing that it asks for was recorded."""
    _, params = CASES[name][0][2](tmp_path / "planted")
    nothing = RecordingBuilder(tmp_path / "nothing").fault("noop", at=10, until=30).load("something-else").build()
    row = matrix.note(name, "nothing of it was recorded", NOTHING, found(name, nothing, params))
    assert row.right, row


def test_a_wrong_row_is_seen_in_the_table():
    it = Matrix("hypotheses")
    it.note("a", "fine", TRUTH, TRUTH)
    it.note("a", "a lie that passes", LIE, TRUTH)
    assert "a           lie      truth  WRONG: a lie that passes" in str(it)
    assert it.summary() == "1 hypotheses: 1 of 1 truth, 0 of 1 lie told right (50%)"
