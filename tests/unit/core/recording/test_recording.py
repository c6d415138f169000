"""Recordings: what a run left, written in batches and read lazily."""

import json
import sqlite3

import numpy as np
import pytest

from hashidrill.core.errors import HypothesisInvalidError, RecordingError
from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.writer import RecordingWriter
from hashidrill.testing.recordings import RecordingBuilder


@pytest.fixture
def builder(tmp_path):
    return RecordingBuilder(tmp_path / "run")


class TestWriter:
    def test_everything_emitted_is_there_after_close(self, tmp_path):
        """More than two batches of operations, and samples between them."""
        writer = RecordingWriter(tmp_path)
        for index in range(12_000):
            writer.operation(Operation("kv", index, index, index + 5, "ok", f"k{index}", "v"))
            if index % 1000 == 0:
                writer.sample(index, Sample("raft.term", float(index), host="consul-1"))
        writer.final_reads("kv", {"k1": "v", "k2": None})
        writer.close()
        (tmp_path / "journal.jsonl").touch()
        recording = Recording(tmp_path)
        assert len(recording.operations("kv")) == 12_000
        assert len(recording.series("raft.term")) == 12
        assert recording.final_reads("kv") == {"k1": "v", "k2": None}

    @pytest.mark.parametrize("count", [4999, 5000, 5001, 10_000])
    def test_no_operation_is_lost_or_doubled_at_the_edge_of_a_batch(self, tmp_path, count):
        writer = RecordingWriter(tmp_path)
        for index in range(count):
            writer.operation(Operation("kv", index, index, index, "ok"))
        writer.close()
        (tmp_path / "journal.jsonl").touch()
        assert np.array_equal(Recording(tmp_path).operations("kv").intended_ns, np.arange(count))

    def test_one_file_is_left_and_no_write_ahead_log(self, builder):
        recording = builder.load("kv").build()
        assert [path.name for path in recording.path.glob("recording.sqlite*")] == ["recording.sqlite"]

    def test_what_cannot_be_written_is_an_error_at_close(self, tmp_path):
        writer = RecordingWriter(tmp_path)
        writer.operation(Operation("kv", 0, 0, 0, "perhaps"))
        with pytest.raises(RecordingError, match="could not be written: CHECK constraint failed"):
            writer.close()

    def test_run_info_is_replaced_whole(self, tmp_path):
        writer = RecordingWriter(tmp_path)
        writer.write_run({"id": "a", "long": "x" * 1000})
        writer.write_run({"id": "b", "path": tmp_path})
        writer.close()
        assert json.loads((tmp_path / "run.json").read_text()) == {"id": "b", "path": str(tmp_path)}
        assert not list(tmp_path.glob("*.new"))


class TestReading:
    def test_a_directory_without_a_journal_is_no_recording(self, tmp_path):
        with pytest.raises(RecordingError, match=r"no recording there \(journal.jsonl is missing\)"):
            Recording(tmp_path)

    def test_phases_follow_each_other(self, builder):
        phases = builder.build().phases
        assert phases["method"] == (10_000_000_000, 30_000_000_000)
        assert phases["quiesce"] == (50_000_000_000, 52_000_000_000)

    def test_a_run_that_was_killed_died(self, builder):
        assert builder.end(None).build().outcome == "died"

    def test_a_fault_window_has_all_that_the_journal_tells(self, builder):
        (window,) = builder.fault("disk.latency", "consul-2", at=11, until=21, params={"delay": "500ms"}).build().faults
        assert (window.kind, window.host, window.proven, window.params) == (
            "disk.latency",
            "consul-2",
            True,
            {"delay": "500ms"},
        )
        assert (window.applied_ns, window.reverted_ns, window.gone_ns) == (
            11_000_000_000,
            21_000_000_000,
            21_000_000_000,
        )

    def test_an_unproven_fault_has_its_evidence(self, builder):
        (window,) = builder.fault("disk.latency", at=11, until=21, proven=False).build().faults
        assert not window.proven
        assert window.error == "not proven in force: nothing of it"

    def test_a_stuck_fault_has_no_end(self, builder):
        (window,) = builder.fault("disk.latency", at=11, until=21, gone=False).build().faults
        assert window.gone_ns is None
        assert "still there" in window.error

    def test_operations_are_in_order_of_their_intended_start(self, builder):
        builder.write("kv", "b", "2", start=2, end=9).write("kv", "a", "1", start=1, end=3, outcome="unknown")
        ops = builder.build().operations("kv")
        assert ops.keys == ["a", "b"]
        assert list(ops.latency_s) == [2.0, 7.0]
        assert ops.error_share() == 0.5

    def test_latency_runs_from_the_intended_start_and_lag_to_the_real_one(self, builder):
        ops = builder.load("kv", latency=0.5, lag=0.2, start=4, end=5).build().operations("kv")
        assert ops.latency_s == pytest.approx(0.5)
        assert ops.lag_s == pytest.approx(0.2)

    def test_between_takes_the_start_and_leaves_the_end(self, builder):
        ops = builder.load("kv", rate=1, start=4, end=10).build().operations("kv")
        assert len(ops.between(5_000_000_000, 7_000_000_000)) == 2

    def test_nothing_measured_is_not_zero(self, builder):
        ops = builder.load("kv", start=4, end=5).build().operations("kv").between(0, 1)
        assert np.isnan(ops.error_share())
        assert np.isnan(ops.percentile_s(50))

    def test_a_load_or_signal_that_is_not_there_is_invalid_and_loads_are_named(self, builder):
        recording = builder.load("kv").build()
        with pytest.raises(HypothesisInvalidError, match="'other' has no operations in this recording; there are: kv"):
            recording.operations("other")
        with pytest.raises(HypothesisInvalidError, match=r"signal 'raft\.leader' has no samples"):
            recording.series("raft.leader")

    def test_a_series_may_be_of_one_host(self, builder):
        builder.sample("raft.term", 2, at=1, host="consul-1").sample("raft.term", None, at=2, host="consul-2", ok=False)
        recording = builder.build()
        assert list(recording.series("raft.term", "consul-1").value) == [2.0]
        everyone = recording.series("raft.term")
        assert np.isnan(everyone.value[1])
        assert list(everyone.ok) == [True, False]

    def test_the_experiment_reads_back_though_its_kinds_are_not_installed_here(self, builder):
        experiment = (
            builder.fault("elsewhere.fault", at=10, until=30).load("kv").expect("leadership_stays").build().experiment
        )
        assert experiment.method[0].fault == "elsewhere.fault"
        assert experiment.expect[0].hypothesis == "leadership_stays"

    def test_a_spoiled_experiment_is_an_error_of_one_line(self, builder):
        recording = builder.build()
        (recording.path / "resolved.json").write_text('{"experiment": {"kind": "Experiment"}}\n')
        with pytest.raises(RecordingError, match=r"resolved\.json: not readable: .*Field required$"):
            _ = recording.experiment

    def test_a_run_that_died_is_read_from_its_write_ahead_log(self, tmp_path):
        """The writer never closed: what it had committed is there all the same."""
        (tmp_path / "journal.jsonl").touch()
        database = sqlite3.connect(tmp_path / "recording.sqlite", isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript("CREATE TABLE final_reads (load TEXT, key TEXT, value TEXT)")
        database.execute("INSERT INTO final_reads VALUES ('kv', 'a', 'x')")
        try:
            assert Recording(tmp_path).final_reads("kv") == {"a": "x"}
        finally:
            database.close()

    def test_a_recording_without_a_database_has_nothing_in_it(self, tmp_path):
        (tmp_path / "journal.jsonl").touch()
        assert Recording(tmp_path).loads == []
        assert Recording(tmp_path).run == {}

    def test_a_spoiled_database_is_an_error_that_names_it(self, tmp_path):
        (tmp_path / "journal.jsonl").touch()
        (tmp_path / "recording.sqlite").write_bytes(b"not a database, by no means one" * 100)
        with pytest.raises(RecordingError, match=r"recording\.sqlite: file is not a database"):
            _ = Recording(tmp_path).loads


class TestBuilder:
    def test_the_same_calls_give_the_same_files(self, tmp_path):
        built = [
            RecordingBuilder(tmp_path / place / "run").fault("noop", at=10, until=30).load("kv").healthy().build()
            for place in ("a", "b")
        ]
        for name in ("journal.jsonl", "run.json", "experiment.yaml"):
            assert (built[0].path / name).read_bytes() == (built[1].path / name).read_bytes()

    def test_its_experiment_is_one_that_the_model_accepts(self, builder):
        builder.fault("disk.latency", "consul-2", at=12, until=20).load("kv-writes").guardrail("kv-writes.errors > 90%")
        experiment = builder.expect("writes_recover", load="kv-writes", within="10s").build().experiment
        assert experiment.method[0].for_ == 8
        assert experiment.guardrails[0].text == "kv-writes.errors > 90%"
