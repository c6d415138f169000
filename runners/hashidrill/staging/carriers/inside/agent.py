"""Keeps ONE fault in force on its host while its lease is renewed, and reverts it afterwards.

Its specification (`program(spec)`, as JSON):

    {"id": "0-disk", "kind": "disk", "args": {...}, "lease_s": 15, "deadline_s": 120, "renewals": "lines" | "signal",
     "folder": "/run/hashidrill", "who": "ana@desk", "run": "20261123-...", "armed": "...", "waits": false,
     "handed": false}

`armed` is the signed arming of the run, or "": a host may require it (hashidrill.staging.carriers.inside.armed). A
revert needs none.

A renewal is a line `{"renew": 1}` on standard input, or SIGUSR1; with `"renewals": "signal"` standard input is not read
and its end means nothing. With `waits` it says `ready` and does nothing before the first renewal, so a program started
too late, or twice, puts nothing in force. With `handed`, the caller hands over the `args` in the meantime
(`notes.hand_over`). Further lines: `{"prove": true}`, `{"revert": 1}`, `{"change": SCRIPT}` (packets alone).

It reverts when it is told to, when the last renewal is older than the lease, at the deadline, at SIGTERM, SIGINT and
SIGHUP, when standard input ends, and when its guardian dies. The guardian is its child: it reverts when the agent
dies, or hangs for longer than the lease. The note FOLDER/ID.json survives agent and guardian: the next agent with
this id reverts what the note says. So does `{"undo": true}`, unless it names another `run` than the note. A restart
of the host removes the note and the fault alike.

It reports in JSON lines: `refused` (nothing was applied; exit code 2), `applied` with proof and cost, `proof`,
`failed` (not proven: reverted; exit code 3), `reverted` with reason, actor and proof (exit code 0), `stuck` (exit
code 4).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.staging.carriers.inside import armed, notes
from hashidrill.staging.carriers.inside.host_faults import KINDS, HostFault
from hashidrill.staging.carriers.inside.notes import Note, another, others_of, whose
from hashidrill.staging.carriers.inside.system import RefusedError, System, now_s

if TYPE_CHECKING:
    from collections.abc import Callable

_GONE_WITHIN_S, _GAP_S = 10.0, 0.05
_REVERTS_WITHIN_S = 40.0
_GRACE_S = 2.0
"""How much longer the guardian waits than its agent."""
_TRIES = 3
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CGROUPS = Path("/sys/fs/cgroup")
_LEFT = ("", "unified", "freezer")
"""The hierarchies through which all processes of a cgroup can be ended: version 2, alone or with 1, and version 1."""


class Lease:
    """When the lease ends, and why. Times are seconds of any clock that only goes forward."""

    def __init__(self, lease_s: float, deadline_s: float, now: float) -> None:
        self._lease_s, self._ends = lease_s, now + deadline_s
        self._renewed = now

    def renew(self, now: float) -> None:
        """Extends the lease, but never past the deadline, and never once it is over."""
        if not self.over(now):
            self._renewed = now

    def over(self, now: float, grace_s: float = 0.0) -> str:
        """`lease` or `deadline`, which ended it; "" while it lasts."""
        if now >= self._ends + grace_s:
            return "deadline"
        return "lease" if now >= self._renewed + self._lease_s + grace_s else ""

    def left_s(self, now: float, grace_s: float = 0.0) -> float:
        """Seconds until it ends."""
        return max(0.0, min(self._ends, self._renewed + self._lease_s) + grace_s - now)


def say(event: str, **more: Any) -> None:
    """Prints the event, even if the reader may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps({"event": event, **more}).encode() + b"\n")


def until(wanted: Callable[[], tuple[bool, str]], within_s: float, system: System) -> tuple[bool, str]:
    """Repeats until the condition holds, or for `within_s`."""
    ends = now_s() + within_s
    while True:
        ok, said = wanted()
        if ok or now_s() >= ends:
            return ok, said
        system.sleep(_GAP_S)


def reverted(fault: HostFault, note: Note, why: str, by: str, **more: Any) -> int:
    """Reverts, proves it, and reports it. Returns the exit code."""
    said = ""
    for _ in range(_TRIES):
        try:
            fault.undo()
            gone, said = until(lambda: fault.proof(present=False), _GONE_WITHIN_S, fault.system)
        except Exception as error:  # noqa: BLE001 - a fault that stays is worse than any error: try again, then say it
            gone, said = False, f"{type(error).__name__}: {error}"
        if gone:
            note.forget()
            say("reverted", why=why, by=by, proof=said, **more)
            return 0
    say("stuck", why=why, by=by, proof=said, note=str(note.path))
    return 4


class Agent:
    """One fault, from its check to its end."""

    def __init__(self, spec: dict[str, Any], system: System) -> None:
        self.spec, self.system = spec, system
        self.note = Note(Path(spec["folder"]), spec["id"])
        self.memo: dict[str, Any] = {}
        self.fault = KINDS[spec["kind"]](spec["args"], self.memo, system)
        self.fault.keep = self._keep

    def _keep(self) -> None:
        agent = self.system.reference(os.getpid())
        self.note.write({"spec": self.spec, "memo": self.memo, "agent": agent})

    def run(self) -> int:
        """Returns the exit code."""
        woken, wake = os.pipe()
        for fd in (woken, wake):
            os.set_blocking(fd, False)
        stops: list[str] = []
        for number in _STOPS:
            signal.signal(number, lambda number, _: stops.append(signal.Signals(number).name))
        renewals: list[int] = []
        signal.signal(signal.SIGUSR1, lambda *_: renewals.append(1))
        signal.set_wakeup_fd(wake)
        try:
            if self.spec.get("waits"):
                self._wait(woken, stops, renewals)
            if self.spec.get("handed"):
                self.fault.args = self.spec["args"] = notes.take_arguments()
            armed.check(str(self.spec.get("armed", "")), time.time(), self.system.armed_by)
            self._take_over()
            self.fault.check()
            self._keep()
        except RefusedError as error:
            if self.spec.get("handed"):
                with contextlib.suppress(RefusedError):
                    notes.arguments_note().forget()
            say("refused", name=error.name, why=str(error))
            return 2
        guardian = Guardian(self)
        lease = Lease(self.spec["lease_s"], self.spec["deadline_s"], now_s())
        code, why = 0, ""
        try:
            self.fault.apply()
            ok, proof = until(lambda: self.fault.proof(present=True), self.fault.proven_within_s, self.system)
            if not ok:
                raise RefusedError("unproven", f"it was applied, but is not in force: {proof}")  # noqa: TRY301 - as any other
            say("applied", proof=proof, figures=self.fault.figures(), guardian=guardian.said)
        except Exception as error:  # noqa: BLE001 - whatever it is, what may be in force is reverted, and it is said
            say("failed", name=getattr(error, "name", "crashed"), why=str(error))
            code, why = 3, "it could not be applied"
        why = why or self._hold(lease, guardian, woken, stops, renewals)
        guardian.hear(b"v")
        done = reverted(self.fault, self.note, why, "agent")
        if not done:
            guardian.dismiss()
        return done or code

    def _wait(self, woken: int, stops: list[str], renewals: list[int]) -> None:
        """Waits for the first renewal. Raises RefusedError if the fault is never requested, or no longer."""
        say("ready")
        lease = Lease(self.spec["lease_s"], self.spec["deadline_s"], now_s())
        while not renewals:
            if why := (stops and stops[0]) or lease.over(now_s()):
                raise RefusedError("unasked", f"the runner did not ask for it: {why}; nothing was applied")
            if select.select([woken], [], [], lease.left_s(now_s()))[0]:
                os.read(woken, 4096)
        renewals.clear()

    def _take_over(self) -> None:
        """Reverts what a dead agent with this id left. Raises RefusedError if one lives, or if that is impossible."""
        left = self.note.read()
        if left is None:
            return
        if not self.system.gone(left["agent"]):
            raise RefusedError("in-force", f"{self.spec['id']} is in force already, by process {left['agent']}")
        if _undo_left(left, self.note, self.system):
            raise RefusedError(
                "left-over",
                f"{self.spec['id']} is left over from before and cannot be removed; see {self.note.path}",
            )

    def _hold(self, lease: Lease, guardian: Guardian, woken: int, stops: list[str], renewals: list[int]) -> str:
        lines = self.spec["renewals"] == "lines"
        rest = b""
        while True:
            now = now_s()
            if renewals:
                renewals.clear()
                lease.renew(now)
                guardian.hear(b"r")
            if why := (stops and stops[0]) or lease.over(now):
                return str(why)
            watched = [woken, guardian.alive, *([0] if lines else [])]
            ready, _, _ = select.select(watched, [], [], lease.left_s(now))
            if guardian.alive in ready:
                return "its guardian died"
            if woken in ready:
                os.read(woken, 4096)
            if 0 in ready:
                part = os.read(0, 65536)
                if not part:
                    return "the connection ended"
                *whole, rest = (rest + part).split(b"\n")
                for line in whole:
                    if why := self._told(line, renewals):
                        return why

    def _told(self, said: bytes, renewals: list[int]) -> str:
        """Why the agent must end, or "". Any message proves that the runner is there, and renews."""
        try:
            line: dict[str, Any] = dict(json.loads(said))
        except (ValueError, TypeError):
            say("unheard", why="a line is not a JSON object")
            return ""
        renewals.append(1)
        if "revert" in line:
            return "asked to"
        if "prove" in line:
            ok, proof = self.fault.proof(present=bool(line["prove"]))
            say("proof", ok=ok, proof=proof)
        if "change" in line:
            try:
                self.fault.change(line["change"])
                say("changed")
            except RefusedError as error:
                say("unchanged", why=str(error))
        return ""


class Guardian:
    """A process, outside of the agent's session, that reverts when the agent no longer can."""

    def __init__(self, agent: Agent) -> None:
        ours, self._tell = os.pipe()
        self.alive, theirs = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            with contextlib.suppress(BaseException):
                os.close(self._tell)
                os.close(self.alive)
                signal.set_wakeup_fd(-1)
                _guard(agent, ours)
            os._exit(0)
        os.close(ours)
        os.close(theirs)
        self.said = agent.system.reference(self.pid)

    def hear(self, what: bytes) -> None:
        """`r`: renewed; `v`: the agent is reverting, and needs time; `d`: it is done."""
        with contextlib.suppress(OSError):
            os.write(self._tell, what)

    def dismiss(self) -> None:
        """Ends the guardian: everything is reverted."""
        self.hear(b"d")
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _guard(agent: Agent, told: int) -> None:
    os.setsid()
    for number in (*_STOPS, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    for name in _LEFT:
        # ending the agent's whole cgroup leaves this process
        with contextlib.suppress(OSError), (_CGROUPS / name / "cgroup.procs").open("r+") as file:
            file.write(str(os.getpid()))
    watched = agent.system.reference(os.getppid())
    lease = Lease(agent.spec["lease_s"], agent.spec["deadline_s"], now_s())
    why = ""
    while not why:
        ready, _, _ = select.select([told], [], [], lease.left_s(now_s(), _GRACE_S))
        said = os.read(told, 4096) if ready else b""
        if b"d" in said:
            return
        if ready and not said:
            why = "the agent died"
        if b"v" in said:
            lease = Lease(_REVERTS_WITHIN_S, _REVERTS_WITHIN_S, now_s())
        elif said:
            lease.renew(now_s())
        if over := lease.over(now_s(), _GRACE_S):
            why = why or f"the agent hangs: {over}"
    agent.system.signal(watched, signal.SIGKILL)
    left = agent.note.read()
    if left is not None:
        _undo_left(left, agent.note, agent.system, why)


def _undo_left(left: dict[str, Any], note: Note, system: System, why: str = "it was left over", **more: Any) -> int:
    spec = left["spec"]
    return reverted(KINDS[spec["kind"]](spec["args"], left["memo"], system), note, why, "guardian", **more)


def main(spec: dict[str, Any], system: System | None = None) -> None:
    """Exits with the codes in the module's docstring."""
    system = system or System()
    if not spec.get("undo"):
        sys.exit(Agent(spec, system).run())
    note = Note(Path(spec["folder"]), spec["id"])
    try:
        left = note.read()
    except RefusedError as error:
        say("refused", name=error.name, why=str(error))
        sys.exit(2)
    others = others_of(note.path.parent, str(spec.get("run", "")), system)
    if left is None:
        say("reverted", why="nothing is left", by="nobody", proof=f"there is no {note.path}", others=others)
        sys.exit(0)
    if another(str(spec.get("run", "")), left):
        say("refused", name="another-run", why=whose(note, left, system))
        sys.exit(2)
    system.signal(left["agent"], signal.SIGTERM)  # it reverts by itself while it lives
    until(lambda: (note.read() is None, ""), _GONE_WITHIN_S, system)
    left = note.read()
    if left is None:
        say("reverted", why="asked to", by="agent", proof=f"there is no {note.path} any more", others=others)
        sys.exit(0)
    sys.exit(_undo_left(left, note, system, "asked to", others=others))
