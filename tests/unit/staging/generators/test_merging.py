"""Operations of several workers in the order in which they ended."""

import random

from hashidrill.staging.generators.conductor import Gauges, Merge


def line(end_ns, what="kv"):
    return [what, end_ns - 5, end_ns - 5, end_ns]


def ends(lines):
    return [one[3] for one in lines]


def test_nothing_goes_on_before_every_worker_has_reported_that_far():
    merge = Merge(["a", "b"])
    merge.add("a", [line(10), line(20)])
    merge.upto("a", 25)
    assert merge.taken() == []
    merge.add("b", [line(12), line(30)])
    merge.upto("b", 15)
    assert ends(merge.taken()) == [10, 12]
    assert ends(merge.rest()) == [20, 30]
    assert merge.waiting == 0


def test_whatever_order_reports_come_in_all_operations_come_out_once_and_in_order():
    chance = random.Random(3)
    for _ in range(200):
        names = [f"w{n}" for n in range(chance.randrange(1, 6))]
        merge, out, put = Merge(names), [], []
        clocks = dict.fromkeys(names, 0)
        for _ in range(chance.randrange(1, 80)):
            name = chance.choice(names)
            batch = [line(clocks[name] + chance.randrange(1, 50)) for _ in range(chance.randrange(4))]
            put += ends(batch)
            clocks[name] += 50
            merge.add(name, batch)
            merge.upto(name, clocks[name])
            out += ends(merge.taken())
        out += ends(merge.rest())
        assert out == sorted(put)


def test_only_a_worker_that_is_ahead_of_the_slowest_has_to_wait_and_only_while_much_waits():
    merge = Merge(["a", "b"])
    merge.add("a", [line(10), line(20)])
    merge.upto("a", 25)
    assert merge.ahead("a", most=2)
    assert not merge.ahead("a", most=3)
    assert not merge.ahead("b", most=2), "or nobody would ever go on"


def test_the_generators_own_samples_are_the_worst_of_all_and_wait_for_all():
    gauges = Gauges(["a", "b"], {"kv": "a"})
    assert list(gauges.take("a", 1, "generator.cpu", 0.2, "")) == []
    assert list(gauges.take("a", 2, "generator.cpu", 0.1, "")) == [], "one that is silent shows as silence"
    assert list(gauges.take("b", 3, "generator.cpu", 0.1, "")) == [[3, "generator.cpu", 0.2, ""]]
    assert list(gauges.take("a", 4, "generator.cpu", 0.1, "")) == [], "and it begins afresh"


def test_a_loads_samples_come_from_the_worker_that_speaks_for_it():
    gauges = Gauges(["a", "b"], {"kv": "a"})
    assert list(gauges.take("a", 1, "kv.level", 1.0, "")) == [[1, "kv.level", 1.0, ""]]
    assert list(gauges.take("b", 1, "kv.level", 1.0, "")) == []
