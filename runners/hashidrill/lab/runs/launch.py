"""Runs an experiment from outside the sandbox: binaries, sandbox, events, and finally the recording."""

import contextlib
import datetime as dt
import json
import os
import platform
import queue
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from hashidrill import __version__
from hashidrill.core.engine.requirements import required_by
from hashidrill.core.engine.run import EXIT_CODES
from hashidrill.core.errors import InterlockError, MachineError, UnrecordedError, UsageError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import library_name
from hashidrill.core.experiment.model import Experiment, make_fault, services_of
from hashidrill.core.experiment.resolved import ResolvedExperiment, sha256
from hashidrill.core.faults.toxiproxy import VERSION as TOXIPROXY_VERSION
from hashidrill.core.protocols.capabilities import PacketFilter
from hashidrill.core.protocols.events import Bus, Note, decode
from hashidrill.core.recording.journal import UNSIGNED, Clock, Journal, LineKey, read_journal
from hashidrill.core.recording.provenance import HYPOTHESES_NAME
from hashidrill.core.recording.reader import EXPERIMENT_NAME
from hashidrill.core.recording.signed_runs import forget_open, key_of, note_open
from hashidrill.core.recording.writer import FORMAT, RESOLVED_NAME, read_run, write_run
from hashidrill.core.util import folders
from hashidrill.core.util.cores import usable_cores
from hashidrill.core.util.files import JOURNAL_NAME, write_whole
from hashidrill.core.util.nested import merge
from hashidrill.core.util.processes import python_path
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.run_origin import here
from hashidrill.lab.provision import binaries
from hashidrill.lab.provision.products import BBOLT_VERSION
from hashidrill.lab.runs.engine_process import REFUSED
from hashidrill.lab.sandbox.sandbox import Sandbox, sandbox

RUNS_DIR = folders.RUNS_DIR
ENGINE_LOG = "engine.log"
_LOG_TAIL = 2000
_ENGINE_GONE_WITHIN_S = 5.0
"""How long a killed engine may still hold the journal."""
_NO_SANDBOX = "sandbox: "
"""The prefix of hashidrill.lab.sandbox.init's message when the kernel refuses a sandbox."""


def run_experiment(
    resolved: ResolvedExperiment,
    *,
    runs_dir: Path = RUNS_DIR,
    events: Bus | None = None,
    ensure_binary: Callable[..., binaries.Binary] = binaries.ensure,
    start_sandbox: Callable[..., AbstractContextManager[Sandbox]] = sandbox,
) -> Path:
    """Runs one experiment; returns its recording's directory. Blocks, in the main thread.

    The engine gets the resolved experiment, and the recording keeps it; the YAML is not read again. Nothing starts
    before the binaries and the commands of clients are found. Ctrl-C and SIGTERM revert all faults in force and
    close the recording; then this raises KeyboardInterrupt, whose `args[0]` is the recording. Raises
    ExperimentError, BinaryError, MachineError, UnrecordedError.

    Each subscriber of `events` is called with every event of the run (hashidrill.core.protocols.events), in this
    thread. The run does not wait for subscribers. If one raises, it gets no more events, and a line on standard error
    says so.

    `ensure_binary` gets a binary, `start_sandbox` starts the engine's process: tests pass their own.
    """
    events = events or Bus()
    if resolved.experiment.variants:
        names = ", ".join(resolved.experiment.variants)
        raise UsageError(f"{resolved.path}: {resolved.name} has variants ({names}), which run one by one: name one")
    found = prepare(resolved, lambda text: events.publish(Note(text=text)), ensure_binary=ensure_binary)
    engine = Engine("hashidrill.lab.runs.in_sandbox", start_sandbox, {"PYTHONPATH": python_path()})
    return record(resolved, engine, runs_dir=runs_dir, events=events, found=found)


def prepare(
    resolved: ResolvedExperiment,
    say: Callable[[str], None],
    *,
    ensure_binary: Callable[..., binaries.Binary] = binaries.ensure,
) -> dict[str, binaries.Binary]:
    """Gets the binaries of a run, and checks that this machine can carry it.

    Starts nothing. Calls `say` before slow steps. Raises ExperimentError, BinaryError, MachineError.
    """
    experiment = resolved.experiment
    if experiment.datacenter.stands:
        raise UsageError(
            f"{resolved.path}: needs an existing datacenter ({experiment.datacenter.stands}), and this command "
            "starts a local one; use `hashidrill run`"
        )
    _check_clients(resolved)
    if resolved.document is not None:
        note_probes(resolved.document, experiment)
        resolved.document.raise_problems()
    check_machine(resolved)
    check_packet_rules(resolved)
    explicit = {
        each.name: each.explicit for service in services_of(experiment.datacenter) for each in service.binaries()
    }
    return {
        name: ensure_binary(name, version, explicit=explicit.get(name), progress=say)
        for name, version in binaries_for(experiment)
    }


@dataclass(frozen=True)
class Engine:
    """How the engine's process is started: its module, its launcher, and its input besides the experiment."""

    module: str
    start: Callable[..., AbstractContextManager[Sandbox]]
    environment: Mapping[str, str]
    given: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets: Sequence[str] = field(default=(), repr=False)
    """Secrets that no file of the recording may hold, besides those in the environment and the experiment."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Added to run.json."""
    outlives: bool = False
    """Whether the run's faults outlive its process: then heal must know the run."""

    def key_for(self, recording: Path) -> LineKey:
        """The key that signs the journal; none if no key can be stored and nothing will be left to heal.

        Raises UsageError.
        """
        try:
            key = key_of(recording.name)
        except UsageError:
            if self.outlives:
                raise
            return UNSIGNED
        return replace(key, note=note_open(recording.name, recording)) if self.outlives else key


def record(
    resolved: ResolvedExperiment, engine: Engine, *, runs_dir: Path, events: Bus, found: Mapping[str, binaries.Binary]
) -> Path:
    """Makes a recording, starts the engine, follows it, and closes the recording, as in `run_experiment`."""
    experiment = resolved.experiment
    probe_secrets = _probe_secrets(experiment)
    redactor = Redactor()
    redactor.know(*probe_secrets.values())
    redactor.learn_environment(os.environ)
    redactor.learn(resolved.data)
    redactor.know(*engine.secrets)
    with _interruptible() as interrupt:  # before the recording exists: otherwise it would never be closed
        recording = new_folder(runs_dir, "-".join(filter(None, [experiment.metadata.name, resolved.variant])))
        write_whole(recording / EXPERIMENT_NAME, redactor.yaml(resolved.text))
        kept = json.dumps(redactor.clean(resolved.to_data()), indent=2) + "\n"
        write_whole(recording / RESOLVED_NAME, kept)
        write_whole(recording / HYPOTHESES_NAME, json.dumps(resolved.hypotheses, indent=2) + "\n")
        clock = Clock()
        info = redactor.clean(merge(_info(experiment, recording, resolved, found), engine.info))
        info["resolved"] = sha256(kept.encode())
        write_run(recording, info)
        key = engine.key_for(recording)
        spec = {
            "recording": str(recording),
            "binaries": {name: str(binary.path) for name, binary in found.items()},
            "origin_ns": clock.origin_ns,
            "info": info,
            "resolved": resolved.to_data(),
            "secrets": redactor.secrets,
            "probe_secrets": probe_secrets,
            **engine.given,
            "key": (key.secret.hex(), str(key.note or "")),
        }
        command = [sys.executable, "-P", "-m", engine.module, "{root}"]
        with engine.start(command, engine.environment, recording / ENGINE_LOG, given=spec) as box:
            interrupt.pass_to(box.process)
            _follow(box, events)
        try:
            _close(
                recording,
                clock,
                info,
                box.process.returncode,
                interrupted=interrupt.happened,
                redactor=redactor,
                key=key,
            )
            _redact_log(recording / ENGINE_LOG, redactor)
        except OSError as error:
            raise UnrecordedError(
                f"{recording}: the recording could not be closed: {error.strerror or error}; its run is INVALID"
            ) from None
    for failure in events.failures:
        sys.stderr.write(f"hashidrill: warning: {failure}\n")
    if interrupt.happened:
        raise KeyboardInterrupt(recording)
    return recording


def binaries_for(experiment: Experiment) -> list[tuple[str, str]]:
    """(name, version) of each binary that a run of this experiment starts."""
    tools = required_by(experiment).tools
    wanted = [
        *((each.name, each.version, True) for s in services_of(experiment.datacenter) for each in s.binaries()),
        ("toxiproxy-server", TOXIPROXY_VERSION, "toxiproxy" in tools),
        ("bbolt", BBOLT_VERSION, "bbolt" in tools),
    ]
    return [(name, version) for name, version, needed in wanted if needed]


def _check_clients(resolved: ResolvedExperiment) -> None:
    """Raises ExperimentError for a command that this machine lacks; `resolve` may check a run of another machine."""
    if resolved.experiment.clients and resolved.document is not None:
        from hashidrill.core.loads.clients import check_commands  # noqa: PLC0415 - most experiments have no clients

        check_commands(resolved.document, resolved.experiment.clients)


def _probe_secrets(experiment: Experiment) -> dict[str, str]:
    """Raises UsageError."""
    if not experiment.probes:
        return {}
    from hashidrill.core.probes.declared import read_secrets  # noqa: PLC0415 - few experiments have any

    return read_secrets(experiment)


def note_probes(document: Document, experiment: Experiment) -> None:
    """Adds to the document a problem for each probe whose target the local datacenter cannot reach."""
    if experiment.probes:
        from hashidrill.core.probes.declared import outside  # noqa: PLC0415 - as above
        from hashidrill.lab.local.datacenter import NETWORK  # noqa: PLC0415 - as above

        hosts = {place.host for service in services_of(experiment.datacenter) for place in service.places()}
        for loc, text in outside(experiment, hosts, NETWORK):
            document.problem(loc, text)


def check_machine(resolved: ResolvedExperiment, available_bytes: int | None = None) -> None:
    """Raises ExperimentError if this machine lacks the memory; a run that `resolve` checks may be on another."""
    from hashidrill.core.engine.requirements import check_memory  # noqa: PLC0415 - it needs the sandbox's side, which imports much

    if resolved.document is not None:
        check_memory(resolved.document, resolved.experiment, available_bytes)


def check_packet_rules(resolved: ResolvedExperiment) -> None:
    """Raises MachineError if this kernel refuses the packet rules of a fault; checked only for network faults."""
    from hashidrill.lab.provision import machine  # noqa: PLC0415 - `validate` imports no trials

    steps = resolved.experiment.faults
    filtering = {step.fault for step in steps if PacketFilter in make_fault(step, None).requires().capabilities}
    filtering |= {step.fault for step in steps} & {*machine.refused_faults({})}
    if not filtering:
        return
    lost = machine.refused_faults(machine.run_trials("packets"), filtering)
    if refused := sorted(filtering & {*lost}):
        raise MachineError(
            f"{resolved.path}: {refused[0]} needs packet rules that this machine's kernel refuses ({lost[refused[0]]});"
            " `hashidrill doctor` says which faults are impossible here, and what may help; faults on disks, processes"
            " and CPUs are possible"
        )


def _follow(box: Sandbox, events: Bus) -> None:
    """Publishes every event until the sandbox's output ends. Skips the torn line that a killed engine may leave.

    A thread reads the pipe: a subscriber may wait for its terminal, and an engine with a full pipe could not revert.
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def take() -> None:
        for line in iter(box.output.readline, b""):
            lines.put(line)
        lines.put(b"")

    taking = threading.Thread(target=take, name="events", daemon=True)
    taking.start()
    while line := lines.get():
        if (event := decode(line)) is not None:
            events.publish(event)
    taking.join()
    box.process.wait()


class _Interrupt:
    """Passes Ctrl-C and SIGTERM on to the sandbox, which reverts and ends. Raises nothing: that would lose events."""

    def __init__(self) -> None:
        self.happened = False
        self._process: subprocess.Popen[bytes] | None = None

    def pass_to(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self.happened:  # the signal came before the sandbox's process existed
            process.send_signal(signal.SIGTERM)

    def __call__(self, _number: int, _frame: object) -> None:
        self.happened = True
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    """During a run, SIGTERM (of CI systems) and SIGHUP (of a closed terminal) count as Ctrl-C.

    Ignored signals stay ignored: SIGINT in a script's `&` and some CI runners, SIGHUP under nohup. SIGTERM always
    interrupts.
    """
    interrupt = _Interrupt()
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def new_folder(runs_dir: Path, name: str) -> Path:
    """Makes a folder for a recording or a comparison. Raises UsageError if that fails."""
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")
    recording = (runs_dir / f"{stamp}-{name}-{secrets.token_hex(2)}").absolute()
    try:
        recording.parent.mkdir(parents=True, exist_ok=True)
        recording.mkdir(mode=0o700)
    except OSError as error:
        raise UsageError(
            f"{runs_dir}: cannot write a recording here: {error.strerror}; choose another --runs"
        ) from None
    return recording


def _redact_log(log: Path, redactor: Redactor) -> None:
    """Redacts what the engine wrote to standard error: mostly tracebacks, which may quote anything."""
    if log.exists():
        new = log.with_suffix(".new")
        try:
            redactor.file(log, new)
            new.replace(log)
        except OSError:  # a full disk: its tail is in the journal, and no log is better than one with secrets
            new.unlink(missing_ok=True)
            log.unlink(missing_ok=True)


def _close(
    recording: Path,
    clock: Clock,
    info: dict[str, Any],
    code: int,
    *,
    interrupted: bool,
    redactor: Redactor | None = None,
    key: LineKey | None = None,
) -> None:
    """Writes the files that the engine did not write, because it died, never started, or failed after its `end`."""
    redactor = redactor or Redactor()
    entries = read_journal(recording / JOURNAL_NAME) if (recording / JOURNAL_NAME).exists() else []
    ends = [entry.data for entry in entries if entry.event == "end"]
    said = _tail(recording / ENGINE_LOG)
    if not ends and said.startswith(REFUSED):
        shutil.rmtree(recording)  # nothing was touched, and nothing was recorded
        forget_open(recording.name)
        raise InterlockError(redactor.text(said.removeprefix(REFUSED)))
    if not ends and said.startswith(_NO_SANDBOX):
        shutil.rmtree(recording)  # nothing was recorded
        raise MachineError(f"{said}; `hashidrill doctor` shows what is missing and the command that installs it")
    end = dict(ends[-1]) if ends else {"outcome": "interrupted" if interrupted else "crashed"}
    if not ends:
        end["error"] = f"the engine exited with code {code} without an `end` event: {said}"
    elif EXIT_CODES.get(end["outcome"]) == 0 and code != 0 and not interrupted:
        error = f"the engine exited with code {code} although its journal ends as {end['outcome']!r}: {said}"
        end = {"outcome": "crashed", "error": error}
    if not ends or end != ends[-1]:
        ended_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        write_run(recording, redactor.clean({**(read_run(recording) or info), **end, "ended_at": ended_at}))
        with Journal(
            recording / JOURNAL_NAME, clock, within_s=_ENGINE_GONE_WITHIN_S, redactor=redactor, key=key
        ) as journal:
            journal.write("end", sync=True, **end)
    log = recording / ENGINE_LOG
    if log.exists() and not log.stat().st_size:
        log.unlink()


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-_LOG_TAIL:].strip() or "nothing was logged"
    except OSError:
        return "nothing was logged"


def _info(
    experiment: Experiment, recording: Path, resolved: ResolvedExperiment, found: Mapping[str, binaries.Binary]
) -> dict[str, Any]:
    variant = ["--variant", resolved.variant] if resolved.variant else []
    return {
        "id": recording.name,
        "format": FORMAT,
        "experiment": experiment.metadata.name,
        "named": library_name(resolved.path) or experiment.metadata.name,
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
            "usable_cpus": usable_cores(),
            "memory_bytes": psutil.virtual_memory().total,
            "kernel": platform.release(),
            "distribution": _distribution(),
        },
        "command": shlex.join(["hashidrill", "run", str(resolved.path), *variant]),
        **({"variant": resolved.variant} if resolved.variant else {}),
        "origin": here(),
    }


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"
