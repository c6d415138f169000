"""What all faults of Litmus share: an engine with one experiment, whose ChaosResult is evidence and no verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from hashidrill.core.faults.base import P
from hashidrill.core.protocols.abc import Evidence, Undo
from hashidrill.core.protocols.capabilities import LitmusPod
from hashidrill.core.protocols.rights import Right
from hashidrill.kubernetes.injected import InjectedFault, told
from hashidrill.kubernetes.kubernetes.plurals import System, plural_of
from hashidrill.kubernetes.litmus.vocabulary import ENGINE, EXPERIMENT, LITMUS, RESULT, one

NO_NETEM = (
    "it needs netem in the kernel of the node, and services.kubernetes.netem of the attach file does not say that it is"
    " there: without it the experiment ends in Error, and may leave its helper pod; run `modprobe sch_netem` on the"
    " nodes, and say `netem: true`"
)
_OF_OTHERS = ((EXPERIMENT, "get"), (RESULT, "list"), (RESULT, "delete"))


class LitmusFault(InjectedFault[P]):
    """One ChaosEngine with one experiment of Litmus."""

    system: ClassVar[System] = LITMUS
    injector: ClassVar[type[Any]] = LitmusPod
    seen_within_s: ClassVar[float] = 120.0
    """A runner, a job and a helper pod start one after the other, and images may have to be pulled."""
    no_netem: ClassVar[str] = NO_NETEM
    accesses: ClassVar[Sequence[str]] = ("create", "delete", "get", "list", "patch")
    experiment: ClassVar[str]
    """Its name in a ChaosHub."""

    @property
    def object_kind(self) -> str:
        return ENGINE

    def env(self, agent: str) -> Mapping[str, str]:
        """What is said to the experiment."""
        raise NotImplementedError

    def spec(self, agent: str) -> Mapping[str, Any]:
        return {"experiments": [one(self.experiment, self.env(agent))]}

    def rights(self) -> Sequence[Right]:
        of_others = [
            Right("kubernetes", f"{plural_of(kind)}.{LITMUS.group}", access=access) for kind, access in _OF_OTHERS
        ]
        return [*super().rights(), *of_others]

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """By the effect alone. `figures` keeps what Litmus says at that time."""
        seen = await super().verify(undo, present=present)
        if not (present and seen.ok):
            return seen
        said = await told(self._objects(undo["host"]), undo)
        return replace(seen, figures={**seen.figures, "litmus": said})


def milliseconds(value: float) -> str:
    return str(round(value * 1000))


def percentage(share: float) -> str:
    return f"{share * 100:g}"
