"""Recorded runs in which a snapshot was restored, a register was written with CAS, or the Raft log was bloated."""

from hashidrill.core import hypothesis
from hashidrill.core.protocols.abc import Detail
from hashidrill.products.consul.snapshots import Entry, restored_name, saved_name
from hashidrill.testing.recordings import RecordingBuilder
from hashidrill.testing.snapshots import packed

SAVE, RESTORE = "consul.snapshot.save", "consul.snapshot.restore"


LOAD = "kv-writes"


OTHERS = 140


def key(name):
    return f"hashidrill/{LOAD}/{name}"


def moment(builder, kind, start, end, proven, **params):
    """A fault whose apply went on from `start` to `end`."""
    fault_id = f"{kind}-{start}"
    evidence = {"ok": True, "asked": "", "measured": "", "figures": {}}
    target = {"host": "consul-1", "address": "10.73.0.11", "agent": "consul"}
    builder.event("fault.intent", at=start, fault_id=fault_id, kind=kind, step=0, target=target, params=params, undo={})
    builder.event("fault.applied", at=end, fault_id=fault_id)
    builder.event("fault.proven", at=proven, fault_id=fault_id, evidence=evidence)
    builder.event("fault.reverted", at=proven + 1, fault_id=fault_id)
    builder.event("fault.gone", at=proven + 1, fault_id=fault_id, evidence=evidence)


class Game:
    """A run with a snapshot taken between 15 and 16 and restored between 20 and 21; the second one by 22."""

    def __init__(self, path):
        self.path = path
        self.builder = RecordingBuilder(path)
        moment(self.builder, SAVE, 15, 16, 16.5, name="before")
        moment(self.builder, RESTORE, 20, 21, 22, snapshot="before")
        self.saved, self.after, self.finals = {}, {}, {}

    def write(self, name, value, start, end, outcome="ok"):
        self.builder.write(LOAD, key(name), value, start=start, end=end, outcome=outcome)
        return self

    def holds(self, name, saved, after, final):
        """What the key holds in the snapshot, right after the restore, and at the end (None: absent)."""
        for where, value in ((self.saved, saved), (self.after, after)):
            if value is not None:
                where[key(name)] = Entry(key(name), f"{value};xxx".encode(), 7, 7 if value == saved else 9)
        self.finals[key(name)] = final
        return self

    def others(self):
        """Writes that nothing overwrites, as most of a load are: before the save, and from the second snapshot on."""
        for n in range(OTHERS // 2):
            for at, saved in ((11 + n * 0.05, True), (22 + n * 0.01, False)):
                name, value = f"other/{at:.2f}", f"o{at:.2f}"
                self.write(name, value, at, at + 0.01).holds(name, *([value] * 2 if saved else [None] * 2), value)
        return self

    def recording(self, *, others=True):
        """The run so far; with `others`, also what the rest of the load wrote."""
        if others:
            self.others()
        (self.path / "artifacts").mkdir(parents=True, exist_ok=True)
        for name, entries in ((saved_name("before"), self.saved), (restored_name("before"), self.after)):
            (self.path / "artifacts" / name).write_bytes(packed(entries.values()))
        self.builder.only_final_reads(LOAD, self.finals)
        return self.builder.build()

    def judged(self, hypothesis_name="no_write_lost_but_rolled_back", *, others=True, **params):
        return hypothesis.get(hypothesis_name).check(self.recording(others=others), {"load": LOAD, **params})


def ordinary(game):
    """One key: overwritten before the snapshot, in it, rolled back twice, overwritten and kept after the restore."""
    for n, (start, end) in enumerate([(11, 11.1), (14, 14.1), (17, 17.1), (18, 18.1), (24, 24.1), (25, 25.1)]):
        game.write("a", f"w{n}", start, end)
    return game.holds("a", "w1", "w1", "w5")


def step(op, value=None, index=0, expected=None):
    return Detail("cas", {"op": op, "value": value, "index": index, "expected": expected})


def cas_recording(game, *operations):
    """One key that held w0 at index 7 in the snapshot, and w1 at index 30 before the restore."""
    game.builder.write(LOAD, "k", "", detail=step("write", "w0"), start=11, end=11.1)
    game.builder.write(LOAD, "k", "", detail=step("read", "w0", 7), start=12, end=12.1)
    game.builder.write(LOAD, "k", "", detail=step("write", "w1"), start=17, end=17.1)
    game.builder.write(LOAD, "k", "", detail=step("read", "w1", 30), start=18, end=18.1)
    for at, operation in operations:
        game.builder.write(LOAD, "k", "", detail=operation, start=at, end=at + 0.1)
    game.saved = game.after = {"k": Entry("k", b"w0", 7, 7)}
    return game.recording(others=False)


def bloated(path, factor, *, until=30, rate=20.0):
    builder = RecordingBuilder(path).fault("consul.raft.bloat", at=10, until=until).load(LOAD).leader()
    builder.series("raft.commit_index", lambda t: 100 + rate * t, host="consul-1", every=1)
    builder.series(
        "process.wchar_rate", lambda t: rate * 16e3 * (factor if 10 <= t < until else 1), host="consul-1", every=1
    )
    return builder
