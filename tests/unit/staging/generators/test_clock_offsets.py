"""How far a worker's clock is from the runner's, and what is made of one that drifts or jumps."""

import random

import pytest

from hashidrill.staging.generators.remote import SLEW_NS, ClockError, Discipline, Exchange, Exchanges, Offset

MS = 1_000_000


def exchange(at_ns, offset_ns, there_ns, back_ns, held_ns=10_000):
    heard = at_ns + there_ns + offset_ns
    return Exchange(at_ns, heard, heard + held_ns, at_ns + there_ns + held_ns + back_ns)


def test_the_offset_is_exact_where_both_ways_take_as_long():
    one = exchange(5 * MS, 123_456_789, MS, MS)
    assert (one.offset_ns, one.round_ns) == (123_456_789, 2 * MS)


def test_the_shortest_round_trip_wins():
    exchanges = Exchanges()
    for there, back in ((9 * MS, 1 * MS), (MS // 10, MS // 10), (1 * MS, 30 * MS)):
        exchanges.add(exchange(0, 7 * MS, there, back))
    assert exchanges.offset() == Offset(7 * MS, MS // 10)


def test_the_true_offset_is_always_within_the_uncertainty():
    """However unlike the two ways are: 2,000 rounds with waits of up to 50 ms on either."""
    chance = random.Random(7)
    for _ in range(2000):
        true_ns = chance.randrange(-(10**15), 10**15)
        exchanges = Exchanges()
        for _ in range(chance.randrange(1, 12)):
            exchanges.add(exchange(0, true_ns, chance.randrange(50 * MS), chance.randrange(50 * MS)))
        found = exchanges.offset()
        assert abs(found.ns - true_ns) <= found.uncertainty_ns + 1


def test_a_clock_that_was_never_read_is_not_known():
    with pytest.raises(ClockError, match="never read"):
        Exchanges().offset()


@pytest.mark.parametrize("lie", [Exchange(0, 100, 90, 50), Exchange(0, 100, 100 + 2 * MS, MS)])
def test_an_answer_that_was_held_for_longer_than_it_was_away_is_a_jump(lie):
    with pytest.raises(ClockError, match="its clock jumped"):
        Exchanges().add(lie)


def test_a_worker_that_is_too_far_away_to_know_its_clock_is_refused():
    with pytest.raises(ClockError, match=r"known to 7\.0 ms at best .* must be known to 5 ms"):
        Discipline(Offset(0, 7 * MS))


def test_a_clock_that_drifts_is_followed_in_small_steps():
    discipline, true_ns = Discipline(Offset(0, 50_000)), 0
    for _ in range(4000):
        true_ns += 25_000  # 100 ppm, looked at four times a second
        seen = Offset(true_ns, 50_000)
        discipline.check(seen)
        assert abs(discipline.step(seen)) <= SLEW_NS
        assert abs(seen.ns - discipline.applied_ns) + seen.uncertainty_ns < 1 * MS
    assert true_ns == 100 * MS


def test_noise_within_the_uncertainty_moves_nothing():
    discipline = Discipline(Offset(1000, 200_000))
    assert [discipline.step(Offset(ns, 200_000)) for ns in (150_000, -150_000, 1000)] == [0, 0, 0]


@pytest.mark.parametrize("by_ns", [20 * MS, -20 * MS, 5_300_000])
def test_a_clock_that_jumps_is_said(by_ns):
    discipline = Discipline(Offset(0, 100_000))
    with pytest.raises(ClockError, match="its clock jumped"):
        discipline.check(Offset(by_ns, 100_000))


def test_a_slow_answer_alone_is_no_jump():
    Discipline(Offset(0, 100_000)).check(Offset(20 * MS, 20 * MS))
