"""What the peers call a success and was none, replayed: each is an error or INVALID here, and nothing is left."""

from __future__ import annotations

import json

import anyio
import pytest
from pydantic import ValidationError

from chaos_mesh_cases import chaos_world
from engine_game import Datacenter, Game
from hashidrill.core.engine.run import EXIT_CODES
from hashidrill.core.errors import HashidrillError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import load_document
from hashidrill.core.protocols import registry
from hashidrill.core.recording.journal import read_journal
from hashidrill.kubernetes.interchange.document import UnsupportedError
from hashidrill.kubernetes.interchange.reading import imported

STOPPED = {"fault": "chaos_mesh.physical.process", "on": "consul:leader", "for": "20s"}
ENGINE = {
    "apiVersion": "litmuschaos.io/v1alpha1",
    "kind": "ChaosEngine",
    "metadata": {"name": "e"},
    "spec": {
        "engineState": "active",
        "appinfo": {"appns": "consul", "applabel": "app=consul,component=server", "appkind": "statefulset"},
        "experiments": [{"name": "pod-delete", "spec": {"components": {"env": []}}}],
    },
}


def cut_off(**spec):
    """A partition of Chaos Mesh, as its admission takes it."""
    selector = {"labelSelectors": {"app": "consul", "component": "server"}}
    whole = {"action": "partition", "mode": "all", "selector": selector, "direction": "to", **spec}
    return {"apiVersion": "chaos-mesh.org/v1alpha1", "kind": "NetworkChaos", "metadata": {"name": "n"}, "spec": whole}


def resource(**params):
    return {"fault": "chaos_mesh.resource", "on": "consul:leader", "with": {"effect": "silent", **params}, "for": "20s"}


def game(path, step, controller="works"):
    world, kubernetes = chaos_world(Datacenter())
    kubernetes.controller = controller
    return Game(path, [step], world=world), kubernetes


@pytest.mark.lie
def test_zero_probes_are_a_pass_of_100_there_and_no_experiment_here():
    """Litmus: probeSuccessPercentage 100 when there is no probe. Ours cannot be without an expectation."""
    made = imported("theirs.yaml", json.dumps(ENGINE))
    document = load_document(Document("ours", made.text))
    assert document.expect, "what is judged is a start to work on, and never nothing"
    assert any("Litmus says Pass whatever happens" in text for text in made.lost)
    head, _, _ = made.text.partition("\nexpect:")
    with pytest.raises(HashidrillError, match="expect"):
        load_document(Document("ours", f"{head}\nexpect: []\n"))


def test_all_recovered_before_anything_was_injected_is_neither_in_force_nor_gone(tmp_path):
    """Chaos Mesh: AllRecovered is True from the first moment on, also of what could never be injected."""
    seen = []

    async def look(_traffic):
        await anyio.sleep(1)
        seen.extend(one["status"]["conditions"] for one in kubernetes.objects.values())

    one, kubernetes = game(tmp_path, STOPPED, "fails")
    outcome = one.run(during=look)
    said = [condition for conditions in seen for condition in conditions if condition["type"] == "AllRecovered"]
    assert EXIT_CODES[outcome] == 3
    assert {condition["status"] for condition in said} == {"True"}, "so says its status"
    assert "not proven in force" in one.error
    assert kubernetes.objects == {}


@pytest.mark.lie
@pytest.mark.parametrize("spec", [{}, {"target": {}}, {"externalTargets": []}])
def test_a_partition_from_nobody_passes_admission_there_and_is_refused_here(spec):
    with pytest.raises(UnsupportedError, match=r"(?i)target"):
        imported("theirs.yaml", json.dumps(cut_off(**spec)))
    params = {"chaos": "NetworkChaos", "spec": {"action": "partition", "direction": "to", **spec}, "effect": "silent"}
    with pytest.raises(ValidationError, match="a partition needs somebody on the other side"):
        registry.fault("chaos_mesh.resource").Params.model_validate(params)


@pytest.mark.parametrize("name", ["abrot", "Abort", "abort "])
def test_a_typo_in_a_field_is_dropped_there_and_refused_here(name, tmp_path):
    one, kubernetes = game(tmp_path, resource(chaos="HTTPChaos", spec={"target": "Request", "port": 8500, name: True}))
    assert EXIT_CODES[one.run()] == 3
    assert "would drop it" in one.error
    assert [asked for asked in kubernetes.asked if asked[0] == "POST"] == []


@pytest.mark.lie
def test_a_status_left_at_injected_after_its_end_is_no_fault_in_force(tmp_path):
    """The controller took the effect back and never wrote so: what it said last is all that its history has."""

    async def over(_traffic):
        await anyio.sleep(6)
        kubernetes.expire()

    one, kubernetes = game(tmp_path, STOPPED)
    one.run(during=over)
    faded = [entry for entry in read_journal(one.path / "journal.jsonl") if entry.event == "fault.faded"]
    assert "its controller says AllInjected" in faded[0].data["evidence"]["measured"]
    assert "fault.still" not in one.events
