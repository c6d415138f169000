"""The operator who follows the runbook inside the sandbox: runs commands on hosts, and watches the state of the agents.

    python -m hashidrill.gamedays.runbooks.attendant ROOT

is the process of a rehearsal's engine: like hashidrill.lab.runs.in_sandbox, with the runbook's follower as attendant.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from hashidrill.core.engine import run as engine
from hashidrill.core.engine.run_state import Run
from hashidrill.core.errors import HashidrillError
from hashidrill.core.protocols.abc import Host
from hashidrill.core.protocols.capabilities import Processes
from hashidrill.core.util.enter import entering
from hashidrill.core.util.processes import ahead
from hashidrill.core.util.wait import pause
from hashidrill.gamedays.runbooks.follower import Follower, Ran
from hashidrill.gamedays.runbooks.model import Runbook
from hashidrill.gamedays.runbooks.parser import parse_runbook
from hashidrill.lab.local import host_tools
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.lab.runs.engine_process import exit_of
from hashidrill.lab.runs.in_sandbox import run_given
from hashidrill.lab.sandbox.sandbox import read_given

LOOK_EVERY_S = 0.25
LIMIT_S = 900.0
_MARK = "\x1e"
_PRELUDE = (
    '__c=0; __p=; trap \'__c=$?; [ $__c = 0 ] || [ -z "$__p" ] || printf "\\036%s %s\\n" "$__c" "$__p" >&2;'
    " __p=$BASH_COMMAND' DEBUG\n"
)
"""Reports on standard error each command that failed although the block went on."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class SandboxHands:
    """The follower's access to every host of a local datacenter."""

    run_: Run
    datacenter: LocalDatacenter
    root: Path
    _folders: dict[str, Path] = field(default_factory=dict)

    def machines(self) -> Sequence[Host]:
        return self.datacenter.all_hosts()

    async def running(self) -> Mapping[str, bool]:
        return {name: bool(reference) for name, reference in (await self.agents()).items()}

    async def agents(self) -> dict[str, str]:
        """The process of each HOST/AGENT, "" without a running one."""
        found = {}
        for host in self.datacenter.all_hosts():
            for agent, role in host.roles.items():
                if role != "spare":
                    process = await host.use(Processes).agent_process(agent)
                    found[f"{host.name}/{agent}"] = process.reference if process and process.state != "Z" else ""
        return found

    async def faded(self) -> Sequence[str]:
        lasting = [(name, each) for name, each in self.run_.held.items() if not each.happens_once]
        return [fault_id for fault_id, each in lasting if await each.prove_again() is False]

    def note(self, what: str, text: str, **data: Any) -> None:
        self.run_.journal.write("attended.did", sync=True, what=what, text=text, **data)

    async def run(self, host: str, command: str, seen: Mapping[str, str], within_s: float) -> Ran:
        namespace = self.datacenter.hosts[host].namespace
        shell = ["bash", "-e", "-o", "pipefail", "-c", _PRELUDE + command]
        return await in_shell(
            [*entering(network=namespace), *shell],
            self.environment(host) | dict(seen),
            within_s,
            folder=self._folder(host),
        )

    def environment(self, name: str) -> dict[str, str]:
        """The environment of `hashidrill lab shell`, and the data folders of that host's agents."""
        host = self.datacenter.hosts[name]
        folders = dict.fromkeys(str(binary.parent) for binary in self.datacenter.binaries.values())
        return {
            "HOME": str(self._folder(name)),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PATH": ":".join([str(self._folder(name) / host_tools.FOLDER), *folders, os.environ.get("PATH") or _PATH]),
            "CONSUL_SNAPSHOTS": str(self.datacenter.artifacts),
            **self.datacenter.environment(name),
            **host_tools.environment(host),
        }

    def _folder(self, name: str) -> Path:
        if name not in self._folders:
            host = self.datacenter.hosts[name]
            self._folders[name] = host_tools.furnish(host, self.root / "s" / f"{name}.host").parent
        return self._folders[name]


async def in_shell(command: Sequence[str], environment: Mapping[str, str], within_s: float, *, folder: Path) -> Ran:
    """Runs the command to its end; after `within_s`, kills it and all processes that it started."""
    began_s = anyio.current_time()
    output, errors = bytearray(), bytearray()
    process = await anyio.open_process(
        [*command], stdin=subprocess.DEVNULL, env=dict(environment), cwd=folder, start_new_session=True
    )

    async def take(stream: anyio.abc.ByteReceiveStream | None, into: bytearray) -> None:
        assert stream is not None
        async for chunk in stream:
            into += chunk

    code: int | None = None
    try:
        with anyio.move_on_after(within_s):
            async with anyio.create_task_group() as group:
                group.start_soon(take, process.stdout, output)
                group.start_soon(take, process.stderr, errors)
                code = await process.wait()
                _kill_all(process.pid)  # its background processes would hold its output open
    finally:
        with anyio.CancelScope(shield=True):
            _kill_all(process.pid)
            await process.wait()
            await process.aclose()
    lines = errors.decode(errors="replace").split("\n")  # splitlines would treat the mark as the end of a line
    hidden = tuple(line.partition(_MARK)[2].strip() for line in lines if _MARK in line)
    said = "\n".join(line for line in lines if _MARK not in line)
    return Ran(code, output.decode(errors="replace"), said, anyio.current_time() - began_s, hidden)


def _kill_all(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


@dataclass(frozen=True)
class Attendant:
    """Starts when the pager goes off, follows the runbook, and then watches whether users are well again."""

    runbook: Runbook
    at_s: float
    after_s: float
    watch_s: float
    root: Path

    async def attend(self, running: Run) -> None:
        datacenter = running.datacenter
        if not isinstance(datacenter, LocalDatacenter):
            raise HashidrillError("a runbook can only be rehearsed in a local datacenter")
        doing = SandboxHands(running, datacenter, self.root)
        await pause(self.after_s)
        async with anyio.create_task_group() as group:
            await group.start(self._watch, doing)
            doing.note("pager", self.runbook.front.pager)
            follower = Follower(self.runbook, doing)
            with anyio.move_on_after(LIMIT_S) as limit:
                await follower.follow()
            if limit.cancelled_caught:
                doing.note(
                    "done",
                    f"the runbook was not done within {LIMIT_S:g}s",
                    outcome="limit",
                    diagnosis=follower.diagnosis,
                )
            if follower.acted:
                await pause(self.watch_s)
            group.cancel_scope.cancel()

    @staticmethod
    async def _watch(doing: SandboxHands, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        known: dict[str, str] = {}
        while True:
            now = await doing.agents()
            changed = {name: reference for name, reference in now.items() if known.get(name) != reference}
            if changed:
                first = not known
                doing.note(
                    "agents",
                    "the agents as they are" if first else f"changed: {', '.join(sorted(changed))}",
                    agents=changed,
                )
                known |= changed
                if first:
                    task_status.started()
            await pause(LOOK_EVERY_S)


def main() -> None:
    """Like hashidrill.lab.runs.in_sandbox."""
    spec = read_given()
    ahead()
    root = Path(sys.argv[1])
    given = spec["rehearsal"]
    runbook = parse_runbook(Path(given["path"]), given["text"])
    attendant = Attendant(runbook, given["at_s"], given["after_s"], given["watch_s"], root)
    sys.exit(exit_of(partial(run_given, spec, root, run=partial(engine.run, attendant=attendant))))


if __name__ == "__main__":
    main()
