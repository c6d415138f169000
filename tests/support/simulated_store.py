"""A replicated store that costs nothing: three servers in beats, faults with effects, and one planted bug.

It knows what a real one would show (a leader lost and elected, a server behind, a snapshot that is installed). The bug
loses a write when the leader goes during an install. Like a real trial, one is INVALID now and then, and the bug does
not fire each time that it could.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hashidrill.rollouts.bisect.trials import Outcome
from hashidrill.rollouts.explore.guidance import Seen
from hashidrill.rollouts.explore.space import BEHIND, ELECTED, INSTALLED, LATER, PROVEN, SNAPSHOT, Arm, Space

LEADER, FOLLOWER = "store:leader", "store:one-follower"
STOPS = ("process.kill", "process.pause", "network.partition")
INERT = ("cpu.throttle", "disk.bandwidth", "network.slicer")
_PARAMS = {
    "clock.step": {"by": ("1s", "20s", "5m")},
    "disk.latency": {"op": ("fsync",), "delay": ("1ms", "17ms", "290ms", "5000ms")},
    "network.latency": {"delay": ("1ms", "14ms", "208ms", "3000ms"), "from": ("clients", "servers")},
    "network.loss": {"percent": ("1%", "10%", "100%")},
    "network.partition": {"from": ("clients", "servers"), "direction": ("out", "in", "both")},
}
KINDS = (*STOPS, "process.restart", *_PARAMS, *INERT)
SPACE = Space(
    {Arm(kind, on): [_PARAMS.get(kind, {})] for kind in dict.fromkeys(KINDS) for on in (LEADER, FOLLOWER)},
    frozenset({"process.restart"}),
)
_BEATS, _WITHIN = 24, 8
_BEHIND_AT = 3


@dataclass
class World:
    """The store at one beat; `began` are the arms whose faults began in it."""

    began: set[tuple[str, str]] = field(default_factory=set)
    leads: bool = True
    terms: int = 0
    lag: int = 0
    installing: int = 0
    skewed: bool = False
    slow: bool = False
    since_lost: int = 99


_LOST = (*STOPS, "process.restart")


@dataclass
class Store:
    """Plays candidates; the bug, if it is planted, fires with `fires` where it can."""

    planted: bool = False
    seed: int = 1
    fires: float = 0.8
    invalid: float = 0.03
    by_itself: float = 0.0
    """How often the promise breaks for another reason."""
    played: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def __call__(self, candidate, beat_s=1.0) -> Seen:
        self.played += 1
        took = {"method": 20.0}
        if self._chance.random() < self.invalid:
            return Seen(Outcome.INVALID, "the machine was busy", took_s=took)
        world, states, effects, late = World(), [], set(), ""
        clock, begun, ended, waited = 0, {}, set(), 0
        caused = [set() for _ in candidate]
        hit = False
        for _ in range(_BEATS):
            events = self._step(world, {candidate[n].arm: candidate[n] for n in begun if n not in ended})
            late = LATER if candidate and len(ended) == len(candidate) else ""
            effects |= {late + event for event in events}
            if begun:
                last = max(begun)
                caused[last] |= {LATER * (last in ended) + event for event in events}
            world.began = set()
            stands = False
            for n, move in enumerate(candidate):
                if n in begun or move.at > clock:
                    continue
                if self._came(move.when, events, begun, ended):
                    begun[n] = clock
                    world.began.add((move.kind, move.on))
                else:
                    stands = True
            hit = hit or (
                self.planted and world.installing > 0 and any((kind, LEADER) in world.began for kind in _LOST)
            )
            self._begin(world, [candidate[n] for n in begun if n not in ended])
            states.append(self._shown(world))
            waited = waited + 1 if stands else 0
            if waited > _WITHIN:
                return Seen(Outcome.INVALID, "the moment never came", took_s=took)
            clock += not stands
            ended |= {n for n, at in begun.items() if clock >= at + candidate[n].length}
        if len(begun) < len(candidate):
            return Seen(Outcome.INVALID, "a fault never began", took_s=took)
        broken = (hit and self._chance.random() < self.fires) or self._chance.random() < self.by_itself
        what = Outcome.BROKEN if broken else Outcome.HELD
        return Seen(
            what,
            "a write is lost" if broken else "",
            ("no_acknowledged_write_lost",) if broken else (),
            states=tuple(dict.fromkeys(states)),
            effects=tuple(sorted(effects)),
            caused=tuple(tuple(sorted(each)) for each in caused),
            took_s=took,
            gap_s=1.0 if ELECTED in {each.removeprefix(LATER) for each in effects} else 0.0,
        )

    @staticmethod
    def _came(when, events, begun, ended):
        what, _, of = when.partition(":")
        if of:
            return int(of) in (begun if what == PROVEN else ended)
        return not when or when in events

    def _begin(self, world, active):
        strong = [move for move in active if self._strong(move)]
        begun = [move for move in strong if (move.kind, move.on) in world.began]
        if any(move.on == LEADER and move.kind in _LOST for move in begun):
            world.leads, world.since_lost = False, 0
        world.skewed = any(move.kind == "clock.step" for move in strong)
        world.slow = any(move.on == LEADER and move.kind in {"disk.latency", "network.latency"} for move in strong)

    @staticmethod
    def _strong(move):
        given = move.parameters
        if move.kind == "network.partition":
            return given["from"] == "servers"
        return given.get("delay", "290ms") not in {"1ms", "17ms", "14ms"} and given.get("percent", "100%") == "100%"

    def _step(self, world, active) -> set[str]:
        events = set()
        held = [move for arm, move in active.items() if arm.on == FOLLOWER and self._strong(move)]
        if any(move.kind in STOPS or move.kind in {"network.loss", "network.latency"} for move in held):
            world.lag += 1
            if world.lag == _BEHIND_AT:
                events.add(BEHIND)
        elif world.installing:
            world.installing -= 1
            if not world.installing:
                events.add(INSTALLED)
        elif world.lag >= _BEHIND_AT:
            world.lag, world.installing = 0, 2
            events.add(SNAPSHOT)
        else:
            world.lag = 0
        world.since_lost += 1
        if not world.leads and world.since_lost > 1:
            world.leads, world.terms = True, world.terms + 1
            events.add(ELECTED)
        if world.slow:
            events.add("commits are slow")
        if world.skewed:
            events.add("clocks differ")
        return events

    @staticmethod
    def _shown(world) -> str:
        flags = {"leader": world.leads, "installing": world.installing, "slow": world.slow, "clocks": world.skewed}
        shown = " ".join(f"{name} {int(bool(flag))}" for name, flag in flags.items())
        return f"{shown} terms {min(world.terms, 3)} lag {min(world.lag, 4) // 2}"
