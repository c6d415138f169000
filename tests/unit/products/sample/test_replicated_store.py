"""The replicated store in a simulated network: right under faults at random, and each bug is found by its story."""

from __future__ import annotations

import pytest

from store_world import Locks, Registers, World, Writes, settled

BREAKS = {
    "cut": lambda world, name: world.cut_off(name),
    "cut from one": lambda world, name: world.cut_off(name, world.dice.choice(world.names)),
    "kill": lambda world, name: world.kill(name),
    "kill all": lambda world, _: world.kill(*world.names),
    "restart": lambda world, name: world.nodes[name] is None or world.restart(name),
    "pause": lambda world, name: world.pause(name),
    "slow": lambda world, name: world.slow(name, takes_s=world.dice.choice([0.02, 0.2, 0.5])),
    "full": lambda world, name: world.fill(name),
    "nothing": lambda *_: None,
}


def at_random(world, loads, *, for_s):
    """Faults of all kinds, one or two at a time, at random moments."""
    ends_s = world.now_s + for_s
    yield 2.0
    while world.now_s < ends_s:
        BREAKS[world.dice.choice(list(BREAKS))](world, world.dice.choice(world.names))
        yield world.dice.uniform(0.05, 2.5)
        if world.dice.random() < 0.6:
            world.mend()
            yield world.dice.uniform(0.05, 2.5)
    yield from settled(world, *loads)


def played(seed, story, *, bug="", loads=(Registers, Writes, Locks), **options):
    world = World(seed, bug=bug, **options)
    made = [load(world) for load in loads]
    world.play(story(world, made), for_s=300)
    return world, made


def broken(made):
    """{promise: evidence} of those that are not kept."""
    found = {}
    for load in made:
        for name in ("broken", "lost", "twice"):
            if hasattr(load, name) and (evidence := getattr(load, name)()):
                found[name] = evidence
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_store_keeps_its_promises_whatever_happens(seed):
    _, made = played(seed, lambda world, loads: at_random(world, loads, for_s=20), loss=0.02 * (seed % 3))
    assert not broken(made)
    assert len(made[1].kept) > 100
    assert any(made[0].ops.values())
    assert made[2].beliefs
