"""What changed since it last passed: each planted change is named, and nothing else is."""

import random

from hashidrill.gamedays.history.changes import changed
from hashidrill.gamedays.history.pages import changed_lines
from history_runs import planted


def passing(count, **how):
    draw = random.Random(1)
    return [planted(n, figures={"p50": 0.01 * (1 + draw.random() / 10)}, **how) for n in range(count)]


def lines(found):
    return "\n".join(changed_lines(found))


def test_a_version_a_key_of_the_agents_and_a_parameter_are_each_named():
    now = planted(
        9,
        "FAIL",
        versions={"consul": "1.23.0"},
        hashidrill="0.2.0",
        figures={"p50": 0.2},
        config={"consul-1": {"server": True, "performance": {"raft_multiplier": 5}}},
        experiment={"load": {"kv-writes": {"rate": "80/s"}}},
        broken=["writes_recover(load=kv-writes)"],
    )
    found = changed([*passing(5), now])
    assert [str(each) for each in found.changes] == [
        "hashidrill: version: 0.1.0 -> 0.2.0",
        "versions: consul: 1.22.2 -> 1.23.0",
        "experiment: load.kv-writes.rate: 50/s -> 80/s",
        "agents: performance of consul-1: nothing -> {'raft_multiplier': 5}",
    ]
    assert [each.name for each in found.outside] == ["p50"]
    assert found.broken == ["writes_recover(load=kv-writes): it did not"]
    assert "figure outside of its noise: p50" in lines(found)


def test_the_same_change_on_three_servers_is_one_line_and_a_host_that_went_is_named():
    config = {name: {"level": "INFO"} for name in ("consul-1", "consul-2", "consul-3")}
    after = {name: {"level": "DEBUG"} for name in ("consul-1", "consul-2")}
    found = changed([*passing(3, config=config), planted(9, "FAIL", config=after)])
    assert [str(each) for each in found.changes] == [
        "agents: consul-3: there -> nothing",
        "agents: level of consul-1, consul-2: INFO -> DEBUG",
    ]


def test_a_run_that_failed_with_nothing_changed_says_so_and_has_no_figure_outside():
    now = planted(9, "FAIL", figures={"p50": 0.0104}, broken=["leader_elected"])
    found = changed([*passing(5), now])
    assert (found.changes, found.outside) == ([], [])
    assert "no change is known from the recordings" in lines(found)
    assert "1 figure within the noise (noise from 5 runs that passed, under the same conditions)" in lines(found)


def test_it_is_compared_with_the_last_pass_and_invalid_runs_are_neither():
    old, failed, invalid, now = (
        passing(1)[0],
        planted(2, "FAIL"),
        planted(3, "INVALID", versions={"consul": "9"}),
        planted(4, "FAIL"),
    )
    found = changed([old, failed, invalid, now])
    assert (found.before.id, found.now.id, found.between) == (old.id, now.id, 1)
    assert changed([old, failed, invalid]).now.id == failed.id
    assert changed([invalid]) is None


def test_a_run_that_never_passed_before_says_that():
    found = changed([planted(1, "FAIL"), planted(2, "FAIL")])
    assert found.before is None
    assert "it never passed before" in lines(found)


def test_a_later_run_is_not_taken_for_the_last_pass_of_an_earlier_one():
    runs = [*passing(3), planted(5, "FAIL"), planted(6, versions={"consul": "2"})]
    assert changed(runs, runs[3]).before.id == runs[2].id
