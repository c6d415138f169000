"""The key of this machine, and what it proves of a journal."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from hashidrill.core.errors import NotOursError, UsageError
from hashidrill.core.recording.journal import Clock, Journal, read_journal, signed_entries
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.signed_runs import KEY_NAME, key_of, machine_key, our_run
from hashidrill.core.util.folders import state_folder
from our_runs import began


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return state_folder()


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_the_key_is_made_once_and_its_owner_alone_reads_it(state):
    key = machine_key()
    assert (len(key), machine_key()) == (32, key)
    assert stat.S_IMODE((state / KEY_NAME).stat().st_mode) == 0o600
    assert [file.name for file in state.iterdir()] == [KEY_NAME]


def test_of_processes_that_start_at_the_same_time_all_have_one_key():
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(lambda _: machine_key(), range(64)))) == 1


@pytest.mark.parametrize("how", ["readable", "short", "link", "folder"])
def test_a_key_that_others_may_know_signs_nothing(state, tmp_path, how):
    machine_key()
    path = state / KEY_NAME
    if how == "readable":
        path.chmod(0o640)
    elif how == "short":
        path.write_bytes(b"")
    else:
        path.unlink()
        path.symlink_to(tmp_path / "theirs") if how == "link" else path.mkdir()
        (tmp_path / "theirs").write_bytes(bytes(32))
    with pytest.raises(UsageError, match=KEY_NAME):
        key_of("run-1")


def test_a_journal_of_ours_is_known_and_reads_as_any_other(run):
    with began(run, "run-1") as journal:
        journal.write("note", text='a "quoted", "mac": "0:00" text', mac="02:42:ac:11")
    known = our_run(run)
    assert (known.id, known.lost, [entry.event for entry in known.entries]) == ("run-1", "", ["run", "note"])
    assert read_journal(run / "journal.jsonl")[1].data == {"text": 'a "quoted", "mac": "0:00" text'}
    assert Recording(run).events("note")


def test_another_key_or_none_is_not_ours(run, state):
    began(run, "run-1").close()
    (state / KEY_NAME).unlink()
    with pytest.raises(NotOursError, match="another machine or user wrote it"):
        our_run(run)


def test_a_run_that_calls_itself_by_the_id_of_another_one_is_not_ours(run, tmp_path):
    began(run, "run-1").close()
    text = (run / "journal.jsonl").read_text()
    (run / "journal.jsonl").write_text(text.replace("run-1", "run-2"))
    with pytest.raises(NotOursError, match="another machine or user wrote it"):
        our_run(run)


@pytest.mark.parametrize("run_id", ["../../../etc/passwd", "a/b", "", "x" * 999])
def test_an_id_that_is_no_name_leads_to_no_file(run, run_id):
    with Journal(run / "journal.jsonl", Clock()) as journal:
        journal.write("run", id=run_id, attached={"name": "staging"})
    with pytest.raises(NotOursError, match="which run it belongs to"):
        our_run(run)


def test_a_changed_byte_of_any_line_is_seen(run):
    with began(run, "run-1") as journal:
        journal.write("fault.intent", fault_id="0", undo={"host": "consul-1"})
    path, key = run / "journal.jsonl", key_of("run-1")
    whole = path.read_bytes()
    last = whole.rstrip().rfind(b"\n") + 1
    for at in range(last, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert len(signed_entries(path, key)[0]) == 1, at


def test_what_a_later_process_writes_continues_the_numbers_and_a_torn_line_is_none(run):
    began(run, "run-1").close()
    path = run / "journal.jsonl"
    with path.open("ab") as file:
        file.write(b'{"t_ns": 1, "wall": 2.0, "event": "no')
    for _ in range(2):
        with Journal(path, Clock(), key=key_of("run-1")) as journal:
            journal.write("note", text="x")
    assert (len(our_run(run).entries), our_run(run).lost) == (3, "")


def test_without_a_key_lines_carry_no_mac(run):
    with Journal(run / "journal.jsonl", Clock()) as journal:
        journal.write("note", text="x")
    assert b"mac" not in (run / "journal.jsonl").read_bytes()
