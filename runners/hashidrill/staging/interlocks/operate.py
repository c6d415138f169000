"""An operator's actions: arms, disarms, presses the stop button and releases it.

A run may restore a snapshot, and with it the key-value store. So while a run holds the lock, a stop or a disarming
that is gone is repeated.
"""

import datetime as dt
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio

from hashidrill.core.errors import InterlockError, UsageError
from hashidrill.core.util.files import write_whole
from hashidrill.core.util.safe_json import parse
from hashidrill.core.util.wait import pause
from hashidrill.staging.interlocks import anchor, arming
from hashidrill.staging.interlocks.arming import Armed, Arming
from hashidrill.staging.interlocks.kv import Entry, Kv, SilentError
from hashidrill.staging.interlocks.settings import TAKEN_BACK_KEY, InterlockSettings
from hashidrill.staging.interlocks.stop import Pressed

_LOOK_EVERY_S = 0.25
_STAYS_S = 300.0
"""How long an operator's command keeps checking whether a run still holds the lock."""
_DONE_WITHIN_S = 30.0
"""How long an operator's command retries while Consul has no leader."""
_AS_MANY = 1000
"""The most nonces kept: the nonces of the armings with the latest ends."""

Tell = Callable[[str], None]
T = TypeVar("T")


def made(
    settings: InterlockSettings,
    experiments: Iterable[Armed],
    datacenter: str,
    *,
    by: str,
    for_s: float,
    now: dt.datetime,
    why: str = "",
    private_key: bytes | None = None,
) -> str:
    """The text of an arming, signed if required. Raises UsageError for an arming that would be refused."""
    said = settings.arming
    if not 0 < for_s <= said.longest:
        raise UsageError(f"--for: give over 0s and at most {said.longest}, the longest that the attach file allows")
    if not by.strip():
        raise UsageError("--by: say who arms it")
    found = Arming(by, tuple(dict.fromkeys(experiments)), datacenter, now, now + dt.timedelta(seconds=for_s), why)
    if said.public_key is None:
        if private_key is not None:
            raise UsageError(
                "--key: the attach file pins no key, so no run would check the signature; add under interlocks.arming:"
                f" `public_key: {arming.public_of(private_key)}`"
            )
        return found.text()
    if private_key is None:
        raise UsageError("the attach file pins the key that must sign the arming: give --key FILE")
    if (public := arming.public_of(private_key)) != said.public_key:
        raise UsageError(f"--key: its public key is {public}, and the attach file pins {said.public_key}")
    return arming.sign(found, private_key)


async def arm(kv: Kv, settings: InterlockSettings, folder: Path, text: str, *, datacenter: str, said_by: str) -> str:
    """Stores the arming, and returns where. The first arming fixes the datacenter's keys for arming, stop and lock.

    `said_by`: the attach file. Raises InterlockError, which names differences from the datacenter's fixed values,
    and UsageError.
    """
    first = await anchor.fix(kv, settings, datacenter, said_by)
    return await _put(kv, settings, folder, text) + ("; this first arming fixed the keys there" if first else "")


async def _put(kv: Kv, settings: InterlockSettings, folder: Path, text: str) -> str:
    if settings.arming.file is None:
        await kv.put(settings.arming.key, text)
        return f"Consul's key {settings.arming.key}"
    path = folder / settings.arming.file
    try:
        await anyio.to_thread.run_sync(write_whole, path, text + "\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return str(path)


async def arming_in(kv: Kv, settings: InterlockSettings, folder: Path) -> tuple[str, Entry | None]:
    """(the place, the entry there). Raises InterlockError for a file that cannot be read."""
    said = settings.arming
    if said.file is None:
        return f"Consul's key {said.key}", await kv.get(said.key)
    path = folder / said.file
    try:
        return str(path), Entry(await anyio.Path(path).read_text(errors="replace"), "", 0)
    except FileNotFoundError:
        return str(path), None
    except OSError as error:
        raise InterlockError(f"not armed: {path} cannot be read: {error.strerror}") from None


async def disarm(kv: Kv, settings: InterlockSettings, folder: Path, now: dt.datetime, tell: Tell) -> str:
    """Revokes the arming permanently: the nonce is recorded, so that writing the same text again has no effect. Returns
    its place.

    A run in progress stops, and reverts. Raises InterlockError.
    """
    settings = await _until_done(partial(anchor.anchored, kv, settings))
    where, entry = await _until_done(partial(arming_in, kv, settings, folder))
    revoked = _revoked(entry, where)

    async def gone() -> bool:
        left = (await arming_in(kv, settings, folder))[1]
        return left is None and not revoked.keys() - (await taken_back(kv, now))

    async def take() -> None:
        await _remove(kv, settings, folder)
        try:
            if revoked:
                await _revoke(kv, revoked, now)
        except SilentError:
            raise
        except InterlockError as error:
            revoked.clear()
            tell(f"the arming is gone, but its text could be stored again: {error}")

    await _stays(kv, settings, done=gone, do=take, what="the disarming", tell=tell)
    return where


async def _remove(kv: Kv, settings: InterlockSettings, folder: Path) -> None:
    if settings.arming.file is None:
        await kv.delete(settings.arming.key)
        return
    path = folder / settings.arming.file
    try:
        await anyio.Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be removed: {error.strerror}") from None


async def _revoke(kv: Kv, revoked: Mapping[str, str], now: dt.datetime) -> None:
    kept = {**await _nonces(kv, now), **revoked}
    latest = dict(sorted(kept.items(), key=lambda one: one[1])[-_AS_MANY:])
    await kv.put(TAKEN_BACK_KEY, json.dumps(latest))


def _revoked(entry: Entry | None, where: str) -> dict[str, str]:
    """The nonce of the stored arming, and its end."""
    try:
        found = arming.parse("" if entry is None else entry.value, where)
    except InterlockError:  # it arms nothing
        return {}
    return {found.nonce: found.until.isoformat(timespec="seconds")}


async def taken_back(kv: Kv, now: dt.datetime) -> frozenset[str]:
    """The nonces of revoked armings that would not have ended yet. Raises InterlockError."""
    return frozenset(await _nonces(kv, now))


async def _nonces(kv: Kv, now: dt.datetime) -> dict[str, str]:
    entry = await kv.get(TAKEN_BACK_KEY)
    if entry is None:
        return {}
    try:
        return {str(nonce): str(until) for nonce, until in parse(entry.value).items() if _later(str(until), now)}
    except (ValueError, AttributeError):
        raise InterlockError(f"Consul's key {TAKEN_BACK_KEY} is malformed: delete it, and arm again") from None


def _later(until: str, now: dt.datetime) -> bool:
    time = dt.datetime.fromisoformat(until)
    return time.tzinfo is not None and time + dt.timedelta(days=1) > now


async def press(kv: Kv, settings: InterlockSettings, by: str, now: dt.datetime, why: str = "", *, tell: Tell) -> bool:
    """Presses the stop button: runs there stop and revert, and no run can start.

    Returns once no run holds the lock; false if that is unknown. Raises InterlockError.
    """
    with_keys = partial(anchor.anchored, kv, settings)
    try:
        settings = await _until_done(with_keys)
    except SilentError:
        raise
    except InterlockError as error:
        tell(f"the datacenter's fixed keys cannot be read, so the attach file's button is pressed: {error}")
    text = Pressed(by, now.isoformat(timespec="seconds"), why).text()

    async def there() -> bool:
        return await kv.get(settings.stop.key) is not None

    async def put() -> None:
        await kv.put(settings.stop.key, text)

    return await _stays(kv, settings, done=there, do=put, what="the stop", tell=tell)


async def pressed_again(kv: Kv, key: str, pressed: Pressed) -> bool:
    """Presses the button; returns false if it was already pressed. Raises InterlockError."""
    return await _until_done(partial(kv.put, key, pressed.text(), unchanged=0))


async def _stays(
    kv: Kv,
    settings: InterlockSettings,
    *,
    done: Callable[[], Awaitable[bool]],
    do: Callable[[], Awaitable[None]],
    what: str,
    tell: Tell,
) -> bool:
    """Repeats the action whenever it is undone, until it is done and no run holds the lock.

    Returns false if the lock cannot be read. Raises InterlockError.
    """
    await _until_done(do)
    gives_up_s, waits = anyio.current_time() + _STAYS_S, False
    while True:
        if not await _until_done(done):
            tell(f"{what} was undone, for example by the restore of a snapshot: done again")
            await _until_done(do)
            await pause(_LOOK_EVERY_S)
            continue
        try:
            held = await _until_done(partial(kv.get, settings.lock.key))
        except SilentError:
            raise
        except InterlockError as error:
            tell(f"{what} is done; it is unknown whether a run is in progress: {error}")
            return False
        if held is None or not held.session:
            return True
        if not waits:
            waits = True
            tell(f"{what} is done; a run still holds the lock: waiting until it has reverted (Ctrl-C ends the wait)")
        if anyio.current_time() >= gives_up_s:
            raise InterlockError(
                f"{what} is done, but a run still holds {settings.lock.key} after {_STAYS_S:g}s: look at it"
            )
        await pause(_LOOK_EVERY_S)


async def _until_done(do: Callable[[], Awaitable[T]]) -> T:
    """Retries while Consul is silent or has no leader. Raises InterlockError."""
    gives_up_s = anyio.current_time() + _DONE_WITHIN_S
    while True:
        try:
            return await do()
        except SilentError:
            if anyio.current_time() >= gives_up_s:
                raise
        await pause(_LOOK_EVERY_S)


async def release(kv: Kv, settings: InterlockSettings) -> None:
    """Releases the stop button."""
    await kv.delete((await anchor.anchored(kv, settings)).stop.key)
