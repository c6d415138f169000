"""Ctrl-C, SIGTERM and a closed terminal: what is in force is reverted and proven gone, and the exit code is 130."""

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import termios
import threading
import time
from pathlib import Path

import httpx2
import pytest

from drills import CLI, environment, experiment, hashidrill, start
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.recording.journal import read_journal
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.lab.runs import launch as runner
from leaks import VARIABLE, Ground

FSYNC = {"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "100ms"}, "for": "60s"}
INTERRUPTED = 130
_APPLIED_WITHIN_S, _ENDS_WITHIN_S = 100.0, 60.0


def wait_for(event, runs, process):
    """The run's directory, once its journal says so."""
    deadline = time.monotonic() + _APPLIED_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        for journal in runs.glob(f"*/{JOURNAL_NAME}"):
            if any(entry.event == event for entry in read_journal(journal)):
                return journal.parent
        time.sleep(0.05)
    raise AssertionError(f"no {event} within {_APPLIED_WITHIN_S}s; exit code {process.poll()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_while_a_fault_is_in_force_reverts_it(number, tmp_path):
    runs = tmp_path / "runs"
    process = start("run", experiment(tmp_path / "short.yaml", method=[FSYNC]), "--plain", "--runs", runs)
    run = wait_for("fault.proven", runs, process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=_ENDS_WITHIN_S)
    assert process.returncode == INTERRUPTED, stdout + stderr
    assert "Traceback" not in stdout + stderr
    events = [entry.event for entry in read_journal(run / JOURNAL_NAME)]
    assert events.index("fault.proven") < events.index("fault.reverted") < events.index("fault.gone")
    assert events[-1] == "end"
    saved = json.loads((run / "run.json").read_text())
    assert saved["outcome"] == "interrupted"
    assert saved["ended_at"]
    assert (run / "report.html").is_file()
    assert "interrupted" in stdout


@pytest.mark.lie
def test_a_terminal_that_is_closed_reverts_what_is_in_force(tmp_path):
    """A real one, with the live view on it: nothing that is written from then on arrives."""
    runs = tmp_path / "runs"
    outer, inner = pty.openpty()
    words = [*CLI, "run", experiment(tmp_path / "short.yaml", method=[FSYNC]), "--runs", runs]
    process = subprocess.Popen(
        [*map(str, words)],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no other way to have a terminal
    )
    os.close(inner)
    closed = threading.Event()

    def look():
        while not closed.is_set():
            if select.select([outer], [], [], 0.05)[0]:
                os.read(outer, 65536)

    person = threading.Thread(target=look)
    person.start()
    try:
        run = wait_for("fault.proven", runs, process)
    finally:
        closed.set()
        person.join()
        os.close(outer)
    assert process.wait(_ENDS_WITHIN_S) == INTERRUPTED
    events = [entry.event for entry in read_journal(run / JOURNAL_NAME)]
    assert events.index("fault.proven") < events.index("fault.reverted") < events.index("fault.gone")
    assert json.loads((run / "run.json").read_text())["outcome"] == "interrupted"
    assert all((run / name).is_file() for name in ("verdict.json", "report.html", "summary.md"))


@pytest.mark.nightly
def test_the_stop_button_of_the_page_does_what_ctrl_c_does(tmp_path):
    runs = tmp_path / "runs"
    process = start("run", experiment(tmp_path / "short.yaml", method=[FSYNC]), "--plain", "--serve", "--runs", runs)
    lead = next(line for line in process.stdout if "for the lead" in line).split()[-1]
    run = wait_for("fault.proven", runs, process)
    origin = {"origin": lead.rsplit("/", 2)[0]}
    assert httpx2.post(f"{lead}stop", json={}, headers=origin, trust_env=False).status_code == 200
    stdout, stderr = process.communicate(timeout=_ENDS_WITHIN_S)
    assert process.returncode == INTERRUPTED, stdout + stderr
    assert "Traceback" not in stdout + stderr
    events = [entry.event for entry in read_journal(run / JOURNAL_NAME)]
    assert events.index("fault.proven") < events.index("fault.reverted") < events.index("fault.gone")
    assert json.loads((run / "run.json").read_text())["outcome"] == "interrupted"


@pytest.mark.lie
def test_a_run_that_was_started_with_interrupts_ignored_is_ended_by_sigterm_alone(tmp_path):
    """As by `hashidrill run ... &` in a script, where a Ctrl-C is meant for what is in front."""
    runs = tmp_path / "runs"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start("run", experiment(tmp_path / "short.yaml", method=[FSYNC]), "--plain", "--runs", runs)
    finally:
        signal.signal(signal.SIGINT, before)
    run = wait_for("fault.proven", runs, process)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    assert "fault.reverted" not in [entry.event for entry in read_journal(run / JOURNAL_NAME)]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=_ENDS_WITHIN_S)
    assert process.returncode == INTERRUPTED
    assert read_journal(run / JOURNAL_NAME)[-1].event == "end"


def test_a_second_signal_does_not_stop_the_reverting(tmp_path):
    runs = tmp_path / "runs"
    reluctant = {**FSYNC, "fault": "planted.reluctant"}
    process = start("run", experiment(tmp_path / "short.yaml", method=[reluctant]), "--plain", "--runs", runs)
    run = wait_for("fault.proven", runs, process)
    while process.poll() is None and not any(e.event == "fault.reverted" for e in read_journal(run / JOURNAL_NAME)):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    stdout, stderr = process.communicate(timeout=_ENDS_WITHIN_S)
    assert process.returncode == INTERRUPTED, stdout + stderr
    assert [e.event for e in read_journal(run / JOURNAL_NAME)].count("fault.gone") == 1


@pytest.mark.nightly
def test_a_signal_at_any_moment_of_the_start_ends_the_run(tmp_path):
    """No moment is too early: not before the sandbox is there, nor before its processes have their handlers."""
    path = experiment(tmp_path / "short.yaml", method=[FSYNC])
    for number in range(8):
        runs, work = tmp_path / f"runs-{number}", Path(os.environ[VARIABLE]) / f"i{number}"
        work.mkdir()
        ground = Ground(work)
        process = start("run", path, "--plain", "--runs", runs, env=environment(**{VARIABLE: work}))
        wait_for_recording(runs, process)
        time.sleep(number * 0.02)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=_ENDS_WITHIN_S)
        assert process.returncode == INTERRUPTED, f"{number}: {stdout}{stderr}"
        assert "Traceback" not in stdout + stderr
        [journal] = runs.glob(f"*/{JOURNAL_NAME}")
        assert read_journal(journal)[-1].data["outcome"] == "interrupted", number
        assert ground.left_after(10) == []
        work.rmdir()


def test_a_signal_as_the_recording_is_made_closes_it(tmp_path):
    class Interrupting(ResolvedExperiment):
        def to_data(self):  # asked for first when the recording's directory is there, and run.json is not
            signal.raise_signal(signal.SIGTERM)
            return super().to_data()

    resolved = Interrupting(**vars(resolve(experiment(tmp_path / "short.yaml", method=[FSYNC]))))
    with pytest.raises(KeyboardInterrupt) as stopped:
        runner.run_experiment(resolved, runs_dir=tmp_path / "runs")
    [recording] = (tmp_path / "runs").iterdir()
    assert stopped.value.args == (recording,)
    assert json.loads((recording / "run.json").read_text())["outcome"] == "interrupted"
    assert read_journal(recording / JOURNAL_NAME)[-1].event == "end"


def wait_for_recording(runs, process):
    while process.poll() is None and not list(runs.glob("*")):
        time.sleep(0.002)


@pytest.mark.nightly
def test_an_interrupted_run_has_nothing_to_heal(tmp_path):
    runs = tmp_path / "runs"
    process = start("run", experiment(tmp_path / "short.yaml", method=[FSYNC]), "--plain", "--runs", runs)
    wait_for("fault.proven", runs, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=_ENDS_WITHIN_S)
    assert hashidrill("heal", "--runs", runs).stdout == "nothing to heal\n"
