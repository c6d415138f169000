"""What the peers call a success and was none, replayed: each is an error or INVALID here, and nothing is left.

On real controllers: tests/contract/kubernetes.
"""

import json

import pytest
from pydantic import ValidationError

from engine_game import Datacenter, Game
from external_faults import CHAOS_MESH, LITMUS
from hashidrill.core.engine.run import EXIT_CODES
from hashidrill.core.errors import HashidrillError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import load_document
from hashidrill.core.protocols import registry
from hashidrill.kubernetes.interchange.document import UnsupportedError
from hashidrill.kubernetes.interchange.reading import imported

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


def game(path, step, system=CHAOS_MESH, controller="works"):
    world, kubernetes = system.world(Datacenter())
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


@pytest.mark.lie
@pytest.mark.parametrize("spec", [{}, {"target": {}}, {"externalTargets": []}])
def test_a_partition_from_nobody_passes_admission_there_and_is_refused_here(spec):
    with pytest.raises(UnsupportedError, match=r"(?i)target"):
        imported("theirs.yaml", json.dumps(cut_off(**spec)))
    params = {"chaos": "NetworkChaos", "spec": {"action": "partition", "direction": "to", **spec}, "effect": "silent"}
    with pytest.raises(ValidationError, match="a partition needs another side"):
        registry.fault("chaos_mesh.resource").Params.model_validate(params)


@pytest.mark.parametrize("name", ["abrot", "Abort", "abort "])
def test_a_typo_in_a_field_is_dropped_there_and_refused_here(name, tmp_path):
    one, kubernetes = game(tmp_path, resource(chaos="HTTPChaos", spec={"target": "Request", "port": 8500, name: True}))
    assert EXIT_CODES[one.run()] == 3
    assert "would drop it" in one.error
    assert [asked for asked in kubernetes.asked if asked[0] == "POST"] == []


@pytest.mark.lie
def test_a_typo_in_a_chaos_engine_is_kept_there_and_refused_here(tmp_path):
    """Litmus's definition keeps every field and variable, and its runner reads none that it does not know."""
    params = {"experiment": "pod-delete", "env": {"FORCEE": "true"}, "effect": "replaced"}
    step = {"fault": "litmus.experiment", "on": "consul:leader", "with": params, "for": "20s"}
    one, kubernetes = game(tmp_path, step, LITMUS)
    assert EXIT_CODES[one.run()] == 3
    assert "nothing would read them" in one.error
    assert "FORCEE" in one.error
    assert kubernetes.left() == []


@pytest.mark.lie
@pytest.mark.parametrize(
    ("system", "controller", "said"),
    [
        pytest.param(CHAOS_MESH, "fails", "its controller failed", id="AllRecovered before anything was injected"),
        pytest.param(CHAOS_MESH, "lies", "its controller says AllInjected", id="AllInjected, nothing was hit"),
        pytest.param(LITMUS, "passes", "Completed, Pass of 100 without a single probe", id="Pass, nothing was hit"),
        pytest.param(LITMUS, "passes", "(history: injected)", id="history left at injected"),
    ],
)
def test_success_that_a_status_claims_without_an_effect_is_invalid(system, controller, said, tmp_path):
    one, kubernetes = game(tmp_path, {"fault": system.silent, "on": "consul:leader", "for": "20s"}, system, controller)
    assert EXIT_CODES[one.run()] == 3
    assert said in one.error
    assert kubernetes.left() == []


@pytest.mark.lie
def test_a_network_policy_of_several_labels_hits_nothing_there_and_is_neither_imported_nor_run_here():
    """litmus-go gives pod-network-partition one label: of `app=consul,component=server` it makes `app=`, and Pass."""
    theirs = {**ENGINE, "spec": {**ENGINE["spec"], "experiments": [{"name": "pod-network-partition", "spec": {}}]}}
    with pytest.raises(UnsupportedError, match="reads appinfo only if that has one label, which names no role"):
        imported("theirs.yaml", json.dumps(theirs))
    params = {"experiment": "pod-network-partition", "effect": "silent"}
    with pytest.raises(ValidationError, match="hits every pod with the engine's label"):
        registry.fault("litmus.experiment").Params.model_validate(params)
