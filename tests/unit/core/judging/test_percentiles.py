"""The percentile that verdicts go by, taken thousands of times a judgement, is the one that NumPy documents."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hashidrill.core.judging import measure

LATENCIES = st.lists(st.sampled_from([0.0, 0.01, 0.3, 2.0, math.inf]) | st.floats(0, 100), min_size=1, max_size=60)
PERCENT = st.sampled_from([0, 50, 90, 99, 99.9, 100]) | st.floats(0, 100)


@given(LATENCIES, PERCENT)
@example([0.1, 0.2, 0.3], 100 / 3)
def test_it_is_one_that_was_measured_and_the_same_as_numpys(latencies, percent):
    found = measure.percentile(np.array(latencies), percent)

    assert found in latencies
    assert found == np.percentile(np.array(latencies), percent, method="inverted_cdf")


@pytest.mark.parametrize("latencies", [[], [math.nan], [0.1, math.nan, 0.3]])
def test_what_was_not_measured_has_none(latencies):
    assert math.isnan(measure.percentile(np.array(latencies), 50))
