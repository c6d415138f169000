"""Somebody outside stops a run, or refuses a fault: everything reverts, and nothing more is applied."""

from contextlib import asynccontextmanager

import anyio
import pytest

from engine_game import SLOW, Game
from hashidrill.core.errors import InterlockError
from tasks import raising

LONG = {**SLOW, "for": "30s"}


def stops_after(seconds, why="the stop button was pressed by ana"):
    async def stop():
        await anyio.sleep(seconds)
        return why

    return stop


def test_a_run_that_is_stopped_reverts_and_says_why(tmp_path):
    game = Game(tmp_path, [LONG])
    assert game.run(stop=stops_after(8)) == "interrupted"
    assert game.error == "the stop button was pressed by ana"
    assert [event for event in game.events if event.startswith("fault.")][-2:] == ["fault.reverted", "fault.gone"]
    assert not game.world.host("consul-1").disk_rules
    assert game.phases_s().keys() >= {"method"}
    assert "recovery" not in game.phases_s()


def test_it_is_told_at_once_and_not_only_at_the_end(tmp_path):
    game = Game(tmp_path, [LONG])
    game.run(stop=stops_after(8))
    events = [entry.event for entry in game.journal]
    [told] = [n for n, entry in enumerate(game.journal) if "the run stops" in str(entry.data.get("text"))]
    assert told < events.index("fault.reverted")


def test_one_that_is_stopped_before_its_method_applies_nothing(tmp_path):
    game = Game(tmp_path, [LONG])
    assert game.run(stop=stops_after(0.5)) == "interrupted"
    assert not [event for event in game.events if event.startswith("fault.")]


def test_a_fault_that_cannot_be_reverted_outranks_the_stop(tmp_path):
    game = Game(tmp_path, [LONG])
    host = game.world.host("consul-1")

    async def stop():
        await anyio.sleep(8)
        host.clear_disk_rule = raising(InterlockError("the disk does not listen"))
        return "stopped"

    assert game.run(stop=stop) == "revert"


@pytest.mark.lie
def test_a_watcher_that_crashes_ends_the_run_and_reverts(tmp_path, capsys):
    """The stop button cannot be read any more: a run must not go on without it."""

    async def stop():
        await anyio.sleep(8)
        raise ZeroDivisionError

    game = Game(tmp_path, [LONG])
    assert game.run(stop=stop) == "crashed"
    assert game.events.count("fault.gone") == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


# who admits faults


def test_each_fault_is_asked_for_before_it_is_planned_and_let_go_once_it_is_gone(tmp_path):
    told = []

    @asynccontextmanager
    async def admits(acting):
        told.append((acting.kind, acting.target.host, acting.step, acting.for_s, list(game.events)))
        yield
        told.append(list(game.events))

    game = Game(tmp_path, [SLOW])
    assert game.run(admits=admits) == "complete"
    [(kind, host, step, for_s, before), after] = told
    assert (kind, host, step, for_s) == ("disk.latency", "consul-1", 0, 10.0)
    assert "fault.intent" not in before
    assert after[-1] == "fault.gone"


def test_a_fault_that_is_refused_is_not_applied_and_the_run_counts_for_nothing(tmp_path):
    @asynccontextmanager
    async def admits(acting):
        raise InterlockError("breaks the quorum of consul")
        yield

    game = Game(tmp_path, [SLOW])
    assert game.run(admits=admits) == "fault"
    assert game.error == "breaks the quorum of consul"
    assert not [event for event in game.events if event.startswith("fault.")]
