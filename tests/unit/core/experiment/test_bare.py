"""Consul is not compulsory: an experiment that needs no host gets none, and one that does gets what it always got."""

import json

import pytest

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_text
from hashidrill.core.experiment.model import DatacenterSpec, Experiment, services_of

SCRIPTED = {"command": ["true"], "rate": "1/s", "via": "script"}
TAP = {"fault": "tap.fail", "on": "client:alone", "with": {"fault": "503"}, "for": "2s"}


def written(**changes):
    return {
        "apiVersion": "hashidrill/v1",
        "kind": "Experiment",
        "metadata": {"name": "bare", "title": "Nobody is there", "why": "It tests validation"},
        "datacenter": {},
        "clients": {"alone": SCRIPTED},
        "steady_state": {"for": "2s", "require": ["alone.errors < 1%"]},
        "method": [TAP],
        "expect": [{"available_during": {"load": "alone", "success": "99%"}}],
    } | changes


def services(document):
    return [service.name for service in services_of(load_text(json.dumps(document)).datacenter)]


@pytest.mark.parametrize("datacenter", [{}, {"ready_within": "90s"}, {"disk": {"size": "64MB"}}, {"consul": None}])
def test_clients_whose_taps_answer_by_themselves_need_no_datacenter(datacenter):
    assert services(written(datacenter=datacenter)) == []


def test_no_datacenter_at_all_is_an_empty_one():
    document = written()
    del document["datacenter"]
    assert services(document) == []


@pytest.mark.lie
@pytest.mark.parametrize(
    "changes",
    [
        {"datacenter": {"consul": {}}},
        {"clients": {"alone": {"command": ["true"], "rate": "1/s"}}},
        {"clients": {"alone": SCRIPTED | {"on": "host:client-1"}}},
        {"load": {"kv-writes": {"kind": "consul.kv.write", "rate": "30/s"}}},
        {"method": [{"fault": "process.kill", "on": "consul:leader", "for": "2s"}]},
        {"method": [{"fault": "process.kill", "on": "host:consul-1", "for": "2s"}]},
        {"steady_state": {"for": "2s", "require": ["raft.leader >= 1"]}},
        {"guardrails": ["consul.members_alive < 1 for 5s"]},
        {
            "clients": {
                "alone": SCRIPTED | {"profile": {"ramp": {"by": "10%", "every": "1s", "while": ["raft.leader >= 1"]}}}
            }
        },
    ],
    ids=["named", "agents behind a tap", "a host", "a load", "a role", "a target", "a signal", "a guardrail", "a ramp"],
)
def test_whatever_asks_for_a_host_or_for_what_a_probe_measures_has_consul_as_ever(changes):
    assert services(written(**changes)) == ["consul"]


def test_without_consul_nothing_can_be_asked_of_it():
    with pytest.raises(ExperimentError, match=r"the datacenter has\s+no consul; add\s+datacenter.consul"):
        load_text(
            json.dumps(
                written(
                    datacenter={"consul": None}, method=[{"fault": "process.kill", "on": "consul:leader", "for": "2s"}]
                )
            )
        )


def test_a_bare_datacenter_is_still_bare_when_it_was_written_out_and_read_again():
    experiment = load_text(json.dumps(written()))
    again = Experiment.model_validate_json(experiment.model_dump_json(by_alias=True))
    spec = DatacenterSpec.model_validate(experiment.datacenter.model_dump(mode="json", by_alias=True))
    assert again.datacenter.services == spec.services == {}


def test_a_mistake_in_such_an_experiment_is_told_with_its_place():
    with pytest.raises(ExperimentError, match=r"datacenter: unknown key 'dsik'"):
        load_text(json.dumps(written(datacenter={"dsik": {}})))
