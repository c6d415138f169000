"""The space of a search: kinds of faults on roles, with their declared parameters, at times and moments.

Times are in beats. A beat is as long as the datacenter takes to elect a leader (`hashidrill.rollouts.explore.search`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.experiment.model import Experiment, services_of
from hashidrill.core.experiment.selectors import parse_selector
from hashidrill.core.protocols import registry
from hashidrill.core.util import safe_json

LENGTHS = (1, 2, 4, 8)
LATEST = 6
"""The last beat at which a fault begins by the clock."""
STEPS = 4
"""Values that are tried of a range of numbers."""
PROVEN, GONE = "proven", "gone"
ALL = "servers"
"""The role that means several hosts at once: all die when the power fails."""
ELECTED, SNAPSHOT, INSTALLED = "leader elected", "snapshot begins", "snapshot installed"
BEHIND_ENTRIES = 100
BEHIND = f"a server is {BEHIND_ENTRIES} entries behind"
EVENTS = (ELECTED, SNAPSHOT, INSTALLED, BEHIND)
"""What a datacenter does by itself, as `when:` says it."""
LATER = "later "
"""Before an event: it came only after the fault was gone."""
_LESS_IS_STRONGER = {"cores", "rate", "leave", "after", "size", "bytes", "free_pages"}
_SELDOM = {"percent"}
"""A fault that affects few operations cannot be proven in a short trial: other values are tried with the highest."""
_LEFT_OUT = {"jitter"}
_RANGE = re.compile(r"([\d.]+?)([a-zA-Z/%]*)\.\.([\d.]+)\2")
_SPARES_USERS = "servers"
"""The value of `from`: users who are cut off as well see nothing of what a server does wrong."""
_OTHER_WAYS = {"noop", "toxiproxy.toxic", "memory.pressure", "consul.server.replace", "consul.raft.bloat"}
"""Not drawn unless `--faults` names them: no fault, a second way to the same one, or what takes most of a trial."""


@dataclass(frozen=True, order=True)
class Arm:
    """A kind of fault on a role."""

    kind: str
    on: str

    def __str__(self) -> str:
        return f"{self.kind} on {self.on}"


@dataclass(frozen=True)
class Move:
    """One fault of a trial. `params` is JSON; `at` and `length` are beats.

    `when` is the moment that it waits for from `at` on: one of EVENTS, or `proven:N` or `gone:N` of the trial's move N,
    from 0; "" for a time alone. The beats do not count on while a move waits.
    """

    kind: str
    on: str
    params: str = "{}"
    at: int = 0
    length: int = 2
    when: str = ""

    @property
    def arm(self) -> Arm:
        return Arm(self.kind, self.on)

    @property
    def parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = safe_json.parse(self.params)
        return parameters

    def __str__(self) -> str:
        told = f" {self.params}" if self.params != "{}" else ""
        return f"{self.arm}{told} {f'when {self.when}' if self.when else f'at {self.at}'} for {self.length}"


Candidate = tuple[Move, ...]


def plain(candidate: Candidate) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(move) for move in candidate]


def from_plain(moves: Sequence[Mapping[str, Any]]) -> Candidate:
    """The reverse of `plain`. Raises TypeError for other data."""
    return tuple(Move(**move) for move in moves)


Values = Mapping[str, Sequence[Any]]
"""The values of each parameter, from weak to strong where they are numbers."""


@dataclass(frozen=True)
class Space:
    """What may be tried. `fits` says whether a candidate is a valid experiment; `moments` are those of the language."""

    arms: Mapping[Arm, Sequence[Values]]
    once: frozenset[str] = frozenset()
    """Kinds that happen at once, whose length cannot be chosen."""
    moments: frozenset[str] = frozenset({*EVENTS, PROVEN, GONE})
    fits: Callable[[Candidate], bool] = field(default=lambda _: True, repr=False)

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        kinds: Sequence[str],
        *,
        moments: frozenset[str],
        fits: Callable[[Candidate], bool],
    ) -> Space:
        """The space of an experiment's datacenter. Raises UsageError for a kind that cannot be drawn there."""
        arms: dict[Arm, Sequence[Values]] = {}
        services = services_of(experiment.datacenter)
        products = {"", *(each.name for each in services)}
        usual = [kind for kind in registry.faults() if drawn_by_default(kind) and registry.product_of(kind) in products]
        names = list(kinds) or usual
        roles = [f"{each.name}:{role}" for each in services for role in registry.services()[each.name].roles]
        there = [on for on in roles if parse_selector(on).candidates(services)]
        drawn = [on for on in there if not parse_selector(on).many or on.endswith(f":{ALL}")]
        for kind in names:
            registry.fault(kind)  # raises for an unknown one
            fitting = {arm: values for on in drawn if (values := _fitting(arm := Arm(kind, on), fits))}
            if kinds and not fitting:
                raise UsageError(f"--faults {kind}: no role of this datacenter can have it ({', '.join(drawn)})")
            arms |= fitting
        if not arms:
            raise UsageError("no fault fits this experiment's datacenter: name some with --faults")
        once = {kind for kind in names if getattr(registry.fault(kind), "once", False)}
        return cls(arms, frozenset(once), moments, fits)

    def drawn(self, chance: random.Random, most: int) -> Candidate:
        """A random candidate of up to `most` faults: the baseline of all guidance."""
        arms = sorted(self.arms)
        while True:
            moves: Candidate = ()
            for _ in range(chance.randint(1, most)):
                arm = chance.choice(arms)
                moves += (timed(self.move(arm, chance, when=chance.choice(["", *self.waits(moves)])), moves),)
            if self.fits(moves):
                return moves

    def waits(self, moves: Candidate) -> list[str]:
        """The moments that a further move could wait for."""
        if not moves:
            return []
        of_moves = [f"{what}:{n}" for what in (PROVEN, GONE) if what in self.moments for n in range(len(moves))]
        return [*(event for event in EVENTS if event in self.moments), *of_moves]

    def move(
        self, arm: Arm, chance: random.Random, *, when: str = "", strong: bool = False, surely: float = 1.0
    ) -> Move:
        """A move with drawn parameters and times, or its strongest. `surely`: how often a parameter then has the value
        that is the strongest, the usual one, or leaves the users alone.
        """
        values = chance.choice(self.arms[arm])
        params = {}
        for name, each in values.items():
            best = _SPARES_USERS if surely < 1 and _SPARES_USERS in each else each[-1]
            params[name] = best if strong and chance.random() < surely else chance.choice(each)
        length = 1 if arm.kind in self.once else 4 if strong else chance.choice(LENGTHS)
        at = 0 if strong else chance.randint(0, LATEST)
        return Move(arm.kind, arm.on, json.dumps(params, sort_keys=True), at, length, when)

    def simpler(self, candidate: Candidate) -> Iterator[Candidate]:
        """Candidates that are a little simpler, the simplest first: fewer faults, plain times, shorter, weaker."""
        for index in range(len(candidate)):
            if len(candidate) > 1:
                yield without(candidate, index)
        for index, move in enumerate(candidate):
            smaller = [replace(move, when="", at=at) for at in ((0, 1, 2) if move.when else ())]
            smaller += [replace(move, at=0)] if not move.when and move.at else []
            smaller += [replace(move, length=length) for length in LENGTHS if length < move.length]
            smaller += [replace(move, params=params) for params in self._weaker(move)]
            yield from ((*candidate[:index], each, *candidate[index + 1 :]) for each in smaller)

    def _weaker(self, move: Move) -> Iterator[str]:
        """The parameters with one value that is weaker: the weakest first."""
        now = move.parameters
        for values in self.arms[move.arm]:
            if {*values} != {*now} or any(now[name] not in each for name, each in values.items()):
                continue
            for name, each in values.items():
                for weaker in each[: list(each).index(now[name])]:
                    yield json.dumps({**now, name: weaker}, sort_keys=True)


def timed(move: Move, before: Candidate) -> Move:
    """The move, not before the move that it waits for could be proven, or gone: the beats do not count on meanwhile."""
    what, _, of = move.when.partition(":")
    if not of:
        return move
    other = before[int(of)]
    return replace(move, at=other.at + (other.length if what == GONE else 0))


def without(candidate: Candidate, index: int) -> Candidate:
    """The candidate without that move. Moves that waited for it begin by the clock; others keep what they wait for."""
    kept = []
    for number, move in enumerate(candidate):
        what, _, of = move.when.partition(":")
        if number == index:
            continue
        if of and int(of) == index:
            kept.append(replace(move, when=""))
        else:
            kept.append(replace(move, when=f"{what}:{int(of) - 1}") if of and int(of) > index else move)
    return tuple(kept)


def at_once(candidate: Candidate, hosts: Callable[[str], int]) -> int:
    """On how many hosts its faults may be in force at the same time. `hosts`: how many a role means."""
    return max(
        (sum(hosts(each.on) for each in candidate if each.at <= move.at < each.at + each.length) for move in candidate),
        default=0,
    )


def drawn_by_default(kind: str) -> bool:
    """Whether a kind says that its faults may overlap others, as the tests of random faults draw them."""
    cls = registry.fault(kind)
    built_in = cls.__module__.startswith(("hashidrill.core.", "hashidrill.products."))
    return built_in and kind not in _OTHER_WAYS and not isinstance(cls.cases.overlaps, str)


def declared(kind: str) -> list[Values]:
    """The declared parameters of a kind: its space, or the single values of its cases."""
    cases = registry.fault(kind).cases
    if cases.space:
        spaces = [{name: each for name, each in one.items() if name not in _LEFT_OUT} for one in cases.space]
        return [{name: values_of(name, each) for name, each in alternative.items()} for alternative in spaces]
    overlaps = () if isinstance(cases.overlaps, str) else cases.overlaps or ()
    examples = [each[1] if isinstance(each, tuple) else each for each in overlaps]
    return [{name: (each,) for name, each in params.items()} for params in examples or cases.each]


def values_of(name: str, declaration: Any) -> Sequence[Any]:
    """The values to try, the strongest last: of a range some, each a multiple of the one before; of a choice, each.

    A choice is declared with its usual value first. Hosts are left out: roles name them.
    """
    if isinstance(declaration, dict):  # a nested mapping is taken as it is, at the middle of each range
        return ({key: values_of(key, each)[-1] for key, each in declaration.items()},)
    if isinstance(declaration, list):
        return tuple(each for each in reversed(declaration) if not str(each).startswith("host:"))
    found = _RANGE.fullmatch(declaration) if isinstance(declaration, str) else None
    if found is None:
        return (declaration,)
    low, high = max(float(found[1]), float(found[3]) / 1000), float(found[3])
    numbers = [low * (high / low) ** (step / (STEPS - 1)) for step in range(STEPS)]
    whole = "." not in found[1]
    rounded = dict.fromkeys(round(each) if whole else round(each, 2) for each in numbers)
    ordered = list(rounded)[::-1] if name in _LESS_IS_STRONGER else list(rounded)
    return tuple(f"{each}{found[2]}" if found[2] else each for each in ordered)


def _fitting(arm: Arm, fits: Callable[[Candidate], bool]) -> list[Values]:
    """The alternatives that this arm can have: each parameter's values up to the strongest that fits the others'."""
    found: list[Values] = []
    for values in declared(arm.kind):
        strengths = [
            {name: each[-1 if name in _SELDOM else min(step, len(each) - 1)] for name, each in values.items()}
            for step in range(STEPS)
        ]
        now = next((one for one in strengths if _fits(arm, one, fits)), strengths[0])
        kept: dict[str, Sequence[Any]] = {}
        for name, each in values.items():
            kept[name] = [one for one in each if _fits(arm, {**now, name: one}, fits)]
            if not kept[name]:
                break
            now[name] = kept[name][-1]
        if len(kept) == len(values) and _fits(arm, now, fits):
            found.append(kept)
    return found


def _fits(arm: Arm, params: Mapping[str, Any], fits: Callable[[Candidate], bool]) -> bool:
    try:
        return fits((Move(arm.kind, arm.on, json.dumps(params, sort_keys=True), 0, 4),))
    except HashidrillError:
        return False
