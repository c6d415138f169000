"""What a reset took away is counted exactly, and what it must not take, or bring back, is caught."""

import dataclasses
import random

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.products.consul.snapshots import Entry
from hashidrill.testing.recordings import RecordingBuilder
from reset_runs import LOAD, OTHERS, RESTORE, Game, bloated, cas_recording, key, moment, ordinary, step


@pytest.fixture
def game(tmp_path):
    return Game(tmp_path / "run")


def counts(figures):
    """The fates of the writes that a test is about."""
    names = ("kept", "overwritten", "rolled_back", "lost", "resurrected", "in_flight")
    of_these = {name: figures[name] - (OTHERS if name == "kept" else 0) for name in names}
    return {name: count for name, count in of_these.items() if count}


def test_every_write_of_an_ordinary_reset_has_its_fate(game):
    held = ordinary(game).judged(snapshot="before")
    assert counts(held.figures) == {"kept": 1, "overwritten": 3, "rolled_back": 2}
    assert held.figures["acknowledged"] == 6 + OTHERS
    assert held.figures["keys_rolled_back"] == [key("a")]
    assert "2 rolled back" in held.text


def test_rolled_back_writes_have_a_limit_when_asked_for(tmp_path):
    assert ordinary(Game(tmp_path / "two")).judged(at_most=2)
    with pytest.raises(Broken, match=r"2 acknowledged writes were rolled back \(allowed: 1\), on .*/a"):
        ordinary(Game(tmp_path / "one")).judged(at_most=1)


PLANTED = {
    "acknowledged before the save and not in the snapshot": (
        lambda g: g.write("a", "w0", 11, 11.1).holds("a", None, None, None),
        {"lost": 1},
        "'w0' is not there in the snapshot: the key is absent",
    ),
    "an older one in the snapshot": (
        lambda g: g.write("a", "w0", 11, 11.1).write("a", "w1", 14.8, 14.99).holds("a", "w0", "w0", "w0"),
        {"lost": 1, "kept": 1},
        "'w1' is not there in the snapshot: the key holds 'w0'",
    ),
    "restored with one key missing": (
        lambda g: g.write("a", "w0", 11, 11.1).holds("a", "w0", None, None),
        {"lost": 1},
        "'w0' is not there right after the restore: the key is absent",
    ),
    "restored with a rolled-back key": (
        lambda g: g.write("a", "w0", 17, 17.1).holds("a", None, "w0", "w0"),
        {"resurrected": 1},
        "'w0' was rolled back, and is there right after the restore",
    ),
    "restored with a value that was overwritten before the snapshot": (
        lambda g: g.write("a", "w0", 11, 11.1).write("a", "w1", 12, 12.1).holds("a", "w1", "w0", "w0"),
        {"lost": 1, "resurrected": 1},
        "'w0' was overwritten before the snapshot, and is there right after the restore",
    ),
    "a key of the snapshot that is gone at the end": (
        lambda g: g.write("a", "w0", 11, 11.1).holds("a", "w0", "w0", None),
        {"lost": 1},
        "'w0' is not there at the end: the key is absent",
    ),
    "a write after the restore that is gone": (
        lambda g: g.write("a", "w0", 11, 11.1).write("a", "w1", 23, 23.1).holds("a", "w0", "w0", "w0"),
        {"lost": 1, "kept": 1},
        "'w1' is not there at the end: the key holds 'w0'",
    ),
    "a rolled-back write that is there at the end": (
        lambda g: g.write("a", "w0", 17, 17.1).holds("a", None, None, "w0"),
        {"resurrected": 1},
        "'w0' was rolled back, and is there at the end",
    ),
    "a rolled-back write over one of after the restore": (
        lambda g: g.write("a", "w0", 17, 17.1).write("a", "w1", 24, 24.1).holds("a", None, None, "w0"),
        {"lost": 1, "resurrected": 1},
        "'w1' is not there at the end: the key holds 'w0'",
    ),
    "a phantom": (
        lambda g: g.write("a", "w0", 17, 17.1).holds("a", None, None, "what"),
        {"rolled_back": 1},
        "'what' is there at the end, and no write can have put it there",
    ),
    "a refused write that is there": (
        lambda g: g.write("a", "w0", 11, 11.1).write("a", "w1", 23, 23.1, "fail").holds("a", "w0", "w0", "w1"),
        {"lost": 1},
        "'w1' is there at the end, and no write can have put it there",
    ),
    # off by one: the last nanosecond in which a write was surely acknowledged before the save, and after the restore
    "acknowledged just before the save": (
        lambda g: g.write("a", "w0", 11, 15 - 1e-9).holds("a", None, None, None),
        {"lost": 1},
        "'w0' is not there in the snapshot",
    ),
    "begun just after the restore": (
        lambda g: g.write("a", "w0", 21, 21.5).holds("a", None, None, None),
        {"lost": 1},
        "'w0' is not there at the end",
    ),
    "acknowledged just before the restore, and there": (
        lambda g: g.write("a", "w0", 17, 20 - 1e-9).holds("a", None, None, "w0"),
        {"resurrected": 1},
        "'w0' was rolled back, and is there at the end",
    ),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_is_caught_and_counted(defect, game):
    plant, figures, text = PLANTED[defect]
    game.write("good", "g0", 11, 11.1).holds("good", "g0", "g0", "g0")
    plant(game)
    with pytest.raises(Broken) as broken:
        game.judged()
    assert text in broken.value.text
    found = counts(broken.value.figures)
    assert found.pop("kept") == 1 + figures.get("kept", 0)
    found.pop("overwritten", None)
    assert found == {name: n for name, n in figures.items() if name != "kept"}
    for name in ("lost", "resurrected"):
        assert broken.value.figures[f"keys_{name}"] == ([key("a")] if name in figures else [])


SOUND = {
    "in flight at the save, and in it": (15 - 1e-9, 15, "w0", "w0", "w0", {"kept": 1}),
    "in flight at the save, and not in it": (14, 15, None, None, None, {"rolled_back": 1}),
    "begun with the end of the save": (16, 16.1, "w0", "w0", "w0", {"kept": 1}),
    "in flight at the restore, and there": (19, 20, None, "w0", "w0", {"kept": 1}),
    "in flight at the restore, and rolled back": (19, 20.5, None, None, None, {"rolled_back": 1}),
    "in flight at the restore, and only seen at the end": (19, 21.5, None, None, "w0", {"kept": 1}),
    "in flight at the restore, and never seen": (19, 21.5, None, None, None, {"in_flight": 1}),
    "begun while the second snapshot was taken, and in it": (21.5, 21.6, None, "w0", "w0", {"kept": 1}),
    "begun while the second snapshot was taken, and not in it": (21.5, 21.6, None, None, "w0", {"kept": 1}),
}


@pytest.mark.parametrize("case", SOUND)
def test_a_write_that_may_be_on_either_side_accuses_nobody(case, game):
    start, end, saved, after, final, figures = SOUND[case]
    held = game.write("a", "w0", start, end).holds("a", saved, after, final).judged()
    assert counts(held.figures) == figures


def test_a_write_of_unknown_outcome_may_turn_up_at_any_time(game):
    game.write("good", "g0", 11, 11.1).holds("good", "g0", "g0", "g0")
    game.write("a", "w0", 12, 13, "unknown").holds("a", None, None, "w0")
    game.write("b", "w1", 12, 13, "unknown").holds("b", "w1", "w1", "w1")
    assert counts(game.judged().figures) == {"kept": 1}


def test_indexes_and_keys_that_nobody_writes_have_to_be_the_snapshots(game):
    ordinary(game)
    game.saved["app/config"] = Entry("app/config", b"x", 3, 3)
    game.saved["app/gone"] = Entry("app/gone", b"x", 3, 3)
    game.after["app/config"] = Entry("app/config", b"x", 3, 30)
    game.after["hashidrill-markers/restored"] = Entry("hashidrill-markers/restored", b"", 1, 1)
    game.after[key("a")] = dataclasses.replace(game.after[key("a")], modify_index=8)
    with pytest.raises(Broken) as broken:
        game.judged()
    assert broken.value.figures["keys_not_as_saved"] == [key("a"), "app/config", "app/gone"]
    assert "app/config: its modify_index was 3 in the snapshot, and is 30" in broken.value.text
    assert "app/gone: it is not there right after the restore" in broken.value.text


def test_what_cannot_be_judged_is_invalid(tmp_path):
    game = Game(tmp_path / "without-file")
    ordinary(game).builder.only_final_reads(LOAD, game.finals)
    with pytest.raises(HypothesisInvalidError, match=r"artifacts/snapshot-before\.snap: this run left no such file"):
        hypothesis.get("no_write_lost_but_rolled_back").check(game.builder.build(), {"load": LOAD})
    with pytest.raises(HypothesisInvalidError, match="this run restored the snapshot 'before', not 'other'"):
        ordinary(Game(tmp_path / "other")).judged(snapshot="other")
    twice = ordinary(Game(tmp_path / "twice"))
    moment(twice.builder, RESTORE, 26, 27, 28, snapshot="before")
    with pytest.raises(HypothesisInvalidError, match="restored snapshots 2 times"):
        twice.judged()
    unread = ordinary(Game(tmp_path / "unread")).write("b", "w", 11, 12)
    with pytest.raises(HypothesisInvalidError, match=r"the final reads of kv-writes miss 1 keys: .*/b"):
        unread.judged()
    with pytest.raises(HypothesisInvalidError, match="no write of kv-writes was acknowledged"):
        Game(tmp_path / "none").write("a", "w", 11, 12, "unknown").holds("a", None, None, None).judged(others=False)


def simulated(game, seed, *, lose=False):
    """A random history with its true order: each write takes effect at one moment. The true fates are counted apart.

    With `lose` the restore loses one key, which nobody writes before the second snapshot; it is the last result.
    """
    rng = random.Random(seed)
    writes = []
    for n in range(120):
        start = rng.uniform(8, 28)
        end = start + rng.choice([0.01, 0.1, 1.5])
        outcome = rng.choices(["ok", "unknown", "fail"], [8, 1, 1])[0]
        applied = (
            None if outcome == "fail" or (outcome == "unknown" and rng.random() < 0.5) else rng.uniform(start, end)
        )
        name, value = str(rng.randrange(12)), f"w{n}"
        game.write(name, value, start, end, outcome)
        writes.append((applied, name, value, outcome))
    taken, restored, looked = rng.uniform(15, 16), rng.uniform(20, 21), rng.uniform(21, 22)

    def state_at(since, until, base):
        done = sorted(write for write in writes if write[0] is not None and since <= write[0] < until)
        return {**base, **{name: value for _, name, value, _ in done}}

    saved = state_at(0, taken, {})
    untouched = sorted(set(saved) - set(state_at(restored, looked, {})))
    lost = rng.choice(untouched) if lose else None
    state = {name: value for name, value in saved.items() if name != lost}
    after, final = state_at(restored, looked, state), state_at(restored, 99, state)
    for name in {name for _, name, _, _ in writes}:
        game.holds(name, saved.get(name), after.get(name), final.get(name))
    rolled_back = {value for applied, _, value, o in writes if o == "ok" and taken <= applied < restored}
    kept = {value for _, name, value, o in writes if o == "ok" and final.get(name) == value}
    return rolled_back, kept, sum(o == "ok" for _, _, _, o in writes), lost


@pytest.mark.parametrize("seed", range(25))
def test_a_simulated_reset_is_counted_as_it_was(seed, game):
    """What is decided is right, and what is right is decided but for writes in flight at the two moments."""
    rolled_back, kept, acknowledged, _ = simulated(game, seed)
    held = game.judged()
    figures = held.figures
    assert figures["lost"] == figures["resurrected"] == 0
    assert figures["kept"] == len(kept) + OTHERS
    assert figures["rolled_back"] <= len(rolled_back) <= figures["rolled_back"] + figures["in_flight"]
    assert sum(counts(figures).values()) == figures["acknowledged"] - OTHERS == acknowledged


@pytest.mark.parametrize("seed", range(8))
def test_a_simulated_reset_that_loses_a_key_is_caught(seed, game):
    *_, lost = simulated(game, seed, lose=True)
    with pytest.raises(Broken) as broken:
        game.judged()
    assert broken.value.figures["keys_lost"] == [key(lost)]


# compare-and-set


def cas_game(game, *operations):
    return hypothesis.get("cas_does_not_cross_reset").check(cas_recording(game, *operations), {"load": LOAD})


def test_a_cas_with_an_index_of_before_the_reset_may_succeed_only_on_the_same_key(game):
    held = cas_game(game, (23, step("miss", "w2", 30, "w1")), (24, step("cas", "w3", 7, "w0")))
    assert (held.figures["refused"], held.figures["succeeded_on_the_same_key"]) == (1, 1)


@pytest.mark.parametrize(
    "operation",
    [step("cas", "w2", 30, "w1"), step("cas", "w2", 7, "w1"), step("cas", "w2", 30, "w0")],
    ids=["what was rolled back", "another value at the old index", "another index of the old value"],
)
def test_a_cas_that_crosses_the_reset_is_caught(operation, game):
    with pytest.raises(
        Broken, match=r"1 of 1 compare-and-sets .* succeeded on a key that the reset had changed"
    ) as broken:
        cas_game(game, (23, operation))
    assert "the snapshot held 'w0' at index 7" in broken.value.text
    assert broken.value.figures["keys_crossed"] == ["k"]


def test_a_cas_that_creates_a_key_which_the_snapshot_holds_is_caught(game):
    game.builder.write(LOAD, "k", "", detail=step("read"), start=10.5, end=10.6)
    with pytest.raises(Broken, match="succeeded on a key that the reset had changed"):
        cas_game(game, (23, step("cas", "w2", 0, None)))


def test_a_cas_in_flight_at_the_restore_accuses_nobody_and_none_across_it_is_invalid(game):
    with pytest.raises(
        HypothesisInvalidError, match="after the reset, no client of kv-writes sent an index from before it"
    ):
        cas_game(game, (20.5, step("cas", "w2", 30, "w1")))


# bytes and times of a commit


def amplification(recording, **params):
    return hypothesis.get("write_amplification_below").check(recording, {"times": 2.0, **params})


def test_bytes_per_commit_are_compared_with_the_steady_state(tmp_path):
    recording = bloated(tmp_path / "run", 50).build()
    held = amplification(recording)
    assert held.figures["bytes_per_commit"] == pytest.approx(16e3, rel=0.01)
    assert held.figures["times"] == pytest.approx(1, rel=0.01)
    with pytest.raises(Broken, match=r"leader wrote 800.0 kB per commit, 50.0 times the 16.0 kB") as broken:
        amplification(recording, since="start")
    assert broken.value.figures["times"] == pytest.approx(50, rel=0.02)
    assert amplification(recording, since="start", times=51.0, host="consul-1")


def test_a_restart_takes_no_commits_away(tmp_path):
    builder = RecordingBuilder(tmp_path / "run").fault("consul.raft.bloat", at=10, until=30).load(LOAD).leader()
    # it begins again at its snapshot, and catches up at once
    builder.series("raft.commit_index", lambda t: 5 if t == 20 else 1000 + 20 * t, host="consul-1", every=1)
    builder.series("process.wchar_rate", 20 * 16e3, host="consul-1", every=1)
    builder.series("raft.commit_index", lambda t: 1000 + 20 * t if t < 25 else 20 * t, host="consul-2", every=1)
    builder.series("process.wchar_rate", 20 * 16e3, host="consul-2", every=1)
    held = amplification(builder.build(), since="start", host="consul-2")
    assert held.figures["commits"] == pytest.approx(20 * 18, abs=41)
    assert held.figures["times"] == pytest.approx(1, rel=0.1)


def test_too_few_commits_are_invalid(tmp_path):
    with pytest.raises(HypothesisInvalidError, match="20 are needed"):
        amplification(bloated(tmp_path / "run", 50, rate=0.5).build())


def test_commit_times_count_from_some_time_after_the_fault(tmp_path):
    builder = RecordingBuilder(tmp_path / "run").fault("consul.raft.bloat", at=10, until=28).load(LOAD)
    builder.series("raft.commit_time", lambda t: 0.5 if 12 <= t < 48 else 0.005, host="consul-1", every=2)
    check = hypothesis.get("raft_commit_below").check
    recording = builder.build()
    assert check(recording, {"below": "50ms"}).figures["commit_time_s"] == pytest.approx(0.005)
    with pytest.raises(
        Broken, match=r"95% of \d+ samples of raft.commitTime were within 500ms \(allowed: under 50ms\)"
    ):
        check(recording, {"below": "50ms", "within": "5s"})
    with pytest.raises(Broken):
        check(recording, {"below": "50ms", "since": "start", "within": "2s"})
    with pytest.raises(HypothesisInvalidError, match=r"raft\.commit_time was not sampled"):
        check(recording, {"below": "50ms", "within": "25s"})


@pytest.mark.parametrize("began", range(10))
def test_a_commit_time_that_knows_of_what_was_before_does_not_count(tmp_path, began):
    """Consul's intervals begin at some second of ten, and what it shows is the mean of the last finished one."""

    def shown(t):
        start = (t - began) // 10 * 10 + began - 10
        return 0.25 * sum(12 <= second < 40 for second in range(int(start), int(start) + 10)) / 10

    builder = RecordingBuilder(tmp_path / "run").fault("network.latency", at=12, until=40).load(LOAD)
    builder.series("raft.commit_time", shown, host="consul-1", every=1)
    check, recording = hypothesis.get("raft_commit_below").check, builder.build()
    assert check(recording, {"below": "1s", "since": "start", "percent": "1%"}).figures["commit_time_s"] == 0.25


@pytest.mark.parametrize(("leave_out", "held"), [(["vault/"], True), ([], False), (["other/"], False)])
def test_what_another_program_writes_all_the_time_can_be_left_out(tmp_path, leave_out, held):
    game = ordinary(Game(tmp_path))
    game.saved["vault/core/x"] = Entry("vault/core/x", b"1", 7, 7)
    game.after["vault/core/x"] = Entry("vault/core/x", b"2", 7, 9)
    if held:
        assert game.judged(leave_out=leave_out).figures["keys_not_as_saved"] == []
    else:
        with pytest.raises(Broken, match="1 keys differed from the snapshot"):
            game.judged(leave_out=leave_out)
