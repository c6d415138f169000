"""A runbook: its front matter, its blocks in the order of the page, what they decide, and where they run."""

import hashlib
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field, StringConstraints

from hashidrill.core.experiment.model import NAME_PATTERN as DIAGNOSIS_PATTERN
from hashidrill.core.experiment.model import Name
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.units import Duration

Value = float | str
Seen = Mapping[str, Value | None]
"""The observations so far, by name; None: the value was missing."""
OTHERWISE = "otherwise"
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(
    r"(?P<name>[a-z][a-z0-9_]*)\s*(?:(?P<is>is (?:missing|there))|(?P<op><=|>=|==|!=|<|>|contains\b)\s*(?P<value>.+))"
)
_LINE = re.compile(r"(?P<when>.+?)\s+->\s+(?P<diagnosis>\S+?)(?::\s*(?P<text>.*))?")
_AND = re.compile(r"\s+and\s+(?=[a-z])")
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Condition:
    """One comparison. `other` is the name of another observation that it compares with."""

    text: str
    name: str
    op: str
    value: Value = ""
    other: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, self.other) if self.other else (self.name,)

    @property
    def positive(self) -> bool:
        """Whether the condition can only hold after an observation."""
        return self.op != "is missing"

    def holds(self, seen: Seen) -> bool:
        """False for a missing observation, unless the condition is `is missing`."""
        left = seen.get(self.name)
        if self.op.startswith("is "):
            return (left is None) == (self.op == "is missing")
        right = seen.get(self.other) if self.other else self.value
        if left is None or right is None:
            return False
        if self.op in _ORDER:
            a, b = as_number(left), as_number(right)
            return a is not None and b is not None and _ORDER[self.op](a, b)
        if self.op == "contains":
            return str(right) in str(left)
        return _same(left, right) == (self.op == "==")


@dataclass(frozen=True)
class Line:
    """One line of a decision. All `conditions` must hold; `otherwise` has none."""

    line: int
    conditions: tuple[Condition, ...]
    diagnosis: str
    text: str

    def holds(self, seen: Seen) -> bool:
        return all(condition.holds(seen) for condition in self.conditions)

    @property
    def when(self) -> str:
        """The condition's text."""
        return " and ".join(condition.text for condition in self.conditions) or OTHERWISE

    def because(self, seen: Seen) -> dict[str, Value | None]:
        """The observations behind the decision."""
        return {name: seen.get(name) for condition in self.conditions for name in condition.names}


def parse_line(text: str, number: int) -> Line:
    """Parses one line. Raises ValueError that says what is wrong."""
    found = _LINE.fullmatch(text.strip())
    if found is None:
        raise ValueError("write CONDITION -> DIAGNOSIS: TEXT, like `commit_ms > 300 -> slow-disk: the leader's disk`")
    diagnosis, when = found["diagnosis"], found["when"].strip()
    if not re.fullmatch(DIAGNOSIS_PATTERN, diagnosis):
        raise ValueError(
            f"the diagnosis {diagnosis!r} is not a name: use lower case, digits and hyphens, like slow-disk"
        )
    conditions = () if when == OTHERWISE else tuple(_condition(each) for each in _AND.split(when))
    return Line(number, conditions, diagnosis, (found["text"] or "").strip())


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text.strip()!r} is not a condition: NAME < <= > >= == != contains VALUE, NAME is missing, NAME is there"
        )
    if found["is"]:
        return Condition(text.strip(), found["name"], found["is"])
    written = found["value"].strip()
    quoted = _QUOTED.fullmatch(written)
    if quoted is not None:
        return Condition(text.strip(), found["name"], found["op"], quoted[1] if quoted[1] is not None else quoted[2])
    if (number := as_number(written)) is not None:
        return Condition(text.strip(), found["name"], found["op"], number)
    if written in {"true", "false"}:  # as jq prints them
        return Condition(text.strip(), found["name"], found["op"], written)
    if _NAME.fullmatch(written):
        return Condition(text.strip(), found["name"], found["op"], other=written)
    raise ValueError(f"{written!r} is neither a number, nor a text in quotes, nor the name of an observation")


def as_number(value: Value) -> float | None:
    """None for text, NaN and infinity."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number - number == 0 else None


def _same(left: Value, right: Value) -> bool:
    a, b = as_number(left), as_number(right)
    return a == b if a is not None and b is not None else str(left) == str(right)


_HOST = re.compile(r"[a-z][a-z0-9.-]*")
_ROLE = re.compile(r"(?P<agent>[a-z]+):(?P<role>server|client)(?P<all>s?)")
_SEEN = re.compile(r"\{(?P<name>[a-z][a-z0-9_]*)\}")


class PlaceError(Exception):
    """The host could not be entered: the message says why."""


class Machine(Protocol):
    """What is known of a host without a login."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    @property
    def roles(self) -> Mapping[str, str]: ...


def check_place(on: str) -> None:
    """Raises ValueError for an invalid place."""
    if not on:
        raise ValueError("its place is missing: write on=consul:server, on=consul-1 or on={leader}")
    if not (_ROLE.fullmatch(on) or _SEEN.fullmatch(on) or _HOST.fullmatch(on)):
        raise ValueError(
            f"on={on} is not a place: use a host (consul-1), consul:server (one), consul:servers (each), or "
            f"{{NAME}} for"
            " what an observation of that name said"
        )


def named_in(on: str) -> str:
    """The observation that a place needs; "" without one."""
    found = _SEEN.fullmatch(on)
    return found["name"] if found else ""


def hosts_of(on: str, machines: Sequence[Machine], seen: Seen, runs: Mapping[str, bool]) -> list[str]:
    """The names of the hosts that `on` means; `runs` tells whether each HOST/AGENT runs. Raises PlaceError.

    For one host of a role, this is the first by name whose agent runs: a person logs in to a running server.
    """
    by_name = {machine.name: machine for machine in machines}
    if name := named_in(on):
        said = str(seen.get(name) or "").strip()
        if not said:
            raise PlaceError(f"on={on}: {name} is missing, so its place is unknown")
        found = _found(said, machines)
        if found is None:
            raise PlaceError(f"on={on}: {name} is {said!r}, which is not a host: {', '.join(by_name)}")
        return [found]
    if role := _ROLE.fullmatch(on):
        having = sorted(m.name for m in machines if m.roles.get(role["agent"]) == role["role"])
        if not having:
            raise PlaceError(f"on={on}: there is no such host here")
        up = [host for host in having if runs.get(f"{host}/{role['agent']}")]
        return having if role["all"] else (up or having)[:1]
    if on not in by_name:
        raise PlaceError(f"on={on}: there is no such host; there are {', '.join(by_name)}")
    return [on]


def _found(said: str, machines: Sequence[Machine]) -> str | None:
    """Matches by name or address, with or without a port or a product's suffix (`nomad-1.global`)."""
    words = {said, said.rpartition(":")[0], said.removeprefix("http://").partition(":")[0], said.partition(".")[0]}
    return next((machine.name for machine in machines if machine.name in words or machine.address in words), None)


HEALTHY = "healthy"
"""The look-alike that is the first experiment without its faults."""
NAME_PATTERN = r"[a-z][a-z0-9_]*"
Plain = Annotated[str, StringConstraints(min_length=1, max_length=300)]


class Against(Strict):
    """The expected diagnosis for one experiment, and the time of its pager."""

    diagnosis: Name = Field(description="The diagnosis that has to be reached")
    at: Duration | None = Field(
        default=None, description="The method's time when it waits for the pager (default: when its last step begins)"
    )
    after: Duration = Field(default=Duration("22s"), description="How long it waits until the pager goes off")
    lets_go: list[str] = Field(
        default=[], description="Steps, by name or kind, that end at `at`, because they would undo the repair"
    )
    users: Literal["sick", "well"] = Field(
        default="sick",
        description="The users' state when the pager goes off; `well` if only redundancy or state is lost",
    )
    variant: str | None = Field(default=None, description="The variant of the experiment")


class FrontMatter(Strict):
    """The YAML between the `---` at the top."""

    runbook: Name = Field(description="Its name, as in the name of the file: runbook-NAME.md")
    pager: Plain = Field(description="The pager message that the operator got")
    experiments: dict[str, Against] = Field(min_length=1, description="Experiments in which it must help")
    look_alikes: dict[str, Against] = Field(
        min_length=2, description="Experiments in which the runbook must change nothing"
    )


Kind = Literal["observe", "decide", "act", "confirm"]


@dataclass(frozen=True)
class Block:
    """One fenced block of a runbook that the follower acts on. `line` is its fence's line."""

    kind: Kind
    line: int
    text: str
    name: str = ""
    """The name of the observation."""
    on: str = ""
    diagnoses: tuple[str, ...] = ()
    """The diagnoses for which the block is followed; if empty, it is followed while there is no diagnosis."""
    number: Literal["", "max", "min"] = ""
    fails: bool = False
    """Whether the command may fail. Its output counts anyway, and a later confirm step decides whether the act
    worked."""
    throughout: bool = False
    """Whether the confirmed condition holds before the act as well."""
    within_s: float = 0.0
    lines: tuple[Line, ...] = ()
    """The lines of a decision."""


@dataclass(frozen=True)
class Runbook:
    """A runbook without mistakes."""

    path: Path
    front: FrontMatter
    title: str
    blocks: tuple[Block, ...]
    text: str = field(repr=False, default="")

    @property
    def followed(self) -> str:
        """A digest of everything that is followed, without prose and positions."""
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
        """The diagnoses for which the runbook acts."""
        return frozenset(each for block in self.blocks if block.kind == "act" for each in block.diagnoses)

    def of(self, kind: Kind, diagnosis: str) -> list[Block]:
        """The blocks of that kind that are followed for this diagnosis."""
        return [block for block in self.blocks if block.kind == kind and diagnosis in block.diagnoses]
