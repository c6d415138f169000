"""What the checks look at: an experiment in which each part that could not be read is None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hashidrill.core.protocols import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from hashidrill.core.experiment.conditions import Condition
    from hashidrill.core.experiment.disk import Disk
    from hashidrill.core.experiment.model import ClientSpec
    from hashidrill.core.experiment.problems import Loc
    from hashidrill.core.experiment.profile import Profile
    from hashidrill.core.hypothesis.marked import Never
    from hashidrill.core.protocols.abc import Fault
    from hashidrill.core.protocols.service import Service
    from hashidrill.core.units import Duration


@dataclass(frozen=True)
class Load:
    kind: str
    params: BaseModel
    profile: Profile | None = None


@dataclass(frozen=True)
class Step:
    """A step of the method, with None for each part that could not be read."""

    kind: str
    params: BaseModel | None
    on: str | None
    at: Duration | None
    for_: Duration | None
    name: str | None = None
    after: Sequence[str] = ()

    @property
    def fault(self) -> Fault | None:
        """The fault, without a datacenter, for its declarations; None if its kind or parameters could not be read."""
        if self.params is None:
            return None
        fault: Fault = registry.fault(self.kind)(self.params, None)
        return fault


@dataclass(frozen=True)
class Mark:
    """A mark of the method, with None for each part that could not be read."""

    name: str | None
    at: Duration | None
    for_: Duration | None
    after: Sequence[str] = ()


@dataclass(frozen=True)
class Side:
    """One side of a contrast: the parameters that it passes to another hypothesis."""

    loc: Loc
    params: BaseModel
    never: Never | None = None


@dataclass(frozen=True)
class Expectation:
    name: str
    params: BaseModel
    sides: Sequence[Side] = ()
    compares: Sequence[str] = ()
    """The parameters of a comparison that name a variant each."""
    never: Never | None = None


@dataclass(frozen=True)
class Draft:
    """An experiment in which parts that could not be read are None.

    `steps` are faults. Where the method has a mark, `steps` has None and `marks` has the mark under that index.
    """

    services: list[Service] | None
    """Those of the datacenter."""
    disk: Disk | None
    load_names: list[str] | None
    loads: dict[str, Load | None]
    steps: list[Step | None]
    guardrails: list[Condition | None]
    require: list[Condition | None]
    expectations: list[Expectation | None]
    clients: dict[str, ClientSpec | None] = field(default_factory=dict)
    marks: dict[int, Mark] = field(default_factory=dict)
    durations: dict[Loc, Duration | None] = field(default_factory=dict)
    comparisons: list[Expectation | None] = field(default_factory=list)
    rounds: int | None = None


class Note(Protocol):
    """Takes a problem and its place, like `Document.problem`."""

    def __call__(self, loc: Loc, text: str, *, key: bool = False) -> None: ...
