"""At most one of three servers at a time, at worst; never the quorum, unless experiment and command both say so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashidrill.core.errors import InterlockError
from hashidrill.staging.interlocks import blast_radius
from hashidrill.staging.interlocks.blast_radius import Disturbed, Limits, Window, groups_of, most_disturbed

SERVERS = frozenset({"consul-1", "consul-2", "consul-3"})
FIVE = SERVERS | {"consul-4", "consul-5"}
CLIENTS = frozenset(f"client-{n}" for n in range(1, 11))


def estate(servers=SERVERS, down=(), limits=None):
    roles = {host: {"consul": "server"} for host in servers} | {
        host: {"consul": "client", "nomad": "client"} for host in CLIENTS
    }
    return groups_of(roles, {"consul": servers}, down, limits or Limits())


def on(hosts, begins=0.0, ends=10.0, *, step=0, most=1, label="", **more):
    hosts = frozenset({hosts} if isinstance(hosts, str) else hosts)
    return Window(step, label or f"step {step}", hosts, begins, ends, most, **more)


def troubles(*windows, groups=None, breaks_quorum=False):
    return list(blast_radius.troubles(windows, groups or estate(), breaks_quorum=breaks_quorum))


ROLLING = on(SERVERS, most=3, at_a_time=1)
"""A change of all servers, one at a time."""
NEXT = frozenset({0})
CASES = {
    "one after the other": (False, on("consul-1"), on(SERVERS, 20, 30, step=1), on("consul-3", 40, 50, step=2)),
    "all servers at once": (True, on(SERVERS, most=3)),
    "all servers in turn": (False, ROLLING),
    "all servers in turn, and another": (True, ROLLING, on("consul-1", 5, 15, step=1)),
    "what disturbs no host is not counted": (False, on(SERVERS, most=3, at_a_time=0), on("consul-1")),
    # the lie: both are on the leader, so it is one server; it need not be by then
    "a role may move between two faults on it": (True, on(SERVERS), on(SERVERS, 5, 15, step=1)),
    "two on one named host": (False, on("consul-1"), on("consul-1", 5, 15, step=1)),
    "a leader and a named host may be two": (True, on(SERVERS), on("consul-1", 5, 15, step=1)),
    "a revert takes its time": (True, on("consul-1"), on("consul-2", 14.9, 20, step=1)),
    "a revert is over": (False, on("consul-1"), on("consul-2", 15, 20, step=1)),
    "the next step waits for it": (False, on("consul-1"), on("consul-2", 10, 20, step=1, after=NEXT)),
    "it still lasts as the next step begins": (True, on("consul-1", 0, 30), on("consul-2", 10, 20, step=1, after=NEXT)),
    "a long one under two short ones": (
        True,
        on("consul-1", 0, 100),
        on("consul-1", 10, 20, step=1),
        on("consul-2", 60, 70, step=2),
    ),
}


@pytest.mark.lie
@pytest.mark.parametrize("case", CASES)
def test_how_many_servers_a_method_may_disturb_at_one_time(case):
    too_many, *windows = CASES[case]
    assert bool(troubles(*windows)) is too_many
    assert bool(troubles(*reversed(windows))) is too_many, "the order in which steps are written does not matter"


def test_a_single_server_has_no_quorum_to_spare():
    assert troubles(on("consul-1"), groups=estate({"consul-1"}))


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (on(SERVERS, most=3), r"breaks the quorum of consul.*; say --breaks-quorum"),
        (on(CLIENTS, most=9), r"the blast radius is too wide: .*interlocks\.blast_radius"),
    ],
)
def test_the_message_says_what_to_do(window, said):
    with pytest.raises(InterlockError, match=said):
        blast_radius.check([window], estate(), breaks_quorum=False, said="say --breaks-quorum")


def test_two_of_three_break_the_quorum():
    [text] = troubles(on("consul-1"), on("consul-2", 5, 15, step=1))
    assert text == (
        "breaks the quorum of consul: it may disturb 2 of 3 servers, but 2 must be left at 5s of the method (step 0 and"
        " step 1)"
    )


def test_two_of_five_break_no_quorum_and_are_still_too_wide():
    [text] = troubles(on("consul-1"), on("consul-2", 5, 15, step=1), groups=estate(FIVE))
    assert text.startswith("may disturb 2 of 5 consul servers at one time, but only 1 may be")
    assert troubles(on("consul-1"), on("consul-2", 5, 15), groups=estate(FIVE, limits=Limits(servers=2))) == []


@pytest.mark.lie
def test_what_sets_back_what_all_share_is_refused_unless_a_broken_quorum_is_allowed():
    everyone = SERVERS | CLIENTS
    restore = on(everyone, most=len(everyone), sets_back=True, label="restore")
    with pytest.raises(InterlockError, match="the method breaks the quorum of consul: it may disturb 3 of 3 servers"):
        blast_radius.check([restore], estate(), breaks_quorum=False, said="")
    assert troubles(restore, breaks_quorum=True) == []
    wide = on(CLIENTS, 5, 15, step=1, most=5)
    assert troubles(restore, wide, breaks_quorum=True), "and it excuses nothing else"


@pytest.mark.lie
def test_a_server_that_is_down_already_counts_against_the_quorum():
    [text] = troubles(on("consul-1"), groups=estate(down=["consul-3"]))
    assert "1 of 3 servers with 1 already down (consul-3), but 2 must be left" in text
    assert troubles(on("consul-1"), groups=estate(FIVE, down=["consul-3"])) == []
    assert troubles(on("client-1"), groups=estate(down=["consul-3", "consul-2"])) == [], "clients do not vote"


def test_a_host_that_does_not_vote_is_not_counted_among_those_that_do():
    roles = {host: {"consul": "server"} for host in FIVE}
    groups = groups_of(roles, {"consul": SERVERS}, [], Limits())
    assert troubles(on("consul-1"), on("consul-4", 5, 15, step=1), groups=groups) == []
    assert troubles(on("consul-1"), on("consul-2", 5, 15, step=1), groups=groups)


@pytest.mark.parametrize(("share", "fits", "too_many"), [(0.2, 2, 3), (0.05, 1, 2), (1.0, 10, None)])
def test_clients_go_by_their_share(share, fits, too_many):
    groups = estate(limits=Limits(clients=share))
    assert troubles(on(CLIENTS, most=fits), groups=groups) == []
    if too_many:
        assert len(troubles(on(CLIENTS, most=too_many), groups=groups)) == 2, "consul's and nomad's on the same hosts"


def test_both_must_say_that_the_quorum_may_break():
    windows = (on("consul-1"), on("consul-2", step=1))
    assert troubles(*windows, breaks_quorum=True) == []
    assert troubles(on(CLIENTS, most=10), breaks_quorum=True), "it says nothing of clients"


@pytest.mark.lie
@given(st.lists(st.tuples(st.sets(st.sampled_from(sorted(FIVE)), min_size=1), st.integers(1, 5)), max_size=5))
def test_the_worst_case_is_never_less_than_what_can_happen(drawn):
    """Against trying all choices: hosts for each fault, one after the other."""
    windows = [on(hosts, most=most, step=n) for n, (hosts, most) in enumerate(drawn)]
    reached = {frozenset()}
    for window in windows:
        for _ in range(window.at_once):
            reached = {done | {host} for done in reached for host in window.hosts}
    assert most_disturbed(windows, FIVE) == max(map(len, reached))


# while it runs


def test_a_fault_whose_leader_is_another_by_now_is_not_applied():
    """Beforehand both may be on one host; the guard sees that they are not."""
    now = Disturbed(estate())
    now.begins("0", on("consul-1"))
    assert now.trouble("1", on("consul-1", step=1)) == ""
    assert "breaks the quorum" in now.trouble("1", on("consul-2", step=1))
    now.ended("0")
    assert now.trouble("1", on("consul-2", step=1)) == ""


def test_a_fault_on_a_client_is_not_kept_back_for_what_servers_have():
    now = Disturbed(estate(down=["consul-2"]))
    now.begins("0", on("consul-1"))
    assert now.trouble("1", on("client-1", step=1)) == ""
