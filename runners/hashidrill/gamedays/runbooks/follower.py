"""Follows a runbook as a person would: block after block, running each command and deciding by its output.

Its actions go to `Hands.note`, and from there into the recording, which is the judge's only source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from hashidrill.core.util.wait import pause
from hashidrill.gamedays.runbooks.model import Block, Machine, PlaceError, Runbook, Value, as_number, hosts_of, named_in

DONE, UNDECIDED, ACT_FAILED = "done", "undecided", "act-failed"
UNCONFIRMED, NOWHERE, OFF = "unconfirmed", "nowhere", "hands-off"
"""How following a runbook ends."""
_CONFIRM_EVERY_S = 1.0
_CONTROL_WITHIN_S = 15.0
_ONE_TRY_S = 15.0
_LONGEST = 4000
_TESTS = ("[", "test ", "grep ", "! ", "command -v", "systemctl is-active")
"""Commands whose failure is an answer."""


@dataclass(frozen=True)
class Ran:
    """One command: `code` is None if it did not end in time. `hidden`: commands in it that failed unnoticed."""

    code: int | None
    output: str
    errors: str
    took_s: float
    hidden: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.code == 0


class Hands(Protocol):
    """The actions that a follower needs."""

    def machines(self) -> Sequence[Machine]: ...

    async def running(self) -> Mapping[str, bool]:
        """Whether each HOST/AGENT runs."""

    async def run(self, host: str, command: str, seen: Mapping[str, str], within_s: float) -> Ran:
        """Runs the command in a shell on that host."""

    async def faded(self) -> Sequence[str]:
        """The faults that were in force and have certainly ended."""

    def note(self, what: str, text: str, **data: Any) -> None:
        """Writes to the recording."""


class _End(Exception):  # noqa: N818 - it ends the runbook, and is not an error
    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class Follower:
    """One pass through a runbook."""

    def __init__(self, runbook: Runbook, hands: Hands) -> None:
        self._runbook, self._hands = runbook, hands
        self.diagnosis = ""
        self.acted = False
        self._values: dict[str, Value | None] = {}
        self._texts: dict[str, str] = {}

    async def follow(self) -> str:
        """Follows the runbook; returns how that ended."""
        outcome, text = DONE, "the runbook was followed to its end"
        try:
            for block in self._runbook.blocks:
                if self.diagnosis in block.diagnoses if self.diagnosis else not block.diagnoses:
                    await self._follow(block)
            if not self.diagnosis:
                outcome, text = (
                    UNDECIDED,
                    "no condition of its decisions held: the runbook does not say what to do next",
                )
            elif not self.acted:
                outcome, text = OFF, f"nothing is done about {self.diagnosis}"
        except _End as end:
            outcome, text = end.outcome, str(end)
        except PlaceError as error:
            outcome, text = NOWHERE, str(error)
        self._hands.note("done", text, outcome=outcome, diagnosis=self.diagnosis)
        return outcome

    async def _follow(self, block: Block) -> None:
        match block.kind:
            case "observe":
                await self._observe(block)
            case "decide":
                self._decide(block)
            case "act":
                await self._act(block)
            case "confirm":
                await self._confirm(block)

    async def _hosts(self, block: Block) -> list[str]:
        return hosts_of(block.on, self._hands.machines(), self._values, await self._hands.running())

    async def _run(self, block: Block, host: str, within_s: float, **data: Any) -> Ran:
        ran = await self._hands.run(host, block.text, self._texts, within_s)
        ended = f"did not end within {within_s:g}s" if ran.code is None else f"exit {ran.code}"
        self._hands.note(
            "command",
            f"{block.kind} on {host} (line {block.line}): {ended}",
            kind=block.kind,
            line=block.line,
            host=host,
            command=block.text,
            code=ran.code,
            output=_clipped(ran.output),
            errors=_clipped(ran.errors),
            took_s=round(ran.took_s, 3),
            hidden=list(ran.hidden),
            **data,
        )
        return ran

    async def _observe(self, block: Block) -> None:
        """Records the output of a command; the output of a failed command only if it may fail."""
        told: list[tuple[str, str]] = []
        try:
            hosts = await self._hosts(block)
        except PlaceError as error:
            self._note_seen(block, None, str(error))
            return
        for host in hosts:
            ran = await self._run(block, host, block.within_s, name=block.name)
            if ran.ok or (block.fails and ran.code is not None):
                told.append((host, (ran.output + ran.errors if block.fails else ran.output).strip()))
        each = [f"{host} {' '.join(said.split())}" for host, said in told]
        text = "\n".join(each) if len(hosts) > 1 else "".join(said for _, said in told)
        value: Value | None = text or None
        if block.number:
            last = [as_number(words[-1]) for _, said in told if (words := said.split())]
            numbers = [number for number in last if number is not None]
            value = None if not numbers else max(numbers) if block.number == "max" else min(numbers)
        self._note_seen(block, value, text)

    def _note_seen(self, block: Block, value: Value | None, text: str) -> None:
        self._values[block.name] = value
        self._texts.pop(block.name, None)
        if value is not None:
            self._texts[block.name] = text
        shown = "missing" if value is None else _clipped(str(value))
        self._hands.note("observed", f"{block.name}: {shown}", name=block.name, value=value, line=block.line)

    def _decide(self, block: Block) -> None:
        line = next((line for line in block.lines if line.holds(self._values)), None)
        if line is None:
            because = {name: value for each in block.lines for name, value in each.because(self._values).items()}
            text = f"no line of the decision in line {block.line} holds"
            self._hands.note("undecided", text, line=block.line, because=because)
            return
        self.diagnosis = line.diagnosis
        self._hands.note(
            "decided",
            f"{line.diagnosis}: {line.text}".rstrip(": "),
            diagnosis=line.diagnosis,
            line=line.line,
            when=line.when,
            because=line.because(self._values),
        )

    async def _act(self, block: Block) -> None:
        if not self.acted:
            await self._before_the_first_act()
            self.acted = True
        for host in await self._hosts(block):
            self._hands.note("acts", f"line {block.line} on {host}", line=block.line, host=host)
            ran = await self._run(block, host, block.within_s)
            if block.fails and ran.code is not None:
                continue
            if not ran.ok:
                ended = "did not end in time" if ran.code is None else f"ended with {ran.code}"
                said = (ran.errors or ran.output).strip().splitlines()
                raise _End(ACT_FAILED, f"line {block.line}: the act on {host} {ended}: {said[-1] if said else ''}")
            hidden = [each for each in ran.hidden if not each.partition(" ")[2].startswith(_TESTS)]
            if hidden:
                raise _End(ACT_FAILED, f"line {block.line}: on {host} a command failed and was ignored: {hidden[0]}")

    async def _before_the_first_act(self) -> None:
        gone = list(await self._hands.faded())
        self._hands.note("proof", f"no longer in force: {', '.join(gone)}" if gone else "still in force", gone=gone)
        for block in self._runbook.of("confirm", self.diagnosis):
            if block.on and (name := named_in(block.on)) and self._values.get(name) is None:
                tried, held, said = False, False, f"not tried: {name} is not known yet"
            else:
                tried, held = True, await self._holds(block, _CONTROL_WITHIN_S, control=True)
                said = f"{'holds' if held else 'does not hold'} before the act"
            about = {"line": block.line, "tried": tried, "held": held, "throughout": block.throughout}
            self._hands.note("control", f"line {block.line}: {said}", **about)

    async def _holds(self, block: Block, within_s: float, **data: Any) -> bool:
        for host in await self._hosts(block):
            if not (await self._run(block, host, within_s, **data)).ok:
                return False
        return True

    async def _confirm(self, block: Block) -> None:
        ends_s = anyio.current_time() + block.within_s
        while True:
            left_s = ends_s - anyio.current_time()
            if await self._holds(block, max(1.0, min(left_s, _ONE_TRY_S))):
                self._hands.note("confirmed", f"line {block.line}", line=block.line)
                return
            if anyio.current_time() + _CONFIRM_EVERY_S > ends_s:
                raise _End(UNCONFIRMED, f"line {block.line}: not confirmed within {block.within_s:g}s")
            await pause(_CONFIRM_EVERY_S)


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}\n[...]\n{text[-_LONGEST // 2 :]}"
