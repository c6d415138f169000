"""Arming: a person's consent to run certain experiments here, until a certain time.

An arming is JSON. It consents to contents, not to names: `digest` covers all that the experiment does, and an
experiment that was changed since must be armed again (hashidrill.staging.attach.plan).

    {"armed_by": "ana", "datacenter": "staging-1",
     "experiments": [{"name": "slow-leader-disk", "digest": "sha256:1f0c...", "breaks_quorum": false}],
     "since": "2026-11-23T09:00:00Z", "until": "2026-11-23T12:00:00Z", "why": "game day 12", "nonce": "9c41..."}

The nonce tells two armings apart: a revoked one stays revoked, even if its text is stored again.

If the datacenter pins a public key, the arming comes in an envelope that its owner signed:

    {"arming": "<the JSON as text>", "signature": "<Ed25519 over these bytes, Base64>"}

The text itself is signed, so nothing depends on how JSON is laid out. The signatures use `cryptography`, which
trustme requires in any case: it wraps OpenSSL, has had releases every few weeks for ten years, and ships wheels.

Every function here is pure: texts, keys and times come from the caller.
"""

import base64
import binascii
import datetime as dt
import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hashidrill.core.errors import InterlockError, UsageError
from hashidrill.core.util import safe_json

KEY_FORM = "ed25519:"
_FIELDS = {"armed_by", "experiments", "datacenter", "since", "until", "why", "nonce"}
_LARGEST = 100_000
"""Characters: a KV value of Consul holds 512 kB, an arming some hundred bytes."""


@dataclass(frozen=True)
class Armed:
    """One experiment that may run: its name, for people, and its content's digest; whether it may break a quorum."""

    name: str
    digest: str
    breaks_quorum: bool = False


@dataclass(frozen=True)
class Arming:
    """Who armed which experiments in which datacenter, from when until when."""

    armed_by: str
    experiments: tuple[Armed, ...]
    datacenter: str
    since: dt.datetime
    until: dt.datetime
    why: str = ""
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def text(self) -> str:
        """The text that is stored and signed."""
        return json.dumps({**asdict(self), "since": _shown(self.since), "until": _shown(self.until)}, indent=2)


@dataclass(frozen=True)
class Wanted:
    """The run that an arming must cover. `needs_s`: how long the run takes at most, until all is reverted."""

    experiment: str
    digest: str
    datacenter: str
    now: dt.datetime
    needs_s: float
    longest_s: float
    skew_s: float


def read(text: str | None, where: str, public_key: str | None = None) -> Arming:
    """The arming in the text of a KV value or file; `text` is None if there is none.

    Raises InterlockError if it is missing, malformed, not signed, or signed by another key.
    """
    if text is None or not text.strip():
        raise InterlockError(f"not armed: there is nothing at {where}; arm it with `hashidrill staging arm`")
    if len(text) > _LARGEST:
        raise InterlockError(f"the arming at {where} is malformed: it has {len(text)} characters")
    return parse(text if public_key is None else _opened(text, where, public_key), where)


def parse(text: str, where: str) -> Arming:
    """An arming that is not signed, or whose signature was checked. Raises InterlockError for a malformed one."""
    data = _object(text, where)
    if "signature" in data:
        data = _object(str(data.get("arming", "")), where)  # signed, although no key is required
    if unknown := sorted(data.keys() - _FIELDS):
        raise _malformed(where, f"it has {', '.join(unknown)}, but may only have {', '.join(sorted(_FIELDS))}")
    experiments = tuple(_armed(data.get("experiments"), where))
    texts = {key: data.get(key, "") for key in ("armed_by", "datacenter", "why", "nonce")}
    for key, value in texts.items():
        if not isinstance(value, str) or (key != "why" and not value.strip()):
            raise _malformed(where, f"`{key}` must be a text")
    since, until = (_time(data.get(key), key, where) for key in ("since", "until"))
    if until <= since:
        raise _malformed(where, f"`until` ({_shown(until)}) is not after `since` ({_shown(since)})")
    return Arming(texts["armed_by"], experiments, texts["datacenter"], since, until, texts["why"], texts["nonce"])


def _armed(said: Any, where: str) -> Iterator[Armed]:
    if not isinstance(said, list) or not said:
        raise _malformed(where, "`experiments` must be a list of at least one")
    for one in said:
        if isinstance(one, str):
            raise _malformed(
                where, f"it names {one[:60]} without its content (`digest`); arm it with `hashidrill staging arm`"
            )
        try:
            armed = Armed(**one)
        except TypeError:
            raise _malformed(where, "each of `experiments` must have `name`, `digest` and `breaks_quorum`") from None
        if not all(isinstance(text, str) and text for text in (armed.name, armed.digest)):
            raise _malformed(where, "`name` and `digest` of an experiment must be texts")
        if not isinstance(armed.breaks_quorum, bool):
            raise _malformed(where, "`breaks_quorum` must be true or false")
        yield armed


def check(arming: Arming, wanted: Wanted, where: str) -> Armed:
    """The armed experiment that covers the run. Raises InterlockError otherwise: each reason has its own message."""
    by = f"the arming at {where} (by {arming.armed_by})"
    skew, now = dt.timedelta(seconds=wanted.skew_s), wanted.now
    if arming.since > now + skew:
        raise InterlockError(
            f"{by} is from the future: it begins at {_shown(arming.since)}, and the time here is {_shown(now)}; check"
            " the clocks, or wait"
        )
    if arming.until <= now:
        raise InterlockError(f"{by} expired at {_shown(arming.until)}; it is {_shown(now)}: arm it again")
    if (arming.until - arming.since).total_seconds() > wanted.longest_s:
        raise InterlockError(
            f"{by} lasts {_hours(arming.until - arming.since)}, but the attach file allows at most"
            f" {_hours(dt.timedelta(seconds=wanted.longest_s))} (interlocks.arming.longest)"
        )
    if arming.datacenter != wanted.datacenter:
        raise InterlockError(f"{by} is for the datacenter {arming.datacenter!r}, but this one is {wanted.datacenter!r}")
    named = [one for one in arming.experiments if one.name == wanted.experiment]
    if not named:
        names = ", ".join(dict.fromkeys(one.name for one in arming.experiments))
        raise InterlockError(f"{by} is for {names}, not for {wanted.experiment}; arm it with `hashidrill staging arm`")
    armed = next((one for one in named if one.digest == wanted.digest), None)
    if armed is None:
        raise InterlockError(
            f"{by} is for another content of {wanted.experiment}: {' and '.join(one.digest[:19] for one in named)} was"
            f" armed, and this is {wanted.digest[:19]}; its method, its loads or the blast radius changed since: look"
            " at `hashidrill run --plan`, and arm it again"
        )
    left_s = (arming.until - now).total_seconds()
    if left_s < wanted.needs_s:
        raise InterlockError(
            f"{by} ends too early: {left_s:.0f}s are left until {_shown(arming.until)}, and {wanted.experiment} takes"
            f" up to {wanted.needs_s:.0f}s with its reverts"
        )
    return armed


def check_clocks(now: dt.datetime, theirs: dt.datetime | None, skew_s: float, whose: str) -> None:
    """Raises InterlockError if this machine's clock and the datacenter's differ by more than `skew_s`."""
    if theirs is None:
        return
    apart_s = abs((now - theirs).total_seconds())
    if apart_s > skew_s + 1:  # a Date header has whole seconds
        raise InterlockError(
            f"this machine's clock ({_shown(now)}) and that of {whose} ({_shown(theirs)}) are {apart_s:.0f}s apart,"
            f" more than {skew_s:g}s: whether an arming is in force is unknown; set the clock"
        )


# signatures


def sign(arming: Arming, private_key_pem: bytes) -> str:
    """The envelope. Raises UsageError for a key that is not an Ed25519 private key in PEM."""
    text = arming.text()
    signature = base64.b64encode(_private(private_key_pem).sign(text.encode())).decode()
    return json.dumps({"arming": text, "signature": signature}, indent=2)


def new_key() -> bytes:
    """A new private key in PEM. Only its owner may see it."""
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_of(private_key_pem: bytes) -> str:
    """The public key, as the attach file pins it. Raises UsageError."""
    raw = (
        _private(private_key_pem).public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    )
    return KEY_FORM + base64.b64encode(raw).decode()


def _private(pem: bytes) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(
            "the signing key is not an Ed25519 private key in PEM without a password; make one with"
            " `openssl genpkey -algorithm ed25519 -out FILE`"
        )
    return key


def _public(text: str) -> Ed25519PublicKey:
    try:
        raw = base64.b64decode(text.removeprefix(KEY_FORM), validate=True)
        return Ed25519PublicKey.from_public_bytes(raw)
    except (ValueError, binascii.Error):
        raise InterlockError(
            f"interlocks.arming.public_key is not an Ed25519 key: write {KEY_FORM!r} and its 32 bytes in Base64, as"
            " `hashidrill staging arm --key FILE` prints it"
        ) from None


def _opened(text: str, where: str, public_key: str) -> str:
    """The text that was signed. Raises InterlockError."""
    key = _public(public_key)
    data = _object(text, where)
    signed, signature = data.get("arming"), data.get("signature")
    if not isinstance(signed, str) or not isinstance(signature, str):
        raise InterlockError(
            f"the arming at {where} is not signed, and the attach file pins the key that must have signed it; arm it"
            " with `hashidrill staging arm --key FILE`"
        )
    try:
        key.verify(base64.b64decode(signature, validate=True), signed.encode())
    except (InvalidSignature, ValueError, binascii.Error):
        raise InterlockError(
            f"the arming at {where} has a bad signature: its text was changed, or it was signed with another key than"
            " the attach file pins"
        ) from None
    return signed


# parts


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        data = safe_json.parse(text)
    except ValueError as error:
        raise _malformed(where, f"it is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise _malformed(where, "it is not a JSON object")
    return data


def _time(value: Any, key: str, where: str) -> dt.datetime:
    try:
        time = dt.datetime.fromisoformat(value)
    except (ValueError, TypeError):
        time = None
    if time is None or time.tzinfo is None:
        raise _malformed(where, f"`{key}` must be a time with its zone, like 2026-11-23T12:00:00Z, not {value!r:.60}")
    try:
        return time.astimezone(dt.UTC)
    except (OverflowError, ValueError):
        raise _malformed(where, f"`{key}` is not a date of the calendar: {value!r:.60}") from None


def _malformed(where: str, why: str) -> InterlockError:
    return InterlockError(f"the arming at {where} is malformed: {why}")


def _shown(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _hours(length: dt.timedelta) -> str:
    return f"{length.total_seconds() / 3600:.1f}h"
