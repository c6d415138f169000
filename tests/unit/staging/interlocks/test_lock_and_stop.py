"""One game day at a time; and what ends one from outside is seen within a bounded time, in virtual time."""

import datetime as dt

import anyio
import pytest

import virtual_time
from fake_kv import FakeKv
from hashidrill.core.errors import InterlockError
from hashidrill.staging.interlocks import lock, stop
from hashidrill.staging.interlocks.kv import Kv, SilentError
from hashidrill.staging.interlocks.lock import Holder

KEY, BUTTON = "hashidrill-interlocks/lock", "hashidrill-interlocks/stop"
ANA = Holder("ana@desk", "run-1", "slow-leader-disk", "2026-11-23T13:00:00Z")
BEN = Holder("ben@desk", "run-2", "frozen-leader", "2026-11-23T13:05:00Z")
NOON = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


def play(main):
    return virtual_time.run(main())


async def test_a_lock_is_held_and_renewed_and_gone_at_the_end():
    world, told = FakeKv(), []
    async with lock.held(Kv(world), KEY, 15, ANA, told.append) as held:
        await anyio.sleep(300)
        world.expire()
        assert world.keys[KEY][1] == held.session
        assert not held.lost.is_set()
    assert (world.keys, world.sessions, told) == ({}, {}, [])


@pytest.mark.lie
async def test_the_next_game_day_may_begin_at_once():
    """A session that ends with its key keeps that shut for 15 s: a lock is let go before its session is."""
    world = FakeKv()
    for holder in (ANA, BEN, ANA):
        async with lock.held(Kv(world), KEY, 15, holder, print):
            pass
    assert world.keys == {}


@pytest.mark.lie
async def test_somebody_who_takes_the_lock_while_it_is_let_go_keeps_it():
    world = FakeKv()

    class Late(Kv):
        async def put(self, key, value, *, acquire="", release=""):
            done = await super().put(key, value, acquire=acquire, release=release)
            if release:
                await super().put(key, "ben", acquire=await self.new_session("ben", 600))
            return done

    async with lock.held(Late(world), KEY, 15, ANA, print):
        pass
    assert world.value(KEY) == "ben"


async def test_a_second_game_day_is_kept_out_and_told_who_is_there():
    world = FakeKv()
    async with lock.held(Kv(world), KEY, 15, ANA, print):
        with pytest.raises(InterlockError) as refused:
            async with lock.held(Kv(world), KEY, 15, BEN, print):
                raise AssertionError
        with pytest.raises(InterlockError) as checked:
            await lock.check_free(Kv(world), KEY)
        assert len(world.sessions) == 1, "the second one leaves no session"
    assert str(refused.value) == str(checked.value)
    assert "already locked" in str(refused.value)
    assert "ana@desk, with slow-leader-disk (run-1), since 2026-11-23T13:00:00Z" in str(refused.value)
    async with lock.held(Kv(world), KEY, 15, BEN, print):
        pass


def test_to_look_whether_it_is_free_writes_nothing():
    world = FakeKv()
    play(lambda: lock.check_free(Kv(world), KEY))
    assert world.reads
    assert not world.writes


def test_a_key_that_nobody_holds_is_no_lock():
    """What a session with another behaviour left, or a person wrote."""
    play(lambda: lock.check_free(Kv(FakeKv({KEY: "old"})), KEY))


async def test_a_holder_that_did_not_say_who_is_told_as_such():
    world = FakeKv()
    kv = Kv(world)
    session = await kv.new_session("x", 15)
    await kv.put(KEY, "mine!", acquire=session)
    with pytest.raises(InterlockError, match="an unnamed person"):
        await lock.check_free(kv, KEY)


async def test_the_lock_of_a_runner_that_died_expires():
    world = FakeKv()
    kv = Kv(world)
    await kv.put(KEY, "{}", acquire=await kv.new_session("dead", 15))
    await anyio.sleep(14)
    with pytest.raises(InterlockError):
        await lock.check_free(kv, KEY)
    await anyio.sleep(2)
    with pytest.raises(InterlockError, match=r"the holder .* died a moment ago, and Consul blocks the key for 15s"):
        async with lock.held(kv, KEY, 15, BEN, print):
            raise AssertionError
    await anyio.sleep(15)
    async with lock.held(kv, KEY, 15, BEN, print):
        pass


@pytest.mark.lie
async def test_a_lock_that_somebody_else_has_by_now_is_lost():
    world = FakeKv()
    async with lock.held(Kv(world), KEY, 15, ANA, print) as held:
        world._end(held.session)
        world.shut.clear()
        other = await Kv(world).new_session("other", 600)
        await Kv(world).put(KEY, "{}", acquire=other)
        with anyio.fail_after(10):
            await held.lost.wait()
        assert "was lost: already locked" in held.why
    assert world.keys[KEY][1] == other, "the end of the first does not take it from the second"


async def test_a_restore_that_took_the_lock_away_is_no_reason_to_stop_where_nobody_took_it():
    world, told = FakeKv(), []
    before = world.snapshot()
    async with lock.held(Kv(world), KEY, 15, ANA, told.append) as held:
        world.restore(before)
        await anyio.sleep(20)
        assert not held.lost.is_set()
        assert world.keys[KEY][1] == held.session
    assert told == [f"the lock {KEY} was gone, and no other run had taken it: this run holds it again"]
    assert not world.keys


@pytest.mark.lie
@pytest.mark.parametrize(("ttl_s", "doubted"), [(30, True), (600, True), (600, False)])
@pytest.mark.parametrize("taken", [False, True])
async def test_a_session_that_ended_with_its_node_stops_no_run_unless_another_run_takes_the_lock(taken, ttl_s, doubted):
    """Consul deregisters the node of a killed pod, and with it the session: for 15 s nobody gets the key."""
    world, told = FakeKv(), []
    async with lock.held(Kv(world), KEY, ttl_s, ANA, told.append) as held:
        world._end(held.session)
        if doubted:
            held.doubted.set()
        await anyio.sleep(14)
        assert not held.lost.is_set()
        if taken:
            world.shut.clear()
            await Kv(world).put(KEY, "{}", acquire=await Kv(world).new_session("other", 600))
        await anyio.sleep(10)
        assert held.lost.is_set() == taken
    assert told == (
        [] if taken else [f"the lock {KEY} was gone, and no other run had taken it: this run holds it again"]
    )


@pytest.mark.lie
async def test_a_lock_that_stays_shut_is_lost():
    world = FakeKv()
    async with lock.held(Kv(world), KEY, 30, ANA, print) as held:
        world._end(held.session)
        world.shut[KEY] += 600
        with anyio.fail_after(40):
            await held.lost.wait()
        assert "died a moment ago" in held.why


async def test_a_lock_that_cannot_be_renewed_for_its_ttl_counts_as_lost_and_not_before():
    world = FakeKv()
    async with lock.held(Kv(world, within_s=1), KEY, 15, ANA, print) as held:
        world.silent = True
        await anyio.sleep(12)
        assert not held.lost.is_set()
        with anyio.fail_after(10):
            await held.lost.wait()
        assert "could not be renewed for 15s" in held.why
        world.silent = False


async def test_a_lock_that_cannot_be_released_says_when_it_ends():
    world, told = FakeKv(), []
    async with lock.held(Kv(world, within_s=1), KEY, 15, ANA, told.append):
        world.silent = True
    assert len(told) == 1
    assert "it ends by itself within 30s" in told[0]


async def test_a_token_that_may_not_lock_is_told_so_and_nothing_is_left():
    world = FakeKv()
    world.denied.add(("PUT", "/v1/kv/"))
    with pytest.raises(InterlockError, match="the token may not write the key hashidrill-interlocks/lock"):
        async with lock.held(Kv(world), KEY, 15, ANA, print):
            raise AssertionError
    assert not world.sessions


# the stop button


@virtual_time.ran
async def stopped(world, *, until_s=1e6, during=None, within_s=2.0, told=None):
    """(why, after how many seconds)."""
    began = anyio.current_time()
    kv = Kv(world, within_s=within_s / 2)

    async def armed(_kv):
        return ""

    async with lock.held(kv, KEY, 15, ANA, print) as held, anyio.create_task_group() as group:
        if during is not None:
            group.start_soon(during, held)
        why = await stop.watch(
            kv,
            BUTTON,
            within_s,
            held,
            disarmed=armed,
            until=NOON + dt.timedelta(seconds=until_s),
            now=lambda: NOON + dt.timedelta(seconds=anyio.current_time() - began),
            tell=(told if told is not None else []).append,
        )
        took_s = anyio.current_time() - began
        group.cancel_scope.cancel()
    return why, took_s


@pytest.mark.parametrize(
    "text", ["", "STOP", "[]", "{", '{"stopped_by": 7}', "\udcff".encode("utf-8", "replace").decode()]
)
def test_a_button_that_somebody_pressed_by_hand_counts(text):
    assert stopped(FakeKv({BUTTON: text}))[0].startswith("the stop button was pressed by ")


def test_the_end_of_the_arming_stops_a_run_though_consul_is_silent():
    world = FakeKv()

    async def silence(_held):
        await anyio.sleep(1)
        world.silent = True

    told = []
    why, took_s = stopped(world, until_s=14, during=silence, told=told)
    assert why.startswith("the arming ended at 2026-11-23T12:00:14")
    assert 14 <= took_s <= 16
    assert any("the stop button could not be read" in text for text in told)


def test_a_lost_lock_stops_it_at_once():
    async def lose(held):
        await anyio.sleep(30.2)
        held.lose("the lock was lost")

    why, took_s = stopped(FakeKv(), during=lose)
    assert (why, round(took_s, 1)) == ("the lock was lost", 30.2)


def test_a_token_that_lost_its_right_to_look_stops_it():
    world = FakeKv()

    async def deny(_held):
        await anyio.sleep(3)
        world.denied.add(("GET", "/v1/kv/"))

    assert "the stop button cannot be read any more: the token may not read" in stopped(world, during=deny)[0]


# answers that make no sense


@pytest.mark.parametrize(("body", "status"), [(b"null", 200), (b"{}", 200), (b"no json", 200), (b"no leader", 500)])
async def test_an_answer_that_makes_no_sense_decides_nothing(body, status):
    class Odd(FakeKv):
        def _answer(self, *_):
            from hashidrill.core.protocols.abc import ApiAnswer

            return ApiAnswer(status, body)

    with pytest.raises(SilentError):
        await Kv(Odd()).get(KEY)
