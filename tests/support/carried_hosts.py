"""A host behind a shell, in memory: it runs our programs as the real one would, in virtual time."""

import ast
import contextlib
import json
import re

import anyio

from hashidrill.core.errors import FaultError, UnreachedError
from hashidrill.staging.carriers.shell import program
from hashidrill.staging.carriers.ssh import SshShell

WHERE = "consul-1 (ssh ops@10.73.0.11:22)"


def argument(program):
    """What a program is told."""
    return json.loads(ast.literal_eval(re.search(r"^ARGUMENT = (.*)$", program, re.MULTILINE).group(1)))


class FakeShell:
    """`in_force`: what agents have applied; `notes`: what is left of it. Planted: `refuses`, `lies`, `forgets`."""

    renewed_by, changes, carrier = "lines", True, ""
    cuts = SshShell.cuts

    def __init__(self, *, refuses="", lies=False, forgets=False, facts=None, agents=None):
        self.where, self.client = WHERE, "10.73.0.99"
        self.refuses, self.lies, self.forgets = refuses, lies, forgets
        self.facts = facts or {"root": True, "lacks": {}, "python": "3.11.2", "cores": 2}
        self.agents = {("consul", "agent"): 41} if agents is None else agents
        self.traced = set()
        self.not_own = ""
        """Why it is another host than the one that is meant."""
        self.cannot_restart = ""
        """Why an agent that is ended could not be started again."""
        self.reads_no_folder = ""
        """Why nothing can be added to the settings of its agents."""
        self.left_over = False
        """Whether an agent finds what an earlier one left, and takes that away first."""
        self.in_force, self.notes, self.sessions, self.renewals, self.changed = {}, {}, [], [], []
        self.cut = False
        self.comes_back = False

    async def again(self):
        """As after a network that was gone for a moment."""
        self.cut = self.cut and not self.comes_back

    async def hold(self, told):
        return await self.start(program(told))

    async def start(self, program):
        if self.cut:
            raise FaultError(f"{self.where}: no program could be started: the connection was lost")
        session = FakeSession(self, argument(program))
        self.sessions.append(session)
        await session.begin()
        return session

    def cut_off(self):
        """The connection is gone; what is in force there, the host reverts by itself."""
        self.cut = True
        for session in self.sessions:
            session.lose()
        self.in_force.clear()
        self.notes.clear()

    @contextlib.asynccontextmanager
    async def connected(self, name, address):
        """As `opened.Connect`."""
        if self.cut:
            raise UnreachedError(f"{name}: cannot be reached: Connection refused")
        yield self


class FakeSession:
    def __init__(self, shell, told):
        self.shell, self.told = shell, told
        self._lines, self._came = [], anyio.Event()
        self._gone = self._over = False

    def lose(self):
        self._gone = True
        self._came.set()

    def _end(self):
        self._over = True
        self._came.set()

    async def _say(self, **line):
        if not self._gone and not self._over:
            self._lines.append(json.dumps(line).encode() + b"\n")
            self._came.set()

    async def begin(self):
        told, shell = self.told, self.shell
        if "listens" in told:
            await self._say(event="ready", reference="99@1")
        elif "undo" in told and told["run"] != shell.notes.get(told["id"], told).get("run", told["run"]):
            await self._say(event="refused", name="another-run", why=f"of the run {shell.notes[told['id']]['run']}")
            self._end()
        elif "undo" in told:
            left = shell.notes.pop(told["id"], None)
            if left is not None and not shell.forgets:
                shell.in_force.pop(told["id"], None)
            others = [
                {"kind": one["kind"], "why": f"of the run {one['run']}"}
                for one in shell.notes.values()
                if told["run"] not in {"", one.get("run", "")}
            ]
            why = "asked to" if left else "nothing is left"
            await self._say(event="reverted", why=why, by="guardian", proof="", others=others)
            self._end()
        elif shell.refuses:
            await self._say(event="refused", name="x", why=shell.refuses)
            self._end()
        else:
            if not shell.lies:
                shell.in_force[told["id"]] = told
            shell.notes[told["id"]] = told
            if shell.left_over:
                await self._say(event="reverted", why="it was left over", by="guardian", proof="gone")
            await self._say(event="applied", proof="read back", figures={"call_us": 0.3, "call_traced_us": 80.0})

    async def ends(self, why):
        """The agent reverts by itself."""
        self.shell.in_force.pop(self.told["id"], None)
        self.shell.notes.pop(self.told["id"], None)
        await self._say(event="reverted", why=why, by="agent", proof="gone")
        self._end()

    async def send(self, line):
        if self._gone or self._over:
            raise FaultError(f"{self.shell.where}: the connection was lost")
        said = json.loads(line)
        if "op" in said:
            await self._say(id=said["id"], **self._seen(said))
        elif "renew" in said:
            self.shell.renewals.append(anyio.current_time())
        elif "change" in said:
            self.shell.changed.append(said["change"])
            await self._say(event="changed")
        elif "revert" in said:
            if self.shell.forgets:
                await self._say(event="stuck", why="asked to", by="agent", proof="still there", note="/run/x.json")
                self._end()
            else:
                await self.ends("asked to")

    def _seen(self, asked):  # noqa: C901, PLR0911 - one answer a question
        shell = self.shell
        match asked["op"]:
            case "facts":
                return json.loads(json.dumps(shell.facts))
            case "own":
                return {"why": shell.not_own}
            case "agent":
                pid = shell.agents.get(tuple(asked["words"]))
                return {"pid": pid} if pid is None else {"pid": pid, "start_time": 7, "state": self._state(pid)}
            case "state":
                pid = int(asked["reference"].partition("@")[0])
                return {"state": self._state(pid) if pid in shell.agents.values() else ""}
            case "connect":
                tables = {one["args"]["table"] for one in shell.in_force.values() if "table" in one.get("args", {})}
                return {"seconds": 0.3, "errno": 110} if tables else {"seconds": 0.001, "errno": 0}
            case "nft":
                tables = [one["args"]["table"] for one in shell.in_force.values() if "table" in one.get("args", {})]
                return {"items": [{"table": {"name": name}} for name in tables]}
            case "data":
                return {"folder": "/opt/consul/raft"}
            case "restarts":
                return {"why": shell.cannot_restart}
            case "settings":
                added = [one["args"]["settings"] for one in shell.in_force.values() if one.get("kind") == "settings"]
                return {"why": shell.reads_no_folder, "settings": added[0] if added else {}}
            case "traced":
                return {"tracers": [5 if asked["pid"] in shell.traced else 0]}
            case "disk":
                slow = any(one["kind"] == "disk" for one in shell.in_force.values())
                return {"timings": [[0.5 if slow else 0.001, 0]] * asked["count"]}
        return {"error": f"nobody knows {asked['op']}"}

    def _state(self, pid):
        return "T" if any(one["kind"] == "pause" for one in self.shell.in_force.values()) else "S"

    async def receive(self):
        while not self._lines:
            if self._gone:
                raise FaultError("the connection was lost")
            if self._over:
                return b""
            self._came = anyio.Event()
            await self._came.wait()
        return self._lines.pop(0)

    async def ended(self):
        return "it ended with exit code 0"

    async def close(self):
        if self.told.get("kind") and self.told["id"] in self.shell.in_force and not self.shell.forgets:
            await self.ends("the connection ended")
        self._end()
