"""The engine beside its runner: gets its secrets unseen, and reverts before it ends, also when the runner is killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hashidrill.core.util.processes import python_path
from hashidrill.staging.runs.launch_attached import beside_us
from polled import wait

SECRET = "8f5c1a52-token-of-nobody-9c2d"
WITHIN_S = 30.0
ENGINE = """
import sys, anyio
from pathlib import Path
from hashidrill.lab.runs.engine_process import cancelled_when_told
from hashidrill.lab.sandbox.sandbox import read_given

given = read_given()
file = Path(given["file"])

async def main():
    async with cancelled_when_told(given["lifeline"]):
        file.write_text("in force " + given["token"][:4])
        try:
            await anyio.sleep(given["for_s"])
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.3)
                file.write_text("reverted")

anyio.run(main)
"""
RUNNER = """
import os, sys, json
from pathlib import Path
from hashidrill.staging.runs.launch_attached import beside_us
from hashidrill.core.util.processes import python_path

lifeline, ours = os.pipe()
given = json.load(sys.stdin) | {"lifeline": lifeline}
environment = {**os.environ, "PYTHONPATH": python_path()}
command = [sys.executable, "-c", given.pop("engine"), "{root}"]
with beside_us(command, environment, Path(given["file"] + ".log"), given=given, keep=lifeline) as box:
    print(box.process.pid, flush=True)
    box.process.wait()
"""


def said(file):
    return file.read_text() if file.exists() else ""


def gone(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.long
def test_an_engine_whose_runner_is_killed_reverts_and_ends(tmp_path):
    file = tmp_path / "state"
    given = json.dumps({"file": str(file), "token": SECRET, "for_s": 600, "engine": ENGINE})
    environment = {**os.environ, "PYTHONPATH": python_path()}
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    with runner:
        runner.stdin.write(given)
        runner.stdin.close()
        engine = int(runner.stdout.readline())
        wait("the engine to begin", lambda: said(file) == "in force 8f5c")
        for pid in (engine, runner.pid):
            for name in ("cmdline", "environ"):
                with open(f"/proc/{pid}/{name}", "rb") as seen:  # noqa: PTH123 - of a process that may end
                    assert SECRET.encode() not in seen.read()
        runner.send_signal(signal.SIGKILL)
    wait("the engine to revert", lambda: said(file) == "reverted")
    wait("the engine to end", lambda: gone(engine))


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, None], ids=["SIGINT", "SIGTERM", "its runner leaves"]
)
def test_an_engine_that_is_told_to_end_or_whose_runner_leaves_reverts_first(tmp_path, number):
    file = tmp_path / "state"
    lifeline, ours = os.pipe()
    given = {"file": str(file), "token": SECRET, "for_s": 600, "lifeline": lifeline}
    environment = {**os.environ, "PYTHONPATH": python_path()}
    with beside_us([sys.executable, "-c", ENGINE], environment, tmp_path / "log", given=given, keep=lifeline) as box:
        wait("the engine to begin", lambda: said(file).startswith("in force"))
        if number is not None:
            box.process.send_signal(number)
            box.process.wait(WITHIN_S)
        os.close(ours)
    os.close(lifeline)
    assert (said(file), box.process.returncode) == ("reverted", 0)
