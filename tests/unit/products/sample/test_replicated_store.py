"""The replicated store in a simulated network: right under faults at random, and each bug is found by its story."""

from typing import get_args

import pytest

from hashidrill.products.sample.store_service import Bug
from store_world import OPTIONS, Locks, Registers, World, Writes, settled

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


# the planted bugs, each with the faults that show it, as playbooks/local-datacenter.md has them


def installed(world, name):
    """Cut off until it needs the leader's snapshot, and healed until it has it."""
    yield 2.0
    world.cut_off(name)
    yield 5.0
    node, had = world.nodes[name], world.nodes[name].installs
    world.heal()
    yield lambda: node.installs > had


def led_by(world, *names):
    return lambda: world.leader() in names


def cut_off_again(world):
    yield from installed(world, "replica-3")
    world.cut_off("replica-3")
    yield 4.0


def leader_dies_after_an_install(world):
    yield from installed(world, "replica-2")
    yield 0.4
    world.kill("replica-1")
    yield 4.0


def leader_dies_during_the_install(world):
    yield 2.0
    world.cut_off("replica-1")
    yield 6.0
    world.heal()
    yield 0.4
    world.kill("replica-2")
    yield led_by(world, "replica-3")
    yield 1.5
    world.start("replica-2")
    yield 2.0
    world.kill("replica-3")
    yield 4.0


def killed_while_a_snapshot_is_written(world):
    yield 2.0
    world.slow("replica-1", takes_s=0.05)
    yield 0.2
    had = world.nodes["replica-1"].snapshots
    yield lambda: world.nodes["replica-1"].snapshots > had
    world.kill("replica-1")
    world.slow("replica-1", takes_s=0.0)
    yield 1.0
    world.start("replica-1")
    yield 2.0
    world.kill(world.leader())
    yield 4.0


def cut_off_then_the_next_dies(world):
    yield 2.0
    world.cut_off("replica-1")
    yield 2.0
    world.heal()
    yield 2.0
    world.kill("replica-2")
    yield 4.0


def restarts_as_another_returns(world):
    yield 2.0
    world.cut_off("replica-1")
    yield 3.0
    world.kill("replica-2")
    yield 1.0
    world.restart("replica-3")
    world.heal()
    yield 4.0


def dead_then_cut_off(world):
    yield 2.0
    world.kill("replica-3")
    yield 4.0
    world.cut_off("replica-1")
    yield 2.0
    world.start("replica-3")
    yield 4.0


def all_die_on_slow_disks(world):
    yield 2.0
    world.slow(*world.names, takes_s=0.3)
    yield 3.2
    world.kill(*world.names)
    yield 1.0


def paused_and_cut_off(world):
    yield 3.0
    world.pause("replica-1")
    yield 0.2
    world.cut_off("replica-1")
    yield 6.0
    world.resume("replica-1")
    yield 3.0


BUGS = {
    "stale-read-after-install": (cut_off_again, "broken"),
    "hole-after-broken-install": (leader_dies_during_the_install, "lost"),
    "sessions-from-snapshot": (leader_dies_after_an_install, "twice"),
    "index-after-install": (leader_dies_after_an_install, "broken"),
    "log-cut-before-snapshot": (killed_while_a_snapshot_is_written, "lost"),
    "snapshot-of-uncommitted": (cut_off_then_the_next_dies, "lost"),
    "vote-before-recovery": (restarts_as_another_returns, "lost"),
    "half-quorum": (dead_then_cut_off, "lost"),
    "async-when-slow": (all_die_on_slow_disks, "lost"),
    "lock-lease-in-ticks": (paused_and_cut_off, "twice"),
}


TRIES = 8


def told(bug, seed, *, planted):
    def story(world, loads):
        yield from BUGS[bug][0](world)
        yield from settled(world, *loads)

    return broken(played(seed, story, bug=bug if planted else "", **OPTIONS.get(bug, {}))[1])


@pytest.mark.lie
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_by_its_faults_and_without_it_they_break_nothing(bug):
    assert get_args(Bug) == tuple(BUGS)
    assert any(BUGS[bug][1] in told(bug, seed, planted=True) for seed in range(TRIES))
    assert [told(bug, seed, planted=False) for seed in range(2)] == [{}, {}]
