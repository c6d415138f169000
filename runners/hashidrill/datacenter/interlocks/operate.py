"""What an operator does: arms, disarms, presses the stop button and releases it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import anyio

from hashidrill.datacenter.interlocks import arming
from hashidrill.datacenter.interlocks.arming import Arming
from hashidrill.datacenter.interlocks.kv import Kv
from hashidrill.datacenter.interlocks.settings import InterlockSettings
from hashidrill.datacenter.interlocks.stop import Pressed
from hashidrill.errors import UsageError
from hashidrill.util.files import write_whole


def made(
    settings: InterlockSettings, experiments: Sequence[str], datacenter: str, *, by: str, for_s: float,
    now: dt.datetime, why: str = "", private_key: bytes | None = None,
) -> str:  # fmt: skip
    """An arming as it is kept, signed where it must be. Raises UsageError for one that would be refused anyway."""
    said = settings.arming
    if not 0 < for_s <= said.longest:
        raise UsageError(f"--for: give over 0s and at most {said.longest}, the longest that the attach file allows")
    if not by.strip():
        raise UsageError("--by: say who arms it")
    found = Arming(
        by, tuple(dict.fromkeys(experiments)), datacenter, now, now + dt.timedelta(seconds=for_s), why
    )  # fmt: skip
    if said.public_key is None:
        if private_key is not None:
            raise UsageError(
                "--key: the attach file pins no key, so nobody would check the signature; add under interlocks.arming:"
                f" `public_key: {arming.public_of(private_key)}`"
            )
        return found.text()
    if private_key is None:
        raise UsageError("the attach file pins the key that must sign the arming: give --key FILE")
    if (public := arming.public_of(private_key)) != said.public_key:
        raise UsageError(f"--key: its public key is {public}, and the attach file pins {said.public_key}")
    return arming.sign(found, private_key)


async def arm(kv: Kv, settings: InterlockSettings, folder: Path, text: str) -> str:
    """Puts the arming where it belongs; returns where. Raises InterlockError and UsageError."""
    if settings.arming.file is None:
        await kv.put(settings.arming.key, text)
        return f"Consul's key {settings.arming.key}"
    path = folder / settings.arming.file
    try:
        await anyio.to_thread.run_sync(write_whole, path, text + "\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return str(path)


async def disarm(kv: Kv, settings: InterlockSettings, folder: Path) -> str:
    """Takes the arming away; returns from where. A run that goes on stops, and reverts. Raises InterlockError."""
    if settings.arming.file is None:
        await kv.delete(settings.arming.key)
        return f"Consul's key {settings.arming.key}"
    path = folder / settings.arming.file
    try:
        await anyio.Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be removed: {error.strerror}") from None
    return str(path)


async def press(kv: Kv, settings: InterlockSettings, by: str, now: dt.datetime, why: str = "") -> None:
    """Presses the stop button: who runs something there stops and reverts, and nothing starts any more."""
    await kv.put(settings.stop.key, Pressed(by, now.isoformat(timespec="seconds"), why).text())


async def release(kv: Kv, settings: InterlockSettings) -> None:
    """Releases the stop button."""
    await kv.delete(settings.stop.key)
