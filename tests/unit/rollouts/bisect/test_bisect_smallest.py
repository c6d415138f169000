"""The smallest set of changes that breaks, over runs whose truth and whose noise are planted."""

import itertools
import random

import pytest

from hashidrill.rollouts.bisect.ordered import CannotTell, Smallest, SmallestSet, WrongEnd, members_of, set_name
from hashidrill.rollouts.bisect.trials import Trials
from noisy_runs import Planted


def all_of(*culprits: int):
    return lambda name: set(culprits) <= set(members_of(name))


def searched(planted: Planted, count=24, at_most=400) -> tuple[Smallest | WrongEnd | CannotTell, Trials]:
    trials = Trials(planted, at_most=at_most)
    return SmallestSet(count, trials).search(), trials


@pytest.mark.parametrize("culprit", range(24))
def test_one_of_24_changes_is_found_with_at_most_8_runs_and_their_repeats(culprit):
    answer, trials = searched(Planted(all_of(culprit)))

    assert answer.changes == (culprit,)
    assert answer.apart
    assert len(trials.candidates) <= 8
    assert trials.runs <= 18


@pytest.mark.lie
@pytest.mark.parametrize("pair", random.Random(5).sample(list(itertools.combinations(range(24), 2)), 40))
def test_two_changes_that_only_break_together_are_found(pair):
    answer, trials = searched(Planted(all_of(*pair)))

    assert answer.changes == pair
    assert answer.apart
    assert len(trials.candidates) <= 16


def test_three_changes_that_only_break_together_are_found():
    answer, _ = searched(Planted(all_of(2, 9, 21)))

    assert answer.changes == (2, 9, 21)


def test_of_two_changes_that_each_break_one_is_found():
    answer, _ = searched(Planted(lambda name: bool({4, 17} & set(members_of(name)))))

    assert answer.changes in {(4,), (17,)}


def test_two_changes_of_one_day_are_told_apart_by_a_search_without_the_first_that_was_found():
    """In tfs-2013 a split and a new cache came together. Each breaks; the second is found with the first out."""
    culprits = {4, 17}
    first, _ = searched(Planted(lambda name: bool(culprits & set(members_of(name)))))
    assert isinstance(first, Smallest)
    left = [change for change in range(24) if change not in first.changes]

    second, _ = searched(Planted(lambda name: bool(culprits & {left[n] for n in members_of(name)})), count=len(left))

    assert isinstance(second, Smallest)
    assert {*first.changes, *(left[n] for n in second.changes)} == culprits
    neither = [change for change in left if change not in culprits]
    last, _ = searched(Planted(lambda name: bool(culprits & {neither[n] for n in members_of(name)})), count=22)
    assert isinstance(last, WrongEnd), "with both out, nothing is left to blame"


def test_a_change_that_cures_others_does_not_hide_the_smallest_set():
    """3 breaks; 5 cures that; 11 brings it back. Whatever it finds breaks by itself."""

    def bad(name: str) -> bool:
        members = set(members_of(name))
        return 3 in members and (5 not in members or 11 in members)

    answer, _ = searched(Planted(bad))

    assert answer.changes in {(3,), (3, 5, 11)}
    assert bad(set_name(answer.changes))


def test_changes_that_the_agent_refuses_one_without_the_other_stay_together():
    planted = Planted(all_of(7), refused=lambda name: len({6, 7} & set(members_of(name))) == 1)

    answer, _ = searched(planted)

    assert answer.changes == (6, 7)
    assert not answer.apart  # 7 without 6 was never run: nobody knows


def test_a_set_that_the_agent_refuses_is_never_run():
    planted = Planted(all_of(3), refused=lambda name: len({6, 20} & set(members_of(name))) == 1)

    answer, _ = searched(planted)

    assert answer.changes == (3,)
    assert all(len({6, 20} & set(members_of(name))) != 1 for name in planted.made)


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize(("good_breaks", "bad_holds"), [(0.1, 0.1), (0.2, 0.0), (0.0, 0.2)])
def test_a_wrong_answer_is_rarer_than_one_in_a_hundred_searches(good_breaks, bad_holds):
    chance, wrong = random.Random(11), 0
    for seed in range(120):
        culprits = set(chance.sample(range(24), chance.choice((1, 1, 2))))
        answer, _ = searched(Planted(all_of(*culprits), good_breaks, bad_holds, seed=seed))
        wrong += isinstance(answer, Smallest) and set(answer.changes) != culprits

    assert wrong <= 1


def test_what_breaks_without_a_change_is_said():
    answer, trials = searched(Planted(lambda _: True))

    assert isinstance(answer, WrongEnd)
    assert answer.good
    assert trials.candidates == ["none", "1-24"]


def test_what_holds_with_all_changes_is_said():
    answer, _ = searched(Planted(lambda _: False))

    assert isinstance(answer, WrongEnd)
    assert not answer.good


def test_a_search_that_runs_out_says_what_it_takes_wherever_it_stands():
    whole, trials = searched(Planted(all_of(4, 15)))
    assert isinstance(whole, Smallest)
    for at_most in range(trials.runs):
        answer, _ = searched(Planted(all_of(4, 15)), at_most=at_most)
        assert isinstance(answer, CannotTell)
        assert "--tries" in answer.takes


@pytest.mark.lie
@pytest.mark.parametrize("after", [4, 8, 12])
def test_a_machine_that_gets_busy_names_no_change(after):
    wrong = said = 0
    for seed in range(20):
        culprit, planted = seed % 24, Planted(all_of(seed % 24), 0.02, 0.02, seed=seed)
        busy = Planted(lambda _: True, bad_holds=0.05, seed=seed)

        def run(name, planted=planted, busy=busy):
            return (busy if len(planted.made) >= after else planted)(name)

        answer, trials = searched(run)
        wrong += isinstance(answer, Smallest) and answer.changes != (culprit,)
        said += isinstance(answer, CannotTell) and "the known good end (none) no longer answers good" in answer.why
        assert trials.runs < 60

    assert wrong == 0
    assert said >= (4 if after == 12 else 17)


def test_one_change_is_its_own_answer():
    answer, trials = searched(Planted(all_of(0)), count=1)

    assert answer.changes == (0,)
    assert trials.candidates == ["none", "1"]


def test_sets_are_named_by_their_numbers():
    assert set_name([]) == "none"
    assert set_name([8, 0, 1, 2, 10]) == "1-3,9,11"
    assert members_of("1-3,9,11") == [0, 1, 2, 8, 10]
    assert members_of("none") == []
