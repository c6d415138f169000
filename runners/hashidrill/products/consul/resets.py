"""What happened to each acknowledged write of a load when a snapshot was restored during the run.

A reset cuts a run's history in two. Writes acknowledged before the save must be in the snapshot. Writes acknowledged
between save and restore are *rolled back*, and must not reappear. Writes acknowledged after the restore stay. Three
states are known exactly: the snapshot (its file), the state right after the restore (a second file), and the state at
the end (the final reads). A write in flight at the save or the restore may be on either side: it is possible on both
and required on neither, unless the files decide it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.judging import measure
from hashidrill.core.recording.reader import FaultWindow, Operations, Recording
from hashidrill.products.consul.loads.kv import ONCE_PREFIX, PREFIX, identify
from hashidrill.products.consul.markers import PREFIX as MARKERS
from hashidrill.products.consul.snapshots import Entry, Snapshot, read_snapshot, restored_name, saved_name

SAVE, RESTORE = "consul.snapshot.save", "consul.snapshot.restore"


class Fate(StrEnum):
    """The fate of one acknowledged write."""

    KEPT = "kept"
    OVERWRITTEN = "overwritten"
    ROLLED_BACK = "rolled back"
    LOST = "lost"
    RESURRECTED = "resurrected"
    IN_FLIGHT = "in flight"
    """The write was in flight at the save or at the restore, so it is unknown whether it belongs before or after."""


@dataclass(frozen=True)
class Reset:
    """One save and its restore; each is a pair of times in ns between which it happened.

    `looked_ns`: the second snapshot, of the restored state, was complete by then.
    """

    name: str
    save_ns: tuple[int, int]
    restore_ns: tuple[int, int]
    looked_ns: int
    saved: Snapshot
    after: Snapshot


def find_reset(recording: Recording, name: str | None = None) -> Reset:
    """The reset of this run to the snapshot of that name. Raises HypothesisInvalidError unless there is exactly one."""
    restores = measure.faults(recording, RESTORE)
    if len(restores) != 1:
        raise HypothesisInvalidError(
            f"this run restored snapshots {len(restores)} times; only one restore can be judged"
        )
    [restore] = restores
    restored = str(restore.params["snapshot"])
    if name not in (None, restored):
        raise HypothesisInvalidError(f"this run restored the snapshot {restored!r}, not {name!r}")
    saves = [window for window in measure.faults(recording, SAVE) if window.params["name"] == restored]
    if len(saves) != 1:
        raise HypothesisInvalidError(f"this run saved the snapshot {restored!r} {len(saves)} times; save it once")
    began, ended = _moments(restore)
    return Reset(
        restored,
        _moments(saves[0]),
        (began, ended),
        restore.proven_ns or ended,
        read_snapshot(recording.artifact(saved_name(restored))),
        read_snapshot(recording.artifact(restored_name(restored))),
    )


def _moments(window: FaultWindow) -> tuple[int, int]:
    return window.intent_ns, window.intent_ns if window.applied_ns is None else window.applied_ns


@dataclass
class Judged:
    """`fates` is keyed by the index of each acknowledged write. The other mappings are keyed by KV key; their values
    are sentences that say what is wrong.
    """

    fates: dict[int, Fate] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    resurrected: dict[str, str] = field(default_factory=dict)
    phantoms: dict[str, str] = field(default_factory=dict)
    differs: dict[str, str] = field(default_factory=dict)
    """Keys that differed from the snapshot right after the restore, although no load had written them."""
    unread: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    """Acknowledged writes whose value was seen: in the snapshot, right after the restore, or at the end."""

    def count(self, fate: Fate) -> int:
        return Counter(self.fates.values())[fate]

    def of(self, *fates: Fate) -> list[int]:
        """The acknowledged writes with one of these fates."""
        return [index for index, fate in self.fates.items() if fate in fates]


def judge(
    ops: Operations,
    finals: Mapping[str, str | None],
    reset: Reset,
    load: str,
    others: Sequence[str],
    *,
    leave_out: Sequence[str] = (),
) -> Judged:
    """The fate of every acknowledged write of `load`; the keys of the loads `others` are ignored.

    Keys below the prefixes `leave_out` are ignored too, because another program may write them at any time.
    """
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(ops.keys):
        if ops.outcome[index] != "fail":
            by_key[key].append(index)
    judged = Judged()
    for key in sorted({*by_key, *finals}):
        if key not in finals:
            judged.unread += [key] if any(ops.ok[index] for index in by_key[key]) else []
            continue
        _Key(key, ops, by_key[key], reset, finals[key]).judge(judged)
    skip = [f"{prefix}/{name}/" for prefix in (PREFIX, ONCE_PREFIX) for name in (load, *others)]
    _compare(reset, judged, skip=[*skip, *leave_out])
    return judged


@dataclass(frozen=True)
class _State:
    """The possible content of a key at one moment: `base`, or a write from `may`, which may have taken effect by then.
    The writes in `surely` did take effect by then.

    `before` is a value that the key rightly held earlier: it may be out of date, but it is not resurrected.
    """

    moment: str
    held: str | None
    base: str | None
    may: Sequence[int]
    surely: Sequence[int] = ()
    before: str | None = None


class _Key:
    """One key: its writes (all that were not certainly refused), and its content at the three moments."""

    def __init__(self, key: str, ops: Operations, writes: list[int], reset: Reset, final: str | None) -> None:
        self.key, self.ops, self.writes, self.reset = key, ops, writes, reset
        self.acked = [index for index in writes if ops.ok[index]]
        self.of_value: defaultdict[str | None, list[int]] = defaultdict(list)
        for index in writes:
            self.of_value[ops.values[index]].append(index)
        self.saved, self.after, self.final = _held(reset.saved, key), _held(reset.after, key), final
        self.gone: int | None = None
        """The lost write."""
        self.back: str | None = None
        """The resurrected value."""

    def judge(self, judged: Judged) -> None:
        """Checks the three states in order, up to the first wrong one; then decides the fate of each write."""
        if self._saved_is_right(judged) and self._after_is_right(judged):
            self._final_is_right(judged)
        for value in {self.saved, self.after, self.final} - {None}:
            judged.seen.update([index for index in self.of_value[value] if self.ops.ok[index]][-1:])
        for index in self.acked:
            judged.fates[index] = self._fate(index)

    def _saved_is_right(self, judged: Judged) -> bool:
        """Whether the snapshot may hold this value, given all writes that were acknowledged before the save."""
        began, ended = self.reset.save_ns
        surely = [index for index in self.acked if self.ops.end_ns[index] < began]
        may = [index for index in self.writes if self.ops.start_ns[index] <= ended]
        return self._check(_State("in the snapshot", self.saved, None, may, surely), judged)

    def _after_is_right(self, judged: Judged) -> bool:
        """Whether the restored state is the snapshot's, except for writes after the restore or in flight."""
        may = [index for index in self._since_restore() if self.ops.start_ns[index] <= self.reset.looked_ns]
        if not self._check(_State("right after the restore", self.after, self.saved, may), judged):
            return False
        one, two = self.reset.saved.kv.get(self.key), self.reset.after.kv.get(self.key)
        if self.after == self.saved and one != two:
            judged.differs[self.key] = _difference(one, two)
        return True

    def _final_is_right(self, judged: Judged) -> None:
        """Whether the final value may be right, given all writes that were acknowledged since the restore."""
        surely = [index for index in self.acked if self.ops.start_ns[index] >= self.reset.restore_ns[1]]
        if self.after != self.saved:  # a write seen right after the restore counts, even if it was in flight
            surely += [index for index in self.of_value[self.after] if self.ops.ok[index]]
        self._check(_State("at the end", self.final, self.after, self._since_restore(), surely, self.saved), judged)

    def _since_restore(self) -> list[int]:
        """Writes that may have taken effect after the restore; writes of unknown outcome may do so at any time."""
        began = self.reset.restore_ns[0]
        return [index for index in self.writes if not self.ops.ok[index] or self.ops.end_ns[index] >= began]

    def _check(self, state: _State, judged: Judged) -> bool:
        """Whether the key may hold this value. If not, notes a missing write as lost, an extra value as resurrected."""
        last = max(state.surely, key=lambda index: int(self.ops.start_ns[index]), default=None)
        if state.held == state.base and last is None:
            return True
        if any(self._may_be_last(index, last) for index in set(state.may) & set(self.of_value[state.held])):
            return True
        if last is not None or state.base is not None:
            self.gone = next((i for i in self.of_value[state.base] if self.ops.ok[i]), None) if last is None else last
            value = state.base if last is None else self.ops.values[last]
            there = "the key is absent" if state.held is None else f"the key holds {state.held!r}"
            judged.lost[self.key] = f"{value!r} is not there {state.moment}: {there}"
        rightful = {state.base, state.before, *(self.ops.values[index] for index in state.may)}
        if state.held is not None and state.held not in rightful:
            self._came_back(state.held, state.moment, judged)
        return False

    def _may_be_last(self, index: int, last: int | None) -> bool:
        return bool(not self.ops.ok[index] or last is None or self.ops.start_ns[last] <= self.ops.end_ns[index])

    def _came_back(self, held: str, moment: str, judged: Judged) -> None:
        acked = [index for index in self.of_value[held] if self.ops.ok[index]]
        if not acked:
            judged.phantoms[self.key] = f"{held!r} is there {moment}, and no write can have put it there"
            return
        self.back = held
        past = "overwritten before the snapshot" if self.ops.end_ns[acked[0]] < self.reset.save_ns[0] else "rolled back"
        judged.resurrected[self.key] = f"{held!r} was {past}, and is there {moment}"

    def _fate(self, index: int) -> Fate:
        value, start, end = self.ops.values[index], int(self.ops.start_ns[index]), int(self.ops.end_ns[index])
        if index == self.gone:
            return Fate.LOST
        if value == self.back:
            return Fate.RESURRECTED
        if value == self.final:
            return Fate.KEPT
        if value in (self.saved, self.after) or start >= self.reset.restore_ns[1]:
            return Fate.OVERWRITTEN
        if end >= self.reset.restore_ns[0]:  # in flight at the restore
            unseen = self.after == self.saved and end < self.reset.restore_ns[1]
            return Fate.ROLLED_BACK if unseen else Fate.IN_FLIGHT
        return self._fate_at_save(start, end)

    def _fate_at_save(self, start: int, end: int) -> Fate:
        """The fate of a write that took effect before the restore and is not in the snapshot."""
        began, ended = self.reset.save_ns
        if end < began:
            return Fate.OVERWRITTEN
        there = next((i for i in self.of_value[self.saved] if self.ops.ok[i]), None)
        if start > ended or self.saved is None or (there is not None and self.ops.end_ns[there] < start):
            return Fate.ROLLED_BACK
        return Fate.OVERWRITTEN if there is not None and self.ops.start_ns[there] > end else Fate.IN_FLIGHT


def _held(snapshot: Snapshot, key: str) -> str | None:
    entry = snapshot.kv.get(key)
    return None if entry is None else identify(entry.value)


def _compare(reset: Reset, judged: Judged, skip: Sequence[str]) -> None:
    """Keys that no load writes must equal the snapshot's, except for locks whose sessions ended."""
    for key in sorted({*reset.saved.kv, *reset.after.kv}):
        one, two = reset.saved.kv.get(key), reset.after.kv.get(key)
        if one == two or key.startswith((*skip, f"{MARKERS}/")) or (one is not None and one.session):
            continue
        judged.differs[key] = _difference(one, two)


def _difference(one: Entry | None, two: Entry | None) -> str:
    if one is None or two is None:
        return "it was not in the snapshot" if one is None else "it is not there right after the restore"
    names = [each.name for each in fields(Entry) if getattr(one, each.name) != getattr(two, each.name)]
    return "; ".join(
        f"its {name} was {getattr(one, name)} in the snapshot, and is {getattr(two, name)}" for name in names
    )
