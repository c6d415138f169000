"""Recordings: what a run left, written in batches and read lazily.
What an operation says beyond the columns of all: a reason as a code, and a detail in a table with real columns.
Reading Go's profiles, and the difference of two.
"""

import base64
import contextlib
import gzip
import json
import os
import sqlite3

import numpy as np
import pytest

from go_profiles import HEALTHY, OTHER, SICK, STREAM, encoded, profiled
from hashidrill.core.errors import HypothesisInvalidError, RecordingError
from hashidrill.core.loads.schedule import packed, unpacked
from hashidrill.core.protocols.abc import Detail, Operation, Reason, Sample
from hashidrill.core.recording import profiles
from hashidrill.core.recording.profiles import difference, grown, profile_of, read_profile, short_name, taken
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.seal import damage
from hashidrill.core.recording.writer import DATABASE_NAME, RecordingWriter, is_table, table_of
from hashidrill.core.util.redaction import Redactor
from hashidrill.products.consul.loads.locks import SESSION_GONE, Action
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


CLAIM = Action("claim", "leases/0", "s0", lock_index=3, ttl_s=9.5)


def edited(recording, statement):
    with contextlib.closing(sqlite3.connect(recording.path / DATABASE_NAME)) as database:
        database.execute(statement)
        database.commit()
    return Recording(recording.path)


@pytest.fixture
def recorded(tmp_path):
    builder = RecordingBuilder(tmp_path / "run").load("kv-writes", rate=2)
    builder.write("leases", "k", "", start=5, end=5.1, detail=CLAIM.detail())
    return builder.write("leases", "k", "", start=6, end=6.1, outcome="fail", reason=SESSION_GONE).build()


def test_a_detail_is_a_row_with_a_column_for_each_field_of_its_type(recorded):
    columns = recorded._query("SELECT name, type FROM pragma_table_info('detail_lock')")
    assert dict(columns) == {
        "operation_id": "INTEGER",
        "op": "TEXT",
        "holder": "TEXT",
        "session": "TEXT",
        "lock_index": "INTEGER",
        "ttl_s": "REAL",
    }
    joined = "SELECT o.load, d.session FROM operations o JOIN detail_lock d ON d.operation_id = o.id"
    assert recorded._query(joined) == [("leases", "s0")]


def test_operations_come_back_with_their_reasons_and_details(recorded):
    ops = recorded.operations("leases")
    assert ops.reasons == ["", SESSION_GONE]
    assert [detail and Action.of(detail) for detail in ops.details] == [CLAIM, None]
    later = ops.between(6 * 10**9, 7 * 10**9)
    assert (later.reasons, later.details) == ([SESSION_GONE], [None])


def test_they_survive_the_way_from_the_load_generator():
    op = Operation("leases", 1, 2, 3, "fail", "k", reason=Reason.OVERLOADED, detail=CLAIM.detail())
    assert unpacked(list(packed(op))) == op


@pytest.mark.parametrize("statement", ["DELETE FROM detail_lock", "DROP TABLE detail_lock"])
def test_a_detail_that_is_missing_is_damage(recorded, statement):
    assert damage(recorded) == []
    assert any("detail_lock: 1 were recorded, 0 are there" in said for said in damage(edited(recorded, statement)))


def test_a_detail_that_nobody_wrote_is_damage(recorded):
    said = damage(edited(recorded, "CREATE TABLE detail_more AS SELECT 1"))
    assert any("detail_more: None were recorded, 1 are there" in each for each in said)


def test_a_table_whose_name_is_no_plain_name_is_never_put_into_a_statement(recorded):
    assert not is_table('detail_x" WHERE 0; DROP TABLE operations; --')
    again = edited(recorded, "UPDATE operations SET detail = 'detail_x\" --' WHERE load = 'leases'")
    assert again.operations("leases").details == [None, None]


@pytest.mark.parametrize("detail", [Detail("x y", {}), Detail("x", {'"': 1}), Detail("x", {"operation_id": 1})])
def test_names_that_are_no_columns_are_refused_before_anything_is_written(detail):
    with pytest.raises(ValueError, match="must be like lock_index"):
        table_of(detail)


def test_each_detail_is_of_its_own_operation_however_they_are_mixed_with_others(tmp_path):
    """Operations without a detail are written many at a time."""
    writer = RecordingWriter(tmp_path)
    odd = [index % 7 in (0, 1, 5) for index in range(500)]
    for index, has_one in enumerate(odd):
        detail = Detail("odd", {"number": index, "text": f"\udc80{index}"}) if has_one else None
        writer.operation(Operation("app", index, index, index, "ok", key=f"\udc80{index}", detail=detail))
        writer.sample(index, Sample("raft.term", float(index)))
    writer.close()
    (tmp_path / "journal.jsonl").touch()
    recording = Recording(tmp_path)
    ops = recording.operations("app")
    assert [None if one is None else one.fields for one in ops.details] == [
        {"number": index, "text": f"\\udc80{index}"} if has_one else None for index, has_one in enumerate(odd)
    ]
    assert list(ops.keys) == [f"\\udc80{index}" for index in range(500)]
    assert recording.series("raft.term").value.tolist() == list(range(500))


def test_no_secret_gets_into_a_detail(tmp_path):
    redactor = Redactor()
    redactor.know("s3cr3t-token-0000")
    writer = RecordingWriter(tmp_path, redactor)
    fields = {"path": "/v1/kv/x?token=s3cr3t-token-0000", "count": 3}
    writer.operation(Operation("app", 1, 2, 3, "ok", detail=Detail("odd", fields)))
    writer.close()
    assert b"s3cr3t" not in (tmp_path / DATABASE_NAME).read_bytes()
    assert writer.written["detail_odd"] == 1


RECORDED = base64.b64decode(
    "H4sIAAAAAAAE/3yQz2sTXxTFv/P7zaRtbvOt8AhCpwPCs2AmealJ+hfowoWoULAUTSaTcXCSFyZJ1d2AGxcuCqXoomBRwUURqgtd"
    "qeDShRtxZRexigjBjeiqi5F5ky6E2s0d5p1zP+fee1lGAohXBYN/LUAC/vHmgWgpSID3EgjzGSSAhCVTJq8kC5CIHz/aSmQRRiKX"
    "RVCwYqrknWhlkYR3v7wQLRlJoIAwbyAJNKyZiCg5DaghCWICkfHOx7UEIsNI5xAZdKybBvmmW4AUvPuEj6DAXiorkMEZ0yCfE1nF"
    "O7efJ90qfFB5twoTeMKcJG9VC5CGv8bPElmDtVTWYApPmZPkbiIj/H2Tywjup/shyOKsOUnWJSuLdHxnjy+gjxfQATCYiMgWIAP/"
    "ureeoA14mC5vwDSeNmWyIeQyIBiarKga0o2zT7c/bb/e/Pkb53NIgCiKRBxFL0WSK/5fE/IzSIRoazTcGM7iaDgabgxnyUw+jySI"
    "omg/juM4FnC0Fe3HcRzHAjlG/6O6x0I26PsdlyoOG3T6dCocdPp+2y14rFsPr9M5e9AL7YA59cD2mN0LHTtMHXY3ZE7BY9To+223"
    "cDFw3S49ws5dHqPZdt3vFHhpDTpOiU7b/XY3obVs/uoxaoVpRsFjYTrf+ZC1/MBd8vvXztUbbtCjlj3ohYdP1u6GrJVwyAGnm7xc"
    "OYI2N3ba3Fm4Efp990I6xDiakn8H8qa0JrHHD4GdOdiEmn+rZH4ccLKwlKReYlTnd0gKnRib078T/FQeO9UY+EGzXCsWq9USrZTs"
    "RrFYst2bLr8gJaVqbbFUrzSd6mLRqVVOF5sLC7WG4zq0uVBvlSu1csMtlZsVqi6vNntshRrLq71bPaceBCt/AgAA//+x1J3pvQMA"
    "AA=="
)
"""What go1.26's `pprof.Lookup("goroutine").WriteTo(file, 0)` wrote of a program with 50 goroutines in time.Sleep."""


def test_a_profile_that_go_wrote_is_read():
    found = read_profile(RECORDED)
    assert (found.samples, found.unit, found.duration_ns) == (51, "goroutines", 0)
    assert found.stacks["main.main.func1", "time.Sleep", "runtime.gopark"] == [50]
    assert found.of({"time.Sleep"}) == 50


def test_times_are_of_each_second_and_stacks_count_once():
    recursive = {("main", "walk", "walk"): 150}
    found = read_profile(encoded(recursive))
    assert found.unit == "cores"
    assert found.of({"walk"}) == found.total == pytest.approx(0.5)
    longer = read_profile(encoded({stack: 2 * n for stack, n in recursive.items()}, length_s=6))
    assert [each.grew for each in difference(longer, found)] == pytest.approx([0, 0])


def test_the_difference_of_two_names_what_grew_and_what_shrank():
    sick, healthy = read_profile(encoded({STREAM: 200})), read_profile(encoded(HEALTHY))
    changes = {short_name(each.function): each for each in difference(sick, healthy)}
    assert changes["stream.(*Subscription).Next"].grew == pytest.approx(0.66)
    assert changes["stream.(*Subscription).Next"].grew_self == 0
    assert changes["runtime.selectgo"].grew_self == pytest.approx(0.66)
    assert changes["json.Marshal"].grew == pytest.approx(-0.0667, abs=1e-3)
    assert "encoding/json.Marshal" not in {each.function for each in grown(sick, healthy, 9)}


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("github.com/hashicorp/consul/agent/consul/stream.(*Subscription).Next", "stream.(*Subscription).Next"),
        ("go.etcd.io/bbolt.(*freelist).write", "bbolt.(*freelist).write"),
        ("slices.SortFunc[go.shape.[]github.com/x/y.Z]", "slices.SortFunc[go.shape.[]y.Z]"),
        ("main.main", "main.main"),
    ],
)
def test_short_names_leave_out_the_path(name, short):
    assert short_name(name) == short


@pytest.mark.lie
def test_whatever_is_torn_or_too_much_is_refused(monkeypatch):
    """Every prefix of a profile, any byte of it changed, gzip bombs and endless stacks: a ValueError or a profile."""
    plain = gzip.decompress(encoded(SICK))
    for end in range(len(plain)):
        for torn in (plain[:end], plain[:end] + b"\xff" + plain[end + 1 :]):
            with contextlib.suppress(ValueError):
                read_profile(torn)
    with pytest.raises(ValueError, match="unpacks to more than"):
        read_profile(gzip.compress(bytes(profiles._MOST_UNPACKED + 1)))
    with pytest.raises(ValueError, match="larger than"):
        read_profile(os.urandom(profiles.MOST_BYTES + 1))
    monkeypatch.setattr(profiles, "_MOST_FRAMES", 3)
    with pytest.raises(ValueError, match="more than 3 functions"):
        read_profile(encoded({STREAM: 1, OTHER: 1}))


@pytest.mark.lie
def test_a_file_out_of_the_recording_is_not_read(tmp_path):
    (tmp_path / "mine").write_bytes(encoded(SICK))
    recording = profiled(tmp_path / "run").build()
    one = taken(recording)[0]
    link = recording.path / "artifacts/profiles/link.pb.gz"
    link.symlink_to(tmp_path / "mine")
    for file in ("../mine", str(tmp_path / "mine"), str(link.relative_to(recording.path))):
        with pytest.raises(HypothesisInvalidError, match="leads out"):
            profile_of(recording, one._replace(file=file))


@pytest.mark.lie
def test_a_profile_that_was_changed_after_the_run_damages_the_recording(tmp_path):
    recording = profiled(tmp_path / "run").build()
    assert damage(recording) == []
    (recording.path / taken(recording)[1].file).write_bytes(encoded(HEALTHY, at=15))
    assert "has changed since the run" in damage(recording)[0]
