"""Is a history of reads, writes and compare-and-sets of a register linearizable?

This is the search of Wing and Gong (1993) with Lowe's memory of tried configurations (2017), as in Porcupine and
Knossos. It repeatedly places an operation that no other one must precede, in every order that the register allows,
until all acknowledged operations are placed. Each register (key) is checked by itself: linearizability composes.

An operation with an unknown outcome has no end: it takes effect at any time after its start, or never. `prepared`
makes such operations cheap to search, and the result stays exact.

The number of configurations bounds the search, not time, so the same history gives the same result on every machine.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from hashidrill.core.recording.reader import Bools, Operations


def seen_at_the_end(ops: Operations, finals: Mapping[str, str | None]) -> Bools:
    """The acknowledged writes that the final reads show: at most one for each key, the last one."""
    shown: dict[str, int] = {}
    for index in np.flatnonzero(ops.ok).tolist():
        if finals.get(ops.keys[index]) == ops.values[index]:
            shown[ops.keys[index]] = index
    mask = np.zeros(len(ops), np.bool_)
    mask[list(shown.values())] = True
    return mask


@dataclass(frozen=True)
class Registers:
    """The result of the check. `lost` maps a key to (index of the lost acknowledged write, the key's final value)."""

    lost: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    phantoms: dict[str, tuple[str, str]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def check_registers(ops: Operations, finals: Mapping[str, str | None]) -> Registers:
    """Compares the final value of every key with the history of its writes. Linear in the number of operations."""
    latest_start: dict[str, int] = {}
    """For each key, the index of the acknowledged write that started last."""
    writers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    starts, ok = ops.start_ns.tolist(), ops.ok.tolist()
    for index, (key, value) in enumerate(zip(ops.keys, ops.values, strict=True)):
        writers[key, value].append(index)
        if ok[index] and (key not in latest_start or starts[index] > starts[latest_start[key]]):
            latest_start[key] = index
    found = Registers(unread=sorted(key for key in latest_start if key not in finals))
    for key, final in finals.items():
        last = latest_start.get(key)
        if final is None:
            if last is not None:
                found.lost[key] = (last, None)
        elif (phantom := _phantom(ops, writers.get((key, final), []))) is not None:
            found.phantoms[key] = (final, phantom)
        elif last is not None and not any(_possible(ops, index, starts[last]) for index in writers[key, final]):
            found.lost[key] = (last, final)
    return found


def _phantom(ops: Operations, writes: list[int]) -> str | None:
    if not writes:
        return "which nobody wrote"
    if all(ops.outcome[index] == "fail" for index in writes):
        return f"whose write was refused ({ops.errors[writes[0]] or f'status {ops.status[writes[0]]}'})"
    return None


def _possible(ops: Operations, index: int, latest_start_ns: int) -> bool:
    """Whether this write can be the last one, if an acknowledged write of the key started at `latest_start_ns`."""
    outcome = ops.outcome[index]
    return bool(outcome == "unknown" or (outcome == "ok" and latest_start_ns <= ops.end_ns[index]))


DEFAULT_BUDGET = 200_000
"""A number of configurations: some seconds of CPU, 100 MB. A linearizable history needs about one for each write."""

State = str | None
_ATTEMPT = 10_000
"""Configurations for one attempt at a smaller core, so that a hard attempt leaves some for other attempts."""
_IRRELEVANT = "\0"
"""Stands for all values that no operation can distinguish."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on one register, which takes effect at one moment between `call_ns` and `return_ns`.

    `read`: the value was `value`. `write`: it becomes `value`. `cas`: it was `expected` and becomes `value`. `miss`:
    it was not `expected`. None stands for a register that was never set. Without a `return_ns` the outcome is
    unknown: a change that takes effect some time after `call_ns`, or never.
    """

    kind: str
    value: State
    call_ns: int
    return_ns: int | None
    expected: State = None
    hint: int = 0
    """The change's rank, if known (0: unknown). It only decides which change is tried first."""

    @property
    def certain(self) -> bool:
        return self.return_ns is not None

    @property
    def changes(self) -> bool:
        return self.kind in {"write", "cas"}

    def fits(self, state: State) -> bool:
        if self.kind == "write":
            return True
        if self.kind == "read":
            return state == self.value
        return (state == self.expected) is (self.kind == "cas")


class Answer(StrEnum):
    """The search's answer. `undecided`: the budget was used up before the search was over."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


def check(history: Sequence[Op], *, budget: int = DEFAULT_BUDGET) -> tuple[Answer, int]:
    """Whether some order explains all operations of a register that is initially unset.

    Also returns how many configurations were tried, at most `budget`.
    """
    return _Search(prepared(history)).run(budget)


def prepared(history: Sequence[Op]) -> list[Op]:
    """An equivalent history with fewer unknown operations, in order of the calls.

    - If only one operation can have written a value that was read, it took effect before that read returned. This
      gives an unknown operation an end.
    - An unknown change whose value was never read matters only if a failed compare needs the earlier value to be gone.
      All such values are replaced by a single one.
    """
    ops = _with_ends([op for op in history if op.certain or op.changes])
    missed = {op.expected for op in ops if op.kind == "miss"}
    relevant = _relevant(ops, missed)
    kept = []
    for op in ops:
        if not op.changes or op.value in relevant:
            kept.append(op)
        elif op.certain or (missed if op.kind == "write" else op.expected in missed):
            kept.append(replace(op, value=_IRRELEVANT))
    return sorted(kept, key=lambda op: op.call_ns)


def _with_ends(ops: list[Op]) -> list[Op]:
    writers: defaultdict[State, list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        if op.changes:
            writers[op.value].append(index)
    seen = [(op.value if op.kind == "read" else op.expected, op.return_ns) for op in ops if _saw(op)]
    while seen:
        value, seen_ns = seen.pop()
        if value is None or len(writers[value]) != 1:
            continue
        index = writers[value][0]
        op = ops[index]
        if seen_ns is not None and (op.return_ns is None or op.return_ns > seen_ns):
            ops[index] = replace(op, return_ns=max(seen_ns, op.call_ns))
            if op.kind == "cas":
                seen.append((op.expected, ops[index].return_ns))
    return ops


def _saw(op: Op) -> bool:
    return op.certain and op.kind in {"read", "cas"}


def _relevant(ops: Sequence[Op], missed: set[State]) -> set[State]:
    relevant = {op.value if op.kind == "read" else op.expected for op in ops if _saw(op)} | missed
    waiting = [op for op in ops if op.kind == "cas" and not op.certain]
    while found := [op for op in waiting if op.value in relevant]:
        relevant |= {op.expected for op in found}
        waiting = [op for op in waiting if op.value not in relevant]
    return relevant


@dataclass(slots=True)
class _Frame:
    """A configuration: the placed operations (one bit each), the state after them, and the changes still to try."""

    placed: int
    state: State
    lifted: list[int]
    """Operations placed since the previous configuration: a change, and the reads that fit its state."""
    untried: list[int] = field(default_factory=list)


class _Search:
    """A depth-first search. Calls and returns form a linked list in order of time; a placed operation is taken out."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._certain = sum(op.certain for op in ops)
        # at the same moment calls come first: operations that touch are concurrent
        points = [(op.call_ns, 0, index) for index, op in enumerate(ops)]
        points += [(op.return_ns, 1, index) for index, op in enumerate(ops) if op.return_ns is not None]
        points.sort()
        self._call, self._return = [0] * len(ops), [0] * len(ops)
        self._is_call, self._op_of = [True], [-1]
        for place, (_, is_return, index) in enumerate(points, start=1):
            (self._return if is_return else self._call)[index] = place
            self._is_call.append(not is_return)
            self._op_of.append(index)
        count = len(points) + 1
        self._next = [*range(1, count), 0]
        self._previous = [count - 1, *range(count - 1)]

    def run(self, budget: int) -> tuple[Answer, int]:
        frames = [self._settled(_Frame(0, None, []))]
        tried: set[tuple[int, State]] = set()
        looked = 0
        while frames:
            if not self._certain:
                return Answer.YES, looked
            frame = frames[-1]
            if not frame.untried:
                for index in reversed(frame.lifted):
                    self._put_back(index)
                frames.pop()
                continue
            index = frame.untried.pop()
            placed, state = frame.placed | 1 << index, self._ops[index].value
            if (placed, state) in tried:
                continue
            if looked == budget:
                return Answer.UNDECIDED, looked
            looked += 1
            tried.add((placed, state))
            self._lift(index)
            frames.append(self._settled(_Frame(placed, state, [index])))
        return Answer.NO, looked

    def _settled(self, frame: _Frame) -> _Frame:
        """Places every read and miss that fits the current state: they change nothing, so later is never better."""
        candidates = list(self._candidates())
        while reads := [i for i in candidates if not self._ops[i].changes and self._ops[i].fits(frame.state)]:
            for index in reads:
                self._lift(index)
                frame.lifted.append(index)
                frame.placed |= 1 << index
            candidates = list(self._candidates())
        frame.untried = self._choices(candidates, frame.state)
        return frame

    def _candidates(self) -> Iterator[int]:
        """The operations that may come next: those called before any remaining operation returned."""
        place = self._next[0]
        while place and self._is_call[place]:
            yield self._op_of[place]
            place = self._next[place]

    def _choices(self, candidates: Sequence[int], state: State) -> list[int]:
        """The changes that fit, the best one last.

        If several unknown changes have the same effect, only the first call is tried: it can explain whatever the
        later calls can.
        """
        alike: set[tuple[str, State, State]] = set()
        choices = []
        for index in candidates:
            op = self._ops[index]
            if not op.changes or not op.fits(state):
                continue
            if not op.certain:
                if (what := (op.kind, op.expected, op.value)) in alike:
                    continue
                alike.add(what)
            choices.append(index)
        return sorted(choices, key=self._urgency, reverse=True)

    def _urgency(self, index: int) -> tuple[bool, float, float]:
        op = self._ops[index]
        return not op.certain, op.hint or _NEVER, _NEVER if op.return_ns is None else op.return_ns

    def _lift(self, index: int) -> None:
        for place in (self._call[index], self._return[index]):
            if place:
                self._next[self._previous[place]] = self._next[place]
                self._previous[self._next[place]] = self._previous[place]
        self._certain -= self._ops[index].certain

    def _put_back(self, index: int) -> None:
        for place in (self._return[index], self._call[index]):
            if place:
                self._next[self._previous[place]] = place
                self._previous[self._next[place]] = place
        self._certain += self._ops[index].certain


def core(history: Sequence[Op], *, budget: int = DEFAULT_BUDGET) -> list[Op]:
    """For a history that is not linearizable, a few certain operations that no order explains, in order of their calls.

    The history is cut as early as possible. Then reads and misses are dropped, and acknowledged changes are treated as
    unknown, as long as the rest is still not linearizable. Each step only allows more orders: if the rest has no valid
    order, the whole history has none. If the budget runs out, returns the smallest unexplained part so far.
    """
    left = budget

    def impossible(weaker: Sequence[Op]) -> bool:
        nonlocal left
        answer, looked = check(weaker, budget=min(left, _ATTEMPT))
        left -= looked
        return answer is Answer.NO

    ops = _cut_early(history, impossible)
    certain = {index for index, op in enumerate(ops) if op.certain}
    without_misses = {index for index in certain if ops[index].kind != "miss"}
    if impossible(_only(ops, without_misses)):
        certain = without_misses
    width = (len(certain) + 1) // 2
    while width and left:
        for part in _parts(sorted(certain, key=lambda index: ops[index].call_ns), width):
            if impossible(_only(ops, fewer := certain - part)):
                certain = fewer
        width //= 2
    return sorted((ops[index] for index in certain), key=lambda op: op.call_ns)


def _cut_early(history: Sequence[Op], impossible: Callable[[Sequence[Op]], bool]) -> list[Op]:
    """The operations that were called up to the earliest moment from which no order is possible."""
    ends = sorted({op.return_ns for op in history if op.return_ns is not None})
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if impossible(_until(history, ends[middle])):
            high = middle
        else:
            low = middle + 1
    return _until(history, ends[high])


def _until(history: Sequence[Op], end_ns: int) -> list[Op]:
    """The history as known at that moment: an operation that has not returned by then is unknown."""
    called = [op for op in history if op.call_ns <= end_ns]
    return [op if op.return_ns is None or op.return_ns <= end_ns else replace(op, return_ns=None) for op in called]


def _only(ops: Sequence[Op], certain: set[int]) -> list[Op]:
    return [op if index in certain else replace(op, return_ns=None) for index, op in enumerate(ops)]


def _parts(indexes: Sequence[int], width: int) -> Iterator[set[int]]:
    for start in range(0, len(indexes), width):
        yield set(indexes[start : start + width])
