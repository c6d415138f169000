"""The fault that does nothing: a run with it shows how the datacenter behaves without faults."""

from collections.abc import Sequence
from typing import Any, ClassVar

from hashidrill.core.faults.base import BaseFault, Cases, NoParams
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Undo
from hashidrill.core.protocols.capabilities import Processes


class Noop(BaseFault[NoParams]):
    """Breaks nothing. Verifies before and after that the agent answers."""

    kind: ClassVar[str] = "noop"
    at_a_time: ClassVar[int | None] = 0
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({Processes})
    observer: ClassVar[Observer] = Observer("whether the agent's HTTP API answers")
    cases: ClassVar[Cases] = Cases(disarm="it has no effect that could be taken away")

    def uses(self, place: Place) -> Sequence[Claim]:
        return ()

    async def apply(self, undo: Undo) -> None:
        return

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        answers = await self._host(undo).use(Processes).agent_answers(undo["agent"], 1.0)
        return Evidence(answers, "nothing", "the agent answers" if answers else "the agent does not answer")

    async def revert(self, undo: Undo) -> None:
        return
