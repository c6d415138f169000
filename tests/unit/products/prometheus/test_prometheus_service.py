"""Prometheus as a service: what it scrapes, what it is told, and what an experiment lacks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from hashidrill.core.errors import DatacenterError, ExperimentError
from hashidrill.core.experiment.library import experiments
from hashidrill.core.experiment.loader import load_experiment, load_text
from hashidrill.core.protocols.service import Site
from hashidrill.products.prometheus.service import Prometheus, PrometheusService, missing, rules_file

ROLES = {
    "consul-1": {"consul": "server"},
    "consul-2": {"consul": "spare"},
    "client-1": {"consul": "client", "nomad": "client"},
    "prometheus-1": {"prometheus": "monitor"},
}
ADDRESSES = {name: f"10.73.0.{n}" for n, name in enumerate(ROLES, 11)}
RULES = YAML(typ="safe").load(rules_file("alerts/rules.yml"))["groups"]
EACH = {rule["alert"]: rule for group in RULES for rule in group["rules"]}


def plan(**spec):
    site = Site(
        "prometheus-1",
        "monitor",
        "10.73.0.61",
        Path("/run/p"),
        Path("/run/p.json"),
        {"prometheus": Path("/bin/prometheus")},
        ADDRESSES,
        agents=ROLES,
    )
    return PrometheusService(Prometheus.model_validate(spec)).agent(site)


def test_it_scrapes_each_running_agent_by_its_address():
    [consul, nomad] = plan(scrape=["consul", "nomad"], every="2s").config["scrape_configs"]
    hosts = {one["labels"]["host"]: one["targets"] for one in consul["static_configs"]}
    assert hosts == {"consul-1": ["10.73.0.11:8500"], "client-1": ["10.73.0.13:8500"]}
    assert (consul["metrics_path"], consul["params"]) == ("/v1/agent/metrics", {"format": ["prometheus"]})
    assert [one["targets"] for one in nomad["static_configs"]] == [["10.73.0.13:4646"]]
    assert plan(every="2s").config["global"]["evaluation_interval"] == "2s"


def test_it_gets_the_rules_as_a_file_of_its_own(tmp_path):
    mine = tmp_path / "mine.yml"
    mine.write_text("groups: []\n")
    made = plan(rules=str(mine))
    assert made.files == {"rules.yml": "groups: []\n"}
    assert made.config["rule_files"] == ["/run/p/rules.yml"]
    assert "ConsulCommitsSlow" in plan().files["rules.yml"]
    with pytest.raises(DatacenterError, match="there is no file of rules nowhere"):
        plan(rules="nowhere.yml")


TARGETS = {"activeTargets": [{"health": "up", "labels": {"host": "consul-1"}}]}
GROUPS = {"groups": [{"rules": [{"name": "A", "health": "ok"}]}]}


@pytest.mark.lie
@pytest.mark.parametrize(
    ("targets", "groups", "lacking"),
    [
        ({}, {}, []),
        ({"health": "down", "lastError": "HTTP status 415"}, {}, ["consul-1: HTTP status 415"]),
        ({"health": "unknown"}, {}, ["consul-1: unknown"]),
        ({}, {"health": "err", "lastError": "many-to-many"}, ["the rule A: many-to-many"]),
        ({}, {"health": "unknown"}, ["the rule A: unknown"]),
    ],
)
def test_it_is_ready_once_all_was_scraped_and_evaluated(targets, groups, lacking):
    said, rules = json.loads(json.dumps((TARGETS, GROUPS)))
    said["activeTargets"][0] |= targets
    rules["groups"][0]["rules"][0] |= groups
    assert missing(said, rules) == lacking


TEXT = """
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: it, title: It, why: Because}}
datacenter: {{{consul}, prometheus: {{{prometheus}}}}}
load: {{kv-writes: {{kind: consul.kv.write, rate: 10/s, keys: 10, value: 64B}}}}
steady_state: {{for: 1s, require: ["kv-writes.errors < 1%"]}}
method: [{{mark: nothing, for: 5s}}]
expect: [{{no_acknowledged_write_lost: {{load: kv-writes}}}}]
"""
SHOWN = "consul: {config: {telemetry: {prometheus_retention_time: 60s}}}"


def test_an_experiment_with_all_that_it_needs_loads():
    loaded = load_text(TEXT.format(consul=SHOWN, prometheus=""))
    assert set(loaded.datacenter.services) == {"consul", "prometheus"}


@pytest.mark.parametrize(
    ("consul", "prometheus", "said"),
    [
        ("consul: {}", "", r"datacenter\.consul.*cannot scrape it without `telemetry: \{prometheus_retention_time"),
        (SHOWN, "scrape: [consul, vault]", "the datacenter has no vault"),
        (SHOWN, "rules: nowhere.yml", "there is no file of rules nowhere.yml"),
        (SHOWN, "scrape: [etcd]", "'consul', 'nomad' or 'vault'"),
        (SHOWN, "every: 100ms", "every"),
    ],
)
def test_what_an_experiment_lacks_for_it_is_said_before_the_run(consul, prometheus, said):
    with pytest.raises(ExperimentError, match=said):
        load_text(TEXT.format(consul=consul, prometheus=prometheus))


# the shipped rules


@pytest.mark.parametrize("name", EACH)
def test_a_rule_says_what_is_wrong_and_what_to_do(name):
    rule = EACH[name]
    assert rule["labels"]["severity"] in {"page", "warn"}
    assert len(rule["annotations"]["summary"]) > 20
    assert rule["annotations"]["what_to_do"].endswith(".")
    assert "for" in rule or "[2m]" in rule["expr"], "one bad sample is no alert"


def test_every_alert_of_consul_is_in_an_experiment():
    """Where it fires, where it stays quiet, or both."""
    ours = [load_experiment(path) for name, path in experiments().items() if name.startswith("alerts/")]
    judged = {one.params.get("alert") for each in ours for one in each.expect}
    assert {name for name in EACH if name.startswith("Consul")} | {"AgentUnseen"} == judged - {None}
