"""Spoilt looks and operations: what broke, or could not be judged, never comes to hold because less of it was seen.

Every planted lie, and every run in which nothing could be judged, is judged again with its looks and operations spoilt.
Of operations only those of a load with a rate may be missing: whoever watches cannot miss what it has never seen, and
shows by its looks that it was watching.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

import confusion_stack  # noqa: F401 - it adds its cases to CASES
from confusion import TRUTH
from confusion_cases import CASES
from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError, RecordingError
from hashidrill.core.hypothesis import Broken
from hashidrill.core.judging.doubts import doubts
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.reads import TracedRecording, unseen
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.testing.recordings import RecordingBuilder

S = 1_000_000_000
FAULT = (10 * S, 30 * S)
WHOLE = (0, 100 * S)
PLANTED = [
    pytest.param((name, planted, words, plant), id=f"{name}-{planted}-{words}")
    for name, cases in CASES.items()
    for planted, words, plant in cases
    if planted != TRUTH
]
LOOKS = ("missing", "failed", "mostly failed", "late", "twice", "huge")
OPERATIONS = ("missing", "twice")


class Spoilt(Recording):
    """A recording in which the looks, or the operations, of some time are not as they were."""

    def __init__(self, path, looks="", operations="", span=WHOLE):
        super().__init__(path)
        self.how, self.how_operations, self.span = looks, operations, span
        self.chance = random.Random(f"{looks}{operations}{span}")

    def _read_series(self, signal, host):  # noqa: PLR0911 - one for each way
        series = super()._read_series(signal, host)
        if signal.endswith(".level"):  # no look: the generator says what it does
            return series
        inside = (series.t_ns >= self.span[0]) & (series.t_ns < self.span[1])
        match self.how:
            case "missing":
                if inside.all():
                    raise HypothesisInvalidError(f"signal {signal!r} has no samples in this recording")
                return series._picked(np.flatnonzero(~inside))
            case "failed" | "mostly failed":
                share = 1.0 if self.how == "failed" else 0.7
                hit = inside & np.array([self.chance.random() < share for _ in inside])
                return replace(series, value=np.where(hit, np.nan, series.value), ok=series.ok & ~hit)
            case "late":  # as if its time had stood still
                return replace(series, t_ns=np.where(inside, series.t_ns[inside].min(initial=2**61), series.t_ns))
            case "twice":
                return series._picked(np.repeat(np.arange(len(series)), 2))
            case "huge":
                return replace(series, value=np.where(inside, np.nan, series.value))  # as the reader takes 2^63
        return series

    def _read_operations(self, load):
        ops = super()._read_operations(load)
        inside = (ops.intended_ns >= self.span[0]) & (ops.intended_ns < self.span[1])
        if self.how_operations != "missing" or _rate(ops) <= 5:
            return ops
        if inside.all():
            raise HypothesisInvalidError(f"load {load!r} has no operations in this recording")
        return ops.picked(~inside)

    def _query(self, statement, *parameters):
        rows = super()._query(statement, *parameters)
        twice = self.how_operations == "twice" and statement.startswith("SELECT intended_ns")
        return [row for row in rows for _ in range(2)] if twice else rows


def _rate(ops):
    return len(ops) * S / max(1, int(ops.intended_ns[-1] - ops.intended_ns[0]))


def passes(name, recording, params):
    """Whether the verdict would be PASS, were this the only expectation."""
    traced = TracedRecording(recording)
    try:
        hypothesis.get(name).check(traced, params)
    except (Broken, HypothesisInvalidError):
        return False
    if unseen(recording, traced.reads):
        return False
    whole = Recording(recording.path)
    offered = {load for load in whole.loads if _rate(whole.operations(load)) > 5}
    try:
        found = doubts(recording, recording.experiment)
    except RecordingError:  # some recordings of clients name what no experiment may
        if recording.how_operations == "missing":
            return False
        found = []
    found = [one for one in found if one.among == "probes" or one.of is None or one.of & offered]
    return not any(doubt.touches(read) for doubt in found if not doubt.late_only for read in traced.reads)


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize("case", PLANTED)
def test_no_lie_passes_because_less_was_seen(case, tmp_path):
    name, planted, words, plant = case
    recording, params = plant(tmp_path / "run")
    chance = random.Random(f"{name}{planted}{words}")
    since = chance.uniform(8, 36)
    spans = (FAULT, WHOLE, (int(since * S), int((since + chance.uniform(6, 14)) * S)))
    passed = [
        (looks, operations, span)
        for span in spans
        for looks, operations in [*((how, "") for how in LOOKS), *(("", how) for how in OPERATIONS)]
        if passes(name, Spoilt(recording.path, looks, operations, span), params)
    ]
    assert passed == []


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize("case", PLANTED[::4])
def test_no_lie_passes_because_it_was_written_in_another_order(case, tmp_path, monkeypatch):
    name, _, _, plant = case
    build = RecordingBuilder.build

    def reversed_build(builder):
        builder._samples.reverse()
        builder._operations.reverse()
        return build(builder)

    monkeypatch.setattr(RecordingBuilder, "build", reversed_build)
    recording, params = plant(tmp_path / "run")
    assert not passes(name, Spoilt(recording.path), params)


class TestANewHypothesisWrittenWithoutCare:
    """It drops failed samples, or takes the worst of what is there, and comes out right."""

    @pytest.fixture
    def careless(self, tmp_path):
        (tmp_path / "hypotheses").mkdir()
        (tmp_path / "hypotheses" / "careless.py").write_text(CARELESS)

        def judged(run):
            verdict = judge(run.expect("never_under_two", load="web").build(), near_to=tmp_path)
            return verdict.judgements[0].finding, verdict.judgements[0].text

        run = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load("kv-writes")
        return run, judged

    def test_holds_by_looks_that_succeeded(self, careless):
        run, judged = careless
        assert judged(run.series("web.running", 3.0))[0] is Finding.HELD

    @pytest.mark.lie
    @pytest.mark.parametrize("seen", [lambda t: t < 12, lambda t: t % 2 == 0.5, lambda t: not 20 <= t < 27])
    def test_is_invalid_where_looks_failed(self, careless, seen):
        run, judged = careless
        for half in range(8, 100):
            at = half / 2
            run.sample("web.running", 3.0 if seen(at) else None, at=at, ok=seen(at))
        finding, text = judged(run)
        assert finding is Finding.INVALID
        assert "it relies on looks that did not succeed" in text
        assert "looks at web.running failed" in text
        assert "measured anyway: held" in text

    @pytest.mark.lie
    def test_is_invalid_where_nobody_looked(self, careless):
        run, judged = careless
        finding, text = judged(run.series("web.running", 3.0, end=20))
        assert finding is Finding.INVALID
        assert "no look at web.running for 30.5s" in text

    def test_is_broken_by_one_look_however_many_failed(self, careless):
        run, judged = careless
        for second in range(4, 50):
            seen = second in {9, 20}
            run.sample("web.running", (3.0 if second == 9 else 1.0) if seen else None, at=second, ok=seen)
        assert judged(run)[0] is Finding.BROKEN


CARELESS = """
from hashidrill import measure
from hashidrill.core.hypothesis import Held, hypothesis, require


@hypothesis
def never_under_two(recording, *, load: str):
    series = recording.series(f"{load}.running").between(measure.method(recording)[0], measure.loads_end_ns(recording))
    require(series.value[series.ok].min() >= 2, "fewer than two ran")
    return Held("two ran at all times")
"""


@pytest.mark.lie
@pytest.mark.parametrize("figure", [2.0**63, float("inf")])
def test_a_figure_that_no_probe_can_measure_is_a_look_that_failed(tmp_path, figure):
    run = RecordingBuilder(tmp_path / "run").load("kv-writes").sample("web.running", figure, at=12).build()
    assert np.isnan(run.series("web.running").value).all()


@pytest.mark.lie
@pytest.mark.parametrize("late_ns", [2**63 - 1, -(2**63), 2**62])
def test_an_operation_at_no_time_of_a_run_is_no_verdict(tmp_path, late_ns):
    run = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load("kv-writes").final_reads("kv-writes")
    run._operations.append(run._operations[-1]._replace(intended_ns=late_ns))
    verdict = judge(run.build(), near_to=tmp_path)
    assert verdict.verdict is Verdict.INVALID
    assert "operations are not readable: " in str(verdict.invalid)


@pytest.mark.lie
def test_an_operation_that_was_reported_twice_counts_once(tmp_path):
    run = RecordingBuilder(tmp_path / "run").load("kv-writes", end=5)
    run._operations *= 2
    assert len(run.build().operations("kv-writes")) == 50


def test_what_a_load_samples_after_it_was_stopped_is_no_look_of_it(tmp_path):
    """`nomad.dispatch` samples the fate of each dispatch at the end, all within milliseconds."""
    run = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load("batch", rate=2)
    for number in range(30):
        run.sample("batch.work", 0.0, at=50.1 + number / 1000, text=f"run-{number} waits")
    [judged] = judge(run.expect("writes_recover", load="batch", within="5s").build()).judgements
    assert judged.finding is Finding.HELD, judged.text
