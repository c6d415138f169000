"""A recording is whole, or it is INVALID: what was cut, spilled or edited is never judged as complete."""

import json
import shutil
import sqlite3

import anyio
import pytest

import virtual_time
from hashidrill.core.engine import run as engine_run
from hashidrill.core.errors import RecordingError
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.recording import writer as recording_writer
from hashidrill.core.recording.journal import Clock, Journal, read_journal
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.seal import damage
from hashidrill.core.recording.writer import DATABASE_NAME, FORMAT, RecordingWriter
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.reports.write import judge_and_report
from hashidrill.testing.recordings import RecordingBuilder
from tasks import raising


@pytest.fixture
def recorded(tmp_path):
    """A recording that passes, and whose expectation means the same in any run."""
    builder = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load("kv-writes")
    return builder.final_reads("kv-writes").healthy().expect("no_acknowledged_write_lost", load="kv-writes").build()


def again(recording):
    return Recording(recording.path)


def edit_database(recording, statement):
    database = sqlite3.connect(recording.path / DATABASE_NAME)
    with database:
        database.execute(statement)
    database.close()


def edit_journal(recording, change):
    path = recording.path / JOURNAL_NAME
    path.write_bytes(change(path.read_bytes()))


def full_disk(monkeypatch, pages=12):
    """A disk under the recording that takes so many pages of 4 kB and no more: SQLite itself says so."""
    connect = sqlite3.connect

    def small(*arguments, **options):
        database = connect(*arguments, **options)
        database.execute(f"PRAGMA max_page_count={pages}")
        return database

    monkeypatch.setattr(recording_writer.sqlite3, "connect", small)


class TestWriter:
    @pytest.mark.lie
    def test_half_a_character_in_a_clients_key_loses_nothing_of_what_comes_after(self, tmp_path):
        writer = RecordingWriter(tmp_path)
        for key in ("before", "half \udc80", "after"):
            writer.operation(Operation("kv", 0, 0, 0, "ok", key, "\ud83d", 200, "err\udfff"))
        writer.sample(0, Sample("a.b", 1.0, "\udc80"))
        writer.final_reads("kv", {"half \udc80": "\ud83d"})
        writer.close()
        (tmp_path / JOURNAL_NAME).touch()
        ops = Recording(tmp_path).operations("kv")
        assert ops.keys == ["before", "half \\udc80", "after"]
        assert Recording(tmp_path).final_reads("kv") == {ops.keys[1]: ops.values[1]}
        json.dumps([ops.errors, ops.values], ensure_ascii=False).encode()

    def test_a_full_disk_is_known_before_the_run_is_over_and_room_was_kept_for_its_end(self, tmp_path, monkeypatch):
        full_disk(monkeypatch)
        writer = RecordingWriter(tmp_path)
        reserve = tmp_path / recording_writer.RESERVE_NAME
        assert reserve.stat().st_blocks * 512 >= recording_writer.RESERVE_BYTES
        for number in range(9000):
            writer.operation(Operation("kv", number, number, number, "ok", "key", "v" * 100))
        writer._thread.join()
        with pytest.raises(RecordingError, match=r"could not be written: database or disk is full"):
            virtual_time.run(engine_run.watch_writer(writer))
        assert not reserve.exists()

    def test_no_reserve_is_left_behind(self, tmp_path):
        RecordingWriter(tmp_path).close()
        assert [path.name for path in tmp_path.iterdir()] == [DATABASE_NAME]

    def test_a_disk_that_is_full_from_the_start_is_known_at_once(self, tmp_path, monkeypatch):
        monkeypatch.setattr(recording_writer.os, "posix_fallocate", raising(OSError(28, "No space left on device")))
        with pytest.raises(RecordingError, match="No space left on device"):
            RecordingWriter(tmp_path).raise_failure()

    async def test_nothing_is_said_while_all_is_well(self, tmp_path):
        writer = RecordingWriter(tmp_path)

        with anyio.move_on_after(10):
            await engine_run.watch_writer(writer)
        writer.close()


class TestClosing:
    """`end` is the last word, and a true one."""

    @pytest.fixture
    def close(self, tmp_path, monkeypatch):
        def go(outcome="complete", operations=9000):
            writer = RecordingWriter(tmp_path)
            with Journal(tmp_path / JOURNAL_NAME, Clock()) as journal:
                journal.write("run", id="x", format=FORMAT)
                for number in range(operations):
                    writer.operation(Operation("kv", number, number, number, "ok", "key", "v" * 100))
                told = virtual_time.run(engine_run.close_recording(writer, journal, {"id": "x"}, outcome, ""))
            end = read_journal(tmp_path / JOURNAL_NAME)[-1]
            assert (end.event, end.data["outcome"], end.data["error"]) == ("end", *told)
            return end.data

        return go

    @pytest.mark.lie
    def test_a_run_whose_recording_did_not_fit_on_the_disk_is_not_complete(self, close, monkeypatch, tmp_path):
        full_disk(monkeypatch)
        end = close()
        assert end["outcome"] == "crashed"
        assert "database or disk is full" in end["error"]
        assert any("9000 were recorded" in reason for reason in damage(Recording(tmp_path)))

    def test_a_fault_that_stays_is_graver_than_a_recording_that_was_lost(self, close, monkeypatch):
        full_disk(monkeypatch)
        end = close("revert")
        assert end["outcome"] == "revert"
        assert "database or disk is full" in end["error"]

    def test_what_is_whole_has_no_damage(self, close, tmp_path):
        end = close()
        assert end["outcome"] == "complete"
        assert end["written"] == {"operations": 9000, "samples": 0, "final_reads": 0}
        assert damage(Recording(tmp_path)) == []

    def test_an_end_that_cannot_be_written_is_an_error_and_the_run_reads_as_one_that_died(self, monkeypatch, tmp_path):
        writer = RecordingWriter(tmp_path)
        with Journal(tmp_path / JOURNAL_NAME, Clock()) as journal:
            journal.write("run", id="x")
            monkeypatch.setattr(Journal, "_append", raising(OSError(28, "No space left on device")))

            async def end():
                await engine_run.close_recording(writer, journal, {"id": "x"}, "complete", "")

            with pytest.raises(RecordingError, match=r"the journal could not be closed: .*No space left"):
                anyio.run(end)
        assert Recording(tmp_path).outcome == "died"


CUTS = {
    "operations after the fault": "DELETE FROM operations WHERE intended_ns > 12000000000",
    "one sample": "DELETE FROM samples WHERE rowid = 1",
    "one final read": "DELETE FROM final_reads WHERE rowid = 7",
    "nothing, but one value is another": "UPDATE operations SET end_ns = end_ns + 1 WHERE rowid = 3",
}


class TestDamage:
    def test_a_recording_that_is_whole_passes(self, recorded):
        assert judge(recorded).verdict is Verdict.PASS
        assert damage(recorded) == []

    @pytest.mark.lie
    @pytest.mark.parametrize("cut", CUTS.values(), ids=list(CUTS))
    def test_rows_that_are_missing_or_changed_make_it_invalid(self, recorded, cut):
        """Also what means the same in any run: a final read that is gone would read as a write that was lost."""
        edit_database(recorded, cut)
        verdict = judge(again(recorded))
        assert verdict.verdict is Verdict.INVALID
        assert "the recording is damaged: recording.sqlite has changed since the run" in verdict.invalid[0]
        assert [judgement.finding for judgement in verdict.judgements] == [Finding.INVALID]

    def test_how_much_is_missing_is_said(self, recorded):
        edit_database(recorded, CUTS["one final read"])
        assert any("final_reads: 2300 were recorded, 2299 are there" in reason for reason in damage(again(recorded)))

    def test_a_database_that_is_gone_is_named(self, recorded):
        (recorded.path / DATABASE_NAME).unlink()
        assert "the recording is damaged: recording.sqlite is missing" in judge(again(recorded)).invalid

    @pytest.mark.parametrize("name", ["recording.sqlite", "experiment.yaml", "resolved.json"])
    def test_a_file_that_was_cut_short_makes_it_invalid(self, recorded, name):
        path = recorded.path / name
        path.write_bytes(path.read_bytes()[:-100])
        assert judge(again(recorded)).verdict is Verdict.INVALID

    @pytest.mark.lie
    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda text: text.replace(b'"noop"', b'"nope"', 1), id="a word"),
            pytest.param(lambda text: text.replace(b'"phase": "recovery"', b'"phase": "recovers"'), id="a phase"),
            pytest.param(
                lambda text: b"".join(line for line in text.splitlines(keepends=True) if b"fault.gone" not in line),
                id="a line is gone",
            ),
            pytest.param(lambda text: text.replace(b'{"t_ns": 30000000000', b'{"t_ns": 29000000000'), id="a time"),
            pytest.param(
                lambda text: text + b'{"t_ns": 1, "wall": 1, "event": "note", "text": "later"}\n', id="a line more"
            ),
            pytest.param(lambda text: text + b"\0\0\0", id="bytes after its end"),
            pytest.param(lambda text: text + text.splitlines(keepends=True)[-1], id="two ends"),
            pytest.param(
                lambda text: text.replace(b'"outcome": "complete"', b'"outcome": "guardrail"'), id="another end"
            ),
            pytest.param(lambda text: text.replace(b'"event": "phase"', b'"event": "ph', 1), id="a torn line"),
        ],
    )
    def test_a_journal_that_was_changed_makes_it_invalid(self, recorded, change):
        edit_journal(recorded, change)
        assert "the recording is damaged: " in judge(again(recorded)).invalid[0]

    def test_a_journal_whose_seal_is_gone_makes_it_invalid(self, recorded):
        def unsealed(text):
            *lines, end = text.splitlines(keepends=True)
            entry = json.loads(end)
            del entry["sealed"]
            return b"".join([*lines, json.dumps(entry).encode() + b"\n"])

        edit_journal(recorded, unsealed)
        assert "ends as 'complete' without a seal" in judge(again(recorded)).invalid[0]

    def test_evidence_that_was_planted_is_noticed(self, recorded):
        (recorded.path / "artifacts").mkdir()
        (recorded.path / "artifacts" / "0.snap").write_text("x")
        assert "artifacts/0.snap was not there when the run ended" in judge(again(recorded)).invalid[0]

    def test_reports_and_verdict_are_no_damage(self, recorded):
        for name in ("verdict.json", "report.html", "summary.md"):
            (recorded.path / name).write_text("{}")
        assert damage(again(recorded)) == []

    def test_a_copy_elsewhere_is_as_good(self, recorded, tmp_path):
        shutil.copytree(recorded.path, tmp_path / "copy")
        assert judge(Recording(tmp_path / "copy")).verdict is Verdict.PASS

    def test_run_json_that_is_not_readable_is_damage(self, recorded):
        (recorded.path / "run.json").write_text('{"id": ')
        assert "the recording is damaged: run.json is not readable" in judge(again(recorded)).invalid

    def test_run_json_that_was_edited_is_damage(self, recorded):
        recording_writer.write_run(recorded.path, {**recorded.run, "versions": {"consul": "1.99"}})
        assert "run.json has changed since the run" in judge(again(recorded)).invalid[0]

    def test_what_the_runner_adds_after_the_seal_is_no_damage_and_counts(self, recorded):
        with Journal(recorded.path / JOURNAL_NAME, Clock()) as journal:
            journal.write("end", outcome="crashed", error="the engine exited with code -9")
        verdict = judge(again(recorded))
        assert verdict.invalid == ["the run crashed: the engine exited with code -9"]


class TestNothingCanBeWritten:
    """Judging works beside a recording of somebody else, and on a disk that its run has filled."""

    @pytest.mark.parametrize(
        "what", ["hashidrill.core.judging.judge.write_whole", "hashidrill.reports.html.write_whole"]
    )
    def test_the_verdict_is_told_all_the_same(self, recorded, monkeypatch, what):
        monkeypatch.setattr(what, raising(OSError(30, "Read-only file system")))
        verdict, report = judge_and_report(recorded)
        assert verdict.verdict is Verdict.PASS
        assert "Read-only file system" in verdict.notes[0]
        assert (report is None) is ("html" in what)


class TestFormat:
    def test_it_is_in_the_database_the_journal_and_run_json(self, recorded):
        assert recorded.run["format"] == FORMAT
        assert recorded.events("run")[0].data["format"] == FORMAT
        assert recorded._query("PRAGMA user_version") == [(FORMAT,)]

    @pytest.mark.lie
    @pytest.mark.parametrize("where", ["database", "run.json", "journal"])
    def test_a_newer_one_is_refused_with_one_clear_message(self, recorded, where):
        if where != "journal":
            without_format(recorded)
        if where == "database":
            edit_database(recorded, f"PRAGMA user_version={FORMAT + 1}")
        elif where == "run.json":
            recording_writer.write_run(recorded.path, {**recorded.run, "format": FORMAT + 1})
        else:
            edit_journal(recorded, lambda text: text.replace(b'"format": 4', b'"format": 5'))
        with pytest.raises(RecordingError, match=r"a newer hashidrill wrote this recording \(format 5; .* up to 4\)"):
            judge(again(recorded))

    def test_an_older_one_is_refused(self, recorded):
        edit_journal(recorded, lambda text: text.replace(b'"format": 4', b'"format": 3'))
        with pytest.raises(RecordingError, match=r"before 0\.1\.0 \(format 3\); this version reads format 4"):
            judge(again(recorded))

    @pytest.mark.lie
    def test_one_that_says_no_format_and_has_no_seal_was_never_closed(self, recorded):
        without_format(recorded)
        verdict = judge(again(recorded))
        assert verdict.verdict is Verdict.INVALID
        assert "without a seal" in verdict.invalid[0]


def without_format(recording):
    edit_database(recording, "PRAGMA user_version=0")
    recording_writer.write_run(recording.path, {k: v for k, v in recording.run.items() if k != "format"})

    def plain(text):
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            for key in ("format", "sealed", "written"):
                line.pop(key, None)
        return "".join(json.dumps(line) + "\n" for line in lines).encode()

    edit_journal(recording, plain)
