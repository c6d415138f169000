"""The journal: append-only, whole lines, readable whatever tore it."""

import itertools
import json
import os
import threading

import pytest

from hashidrill.core.recording.journal import EVENTS, Clock, Entry, Journal, read_journal, to_line


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


class Ticks(Clock):
    """A clock that counts its own calls."""

    def __init__(self):
        super().__init__(0)
        self.now = 0

    def now_ns(self):
        self.now += 1
        return self.now


def test_entries_read_back_in_order_with_their_data(path):
    with Journal(path, Ticks()) as journal:
        journal.write("phase", phase="method")
        journal.write("fault.applied", fault_id="f1", sync=True)
    first, second = read_journal(path)
    assert (first.t_ns, first.event, first.data) == (1, "phase", {"phase": "method"})
    assert (second.t_ns, second.event, second.data) == (2, "fault.applied", {"fault_id": "f1"})
    assert {first.event, second.event} <= set(EVENTS)


def test_sync_reaches_the_disk_before_write_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path.read_text()))
    with Journal(path, Ticks()) as journal:
        journal.write("note", text="no hurry")
        assert synced == []
        journal.write("fault.intent", sync=True, fault_id="f1")
    assert '"fault.intent"' in synced[0]


def test_a_second_journal_goes_on_where_the_first_one_ended(path):
    for text in ("one", "two"):
        with Journal(path, Ticks()) as journal:
            journal.write("note", text=text)
    assert [entry.data["text"] for entry in read_journal(path)] == ["one", "two"]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_left_out(path, cut):
    whole = to_line(Entry(1, 0.0, "note", {"text": "whole"}))
    torn = to_line(Entry(2, 0.0, "note", {"text": "this one is torn by a crash"}))
    path.write_text(whole + torn[:-cut])
    assert [entry.data["text"] for entry in read_journal(path)] == ["whole"]


@pytest.mark.parametrize(
    "junk", [b"[1]\n", b"7\n", b"null\n", b"{}\n", b"\xff\xfe\n", b"\n", b'{"t_ns": 1}\n', b'"x"\n']
)
def test_a_line_that_is_none_of_ours_spoils_no_other(path, junk):
    line = to_line(Entry(1, 0.0, "note", {})).encode()
    path.write_bytes(line + junk + line)
    assert len(read_journal(path)) == 2


def test_a_full_disk_tears_one_line_and_not_the_next(path, monkeypatch):
    """Half a line is written, then ENOSPC; once there is room again the next entry stands on a separate line."""
    write = os.write
    with Journal(path, Ticks()) as journal:
        journal.write("note", text="before")
        monkeypatch.setattr(os, "write", _once_ten_bytes(write))
        with pytest.raises(OSError, match="No space"):
            journal.write("note", text="torn")
        monkeypatch.setattr(os, "write", write)
        journal.write("note", text="after")
    assert [entry.data["text"] for entry in read_journal(path)] == ["before", "after"]


def _once_ten_bytes(write):
    calls = itertools.count()

    def short(fd, data):
        if next(calls):
            raise OSError(28, "No space left on device")
        return write(fd, data[:10])

    return short


def test_a_short_write_is_finished(path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    with Journal(path, Ticks()) as journal:
        journal.write("note", text="in pieces of seven bytes")
    assert read_journal(path)[0].data == {"text": "in pieces of seven bytes"}


def test_entries_of_many_threads_are_whole_and_in_order_of_time(path):
    with Journal(path, Ticks()) as journal:
        threads = [
            threading.Thread(target=lambda: [journal.write("note", text="x" * 500) for _ in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    times = [entry.t_ns for entry in read_journal(path)]
    assert times == sorted(times)
    assert len(times) == 200


def test_listeners_get_each_entry(path):
    heard = []
    with Journal(path, Ticks(), heard.append) as journal:
        written = journal.write("note", text="hello")
    assert heard == [written]


def test_what_json_cannot_hold_is_written_as_text(path):
    with Journal(path, Ticks()) as journal:
        journal.write("note", text=path)
    assert json.loads(path.read_text())["text"] == str(path)
