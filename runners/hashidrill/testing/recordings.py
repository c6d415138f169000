"""Builds real recordings from plain calls, on a virtual clock: for tests of hypotheses and of reports.

    built = (
        RecordingBuilder(tmp_path / "run")
        .fault("disk.latency", "consul-1", at=10, until=30)
        .load("kv-writes", rate=50, start=4, end=50, latency=lambda t: 3.0 if 10 <= t < 30 else 0.01)
        .healthy()
        .final_reads("kv-writes")
        .build()
    )

All times are seconds since the run began. Without calls of `phase`, the run starts at 0, is ready at 2, waits for its
steady state from 4, has its method from 10 to 30, recovers until 50, and ends at 52.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from hashidrill.core.experiment.model import ATTEMPTS
from hashidrill.core.protocols.abc import Detail, Operation, Sample
from hashidrill.core.protocols.service import LEADS
from hashidrill.core.recording.journal import Entry, to_line
from hashidrill.core.recording.reader import EXPERIMENT_NAME, Recording
from hashidrill.core.recording.seal import seal
from hashidrill.core.recording.writer import FORMAT, RESOLVED_NAME, RecordingWriter
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.core.util.nested import merge

_PHASES = {"start": 0.0, "ready": 2.0, "steady": 4.0, "method": 10.0, "recovery": 30.0, "quiesce": 50.0}
_EPOCH = 1_760_000_000.0
"""Wall time of the virtual clock's zero: fixed, so that the same calls give the same files."""

OverTime = float | Callable[[float], float]


def _ns(at_s: float) -> int:
    return round(at_s * 1e9)


_SELDOM = 0.9
"""The rate of a load of single operations: a gap of six seconds counts as a gap."""


class RecordingBuilder:
    """Collects the content of a recording; `build()` writes and opens the recording.

    The experiment requests the lowest rate of each load's calls.
    """

    def __init__(
        self, path: Path, *, name: str = "planted", servers: int = 3, clients: int = 1, tags: Sequence[str] = ()
    ) -> None:
        self.path = path
        self.name = name
        self._tags = list(tags)
        self._servers, self._clients = servers, clients
        self._events: list[tuple[float, str, dict[str, Any]]] = []
        self._phases: dict[str, float] = {}
        self._operations: list[Operation] = []
        self._rates: dict[str, float] = {}
        self._samples: list[tuple[int, Sample]] = []
        self._finals: dict[str, dict[str, str | None]] = {}
        self._services: dict[str, dict[str, Any]] = {}
        self._probes: dict[str, dict[str, Any]] = {}
        self._method: list[dict[str, Any]] = []
        self._expect: list[dict[str, Any]] = []
        self._guardrails: list[str] = []
        self._end: tuple[str, str, float | None] | None = ("complete", "", None)
        self._run: dict[str, Any] = {}
        self._variant: tuple[str, dict[str, Any]] | None = None

    @property
    def hosts(self) -> list[str]:
        return [f"consul-{n}" for n in range(1, self._servers + 1)]

    def phase(self, phase: str, *, at: float) -> Self:
        """Begins a phase; one such call replaces all default phases."""
        self._phases[phase] = at
        return self

    def event(self, event: str, *, at: float, **data: Any) -> Self:
        """Any journal entry."""
        self._events.append((at, event, data))
        return self

    def fault(
        self,
        kind: str,
        host: str = "consul-1",
        *,
        at: float,
        until: float | None,
        applied: float | None = None,
        proven: bool = True,
        gone: bool = True,
        failed: str = "",
        faded: bool = False,
        moved: bool = False,
        params: Mapping[str, Any] | None = None,
        step: int | None = None,
        name: str | None = None,
        agent: str = "consul",
    ) -> Self:
        """One fault on one host. `until=None`: never reverted; `failed`: apply raised this.

        `applied`: when apply returned, if that took a while. `faded`: it was no longer in force just before its revert.
        `moved`: it was given up, because the role had moved.

        It gets its own step in the method, with `name` if given, unless `step` is the step that it belongs to.
        """
        fault_id = f"{kind}-{sum(event == 'fault.intent' for _, event, _ in self._events)}"
        if step is None:
            step = len(self._method)
            times = {"at": f"{max(at - 10, 0):g}s", "for": f"{(until or at + 20) - at:g}s"}
            named = {"name": name} if name else {}
            self._method.append({**named, "fault": kind, "on": f"host:{host}", **times})
        target = {"host": host, "address": self._address(host), "agent": agent}
        self.event(
            "fault.intent",
            at=at,
            fault_id=fault_id,
            kind=kind,
            step=step,
            target=target,
            params=dict(params or {}),
            undo={},
        )
        if failed:
            return self.event("fault.failed", at=at, fault_id=fault_id, error=failed)
        at = at if applied is None else applied
        self.event("fault.applied", at=at, fault_id=fault_id)
        proof = _evidence(proven, "in force", "as asked for" if proven else "nothing of it")
        if proven or not moved:
            self.event("fault.proven" if proven else "fault.unproven", at=at, fault_id=fault_id, evidence=proof)
        if until is not None and proven:
            again = _evidence(not faded, "in force", "nothing of it" if faded else "as asked for")
            self.event("fault.faded" if faded else "fault.still", at=until, fault_id=fault_id, evidence=again)
        if until is not None:
            self.event("fault.reverted", at=until, fault_id=fault_id)
            last = _evidence(gone, "gone", "nothing of it" if gone else "still there")
            self.event("fault.gone" if gone else "fault.stuck", at=until, fault_id=fault_id, evidence=last)
        return self.event("fault.moved", at=until or at, fault_id=fault_id, on="consul:leader") if moved else self

    def mark(self, name: str, *, at: float, until: float | None) -> Self:
        """A mark, with its own step in the method. `until=None`: the run ended before the mark did."""
        step = len(self._method)
        self._method.append({"mark": name, "at": f"{max(at - 10, 0):g}s", "for": f"{(until or at + 20) - at:g}s"})
        self.event("mark.begin", at=at, mark=name, step=step)
        return self if until is None else self.event("mark.end", at=until, mark=name, step=step)

    def load(
        self,
        load: str,
        *,
        rate: float = 50,
        start: float = 4,
        end: float = 50,
        latency: OverTime = 0.01,
        outcome: str | Callable[[float], str] = "ok",
        lag: OverTime = 0.0,
        keys: int | None = None,
    ) -> Self:
        """A load with `rate` operations per second; latency (from the intended start), lag and outcome may vary.

        Each operation has its own key; with `keys`, the operations rotate over that many keys.
        """
        self._rates[load] = min(rate, self._rates.get(load, rate))
        for index in range(round((end - start) * rate)):
            at = start + index / rate
            what = outcome(at) if callable(outcome) else outcome
            late = lag(at) if callable(lag) else lag
            took = max(latency(at) if callable(latency) else latency, late)
            key = f"{load}/{index % keys if keys else index}"
            self._operations.append(
                Operation(
                    load,
                    _ns(at),
                    _ns(at + late),
                    _ns(at + took),
                    what,
                    key,
                    f"{load}-{index}",
                    200 if what == "ok" else 500,
                    "" if what == "ok" else "no leader",
                )
            )
        return self

    def service(self, client: str, **spec: Any) -> Self:
        """Makes that load a client that runs all the time and reports its operations."""
        self._services[client] = {"command": ["true"], "service": True, **spec}
        return self

    def probe(self, name: str, kind: str = "http", **params: Any) -> Self:
        """A probe that the experiment declares; `series` and `sample` plant its looks, as `NAME.SIGNAL`."""
        self._probes[name] = {"kind": kind, **params}
        return self

    def write(
        self,
        load: str,
        key: str,
        value: str,
        *,
        start: float,
        end: float,
        outcome: str = "ok",
        error: str = "",
        reason: str = "",
        detail: Detail | None = None,
    ) -> Self:
        """One operation."""
        status = 200 if outcome == "ok" else 0
        self._operations.append(
            Operation(
                load, _ns(start), _ns(start), _ns(end), outcome, key, value, status, error, reason=reason, detail=detail
            )
        )
        return self

    def final_reads(self, load: str, values: Mapping[str, str | None] | None = None) -> Self:
        """The keys' values at the end: the acknowledged values, as without any loss, with `values` in their place."""
        honest = {
            op.key: op.value
            for op in sorted(self._operations, key=lambda op: op.end_ns)
            if op.load == load and op.outcome == "ok"
        }
        self._finals[load] = {**honest, **(values or {})}
        return self

    def only_final_reads(self, load: str, values: Mapping[str, str | None]) -> Self:
        """Sets the final content of the keys, and adds no operations."""
        self._finals[load] = dict(values)
        return self

    def sample(
        self, signal: str, value: float | None, *, at: float, host: str = "", text: str = "", ok: bool = True
    ) -> Self:
        self._samples.append((_ns(at), Sample(signal, value, text, host, ok)))
        return self

    def series(
        self, signal: str, value: OverTime, *, start: float = 4, end: float = 50, every: float = 0.5, host: str = ""
    ) -> Self:
        """Samples of one signal at even intervals."""
        for at in _every(start, end, every):
            self.sample(signal, value(at) if callable(value) else value, at=at, host=host)
        return self

    def leader(
        self,
        leader: str | Callable[[float], str] = "consul-1",
        *,
        start: float = 4,
        end: float = 50,
        every: float = 0.5,
        signal: str = "raft.leader",
        term: Callable[[float], float | None] | None = None,
    ) -> Self:
        """The majority's view of the leader, or of another role's holder; an empty name means that there is none.

        Each sample of the leader has its term, if `term` returns one. Without `term`, the term grows by one for each
        new leader, and for a leader that comes back after more than one sample without it.
        """
        of_term = {"raft.leader": "raft.term", "vault.active": "vault.active_since", "nomad.leader": "nomad.raft_term"}
        last, gone, own = "", 0, 1.0
        for at in _every(start, end, every):
            host = leader(at) if callable(leader) else leader
            self.sample(signal, float(bool(host)), at=at, text=host, ok=bool(host))
            own += bool(host) and (host != last or gone > 1)
            last, gone = host or last, 0 if host else gone + 1
            if host and (said := term(at) if term else own) is not None:
                self.sample(of_term[signal], said, at=at, host=host, text=LEADS)
        return self

    def healthy(
        self,
        *,
        autopilot: OverTime = 1.0,
        alive: OverTime | None = None,
        last_contact: OverTime = 0.02,
        leader: str | Callable[[float], str] = "consul-1",
        start: float = 4,
        end: float = 50,
    ) -> Self:
        """Every health signal, green by default."""
        members = float(self._servers + self._clients)
        self.series("consul.autopilot_healthy", autopilot, start=start, end=end)
        self.series("consul.members_alive", members if alive is None else alive, start=start, end=end)
        self.series(
            "consul.members_failed",
            lambda at: members - (alive(at) if callable(alive) else alive or members),
            start=start,
            end=end,
        )
        self.series("raft.last_contact", last_contact, start=start, end=end, host="consul-1")
        return self.leader(leader, start=start, end=end)

    def expect(self, hypothesis: str, *, known_issue: str | dict[str, Any] | None = None, **params: Any) -> Self:
        """One expectation of the experiment; parameters as in YAML."""
        self._expect.append({hypothesis: params, **({"known_issue": known_issue} if known_issue else {})})
        return self

    def guardrail(self, condition: str, *, tripped_at: float | None = None, evidence: str = "") -> Self:
        self._guardrails.append(condition)
        if tripped_at is not None:
            self.event("guardrail", at=tripped_at, condition=condition, evidence=evidence)
        return self

    def end(self, outcome: str | None, *, error: str = "", at: float | None = None) -> Self:
        """How the run ended; None: it was killed, and recorded no end."""
        self._end = None if outcome is None else (outcome, error, at)
        return self

    def run_info(self, **info: Any) -> Self:
        """Further entries of run.json."""
        self._run.update(info)
        return self

    def variant(self, name: str, **overlay: Any) -> Self:
        """A run of this variant: `overlay` is laid over the experiment's sections."""
        self._variant = name, overlay
        return self

    def experiment(self) -> dict[str, Any]:
        """The document that experiment.yaml holds."""
        return merge(self._plain_experiment(), self._variant[1]) if self._variant else self._plain_experiment()

    def _plain_experiment(self) -> dict[str, Any]:
        measured = dict.fromkeys([op.load for op in self._operations]) or {"kv-writes": None}
        # a client's attempts are not a separate load
        loads = [load for load in measured if load not in self._services and not load.endswith(ATTEMPTS)]
        silent = {load.removesuffix(ATTEMPTS) for load in measured if load.endswith(ATTEMPTS)} - {*loads}
        first = next(iter(measured))
        found = {**{name: {"command": ["true"], "service": True} for name in sorted(silent)}, **self._services}
        clients = {"clients": found} if found else {}
        return {
            "apiVersion": "hashidrill/v1",
            "kind": "Experiment",
            "metadata": {"name": self.name, "title": f"The {self.name} recording", "why": "A test", "tags": self._tags},
            "datacenter": {"consul": {"servers": self._servers, "clients": self._clients}},
            "load": {
                load: {"kind": "consul.kv.write", "rate": f"{self._rates.get(load, _SELDOM):g}/s"} for load in loads
            },
            **clients,
            **({"probes": self._probes} if self._probes else {}),
            "steady_state": {"for": "5s", "require": [f"{first}.errors < 1%"]},
            "method": self._method or [{"fault": "noop", "on": "consul:leader", "for": "20s"}],
            "guardrails": self._guardrails,
            "recovery": {"for": "20s"},
            "expect": self._expect or [{"no_acknowledged_write_lost": {"load": first}}],
        }

    def build(self) -> Recording:
        """Writes the recording and opens it."""
        writer = RecordingWriter(self.path)
        for operation in self._operations:
            writer.operation(operation)
        for t_ns, sample in self._samples:
            writer.sample(t_ns, sample)
        for load, values in self._finals.items():
            writer.final_reads(load, values)
        writer.close()
        # JSON is YAML, and needs no library to write
        (self.path / EXPERIMENT_NAME).write_text(json.dumps(self.experiment(), indent=2) + "\n")
        (self.path / RESOLVED_NAME).write_text(json.dumps(self._resolved(), indent=2) + "\n")
        writer.write_run(self._run_info())
        self._write_journal(dict(writer.written))
        return Recording(self.path)

    def _resolved(self) -> dict[str, Any]:
        found = resolved_data(self.experiment())
        if self._variant:
            name, overlay = self._variant
            found["provenance"]["variant"] = {"name": name, "overlay": overlay}
        return found

    def _write_journal(self, written: dict[str, int]) -> None:
        began = {"id": self.path.name, "format": FORMAT, "experiment": self.name, "version": "test", "pid": 1}
        events = [(0.0, "run", began)]
        phases = self._phases or _PHASES
        events += [(at, "phase", {"phase": phase}) for phase, at in phases.items()]
        events += self._events
        journal = self.path / JOURNAL_NAME
        journal.write_text("".join(_line(*event) for event in sorted(events, key=_when)))
        if self._end is not None:
            outcome, error, at = self._end
            last = max(at for at, _, _ in events) + 2 if at is None else at
            end = {"outcome": outcome, "error": error, "written": written, "sealed": seal(self.path)}
            journal.write_text(journal.read_text() + _line(last, "end", end))

    def _run_info(self) -> dict[str, Any]:
        names = [*self.hosts, *(f"client-{n}" for n in range(1, self._clients + 1))]
        return {
            "id": self.path.name,
            "experiment": self.name,
            "title": f"The {self.name} recording",
            "started_at": "2025-10-09T08:53:20+00:00",
            "ended_at": "2025-10-09T08:54:12+00:00",
            "outcome": self._end[0] if self._end else None,
            "error": self._end[1] if self._end else None,
            "format": FORMAT,
            "hashidrill": "0.1.0",
            "versions": {"consul": "1.22.2", "python": "3.12.0", "kernel": "6.1"},
            "binaries": {"consul": {"path": "/usr/bin/consul", "sha256": "0" * 64, "source": "PATH"}},
            "machine": {"cpus": 2, "memory_bytes": 8_000_000_000, "kernel": "6.1", "distribution": "Debian 12"},
            "config": {host: {"server": host.startswith("consul")} for host in names},
            "hosts": [
                {"name": host, "address": self._address(host), "role": "server" if host in self.hosts else "client"}
                for host in names
            ],
            "command": f"hashidrill run {self.name}.yaml",
            "generator": {"cpu_share_max": 0.2, "lag_p99_s": 0.001},
            **self._run,
        }

    @staticmethod
    def _address(host: str) -> str:
        role, _, number = host.partition("-")
        return f"10.73.0.{(30 if role == 'client' else 10) + int(number)}"


def _line(at: float, event: str, data: dict[str, Any]) -> str:
    return to_line(Entry(_ns(at), _EPOCH + at, event, data))


def _when(event: tuple[float, str, dict[str, Any]]) -> float:
    return event[0]


def _every(start: float, end: float, every: float) -> list[float]:
    return [start + index * every for index in range(round((end - start) / every))]


def resolved_data(document: Mapping[str, Any]) -> dict[str, Any]:
    """The content of resolved.json. The kinds are not looked up: a test may plant unknown kinds."""
    parameters = {
        "loads": {name: _beside(load, "kind", "profile") for name, load in document.get("load", {}).items()},
        "steps": [step.get("with", {}) for step in document["method"]],
        "expectations": [next(iter(_beside(each, "known_issue").values())) for each in document["expect"]],
    }
    provenance = {"path": f"{document['metadata']['name']}.yaml", "sha256": "0" * 64, "extends": {}}
    return {"experiment": dict(document), "parameters": parameters, "provenance": provenance}


def _beside(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}


def _evidence(ok: bool, asked: str, measured: str) -> dict[str, Any]:
    return {"ok": ok, "asked": asked, "measured": measured, "figures": {}}
