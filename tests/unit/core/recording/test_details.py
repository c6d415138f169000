"""What an operation says beyond the columns of all: a reason as a code, and a detail in a table with real columns."""

import contextlib
import sqlite3

import pytest

from hashidrill.core.loads.operations import packed, unpacked
from hashidrill.core.protocols.abc import Detail, Operation, Reason, Sample
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.seal import damage
from hashidrill.core.recording.writer import DATABASE_NAME, RecordingWriter, is_table, table_of
from hashidrill.core.util.redaction import Redactor
from hashidrill.products.consul.loads.locks import SESSION_GONE, Action
from hashidrill.testing.recordings import RecordingBuilder

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
