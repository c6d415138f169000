"""Files of scenarios: the schema for editors, and one message at its place for each thing that is wrong."""

import json

import jsonschema
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from hashidrill.core.errors import ExperimentError
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.training.course import course_of, each_choice
from hashidrill.gamedays.training.scenario import list_scenarios, read_scenario
from hashidrill.gamedays.training.schema import campaign_schema, scenario_schema
from places import ROOT

SCENARIO = """\
apiVersion: hashidrill/v1
kind: Scenario
metadata: {name: small, title: It is slow, level: 1}
pager: {from: shop, text: Carts take long.}
datacenter: {consul: {servers: 3}}
load:
  kv-writes: {kind: consul.kv.write, rate: 50/s}
before:
  - {fault: consul.leader.pin, on: "host:consul-1", for: 4s}
choose:
  delay: [300ms, 500ms]
  victim: [consul-2, consul-3]
herrings:
  - null
  - [{fault: network.loss, on: "consul:one-follower", with: {percent: 5%}}]
truths:
  slow-disk:
    title: A slow disk
    method:
      - {fault: disk.latency, on: "host:${victim}", with: {op: fsync, delay: "${delay}"}, at: 5s}
    diagnosis:
      component: [disk]
      trouble: [slow]
      where: ["${victim}", $host]
      exact: the disk of ${host} takes ${delay}
    back:
      - {load: kv-writes, p50_below: 300ms}
    repaired:
      - leadership_stays: {}
    kept:
      - no_acknowledged_write_lost: {load: kv-writes}
    repair: Stop it.
    debrief: It was slow.
"""
CAMPAIGN = """\
apiVersion: hashidrill/v1
kind: Campaign
metadata: {name: small, title: A small one}
stages:
  - {name: one, title: One, about: The first stage, scenarios: [first], takes: 1h}
"""


def as_data(text):
    return YAML(typ="safe", pure=True).load(text)


@pytest.fixture(scope="module")
def schema():
    return jsonschema.Draft202012Validator(scenario_schema())


def refusal(tmp_path, old, new):
    """The message of `validate`."""
    assert old in SCENARIO
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO.replace(old, new, 1))
    done = CliRunner().invoke(app, ["validate", str(path), "--json"])
    assert done.exit_code == 2, done.output
    return json.loads(done.stdout)[0]["error"]


def test_a_scenario_that_is_right_is_taken(tmp_path, schema):
    (tmp_path / "small.yaml").write_text(SCENARIO)
    done = CliRunner().invoke(app, ["validate", str(tmp_path / "small.yaml")])
    assert (done.exit_code, done.stdout[:2]) == (0, "ok")
    assert not list(schema.iter_errors(as_data(SCENARIO)))


WRONG = [
    # what is wrong in a part that is an experiment's
    ("disk.latency", "disk.latancy", "truths.slow-disk.method[0]", "disk.latancy", "fault: disk.latancy"),
    ("op: fsync, delay", "op: fsink, delay", "truths.slow-disk.method[0].with.op", "fsink", "op: fsink"),
    ("op: fsync, delay", "op: fsync, dealy: 1s, delay", "truths.slow-disk.method[0].with", "dealy", "dealy: 1s"),
    ("[300ms, 500ms]", "[soon, 500ms]", "truths.slow-disk.method[0].with.delay", "delay is soon", "delay"),
    ("host:${victim}", "hots:${victim}", "truths.slow-disk.method[0].on", "hots", "hots"),
    ("host:consul-1", "host:consul-9", "before[0].on", "consul-9", "consul-9"),
    ("percent: 5%", "percent: 5", "herrings[1][0].with.percent", "5", "percent: 5"),
    ("rate: 50/s", "rate: 50", "load.kv-writes.rate", "50", "rate: 50"),
    ("servers: 3", "servers: three", "datacenter.consul.servers", "three", "servers: three"),
    ("leadership_stays: {}", "leadership_stay: {}", "truths.slow-disk.repaired[0]", "leadership_stay", "leadership"),
    ("lost: {load: kv-writes}", "lost: {load: kv-wirtes}", "truths.slow-disk.kept[0]", "kv-wirtes", "no_ack"),
    # what is a scenario's own
    (
        "back:\n      - {load: kv-writes",
        "back:\n      - {load: carts",
        "truths.slow-disk.back[0].load",
        "there is no load or client 'carts'",
        "load: carts",
    ),
    (
        "exact: the disk of ${host} takes ${delay}",
        "exact: the disk of ${host} takes ${dealy}",
        "truths.slow-disk.diagnosis.exact",
        "did you mean delay",
        "exact:",
    ),
    (
        '["${victim}", $host]',
        '["${victm}", $host]',
        "truths.slow-disk.diagnosis.where[0]",
        "did you mean victim",
        "where:",
    ),
    ("host:${victim}", "host:${host}", "truths.slow-disk.method[0].on", "${host} is not in", "host"),
    (", for: 4s}", "}", "before[0]", "for is missing", "consul.leader.pin"),
    (", at: 5s}", ", at: 5}", "truths.slow-disk.method[0].at", "is not a duration", "at: 5"),
    (
        '{fault: disk.latency, on: "host:${victim}", with: {op: fsync, delay: "${delay}"}, at: 5s}',
        "{mark: nothing, for: 5s}",
        "truths.slow-disk.method",
        "has no fault",
        "mark: nothing",
    ),
    ("level: 1", "level: 4", "metadata.level", "4", "level: 4"),
    ("level: 1", "level: 1, titel: x", "metadata", "titel", "titel: x"),
    ("name: small", "name: smaller", "metadata.name", "must be the name of the file", "name: smaller"),
]


@pytest.mark.lie
@pytest.mark.parametrize("wrong", WRONG, ids=[new[:40] for _, new, *_ in WRONG])
def test_what_is_wrong_is_told_once_at_its_place_in_the_file(tmp_path, wrong):
    old, new, at, said, line = wrong
    told = refusal(tmp_path, old, new)
    assert told.startswith(f"{tmp_path}/small.yaml:"), told
    assert f": {at}" in told, told
    assert said in " ".join(told.split()), told  # a long path folds the message
    assert line in told.splitlines()[-2], told
    assert told.count("small.yaml:") == 1, told


def test_a_choice_that_makes_no_experiment_is_found_whichever_the_seed_takes_first(tmp_path):
    told = refusal(tmp_path, "[300ms, 500ms]", "[300ms, 500ms, -1s]")
    assert "delay is -1s" in " ".join(told.split())  # folded by the length of the path


SEEN_BY_THE_SCHEMA = [
    ("truths", {}),
    ("truths", None),
    ("kind", "Campaign"),
    ("level", 1),
    ("metadata", {"name": "x"}),
    ("before", [{"fault": "noop", "on": "consul:leader"}]),
    ("herrings", [[{"fault": "noop"}]]),
    ("load", {"x": {"kind": "consul.kv.wirte", "rate": "5/s"}}),
    ("datacenter", {"consul": {"servers": "three"}}),
    ("steady_state", {"for": "5"}),
    ("choose", {"delay": []}),
    ("pager", {"text": "x"}),
]
IN_A_TRUTH = [
    ("method", [{"fault": "disk.latancy", "on": "consul:leader"}]),
    ("method", [{"fault": "disk.latency", "on": "consul:leader", "with": {"op": "fsync", "delai": "1s"}}]),
    ("method", []),
    ("repaired", [{"leadership_stay": {}}]),
    ("kept", [{"no_such": {}}]),
    ("diagnosis", {"trouble": [], "exact": "x"}),
    ("hints", [{"price": 500, "text": "x"}]),
    ("page_after", "5"),
]


@pytest.mark.parametrize(("key", "value"), SEEN_BY_THE_SCHEMA + IN_A_TRUTH)
def test_the_schema_sees_what_a_schema_can(schema, key, value):
    data = as_data(SCENARIO)
    (data if (key, value) in SEEN_BY_THE_SCHEMA else data["truths"]["slow-disk"])[key] = value
    assert not schema.is_valid(data)


def test_what_the_seed_chooses_may_stand_for_any_value_and_a_hidden_fault_needs_no_end(schema):
    data = as_data(SCENARIO) | {"choose": {"pages": [300000], "rate": ["50/s"], "servers": [3]}}
    data["datacenter"] = {"consul": {"servers": "${servers}"}}
    data["load"]["kv-writes"]["rate"] = "${rate}"
    data["truths"]["slow-disk"]["method"] = [
        {"fault": "consul.raft.bloat", "on": "consul:leader", "with": {"free_pages": "${pages}"}}
    ]
    assert not list(schema.iter_errors(data))


@pytest.mark.parametrize("path", list_scenarios(), ids=lambda path: path.stem)
def test_the_schema_takes_every_shipped_scenario(schema, path):
    assert not list(schema.iter_errors(as_data(path.read_text())))


def test_the_schema_of_campaigns_takes_the_shipped_one_and_sees_what_it_can():
    validator = jsonschema.Draft202012Validator(campaign_schema())
    validator.check_schema(campaign_schema())
    text = (ROOT / "playbooks/training.yaml").read_text()
    for right in (text, CAMPAIGN):
        assert not list(validator.iter_errors(as_data(right)))
    for wrong in ({"stages": []}, {"kind": "Scenario"}, {"stages": [{"name": "one"}]}, {"stage": []}):
        assert not validator.is_valid(as_data(CAMPAIGN) | wrong)


def test_a_scenario_that_was_wrong_once_is_read_again_without_the_old_problems(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO.replace("[300ms, 500ms]", "[300ms, soon]"))
    written = read_scenario(path)
    played = 0
    for choice in each_choice(written):
        try:
            course_of(written, choice)
            played += 1
        except ExperimentError as error:
            assert str(error).count("soon") >= 1  # noqa: PT017 - others of the choices are right
    assert played == 1
