"""What the runner makes of the engine's process: its exit code counts as much as its words."""

import contextlib
import io
import json
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hashidrill.core.errors import RecordingError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.protocols.events import Bus, Phase
from hashidrill.core.recording.reader import Recording
from hashidrill.lab.runs import in_sandbox as sandboxed
from hashidrill.lab.runs.launch import _info, run_experiment
from hashidrill.testing.recordings import RecordingBuilder

BINARY = SimpleNamespace(path="/bin/consul", version="1.22.2", sha256="0" * 64, source="PATH")


@pytest.fixture
def close(tmp_path):
    """A run whose engine left a recording and ended with that code; returns the recording as the runner leaves it."""

    def planted(path, outcome):
        builder = RecordingBuilder(path).fault("noop", at=10, until=30).load("kv-writes").healthy()
        return builder.final_reads("kv-writes").expect("no_acknowledged_write_lost", load="kv-writes").end(outcome)

    def go(code, *, outcome="complete", interrupted=False, number=signal.SIGTERM, log="", output=None, events=None):
        @contextlib.contextmanager
        def engine(_command, _environment, log_path, *, given):
            planted(Path(given["recording"]), outcome).build()
            log_path.write_text(log)
            process = SimpleNamespace(wait=lambda: code, returncode=code, send_signal=lambda _number: None)
            if interrupted:
                signal.raise_signal(number)
            yield SimpleNamespace(process=process, output=output or io.BytesIO())

        experiment = tmp_path / "planted.yaml"
        experiment.write_text(json.dumps(planted(tmp_path / "unused", outcome).experiment()))
        try:
            path = run_experiment(
                resolve(experiment),
                runs_dir=tmp_path / "runs",
                events=events,
                ensure_binary=lambda *_, **__: BINARY,
                start_sandbox=engine,
            )
            assert not interrupted
        except KeyboardInterrupt as stopped:
            assert interrupted
            [path] = stopped.args
        return Recording(path)

    return go


def test_an_engine_that_ends_well_leaves_its_own_end(close):
    recording = close(0)
    assert len(recording.events("end")) == 1
    assert recording.run["outcome"] == "complete"
    assert recording.run["ended_at"]
    assert judge(recording).verdict is Verdict.PASS


@pytest.mark.lie
@pytest.mark.parametrize("code", [1, 137, -9])
def test_an_engine_that_fails_after_its_end_has_crashed(close, code):
    recording = close(code, log="MemoryError: out of it")
    assert recording.outcome == recording.run["outcome"] == "crashed"
    [reason] = judge(recording).invalid
    assert f"the engine exited with code {code} although its journal ends as 'complete': MemoryError" in reason


@pytest.mark.parametrize(("outcome", "code"), [("revert", 4), ("steady-state", 3), ("crashed", 1), ("revert", 137)])
def test_an_end_that_does_not_count_stays_what_it_is(close, outcome, code):
    assert len(close(code, outcome=outcome).events("end")) == 1


def test_a_signal_that_comes_after_the_end_changes_nothing(close, signals_restored):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and a run leaves that as it is
    assert close(143, interrupted=True).outcome == "complete"
    assert close(129, interrupted=True, number=signal.SIGHUP).outcome == "complete"  # the terminal was closed


@pytest.mark.parametrize(("interrupted", "outcome"), [(False, "crashed"), (True, "interrupted")])
def test_an_engine_without_an_end_is_told_with_its_exit_code_and_its_last_words(close, interrupted, outcome):
    recording = close(137, outcome=None, interrupted=interrupted, log="Killed")
    assert recording.outcome == outcome
    assert recording.run["error"] == "the engine exited with code 137 without an `end` event: Killed"


def test_an_engine_that_is_still_dying_holds_the_journal_for_a_moment_and_is_waited_for(close, monkeypatch):
    """Else a run whose engine was killed would stay without an end, whatever its journal says."""
    answers = iter([False, False])
    monkeypatch.setattr("hashidrill.core.recording.journal.held_by_us", lambda _fd: next(answers, True))
    monkeypatch.setattr("hashidrill.core.recording.journal._LOCK_GAP_S", 0)
    recording = close(-9, outcome=None)
    assert next(answers, "asked") == "asked"
    assert recording.events("end")[-1].data["outcome"] == "crashed"


def test_a_torn_last_line_of_events_is_no_crash_of_ours(close):
    told = []
    output = io.BytesIO(b'{"event": "phase", "phase": "steady"}\n{"event": "ti')
    close(137, output=output, events=Bus(told.append))
    assert told == [Phase(phase="steady")]


@pytest.mark.lie
def test_an_engine_does_not_wait_for_a_subscriber_that_waits_for_its_reader(close):
    """With a full pipe between them it would stand still, and leave in force what it has to revert."""
    line = b'{"event": "note", "text": "%s"}\n' % (b"x" * 1000)
    lines = 1000  # a pipe holds 64 kB
    read_end, write_end = os.pipe()
    written = threading.Event()
    told = []

    def engine():
        with os.fdopen(write_end, "wb", buffering=0) as output:
            for _ in range(lines):
                output.write(line)
        written.set()

    def stopped(event):
        told.append(event)
        assert written.wait(5), "the engine waits for this subscriber"

    bus = Bus(stopped)
    thread = threading.Thread(target=engine, daemon=True)
    thread.start()
    with os.fdopen(read_end, "rb") as output:
        close(0, output=output, events=bus)
    thread.join()
    assert (len(told), bus.failures) == (lines, [])


@pytest.mark.parametrize(
    ("outcome", "code"), [("complete", 0), ("guardrail", 0), ("crashed", 1), ("revert", 4), ("interrupted", 130)]
)
def test_the_engines_process_ends_with_what_its_run_came_to(outcome, code):
    async def run():
        return outcome

    assert sandboxed.exit_of(run) == code


def test_an_engine_that_cannot_close_its_recording_says_so_in_one_line():
    async def run():
        raise RecordingError("run-1: the journal could not be closed: No space left on device")

    assert sandboxed.exit_of(run) == "hashidrill: run-1: the journal could not be closed: No space left on device"


@pytest.mark.lie
@pytest.mark.parametrize("name", ["raft/slow-leader-disk", "nomad/slow-leader-disk"])
def test_a_run_of_the_library_says_which_of_two_experiments_of_one_name_it_is(name):
    resolved = resolve(find_experiment(name))
    said = _info(resolved.experiment, Path("run"), resolved, {})
    assert (said["experiment"], said["named"]) == ("slow-leader-disk", name)


def test_a_run_of_another_file_is_named_as_the_file_says(tmp_path):
    copy = tmp_path / "mine.yaml"
    planted = RecordingBuilder(tmp_path / "unused", name="my-disk").fault("noop", at=10, until=30).load("kv-writes")
    planted = planted.healthy().final_reads("kv-writes").expect("no_acknowledged_write_lost", load="kv-writes")
    copy.write_text(json.dumps(planted.experiment()))
    resolved = resolve(copy)
    assert _info(resolved.experiment, Path("run"), resolved, {})["named"] == "my-disk"
