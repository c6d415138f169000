"""The models of what a user writes: strict, frozen, and with defaults that are right for most."""

import pytest
from pydantic import ValidationError

from hashidrill.core.experiment.model import DatacenterSpec, Expectation, LoadSpec, Metadata, Step


def test_the_default_datacenter_is_three_servers_and_a_client():
    spec = DatacenterSpec()
    assert (spec.consul.servers, spec.consul.clients, spec.disk.size) == (3, 1, None)
    assert spec.ready_within == 60


@pytest.mark.parametrize(
    "name", ["Slow", "slow_leader", "-slow", "slow-", "slow--leader", "1slow", "", "sl ow", "s" * 61, "slow\n"]
)
def test_a_name_is_lower_case_words_joined_by_dashes(name):
    with pytest.raises(ValidationError):
        Metadata(name=name, title="t", why="w")
    assert Metadata(name="slow-leader-2", title="t", why="w").name == "slow-leader-2"


def test_what_was_loaded_does_not_change():
    step = Step.model_validate({"fault": "noop", "on": "consul:leader", "for": "1s"})
    with pytest.raises(ValidationError, match="frozen"):
        step.fault = "disk.latency"


def test_a_load_keeps_the_parameters_of_its_kind_as_they_were_written():
    load = LoadSpec.model_validate({"kind": "consul.kv.write", "rate": "50/s", "keys": 5})
    assert load.params == {"rate": "50/s", "keys": 5}


@pytest.mark.parametrize(
    ("raw", "name", "params", "issue"),
    [
        ({"writes_recover": {"load": "kv"}}, "writes_recover", {"load": "kv"}, None),
        ({"leadership_stays": None}, "leadership_stays", {}, None),
        (
            {"leadership_stays": {}, "known_issue": "hashicorp/consul#22064"},
            "leadership_stays",
            {},
            "hashicorp/consul#22064",
        ),
        (
            {"leadership_stays": {}, "known_issue": "https://example.org/1"},
            "leadership_stays",
            {},
            "https://example.org/1",
        ),
    ],
)
def test_an_expectation_is_the_name_of_a_hypothesis_with_its_parameters(raw, name, params, issue):
    expectation = Expectation.model_validate(raw)
    known = expectation.known_issue
    assert (expectation.hypothesis, expectation.params, known and known.issue) == (name, params, issue)
    assert Expectation.model_validate(expectation.model_dump()) == expectation


@pytest.mark.parametrize("raw", [{}, {"a": {}, "b": {}}, {"known_issue": "a/b#1"}, {"a": 5}, {"a": []}, "a", 5, None])
def test_anything_else_is_no_expectation(raw):
    with pytest.raises(ValidationError):
        Expectation.model_validate(raw)


@pytest.mark.parametrize("issue", ["", "known", "#5", "hashicorp/consul", "a/b#x", "http://x", "https://", "a/b#1 c"])
def test_a_known_issue_says_where_it_is_tracked(issue):
    with pytest.raises(ValidationError):
        Expectation.model_validate({"a": {}, "known_issue": issue})


def test_an_expectation_is_titled_as_a_call():
    expectation = Expectation.model_validate({"writes_recover": {"load": "kv", "within": "10s"}})
    assert expectation.title == "writes_recover(load=kv, within=10s)"
