"""What an operator says is what a guard reads: armed, disarmed, stopped, released."""

import datetime as dt

import pytest

import virtual_time
from fake_kv import FakeKv
from hashidrill.datacenter.interlocks import arming, operate, stop
from hashidrill.datacenter.interlocks.arming import Wanted
from hashidrill.datacenter.interlocks.kv import Kv
from hashidrill.datacenter.interlocks.settings import settings_of
from hashidrill.errors import InterlockError, UsageError

ONE = dt.datetime(2026, 11, 23, 13, tzinfo=dt.UTC)
PLAIN = settings_of({}, "x")
KEY = arming.new_key()
SIGNED = settings_of({"arming": {"file": "armed.json", "public_key": arming.public_of(KEY)}}, "x")
WANTED = Wanted("slow-leader-disk", "staging", ONE + dt.timedelta(minutes=5), 60, 86400, 60)


def made(settings=PLAIN, *, names=("slow-leader-disk",), by="ana", for_s=3600, key=None):
    return operate.made(settings, names, "staging", by=by, for_s=for_s, now=ONE, private_key=key)


def run(coroutine):
    return virtual_time.run(coroutine)


def test_what_is_armed_is_read_as_armed_and_what_is_disarmed_is_gone(tmp_path):
    world = FakeKv()
    where = run(operate.arm(Kv(world), PLAIN, tmp_path, made()))
    arming.check(arming.read(world.value(PLAIN.arming.key), where, None), WANTED, where)
    assert where == f"Consul's key {PLAIN.arming.key}"
    run(operate.disarm(Kv(world), PLAIN, tmp_path))
    assert world.keys == {}
    run(operate.disarm(Kv(world), PLAIN, tmp_path))


def test_a_signed_file_is_read_as_armed(tmp_path):
    world = FakeKv()
    where = run(operate.arm(Kv(world), SIGNED, tmp_path, made(SIGNED, key=KEY)))
    text = (tmp_path / "armed.json").read_text()
    arming.check(arming.read(text, where, SIGNED.arming.public_key), WANTED, where)
    run(operate.disarm(Kv(world), SIGNED, tmp_path))
    run(operate.disarm(Kv(world), SIGNED, tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert world.writes == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"for_s": 86401}, "--for: give over 0s and at most 24h"),
        ({"for_s": 0}, "--for: give over 0s"),
        ({"by": " "}, "--by: say who"),
        ({"key": KEY}, "the attach file pins no key"),
        ({"settings": SIGNED}, "give --key FILE"),
        ({"settings": SIGNED, "key": arming.new_key()}, "--key: its public key is ed25519:"),
        ({"settings": SIGNED, "key": b"none"}, "is no Ed25519 private key"),
    ],
)
def test_what_would_be_refused_anyway_is_not_written(changes, said):
    with pytest.raises(UsageError) as wrong:
        made(**changes)
    assert said in str(wrong.value)


def test_a_pressed_button_is_seen_and_a_released_one_is_not():
    world = FakeKv()

    async def main():
        await operate.press(Kv(world), PLAIN, "ben", ONE, "wrong cluster")
        with pytest.raises(InterlockError, match=r"by ben at 2026-11-23T13:00:00\+00:00: wrong cluster"):
            await stop.check_released(Kv(world), PLAIN.stop.key)
        await operate.release(Kv(world), PLAIN)
        await stop.check_released(Kv(world), PLAIN.stop.key)

    run(main())


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"armed\.json: cannot be written"):
        run(operate.arm(Kv(FakeKv()), SIGNED, tmp_path / "nowhere", made(SIGNED, key=KEY)))
