"""The recording of a game: nothing in its files tells what is hidden until its keeper opens them."""

import json

import pytest

from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.recording.journal import Clock, Entry, entry_of
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.seal import damage, seal
from hashidrill.gamedays.training.seal import Key, Sealer
from hashidrill.gamedays.training.sealed_recording import SealedJournal, SealedRecording, SealedWriter

TELLS = (b"disk.latency", b"slow-leader-disk", b"kv-writes")
DECIDED = Entry(5, 1.0, "attended.did", {"what": "overruled", "text": "in other words", "right": True})


def game(path, key, *, killed=False):
    """What the runner and the engine write."""
    path.mkdir()
    for name in ("experiment.yaml", "resolved.json", "hypotheses.json", "run.json"):
        (path / name).write_text(json.dumps({"fault": "disk.latency", "name": "slow-leader-disk"}))
    held = SealedRecording(path, key)
    held.hold()
    sealer = Sealer(key.public)
    writer = SealedWriter(path, sealer=sealer)
    with SealedJournal(path / "journal.jsonl", Clock(), sealer=sealer) as journal:
        journal.write("run", format=4, id="x", experiment="slow-leader-disk")
        journal.write("phase", phase="method", kind="disk.latency")
        writer.operation(Operation("kv-writes", 1, 1, 2, "ok", "k", "v"))
        writer.sample(3, Sample("raft.leader", 1.0, "consul-1"))
        if not killed:
            writer.close()
            writer.write_run({"id": "x", "outcome": "complete", "error": "", "fault": "disk.latency"})
            journal.write("end", outcome="complete", error="", written=dict(writer.written), sealed=seal(path))
    return held


def everything(path):
    return b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())


@pytest.mark.lie
@pytest.mark.parametrize("killed", [False, True])
def test_no_file_of_a_game_that_is_on_tells_what_is_hidden(tmp_path, killed):
    held = game(tmp_path / "run", Key(), killed=killed)
    assert [tell for tell in TELLS if tell in everything(held.path)] == []


def test_its_keeper_opens_a_recording_that_is_whole_and_has_what_the_trainer_decided(tmp_path):
    held = game(tmp_path / "run", Key())
    held.open([DECIDED])
    recording = Recording(held.path)
    assert damage(recording) == []
    events = [entry.event for entry in recording.journal]
    assert events in (["run", "attended.did", "phase", "end"], ["attended.did", "run", "phase", "end"])
    assert recording.events("attended.did")[0].data["text"] == "in other words"
    assert (len(recording.operations("kv-writes")), recording.run["outcome"]) == (1, "complete")
    assert json.loads((held.path / "resolved.json").read_text())["fault"] == "disk.latency"


def test_of_an_engine_that_was_killed_the_journal_is_left(tmp_path):
    held = game(tmp_path / "run", Key(), killed=True)
    with (held.path / "journal.jsonl").open("ab") as journal:
        journal.write(b"dG9ybg")
    held.open()
    lines = (held.path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert [entry.event for entry in map(entry_of, lines) if entry is not None] == ["run", "phase"]


@pytest.mark.lie
def test_a_line_that_was_changed_is_damage(tmp_path):
    held = game(tmp_path / "run", Key())
    journal = held.path / "journal.jsonl"
    first, second, *rest = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([first, second[:80] + b"AAAA" + second[84:], *rest]))
    held.open()
    assert any("not readable in line 2" in reason for reason in damage(Recording(held.path)))


def test_another_key_opens_nothing():
    with pytest.raises(ValueError, match="not sealed for this key"):
        Key().opened(Sealer(Key().public)(b"disk.latency"))
