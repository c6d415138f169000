"""Task drivers that Nomad's clients cannot have here are refused with the reason that `doctor` gives."""

import json

import pytest

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_text
from hashidrill.lab.provision import machine
from hashidrill.lab.provision.products import NEED_ROOT

TEXT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: drivers, title: Drivers, why: It tests which drivers a datacenter may ask for}}
datacenter: {{nomad: {nomad}}}
load: {{web: {{kind: nomad.replicas, count: 2}}}}
steady_state: {{for: 5s, require: ["web.running >= 2"]}}
method: [{{fault: process.kill, on: "nomad:leader", for: 5s}}]
expect: [{{replicas_return: {{load: web, within: 15s}}}}]
"""


def loaded(nomad):
    return load_text(TEXT.format(nomad=json.dumps(nomad)), "drivers.yaml")


@pytest.mark.lie
@pytest.mark.parametrize(
    ("nomad", "named"),
    [
        ({"client_config": {"client": {"options": {"driver.allowlist": "raw_exec,exec"}}}}, "exec cannot be used"),
        ({"client_config": {"plugin": {"docker": {"config": {}}}}}, "docker cannot be used"),
        ({"client_config": {"plugin": [{"exec": {}}, {"java": {}}]}}, "exec and java cannot be used"),
        ({"config": {"client": [{"options": [{"driver.whitelist": "docker, raw_exec"}]}]}}, "docker cannot be used"),
    ],
)
def test_a_driver_that_wants_root_is_refused_where_it_is_asked_for(nomad, named):
    with pytest.raises(ExperimentError) as error:
        loaded(nomad)
    said = " ".join(str(error.value).split())
    assert named in said
    assert f"{NEED_ROOT}; use raw_exec" in said
    assert f"datacenter.nomad.{next(iter(nomad))}" in said


@pytest.mark.parametrize(
    "nomad",
    [
        {},
        {"client_config": {"client": {"options": {"driver.allowlist": "raw_exec"}}}},
        {"client_config": {"plugin": {"raw_exec": {"config": {"enabled": True}}}}},
    ],
)
def test_raw_exec_may_be_asked_for(nomad):
    loaded(nomad)


def test_doctor_gives_the_same_reason():
    assert NEED_ROOT in machine.nomad_drivers().detail
