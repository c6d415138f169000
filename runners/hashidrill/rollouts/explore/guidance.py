"""Chooses the next trial: at random, or guided by the states that earlier trials reached.

The guided search first tries each arm alone. The effects that an arm had alone (a leader was lost, a server fell
behind, a snapshot was installed) sort the arms into classes. Pairs come next: the pair of classes and the moment
between them that was tried least often, and first of all the moments that the first fault was seen to bring about: an
effect that triggers another fault (CSnake, EuroSys 2026). A bandit (UCB1) chooses the arm within a class. A trial has
room for two pairs with the same first fault. Trials that reached new states are varied, and only these get a fault
that follows two others: pairs before triples.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hashidrill.rollouts.bisect.trials import Outcome
from hashidrill.rollouts.explore.space import EVENTS, GONE, LATER, LATEST, PROVEN, Arm, Candidate, Move, Space, timed

VARIED = 0.2
"""The share of trials that vary an earlier one, once pairs are tried."""
INERT = 2
"""A pair with an arm that had no effect alone counts as tried this often."""
AFTER_EVENTS = 1
"""The same of a pair whose second fault does not wait for an event that the first one brought about."""
_TRIES = 20


@dataclass(frozen=True)
class Seen:
    """What a trial showed. `states` are the abstract states in their order, `effects` what happened at all.

    `took_s`: seconds by part. `gap_s`: the longest time without a leader, 0 if there was none.
    """

    outcome: Outcome
    text: str = ""
    promises: Sequence[str] = ()
    """The expectations that broke."""
    unjudged: Sequence[str] = ()
    """Those of which a valid trial says nothing."""
    states: Sequence[str] = ()
    effects: Sequence[str] = ()
    recording: str = ""
    took_s: dict[str, float] = field(default_factory=dict)
    gap_s: float = 0.0

    @property
    def valid(self) -> bool:
        return self.outcome in {Outcome.HELD, Outcome.BROKEN}

    @property
    def total_s(self) -> float:
        return sum(self.took_s.values())


class Strategy(Protocol):
    """Chooses candidates, and learns what each one showed. Deterministic: its only chance is its seed."""

    def next(self) -> Candidate: ...

    def learn(self, candidate: Candidate, seen: Seen, new: Sequence[str]) -> None:
        """`new`: the states and effects that no trial had reached before."""


@dataclass
class Random:
    """The baseline: each candidate is drawn without regard to earlier ones."""

    space: Space
    most: int
    chance: random.Random

    def next(self) -> Candidate:
        return self.space.drawn(self.chance, self.most)

    def learn(self, candidate: Candidate, seen: Seen, new: Sequence[str]) -> None:
        """Nothing: that is what it is for."""


Class = frozenset[str]
"""The effects of an arm alone."""
Pair = tuple[Class, str, Class]


@dataclass
class Guided:
    """See the module."""

    space: Space
    most: int
    chance: random.Random
    usual: Class = frozenset()
    """What a trial without faults shows: this does not count as an effect."""

    def __post_init__(self) -> None:
        self._left = sorted(self.space.arms)
        self.chance.shuffle(self._left)
        # the kinds that were not tried anywhere come first
        order = {arm: sum(other.kind == arm.kind for other in self._left[:n]) for n, arm in enumerate(self._left)}
        self._left.sort(key=order.__getitem__, reverse=True)
        self._turn, self._kinds = 0, len({arm.kind for arm in self._left})
        self._effects: dict[Arm, frozenset[str]] = {}
        """With LATER before those that came when the fault was gone."""
        self._classes: dict[Arm, Class] = {}
        self._pairs: Counter[Pair] = Counter()
        self._apart: set[frozenset[Pair]] = set()
        """Pairs of which a trial with both was INVALID: the one kept the moment of the other from coming."""
        self._used: Counter[tuple[Class, str, Arm]] = Counter()
        self._won: Counter[Arm] = Counter()
        self._lost: Counter[Arm] = Counter()
        self._worth: list[tuple[Candidate, int]] = []
        """Candidates that reached new states, and how many."""

    def next(self) -> Candidate:
        self._turn += 1
        if self._left and (self._turn <= self._kinds or self._turn % 3 == 0):
            return (self.space.move(self._left[-1], self.chance, strong=True),)
        if self.most == 1:
            return self.space.drawn(self.chance, 1)
        if self._worth and self.chance.random() < VARIED:
            return self._varied()
        return self._pair()

    def learn(self, candidate: Candidate, seen: Seen, new: Sequence[str]) -> None:
        if len(candidate) == 1 and candidate[0].arm in self._left:
            if not seen.valid and self._left[0] != candidate[0].arm:  # once more, after the others
                self._left.remove(candidate[0].arm)
                self._left.insert(0, candidate[0].arm)
                return
            self._left.remove(candidate[0].arm)
            effects = frozenset(seen.effects) - self.usual
            self._effects[candidate[0].arm] = effects
            self._classes[candidate[0].arm] = frozenset(each.removeprefix(LATER) for each in effects)
        pairs = self._pairs_of(candidate)
        if not seen.valid and len(pairs) > 1:
            self._apart.add(frozenset(pairs))
            return
        self._pairs.update(pairs)
        self._used.update(
            (first, moment, move.arm) for (first, moment, _), move in zip(pairs, candidate[1:], strict=True)
        )
        for move in candidate:
            (self._won if new else self._lost)[move.arm] += 1
        if new and seen.valid:
            self._worth.append((candidate, len(new)))

    def _pairs_of(self, candidate: Candidate) -> list[Pair]:
        """The pairs of a candidate's first fault with each other one."""
        head, *others = candidate
        late = {move for move in others if move.when in EVENTS and move.at >= head.at + head.length}
        moments = [(LATER if move in late else "") + _moment(move) for move in others]
        return [
            (self._class(head.arm), moment, self._class(move.arm)) for moment, move in zip(moments, others, strict=True)
        ]

    def _class(self, arm: Arm) -> Class:
        return self._classes.get(arm, frozenset())

    def _arm(self, of: Class, first: Class = frozenset(), moment: str = "") -> Arm:
        """An arm of that class: of those that were tried least often there, the one with the highest upper confidence
        bound of reaching new states (UCB1).
        """
        arms = [arm for arm, effects in sorted(self._classes.items()) if effects == of]
        self.chance.shuffle(arms)
        played = {arm: self._won[arm] + self._lost[arm] + 1 for arm in arms}
        total = math.log(sum(played.values()) + 1)
        bound = {arm: self._won[arm] / played[arm] + math.sqrt(2 * total / played[arm]) for arm in arms}
        return min(arms, key=lambda arm: (self._used[first, moment, arm], -bound[arm]))

    def _moments(self, of: Class) -> list[str]:
        """The moments at which a fault may follow one of that class: "" is during it, by the clock."""
        effects = {each for arm, cls in self._classes.items() if cls == of for each in self._effects[arm]}
        known = {each.removeprefix(LATER) for each in effects if each.removeprefix(LATER) in EVENTS}
        events = [each if each in effects else LATER + each for each in sorted(known & self.space.moments)]
        plain = [f"{what}:0" for what in (PROVEN, GONE) if what in self.space.moments]
        return [*(plain or [""]), *events]

    def _pair(self) -> Candidate:
        """The pair that was tried least often, and a second pair with the same first fault where there is room."""
        classes = sorted({*self._classes.values()}, key=sorted)
        pairs = [(first, moment, second) for first in classes for moment in self._moments(first) for second in classes]
        self.chance.shuffle(pairs)
        pairs.sort(key=self._tried)
        for pair in pairs:
            first, moment, second = pair
            head = self.space.move(self._arm(first), self.chance, strong=True)
            found: Candidate = (head, self._following(head, self._arm(second, first, moment), moment))
            if not self.space.fits(found):
                self._pairs[pair] += 1
                continue
            together = [each for each in pairs if each[0] == first and frozenset({each, pair}) not in self._apart]
            for _, other, third in together[:_TRIES]:
                if len(found) < self.most and (other, third) != (moment, second):
                    more = (*found, self._following(head, self._arm(third, first, other), other))
                    found = more if self.space.fits(more) else found
            return found
        return self.space.drawn(self.chance, self.most)

    def _tried(self, pair: Pair) -> tuple[int, bool]:
        """How often, and whether no event of the first fault starts the second."""
        first, moment, second = pair
        event = not moment.startswith(GONE)
        return self._pairs[pair] + INERT * (not first) + (not second) + AFTER_EVENTS * (not event), not event

    def _following(self, head: Move, arm: Arm, moment: str) -> Move:
        move = self.space.move(arm, self.chance, strong=True)
        length = self.chance.choice((2, 4)) if move.length > 1 else 1
        at = head.at
        if not moment:
            at += self.chance.randint(0, max(head.length - 1, 1))
        elif moment.startswith((LATER, GONE)):
            at += head.length
        return replace(move, when=moment.removeprefix(LATER), at=at, length=length)

    def _varied(self) -> Candidate:
        """An earlier candidate with one change: a further fault, another moment, time, fault or parameters."""
        for _ in range(_TRIES):
            [(base, _)] = self.chance.choices(self._worth, [worth for _, worth in self._worth])
            if self.space.fits(found := self._changed(base)) and found != base:
                return found
        return self._pair()

    def _changed(self, base: Candidate) -> Candidate:
        index = self.chance.randrange(len(base))
        move = base[index]
        if len(base) < self.most and self.chance.random() < 0.5:
            effects = frozenset[str]().union(*(self._class(each.arm) for each in base))
            waits = ["", *(each for each in sorted(effects) if each in self.space.moments)]
            waits += [each for each in self.space.waits(base) if each.endswith(f":{len(base) - 1}")]
            return (*base, self._following(base[-1], self._drawn_arm(), self.chance.choice(waits)))
        other = self.chance.choice(
            [
                replace(move, at=self.chance.randint(0, LATEST)),
                timed(replace(move, when=self.chance.choice(["", *self.space.waits(base[:index])])), base),
                replace(self.space.move(move.arm, self.chance, when=move.when), at=move.at),
                replace(self.space.move(self._drawn_arm(), self.chance, when=move.when), at=move.at),
            ]
        )
        return (*base[:index], other, *base[index + 1 :])

    def _drawn_arm(self) -> Arm:
        classes = {each for each in self._classes.values() if each} or {*self._classes.values()}
        return self._arm(self.chance.choice(sorted(classes, key=sorted)))


def _moment(move: Move) -> str:
    return f"{move.when.partition(':')[0]}:0" if ":" in move.when else move.when
