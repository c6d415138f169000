"""How a program of ours runs on a host, whoever carries it there: a session of JSON lines both ways."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, Literal, Protocol

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.util import foreign

ANSWERS_WITHIN_S = 30.0


class Session(Protocol):
    """A program that runs on a host."""

    async def send(self, line: bytes) -> None:
        """Raises FaultError when the connection is gone."""

    async def receive(self) -> bytes:
        """One line, b"" once it has ended. Raises FaultError when the connection is gone."""

    async def ended(self) -> str:
        """Waits for its end, and says how it ended: its exit code and what it wrote to its errors."""

    async def close(self) -> None:
        """Ends its standard input, and the connection with it."""


class Shell(Protocol):
    """A host that programs of ours can run on, with the rights that faults need."""

    where: str
    """Names it in messages."""
    client: str
    """The address that this machine has there; "" if that is not known."""

    @property
    def carrier(self) -> str:
        """The product whose agent carries programs there; "" where none does."""

    @property
    def renewed_by(self) -> Literal["lines", "signal"]:
        """How a fault's program hears of us (hashidrill.staging.carriers.inside.agent)."""

    @property
    def changes(self) -> bool:
        """Whether a fault's program can be told to change it."""

    def cuts(self, addresses: Collection[str], port: int | None, *, whole: bool) -> str:
        """Why the host must reach these addresses; "" where it need not.

        `port`: of TCP, None for all packets; `whole`: whether all of them would be lost, and not a part.
        """

    async def start(self, program: str) -> Session:
        """Starts a program of `hashidrill.staging.carriers.bundle`. Raises FaultError."""

    async def hold(self, told: Mapping[str, Any]) -> Session:
        """Starts the agent of a fault, which is told that (hashidrill.staging.carriers.inside.agent). Raises
        FaultError.

        What is among its `args` may be secret, and stands nowhere on the way there.
        """

    async def again(self) -> None:
        """Connects again if the connection was lost. Raises FaultError."""


class Lines:
    """Requests and events of one session. What comes in is read by `listen`, a task of its own."""

    def __init__(self, session: Session, where: str) -> None:
        self._session, self._where = session, where
        self._answers: dict[int, dict[str, Any]] = {}
        self._came: dict[int, anyio.Event] = {}
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._moved = anyio.Event()
        self.over = ""
        """Why nothing comes any more; "" while something may."""

    async def listen(self) -> None:
        """Until it ends. It goes on in a run that is cancelled, whose reverts need it: `close` ends it."""
        with anyio.CancelScope(shield=True):
            await self._listen()

    async def _listen(self) -> None:
        try:
            while line := await self._session.receive():
                try:
                    said = dict(foreign.parse(line))
                except (ValueError, TypeError):
                    continue  # a banner, or another program's
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
        """Raises FaultError for an answer that is an error, or none in time."""
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
        """The first of these events but for the first `after`; None when it ended, or took too long, without one."""
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
