"""One sandbox for many runs: its hosts stay, and each run starts the agents afresh on empty folders.

With a sandbox for each run, importing the engine and making hosts and network would take seconds. `ReusedLab.start` is
a launcher for `hashidrill.lab.runs.launch.Engine`. If a run leaves processes, packet rules, or a fault that was not
proven gone, its sandbox ends, and the next run gets a new sandbox.

Inside the sandbox, the same module reads one specification per line and runs it (hashidrill.lab.runs.in_sandbox). After
the run's events it writes one line, `{"done": ...}`.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import anyio

from hashidrill.core.errors import DatacenterError, HashidrillError
from hashidrill.core.experiment.model import services_of
from hashidrill.core.util.processes import ahead
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.safe_json import parse
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.lab.runs.engine_process import exit_of
from hashidrill.lab.runs.in_sandbox import run_given
from hashidrill.lab.sandbox.sandbox import Sandbox, sandbox

MODULE = "hashidrill.lab.runs.reused_lab"
_DONE = b'{"done"'
_ENDED_WITHIN_S = 10.0


class _Run:
    """One run in the sandbox. `launch` uses it like a process whose output ends with the run."""

    def __init__(self, box: Sandbox) -> None:
        self.root = box.root
        self.output = self.process = self
        self.returncode: int | None = None
        self.left = "the sandbox ended"
        """What the run left behind; "" for nothing."""
        self.said = ""
        self._box = box

    def readline(self) -> bytes:
        line = self._box.output.readline() if self.returncode is None else b""
        if not line.startswith(_DONE):
            if not line and self.returncode is None:
                self.returncode = self._box.process.wait()
            return line
        done = parse(line)
        self.left, self.said = done["left"], done["said"]
        self.returncode = done["done"]
        return b""

    def wait(self) -> int:
        return 0 if self.returncode is None else self.returncode

    def send_signal(self, number: int) -> None:
        self._box.process.send_signal(number)


class ReusedLab:
    """A sandbox that is started when it is needed. `log` gets its standard error."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._open: contextlib.ExitStack | None = None
        self._box: Sandbox | None = None
        self._given = -1
        self.started = 0
        """How many sandboxes were needed."""

    @contextlib.contextmanager
    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, given: Mapping[str, Any]
    ) -> Iterator[Sandbox]:
        """Runs the specification `given`; called like `hashidrill.lab.sandbox.sandbox.sandbox`. Raises MachineError."""
        if self._box is None:
            self._begin(command, environment)
        assert self._box is not None
        run = _Run(self._box)
        try:
            os.write(self._given, json.dumps(given).encode() + b"\n")
            yield cast("Sandbox", run)
        except BrokenPipeError:
            raise DatacenterError(f"the sandbox ended before its next run; its log is {self._log}") from None
        finally:
            if run.returncode != 0 and self._log.exists():
                log.write_text(run.said) if run.said else shutil.copyfile(self._log, log)
            if run.left:
                self.close()

    def _begin(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        read_end, write_end = os.pipe()
        self._open, self._given = contextlib.ExitStack(), write_end
        self._open.callback(os.close, write_end)
        try:
            self._box = self._open.enter_context(sandbox(command, environment, self._log, given=read_end))
            self.started += 1
        except BaseException:
            self.close()
            raise
        finally:
            os.close(read_end)

    def close(self) -> None:
        """Ends the sandbox, if there is one."""
        opened, self._open, self._box = self._open, None, None
        if opened is not None:
            opened.close()


class _Reused(LocalDatacenter):
    """A datacenter whose hosts stay between runs."""

    async def start(self) -> None:
        """Starts hosts and agents; only the agents if the hosts exist. Raises DatacenterError."""
        if self.hosts:
            await self._start_services()
        else:
            await super().start()

    def _remember(self) -> None:
        super()._remember()
        self.usual = _processes()
        """The processes of a datacenter without agents."""

    async def empty(self) -> str:
        """Ends all agents and empties their folders. Returns what else is left; "" if nothing is."""
        for host in self.hosts.values():
            for agent in [*host.plans, "toxiproxy"]:
                process = await host.agent_process(agent)
                if process is not None:
                    await host.signal(process.reference, signal.SIGKILL)

        async def ended() -> tuple[bool | None, str]:
            left = _processes() - self.usual
            return (None if left else True), f"processes {', '.join(map(str, sorted(left)))}"

        await wait_until("all processes of the run to end", ended, within_s=_ENDED_WITHIN_S, gap_s=0.02)
        for host in self.hosts.values():
            if tables := await host.packet_tables():
                return f"{host.name}: packet rules {', '.join(tables)}"
            for path in (*host.data.iterdir(), *host.logs.iterdir()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            host.plans.clear()
            host.armed.clear()
        shutil.rmtree(self.root / "services", ignore_errors=True)
        self.services = services_of(self.spec, spares=self.spare_servers)
        for kept in (self.configs, self.reported, self._placed_agents, self._turns):
            kept.clear()
        return ""


def _processes() -> frozenset[int]:
    """The pids of this sandbox, which has its own PID namespace, without zombies."""
    found = set()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):
                if (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.add(int(path.name))
    return frozenset(found)


def main(source: IO[bytes], root: Path) -> None:
    """Runs each specification in `source`, until `source` ends or a run leaves something behind."""
    lab: _Reused | None = None

    def datacenter(*args: Any, **options: Any) -> _Reused:
        nonlocal lab
        if lab is None:
            lab = _Reused(*args, **options)
        else:
            lab.artifacts, lab.redactor = options["artifacts"], cast("Redactor", options["redactor"])
        return lab

    for line in source:
        code = exit_of(partial(run_given, parse(line), root, datacenter=datacenter))
        try:
            left = "the hosts did not start" if lab is None or not lab.hosts else anyio.run(lab.empty)
        except (HashidrillError, OSError) as error:
            left = str(error)
        number, said = (code, "") if isinstance(code, int) else (1, code)
        sys.stdout.write(json.dumps({"done": number, "said": said, "left": left}) + "\n")
        sys.stdout.flush()
        if left:
            return


if __name__ == "__main__":
    ahead()
    main(sys.stdin.buffer, Path(sys.argv[1]))
