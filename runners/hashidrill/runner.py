"""Runs an experiment from outside of the sandbox: binaries, sandbox, events, and the recording in the end."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import platform
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from hashidrill import __version__, engine
from hashidrill.datacenter import binaries
from hashidrill.datacenter.binaries_products import BBOLT_VERSION
from hashidrill.datacenter.sandbox import Sandbox, python_path, sandbox
from hashidrill.datacenter.toxiproxy import VERSION as TOXIPROXY_VERSION
from hashidrill.documents import read_document
from hashidrill.errors import MachineError, UsageError
from hashidrill.journal import JOURNAL_NAME, Clock, Journal, read_journal
from hashidrill.loader import load_experiment
from hashidrill.recording import RUN_NAME

if TYPE_CHECKING:
    from hashidrill.model import Experiment

RUNS_DIR = Path(".hashidrill/runs")
ENGINE_LOG = "engine.log"
_LOG_TAIL = 2000
_NO_SANDBOX = "sandbox: "
"""How hashidrill.datacenter.inside.init begins what it says when the kernel refuses."""

Progress = Callable[[dict[str, Any]], None]


def run_experiment(path: Path, *, runs_dir: Path = RUNS_DIR, progress: Progress | None = None) -> Path:
    """Run one experiment; returns its recording's directory. Blocks, in the main thread.

    Nothing is started before the YAML is right, and the binaries and the commands of clients are there. Ctrl-C and
    SIGTERM revert what is in force, close the recording, and raise KeyboardInterrupt then; its `args[0]` is the
    recording. Raises ExperimentError, BinaryError, MachineError.
    """
    tell = progress or (lambda _event: None)
    experiment = load_experiment(path)
    _check_clients(path, experiment)
    version = experiment.datacenter.consul.version
    say = lambda text: tell({"event": "note", "t_ns": 0, "text": text})  # noqa: E731 - one line, used twice
    found = {"consul": binaries.ensure("consul", version, explicit=experiment.datacenter.consul.binary, progress=say)}
    needs = engine.needs(experiment)
    for name, tool_version, needed in (
        ("toxiproxy-server", TOXIPROXY_VERSION, needs.toxiproxy),
        ("bbolt", BBOLT_VERSION, needs.bbolt),
    ):
        if needed:
            found[name] = binaries.ensure(name, tool_version, progress=say)
    with _interruptible() as interrupt:  # from before there is a recording that nobody would close
        recording = _new_recording(runs_dir, experiment.metadata.name)
        shutil.copyfile(path, recording / "experiment.yaml")
        clock = Clock()
        info = _info(experiment, recording, path, found)
        (recording / RUN_NAME).write_text(json.dumps(info, indent=2) + "\n")
        spec = {
            "recording": str(recording), "binaries": {name: str(binary.path) for name, binary in found.items()},
            "origin_ns": clock.origin_ns, "info": info,
        }  # fmt: skip
        command = [sys.executable, "-m", "hashidrill.sandboxed", json.dumps(spec), "{root}"]
        with sandbox(command, {"PYTHONPATH": python_path()}, recording / ENGINE_LOG) as box:
            interrupt.pass_to(box.process)
            _follow(box, tell)
        _close(recording, clock, info, interrupted=interrupt.happened)
    if interrupt.happened:
        raise KeyboardInterrupt(recording)
    return recording


def _check_clients(path: Path, experiment: Experiment) -> None:
    """Raises ExperimentError for a command that is not on this machine: `load_experiment` is for others, too."""
    if experiment.clients:
        from hashidrill.loads.clients import check_commands  # noqa: PLC0415 - most experiments have no clients

        check_commands(read_document(path), experiment.clients)


def _follow(box: Sandbox, tell: Progress) -> None:
    """Hand on every event until the sandbox's output ends."""
    for line in iter(box.output.readline, b""):
        tell(json.loads(line))
    box.process.wait()


class _Interrupt:
    """A handler that passes Ctrl-C and SIGTERM on to the sandbox, which reverts and ends.

    It raises nothing: an exception in the middle of a line of events, or of drawing them, would leave a run half told.
    """

    def __init__(self) -> None:
        self.happened = False
        self._process: subprocess.Popen[bytes] | None = None

    def pass_to(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self.happened:  # before there was anybody to pass it to
            process.send_signal(signal.SIGTERM)

    def __call__(self, _number: int, _frame: object) -> None:
        self.happened = True
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    """SIGTERM counts as Ctrl-C while a run goes on: CI systems send it, and faults must be reverted then too."""
    interrupt = _Interrupt()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _new_recording(runs_dir: Path, name: str) -> Path:
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")
    recording = (runs_dir / f"{stamp}-{name}-{secrets.token_hex(2)}").absolute()
    try:
        recording.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{runs_dir}: no recording can be written there: {error.strerror}") from None
    return recording


def _close(recording: Path, clock: Clock, info: dict[str, Any], *, interrupted: bool) -> None:
    """What the engine could not write because it died, or never came to life."""
    entries = read_journal(recording / JOURNAL_NAME) if (recording / JOURNAL_NAME).exists() else []
    ends = [entry for entry in entries if entry.event == "end"]
    if ends:
        run = {**json.loads((recording / RUN_NAME).read_text()), **ends[-1].data}
    else:
        outcome = "interrupted" if interrupted else "crashed"
        said = _tail(recording / ENGINE_LOG)
        if said.startswith(_NO_SANDBOX):
            shutil.rmtree(recording)  # nothing was recorded
            raise MachineError(f"{said}; `hashidrill doctor` shows what is missing, and the command that gets it")
        error = f"the engine ended without a word: {said}"
        with Journal(recording / JOURNAL_NAME, clock) as journal:
            journal.write("end", sync=True, outcome=outcome, error=error)
        run = {**info, "outcome": outcome, "error": error}
    run["ended_at"] = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    (recording / RUN_NAME).write_text(json.dumps(run, indent=2, default=str) + "\n")
    log = recording / ENGINE_LOG
    if log.exists() and not log.stat().st_size:
        log.unlink()


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-_LOG_TAIL:].strip() or "nothing was logged"
    except OSError:
        return "nothing was logged"


def _info(experiment: Experiment, recording: Path, path: Path, found: dict[str, binaries.Binary]) -> dict[str, Any]:
    """run.json, as far as it is known beforehand."""
    return {
        "id": recording.name,
        "experiment": experiment.metadata.name,
        "title": experiment.metadata.title,
        "started_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "hashidrill": __version__,
        "versions": {
            **{name: binary.version for name, binary in found.items()},
            "python": platform.python_version(),
            "kernel": platform.release(),
        },
        "binaries": {
            name: {"path": str(binary.path), "sha256": binary.sha256, "source": binary.source}
            for name, binary in found.items()
        },
        "machine": {
            "cpus": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "kernel": platform.release(),
            "distribution": _distribution(),
        },
        "command": f"hashidrill run {shlex.quote(str(path))}",
    }


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"
