"""Taps in a separate process, for timed measurements: a process that starts commands stops for milliseconds each time.

    python -m hashidrill.clients.retry.timed_taps CERTIFICATE HEADER FAULT...

prints the ports of the taps, one for each fault, as JSON, then a line for each attempt; it ends when its input ends. A
fault like `tls:503` makes its tap listen with the certificate; CERTIFICATE `-` means none. HEADER names the HTTP header
in which a client says to which operation the request belongs.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

from hashidrill.clients.retry.surroundings import server_side
from hashidrill.core.errors import FaultError
from hashidrill.core.tap.attempts import HEADER, Attempt
from hashidrill.core.tap.plans import Always
from hashidrill.core.tap.tap import Tap
from hashidrill.core.util.processes import ahead

_TLS = "tls:"
_NONE = "-"
_LINE_BYTES = 1024 * 1024


class TimedTaps:
    """Taps that each inject their fault into every attempt. `attempts` has the ended attempts of each tap."""

    def __init__(
        self, faults: Sequence[str], certificate: Path | None = None, *, said_in: bytes = HEADER.lower().encode()
    ) -> None:
        self._faults = list(faults)
        self._said_in = said_in.decode()
        self._certificate = str(certificate or _NONE)
        self.urls: list[str] = []
        self.attempts: list[list[Attempt]] = [[] for _ in faults]
        self.first = [asyncio.Event() for _ in faults]

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            self._certificate,
            self._said_in,
            *self._faults,
            limit=_LINE_BYTES,
            start_new_session=True,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        first = await self._output().readline()
        if not first:
            await self._process.wait()
            raise FaultError(f"taps for {self._faults[0]} could not be opened (status {self._process.returncode})")
        schemes = ["https" if fault.startswith(_TLS) else "http" for fault in self._faults]
        ports = json.loads(first)
        self.urls = [f"{scheme}://127.0.0.1:{port}" for scheme, port in zip(schemes, ports, strict=True)]
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await self._reading
            await self._process.wait()
        except asyncio.CancelledError:
            self._process.kill()
            raise

    async def _read(self) -> None:
        while line := await self._output().readline():
            number, attempt = json.loads(line)
            self.attempts[number].append(Attempt(**attempt))
            self.first[number].set()

    def _output(self) -> asyncio.StreamReader:
        if self._process.stdout is None:
            raise FaultError("the timed taps have no output")
        return self._process.stdout


async def _serve(certificate: str, said_in: bytes, faults: Sequence[str]) -> None:
    tls = None if certificate == _NONE else server_side(Path(certificate))
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)

    def opened(number: int, fault: str) -> Tap:
        def say(attempt: Attempt) -> None:
            sys.stdout.write(json.dumps([number, asdict(attempt)]) + "\n")
            sys.stdout.flush()

        its_tls = tls if fault.startswith(_TLS) else None
        return Tap(plan=Always(fault.removeprefix(_TLS)), tls=its_tls, said_in=said_in, on_attempt=say)

    async with contextlib.AsyncExitStack() as stack:
        taps = [await stack.enter_async_context(opened(number, fault)) for number, fault in enumerate(faults)]
        sys.stdout.write(json.dumps([tap.port for tap in taps]) + "\n")
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    ahead()  # so that a busy machine does not delay the tap
    asyncio.run(_serve(sys.argv[1], sys.argv[2].encode(), sys.argv[3:]))
