"""Whole runs with faults of Litmus: what a defect of the cluster does to the outcome, and what is left."""

from __future__ import annotations

import anyio
import pytest

from engine_game import Datacenter, Game
from hashidrill.core.engine.run import EXIT_CODES
from litmus_cases import LITMUS_CASES, litmus_world

STEPS = [{"fault": kind, "on": "consul:leader", "with": params, "for": "20s"} for kind, params in LITMUS_CASES]
IDS = [f"{kind}-{number}" for number, (kind, _) in enumerate(LITMUS_CASES)]
RESET = next(step for step in STEPS if step["fault"] == "litmus.pod_http_reset_peer")
DELETED = next(step for step in STEPS if step["fault"] == "litmus.pod_delete")


def game(path, step, **world):
    world, kubernetes = litmus_world(Datacenter(), **world)
    return Game(path, [step], world=world), kubernetes


@pytest.mark.parametrize("step", STEPS, ids=IDS)
def test_a_run_puts_it_on_proves_it_and_leaves_nothing(step, tmp_path):
    one, kubernetes = game(tmp_path, step)
    assert EXIT_CODES[one.run()] == 0, one.error
    assert [event for event in one.events if event in {"fault.proven", "fault.gone"}] == ["fault.proven", "fault.gone"]
    assert kubernetes.left() == []


@pytest.mark.lie
@pytest.mark.parametrize("controller", ["absent", "old-crd", "no-runner", "skips", "fails", "passes"])
@pytest.mark.parametrize("step", [RESET, DELETED], ids=["reset", "delete"])
def test_a_run_in_which_nothing_was_injected_is_invalid_whatever_its_chaosresult_says(step, controller, tmp_path):
    one, kubernetes = game(tmp_path, step)
    kubernetes.controller = controller
    assert EXIT_CODES[one.run()] == 3
    assert "not proven in force within 120s" in one.error
    assert kubernetes.left() == []


def test_an_engine_that_cannot_go_ends_the_run_with_four_and_the_command_that_helps(tmp_path):
    one, kubernetes = game(tmp_path, RESET)

    async def then_stuck(_traffic):
        kubernetes.controller = "stuck"

    outcome = one.run(during=then_stuck)
    assert EXIT_CODES[outcome] == 4
    told = [entry.data["error"] for entry in one.journal if entry.event == "fault.stuck"]
    assert "patch chaosengine hashidrill-run-1" in told[0]


def test_an_interrupted_run_takes_its_engine_with_it(tmp_path):
    one, kubernetes = game(tmp_path, RESET)
    one.run(cancel_after_s=8)
    assert "fault.proven" in one.events
    assert "fault.gone" in one.events
    assert kubernetes.left() == []


@pytest.mark.lie
def test_an_experiment_that_came_to_its_own_end_makes_the_run_invalid_though_litmus_says_pass(tmp_path):
    one, kubernetes = game(tmp_path, RESET)

    async def over(_traffic):
        await anyio.sleep(6)
        kubernetes.expire()

    one.run(during=over)
    assert "fault.faded" in one.events
