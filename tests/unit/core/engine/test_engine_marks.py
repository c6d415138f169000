"""Marks in a run: the journal has them, nothing is broken for them, and a guardrail ends them."""

import pytest

from engine_game import SLOW, Game
from hashidrill.core.engine.requirements import required_by

GROWS = {"mark": "load-grows", "at": "3s", "for": "4s"}


def marks(game):
    return [
        (e.event, e.data["mark"], e.data["step"], game.since_method_s(e.t_ns))
        for e in game.journal
        if e.event.startswith("mark.")
    ]


def test_a_mark_begins_and_ends_at_its_times_and_breaks_nothing(tmp_path):
    game = Game(tmp_path, [GROWS])
    assert game.run() == "complete"
    assert marks(game) == [
        ("mark.begin", "load-grows", 0, pytest.approx(3)),
        ("mark.end", "load-grows", 0, pytest.approx(7)),
    ]
    assert not any(event.startswith("fault.") for event in game.events)


def test_a_mark_needs_nothing_of_the_datacenter(tmp_path):
    assert required_by(Game(tmp_path, [GROWS]).experiment).tools == frozenset()


def test_a_mark_runs_beside_faults_and_they_keep_their_numbers(tmp_path):
    game = Game(tmp_path, [GROWS, {**SLOW, "for": "10s"}])
    assert game.run() == "complete"
    [fault_id] = game.times_s("fault.intent")
    assert fault_id == "1-disk.latency-consul-1"
    assert [step for _, _, step, _ in marks(game)] == [0, 0]
