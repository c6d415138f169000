"""Chooses the next trial: at random, or guided by the states that earlier trials reached.

The guided search first tries each kind on its roles, one after the other in one trial. The effects that an arm had (a
leader was lost, a server fell behind, a snapshot was installed) sort the arms into classes. Pairs come next: the pair
of classes and the moment between them that was tried least often. Moments are those that the first fault was seen to
bring about, an effect that triggers another fault (CSnake, EuroSys 2026), and those of its own course: it stands, it
is about to end, it is gone. A bandit (UCB1) chooses the arm within a class.

A third fault mostly takes the leader away once the others are gone: what a follower lost or has wrong shows only when
it leads. Else it makes a second pair with the same first fault. Trials that reached new states are varied.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hashidrill.rollouts.bisect.trials import Outcome
from hashidrill.rollouts.explore.space import (
    ELECTED,
    EVENTS,
    GONE,
    LATER,
    LATEST,
    PROVEN,
    Arm,
    Candidate,
    Move,
    Space,
    timed,
)

VARIED = 0.15
"""The share of trials that vary an earlier one, once pairs are tried."""
INERT = 2
"""A pair with an arm that had no effect alone counts as tried this often."""
CLOSED = 0.7
"""The share of pairs whose third fault takes the leader away."""
SURELY = 0.6
"""How often a fault of a pair is surely as strong as it can be: one that breaks everything may hide what else broke."""
AGAIN = 0.3
"""How often the second fault of a pair in one class is the first one again, while the datacenter recovers from it."""
AFTER_EVENTS = 1
"""A pair whose second fault waits for no event that the first one brought about counts as tried this often."""
REST = 3
"""Beats for the datacenter to settle after a fault."""
DURING = "during"
"""The moment between two faults: the second begins by the clock, while the first stands."""
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
    caused: Sequence[Sequence[str]] = ()
    """What happened after each fault began and before the next one did; with LATER what came once it was gone."""
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
"""The effects of an arm."""
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
        self._left = self._groups()
        self._screening: Sequence[Arm] = ()
        self._effects: dict[Arm, Class] = {}
        """With LATER before those that came when the fault was gone."""
        self._classes: dict[Arm, Class] = {}
        self._pairs: Counter[Pair] = Counter()
        self._used: Counter[tuple[Class, str, Arm]] = Counter()
        self._won: Counter[Arm] = Counter()
        self._lost: Counter[Arm] = Counter()
        self._worth: list[tuple[Candidate, int]] = []
        """Candidates that reached new states, and how many."""
        self._made: list[Pair] = []
        """The pairs that the last candidate was made for."""

    def _groups(self) -> list[Sequence[Arm]]:
        """The arms of each kind, as many as a trial has room for."""
        kinds: dict[str, list[Arm]] = {}
        for arm in sorted(self.space.arms):
            kinds.setdefault(arm.kind, []).append(arm)
        groups: list[Sequence[Arm]] = []
        for arms in kinds.values():
            self.chance.shuffle(arms)
            groups += [arms[n : n + self.most] for n in range(0, len(arms), self.most)]
        self.chance.shuffle(groups)
        return groups

    def next(self) -> Candidate:
        self._made = []
        while self._left:
            self._screening = self._left.pop()
            found = self._sequence(self._screening)
            if len(found) == 1 or self.space.fits(found):
                return found
            self._left += [[arm] for arm in self._screening]
        self._screening = ()
        if self.most == 1:
            return self.space.drawn(self.chance, 1)
        if self._worth and self.chance.random() < VARIED:
            return self._varied()
        return self._pair()

    def _sequence(self, arms: Sequence[Arm]) -> Candidate:
        """Each in its strongest form, the next one when the one before is gone and the datacenter has settled."""
        found: Candidate = ()
        for n, arm in enumerate(arms):
            move = self.space.move(arm, self.chance, strong=True)
            if found:
                when = f"{GONE}:{n - 1}" if GONE in self.space.moments else ""
                move = replace(move, when=when, at=found[-1].at + found[-1].length + REST)
            found += (move,)
        return found

    def learn(self, candidate: Candidate, seen: Seen, new: Sequence[str]) -> None:
        if self._screening and seen.valid:
            for arm, caused in zip(self._screening, seen.caused or [seen.effects], strict=False):
                effects = frozenset(caused) - self.usual
                self._effects[arm] = effects
                self._classes[arm] = frozenset(each.removeprefix(LATER) for each in effects) - self.usual
        elif len(self._screening) > 1:  # once more, each alone, after the others
            self._left[:0] = [[arm] for arm in self._screening]
        self._pairs.update(self._made)
        if self._made:
            self._used[frozenset(), "", candidate[0].arm] += 1
        for move, (first, moment, _) in zip(candidate[1:], self._made, strict=False):
            self._used[first, moment, move.arm] += 1
        for move in candidate:
            (self._won if new else self._lost)[move.arm] += 1
        if new and seen.valid and not self._screening:
            self._worth.append((candidate, len(new)))

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
        """The moments at which a fault may follow one of that class."""
        effects = {each for arm, cls in self._classes.items() if cls == of for each in self._effects[arm]} | self.usual
        known = self.space.moments.intersection(EVENTS)
        events = [each for each in sorted(effects) if each.removeprefix(LATER) in known]
        later = {each for each in events if each.startswith(LATER) and each.removeprefix(LATER) in events}
        plain = [what for what in (PROVEN, GONE) if what in self.space.moments]
        return [DURING, *plain, *(each for each in events if each not in later)]

    def _pair(self) -> Candidate:
        """The pair that was tried least often, and a third fault where there is room."""
        classes = sorted({*self._classes.values()}, key=sorted)
        pairs = [(first, moment, second) for first in classes for moment in self._moments(first) for second in classes]
        self.chance.shuffle(pairs)
        pairs.sort(key=self._tried)
        for pair in pairs[: 4 * _TRIES]:
            first, moment, second = pair
            head = self._drawn(self._arm(first), at=0, length=self.chance.choice((4, 8)))
            again = first == second and self.chance.random() < AGAIN
            found: Candidate = (
                head,
                self._following(head, head.arm if again else self._arm(second, first, moment), moment),
            )
            if not self.space.fits(found):
                self._pairs[pair] += 1
                continue
            self._made = [pair]
            return self._third(found, [each for each in pairs if each[0] == first and each != pair])
        return self.space.drawn(self.chance, self.most)

    def _third(self, found: Candidate, pairs: Sequence[Pair]) -> Candidate:
        if len(found) == self.most:
            return found
        leaders = [each for each in {*self._classes.values()} if ELECTED in each]
        if leaders and self.chance.random() < CLOSED:
            arm = self._arm(self.chance.choice(sorted(leaders, key=sorted)), frozenset(), GONE)
            self._used[frozenset(), GONE, arm] += 1
            move = self._drawn(arm, at=found[-1].at + found[-1].length + self.chance.randint(0, REST))
            move = replace(move, when=f"{GONE}:{len(found) - 1}" if GONE in self.space.moments else "")
            if self.space.fits(more := (*found, move)):
                return more
        for pair in pairs[:_TRIES]:
            first, moment, third = pair
            more = (*found, self._following(found[0], self._arm(third, first, moment), moment))
            if self.space.fits(more):
                self._made.append(pair)
                return more
        return found

    def _tried(self, pair: Pair) -> int:
        """How often."""
        first, moment, second = pair
        plain = moment in {DURING, PROVEN, GONE} or moment in self.usual
        return self._pairs[pair] + INERT * (not first) + INERT * (not second) + AFTER_EVENTS * plain

    def _drawn(self, arm: Arm, *, at: int, length: int = 0) -> Move:
        """A mostly strong move."""
        move = self.space.move(arm, self.chance, strong=True, surely=SURELY)
        if move.length == 1:
            return replace(move, at=at)
        return replace(move, at=at, length=length or self.chance.choice((2, 4)))

    def _following(self, head: Move, arm: Arm, moment: str) -> Move:
        at = head.at
        if moment == DURING:
            at += self.chance.randint(head.length // 2, max(head.length - 1, 1))
        elif moment == GONE or moment.startswith(LATER):
            at += head.length
        move = self._drawn(arm, at=at)
        when = {DURING: "", PROVEN: f"{PROVEN}:0", GONE: f"{GONE}:0"}.get(moment, moment.removeprefix(LATER))
        return replace(move, when=when)

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
            waits = [
                "",
                *(each for each in self.space.waits(base) if ":" not in each or each.endswith(f":{len(base) - 1}")),
            ]
            return (
                *base,
                timed(replace(self._drawn(self._any(), at=base[-1].at), when=self.chance.choice(waits)), base),
            )
        other = self.chance.choice(
            [
                replace(move, at=self.chance.randint(0, LATEST)),
                timed(replace(move, when=self.chance.choice(["", *self.space.waits(base[:index])])), base),
                replace(self._drawn(move.arm, at=move.at), when=move.when),
                replace(self._drawn(self._any(), at=move.at), when=move.when),
            ]
        )
        return (*base[:index], other, *base[index + 1 :])

    def _any(self) -> Arm:
        classes = {each for each in self._classes.values() if each} or {*self._classes.values()}
        return self._arm(self.chance.choice(sorted(classes, key=sorted)))
