"""The `engine:` section of an attach file."""

import re

import pytest

from hashidrill.core.errors import AttachError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import divides
from hashidrill.staging.attach.http import Login, Secret
from hashidrill.staging.generators.settings import engine_rights, fleet_of
from places import ROOT

PAGE = (ROOT / "playbooks" / "reference-attach.md").read_text()

LOGINS = {"nomad": Login("nomad", "http://nomad.example:4646", token=Secret("of-nomad"))}


def test_without_the_section_loads_run_on_this_machine():
    assert fleet_of({}, {}, "x.yaml") is None


def test_a_fleet_has_what_its_spawner_needs():
    fleet = fleet_of({"nomad": {"workers": 3, "lease": "20s"}}, LOGINS, "x.yaml")
    assert (fleet["spawner"], fleet["workers"], fleet["lease_s"], fleet["lost_after_s"]) == ("nomad", 3, 20.0, 10.0)
    assert Login.received(fleet["login"]).token.reveal() == "of-nomad"


def test_the_rights_are_those_of_the_reference():
    said = PAGE.split("Nomad's token needs ")[1].split(".\n")[0]
    wanted = {"node:read" if right.resource == "node" else right.access for right in engine_rights()}
    assert set(re.findall(r"`([a-z:-]+)`", said)) == wanted


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"nomad": {"workers": 0}}, "x.yaml: engine.nomad.workers: "),
        ({"nomad": {"workers": 101}}, "engine.nomad.workers: "),
        ({"nomad": {}}, "engine.nomad.workers: "),
        ({"kubernetes": {}}, "engine.kubernetes: "),
        ({"nomad": {"workers": 3, "lease": "5s"}}, "shorter than `lease`"),
        (["nomad"], "engine: must be a mapping of settings"),
    ],
)
def test_a_section_that_cannot_be_used_says_why(written, said):
    with pytest.raises(AttachError) as refused:
        fleet_of(written, LOGINS, "x.yaml")
    assert said in str(refused.value)


def test_nomad_must_be_attached():
    with pytest.raises(AttachError, match="Nomad is not attached"):
        fleet_of({"nomad": {"workers": 3}}, {}, "x.yaml")


def test_the_loads_that_divide_are_those_of_the_reference():
    said = PAGE.split("This holds for ")[1].split(". Every other")[0]
    divide = {name for name, kind in registry.loads().items() if divides(kind)}
    assert set(re.findall(r"`([a-z.]+)`", said)) == divide
