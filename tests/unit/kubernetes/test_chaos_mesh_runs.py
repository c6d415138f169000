"""Whole runs with faults of Chaos Mesh: what a defect of the cluster does to the outcome, and what is left."""

from __future__ import annotations

import anyio
import pytest

from chaos_mesh_cases import CHAOS_MESH_CASES, chaos_world
from engine_game import Datacenter, Game
from hashidrill.core.engine.run import EXIT_CODES

STEPS = [{"fault": kind, "on": "consul:leader", "with": params, "for": "20s"} for kind, params in CHAOS_MESH_CASES]
IDS = [f"{kind}-{number}" for number, (kind, _) in enumerate(CHAOS_MESH_CASES)]
SILENT = next(step for step in STEPS if step["fault"] == "chaos_mesh.physical.process")
FAILED = next(step for step in STEPS if step["fault"] == "chaos_mesh.pod_failure")


def game(path, step, **world):
    world, kubernetes = chaos_world(Datacenter(), **world)
    return Game(path, [step], world=world), kubernetes


@pytest.mark.parametrize("step", STEPS, ids=IDS)
def test_a_run_puts_it_on_proves_it_and_leaves_nothing(step, tmp_path):
    one, kubernetes = game(tmp_path, step)
    assert EXIT_CODES[one.run()] == 0, one.error
    assert [event for event in one.events if event in {"fault.proven", "fault.gone"}] == ["fault.proven", "fault.gone"]
    assert kubernetes.objects == {}


@pytest.mark.lie
@pytest.mark.parametrize("controller", ["absent", "old-crd", "fails", "lies"])
@pytest.mark.parametrize("step", [SILENT, FAILED], ids=["machine", "pod"])
def test_a_run_in_which_nothing_was_injected_is_invalid(step, controller, tmp_path):
    one, kubernetes = game(tmp_path, step)
    kubernetes.controller = controller
    assert EXIT_CODES[one.run()] == 3
    assert "not proven in force within 30s" in one.error
    assert kubernetes.objects == {}


def test_a_typo_is_invalid_and_creates_nothing(tmp_path):
    with_ = {"chaos": "HTTPChaos", "spec": {"target": "Request", "prot": 8500, "abort": True}, "effect": "silent"}
    one, kubernetes = game(tmp_path, {**SILENT, "fault": "chaos_mesh.resource", "with": with_})
    assert EXIT_CODES[one.run()] == 3
    assert "spec.prot: the cluster's definition does not have it, and would drop it: did you mean port?" in one.error
    assert [asked for asked in kubernetes.asked if asked[0] == "POST"] == []


@pytest.mark.lie
def test_an_object_that_cannot_go_ends_the_run_with_four_and_the_command_that_helps(tmp_path):
    one, kubernetes = game(tmp_path, SILENT)

    async def then_stuck(_traffic):
        kubernetes.controller = "stuck"

    outcome = one.run(during=then_stuck)
    assert EXIT_CODES[outcome] == 4
    assert "fault.stuck" in one.events
    told = [entry.data["error"] for entry in one.journal if entry.event == "fault.stuck"]
    assert "annotate physicalmachinechaos hashidrill-run-1" in told[0]
    first, *_, last = [entry.t_ns / 1e9 for entry in one.journal if entry.event in {"fault.still", "fault.stuck"}]
    assert last - first < 60, "it is not waited for anew at each try"


def test_an_interrupted_run_takes_its_object_with_it(tmp_path):
    one, kubernetes = game(tmp_path, SILENT)
    one.run(cancel_after_s=8)
    assert "fault.proven" in one.events
    assert "fault.gone" in one.events
    assert kubernetes.objects == {}


@pytest.mark.lie
def test_a_fault_that_ended_by_its_own_duration_makes_the_run_invalid_and_not_a_pass(tmp_path):
    one, kubernetes = game(tmp_path, SILENT)

    async def over(_traffic):
        await anyio.sleep(6)
        kubernetes.expire()

    one.run(during=over)
    assert "fault.faded" in one.events
