"""A private Consul server on free loopback ports, with its data in a private directory, removed afterwards."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2

from hashidrill.core.errors import DatacenterError, WaitTimeoutError
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.sandbox.sandbox import work_parent

_READY_WITHIN_S = 30.0
_LOG_LINES = 5
_RUNNERS = str(Path(__file__).parents[3])
_DIES_WITH_US = """
import os, sys
sys.path.insert(0, sys.argv[1])
from hashidrill.core.util.syscalls import die_with_parent
die_with_parent(int(sys.argv[2]))
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the agent, which the kernel kills when hashidrill ends in any way."""


@contextlib.asynccontextmanager
async def private_consul(binary: Path) -> AsyncIterator[str]:
    """Yields the URL of the server's HTTP API once it accepts a write. Raises DatacenterError with the log's end."""
    folder = Path(tempfile.mkdtemp(prefix="hashidrill-retry-", dir=work_parent()))
    try:
        ports = dict(zip(("http", "serf_lan", "server"), _free_ports(3), strict=True))
        config = {
            "server": True,
            "bootstrap_expect": 1,
            "node_name": "behind-the-tap",
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "data_dir": str(folder / "data"),
            "log_level": "warn",
            "ports": {**ports, "dns": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1},
            "performance": {"raft_multiplier": 1},
            "disable_update_check": True,
        }
        (folder / "consul.json").write_text(json.dumps(config))
        log = folder / "consul.log"
        with log.open("wb") as output:
            # a separate session: Ctrl-C reaches only hashidrill, which then ends the command
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                "-c",
                _DIES_WITH_US,
                _RUNNERS,
                str(os.getpid()),
                binary,
                "agent",
                f"-config-file={folder / 'consul.json'}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        # `hashidrill heal` removes such a directory only if its process is gone
        (folder / "pid").write_text(str(process.pid))
        try:
            url = f"http://127.0.0.1:{ports['http']}"
            await _ready(url, process, log)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _ready(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with httpx2.AsyncClient(timeout=2, trust_env=False) as client:

        async def accepts_a_write() -> tuple[bool | None, str]:
            if process.returncode is not None:
                raise DatacenterError(f"consul ended with status {process.returncode}: {_tail(log)}")
            try:
                reply = await client.put(f"{url}/v1/kv/hashidrill/ready", content=b"yes")
            except httpx2.HTTPError as error:
                return None, str(error) or type(error).__name__
            return (True if reply.status_code == 200 else None), reply.text[:100]

        try:
            await wait_until("consul to accept a write", accepts_a_write, within_s=_READY_WITHIN_S)
        except WaitTimeoutError as error:
            raise DatacenterError(f"{error}; its log ends: {_tail(log)}") from None


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return " | ".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
    return "it has no log"


def _free_ports(count: int) -> list[int]:
    """Ports that are free for TCP and UDP now. Holds all of them at the same time, so that no port appears twice."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            tcp = held.enter_context(socket.socket())
            tcp.bind(("127.0.0.1", 0))
            port = tcp.getsockname()[1]
            udp = held.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            with contextlib.suppress(OSError):
                udp.bind(("127.0.0.1", port))
                ports.append(port)
        return ports
