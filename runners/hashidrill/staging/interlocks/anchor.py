"""The anchor: the datacenter's own record of its arming key, stop button, lock and audit keys.

An attach file belongs to its author. Without an anchor it could name the author's own signing key, stop button and
lock, and arm itself. So the first `hashidrill staging arm` writes them to ANCHOR_KEY, whose name no file can change,
and from then on a file with other values is refused. Write access to that key is the power to arm: a run's token may
only read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from hashidrill.core.errors import InterlockError
from hashidrill.core.util.safe_json import parse
from hashidrill.staging.interlocks.kv import Kv
from hashidrill.staging.interlocks.settings import ANCHOR_KEY, InterlockSettings


@dataclass(frozen=True)
class Anchor:
    """The keys of Consul's KV store that interlocks use, and the key that signs an arming ("" for none)."""

    datacenter: str
    public_key: str
    arming_key: str
    stop_key: str
    lock_key: str
    audit_prefix: str

    @classmethod
    def of(cls, settings: InterlockSettings, datacenter: str) -> Anchor:
        """The anchor that an attach file describes."""
        return cls(
            datacenter,
            settings.arming.public_key or "",
            settings.arming.key,
            settings.stop.key,
            settings.lock.key,
            settings.audit.prefix,
        )

    def text(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def check(self, settings: InterlockSettings, datacenter: str, where: str) -> None:
        """Raises InterlockError that names each setting in which the attach file differs."""
        theirs, ours = asdict(self), asdict(Anchor.of(settings, datacenter))
        wrong = [
            f"{_WRITTEN[name]} is {ours[name] or 'not set'} and not {theirs[name] or 'unset'}"
            for name in theirs
            if theirs[name] != ours[name]
        ]
        if wrong:
            raise InterlockError(
                f"{where} does not decide what arms, stops and locks there; the datacenter does, in Consul's key"
                f" {ANCHOR_KEY}: {'; '.join(wrong)}; correct the attach file. To change the datacenter, delete that key"
                " and arm again"
            )

    def over(self, settings: InterlockSettings) -> InterlockSettings:
        """These settings with the datacenter's own keys: a stop goes to the button that runs watch."""
        key, public_key = self.arming_key, self.public_key or None
        file = settings.arming.file if public_key else None
        return settings.model_copy(
            update={
                "arming": settings.arming.model_copy(update={"key": key, "public_key": public_key, "file": file}),
                "stop": settings.stop.model_copy(update={"key": self.stop_key}),
                "lock": settings.lock.model_copy(update={"key": self.lock_key}),
                "audit": settings.audit.model_copy(update={"prefix": self.audit_prefix}),
            }
        )


_WRITTEN = {
    "datacenter": "metadata.name",
    "public_key": "interlocks.arming.public_key",
    "arming_key": "interlocks.arming.key",
    "stop_key": "interlocks.stop.key",
    "lock_key": "interlocks.lock.key",
    "audit_prefix": "interlocks.audit.prefix",
}


async def read(kv: Kv) -> Anchor | None:
    """None before the first arming. Raises InterlockError for a value that is not an anchor."""
    entry = await kv.get(ANCHOR_KEY)
    if entry is None:
        return None
    try:
        anchor = Anchor(**parse(entry.value))
    except (ValueError, TypeError):
        anchor = None
    if anchor is None or not all(isinstance(each, str) for each in asdict(anchor).values()):
        raise InterlockError(f"Consul's key {ANCHOR_KEY} is malformed: delete it, and arm again")
    return anchor


async def check(kv: Kv, settings: InterlockSettings, datacenter: str, where: str) -> None:
    """Raises InterlockError if the datacenter was never armed, or differs from the attach file."""
    anchor = await read(kv)
    if anchor is None:
        raise InterlockError(
            f"not armed: nothing was ever armed there (Consul's key {ANCHOR_KEY} is missing); arm it with"
            " `hashidrill staging arm`"
        )
    anchor.check(settings, datacenter, where)


async def fix(kv: Kv, settings: InterlockSettings, datacenter: str, where: str) -> bool:
    """Writes the anchor at the first arming, and checks it at any other. Returns whether it was the first arming."""
    anchor = Anchor.of(settings, datacenter)
    first = await kv.put(ANCHOR_KEY, anchor.text(), unchanged=0)
    await check(kv, settings, datacenter, where)
    return first


async def anchored(kv: Kv, settings: InterlockSettings) -> InterlockSettings:
    """The settings with the datacenter's fixed values. Raises InterlockError."""
    anchor = await read(kv)
    return settings if anchor is None else anchor.over(settings)
