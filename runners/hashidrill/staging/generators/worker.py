"""A worker: a load generator on some host, reached over a stream. `python -m hashidrill.staging.generators.worker`.

It prints one line of JSON, its introduction (address, certificate, session, version), and waits for its runner, the
only peer that it admits (hashidrill.staging.generators.secrecy). The first message is its specification, with tokens.
The generator's whole output goes back over a Link.

If the runner is silent for longer than the lease, a worker ends its generator, which cleans up, and then itself.

    HASHIDRILL_RUNNER     the runner's certificate
    HASHIDRILL_LEASE_S    seconds
    NOMAD_ADDR_stream     where to listen, in a job of Nomad; otherwise a free port of the loopback
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import uvloop

from hashidrill.core.errors import HashidrillError
from hashidrill.staging.generators.link import Frame, Frames, Kind, Link, StreamError, json_frame
from hashidrill.staging.generators.secrecy import Identity, unpacked

FOLDER = "hashidrill-worker-"
"""Begins the name of a worker's folder of temporary files; its process id follows."""
PROTOCOL = 1
LEASE_S = 15.0
ENDED, FAILED, SILENT = 0, 1, 3
"""Exit codes: told to end; the generator or the stream failed; the runner was silent."""
_LOOK_EVERY_S = 0.25
_EXIT_WITHIN_S = 10.0
_READ_BYTES = 1 << 16
_LINE_BYTES = 1 << 25
_STDERR_BYTES = 4096


StartChild = Callable[[Callable[[bytes], None], Callable[[int, str], None]], Awaitable["GeneratorProcess"]]
"""Starts a generator. Takes callbacks for each output line, and for its end: exit code and last output."""


class Worker:
    """One generator, its stream, and the lease. `now_ns` is the clock of this machine."""

    def __init__(
        self,
        start: StartChild,
        *,
        session: str,
        lease_s: float = LEASE_S,
        now_ns: Callable[[], int] = time.monotonic_ns,
        link: Link | None = None,
        folder: Path | None = None,
    ) -> None:
        self._start = start
        self._session = session
        self._lease_s = lease_s
        self._now_ns = now_ns
        self._folder = folder
        self._link = link or Link()
        self._writer: asyncio.StreamWriter | None = None
        self._child: GeneratorProcess | None = None
        self._heard_ns = now_ns()
        self._ending: asyncio.Task[None] | None = None
        self._over: int | None = None
        self.why = ""
        """Why it ended other than on request, in words."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection of the runner until it is lost. A newer one replaces it."""
        frames = Frames()
        try:
            while data := await reader.read(_READ_BYTES):
                self._heard_ns = self._now_ns()
                for frame in frames.fed(data):
                    await self._hear(frame, writer)
        except OSError:
            pass  # the runner comes back, or the lease ends
        except HashidrillError as error:
            self._fail(str(error))
        finally:
            if self._writer is writer:
                self._writer = None
            writer.close()

    async def _hear(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        match frame.kind:
            case Kind.PING:
                heard_ns = self._now_ns()
                asked = frame.json().get("asked")
                writer.write(json_frame(Kind.PONG, asked=asked, heard=heard_ns, answered=self._now_ns()))
                writer.write(self._link.acknowledgement(now=True))
            case Kind.HELLO:
                self._greet(frame.json(), writer)
            case Kind.ACKNOWLEDGE:
                self._link.acknowledged(frame.number)
            case Kind.MESSAGE:
                if (payload := self._link.take(frame)) is not None:
                    await self._obey(json.loads(payload))
            case Kind.PONG:
                pass

    def _greet(self, hello: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        if hello.get("session") != self._session:
            raise StreamError(f"the runner expects another worker ({hello.get('session')})")
        writer.write(json_frame(Kind.HELLO, session=self._session, received=self._link.received))
        for again in self._link.resumed(int(hello.get("received", 0))):
            writer.write(again)
        if self._writer is not None:
            self._writer.close()
        self._writer = writer

    async def _obey(self, message: Mapping[str, Any]) -> None:
        if "start" in message:
            await self._begin(message["start"], message.get("files", {}))
        elif "say" in message and self._child is not None:
            self._child.say(message["say"].encode() + b"\n")
        elif "end" in message and self._ending is None:
            # in a separate task, because the runner asks for the time meanwhile
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        child, self._child = self._child, None
        code = 0 if child is None else await child.end()
        self._send(json.dumps({"exited": code}).encode())
        if self._over is None:
            self._over = ENDED

    async def _begin(self, spec: dict[str, Any], files: Mapping[str, str]) -> None:
        try:
            if self._folder is not None and files:
                spec = {**spec, "entrances": unpacked(spec.get("entrances", {}), files, self._folder)}
            self._child = await self._start(self._send, self._child_ended)
        except OSError as error:  # a full disk, no memory for a process
            self._fail(f"its generator could not be started: {error}")
            return
        self._child.say(json.dumps(spec).encode() + b"\n")

    def _child_ended(self, code: int, said: str) -> None:
        if self._ending is None:
            self._send(json.dumps({"exited": code, "said": said}).encode())

    def _send(self, line: bytes) -> None:
        try:
            frame = self._link.send(line)
        except StreamError as error:
            self._fail(str(error))
            return
        if self._writer is not None:
            self._writer.write(frame)

    def told_to_end(self) -> None:
        """Ends on SIGTERM; the loads still clean up."""
        self._fail("it was told to end by SIGTERM")

    def _fail(self, why: str) -> None:
        if self._over is None:
            self._over, self.why = FAILED, why

    async def watch(self) -> int:
        """Runs until the worker ends; returns its exit code. By then its generator has ended."""
        while self._over is None:
            await asyncio.sleep(_LOOK_EVERY_S)
            silent_s = (self._now_ns() - self._heard_ns) / 1e9
            if silent_s > self._lease_s:
                self._over, self.why = SILENT, f"the runner was silent for {silent_s:.1f}s"
        if self._over == FAILED and self._writer is not None:
            with contextlib.suppress(StreamError):  # the stream itself may be why
                self._writer.write(self._link.send(json.dumps({"error": self.why}).encode()))
        if self._child is not None:
            await self._child.end()
        await self._delivered()
        if self._writer is not None:
            self._writer.close()
        return self._over

    async def _delivered(self) -> None:
        """Waits a moment for the worker's last message to arrive: that it ended, or why it failed."""
        for _ in range(int(_EXIT_WITHIN_S / _LOOK_EVERY_S)):
            if self._over == SILENT or self._writer is None or not self._link.outstanding:
                break
            await asyncio.sleep(_LOOK_EVERY_S)


class GeneratorProcess:
    """The load generator, in a child process that dies with this one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._tasks: set[asyncio.Task[None]] = set()
        self._said = b""

    @classmethod
    async def start(cls, on_line: Callable[[bytes], None], on_end: Callable[[int, str], None]) -> GeneratorProcess:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "hashidrill.core.loads.in_generator",
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            limit=_LINE_BYTES,
            start_new_session=True,
        )
        made = cls(process)
        made._tasks = {asyncio.create_task(made._read(on_line, on_end)), asyncio.create_task(made._listen())}
        return made

    async def _read(self, on_line: Callable[[bytes], None], on_end: Callable[[int, str], None]) -> None:
        stdout = self._process.stdout
        while stdout is not None and (line := await stdout.readline()):
            on_line(line.rstrip())
        code = await self._process.wait()
        on_end(code, self._said.decode(errors="replace"))

    async def _listen(self) -> None:
        stderr = self._process.stderr
        while stderr is not None and (data := await stderr.read(_STDERR_BYTES)):
            self._said = (self._said + data)[-_STDERR_BYTES:]

    def say(self, line: bytes) -> None:
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(line)

    async def end(self) -> int:
        """Tells the generator to end, and waits until it has. Returns its exit code. Idempotent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_WITHIN_S):
                await asyncio.wait(self._tasks)
        if self._process.returncode is None:
            self._process.kill()
            await asyncio.wait(self._tasks)
        return await self._process.wait()


def place(environ: Mapping[str, str]) -> tuple[str, int, str]:
    """Where to listen (address and port), and the address for the runner; port 0 is any free one."""
    given = environ.get("NOMAD_ADDR_stream", "")
    if not given:
        return "127.0.0.1", 0, "127.0.0.1"
    address, _, port = given.rpartition(":")
    # in a network namespace of its own, a task listens on the port inside, and is reached on the host's
    inside = environ.get("NOMAD_ALLOC_PORT_stream") or environ.get("NOMAD_PORT_stream") or port
    return "0.0.0.0", int(inside), address.strip("[]")  # noqa: S104 - peers need the runner's certificate


async def work(environ: Mapping[str, str]) -> int:
    """Runs a worker. Returns the exit code."""
    session, runner = uuid.uuid4().hex, environ.get("HASHIDRILL_RUNNER", "")
    if not runner:
        sys.stderr.write("HASHIDRILL_RUNNER is not set: a worker is started by a runner\n")
        return FAILED
    identity = Identity.made(f"hashidrill worker {session}")
    address, port, told = place(environ)
    parent = environ.get("NOMAD_SECRETS_DIR") or None
    with tempfile.TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-", dir=parent) as folder:
        lease_s = float(environ.get("HASHIDRILL_LEASE_S") or LEASE_S)
        worker = Worker(GeneratorProcess.start, session=session, lease_s=lease_s, folder=Path(folder))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.told_to_end)
        server = await asyncio.start_server(worker.serve, address, port, ssl=identity.worker_side(runner))
        listens = server.sockets[0].getsockname()[1]
        introduction = {
            "hashidrill": metadata.version("hashidrill"),
            "protocol": PROTOCOL,
            "session": session,
            "address": told,
            "port": int(environ.get("NOMAD_HOST_PORT_stream") or listens),
            "certificate": identity.certificate,
        }
        sys.stdout.write(json.dumps(introduction) + "\n")
        sys.stdout.flush()
        code = await worker.watch()
        server.close()
    if worker.why:
        sys.stderr.write(worker.why + "\n")
    return code


def main() -> int:
    return uvloop.run(work(os.environ))


if __name__ == "__main__":
    sys.exit(main())
