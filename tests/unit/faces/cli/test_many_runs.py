"""A folder with thousands of recordings: what looks at all of them does not read all that is in them."""

import contextlib
import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hashidrill.core.engine.inject import open_faults
from hashidrill.core.recording.journal import outcome_of, settled
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.signed_runs import forget_open, note_open
from hashidrill.faces.cli import heal, listing
from hashidrill.gamedays.history import store
from hashidrill.lab.runs.heal import entries_of
from hashidrill.testing.recordings import RecordingBuilder
from history_runs import planted
from our_runs import began

MANY = 10_000
LIST_S, HEAL_S = 1.0, 5.0
BUSY = 2
"""The same work takes this much more CPU time while both threads of a core have something to do."""


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A recording that was judged, with a fault that is gone."""
    builder = RecordingBuilder(tmp_path_factory.mktemp("one") / "run")
    builder.fault("noop", at=10, until=30).load("kv-writes", rate=5, keys=230).healthy()
    for number in range(40):
        builder.event("note", at=5 + number / 2, text="something of some length happened " * 3)
    path = builder.expect("writes_recover", load="kv-writes", within="10s").build().path
    (path / "verdict.json").write_text(json.dumps({"verdict": "PASS", "invalid": [], "judgements": []}, indent=2))
    return path


def cpu_s(*words):
    """Of a command, with all that it imports."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", "from hashidrill.faces.cli import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout.splitlines()


@pytest.mark.long
def test_ten_thousand_runs_are_listed_in_a_second_and_healed_in_five(one, tmp_path):
    runs = tmp_path / "runs"
    for number in range(MANY):
        (runs / f"20261126-{number:06}-x").mkdir(parents=True)
        for name in ("journal.jsonl", "verdict.json"):
            shutil.copy(one / name, runs / f"20261126-{number:06}-x" / name)
    took_s, lines = cpu_s("list", "runs", "--runs", str(runs))
    assert (len(lines), lines[-1]) == (MANY, "20261126-009999-x PASS")
    assert took_s < LIST_S * BUSY
    took_s, lines = cpu_s("heal", "--json", "--runs", str(runs))
    assert json.loads("\n".join(lines))["healed"] == []
    assert took_s < HEAL_S * BUSY


@pytest.mark.long
def test_ten_thousand_runs_of_the_history_are_listed_in_a_second(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "transaction", lambda _: contextlib.nullcontext())  # one for all of them
    with store.opened(tmp_path / "history.sqlite") as found:
        found.execute("BEGIN")
        for number in range(MANY):
            store.Store(found).add(planted(number, figures={f"p{each}": 0.01 for each in range(12)}))
        found.execute("COMMIT")
    words = ("history", "list", "--last", str(MANY), "--db", str(tmp_path / "history.sqlite"))
    took_s, lines = cpu_s(*words)
    assert (len(lines), lines[-1].split()[2:4]) == (MANY, ["PASS", "run-9999"])
    assert took_s < LIST_S * BUSY


def lines_of(path):
    return (path / "journal.jsonl").read_text().splitlines(keepends=True)


def without(*events):
    return lambda lines: [line for line in lines if json.loads(line)["event"] not in events]


def gone_of_another(lines):
    """As many faults are gone as were intended, and not the same ones."""
    return [
        line.replace("fault_id", "x").replace('"x": "', '"fault_id": "not-') if '"fault.gone"' in line else line
        for line in lines
    ]


CHANGES = {
    "whole": lambda lines: lines,
    "died": without("end"),
    "in force": without("fault.gone"),
    "another's": gone_of_another,
    "torn": lambda lines: [*lines[:-1], lines[-1][:20]],
    "more after its end": lambda lines: [*lines, lines[1]],
    "empty": lambda lines: [],
    "long": lambda lines: [*lines, *[lines[1]] * 300],
    "noise": lambda lines: [*lines, '"end" [[[\n'],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_quick_look_says_what_the_whole_journal_says(one, tmp_path, change):
    """Or, of heal, that there is something to look at."""
    shutil.copytree(one, tmp_path / "run")
    (tmp_path / "run" / "journal.jsonl").write_text("".join(CHANGES[change](lines_of(one))))
    recording = Recording(tmp_path / "run")
    assert outcome_of(tmp_path / "run" / "journal.jsonl") == recording.outcome
    left = recording.outcome == "died" or bool(open_faults(entries_of(tmp_path / "run")))
    assert settled(tmp_path / "run" / "journal.jsonl") is not (left or change == "noise")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"verdict": "FAIL", "judgements": []}', "FAIL"),
        ('{"judgements": [], "verdict": "INVALID"}', "INVALID"),
        ('{"verdict": "GOOD"}', "not readable"),
        ("[1]", "not readable"),
        ("[" * 9000, "not readable"),
        (None, "no verdict"),
    ],
)
def test_a_verdict_is_one_word(tmp_path, content, said):
    if content is not None:
        (tmp_path / "verdict.json").write_text(content)
    assert listing._verdict(tmp_path) == said


def test_a_run_against_an_existing_datacenter_is_healed_whatever_its_journal_says(one):
    """Its loads may have left something there."""
    assert [*heal._unsettled(one.parent, attached=False)] == []
    assert [*heal._unsettled(one.parent, attached=True)] == [one]


@pytest.mark.lie
@pytest.mark.parametrize("where", ["runs/both-compared/one", "days/20261126-day/runs/one", "days/a-day/runs/both/one"])
def test_what_died_in_a_comparison_or_in_a_game_day_is_healed_too(tmp_path, where):
    (tmp_path / where).mkdir(parents=True)
    began(tmp_path / where, "one").close()
    assert [*heal._unsettled(tmp_path / "runs", attached=False)] == [tmp_path / where]


@pytest.mark.lie
def test_a_run_against_an_existing_datacenter_is_healed_wherever_it_is_recorded(tmp_path, monkeypatch):
    """Nothing to heal, while a fault of it is in force, is the worst that can be said from another folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "elsewhere" / "one").mkdir(parents=True)
    began(tmp_path / "elsewhere" / "one", "one", attached={"name": "staging-1"}).close()
    note_open("gone", tmp_path / "gone")
    (tmp_path / "state" / "hashidrill" / "open" / "torn.json").write_text('{"recor')
    for _ in range(2):
        assert [*heal._unsettled(tmp_path / "runs", attached=True)] == [tmp_path / "elsewhere" / "one"]
    assert [*heal._unsettled(tmp_path / "runs", attached=False)] == []
    forget_open("one")
    assert [*heal._unsettled(tmp_path / "runs", attached=True)] == []


def test_a_folder_that_is_not_there_has_no_runs():
    assert [*heal._unsettled(Path("/no/such/folder"), attached=False)] == []
