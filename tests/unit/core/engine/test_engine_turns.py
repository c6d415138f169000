"""Faults that need an agent to themselves take turns on it, and only on it: a host may have agents of two products."""

from dataclasses import replace

import pytest

from engine_game import Datacenter, Game


class TwoAgents(Datacenter):
    """`host:NAME/nomad` means another agent of the same host."""

    async def select(self, selector):
        targets = await super().select(selector)
        return [replace(target, agent=selector.partition("/")[2] or target.agent) for target in targets]


def applied_s(tmp_path, second):
    """When each of two restarts took effect: one from 0 s to 5 s, the other one meant for 1 s."""
    method = [
        {"fault": "process.restart", "on": "host:consul-1/consul", "for": "5s"},
        {"fault": "process.restart", "on": second, "at": "1s", "for": "1s"},
    ]
    game = Game(tmp_path, method, world=TwoAgents())
    assert game.run() == "complete"
    applied = {entry.data["fault_id"]: entry.t_ns for entry in game.journal if entry.event == "fault.applied"}
    return sorted(game.since_method_s(t_ns) for t_ns in applied.values())


@pytest.mark.lie
def test_a_fault_on_the_other_agent_of_a_host_does_not_wait(tmp_path):
    assert applied_s(tmp_path, "host:consul-1/nomad")[1] == pytest.approx(1, abs=0.5)


def test_a_second_fault_on_the_same_agent_waits_for_the_first_to_end(tmp_path):
    assert applied_s(tmp_path, "host:consul-1/consul")[1] >= 5
