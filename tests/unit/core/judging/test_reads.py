"""What a hypothesis is said to have read is all that it read: whatever else is spoilt, it says the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from confusion_cases import CASES
from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.core.judging.reads import ALL, EVERYTHING, Read, TracedRecording
from hashidrill.core.recording.reader import Operations, Recording, Series
from hashidrill.testing.recordings import RecordingBuilder

PLANTED = [
    pytest.param((name, plant), id=f"{name}-{planted}-{words}")
    for name, cases in CASES.items()
    for planted, words, plant in cases
]
S = 10**9
NARROW = {
    "available_during",
    "green_but_sick",
    "helps",
    "leadership_stays",
    "reads_recover",
    "recovers_without_restart",
    "writes_recover",
}
"""Some of those that are judged from a part of the run."""


class Spoilt(Recording):
    """The recording again, with something else in all places that were not read."""

    def __init__(self, path, reads):
        super().__init__(path)
        self._reads = reads
        self.spoilt = 0

    def operations(self, load, *, unknown=""):
        ops = Recording(self.path).operations(load)
        bad = self._unread(ops.intended_ns, lambda read: read.of == load)
        outcome = np.where(bad, np.where(ops.ok, "fail", "ok"), ops.outcome)
        values = ["spoilt" if wrong else value for wrong, value in zip(bad, ops.values, strict=True)]
        return replace(ops, outcome=outcome, end_ns=np.where(bad, ops.end_ns + 7 * S, ops.end_ns), values=values)

    def series(self, signal, host=None, *, unknown=""):
        series = Recording(self.path).series(signal, host)
        bad = self._unread(series.t_ns, lambda read: read.of == signal and read.host in (None, host))
        text = ["spoilt" if wrong else value for wrong, value in zip(bad, series.text, strict=True)]
        value = np.where(bad, 13 - 7 * series.value, series.value)
        return replace(series, value=value, text=text, ok=np.where(bad, ~series.ok, series.ok))

    def _unread(self, t_ns, of):
        bad = np.ones(len(t_ns), np.bool_)
        for read in self._reads:
            if read.of is ALL or of(read):
                for start, end in [(-S, 2**62)] if read.spans is ALL else read.spans:
                    bad &= (t_ns < start) | (t_ns >= end)
        self.spoilt += int(bad.sum())
        return bad


def said(name, recording, params):
    try:
        held = hypothesis.get(name).check(recording, params)
    except Broken as broken:
        return "broken", broken.text, broken.figures
    except HypothesisInvalidError as invalid:
        return "invalid", str(invalid), {}
    return "held", held.text, held.figures


def looked(case, path):
    """What it says of a case with a tracer and then with all spoilt that it did not read; how much that was."""
    name, plant = case
    recording, params = plant(path)
    traced = TracedRecording(recording)
    first = said(name, traced, params)
    spoilt = Spoilt(recording.path, traced.reads)
    return first, said(name, spoilt, params), spoilt.spoilt


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize("case", PLANTED)
def test_what_was_not_read_makes_no_difference(case, tmp_path):
    first, again, _ = looked(case, tmp_path / "run")
    assert again == first


@pytest.mark.parametrize("name", sorted(NARROW))
def test_those_that_are_judged_from_a_part_of_the_run_are_known_to_be(name, tmp_path):
    """Else the test above would spoil nothing, and would not fail either."""
    assert looked((name, CASES[name][0][2]), tmp_path / "run")[2] > 0


def test_a_reader_that_is_not_noted_would_be_found(tmp_path):
    recording = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load("kv-writes").build()
    spoilt = Spoilt(Path(recording.path), [Read("kv-writes", None, ((0, 30 * S),))])
    assert spoilt.operations("kv-writes").between(0, 30 * S).ok.all()
    assert not spoilt.operations("kv-writes").ok.all()


def test_every_column_and_the_length_are_noted(tmp_path):
    recording = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load("kv-writes").healthy().build()
    for owner, get in ((Operations, lambda r: r.operations("kv-writes")), (Series, lambda r: r.series("raft.leader"))):
        names = [*owner.__dataclass_fields__, *(n for n, v in vars(owner).items() if hasattr(v, "attrname")), "__len__"]
        for name in names:
            traced = TracedRecording(recording)
            one = get(traced)
            assert traced.reads == [EVERYTHING]  # nothing yet
            len(one) if name == "__len__" else getattr(one, name)
            assert traced.reads != [EVERYTHING], name
