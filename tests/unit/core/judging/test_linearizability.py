"""The checker of registers: histories that are fine, planted ones that are not, and a plain search to compare with."""

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hashidrill.core.judging.linearizability import Answer, Op, check, core, prepared


def read(value, start, end):
    return Op("read", value, start, end)


def write(value, start, end=None, **more):
    return Op("write", value, start, end, **more)


def cas(expected, value, start, end=None, **more):
    return Op("cas", value, start, end, expected, **more)


def miss(expected, start, end):
    return Op("miss", "tried", start, end, expected)


def answer(*history):
    return check(history)[0]


@pytest.mark.parametrize(
    "history",
    [
        [],
        [read(None, 0, 1)],
        [write("a", 0, 1), read("a", 2, 3)],
        [write("a", 0, 9), read(None, 1, 2), read("a", 3, 4)],
        [write("a", 0, 9), write("b", 0, 9), read("b", 10, 11)],
        [write("a", 0, 1), cas("a", "b", 2, 3), read("b", 4, 5), miss("a", 6, 7)],
        [cas(None, "a", 0, 1), miss(None, 2, 3)],
        # the two miss each other's value, one after the other
        [write("a", 0, 1), cas("a", "b", 2, 9), miss("a", 2, 9)],
        # unknown: it took effect late, or never
        [write("a", 0, 1), write("b", 2), read("a", 50, 51), read("b", 60, 61)],
        [write("a", 0, 1), write("b", 2), read("a", 50, 51)],
        [write("a", 0, 1), cas("a", "b", 2), miss("a", 50, 51)],
        # touching at a moment is concurrent
        [write("a", 0, 1), write("b", 1, 2), read("a", 2, 3)],
    ],
)
def test_what_one_order_explains_is_linearizable(history):
    assert answer(*history) is Answer.YES
    assert brute(history)


@pytest.mark.parametrize(
    "history",
    [
        [read("a", 0, 1)],
        [write("a", 0, 1), read(None, 2, 3)],
        # a stale read, with and without a lost leader's unknown write between
        [write("a", 0, 1), write("b", 2, 3), read("a", 4, 5)],
        [write("a", 0, 1), write("b", 2, 3), write("c", 3), read("a", 4, 5)],
        # seen, and then not any more
        [write("a", 0, 1), write("b", 2), read("b", 3, 4), read("a", 5, 6)],
        # seen before it was asked for
        [read("a", 0, 1), write("a", 2, 3)],
        # two winners
        [write("a", 0, 1), cas("a", "b", 2, 9), cas("a", "c", 2, 9)],
        [cas(None, "b", 2, 9), cas(None, "c", 2, 9)],
        # a lost update: what the cas put is gone though nobody wrote after it
        [write("a", 0, 1), cas("a", "b", 2, 3), read("a", 4, 5)],
        # it missed, though nothing had changed
        [write("a", 0, 1), read("a", 2, 3), miss("a", 4, 5), read("a", 6, 7)],
        # an unknown one took effect before it was sent
        [write("a", 0, 1), read("b", 2, 3), write("b", 4)],
        # an unknown one took effect twice
        [
            write("a", 0, 1),
            cas("a", "b", 2),
            write("c", 10, 11),
            write("a", 12, 13),
            read("b", 20, 21),
            write("d", 22, 23),
            read("b", 30, 31),
        ],
    ],
)
def test_what_no_order_explains_is_not(history):
    assert answer(*history) is Answer.NO
    assert not brute(history)


def brute(history):
    """Every order, without any thought: the meaning of the word."""

    def place(left, state):
        if not any(op.certain for op in left):
            return True
        for op in left:
            if any(other.certain and other.return_ns < op.call_ns for other in left):
                continue
            if op.fits(state) and place([o for o in left if o is not op], op.value if op.changes else state):
                return True
        return False

    return place([op for op in history if op.certain or op.changes], None)


VALUES = st.sampled_from(["a", "b", "c"])
SEEN = st.sampled_from([None, "a", "b", "c"])


@st.composite
def operation(draw):
    kind = draw(st.sampled_from(["read", "write", "cas", "miss"]))
    start = draw(st.integers(0, 12))
    unknown = kind in {"write", "cas"} and draw(st.booleans())
    end = None if unknown else start + draw(st.integers(0, 6))
    expected = draw(SEEN) if kind in {"cas", "miss"} else None
    return Op(kind, draw(SEEN) if kind == "read" else draw(VALUES), start, end, expected, draw(st.integers(0, 3)))


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(st.lists(operation(), max_size=7))
@example([cas("a", "a", 0), write("a", 0), read("a", 1, 2)])
def test_it_agrees_with_a_plain_search_of_all_orders(history):
    assert (answer(*history) is Answer.YES) == brute(history)


@st.composite
def unique_values(draw):
    """As the load makes them: each value is written once, and what is expected was written by someone."""
    operations = draw(st.lists(operation(), max_size=7))
    names = [f"v{n}" for n in range(len(operations))]
    known = st.sampled_from([None, *names])
    return [
        replace(op, value=draw(known) if op.kind == "read" else name, expected=draw(known) if op.expected else None)
        for op, name in zip(operations, names, strict=True)
    ]


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(unique_values())
def test_it_agrees_with_a_plain_search_where_every_value_is_written_once(history):
    assert (answer(*history) is Answer.YES) == brute(history)


def simulated(seed, count, *, unknown=0.1, clients=8):
    """A sound register and clients that use it at once; some never hear what became of a change."""
    dice = random.Random(seed)
    state, busy, history = None, [0] * clients, []
    moments = []
    for n in range(count):
        client = min(range(clients), key=lambda c: busy[c])
        start = busy[client] + dice.randrange(1, 20)
        effect = start + dice.randrange(1, 50)
        busy[client] = effect + dice.randrange(1, 50)
        moments.append((effect, n, start, busy[client]))
    seen = [None]
    for _, n, start, end in sorted(moments):
        kind = dice.choice(["read", "write", "cas", "cas"])
        lost = dice.random() < unknown
        if kind == "read":
            history.append(read(state, start, end))
            seen.append(state)
        elif kind == "write":
            history.append(write(f"v{n}", start, None if lost else end))
            state = f"v{n}"
        else:
            expected = state if dice.random() < 0.6 else dice.choice(seen[-5:])
            hit = expected == state
            state = f"v{n}" if hit else state
            if lost:
                history.append(cas(expected, f"v{n}", start))
            else:
                history.append(cas(expected, f"v{n}", start, end) if hit else miss(expected, start, end))
    return history


@pytest.mark.parametrize("seed", range(10))
def test_a_long_history_of_a_sound_register_is_decided_with_little_effort(seed):
    found, looked = check(simulated(seed, 1000))
    assert found is Answer.YES
    assert looked < 20_000


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_one_stale_read_in_a_long_history_is_found_and_named(seed):
    history = simulated(seed, 600)
    late = [op for op in history if op.kind == "read" and op.call_ns > 1000]
    victim = random.Random(seed).choice(late)
    before = [op for op in history if op.kind in {"write", "cas"} and op.certain and op.return_ns < victim.call_ns]
    # older than three changes that were acknowledged one after the other
    stale = sorted(before, key=lambda op: op.return_ns)[-25]
    planted = [replace(op, value=stale.value) if op is victim else op for op in history]
    assert check(planted)[0] is Answer.NO
    found = core(planted)
    assert check(found)[0] is Answer.NO
    assert 1 <= len(found) <= 6
    assert any(op.kind == "read" and op.value == stale.value for op in found)


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ([write("x", 1000, 1001), cas("x", "y", 1002, 1009), cas("x", "z", 1002, 1009)], {("cas", "y"), ("cas", "z")}),
        (
            [write("x", 1000, 1001), write("y", 1002, 1003), read("x", 1004, 1005)],
            {("write", "x"), ("write", "y"), ("read", "x")},
        ),
        # were nothing certain of p and q, one of them might have taken effect between the two
        ([write("x", 1000, 1001), miss("x", 1002, 1003)], {("write", "x"), ("miss", "tried"), ("cas", "q")}),
    ],
)
def test_the_core_is_what_cannot_be_and_nothing_else(planted, expected):
    before = [write("p", 0, 1), read("p", 2, 3), cas("p", "q", 4, 5)]
    after = [write("later", 2000, 2001), read("later", 2002, 2003), read("x", 3000, 3001)]
    found = core([*before, *planted, *after])
    assert {(op.kind, op.value) for op in found} == expected


def test_the_same_history_takes_the_same_effort_and_a_budget_that_is_used_up_is_undecided():
    history = simulated(1, 300)
    found, looked = check(history)
    assert check(history) == (found, looked)
    assert check(history, budget=looked) == (Answer.YES, looked)
    assert check(history, budget=looked - 1) == (Answer.UNDECIDED, looked - 1)


def test_a_hint_says_what_is_tried_first_and_excludes_nothing():
    misled = [write("a", 0, 9, hint=2), write("b", 0, 9, hint=1), read("b", 10, 11)]
    assert answer(*misled) is Answer.YES


def test_an_unknown_change_that_was_seen_has_an_end_and_one_that_explains_nothing_is_left_out():
    seen = [cas(None, "a", 0), cas("a", "b", 1), read("b", 5, 7)]
    assert [op.return_ns for op in prepared(seen)] == [7, 7, 7]
    assert prepared([write("a", 0, 1), write("lost", 2), cas("lost", "more", 3), read("a", 4, 5)]) == [
        write("a", 0, 1),
        read("a", 4, 5),
    ]


def test_many_unknown_writes_of_a_long_outage_do_not_explode():
    """Five hundred writes that nobody heard of, while others are read, missed and acknowledged."""
    lost = [write(f"lost{n}", n) for n in range(500)]
    served = []
    for n in range(100):
        at = 10 * n
        served += [write(f"w{n}", at, at + 3), read(f"w{n}", at + 5, at + 6), miss(f"w{n}", at + 7, at + 8)]
    found, looked = check([*lost, *served])
    assert found is Answer.YES
    assert looked < 5000
