"""Corrupted recordings through `hashidrill check`: no traceback, and never a verdict over what is not there any more.

Whatever was sealed and is not what it was makes the run INVALID (exit code 3); what is no recording any more, or one of
a newer hashidrill, is bad usage (2). PASS and FAIL are left to the one recording that is whole.
"""

import contextlib
import json
import random
import shutil
import sqlite3

import pytest

from command_line import command_line
from hashidrill.core.errors import RecordingError
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.recording import reader
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.seal import seal
from hashidrill.reports.story import story
from hashidrill.testing.recordings import RecordingBuilder

DEFAULT, NIGHTLY, AT_ONCE = 100, 1000, 20
FILES = ["journal.jsonl", "recording.sqlite", "experiment.yaml", "resolved.json", "run.json"]
PASS, BAD_USAGE, INVALID = 0, 2, 3
ANY = {PASS, 1, BAD_USAGE, INVALID, 4}
"""What a recording that names no format comes to: anything but a traceback."""
ODD = [None, True, -1, 10**30, 1e308, "", "\ud800", "9" * 300, [], {}, [[[]]], {"a": {"b": []}}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A recording that passes."""
    builder = RecordingBuilder(tmp_path_factory.mktemp("whole") / "run")
    builder.fault("noop", at=10, until=30).load("kv-writes", rate=5, keys=230).healthy().final_reads("kv-writes")
    builder.guardrail("kv-writes.errors > 90% for 20s")
    builder.expect("no_acknowledged_write_lost", load="kv-writes").expect(
        "writes_recover", load="kv-writes", within="10s"
    )
    return builder.build().path


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def check(monkeypatch, capsys, tmp_path):
    """`hashidrill check RUN`: the exit code, and what was said."""
    call = command_line(monkeypatch, capsys, tmp_path)

    def go(path):
        code, out, err = call("check", path)
        return code, out + err

    return go


# what can happen to a recording; each takes the directory and a source of chance


def flip_a_bit(path, chance):
    file = path / chance.choice(FILES)
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def cut_short(path, chance):
    file = path / chance.choice(FILES)
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(len(content))])


def fill_with_noise(path, chance):
    file = path / chance.choice(FILES)
    content = bytearray(file.read_bytes())
    start = chance.randrange(len(content))
    size = min(chance.choice([1, 16, 512, 4096]), len(content) - start)
    content[start : start + size] = chance.choice([chance.randbytes(size), b"\0" * size])
    file.write_bytes(content)


def append(path, chance):
    with (path / chance.choice(FILES[:2])).open("ab") as out:
        out.write(chance.choice([b"\0" * 10, b"{}\n", b"[" * 5000 + b"\n", b"\xff\xfe\n", chance.randbytes(50)]))


def take_away(path, chance):
    (path / chance.choice(FILES[:4])).unlink()


def put_a_directory_there(path, chance):
    file = path / chance.choice(FILES)
    file.unlink()
    file.mkdir()


def odd_line(path, chance):
    """A line of the journal that is JSON, and says something of the wrong kind."""
    lines = (path / "journal.jsonl").read_text().splitlines()
    number = chance.randrange(len(lines))
    lines[number] = json.dumps(_odd(json.loads(lines[number]), chance))
    (path / "journal.jsonl").write_text("\n".join(lines) + "\n")


def lines_lost_or_doubled(path, chance):
    lines = (path / "journal.jsonl").read_text().splitlines(keepends=True)
    number = chance.randrange(len(lines))
    lines[number : number + 1] = chance.choice([[], [lines[number]] * 2, lines[number:] + lines[:number]])
    (path / "journal.jsonl").write_text("".join(lines))


def odd_run(path, chance):
    run = _odd(json.loads((path / "run.json").read_text()), chance)
    (path / "run.json").write_text(json.dumps(run))


def odd_rows(path, chance):
    """What no run wrote, in a database that SQLite still takes for one."""
    database = sqlite3.connect(path / "recording.sqlite")
    with database:
        database.execute(
            chance.choice(
                [
                    "DELETE FROM operations WHERE rowid % 7 = 0",
                    "UPDATE operations SET end_ns = 'soon'",
                    "UPDATE samples SET t_ns = x'00ff'",
                    "UPDATE samples SET text = x'ff' WHERE rowid % 2",
                    "DROP TABLE final_reads",
                    "DROP TABLE operations",
                    "DROP TABLE samples",
                    "UPDATE final_reads SET value = 17",
                    "PRAGMA user_version = 99",
                    "DELETE FROM samples",
                    "UPDATE operations SET intended_ns = -intended_ns",
                    "ALTER TABLE samples RENAME COLUMN text TO words",
                ]
            )
        )
    database.close()


def _odd(value, chance):
    """The same document with one of its values, however deep, of another kind or gone."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        if chance.random() < 0.2:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: _odd(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        index = chance.randrange(len(value))
        return [*value[:index], _odd(value[index], chance), *value[index + 1 :]]
    return chance.choice(ODD)


def without_format(path, _chance):
    lines = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    for line in lines:
        for key in ("format", "sealed", "written"):
            line.pop(key, None)
    (path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({key: value for key, value in run.items() if key != "format"}))
    database = sqlite3.connect(path / "recording.sqlite")
    database.execute("PRAGMA user_version = 0")
    database.close()


WAYS = [
    flip_a_bit,
    cut_short,
    fill_with_noise,
    append,
    take_away,
    put_a_directory_there,
    odd_line,
    lines_lost_or_doubled,
    odd_run,
    odd_rows,
]


def corrupted(whole, path, seed):
    """A copy that something happened to. Returns (what, whether a seal tells of it)."""
    chance = random.Random(seed)
    shutil.copytree(whole, path)
    unmarked = chance.random() < 0.25
    if unmarked:
        without_format(path, chance)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    way = WAYS[seed % len(WAYS)]
    way(path, chance)
    same = all((path / name).is_file() and (path / name).read_bytes() == content for name, content in before.items())
    return f"{way.__name__}{' of one without a format' if unmarked else ''}", not unmarked and not same


def refused(whole, tmp_path, check, seeds):
    """What was said or done wrongly, a line each."""
    wrong = []
    for seed in seeds:
        path = tmp_path / f"run-{seed}"
        what, sealed = corrupted(whole, path, seed)
        try:
            code, said = check(path)
        except Exception as error:  # noqa: BLE001 - each of them is told
            wrong.append(f"{seed}: {what}: {type(error).__name__}: {error}")
            continue
        finally:
            shutil.rmtree(path)
        right = {INVALID, BAD_USAGE} if "there is no recording" in said else {INVALID} if sealed else ANY
        if code not in right or (code == BAD_USAGE and said.count("\n") != 1):
            wrong.append(f"{seed}: {what}: exit code {code}: {said[-300:]}")
    return wrong


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, DEFAULT, AT_ONCE))
def test_a_corrupted_recording_that_is_judged_has_a_story_for_every_verdict(whole, tmp_path, first):
    """Only what the reader calls unreadable is left out: an error of the story's own code would show here."""
    for seed in range(first, first + AT_ONCE):
        path = tmp_path / f"run-{seed}"
        corrupted(whole, path, seed)
        try:
            recording = Recording(path)
            verdict = judge(recording)
        except RecordingError:
            continue
        for each in (verdict, RunVerdict([], []), RunVerdict(["it died"], [])):
            assert len(story(recording, each).sentences) <= 3


# what a stranger makes, with a seal of its own


def sealed(path):
    """As a forger does: the seal is over what is there."""
    journal = path / "journal.jsonl"
    *lines, end = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines))
    said = json.loads(end)
    journal.write_text("".join(lines) + json.dumps({**said, "sealed": seal(path)}) + "\n")


def planted(path, *statements):
    with contextlib.closing(sqlite3.connect(path / "recording.sqlite")) as database:
        database.executescript(";".join(statements))
    sealed(path)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
OPERATION = "i AS id, 'kv-writes' AS load, i AS intended_ns, i AS start_ns, i AS end_ns, 'ok' AS outcome, '' AS key,"
OPERATION += " '' AS value, 0 AS status, '' AS error, '' AS reason, '' AS detail"


@pytest.mark.lie
@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TABLE operations", f"CREATE VIEW operations AS {ENDLESS} SELECT {OPERATION} FROM n"),
        ("DROP TABLE samples", f"CREATE VIEW samples AS {ENDLESS} SELECT i, i, 1.0, '', 'consul-1', 1 FROM n"),
        ("DROP TABLE final_reads", f"CREATE VIEW final_reads AS {ENDLESS} SELECT i AS load, i AS key, i FROM n"),
        (f"CREATE VIEW detail_lock AS {ENDLESS} SELECT i AS operation_id FROM n",),
        ("CREATE VIRTUAL TABLE detail_lock USING fts5(operation_id)",),
    ],
    ids=["operations", "samples", "final reads", "details", "virtual"],
)
def test_what_is_computed_without_end_is_not_read(copy, check, statements):
    planted(copy, *statements)
    code, said = check(copy)
    assert code in {BAD_USAGE, INVALID}, said
    assert "is not a table of a run, so it is not read" in " ".join(said.split())


def test_a_query_computes_no_more_than_its_file_can_hold(copy, monkeypatch):
    """Were there another way to let it compute than views."""
    planted(copy, "DROP TABLE operations", f"CREATE VIEW operations AS {ENDLESS} SELECT {OPERATION} FROM n")
    monkeypatch.setattr(reader, "_not_tables", lambda connection: [])
    for read in (lambda run: run.count("operations"), lambda run: run.loads, lambda run: run.operations("kv-writes")):
        with pytest.raises(RecordingError, match="a query takes too many steps"):
            read(Recording(copy))


@pytest.mark.lie
@pytest.mark.parametrize("column", ["intended_ns", "start_ns", "end_ns"])
@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**62, 8 * 86400 * 10**9])
def test_a_time_that_no_run_has_is_one_message(copy, check, column, value):
    planted(copy, f"UPDATE operations SET {column} = {value} WHERE id = 100")
    code, said = check(copy)
    assert code in {BAD_USAGE, INVALID}, said
    assert f"{value} is not a time of a run" in " ".join(said.split())


def test_the_recording_that_is_whole_passes(whole, check):
    assert check(whole)[0] == PASS


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize("first", range(0, DEFAULT, AT_ONCE))
def test_a_corrupted_recording_gets_one_message_and_the_right_exit_code(whole, tmp_path, check, first):
    assert refused(whole, tmp_path, check, range(first, first + AT_ONCE)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(DEFAULT, NIGHTLY, AT_ONCE))
def test_many_more_corrupted_recordings_do(whole, tmp_path, check, first):
    assert refused(whole, tmp_path, check, range(first, first + AT_ONCE)) == []
