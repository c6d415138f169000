"""The JSON Schema: kept current, and of one mind with the loader."""

import json

import jsonschema
import pytest
from ruamel.yaml import YAML

import places
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.library import list_experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.experiment.schema import DIALECT, experiment_schema, schema_text
from hashidrill.core.hypothesis import all_hypotheses
from hashidrill.core.protocols import registry

ROOT = places.ROOT
KEPT = ROOT / "experiments/schema.json"
MALFORMED = places.MALFORMED
GOOD = places.GOOD

_CAN_SAY = """
bad-load-name condition-of-nothing config-is-text delay-with-unknown-unit duration-without-unit everything-at-once
follow-is-yes fractional-keys known-issue-without-place load-is-a-list long-lines method-is-a-mapping
missing-api-version missing-length missing-with negative-duration negative-rate no-faults not-an-experiment
nothing-expected null-section playbook rate-without-unit root-is-a-list root-is-text selector-without-role
servers-is-text servers-is-true size-without-unit step-is-text title-is-empty too-many-servers two-hypotheses-in-one
unknown-choice unknown-consul-role unknown-fault unknown-fault-parameter unknown-hypothesis
unknown-hypothesis-parameter unknown-key unknown-load unknown-load-parameter unknown-nested-key version-is-a-number
wrong-api-version
"""
CAN_SAY = set(_CAN_SAY.split())
"""The malformed files in which a schema, too, can see what is wrong."""


@pytest.fixture(scope="module")
def schema():
    return experiment_schema()


@pytest.fixture(scope="module")
def validator(schema):
    return jsonschema.Draft202012Validator(schema)


def as_data(path):
    return YAML(typ="safe", pure=True).load(path.read_text())


def test_the_schema_in_the_repository_is_current():
    current = KEPT.is_file() and json.loads(KEPT.read_text()) == json.loads(schema_text())
    assert current, "experiments/schema.json is not current; run: hashidrill schema > experiments/schema.json"


@pytest.mark.long
def test_the_schema_is_itself_valid(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT


def test_every_reference_leads_somewhere(schema):
    text = json.dumps(schema)
    for name in schema["$defs"]:
        assert f'"#/$defs/{name}"' in text, f"{name} is defined and never used"
    for reference in text.split('"$ref": "#/$defs/')[1:]:
        assert reference.partition('"')[0] in schema["$defs"]


def test_every_kind_is_in_the_schema_with_its_own_parameters(schema):
    definitions = schema["$defs"]
    assert definitions["Step"]["properties"]["fault"]["enum"] == sorted(registry.faults())
    assert definitions["LoadSpec"]["properties"]["kind"]["enum"] == sorted(registry.loads())
    assert definitions["Expectation"]["properties"].keys() == {"known_issue", *all_hypotheses()}
    assert "delay" in definitions["fault.disk.latency"]["properties"]
    assert "rate" in definitions["load.consul.kv.write"]["properties"]
    assert "from" in definitions["fault.network.partition"]["properties"], "as YAML spells it, not Python"


def test_a_good_experiment_is_valid_for_both(validator):
    load_experiment(GOOD)
    validator.validate(as_data(GOOD))


@pytest.mark.parametrize("path", list_experiments(ROOT / "experiments"), ids=lambda path: path.stem)
def test_the_schema_accepts_what_is_in_the_library(validator, path):
    validator.validate(as_data(path))


@pytest.mark.parametrize("name", sorted(CAN_SAY))
def test_the_schema_refuses_what_a_schema_can_refuse(validator, name):
    assert not validator.is_valid(as_data(MALFORMED / f"{name}.yaml"))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("method", 0, "on"), "consul:leader"),
        (("method", 0, "with", "percent"), "30%"),
        (("method", 0, "at"), "1.5 s"),
        (("expect", 0, "writes_recover", "window"), "2s"),
        (("expect", 0, "known_issue"), "hashicorp/consul#22064"),
        (("expect", 0, "known_issue"), {"issue": "hashicorp/consul#22064", "at_most": {"left_after_s": "never"}}),
        (("expect", 0), {"leadership_stays": None}),
        (("guardrails",), []),
        (("load", "kv-writes"), {"kind": "consul.kv.read", "rate": "5/s", "mode": "stale"}),
        (("datacenter", "disk"), {"size": "256MiB"}),
        # and what neither takes
        (("method", 0, "on"), "consul:leeder"),
        (("method", 0, "with", "percent"), "30"),
        (("method", 0, "with", "percent"), 0.3),
        (("method", 0, "with"), None),
        (("method", 0, "fault"), "noop"),
        (("expect", 0), {"writes_recover": None}),
        (("expect", 0), {"known_issue": "hashicorp/consul#22064"}),
        (("expect", 0, "known_issue"), "#22064"),
        (("expect", 0, "known_issue"), {"at_most": {"left_after_s": "never"}}),
        (("load", "kv-writes"), {"kind": "consul.kv.read", "rate": "5/s", "value": "5B"}),
        (("load", "kv-writes", "kind"), None),
        (("load",), {}),
        (("load", "KV"), {"kind": "consul.kv.read", "rate": "5/s"}),
        (("guardrails",), ["kv-writes.errors"]),
        (("datacenter", "consul", "clients"), -1),
        (("metadata",), {"name": "x"}),
    ],
)
def test_schema_and_loader_are_of_one_mind(tmp_path, validator, where, value):
    data = json.loads(json.dumps(as_data(GOOD)))
    at = data
    for key in where[:-1]:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
    at[where[-1]] = value
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps(data))
    try:
        load_experiment(path)
    except ExperimentError:
        loads = False
    else:
        loads = True
    assert validator.is_valid(data) == loads
