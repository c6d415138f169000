"""The search in an ordered list, over runs whose truth and whose noise are planted."""

import random

import pytest

from hashidrill.rollouts.bisect.ordered import Belief, CannotTell, Noise, Ordered, Turn
from hashidrill.rollouts.bisect.trials import INVALID_IN_A_ROW, Outcome, Trial, Trials
from noisy_runs import Planted

NAMES = [str(index) for index in range(65)]


def searched(planted: Planted, names=NAMES, *, at_most=300, **options) -> tuple[Turn | CannotTell, Trials]:
    trials = Trials(planted, at_most=at_most)
    return Ordered(names, trials, **options).search(), trials


def from_(first_bad: int):
    return lambda name: int(name) >= first_bad


@pytest.mark.parametrize("first_bad", range(1, 65))
def test_each_of_64_commits_is_found_with_at_most_8_builds(first_bad):
    planted = Planted(from_(first_bad))

    answer, trials = searched(planted)

    assert (answer.last_good, answer.first_bad) == (first_bad - 1, first_bad)
    assert len(trials.candidates) <= 8
    assert trials.runs <= 20  # the repeats that it takes to be sure


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize(("good_breaks", "bad_holds"), [(0.05, 0.05), (0.1, 0.1), (0.2, 0.0), (0.0, 0.2), (0.2, 0.2)])
def test_a_wrong_turn_is_rarer_than_one_in_a_hundred_searches(good_breaks, bad_holds):
    chance, wrong = random.Random(7), 0
    for seed in range(200):
        first_bad = chance.randrange(1, 25)
        answer, _ = searched(Planted(from_(first_bad), good_breaks, bad_holds, seed=seed), NAMES[:25])
        wrong += not isinstance(answer, Turn) or answer.first_bad != first_bad

    assert wrong <= 1


def test_one_run_each_would_be_wrong_far_more_often():
    """What the repeats are for: the same noise, and each end of the bracket believed at once."""
    chance, wrong = random.Random(7), 0
    for seed in range(200):
        first_bad = chance.randrange(1, 25)
        answer, _ = searched(Planted(from_(first_bad), 0.1, 0.1, seed=seed), NAMES[:25], wrong=0.5, turn=0.5)
        wrong += not isinstance(answer, Turn) or answer.first_bad != first_bad

    assert wrong > 20


@pytest.mark.lie
def test_runs_that_say_nothing_are_made_again_and_count_as_neither():
    planted = Planted(from_(20), invalid=0.3, seed=3)

    answer, trials = searched(planted)

    assert answer.first_bad == 20
    assert sum(trials.tally(name).invalid for name in trials.candidates) > 3
    assert trials.tally("20").held == 0


def test_what_never_says_anything_is_gone_round_and_the_answer_is_a_range():
    silent = {"30", "31", "32", "33"}
    planted = Planted(from_(32))
    trials = Trials(lambda name: planted(name) if name not in silent else Planted(from_(0), invalid=1.0)(name))

    answer = Ordered(NAMES, trials).search()

    assert (answer.last_good, answer.first_bad) == (29, 34)
    assert trials.tally("32").invalid == INVALID_IN_A_ROW


def test_what_cannot_be_built_is_gone_round_without_a_run():
    planted = Planted(from_(20), refused=lambda name: name in {"16", "32"})

    answer, _ = searched(planted)

    assert (answer.last_good, answer.first_bad) == (19, 20)
    assert not {"16", "32"} & set(planted.made)


@pytest.mark.lie
@pytest.mark.parametrize(("first_bad", "turn"), [(0, (-1, 0)), (65, (64, 65))], ids=["good is bad", "bad is good"])
def test_an_end_that_is_not_what_it_is_called_is_said_and_nothing_is_searched(first_bad, turn):
    planted = Planted(from_(first_bad))

    answer, _ = searched(planted)

    assert (answer.last_good, answer.first_bad) == turn
    assert set(planted.made) == {"0", "64"}


def test_a_good_end_that_breaks_once_by_chance_is_not_called_bad():
    broke = iter([True])
    planted = Planted(from_(9))
    once = Planted(lambda _: True)
    trials = Trials(lambda name: once(name) if name == "0" and next(broke, False) else planted(name))

    answer = Ordered(NAMES, trials).search()

    assert answer.first_bad == 9
    assert trials.tally("0").held >= trials.tally("0").broken == 1


def test_an_end_that_says_nothing_is_no_answer():
    answer, _ = searched(Planted(from_(3), invalid=1.0))

    assert isinstance(answer, CannotTell)
    assert "0 broke in 0 of 0 runs, and 5 more were INVALID" in answer.why
    assert "valid" in answer.takes


@pytest.mark.lie
def test_good_and_bad_that_break_equally_often_are_no_answer():
    wrong = 0
    for seed in range(20):
        answer, _ = searched(Planted(lambda _: True, bad_holds=0.5, seed=seed), at_most=60)
        wrong += isinstance(answer, Turn) and answer.last_good >= 0 and answer.first_bad < len(NAMES)

    assert wrong <= 1


def test_without_enough_runs_it_says_how_many_more_it_takes():
    enough = 0
    for seed in range(20):
        short, trials = searched(Planted(from_(20), 0.03, 0.03, seed=seed), at_most=6)

        assert isinstance(short, CannotTell)
        assert trials.runs == 6
        assert "after 6 runs" in short.why
        assert "--tries" in short.takes
        more = int(short.takes.split()[1])
        assert 6 < more < 60
        again, _ = searched(Planted(from_(20), 0.03, 0.03, seed=seed), at_most=6 + more)
        enough += isinstance(again, Turn)

    assert enough >= 14


def test_the_rates_of_wrong_runs_are_learnt():
    belief = Belief(2, [0.02, 0.96, 0.02], Noise.unknown())
    for number in range(40):
        belief.observe(0, broken=number % 5 == 0)
        belief.observe(1, broken=True)

    learnt = belief.noise()

    assert 0.14 < learnt.good_breaks < 0.26
    assert learnt.bad_breaks > 0.95
    assert learnt.a_run_tells < Noise.unknown().a_run_tells


class Changing:
    """Runs on a machine that changes after so many of them: then most answers are `then`, whatever the candidate."""

    def __init__(self, after: int, share: float, then: Outcome, seed: int) -> None:
        self.first_bad = 1 + seed % 24
        self.planted = Planted(from_(self.first_bad), 0.02, 0.02, seed=seed)
        self.after, self.share, self.then = after, share, then
        self.chance = random.Random(seed)

    def __call__(self, candidate: str) -> Trial:
        planted = self.planted(candidate)
        changed = len(self.planted.made) > self.after and self.chance.random() < self.share
        return Trial(self.then) if changed else planted


@pytest.mark.lie
@pytest.mark.parametrize("share", [0.9, 1.0])
@pytest.mark.parametrize("after", [4, 6, 8, 10])
def test_a_machine_that_gets_busy_names_no_culprit_and_says_that_the_good_end_changed(after, share):
    """Without control runs, each of these searches named one that is none."""
    said = 0
    for seed in range(20):
        machine = Changing(after, share, Outcome.BROKEN, seed)
        answer, trials = searched(machine, NAMES[:25], at_most=60)
        named = isinstance(answer, Turn) and answer.last_good >= 0
        assert not named or answer.first_bad == machine.first_bad
        said += isinstance(answer, CannotTell) and "the known good end (0) no longer answers good" in answer.why
        assert trials.runs < 60

    assert said >= 17


@pytest.mark.lie
def test_answers_that_contradict_each_other_do_not_lead_round_in_circles():
    """Six of ten runs break, whatever the candidate: most of these searches used up all their runs on one of them."""
    runs, changed = [], 0
    for seed in range(20):
        answer, trials = searched(Changing(6, 0.6, Outcome.BROKEN, seed), NAMES[:25], at_most=60)
        runs.append(trials.runs)
        changed += isinstance(answer, CannotTell) and "no longer answers good" in answer.why

    assert changed >= 12
    assert sum(runs) / len(runs) < 45


def test_bad_ones_that_hold_later_are_noticed_by_the_bad_end():
    said = wrong = 0
    for seed in range(20):
        machine = Changing(8, 1.0, Outcome.HELD, seed)
        answer, _ = searched(machine, NAMES[:25], at_most=60)
        said += isinstance(answer, CannotTell) and "the known bad end (24) no longer answers bad" in answer.why
        wrong += isinstance(answer, Turn) and answer.first_bad not in {machine.first_bad, 25}

    assert said >= 12
    assert wrong <= 1


def test_the_good_end_that_says_nothing_any_more_is_said():
    planted = Planted(from_(9))
    silent = Planted(from_(9), invalid=1.0)
    trials = Trials(lambda name: (silent if name == "0" and len(planted.made) > 9 else planted)(name), at_most=60)

    answer = Ordered(NAMES, trials).search()

    assert isinstance(answer, CannotTell)
    assert "the known good end (0) has no valid runs any more" in answer.why
    assert "the machine was busy" in answer.why


def test_a_quiet_search_pays_for_one_control_run():
    planted = Planted(from_(20))
    answer, trials = searched(planted)
    assert answer.first_bad == 20
    assert planted.made[-1] == "0"
    assert trials.runs <= 17


def test_a_list_needs_two_ends():
    with pytest.raises(ValueError, match="two ends"):
        Ordered(["1"], Trials(Planted(from_(0))))
    with pytest.raises(ValueError, match="2 candidates have 3 turns, not 2"):
        Belief(2, [0.5, 0.5], Noise.unknown())
