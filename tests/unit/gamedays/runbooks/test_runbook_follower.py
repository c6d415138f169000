"""A runbook is followed as a person would: in its order, on the hosts it names, each decision from what was seen."""

import pytest

import virtual_time
from hashidrill.gamedays.runbooks.follower import Follower, Ran
from hashidrill.gamedays.runbooks.model import PlaceError, hosts_of
from runbook_pages import CLIENT, SERVERS, line_of, page, sick

ALL = {f"consul-{n}/consul": True for n in (1, 2, 3)} | {"client-1/consul": True}


@virtual_time.ran
async def follow(hands, *changes):
    """(how it ended, the diagnosis)."""
    follower = Follower(page(*changes), hands)
    return await follower.follow(), follower.diagnosis


def test_a_sick_datacenter_is_diagnosed_and_repaired():
    hands = sick()
    assert follow(hands) == ("done", "slow-disk")
    assert [command for _, command, _ in hands.ran] == [
        "who leads",
        "how slow",
        "another leads",
        *["all alive"] * 3,
        "transfer",
        "another leads",
        *["all alive"] * 3,
    ]


def test_a_command_runs_where_an_observation_said():
    hands = sick()
    follow(hands)
    assert ("consul-2", "how slow", {"leader": "consul-2"}) in hands.ran


def test_what_was_observed_is_a_variable_of_later_blocks():
    hands = sick()
    follow(hands)
    seen = next(seen for _, command, seen in hands.ran if command == "transfer")
    assert seen == {"leader": "consul-2", "commit_ms": "812.5"}


def test_a_healthy_datacenter_is_left_alone():
    hands = sick(how_slow="3.5")
    assert follow(hands) == ("hands-off", "not-this")
    assert "transfer" not in [command for _, command, _ in hands.ran]


def test_the_diagnosis_says_what_it_rests_on():
    hands = sick()
    follow(hands)
    [decided] = hands.of("decided")
    assert decided == {
        "diagnosis": "slow-disk",
        "line": line_of("commit_ms > 300"),
        "when": "commit_ms > 300",
        "because": {"commit_ms": 812.5},
    }


@pytest.mark.lie
@pytest.mark.parametrize("failed", [1, Ran(None, "812.5", "", 30.0), "none today\n", ""], ids=str)
def test_an_observation_that_failed_proves_nothing(failed):
    """It is missing: neither the sick line nor the healthy one holds, and nobody acts."""
    hands = sick(how_slow=failed)
    assert follow(hands) == ("undecided", "")
    assert hands.of("observed")[-1]["value"] is None
    assert not hands.of("acts")


def test_one_that_may_fail_counts_with_all_that_it_said():
    hands = sick(how_slow=Ran(1, "", "Error: No cluster leader\n", 0.1))
    changes = (
        ("sh observe commit_ms on={leader} number", "sh observe commit_ms on={leader} fails"),
        ("commit_ms > 300 ", 'commit_ms contains "No cluster" '),
    )
    assert follow(hands, *changes) == ("done", "slow-disk")


def test_a_place_that_was_not_found_is_where_nobody_can_look():
    hands = sick(who_leads=1)
    assert follow(hands) == ("undecided", "")
    assert "how slow" not in [command for _, command, _ in hands.ran]


def test_an_act_that_fails_ends_it():
    hands = sick(transfer=Ran(1, "", "Error transferring leadership: no\n", 0.2))
    assert follow(hands) == ("act-failed", "slow-disk")
    where = f"line {line_of('sh act')}: the act on consul-1"
    assert hands.notes[-1][1] == f"{where} ended with 1: Error transferring leadership: no"
    assert not hands.of("confirmed")


def test_an_act_that_may_fail_is_judged_by_what_confirms_it():
    """Consul answers `leadership transfer timeout` on a slow leader, and transfers it all the same."""
    change = ("sh act for", "sh act fails for")
    moved = sick(transfer=Ran(1, "", "timeout\n", 0.2), another_leads=lambda host, count: int(count < 3))
    assert follow(moved, change) == ("done", "slow-disk")
    stayed = sick(transfer=Ran(1, "", "timeout\n", 0.2), another_leads=1)
    assert follow(stayed, change)[0] == "unconfirmed"
    assert follow(sick(transfer=Ran(None, "", "", 30.0)), change)[0] == "act-failed"


def test_an_act_that_does_not_end_is_a_failure_too():
    assert follow(sick(transfer=Ran(None, "", "", 30.0)))[0] == "act-failed"


@pytest.mark.lie
def test_a_command_in_an_act_that_failed_and_was_ignored_is_told():
    """Planted: `transfer 2>/dev/null || echo` and the like, which end with 0."""
    hands = sick(transfer=Ran(0, "", "", 0.2, ("1 consul operator raft transfer-leader",)))
    assert follow(hands)[0] == "act-failed"
    assert hands.notes[-1][1].endswith("a command failed and was ignored: 1 consul operator raft transfer-leader")


def test_a_test_in_an_act_may_say_no():
    assert follow(sick(transfer=Ran(0, "", "", 0.2, ("1 [ -f /nowhere ]", "1 grep -q x y"))))[0] == "unconfirmed"


def test_a_confirm_is_repeated_until_it_holds():
    hands = sick(another_leads=lambda host, count: 0 if count >= 4 else 1)
    assert follow(hands) == ("done", "slow-disk")
    assert sum(command == "another leads" for _, command, _ in hands.ran) == 4


def test_a_confirm_that_never_holds_ends_it():
    hands = sick(another_leads=1)
    assert follow(hands) == ("unconfirmed", "slow-disk")
    assert hands.notes[-1][1] == f"line {line_of('within=5s')}: not confirmed within 5s"


def test_each_confirm_is_tried_before_the_act():
    hands = sick()
    follow(hands)
    first, second = hands.of("control")
    assert (first["held"], first["throughout"]) == (False, False)
    assert (second["held"], second["throughout"]) == (True, True)
    kinds = [what for what, _, _ in hands.notes]
    assert kinds.index("control") < kinds.index("acts")


def test_the_fault_is_looked_for_before_the_act():
    hands = sick()
    hands.gone = ("0-disk.latency-consul-2",)
    follow(hands)
    assert hands.of("proof") == [{"gone": ["0-disk.latency-consul-2"]}]


def test_on_each_of_several_hosts_the_largest_number_counts():
    changes = (("on={leader} number", "on=consul:servers number"),)
    hands = sick(how_slow=lambda host, _: {"consul-1": "3", "consul-2": "812", "consul-3": "nothing"}[host])
    assert follow(hands, *changes) == ("done", "slow-disk")
    [_, observed] = hands.of("observed")
    assert observed["value"] == 812
    assert next(s for _, c, s in hands.ran if c == "transfer")["commit_ms"] == (
        "consul-1 3\nconsul-2 812\nconsul-3 nothing"
    )
    least = sick(how_slow=lambda host, _: {"consul-1": "3", "consul-2": "812", "consul-3": "9"}[host])
    assert follow(least, ("on={leader} number", "on=consul:servers number=min")) == ("hands-off", "not-this")


def test_a_rolling_act_stops_at_the_first_host_where_it_fails():
    hands = sick(transfer=lambda host, _: int(host == "consul-2"))
    assert follow(hands, ("sh act for=slow-disk on=consul:server", "sh act for=slow-disk on=consul:servers"))[0] == (
        "act-failed"
    )
    assert [host for host, command, _ in hands.ran if command == "transfer"] == ["consul-1", "consul-2"]


# where a block runs


@pytest.mark.parametrize(
    ("on", "hosts"),
    [
        ("consul-3", ["consul-3"]),
        ("consul:server", ["consul-1"]),
        ("consul:client", ["client-1"]),
        ("consul:servers", ["consul-1", "consul-2", "consul-3"]),
        ("{name}", ["consul-2"]),
        ("{address}", ["consul-2"]),
        ("{url}", ["consul-2"]),
        ("{full}", ["consul-2"]),
    ],
)
def test_places(on, hosts):
    seen = {"name": "consul-2", "address": "10.73.0.12:8300", "url": "http://10.73.0.12:8500", "full": "consul-2.dc1"}
    assert hosts_of(on, [CLIENT, *SERVERS], seen, ALL) == hosts


def test_one_server_is_one_that_runs():
    up = ALL | {"consul-1/consul": False}
    assert hosts_of("consul:server", SERVERS, {}, up) == ["consul-2"]
    assert hosts_of("consul:servers", SERVERS, {}, up) == ["consul-1", "consul-2", "consul-3"]
    assert hosts_of("consul:server", SERVERS, {}, {}) == ["consul-1"]


@pytest.mark.parametrize("on", ["{gone}", "{odd}", "nomad:server", "consul-9"])
def test_a_place_that_is_not_there_is_said_so(on):
    with pytest.raises(PlaceError, match="on="):
        hosts_of(on, SERVERS, {"gone": None, "odd": "mars"}, ALL)


def test_a_decision_that_does_not_hold_leads_to_the_next_one():
    hands = sick(how_slow="200")
    second = "```decide\ncommit_ms > 100 -> slow-disk: slower than it should be\n```"
    more = (
        "commit_ms is there -> not-this: writes are quick\n```",
        f"commit_ms < 5 -> not-this: quick\n```\n\n{second}",
    )
    assert follow(hands, more) == ("done", "slow-disk")
    assert hands.of("undecided")
