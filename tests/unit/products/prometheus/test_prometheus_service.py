"""Prometheus as a service: what it scrapes, what it is told, and what an experiment lacks for it."""

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
WATCHERS = ("prometheus-2", "alertmanager-1")
ADDRESSES = {name: f"10.73.0.{n}" for n, name in enumerate((*ROLES, *WATCHERS), 11)}
RULES = YAML(typ="safe").load(rules_file("alerts/rules.yml"))["groups"]
EACH = {rule["alert"]: rule for group in RULES for rule in group["rules"]}


def plan(host="prometheus-1", **spec):
    site = Site(
        host,
        "monitor",
        "10.73.0.61",
        Path("/run/p"),
        Path("/run/p.json"),
        {name: Path("/bin", name) for name in ("prometheus", "alertmanager")},
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


def test_a_second_one_asks_a_client_agent_of_consul_for_the_servers():
    service = PrometheusService(Prometheus(find=["fixed", "consul"]))
    assert [place.host for place in service.places()] == ["prometheus-1", "prometheus-2"]
    assert "static_configs" in plan(find=["fixed", "consul"]).config["scrape_configs"][0]
    [found] = plan("prometheus-2", find=["fixed", "consul"]).config["scrape_configs"]
    assert found["consul_sd_configs"] == [{"server": "10.73.0.13:8500", "services": ["consul"]}]
    assert "static_configs" not in found
    assert {one["target_label"]: one.get("replacement") for one in found["relabel_configs"]} == {
        "__address__": "$1:8500",
        "host": None,
    }


def test_alerts_go_to_an_alertmanager_on_a_host_of_its_own():
    service = PrometheusService(Prometheus(alertmanager=True))
    assert [place.host for place in service.places()] == ["alertmanager-1", "prometheus-1"]
    assert {one.name for one in service.binaries()} == {"prometheus", "alertmanager"}
    told = plan(alertmanager=True).config["alerting"]["alertmanagers"]
    assert told == [{"static_configs": [{"targets": [f"{ADDRESSES['alertmanager-1']}:9093"]}]}]
    pager = plan("alertmanager-1", alertmanager=True)
    assert pager.command[0] == "/bin/alertmanager"
    assert pager.config["receivers"] == [{"name": pager.config["route"]["receiver"]}]
    assert "alerting" not in plan().config


@pytest.mark.lie
def test_an_alert_that_is_not_sent_again_ends_in_alertmanager_soon():
    """Four times this later, instead of after 4 min: until then a Prometheus that ended looks like one that is well."""
    assert "--rules.alert.resend-delay=2s" in plan(every="2s").command


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
PAGERS = {"activeAlertmanagers": [{"url": "http://alertmanager-1:9093/api/v2/alerts"}]}
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
    assert missing(said, rules, PAGERS, pager=True) == lacking


@pytest.mark.lie
def test_it_is_not_ready_without_a_target_or_without_the_alertmanager_that_it_tells():
    assert missing({"activeTargets": []}, GROUPS, PAGERS, pager=True) == ["it found no agent"]
    assert missing(TARGETS, GROUPS, {"activeAlertmanagers": []}, pager=True) == ["it found no Alertmanager"]
    assert missing(TARGETS, GROUPS, {"activeAlertmanagers": []}, pager=False) == []


TEXT = """
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: it, title: It, why: Because}}
datacenter: {{{consul}, prometheus: {{{prometheus}}}}}
load: {{kv-writes: {{kind: consul.kv.write, rate: 10/s, keys: 10, value: 64B}}}}
steady_state: {{for: 1s, require: ["kv-writes.errors < 1%"]}}
method: [{{fault: noop, on: "consul:leader", for: 5s}}]
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
        (
            f"{SHOWN}, nomad: {{config: {{telemetry: {{prometheus_metrics: true}}}}}}",
            "scrape: [nomad], find: [consul]",
            "scrape only consul",
        ),
    ],
)
def test_what_an_experiment_lacks_for_it_is_said_before_the_run(consul, prometheus, said):
    with pytest.raises(ExperimentError, match=said):
        load_text(TEXT.format(consul=consul, prometheus=prometheus))


# the shipped rules


@pytest.mark.parametrize("name", EACH)
def test_a_rule_says_what_is_wrong_and_what_to_do(name):
    rule = EACH[name]
    assert rule["labels"]["severity"] in {"page", "warn", *(["none"] if name == "Watchdog" else [])}
    assert len(rule["annotations"]["summary"]) > 20 or name == "Watchdog"
    assert rule["annotations"]["what_to_do"].endswith(".")
    assert name == "Watchdog" or "for" in rule or "[2m]" in rule["expr"], "one bad sample is no alert"


def test_every_alert_of_consul_is_in_an_experiment():
    """Where it fires, where it stays quiet, or both."""
    ours = [load_experiment(path) for name, path in experiments().items() if name.startswith("alerts/")]
    judged = {one.params.get("alert") for each in ours for one in each.expect}
    assert {name for name in EACH if name.startswith("Consul")} | {"AgentUnseen", "TelemetryBlind"} == judged - {None}
