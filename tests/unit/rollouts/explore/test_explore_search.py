"""The search on a simulated store: it finds planted bugs sooner than chance, tells no lie, and goes on after a kill."""

import dataclasses
import statistics
from collections import Counter

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.rollouts.bisect import trials as bisect
from hashidrill.rollouts.bisect.trials import Outcome
from hashidrill.rollouts.explore import report
from hashidrill.rollouts.explore.guidance import Seen
from hashidrill.rollouts.explore.search import BASELINES, BaselineError, BrokenWithoutFaultError, Search, TrialLog
from hashidrill.rollouts.explore.space import GONE, LENGTHS, Arm, Move, Space, from_plain, plain, without
from simulated_store import FOLLOWER, LEADER, SPACE, Store
from store_trials import SHOWN, StoreTrials
from store_world import OPTIONS

pytestmark = pytest.mark.usefixtures("logs_in_memory")


@pytest.fixture
def logs_in_memory(monkeypatch):
    """No sync to disk: a search logs hundreds of trials."""
    monkeypatch.setattr(bisect, "append_line", bisect.os.write)


def search(path, store, *, seed=1, most_trials=60, kind=Search, **options):
    """A search that has ended, with its log at `path`; it goes on with a log that is there."""
    log = TrialLog.resume(path) if path.exists() else TrialLog.create(path, {"experiment": "store"})
    made = kind(options.pop("space", SPACE), store, log, seed=seed, most_trials=most_trials, **options)
    try:
        made.search()
    finally:
        log.close()
    return made


class ToTheFirst(Search):
    """Ends at the first trial that breaks the promise: `first` is its number."""

    first = None

    def _look_into(self, candidate, seen, number):
        self.first = number
        self.most_trials = number


def first_found(path, strategy, most_trials):
    """The median of trials until the promise breaks, of five seeds."""
    firsts = []
    for seed in range(5):
        store = Store(planted=True, seed=seed)
        made = search(path, store, seed=seed, most_trials=most_trials, kind=ToTheFirst, strategy=strategy)
        firsts.append(made.first or most_trials + 1)
        path.unlink()
    return statistics.median(firsts)


def test_random_search_needs_three_times_as_many_trials(tmp_path):
    guided, chance = (first_found(tmp_path / "log", *way) for way in (("guided", 300), ("random", 900)))

    assert chance >= 3 * guided, (guided, chance)


def test_nothing_is_found_where_there_is_no_bug(tmp_path):
    made = search(tmp_path / "log", Store(by_itself=0.01), most_trials=500)

    assert made.result.found == []
    assert made.result.unconfirmed, "no trial broke by chance: this says nothing"
    assert len(made.result.trials) == 500


def test_a_finding_is_shrunk_confirmed_and_told_once(tmp_path):
    """Once in each of its last states, which differ with its timing: three times in a search, on average."""
    counts = []
    for seed in range(1, 5):
        told = []
        log = tmp_path / f"log-{seed}"
        made = search(log, Store(planted=True), seed=seed, most_trials=300, tell=told.append)
        counts.append(len(told))

        assert told == made.result.found
        assert len({found.signature for found in told}) == len(told) >= 1
        assert made.result.again.total() > 0
        for found in told:
            first, *_, last = found.candidate
            assert first.on == FOLLOWER
            assert last.on == LEADER
            assert found.broke >= 0.6 * found.of
            assert found.of >= 10
    assert sum(counts) <= 3 * len(counts), counts


def test_what_is_shrunk_has_no_simpler_form_that_breaks(tmp_path):
    made = search(tmp_path / "log", Store(planted=True, fires=1.0, invalid=0.0), most_trials=300)

    [found, *_] = made.result.found
    certain = Store(planted=True, fires=1.0, invalid=0.0)
    assert all(certain(simpler).outcome is not Outcome.BROKEN for simpler in SPACE.simpler(found.candidate))


@pytest.mark.lie
def test_trials_that_are_invalid_are_never_findings(tmp_path):
    """A promise that breaks in each INVALID trial."""

    def run(candidate, beat_s):
        outcome = Outcome.INVALID if candidate else Outcome.HELD
        return Seen(outcome, "the machine was busy", ("no_acknowledged_write_lost",), took_s={"method": 1.0})

    made = search(tmp_path / "log", run)

    assert made.result.found == made.result.unconfirmed == []
    assert not made.result.states


@pytest.mark.lie
def test_what_broke_once_by_chance_is_no_finding(tmp_path):
    def run(candidate, beat_s):
        run.played += 1
        broken = run.played == BASELINES + 5
        return Seen(Outcome.BROKEN if broken else Outcome.HELD, "", ("p",) if broken else (), took_s={"method": 1.0})

    run.played = 0
    made = search(tmp_path / "log", run)

    assert made.result.found == []
    assert [promise for _, promise in made.result.unconfirmed] == ["p"]


@pytest.mark.lie
def test_a_promise_that_breaks_beside_another_one_is_found_too(tmp_path):
    """An earlier one of the same trials, which is found first, hid it: its repeats counted as held."""

    def run(candidate, beat_s):
        broken = ("p", "q") if candidate else ()
        return Seen(Outcome.BROKEN if broken else Outcome.HELD, "", broken, took_s={"method": 1.0})

    made = search(tmp_path / "log", run, most_trials=200)

    assert {found.promise for found in made.result.found} == {"p", "q"}
    assert {found.broke / found.of for found in made.result.found} == {1.0}


@pytest.mark.lie
def test_a_repeat_that_says_nothing_about_the_promise_did_not_hold(tmp_path):
    """Every second trial with a fault is about another promise alone: all others break it."""
    played = Counter()

    def run(candidate, beat_s):
        played[bool(candidate)] += 1
        if not candidate or played[True] % 2 == 0:
            return Seen(Outcome.HELD, unjudged=("p",) if candidate else (), took_s={"method": 1.0})
        return Seen(Outcome.BROKEN, "", ("p",), took_s={"method": 1.0})

    [found, *_] = search(tmp_path / "log", run, most_trials=200).result.found

    assert found.broke == found.of


@pytest.mark.parametrize(
    ("outcome", "kind", "words"),
    [
        (Outcome.BROKEN, BrokenWithoutFaultError, "without any fault p broke"),
        (Outcome.INVALID, BaselineError, "are not valid: the steady state broke"),
    ],
)
def test_promises_that_do_not_hold_without_faults_end_the_search(outcome, kind, words, tmp_path):
    """The exit code goes by the kind: the words of an INVALID trial may say that something broke."""
    with pytest.raises(BaselineError, match=words) as end:
        search(tmp_path / "log", lambda *_: Seen(outcome, "the steady state broke", ("p",), took_s={"method": 1.0}))
    assert type(end.value) is kind


def test_a_search_that_was_killed_anywhere_goes_on_as_if_it_had_not_been(tmp_path):
    """After each line of the log, and within lines: no trial is lost or counted twice."""
    whole = search(tmp_path / "whole", Store(planted=True), most_trials=70)
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)

    for kept in range(1, len(lines)):
        path = tmp_path / f"kept{kept}"
        path.write_bytes(b"".join(lines[:kept]) + lines[kept][: kept % 40])
        rest = iter(whole.result.trials[kept - 1 :])
        made = search(path, lambda *_, rest=rest: next(rest).seen, most_trials=70)
        assert path.read_bytes() == (tmp_path / "whole").read_bytes()
        assert made.result.found == whole.result.found
        assert next(rest, None) is None


def test_a_log_of_other_choices_is_refused(tmp_path):
    search(tmp_path / "log", Store(), most_trials=20, seed=1)

    with pytest.raises(UsageError, match="is not the one that this hashidrill chooses"):
        search(tmp_path / "log", Store(), most_trials=20, seed=2)


def test_the_time_budget_ends_the_search_before_a_trial_that_would_be_over_it(tmp_path):
    made = search(tmp_path / "log", Store(), most_trials=None, budget_s=205.0)  # a trial takes 20 s

    assert made.result.spent_s == 200.0
    assert made.result.stopped == "the time was used up"


def test_a_beat_is_as_long_as_an_election(tmp_path):
    beats = []

    def run(candidate, beat_s):
        beats.append(beat_s)
        return Seen(Outcome.HELD, took_s={"method": 1.0}, gap_s=2.5)

    search(tmp_path / "log", run, most_trials=5)
    assert beats == [1.0, 2.5, 2.5, 2.5, 2.5]


def test_recordings_of_new_states_and_of_findings_are_of_use(tmp_path):
    kept = []
    made = search(
        tmp_path / "log",
        Store(planted=True),
        most_trials=120,
        keep=lambda played, useful: kept.append((played.seen.outcome, useful)),
    )
    assert len(kept) == 120
    assert 0 < sum(useful for _, useful in kept) < 80
    assert made.result.found


def test_a_report_says_what_was_tried_and_where_the_time_went(tmp_path):
    made = search(tmp_path / "log", Store(planted=True), most_trials=200)
    text = "\n".join(report.lines(made.result, {}))

    assert "200 trials: " in text
    assert "180 trials an hour" in text
    assert "a trial took method 20.0s" in text
    assert "found: no_acknowledged_write_lost broke in" in text
    explorations = [(tmp_path / "log", made.result.trials)] * 2
    assert "2 explorations, 400 trials" in report.coverage(explorations, SPACE)[0]
    assert not any(line.startswith("never tried") for line in report.coverage(explorations, SPACE))


def test_a_candidate_is_the_same_after_it_was_logged():
    moves = (Move("process.kill", LEADER), Move("clock.step", FOLLOWER, '{"by": "5m"}', 4, 2, f"{GONE}:0"))

    assert from_plain(plain(moves)) == moves


def test_without_a_fault_those_that_waited_for_it_begin_by_the_clock():
    first, second = Move("process.kill", LEADER, length=4), Move("process.pause", FOLLOWER, at=4, when=f"{GONE}:0")
    third = Move("clock.step", LEADER, at=6, when=f"{GONE}:1")

    assert without((first, second, third), 0) == (
        dataclasses.replace(second, when=""),
        dataclasses.replace(third, when=f"{GONE}:0"),
    )


def test_simpler_candidates_are_fewer_plainer_shorter_and_weaker():
    space = Space({Arm("disk.latency", LEADER): [{"delay": ("1ms", "1000ms")}]})
    move = Move("disk.latency", LEADER, '{"delay": "1000ms"}', 2, 4)

    assert [*space.simpler((move,))] == [
        (dataclasses.replace(move, at=0),),
        *((dataclasses.replace(move, length=length),) for length in LENGTHS[:2]),
        (dataclasses.replace(move, params='{"delay": "1ms"}'),),
    ]


@pytest.mark.lie
@pytest.mark.parametrize("bug", SHOWN)
def test_each_planted_bug_breaks_a_promise_in_a_trial_and_without_it_none_breaks(bug):
    """In a simulated network, with the faults that the lab shows it with."""
    outcomes = (StoreTrials(bug, seed, invalid=0)(SHOWN[bug]).outcome for seed in range(8))
    assert any(outcome is Outcome.BROKEN for outcome in outcomes)
    assert StoreTrials("", options=OPTIONS.get(bug, {}), invalid=0)(SHOWN[bug]).outcome is Outcome.HELD
