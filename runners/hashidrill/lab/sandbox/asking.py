"""How the servers of rpc.py are asked: one request, one answer, in bounded time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from hashidrill.core.errors import FaultError

ANSWER_WITHIN_S = 30.0


async def ask(socket_path: Path, request: Mapping[str, Any], *, within_s: float = ANSWER_WITHIN_S) -> dict[str, Any]:
    """One request to hostd, a canary or diskd. Raises FaultError with the answer's error, or when none comes."""
    try:
        with anyio.fail_after(within_s):
            async with await anyio.connect_unix(str(socket_path)) as stream:
                await stream.send(json.dumps(request).encode() + b"\n")
                answer = b""
                while not answer.endswith(b"\n"):
                    answer += await stream.receive(1 << 20)
    except TimeoutError:
        raise FaultError(f"{socket_path.name}: no answer to {request['op']} within {within_s:g}s") from None
    except (OSError, anyio.EndOfStream) as error:
        raise FaultError(f"{socket_path.name}: cannot ask for {request['op']}: {error or 'closed'}") from None
    decoded: dict[str, Any] = json.loads(answer)
    if decoded.get("error"):
        raise FaultError(f"{socket_path.name}: {request['op']}: {decoded['error']}")
    return decoded
