"""How one of hashidrill's programs runs on a host: one Python text, and a session of JSON lines both ways.

python3 FILE                 a program as a file, in a Nomad job
python3 -c STARTER           and `handed(program)` at the beginning of standard input, over SSH
"""

import importlib.util
import json
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.util import safe_json

ANSWERS_WITHIN_S = 30.0


class Session(Protocol):
    """A program that runs on a host."""

    async def send(self, line: bytes) -> None:
        """Raises FaultError when the connection is gone."""

    async def receive(self) -> bytes:
        """One line; b"" once the program has ended. Raises FaultError when the connection is gone."""

    async def ended(self) -> str:
        """Waits for its end, and returns its exit code and error output as text."""

    async def close(self) -> None:
        """Ends its standard input, and the connection with it."""


class Shell(Protocol):
    """A host that can run hashidrill's programs, with the rights that faults need."""

    where: str
    """The host's name in messages."""
    client: str
    """This machine's address as seen there; "" if unknown."""

    @property
    def carrier(self) -> str:
        """The product whose agent carries programs there; "" for none."""

    @property
    def renewed_by(self) -> Literal["lines", "signal"]:
        """How a fault's program is renewed (hashidrill.staging.carriers.inside.agent)."""

    @property
    def changes(self) -> bool:
        """Whether a fault's program can be told to change the fault while it runs."""

    def cuts(self, addresses: Collection[str], port: int | None, *, whole: bool) -> str:
        """Why the host must reach these addresses on that TCP port (None: any packets); "" if it need not.

        `whole`: all packets would be lost, not a part.
        """

    async def start(self, program: str) -> Session:
        """Starts a program of `hashidrill.staging.carriers.shell`. Raises FaultError."""

    async def hold(self, told: Mapping[str, Any]) -> Session:
        """Starts a fault's agent with that specification.

        The `args` may be secret, so they do not appear in logs or command lines. Raises FaultError.
        """

    async def again(self) -> None:
        """Connects again if the connection was lost. Raises FaultError."""


class Lines:
    """Requests and events of one session. `listen` reads the output in a separate task."""

    def __init__(self, session: Session, where: str) -> None:
        self._session, self._where = session, where
        self._answers: dict[int, dict[str, Any]] = {}
        self._came: dict[int, anyio.Event] = {}
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._moved = anyio.Event()
        self.over = ""
        """Why no more output comes; "" while it may."""

    async def listen(self) -> None:
        """Runs until the session ends, even in a cancelled run, whose reverts need it: `close` ends it."""
        with anyio.CancelScope(shield=True):
            await self._listen()

    async def _listen(self) -> None:
        try:
            while line := await self._session.receive():
                try:
                    said = dict(safe_json.parse(line))
                except (ValueError, TypeError):
                    continue  # a banner, or output of another program
                if "id" in said:
                    self._answers[said.pop("id")] = said
                else:
                    self.events.append(said)
                self._wake()
            ended = await self._session.ended()
            self.over = next((one["why"] for one in self.events if one.get("event") == "refused"), ended)
        except FaultError as error:
            self.over = str(error)
        finally:
            self.over = self.over or "it was left"
            self._wake()

    def _wake(self) -> None:
        for number in [*self._came]:
            if number in self._answers or self.over:
                self._came.pop(number).set()
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    async def tell(self, **line: Any) -> None:
        """Raises FaultError when the connection is gone."""
        await self._session.send(json.dumps(line).encode() + b"\n")

    async def ask(self, op: str, *, within_s: float = ANSWERS_WITHIN_S, **request: Any) -> dict[str, Any]:
        """Raises FaultError if the answer is an error, or is late."""
        if self.over:
            raise FaultError(f"{self._where}: {self.over}")
        self._number += 1
        number = self._number
        came = self._came[number] = anyio.Event()
        await self.tell(id=number, op=op, **request)
        with anyio.move_on_after(within_s):
            await came.wait()
        answer = self._answers.pop(number, None)
        self._came.pop(number, None)
        if answer is None:
            raise FaultError(f"{self._where}: {self.over or f'no answer to {op} within {within_s:g}s'}")
        if "error" in answer:
            raise FaultError(f"{self._where}: {answer['error']}")
        return answer

    async def event(self, *names: str, within_s: float = math.inf, after: int = 0) -> Mapping[str, Any] | None:
        """The first of these events after the first `after`; None if the session or the time ended without one."""
        with anyio.move_on_after(within_s):
            while True:
                for said in self.events[after:]:
                    if said.get("event") in names:
                        return said
                if self.over:
                    return None
                await self._moved.wait()
        return None

    async def close(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(ANSWERS_WITHIN_S):
            await self._session.close()


STARTER = """\
import os
n, d = int(os.read(0, 9)), b""
while len(d) < n:
    p = os.read(0, n - len(d))
    if not p: raise SystemExit(2)
    d += p
exec(compile(d, "hashidrill", "exec"))
"""
"""Reads the program and not one byte more: the rest of the input is for the program."""
OLDEST_PYTHON = (3, 8)
_INSIDE = "hashidrill.staging.carriers.inside"
_PATHS = "hashidrill.core.util.trusted_paths"
_PARTS = ("system", "armed", "notes", "restart", "slowdown", "host_faults", "agent")
AGENT = (_PATHS, *(f"{_INSIDE}.{name}" for name in _PARTS))
"""In dependency order. The last one has the function that is called: `main`."""
NOTES = (_PATHS, f"{_INSIDE}.system", f"{_INSIDE}.notes")
"""Its functions are `hand_over` and `keep`."""
OBSERVERS = (
    "hashidrill.lab.sandbox.rpc",
    _PATHS,
    "hashidrill.lab.local.inside.canary",
    *(f"{_INSIDE}.{name}" for name in ("system", "restart", "slowdown", "observers")),
)
"""They share with agents the code that reads processes. They change nothing."""
_LOADER = """\
import json, sys, types
if sys.version_info < OLDEST:
    print(json.dumps({"event": "refused", "name": "python-old", "why": "its python3 is " + sys.version.split()[0]
        + ", and hashidrill needs " + ".".join(map(str, OLDEST)) + " or later there"}), flush=True)
    sys.exit(2)
for name, source in json.loads(MODULES):
    parts = name.split(".")
    for package in (".".join(parts[:n]) for n in range(1, len(parts))):
        if package not in sys.modules:
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = []
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
getattr(sys.modules[json.loads(MODULES)[-1][0]], FUNCTION)(json.loads(ARGUMENT))
"""


def program(argument: Mapping[str, Any], modules: Sequence[str] = AGENT, function: str = "main") -> str:
    """A program that calls `function(argument)` of the last module. The text contains all that it needs."""
    told = {
        "OLDEST": OLDEST_PYTHON,
        "MODULES": _sources(tuple(modules)),
        "FUNCTION": function,
        "ARGUMENT": json.dumps(argument),
    }
    return "".join(f"{name} = {value!r}\n" for name, value in told.items()) + _LOADER


def handed(text: str) -> bytes:
    """A program in STARTER's form: its length in eight digits, and its text."""
    return f"{len(text.encode()):08d}\n{text}".encode()


@cache
def _sources(modules: tuple[str, ...]) -> str:
    found = []
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise AssertionError(f"{name} is not there to be sent")
        found.append((name, Path(spec.origin).read_text()))
    return json.dumps(found)
