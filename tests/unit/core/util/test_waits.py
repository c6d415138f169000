"""Waiting: with a deadline, and for what is slow, as long as it moves."""

import anyio
import pytest

import virtual_time
from hashidrill.core.errors import WaitTimeoutError
from hashidrill.core.util.wait import wait_while_it_moves
from hashidrill.products.consul import api as consul_api
from hashidrill.testing.fakes import FakeDatacenter


@virtual_time.ran
async def waited(far, *, done_at=float("inf"), still_s=10.0, within_s=100.0):
    """(seconds waited, the error's text or None) for something that is as far as `far(seconds)`."""
    began = anyio.current_time()

    async def check():
        now = anyio.current_time() - began
        return (True if now >= done_at else None), f"at {far(now)}", far(now)

    try:
        await wait_while_it_moves("it", check, still_s=still_s, within_s=within_s, gap_s=0.5)
    except WaitTimeoutError as error:
        return anyio.current_time() - began, str(error)
    return anyio.current_time() - began, None


def test_what_moves_is_waited_for_although_it_takes_many_times_the_patience():
    assert waited(lambda s: s, done_at=70.0) == (pytest.approx(70, abs=1), None)


def test_what_stands_still_is_given_up_and_the_error_says_for_how_long_it_stood():
    took, said = waited(lambda s: min(s, 20.0))
    assert took == pytest.approx(30, abs=1)
    assert "last seen: at 20.0; no progress for the last 10s" in said


@pytest.mark.lie
def test_to_and_fro_is_no_progress():
    took, _ = waited(lambda s: int(s) % 3)
    assert took == pytest.approx(12, abs=1)


def test_what_moves_for_ever_is_given_up_in_the_end_and_the_error_says_that_it_moved():
    took, said = waited(lambda s: s)
    assert took == pytest.approx(100, abs=1)
    assert said.endswith("it still made progress")


def test_what_cannot_say_how_far_it_is_has_the_patience_and_no_more():
    took, _ = waited(lambda s: None)
    assert took == pytest.approx(10, abs=1)


# a server that catches up


@virtual_time.ran
async def in_step(behind):
    """Seconds until it was in step; `behind(seconds)` is what it lacks of a log of 10,000 entries."""
    world = FakeDatacenter()
    began = anyio.current_time()
    world.consul.commit_index = 10_000
    world.consul.behind["consul-2"] = lambda: behind(anyio.current_time() - began)
    await consul_api.wait_in_step(world, world.hosts["consul-2"])
    return anyio.current_time() - began


@pytest.mark.long
@pytest.mark.lie
def test_a_server_that_is_6411_entries_behind_and_catches_up_by_60_a_second_is_waited_for():
    assert in_step(lambda s: max(0, int(6411 - 60 * s))) == pytest.approx((6411 - 128) / 60, abs=1)


def test_a_server_that_falls_behind_further_and_further_is_given_up_after_40_s():
    with pytest.raises(WaitTimeoutError, match=r"waited 40s .* log entries behind consul-1; no progress"):
        in_step(lambda s: int(1000 + 10 * s))


@pytest.mark.long
def test_a_server_that_never_quite_catches_up_is_given_up_in_the_end():
    with pytest.raises(WaitTimeoutError, match=r"waited 180s .* it still made progress"):
        in_step(lambda s: int(6411 - s))


@pytest.mark.parametrize(("catches_up", "patience_s"), [(True, None), (False, 60)])
def test_a_voter_to_be_has_its_time_from_when_it_caught_up(catches_up, patience_s):
    async def main():
        world = FakeDatacenter()
        began = anyio.current_time()
        world.consul.commit_index = 10_000
        world.consul.behind["consul-2"] = lambda: int(9000 - 100 * (anyio.current_time() - began) * catches_up)
        world.consul.voters.remove("consul-2")

        async def trusted_in_the_end():
            await anyio.sleep(110)
            world.consul.voters.append("consul-2")

        async with anyio.create_task_group() as group:
            group.start_soon(trusted_in_the_end)
            try:
                await consul_api.wait_for_voter(world, world.hosts["consul-2"])
            except WaitTimeoutError as error:
                return str(error)
        return None

    said = virtual_time.run(main())
    assert said is None if patience_s is None else f"waited {patience_s}s for consul-2 to be a voter" in said
