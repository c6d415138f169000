"""`.ci/fresh` starts commands that take minutes: whoever ends it ends them, and nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import anyio
import pytest

from hashidrill.util.wait import wait_until

FRESH = Path(__file__).parents[2] / ".ci" / "fresh"
UV = """#!/usr/bin/env bash
if [ "$2" = --no-project ]; then echo "$TOLD/bin/uv"; exit; fi
trap 'echo "told: $*" >> "$TOLD/told"; exit 5' TERM
echo $$ > "$TOLD/pid"
while :; do sleep 0.1; done
"""
"""In place of uv: says where it is, and then runs until it is told to end."""


@pytest.fixture
def fresh(tmp_path):
    """A `.ci/fresh` whose command runs, and the folder in which it works."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(UV)
    (tmp_path / "bin" / "uv").chmod(0o755)
    (tmp_path / "tmp").mkdir()
    environment = {
        **os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp"),
        "TOLD": str(tmp_path),
    }  # fmt: skip
    # a shell that ignores SIGHUP (nohup) would have the script ignore it
    command = ["env", "--default-signal=HUP,TERM", FRESH, "both"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:

            async def runs():
                return ((tmp_path / "pid").exists() or None), f"exit code {process.poll()}"

            anyio.run(lambda: wait_until("the command that it starts", runs, within_s=60, gap_s=0.05))
            yield process, tmp_path
        finally:
            process.kill()
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_goes_on_to_the_command_and_nothing_is_left(fresh, number):
    process, place = fresh
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert (place / "told").read_text() == "told: run hashidrill demo\n"
    assert "exit code 5" in said
    assert "pytest" not in said, "the second command was started all the same"
    assert process.returncode == 143
    assert list((place / "tmp").iterdir()) == []
