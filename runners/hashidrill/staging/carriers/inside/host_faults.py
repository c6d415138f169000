"""The kinds of faults that an agent can put on its host, one class each.

Each gets `args`, its part of the fault as JSON, and `memo`, which the agent stores in its note: `undo` works in a
fresh process, from any phase, and twice. `proof` reads back from the kernel; it never trusts a tool's exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.staging.carriers.inside import restart, slowdown
from hashidrill.staging.carriers.inside.system import RefusedError, System, parted

if TYPE_CHECKING:
    from collections.abc import Callable

_HANDLE = "6864:"
"""The handle of hashidrill's qdisc: "hd". A qdisc with another handle belongs to the host."""


class HostFault:
    """Base of all kinds."""

    proven_within_s = 3.0

    def __init__(self, args: dict[str, Any], memo: dict[str, Any], system: System) -> None:
        self.args, self.memo, self.system = args, memo, system
        self.keep: Callable[[], None] = lambda: None
        """Writes the memo into the note now."""

    def check(self) -> None:
        """Only reads. Raises RefusedError if the fault cannot work here."""
        if not self.system.is_root():
            raise RefusedError("no-root", "it needs root on this host: log in as root, or let the user run sudo -n")

    def apply(self) -> None:
        """Raises RefusedError."""
        raise NotImplementedError

    def proof(self, *, present: bool) -> tuple[bool, str]:
        """Whether it is in force (or gone), and the reading."""
        raise NotImplementedError

    def undo(self) -> None:
        """Raises RefusedError if it could not be undone."""
        raise NotImplementedError

    def change(self, to: Any) -> None:
        """Replaces the fault's effect by another. Raises RefusedError."""
        raise RefusedError("no-change", f"this fault cannot be changed to {to!r}")

    def figures(self) -> dict[str, float]:
        """The cost and effect of tracing, as measured here."""
        return {}


class Packets(HostFault):
    """Rules of nftables in a separate table: `table` and `script`."""

    def check(self) -> None:
        super().check()
        code, _, errors = self.system.run(["nft", "-c", "-f", "-"], self.args["script"])
        if code:
            raise RefusedError("nft", f"this host's nft does not accept the rules: {errors}")

    def apply(self) -> None:
        self.change(self.args["script"])

    def change(self, to: Any) -> None:
        """Runs a further nftables script for the same table. Raises RefusedError."""
        code, _, errors = self.system.run(["nft", "-f", "-"], to)
        if code:
            raise RefusedError("nft", f"nft: {errors}")

    def proof(self, *, present: bool) -> tuple[bool, str]:
        table = self.args["table"]
        code, said, errors = self.system.run(["nft", "-j", "list", "ruleset"])
        if code:
            return False, f"nft: {errors}"
        items = json.loads(said)["nftables"]
        there = any(item.get("table", {}).get("name") == table for item in items)
        rules = sum(item.get("rule", {}).get("table") == table for item in items)
        return (
            rules > 0 if present else not there
        ), f"{rules} rules in table {table}" if there else f"no table {table}"

    def undo(self) -> None:
        table = self.args["table"]
        self.change(f"add table inet {table}\ndelete table inet {table}\n")


class Netem(HostFault):
    """Delay and loss of all that leaves a device: `device`, `delay_ms`, `loss_percent`."""

    def check(self) -> None:
        super().check()
        code, _, errors = self.system.run(["unshare", "-n", "tc", "qdisc", "add", "dev", "lo", *self._netem()])
        if code:
            raise RefusedError(
                "no-netem", f"this host's kernel has no netem: {errors.splitlines()[0] if errors else ''}"
            )
        if other := [one for one in self._qdiscs() if one.get("root") and one["handle"] not in {"0:", _HANDLE}]:
            kind, handle = other[0]["kind"], other[0]["handle"]
            raise RefusedError(
                "qdisc", f"{self.args['device']} has a qdisc that hashidrill did not set: {kind} {handle}"
            )

    def _netem(self) -> list[str]:
        delay, loss = self.args.get("delay_ms", 0), self.args.get("loss_percent", 0)
        words = ["root", "handle", _HANDLE, "netem"]
        return [*words, *(["delay", f"{delay}ms"] if delay else []), *(["loss", f"{loss}%"] if loss else [])]

    def _qdiscs(self) -> list[dict[str, Any]]:
        code, said, errors = self.system.run(["tc", "-j", "qdisc", "show", "dev", self.args["device"]])
        if code:
            raise RefusedError("device", f"tc: {errors}")
        found: list[dict[str, Any]] = json.loads(said or "[]")
        return found

    def apply(self) -> None:
        code, _, errors = self.system.run(["tc", "qdisc", "replace", "dev", self.args["device"], *self._netem()])
        if code:
            raise RefusedError("netem", f"tc: {errors}")

    def proof(self, *, present: bool) -> tuple[bool, str]:
        ours = [one for one in self._qdiscs() if one["kind"] == "netem" and one["handle"] == _HANDLE]
        said = f"netem {json.dumps(ours[0].get('options', {}))}" if ours else "no netem of hashidrill's"
        return bool(ours) is present, f"{self.args['device']}: {said}"

    def undo(self) -> None:
        if self.proof(present=True)[0]:
            code, _, errors = self.system.run(["tc", "qdisc", "del", "dev", self.args["device"], "root"])
            if code:
                raise RefusedError("netem", f"tc: {errors}")


class _OnProcess(HostFault):
    """`reference` is the process, `agent` its name."""

    @property
    def reference(self) -> str:
        return str(self.args["reference"])

    def check(self) -> None:
        super().check()
        if self.system.gone(self.reference):
            raise RefusedError("process-gone", f"{self.args['agent']} (process {self.reference}) is gone")

    def _signal(self, number: int) -> None:
        if not self.system.signal(self.reference, number):
            raise RefusedError("process-gone", f"{self.args['agent']} (process {self.reference}) is gone")


class Pause(_OnProcess):
    """SIGSTOP; undone by SIGCONT."""

    def apply(self) -> None:
        self._signal(signal.SIGSTOP)

    def proof(self, *, present: bool) -> tuple[bool, str]:
        state = self.system.state(self.reference)
        return (state == "T") is present, f"process {self.reference} is {state or 'gone'}"

    def undo(self) -> None:
        self.system.signal(self.reference, signal.SIGCONT)


class Kill(_OnProcess):
    """Sends `signal` and keeps the process ended; undone by starting it again in the same way."""

    proven_within_s = 20.0

    def check(self) -> None:
        super().check()
        restart.remembered(self.system, self.reference)  # a process that cannot be started again is not ended

    def apply(self) -> None:
        self.memo["restart"] = restart.remembered(self.system, self.reference)
        self.keep()
        restart.keep_down(self.system, self.memo["restart"])
        self._signal(self.args["signal"])

    def change(self, to: Any) -> None:
        """Sends a stronger signal if the first one did not end the process. Raises RefusedError."""
        self._signal(to)

    def proof(self, *, present: bool) -> tuple[bool, str]:
        if "restart" not in self.memo:
            return not present, "it was not killed"
        found = [one for one in restart.running(self.system, self.memo["restart"]) if one]
        old = not self.system.gone(self.reference)
        return (not found and not old if present else bool(found)), f"runs as {', '.join(found) or 'nothing'}"

    def undo(self) -> None:
        if "restart" in self.memo:
            restart.come_back(self.system, self.memo["restart"])


class Disk(HostFault):
    """Slows or fails system calls of running processes with strace: `references`, `calls`, `inject`.

    `inject` is strace's expression, like `delay_enter=500000` (microseconds) or `error=EIO`. The processes continue by
    themselves when strace ends. The meter, a process of hashidrill, is traced too: its own fsync shows whether
    strace works as requested.
    """

    _meter: slowdown.Meter | None = None

    def check(self) -> None:
        super().check()
        slowdown.check(self.system, self.args["references"])

    def apply(self) -> None:
        self._meter = meter = slowdown.Meter(self.system)
        self.memo["cost"] = meter.cost(self.system)
        slowed = [*self.args["references"], meter.reference]
        self.memo["strace"] = slowdown.Strace(self.system, slowed, self.args["calls"], self.args["inject"]).reference
        self.keep()

    def proof(self, *, present: bool) -> tuple[bool, str]:
        strace = self.memo.get("strace", "")
        tracer = parted(strace)[0]
        runs = bool(strace) and not self.system.gone(strace)
        by = {one: self.system.tracers(parted(one)[0]) for one in self.args["references"]}
        said = f"strace {strace or 'never started'} {'runs' if runs else 'is gone'}; " + ", ".join(
            f"{one} traced by {sorted(tracers)}" for one, tracers in by.items()
        )
        took_s, error = self._meter.asked("fsync") if self._meter is not None else (0.0, "")
        said += f"; an fsync of the meter took {took_s * 1000:.1f} ms{error and ' and failed with ' + error}"
        injected = slowdown.as_injected(self.args["inject"], took_s, error)
        self.memo.setdefault("cost", {})["fsync_ms"] = round(took_s * 1000, 2)
        if present:
            return runs and injected and all(tracers == {tracer} for tracers in by.values()), said
        stopped = [one for one in by if self.system.state(one) in {"t", "T"}]
        free = not any(tracer and tracer in tracers for tracers in by.values())
        return not runs and free and not stopped and not injected, said + (f"; stopped: {stopped}" if stopped else "")

    def undo(self) -> None:
        """The meter stays until the agent ends: it shows that system calls are no longer slow."""
        ended(self.system, self.memo.get("strace", ""))

    def figures(self) -> dict[str, float]:
        return dict(self.memo.get("cost", {}))


class Cpu(HostFault):
    """All `references` together get `cores` of CPU. A burner process is among them, and its share is measured."""

    _burner: slowdown.Burner | None = None

    def check(self) -> None:
        super().check()
        for one in self.args["references"]:
            if self.system.gone(one):
                raise RefusedError("process-gone", f"process {one} is gone")

    def apply(self) -> None:
        self._burner = slowdown.Burner(self.system)
        self.memo["all"] = [*self.args["references"], self._burner.reference]
        self.keep()
        self.memo["throttler"] = slowdown.throttler(self.system, self.memo["all"], self.args["cores"])
        self.keep()

    def proof(self, *, present: bool) -> tuple[bool, str]:
        throttler, most = self.memo.get("throttler", ""), slowdown.at_most(self.args["cores"])
        runs = bool(throttler) and not self.system.gone(throttler)
        stopped = [one for one in self.args["references"] if self.system.state(one) == "T"]
        if not present:
            return not runs and not stopped, f"throttler {throttler or 'none'}, stopped: {stopped or 'none'}"
        cores = self._burner.cores(int(most) + 2) if self._burner is not None else 0.0
        return runs and 0 < cores <= most, f"throttler {throttler}; hashidrill's busy loop got {cores:.2f} cores"

    def undo(self) -> None:
        ended(self.system, self.memo.get("throttler", ""))
        slowdown.continued(self.system, self.memo.get("all", []))


class Settings(_OnProcess):
    """Adds `settings` in one more file that the agent reads, `by` a reload or a restart; its program `check`s them
    first.

    Undone by removing the file and, if the agent may have read it, making the agent read its files again.
    """

    proven_within_s = 40.0

    def check(self) -> None:
        super().check()
        pid = parted(self.reference)[0]
        restart.remembered(self.system, self.reference)  # a process that cannot be started again is not ended
        path = restart.settings_file(self.system, pid)
        if restart.added_settings(path):
            raise RefusedError("left-over", f"{path} exists already, and no note says whose it is; remove it")

    def apply(self) -> None:
        pid = parted(self.reference)[0]
        self.memo["restart"] = restart.remembered(self.system, self.reference)
        self.memo["path"] = str(restart.settings_file(self.system, pid))
        self.memo["owner"] = restart.owner_of(self.system, pid)
        self.keep()
        self._put(self.args["settings"], self.reference)

    def change(self, to: Any) -> None:
        """Replaces the settings. Raises RefusedError."""
        self._put(dict(to), "".join(self._running()[:1]))

    def _put(self, said: dict[str, Any], reference: str) -> None:
        owner = (int(self.memo["owner"][0]), int(self.memo["owner"][1]))
        restart.write_settings(self._path, said, owner)
        restart.check_settings(self.system, parted(reference)[0], self.args["check"], owner)
        self.memo["read"] = True
        self.keep()
        self._read_again(reference)

    def _read_again(self, reference: str) -> None:
        if self.args["by"] == "reload":
            restart.read_again(self.system, self.memo["restart"], reference)
        else:
            restart.restarted(self.system, self.memo["restart"], reference)

    @property
    def _path(self) -> Path:
        return Path(self.memo["path"])

    def _running(self) -> list[str]:
        return [one for one in restart.running(self.system, self.memo["restart"]) if one]

    def proof(self, *, present: bool) -> tuple[bool, str]:
        if "path" not in self.memo:
            return not present, "nothing was written"
        found, there = self._running(), self._path.exists()
        said = f"{self._path} is {'there' if there else 'not there'}; runs as {', '.join(found) or 'nothing'}"
        new = self.args["by"] == "reload" or found != [self.reference]
        if present:
            return there and bool(found) and new, said
        return not there and bool(found) and found != [self.memo.get("ended")], said

    def undo(self) -> None:
        """Removes the file. A process that may have read it reads its files again, once."""
        if "path" not in self.memo:
            return
        there = self._path.exists()
        restart.remove_settings(self._path)
        found = self._running()
        if not found:
            restart.come_back(self.system, self.memo["restart"])
        elif self.args["by"] == "reload" or found == [self.reference]:
            if self.memo.get("read"):
                restart.read_again(self.system, self.memo["restart"], found[0])
        elif there or "ended" not in self.memo:
            self.memo["ended"] = found[0]
            restart.restarted(self.system, self.memo["restart"], found[0])


def ended(system: System, reference: str) -> None:
    """Ends one of hashidrill's processes, and reaps it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for left in range(40, 0, -1):
            if reference:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(parted(reference)[0], os.WNOHANG)
            if system.gone(reference):
                return
            if left == 40:
                system.signal(reference, number)
            system.sleep(0.05)


KINDS: dict[str, type[HostFault]] = {
    "packets": Packets,
    "netem": Netem,
    "pause": Pause,
    "kill": Kill,
    "disk": Disk,
    "cpu": Cpu,
    "settings": Settings,
}
