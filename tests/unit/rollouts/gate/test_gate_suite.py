"""Which experiments a gate runs: those that matter for the changed keys first, as many as there is time for."""

from __future__ import annotations

from functools import cache

import pytest

from hashidrill.core.errors import UnknownNameError, UsageError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.rollouts.gate.configuration import PRODUCTS, shipped
from hashidrill.rollouts.gate.differences import why_left_out
from hashidrill.rollouts.gate.suite import TAG, key_map, picked, suite


def one(_member):
    return 1


def four(_member):
    return 4


@cache
def members(product="consul"):
    return tuple(suite([TAG], product))


def names(found):
    return [member.name for member in found]


class TestTheMapThatShips:
    @pytest.mark.lie
    @pytest.mark.parametrize("product", PRODUCTS)
    def test_it_names_only_experiments_of_the_suite_that_have_the_product(self, product):
        for group in shipped("keys.yaml")[product]:
            assert group["why"]
            assert set(group["experiments"]) <= set(names(members(product)))

    @pytest.mark.parametrize("product", PRODUCTS)
    def test_it_names_no_key_that_is_left_out_and_none_twice(self, product):
        keys = [key for group in shipped("keys.yaml")[product] for key in group["keys"]]
        assert len(keys) == len(set(keys))
        assert [key for key in keys if why_left_out(product, key)] == []

    @pytest.mark.parametrize("product", PRODUCTS)
    def test_each_experiment_of_the_suite_matters_for_something_and_is_short(self, product):
        mapped = {name for group in shipped("keys.yaml")[product] for name in group["experiments"]}
        assert mapped == set(names(members(product)))
        assert all(member.run_s <= 80 for member in members(product))


class TestTheSuite:
    def test_a_tag_stands_for_all_that_have_it_and_a_name_for_itself(self):
        assert "raft/killed-leader" in names(members())
        assert names(suite(["raft/killed-leader", "raft/frozen-leader", "killed-leader"], "consul")) == [
            "raft/killed-leader",
            "raft/frozen-leader",
        ]

    def test_experiments_without_the_product_are_not_in_it(self):
        assert "raft/killed-leader" not in names(members("nomad"))
        with pytest.raises(UsageError, match="has no Nomad"):
            suite(["raft/killed-leader"], "nomad")

    def test_a_suite_without_an_experiment_is_refused(self):
        with pytest.raises(UsageError, match="no experiment in it has a Vault"):
            suite(["locks"], "vault")

    def test_what_is_neither_a_name_nor_a_tag_has_near_ones_of_both(self):
        with pytest.raises(UnknownNameError, match=r"killed-leader.*nor is it a tag"):
            suite(["raft/killed-leadr"], "consul")


class TestTheBudget:
    def test_what_matters_for_the_changed_keys_goes_first_and_says_why(self):
        found = picked(members(), "consul", ["use_streaming_backend"], key_map(), budget_s=600, runs=four)
        assert names(found.members)[:1] == ["config/rollout-year-end"]
        assert found.members[0].mattering == ("use_streaming_backend",)
        assert "streams" in found.members[0].why
        assert found.left
        assert sum(4 * member.run_s for member in found.members) <= 600

    def test_one_experiment_is_run_however_short_the_time(self):
        found = picked(
            members(), "consul", ["performance.raft_multiplier"], key_map(), budget_s=1, runs=lambda _member: 4
        )
        assert names(found.members) == ["raft/killed-leader"]

    def test_all_of_the_suite_is_run_where_there_is_time(self):
        found = picked(members(), "consul", [], key_map(), budget_s=1e6, runs=four)
        assert sorted(names(found.members)) == sorted(names(members()))
        assert found.left == ()

    def test_a_key_that_nothing_is_known_of_is_told(self):
        found = picked(members(), "consul", ["raft_multipliers"], key_map(), budget_s=600, runs=four)
        assert found.unmapped == ("raft_multipliers",)

    def test_a_key_stands_for_all_below_it_and_for_no_longer_name(self):
        found = picked(
            members(),
            "consul",
            ["limits.request_limits.mode", "limitsx"],
            key_map(),
            budget_s=1,
            runs=lambda _member: 1,
        )
        assert found.unmapped == ("limitsx",)
        assert names(found.members) == ["raft/slow-leader-disk-brief"]


class TestAMapOfOnesOwn:
    def test_it_goes_before_the_one_that_ships(self, tmp_path):
        file = tmp_path / "map.yaml"
        file.write_text("consul: [{keys: [limits], experiments: [raft/frozen-leader], why: ours}]")
        found = picked(members(), "consul", ["limits.rpc_rate"], key_map(file), budget_s=1, runs=one)
        assert names(found.members) == ["raft/frozen-leader"]
        assert found.members[0].why == "ours"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("consol: []", "at the top there are consul, nomad, vault"),
            ("consul: [{keys: [a]}]", "consul, group 1: has `keys`, `experiments`"),
            ("consul: [{keys: a, experiments: []}]", "`keys` is a list of names"),
            (
                "consul: [{keys: [a], experiments: [raft/kiled-leader]}]",
                "group 1: there is no experiment.*killed-leader",
            ),
            ("a: [", "is no YAML"),
        ],
    )
    def test_what_is_wrong_with_it_is_said(self, tmp_path, text, said):
        file = tmp_path / "map.yaml"
        file.write_text(text)
        with pytest.raises(UsageError, match=said):
            key_map(file)


def test_the_two_days_of_the_rollout_differ_by_half_as_many_routing_nodes_again():
    moderate, year_end = (
        load_experiment(find_experiment(f"config/rollout-{day}")).datacenter.consul for day in ("moderate", "year-end")
    )
    assert year_end.clients == 1.5 * moderate.clients
    assert moderate.version == year_end.version == "1.10.3"
