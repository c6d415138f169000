"""A file on the host, which only root may write, lists who may put faults on this host.

    # /etc/hashidrill/armed-by
    ed25519:5GvK...=  staging-1

A line has the public key of a person who may arm, and a datacenter (without one: any). If the file exists, the
host accepts only faults whose arming is signed by one of these keys and in force now. The attach file and its Consul
belong to their author; this file belongs to the host.

Signatures are verified as in RFC 8032, section 6, because hosts have only Python; all data is public.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.core.util import trusted_paths
from hashidrill.staging.carriers.inside.system import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORM = "ed25519:"
_LARGEST = 100_000
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_SKEW_S = 60.0
"""How far this host's clock may differ from that of the signer, as in interlocks."""


def check(armed: str, now: float, path: Path) -> None:
    """Raises RefusedError if the host has the file, and `armed`, a signed arming, is signed by none of its keys.

    `now` is in seconds since 1970.
    """
    keys = _keys(path)
    if keys is None:
        return
    try:
        envelope = json.loads(armed)
        text, signature = str(envelope["arming"]), base64.b64decode(envelope["signature"], validate=True)
        said = json.loads(text)
        since, until = (calendar.timegm(time.strptime(said[key], _TIME)) for key in ("since", "until"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _refused(path, "the run has no signed arming: arm it with `hashidrill staging arm --key FILE`") from None
    signed = [place for key, place in keys if verified(key, text.encode(), signature)]
    if not signed:
        raise _refused(path, "the arming of the run is not signed with a key of that file")
    if not {"", said.get("datacenter")} & {*signed}:
        raise _refused(path, f"the arming is for {said.get('datacenter')!r}, but its key arms {', '.join(signed)} here")
    if not since - _SKEW_S <= now < until:
        here = time.strftime(_TIME, time.gmtime(now))
        raise _refused(path, f"the arming is from {said['since']} until {said['until']}, and the time here is {here}")


def _refused(path: Path, why: str) -> RefusedError:
    return RefusedError("not-armed", f"{path} says who may arm faults on this host: {why}; nothing was applied")


def _keys(path: Path) -> list[tuple[bytes, str]] | None:
    """(public key, datacenter or ""); None without the file. Raises RefusedError for a file that is not root's."""
    try:
        with os.fdopen(trusted_paths.open_file(path, os.O_RDONLY), "rb") as file:
            found, content = os.fstat(file.fileno()), file.read(_LARGEST)
        if found.st_uid not in {0, os.geteuid()} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("users other than root may write it")  # noqa: TRY301 - as for a malformed one
        return list(_lines(content.decode()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _refused(path, f"it is not usable: {error}") from None


def _lines(text: str) -> Iterator[tuple[bytes, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        raw = base64.b64decode(words[0][len(_FORM) :], validate=True) if words[0].startswith(_FORM) else b""
        if len(raw) != 32 or len(words) > 2:
            raise ValueError(f"line {number} is not `{_FORM}KEY [DATACENTER]`")
        yield raw, "".join(words[1:])


# Ed25519, as in RFC 8032: points are (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z

_P = 2**255 - 19
_Q = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)


def verified(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the owner of that key signed the message."""
    key, nonce = _point(public), _point(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or key is None or nonce is None or scalar >= _Q:
        return False
    digest = hashlib.sha512(signature[:32] + public + message).digest()
    hashed = int.from_bytes(digest, "little") % _Q
    one, other = _times(scalar, _BASE), _sum(nonce, _times(hashed, key))
    return not any((one[n] * other[2] - other[n] * one[2]) % _P for n in (0, 1))


def _point(raw: bytes) -> Any:
    """None if the point is not on the curve."""
    number = int.from_bytes(raw, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    if len(raw) != 32 or y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P)
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (not x and sign):
        return None
    x = x if x & 1 == sign else _P - x
    return x, y, 1, x * y % _P


def _sum(one: Any, other: Any) -> Any:
    a, b = (one[1] - one[0]) * (other[1] - other[0]) % _P, (one[1] + one[0]) * (other[1] + other[0]) % _P
    c, d = 2 * one[3] * other[3] * _D % _P, 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: Any) -> Any:
    result = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            result = _sum(result, point)
        point, scalar = _sum(point, point), scalar >> 1
    return result


_BASE = _point((4 * pow(5, _P - 2, _P) % _P).to_bytes(32, "little"))
