"""A runbook: its front matter, and its blocks in the order of the page."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from hashidrill.core.experiment.model import Name
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.units import Duration
from hashidrill.gamedays.runbooks.conditions import Line

HEALTHY = "healthy"
"""The look-alike that is the first experiment without its faults."""
NAME_PATTERN = r"[a-z][a-z0-9_]*"
Plain = Annotated[str, StringConstraints(min_length=1, max_length=300)]


class Against(Strict):
    """What a runbook has to find in one experiment, and when its pager goes there."""

    diagnosis: Name = Field(description="The diagnosis that has to be reached")
    at: Duration | None = Field(
        default=None, description="How far the method is when the pager goes (default: its last step has begun)"
    )
    after: Duration = Field(default=Duration("22s"), description="How long it has lasted by then")
    lets_go: list[str] = Field(
        default=[], description="Steps, by name or kind, that end when the pager goes: they would undo the repair"
    )
    users: Literal["sick", "well"] = Field(
        default="sick",
        description="How users are when the pager goes; `well` where redundancy or state is what is lost",
    )
    variant: str | None = Field(default=None, description="Which variant of the experiment")


class FrontMatter(Strict):
    """What stands between the `---` at the top."""

    runbook: Name = Field(description="Its name, as in the name of the file: runbook-NAME.md")
    pager: Plain = Field(description="What whoever is on call was told")
    experiments: dict[str, Against] = Field(min_length=1, description="Where it has to help")
    look_alikes: dict[str, Against] = Field(min_length=2, description="Where it has to keep its hands off")


Kind = Literal["observe", "decide", "act", "confirm"]


@dataclass(frozen=True)
class Block:
    """One fenced block that is followed. `line` is that of its fence."""

    kind: Kind
    line: int
    text: str
    name: str = ""
    """Of an observation."""
    on: str = ""
    diagnoses: tuple[str, ...] = ()
    """Those for which it is followed; none: while there is no diagnosis."""
    number: Literal["", "max", "min"] = ""
    fails: bool = False
    """The command may fail: what this observation said counts anyway; a confirm decides about this act."""
    throughout: bool = False
    """What this one confirms holds before the act as well."""
    within_s: float = 0.0
    lines: tuple[Line, ...] = ()
    """Of a decision."""


@dataclass(frozen=True)
class Runbook:
    """A runbook that was read without a complaint."""

    path: Path
    front: FrontMatter
    title: str
    blocks: tuple[Block, ...]
    text: str = field(repr=False, default="")

    @property
    def followed(self) -> str:
        """A digest of all that is followed: prose, and where on the page it stands, are none of it."""
        blocks = [
            {
                **{key: value for key, value in vars(block).items() if key not in {"line", "lines"}},
                "lines": [f"{line.conditions} {line.diagnosis}" for line in block.lines],
            }
            for block in self.blocks
        ]
        return hashlib.sha256(json.dumps(blocks, sort_keys=True).encode()).hexdigest()

    @property
    def acting(self) -> frozenset[str]:
        """The diagnoses that something is done about."""
        return frozenset(each for block in self.blocks if block.kind == "act" for each in block.diagnoses)

    def of(self, kind: Kind, diagnosis: str) -> list[Block]:
        """The blocks of that kind that are followed once there is this diagnosis."""
        return [block for block in self.blocks if block.kind == kind and diagnosis in block.diagnoses]
