"""The battery's own Consul ends with the process that started it, however; heal knows a dead one from a live one."""

import subprocess
import sys

import anyio
import pytest

from hashidrill.core.util.syscalls import process_state
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.runs import heal
from hashidrill.lab.sandbox.sandbox import work_parent

pytestmark = pytest.mark.live
OWNER = """
import asyncio, sys
from pathlib import Path
from hashidrill.clients.retry.private_consul import private_consul
async def hold():
    async with private_consul(Path(sys.argv[1])):
        print("up", flush=True)
        await asyncio.Event().wait()
asyncio.run(hold())
"""


def test_it_dies_with_its_owner_and_heal_removes_its_directory_only_then(consul):
    before = set(work_parent().glob("hashidrill-retry-*"))
    with subprocess.Popen([sys.executable, "-c", OWNER, str(consul.path)], stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout.readline() == b"up\n"
            [folder] = set(work_parent().glob("hashidrill-retry-*")) - before
            pid = int((folder / "pid").read_text())
            assert folder not in heal.sweep()
            assert folder.is_dir()
        finally:
            owner.kill()

    async def gone():
        return (True if (process_state(pid) or ("Z", 0))[0] == "Z" else None), f"process {pid} runs"

    anyio.run(lambda: wait_until("its Consul to end", gone, within_s=10, gap_s=0.02))
    assert folder in heal.sweep()
