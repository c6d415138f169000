"""What a browser holds is what the server has, however often the browser was away, and however slow it is."""

import json
import random

import pytest

from hashidrill.gamedays.warroom.document import Document, put
from hashidrill.gamedays.warroom.figures import NEVER, Axis, Series


class Reader:
    """As the page does it: takes the whole document, or the changes after what it has."""

    def __init__(self, document):
        self.document, self.number, self.tree, self.missed, self.wholes = document, None, None, 0, 0

    def read(self):
        batch = self.document.since(self.number)
        if batch is None:
            return
        self.number, self.missed = batch.number, self.missed + batch.missed
        if batch.whole:
            self.tree, self.wholes = json.loads(batch.data), self.wholes + 1
        else:
            for path, value in json.loads(batch.data):
                put(self.tree, tuple(path), value)


def something_happens(document, chance, step):
    kind = chance.random()
    if kind < 0.03:
        del document.tree["list"][: len(document.tree["list"]) // 2]
        document.renew()
    elif kind < 0.5:
        document.set("list", len(document.tree["list"]) + chance.choice([0, 0, 0, 3]), step)
    else:
        document.set("map", chance.choice("abc"), {"n": step, "text": "<&\u2028é"})
        document.set("scalar", step)
    document.send()


@pytest.mark.lie
@pytest.mark.parametrize("seed", range(8))
def test_readers_of_any_speed_end_with_the_same_document(seed):
    chance = random.Random(seed)
    document = Document({"list": [], "map": {}, "scalar": None}, kept=10)
    readers = {Reader(document): speed for speed in (1.0, 0.5, 0.1, 0.02)}
    for step in range(600):
        something_happens(document, chance, step)
        for reader, speed in readers.items():
            if chance.random() < speed:
                reader.read()
                assert reader.tree == document.tree
    for reader in readers:
        reader.read()
        reader.read()
        assert reader.tree == document.tree


@pytest.mark.parametrize(
    ("steps", "reads_each", "wholes", "missed"),
    [(50, True, 1, 0), (5, False, 1, 0), (90, False, 2, 90)],
    ids=["keeps up", "was away within what is kept", "was away for longer"],
)
def test_a_reader_gets_changes_alone_until_it_misses_what_is_kept_and_is_told_how_much(
    steps, reads_each, wholes, missed
):
    document = Document({"n": 0}, kept=5)
    reader = Reader(document)
    reader.read()
    for step in range(steps):
        document.set("n", step)
        document.send()
        if reads_each:
            reader.read()
    reader.read()
    assert (reader.wholes, reader.missed, reader.tree) == (wholes, missed, {"n": steps - 1})


def test_a_reader_who_takes_the_whole_document_because_it_was_cut_was_not_slow():
    document = Document({"list": list(range(10))}, kept=5)
    reader = Reader(document)
    reader.read()
    del document.tree["list"][:5]
    document.renew()
    document.set("list", 5, "more")
    document.send()
    reader.read()
    assert (reader.wholes, reader.missed, reader.tree) == (2, 0, {"list": [5, 6, 7, 8, 9, "more"]})


def test_a_number_of_another_server_gets_the_whole_document():
    document = Document({"n": 0})
    batch = document.since(10**9)
    assert batch.whole
    assert batch.missed == 0


def test_nothing_is_kept_for_a_reader_who_never_reads():
    document = Document({"n": 0}, kept=5)
    for step in range(10_000):
        document.set("n", step)
        document.send()
    assert len(document._messages) == 5


# figures in buckets


def test_a_bucket_has_the_worst_latency_and_the_mean_rate_of_what_came_in_it():
    worst, mean = Series("worst"), Series("mean")
    for index, value in [(0, 1.0), (0, 4.0), (0, 1.0), (2, 5.0), (2, None)]:
        for series in (worst, mean):
            put(series.values, (index,), series.add(index, value))
    assert worst.values == [4.0, None, 5.0]
    assert mean.values == [2.0, None, 5.0]


def test_what_is_never_served_is_worse_than_any_number():
    series = Series("worst")
    for value in (NEVER, 3.0, None):
        put(series.values, (0,), series.add(0, value))
    assert series.values == [NEVER]


@pytest.mark.parametrize("kind", ["worst", "mean"])
def test_figures_of_a_long_run_stay_true_while_their_buckets_grow_wider(kind):
    """Against all values at once. Means of means differ by what the ends of the buckets weigh."""
    chance, axis, series, said = random.Random(1), Axis(most=16), Series(kind), []
    for tick in range(1000):
        t_s, value = tick / 2, float(chance.randint(1, 9))
        while axis.is_full(t_s):
            axis.double()
            series.halve()
        said.append((t_s, value))
        put(series.values, (axis.index(t_s),), series.add(axis.index(t_s), value))
    assert len(series.values) <= 16
    for index, shown in enumerate(series.values):
        within = [value for t_s, value in said if int(t_s / axis.width_s) == index]
        right = max(within) if kind == "worst" else sum(within) / len(within)
        assert shown == pytest.approx(right, rel=0.001)
