"""What an operator says is what a guard reads: armed, disarmed, stopped, released."""

import datetime as dt

import anyio
import pytest

import virtual_time
from fake_kv import FakeKv
from hashidrill.core.errors import InterlockError, UsageError
from hashidrill.staging.interlocks import anchor, arming, lock, operate, stop
from hashidrill.staging.interlocks.arming import Armed, Wanted
from hashidrill.staging.interlocks.kv import Kv
from hashidrill.staging.interlocks.settings import ANCHOR_KEY, TAKEN_BACK_KEY, settings_of

ONE = dt.datetime(2026, 11, 23, 13, tzinfo=dt.UTC)
PLAIN = settings_of({}, "x")
KEY = arming.new_key()
SIGNED = settings_of({"arming": {"file": "armed.json", "public_key": arming.public_of(KEY)}}, "x")
SLOW = Armed("slow-leader-disk", "sha256:aa11")
WANTED = Wanted("slow-leader-disk", "sha256:aa11", "staging", ONE + dt.timedelta(minutes=5), 60, 86400, 60)


def made(settings=PLAIN, *, by="ana", for_s=3600, key=None):
    return operate.made(settings, [SLOW, SLOW], "staging", by=by, for_s=for_s, now=ONE, private_key=key)


def arm(world, settings, folder, text):
    return run(operate.arm(Kv(world), settings, folder, text, datacenter="staging", said_by="staging.yaml"))


def disarm(world, settings, folder, told=None):
    return run(operate.disarm(Kv(world), settings, folder, ONE, (told if told is not None else []).append))


def run(coroutine):
    return virtual_time.run(coroutine)


def test_what_is_armed_is_read_as_armed_and_what_is_disarmed_is_gone(tmp_path):
    world = FakeKv()
    where = arm(world, PLAIN, tmp_path, made())
    found = arming.read(world.value(PLAIN.arming.key), where, None)
    assert arming.check(found, WANTED, where) == SLOW
    assert where == f"Consul's key {PLAIN.arming.key}; this first arming fixed the keys there"
    assert arm(world, PLAIN, tmp_path, found.text()) == f"Consul's key {PLAIN.arming.key}"
    disarm(world, PLAIN, tmp_path)
    assert set(world.keys) == {ANCHOR_KEY, TAKEN_BACK_KEY}
    assert run(operate.taken_back(Kv(world), ONE)) == {found.nonce}
    assert run(operate.taken_back(Kv(world), ONE + dt.timedelta(days=2))) == frozenset(), "it would have ended by then"
    disarm(world, PLAIN, tmp_path)


def test_a_signed_file_is_read_as_armed(tmp_path):
    world = FakeKv()
    where = arm(world, SIGNED, tmp_path, made(SIGNED, key=KEY))
    text = (tmp_path / "armed.json").read_text()
    arming.check(arming.read(text, where, SIGNED.arming.public_key), WANTED, where)
    disarm(world, SIGNED, tmp_path)
    disarm(world, SIGNED, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert arming.read(text, where, SIGNED.arming.public_key).nonce in run(operate.taken_back(Kv(world), ONE))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"for_s": 86401}, "--for: give over 0s and at most 24h"),
        ({"for_s": 0}, "--for: give over 0s"),
        ({"by": " "}, "--by: say who"),
        ({"key": KEY}, "the attach file pins no key"),
        ({"settings": SIGNED}, "give --key FILE"),
        ({"settings": SIGNED, "key": arming.new_key()}, "--key: its public key is ed25519:"),
        ({"settings": SIGNED, "key": b"none"}, "is not an Ed25519 private key"),
    ],
)
def test_what_would_be_refused_anyway_is_not_written(changes, said):
    with pytest.raises(UsageError) as wrong:
        made(**changes)
    assert said in str(wrong.value)


async def test_a_pressed_button_is_seen_and_a_released_one_is_not():
    world = FakeKv()
    await operate.press(Kv(world), PLAIN, "ben", ONE, "wrong cluster", tell=print)
    with pytest.raises(
        InterlockError, match=r"is pressed .*by ben at 2026-11-23T13:00:00\+00:00: wrong cluster.*stop --release"
    ):
        await stop.check_released(Kv(world), PLAIN.stop.key)
    await operate.release(Kv(world), PLAIN)
    await stop.check_released(Kv(world), PLAIN.stop.key)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"armed\.json: cannot be written"):
        arm(FakeKv(), SIGNED, tmp_path / "nowhere", made(SIGNED, key=KEY))


# the datacenter decides what arms


OWN = {
    "interlocks.arming.public_key": {"arming": {"public_key": arming.public_of(arming.new_key()), "file": "mine.json"}},
    "interlocks.arming.key": {"arming": {"key": "mine/armed"}},
    "interlocks.stop.key": {"stop": {"key": "mine/stop"}},
    "interlocks.lock.key": {"lock": {"key": "mine/lock"}},
    "interlocks.audit.prefix": {"audit": {"prefix": "mine"}},
}


@pytest.mark.lie
@pytest.mark.parametrize("key", OWN)
def test_what_an_attach_file_says_otherwise_than_the_datacenter_is_refused(key, tmp_path):
    """It brought its own arming, button, lock and audit, and was admitted."""
    world, own = FakeKv(), settings_of(OWN[key], "x")
    arm(world, PLAIN, tmp_path, made())
    with pytest.raises(InterlockError, match=key.replace(".", r"\.")) as refused:
        arm(world, own, tmp_path, made())
    assert ANCHOR_KEY in str(refused.value)
    with pytest.raises(InterlockError, match=key.replace(".", r"\.")):
        run(anchor.check(Kv(world), own, "staging", "mine.yaml"))
    run(anchor.check(Kv(world), PLAIN, "staging", "staging.yaml"))


@pytest.mark.parametrize("text", ["", "{}", "[]", "x", '{"datacenter": 7}'])
def test_an_anchor_that_is_none_lets_nothing_run(text):
    with pytest.raises(InterlockError, match="is malformed"):
        run(anchor.check(Kv(FakeKv({ANCHOR_KEY: text})), PLAIN, "staging", "staging.yaml"))


def test_a_stop_goes_to_the_button_that_runs_look_at_and_a_disarming_to_the_arming_that_counts(tmp_path):
    world, own = FakeKv(), settings_of({"stop": {"key": "mine/stop"}, "arming": {"key": "mine/armed"}}, "x")
    arm(world, PLAIN, tmp_path, made())
    assert run(operate.press(Kv(world), own, "ben", ONE, tell=print))
    assert PLAIN.stop.key in world.keys
    run(operate.release(Kv(world), own))
    assert PLAIN.stop.key not in world.keys
    disarm(world, own, tmp_path)
    assert PLAIN.arming.key not in world.keys


# what a restore sets back


def during(world, do, *happens, told=None):
    """An operator's command, while a run holds the lock for 20 s; `happens`: after how many seconds of it Consul is set
    back to what it was as the command began. Returns how long the command took.
    """
    told = told if told is not None else []

    async def later(after_s, before):
        await anyio.sleep(after_s)
        world.restore(before)

    async def a_run(task_status):
        async with lock.held(Kv(world), PLAIN.lock.key, 30, lock.Holder("ana", "run-1", "x", "now"), told.append):
            task_status.started()
            await anyio.sleep(20)

    async def main():
        async with anyio.create_task_group() as group:
            await group.start(lambda *, task_status: a_run(task_status))
            for after_s in happens:
                group.start_soon(later, after_s, world.snapshot())
            began = anyio.current_time()
            await do(told.append)
            return anyio.current_time() - began

    return run(main())


@pytest.mark.lie
@pytest.mark.parametrize("after_s", [0.01, 0.21, 0.36, 5.0, 19.9])
def test_a_stop_that_a_restore_undoes_is_pressed_again(after_s):
    """Pressed 0.21 s and 0.36 s before a restore ended, it was gone, and nothing had seen it."""
    world, told = FakeKv(), []

    async def press(tell):
        await operate.press(Kv(world), PLAIN, "ben", ONE, "wrong", tell=tell)

    assert 19 < during(world, press, after_s, told=told) < 22, "until no run holds the lock"
    assert stop.read(world.value(PLAIN.stop.key)).why == "wrong"
    assert "the stop was undone, for example by the restore of a snapshot: done again" in told


@pytest.mark.lie
@pytest.mark.parametrize("after_s", [0.01, 0.36, 5.0])
def test_a_disarming_that_a_restore_undoes_is_done_again(after_s, tmp_path):
    world, told = FakeKv(), []
    arm(world, PLAIN, tmp_path, made())
    text = world.value(PLAIN.arming.key)

    async def take(tell):
        await operate.disarm(Kv(world), PLAIN, tmp_path, ONE, tell)

    during(world, take, after_s, told=told)
    assert PLAIN.arming.key not in world.keys
    assert arming.read(text, "x").nonce in run(operate.taken_back(Kv(world), ONE))
    assert "the disarming was undone, for example by the restore of a snapshot: done again" in told


async def test_a_stop_is_pressed_though_consul_has_no_leader_for_a_while():
    world = FakeKv()
    world.silent = True

    async def press(tell):
        await operate.press(Kv(world), PLAIN, "ben", ONE, tell=tell)

    async with anyio.create_task_group() as group:
        group.start_soon(press, print)
        await anyio.sleep(12)
        world.silent = False
    assert PLAIN.stop.key in world.keys


def test_a_stop_is_pressed_though_nothing_else_may_be_read():
    world, told = FakeKv(), []
    world.denied = {("GET", f"/v1/kv/{ANCHOR_KEY}"), ("GET", f"/v1/kv/{PLAIN.lock.key}")}
    assert not run(operate.press(Kv(world), PLAIN, "ben", ONE, tell=told.append))
    assert PLAIN.stop.key in world.keys
    assert any("it is unknown whether a run is in progress" in text for text in told)


def test_an_arming_is_taken_back_though_its_nonce_cannot_be_kept(tmp_path):
    world, told = FakeKv(), []
    arm(world, PLAIN, tmp_path, made())
    world.denied = {("PUT", f"/v1/kv/{TAKEN_BACK_KEY}")}
    disarm(world, PLAIN, tmp_path, told)
    assert PLAIN.arming.key not in world.keys
    assert any("its text could be stored again" in text for text in told)
