"""What hypotheses of users import stays where it was, wherever the code behind it moves."""

import pytest

import hashidrill.core.recording
from hashidrill.core import hypothesis
from hashidrill.core.hypothesis import files
from hashidrill.core.judging import measure
from hashidrill.core.recording import reader

OWN = """\
from hashidrill import Broken, Duration, FaultWindow, Held, HypothesisInvalidError, Operations, Percent, Rate
from hashidrill import Recording, Series, hypothesis, measure, require

@hypothesis(timed=False)
def own(recording: Recording, *, load: str, within: Duration = Duration("1s")) -> Held:
    operations: Operations = recording.operations(load)
    return Held(f"{len(operations)} {measure.__name__}")
"""


def test_a_hypothesis_of_a_user_that_imports_all_that_is_public_is_found():
    [own] = files.from_source("own.py", OWN.encode())
    assert (own.name, own.timed, sorted(own.Params.model_fields)) == ("own", False, ["load", "within"])


@pytest.mark.parametrize("name", hashidrill.core.recording.__all__)
def test_what_recording_hands_out_is_the_readers(name):
    assert getattr(hashidrill.core.recording, name) is getattr(reader, name)


def test_what_a_hypothesis_may_ask_for_is_in_its_module():
    assert all(hasattr(hypothesis, name) for name in hypothesis.__all__)
    assert {"get", "all_hypotheses", "Broken", "Held", "hypothesis", "require"} <= set(hypothesis.__all__)
    assert measure.seconds(3.0) == "3s"
