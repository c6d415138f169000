"""The history keeps every run once, survives what happens to files, and never fails a run."""

import errno
import json
import math
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.util.folders import project
from hashidrill.gamedays.history import store
from hashidrill.gamedays.history.from_recording import record_day, record_run
from hashidrill.gamedays.history.store import VARIABLE, VERSION, HistoryError, Series, Store, history_file, opened
from history_runs import planted, recorded
from tasks import raising


@pytest.fixture
def file():
    return history_file()


def stored(file):
    with opened(file) as found:
        return Store(found).runs()


def rows(file, table):
    with closing(sqlite3.connect(file)) as found:
        return found.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


# the file


def test_the_file_is_in_the_state_directory_unless_a_variable_names_another(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine.sqlite"))
    assert history_file() == tmp_path / "mine.sqlite"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "hashidrill/history.sqlite"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert history_file() == tmp_path / "home/.local/state/hashidrill/history.sqlite"


def test_no_test_has_the_users_own_history():
    """Nor one that another test has written to."""
    file = history_file()
    assert os.environ[VARIABLE] == str(file)
    assert "hdt-history-" in str(file)
    assert not file.exists()


def test_only_its_owner_may_read_it(file, tmp_path):
    record_run(recorded(tmp_path, "a").path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_it_is_in_write_ahead_mode_and_has_its_version(file):
    with opened(file) as found:
        assert found.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert found.execute("PRAGMA user_version").fetchone()[0] == VERSION


# a run


def test_a_run_comes_back_as_it_was_stored(file):
    run = planted(
        1,
        "FAIL",
        variant="old",
        datacenter="staging",
        figures={"p50": 0.01, "p99": math.inf},
        broken=["writes_recover"],
    )
    with opened(file) as found:
        assert Store(found).add(run).new
        assert Store(found).run("run-0001") == run


def test_a_recording_is_taken_with_its_verdict_figures_versions_and_configuration(file, tmp_path):
    assert record_run(recorded(tmp_path, "a", name="slow-disk").path).new
    [run] = stored(file)
    assert (run.series, run.verdict, run.outcome) == (
        Series("slow-disk", project=str(project())),
        Verdict.PASS,
        "complete",
    )
    assert run.figures["kv-writes.latency.p50"].value == pytest.approx(0.01, rel=0.1)
    assert run.figures["writes_recover.recovered_after_s"].unit == "s"
    assert run.versions["consul"] == "1.22.2"
    assert run.config["consul-1"] == {"server": True}
    assert run.experiment["method"][0]["fault"] == "disk.latency"
    assert run.ended_s - run.began_s == pytest.approx(52)


def test_the_same_recording_twice_is_one_row_also_from_another_place(file, tmp_path):
    first = recorded(tmp_path, "a").path
    assert record_run(first).new
    assert not record_run(first).new
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    assert not record_run(first.rename(moved / "a")).new
    assert [run.path for run in stored(file)] == [str((moved / "a").resolve())]


def test_another_run_of_the_same_id_is_not_written_over(file, tmp_path):
    told = []
    record_run(recorded(tmp_path / "one", "a", name="first").path)
    assert record_run(recorded(tmp_path / "other", "a", name="second").path, tell=told.append) is None
    assert [run.series.experiment for run in stored(file)] == ["first"]
    assert "give this recording another name" in told[0]


def test_runs_that_share_their_configuration_keep_it_once(file):
    with opened(file) as found:
        for number in range(20):
            Store(found).add(planted(number))
    assert rows(file, "documents") == 2


@pytest.mark.lie
def test_the_directory_of_a_run_is_no_change_of_its_configuration(file, tmp_path):
    for name in ("a", "b"):
        config = {"consul-1": {"data_dir": f"/var/tmp/hashidrill-{name}/data"}}
        record_run(recorded(tmp_path, name, run={"root": f"/var/tmp/hashidrill-{name}", "config": config}).path)
    one, other = stored(file)
    assert one.config == other.config == {"consul-1": {"data_dir": "ROOT/data"}}
    assert one.conditions == other.conditions


def test_no_secret_gets_into_it(file, tmp_path, monkeypatch):
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", "s3cr3t-of-the-environment")
    config = {
        "consul-1": {
            "acl": {"tokens": {"agent": "s3cr3t-of-the-config"}},
            "encrypt": "s3cr3t-gossip-key-0000",
            "note": "s3cr3t-of-the-environment",
        }
    }
    record_run(recorded(tmp_path, "a", run={"config": config, "title": "s3cr3t-of-the-environment"}).path)
    [run] = stored(file)
    assert run.config["consul-1"]["encrypt"] == "[redacted]"
    everything = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert b"s3cr3t" not in everything
    assert b"writes_recover" in everything  # it was looked for where it would be


# turned


@pytest.mark.long
@pytest.mark.lie
def test_a_fail_after_a_pass_is_a_turn_and_invalid_runs_between_hide_nothing(tmp_path):
    assert record_run(recorded(tmp_path, "a").path).turn is None
    assert record_run(recorded(tmp_path, "b", invalid=True).path).turn is None
    failed = recorded(tmp_path, "c", fails=True).path
    turn = record_run(failed).turn
    assert (turn.before.id, turn.now.id) == ("a", "c")
    assert record_run(failed).turn is None  # told once
    assert record_run(recorded(tmp_path, "d", fails=True).path).turn is None  # it failed before


def test_a_first_failure_and_a_failure_elsewhere_are_no_turn(tmp_path):
    assert record_run(recorded(tmp_path, "a", fails=True, name="one").path).turn is None
    record_run(recorded(tmp_path, "b", name="two").path)
    assert record_run(recorded(tmp_path, "c", fails=True, name="one").path).turn is None


@pytest.mark.lie
def test_two_experiments_of_one_name_are_two_series(file, tmp_path):
    """The library has a slow-leader-disk for Consul and one for Nomad."""
    name = "slow-leader-disk"
    record_run(recorded(tmp_path, "a", name=name, run={"named": "raft/slow-leader-disk"}).path)
    other = recorded(tmp_path, "b", name=name, fails=True, run={"named": "nomad/slow-leader-disk"})
    assert record_run(other.path).turn is None
    assert [run.series.experiment for run in stored(file)] == ["raft/slow-leader-disk", "nomad/slow-leader-disk"]
    again = recorded(tmp_path, "c", name=name, fails=True, run={"named": "raft/slow-leader-disk"})
    assert record_run(again.path).turn.before.id == "a"


def test_an_old_recording_that_is_imported_later_is_not_the_last_verdict(file):
    with opened(file) as found:
        store = Store(found)
        store.add(planted(1, "FAIL"))
        store.add(planted(9, "PASS"))
        assert store.add(planted(5, "FAIL")).turn is None  # run 1 was the last before it
        assert store.add(planted(10, "FAIL")).turn.before.id == "run-0009"


# what happens to files


def damaged(file):
    with opened(file):
        pass
    file.write_bytes(b"no database" * 500)


def newer(file):
    with opened(file) as found:
        found.execute(f"PRAGMA user_version={VERSION + 1}")


def a_folder(file):
    file.mkdir()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(damaged, "move it away"), (newer, "another hashidrill wrote"), (a_folder, "name another file")],
)
def test_a_file_that_cannot_be_used_is_one_line_that_says_what_to_do(spoil, says, file, tmp_path):
    spoil(file)
    told = []
    assert record_run(recorded(tmp_path, "a").path, tell=told.append) is None
    assert len(told) == 1
    assert says in told[0]
    assert "\n" not in told[0]
    assert str(file) in told[0]


@pytest.mark.lie
def test_a_full_disk_is_said_and_nothing_is_half_stored(file, tmp_path, monkeypatch):
    with opened(file):
        pass
    run = recorded(tmp_path, "a", run={"config": {"consul-1": {"note": "x" * 200_000}}}).path
    real = sqlite3.connect

    def small(at, **named):
        found = real(at, **named)
        if at == file:
            found.execute(f"PRAGMA max_page_count={found.execute('PRAGMA page_count').fetchone()[0]}")
        return found

    monkeypatch.setattr(store.sqlite3, "connect", small)
    told = []
    assert record_run(run, tell=told.append) is None
    assert "the disk is full: make room" in told[0]
    monkeypatch.undo()
    assert stored(file) == []
    assert record_run(run).new


def test_a_disk_without_room_for_the_file_itself_is_said(file, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "private_folder", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    told = []
    assert record_run(recorded(tmp_path, "a").path, tell=told.append) is None
    assert "the disk is full: make room" in told[0]


def test_a_file_that_another_process_holds_is_waited_for_and_then_said(file, tmp_path):
    with opened(file) as other:
        other.execute("BEGIN IMMEDIATE")
        told = []
        assert record_run(recorded(tmp_path, "a").path, tell=told.append, waits_s=0.0) is None
        assert "another process writes to it: try again" in told[0]
        other.execute("ROLLBACK")
    assert record_run(tmp_path / "a", tell=told.append).new


def test_a_recording_that_is_none_is_said(tmp_path):
    told = []
    assert record_run(tmp_path, tell=told.append) is None
    assert "not in the history" in told[0]


def test_whatever_breaks_is_said_and_does_not_fail_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("hashidrill.gamedays.history.from_recording.run_from", lambda *_: 1 / 0)
    told = []
    assert record_run(recorded(tmp_path, "a").path, tell=told.append) is None
    assert "ZeroDivisionError" in told[0]


def test_two_processes_that_make_it_at_once_make_it_once(file):
    with closing(sqlite3.connect(file, isolation_level=None)) as one:
        store._make_tables(one)
        store._make_tables(one)
        assert one.execute("PRAGMA user_version").fetchone()[0] == VERSION


def test_tables_that_cannot_be_made_leave_none(file, monkeypatch):
    monkeypatch.setattr(store, "_TABLES", "CREATE TABLE days (id TEXT);\nNONSENSE;\n")
    with closing(sqlite3.connect(file, isolation_level=None)) as one:
        with pytest.raises(sqlite3.Error):
            store._make_tables(one)
        assert one.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


# game days


def day(folder, name, verdict, *runs, began="2026-11-23T10:00:00Z"):
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    report = {
        "name": "first",
        "title": "First",
        "verdict": verdict,
        "outcome": "done",
        "started_at": began,
        "ended_at": began,
        "runs": [{"recording": f"runs/{run}"} for run in runs],
    }
    (path / "report.json").write_text(json.dumps(report))
    return path


def test_a_day_is_stored_with_its_runs_and_once_however_often_it_is_resumed(file, tmp_path):
    record_run(recorded(tmp_path, "a").path)
    assert record_day(day(tmp_path, "day-1", "INVALID", "a")).new
    assert not record_day(day(tmp_path, "day-1", "PASS", "a")).new
    with opened(file) as found:
        assert [(each.id, each.gameday, each.verdict) for each in Store(found).days()] == [
            ("day-1", "first", Verdict.PASS)
        ]
        assert Store(found).run("a").day == "day-1"


def test_a_day_that_turns_is_told_once(tmp_path):
    assert record_day(day(tmp_path, "day-1", "PASS")).turn is None
    second = day(tmp_path, "day-2", "FAIL", began="2026-11-24T10:00:00Z")
    assert record_day(second).turn.before.id == "day-1"
    assert record_day(second).turn is None


def test_a_folder_that_is_no_day_is_said(tmp_path):
    told = []
    assert record_day(tmp_path, tell=told.append) is None
    assert "is not a report of a game day" in told[0]
    (tmp_path / "report.json").write_text('{"verdict": "MAYBE", "started_at": "2026-11-23T10:00:00Z"}')
    assert record_day(tmp_path, tell=told.append) is None
    assert len(told) == 2


def test_a_run_is_found_by_the_beginning_of_its_id_and_an_ambiguous_one_is_refused(file):
    with opened(file) as found:
        store = Store(found)
        for number in (1, 12):
            store.add(planted(number))
        assert store.run("run-0001").id == "run-0001"
        assert store.run("last").id == "run-0012"
        with pytest.raises(HistoryError, match="it is the beginning of run-0001, run-0012"):
            store.run("run-00")
        with pytest.raises(HistoryError, match="hashidrill history list"):
            store.run("nothing")


def test_a_percent_sign_is_no_wildcard(file):
    with opened(file) as found:
        Store(found).add(planted(1))
        with pytest.raises(HistoryError):
            Store(found).run("%")


def test_paths_are_absolute_so_that_they_can_be_found_from_elsewhere(file, tmp_path, monkeypatch):
    recorded(tmp_path, "a")
    monkeypatch.chdir(tmp_path)
    record_run(Path("a"))
    assert stored(file)[0].path == str(tmp_path.resolve() / "a")
