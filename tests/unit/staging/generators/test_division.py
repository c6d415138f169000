"""What each worker offers: together the operations of one generator, each of them once, and sums that are checked."""

import pytest

from hashidrill.core.experiment.load_levels import Course, Pace, Piece, Share
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.schedule import Turns
from hashidrill.products.consul.loads.kv import KvWrite
from hashidrill.staging.generators.conductor import Division, DivisionError, Stopped

NS = 1_000_000_000
NAMES = ["w1", "w2", "w3"]
KV = {"name": "kv", "kind": "consul.kv.write", "params": {"rate": "40/s"}, "profile": None}
LOCKS = {"name": "locks", "kind": "consul.lock", "params": {}, "profile": None}


def stopped(at_s, *counts, load="kv"):
    return {name: Stopped(round(at_s * NS), {load: n}) for name, n in zip(NAMES, counts, strict=True)}


def received(stops):
    return {name: dict(each.emitted) for name, each in stops.items()}


def test_rates_that_do_not_divide_evenly_are_divided_exactly():
    """40/s over 3 workers in 10 s, operation 400 is due at the very end: 134 + 134 + 133."""
    division = Division([KV], NAMES)
    stops = stopped(10, 134, 134, 133)
    [total] = division.settled(stops, received(stops))
    assert (total.asked, total.offered) == (401, 401)
    assert str(total) == "401 operations offered (134 + 134 + 133), 401 asked for"


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 100])
def test_the_shares_of_all_are_the_operations_of_one(workers):
    shares = [Share(index, workers) for index in range(workers)]
    for operations in (0, 1, 99, 100, 12345):
        assert sum(share.count(operations) for share in shares) == operations
    course = Course([Piece(0, 1.0, 0.05), Piece(20 * NS, 2.0)])
    course.begin(3 * NS)
    pace = Pace(course, 40, 0)
    one = [pace.due_ns(n) for n in range(1000)]
    together = []
    for share in shares:
        pace = Pace(course, 40, 0)
        together += [pace.due_ns(n) for n in range(share.index, 1000, share.of)]
    assert sorted(together) == one


def test_keys_and_values_are_those_that_one_generator_would_write():
    def planned(numbers):
        load = KvWrite("kv", KvWrite.Params(rate="40/s", keys=7), LoadContext(["http://127.0.0.1:8500"], run_id="run"))
        return [(n, *load._plan(n)) for n in numbers]

    alone = planned(range(5000))
    shared = [each for index in range(3) for each in planned(range(index, 5000, 3))]
    assert sorted(shared) == alone
    assert len({value for _, _, value in shared}) == 5000


def test_turns_that_others_had_are_skipped_and_none_is_had_twice():
    alone, shared = Turns(0.3, 5, 50), Turns(0.3, 5, 50)
    every = [alone.next() for _ in range(300)]
    shared.skip_to(123)
    assert shared.next() == every[123]
    shared.skip_to(7)
    assert shared.next() == every[124], "never back"


def test_a_worker_that_offers_less_than_its_share_is_said():
    stops = stopped(10, 134, 120, 133)
    with pytest.raises(DivisionError, match=r"worker w2 offered 120 operations of kv .* its share of 40/s was 134"):
        Division([KV], NAMES).settled(stops, received(stops))


@pytest.mark.lie
def test_a_worker_that_offers_the_whole_rate_is_said():
    stops = stopped(10, 401, 134, 133)
    with pytest.raises(DivisionError, match="worker w1 offered 401"):
        Division([KV], NAMES).settled(stops, received(stops))


def test_operations_that_the_generator_counted_and_nobody_got_are_said():
    stops = stopped(10, 134, 134, 133)
    came = {**received(stops), "w3": {"kv": 132}}
    with pytest.raises(DivisionError, match="worker w3: 132 operations of kv arrived, but its generator reports 133"):
        Division([KV], NAMES).settled(stops, came)


def test_workers_stop_at_moments_of_their_own_and_each_is_judged_by_its_own():
    division = Division([KV], NAMES)
    stops = {
        "w1": Stopped(10 * NS, {"kv": 134}),
        "w2": Stopped(11 * NS, {"kv": 147}),
        "w3": Stopped(10 * NS, {"kv": 133}),
    }
    [total] = division.settled(stops, received(stops))
    assert total.asked == 134 + 147 + 133
    assert division.reached("kv", stops) == 1 + 146 * 3 + 1


def test_a_profile_and_steered_levels_count():
    division = Division([{**KV, "profile": {"steps": ["200%"], "each": "5s"}}], NAMES)
    division.start(0)
    division.begin(5 * NS)
    division.level("kv", 0.0, 12 * NS)
    # 200 in 5 s at 40/s, 400 in 5 s at 80/s, 80 in 2 s at 40/s, nothing more
    stops = stopped(20, 227, 227, 226)
    [total] = division.settled(stops, received(stops))
    assert total.asked == 680


def test_the_clock_of_the_method_may_stand_still():
    division = Division([{**KV, "profile": {"steps": ["200%"], "each": "5s"}}], NAMES)
    division.begin(0)
    division.hold(2 * NS)
    division.go(4 * NS)  # 200% for 7 s
    stops = stopped(10, 227, 227, 227)
    [total] = division.settled(stops, received(stops))
    assert total.asked == 681


def test_nothing_that_was_due_is_nothing_offered():
    stops = stopped(0, 0, 0, 0)
    division = Division([KV], NAMES)
    division.start(5 * NS)
    [total] = division.settled(stops, received(stops))
    assert (total.asked, total.offered, division.reached("kv", stops)) == (0, 0, 0)


def test_a_load_that_does_not_divide_is_offered_whole_by_one_worker_and_they_are_spread():
    others = [{**LOCKS, "name": f"locks-{n}"} for n in range(3)]
    division = Division([KV, *others], NAMES)
    assert sorted(division.first[one["name"]] for one in others) == NAMES
    for name in NAMES:
        shares = {load["name"]: load["share"] for load in division.of(name)}
        assert shares.pop("kv") == [NAMES.index(name), 3]
        assert list(shares.values()) == [[0, 1]]


def test_a_client_cannot_go_to_another_machine():
    with pytest.raises(DivisionError, match="a client's command runs with its tap"):
        Division([{"name": "app", "kind": "client", "params": {}, "profile": None}], NAMES)
