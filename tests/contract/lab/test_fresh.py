"""`.ci/fresh` runs commands that take minutes, on a machine without tools. A signal ends them, and nothing stays."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from hashidrill.core.util.wait import wait_until

FRESH = Path(__file__).parents[3] / ".ci" / "fresh"
HANGS = """#!/usr/bin/env bash
trap 'echo "told: $*" >> "$TOLD/told"; exit 5' TERM
echo $$ > "$TOLD/pid"
while :; do sleep 0.1; done
"""
"""In place of uv: runs until it is told to end."""
LOOKS = """#!/usr/bin/env bash
echo "by $(id -un), at home in $HOME"
for name in strace wrk tc curl nft; do command -v "$name" && echo "there is $name"; done
echo "CI=$CI terminal=$([ -t 0 ] && echo yes || echo no)"
if [ -t 0 ]; then
    printf 'may I? [y/N] ' > /dev/tty
    read -r answer < /dev/tty
    echo "answer=$answer"
    [ "$TWICE" != yes ] || { printf 'sure? [y/N] ' > /dev/tty; read -r answer < /dev/tty; }
fi
sudo -n true && echo "may use sudo"
touch /usr/bin/left-by-fresh /tmp/left-by-fresh
(sleep 1000 &)
exit 0
"""
"""In place of uv: says what a command finds, and leaves something behind."""

WAYS = {
    "root/none": ("root", "no", False),
    "root/terminal": ("root", "yes", False),
    "user/none": ("hashidrill-fresh", "no", False),
    "user/terminal": ("hashidrill-fresh", "yes", True),
}
"""Who runs the commands, whether on a terminal, and whether they have sudo."""


@pytest.fixture
def fresh(tmp_path):
    """`fresh(uv, *arguments)`: the process, with this script in place of uv."""
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "UV": str(tmp_path / "uv"), "TMPDIR": str(tmp_path / "tmp"), "TOLD": str(tmp_path)}
    started = []

    def start(uv, *arguments, **more):
        (tmp_path / "uv").write_text(uv)
        (tmp_path / "uv").chmod(0o755)
        # a shell that ignores SIGHUP (nohup) would have the script ignore it
        command = ["env", "--default-signal=HUP,TERM", sys.executable, FRESH, *arguments]
        started.append(
            subprocess.Popen(
                command, env=environment | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_goes_on_to_the_command_and_nothing_is_left(fresh, number, tmp_path):
    process = fresh(HANGS, "--as-is")

    async def runs():
        return ((tmp_path / "pid").exists() or None), f"exit code {process.poll()}"

    anyio.run(lambda: wait_until("the command that it starts", runs, within_s=60, gap_s=0.05))
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert (tmp_path / "told").read_text() == "told: run hashidrill demo\n"
    assert "exit code 5" in said
    assert "pytest" not in said, "the second command was started all the same"
    assert process.returncode == 143
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="another root file system takes root")
@pytest.mark.may_skip("as an ordinary user, .ci/fresh hides nothing")
@pytest.mark.needs("strace")
@pytest.mark.parametrize("way", WAYS)
def test_each_way_finds_a_bare_machine_and_leaves_this_one_as_it_was(fresh, tmp_path, way):
    who, terminal, sudo = WAYS[way]
    assert shutil.which("strace")
    process = fresh(LOOKS, "--way", way, CI="true", TWICE="no")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert said.count(f"by {who}, at home in {tmp_path}/tmp/") == 2
    assert "there is" not in said
    assert f"CI= terminal={terminal}" in said
    assert said.count("answer=y") == (2 if terminal == "yes" else 0)
    assert ("may use sudo" in said) == sudo
    assert f"{way}: demo: exit code 0 after " in said.splitlines()[-2]
    assert shutil.which("strace")
    assert not Path("/usr/bin/left-by-fresh").exists()
    assert not Path("/tmp/left-by-fresh").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert "fresh" not in Path("/proc/mounts").read_text()


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="another root file system takes root")
@pytest.mark.may_skip("as an ordinary user, .ci/fresh hides nothing")
def test_who_is_asked_more_than_once_was_not_asked_once(fresh):
    """`read` twice, as for each tool."""
    process = fresh(LOOKS, "--way", "root/terminal", TWICE="yes")
    said, _ = process.communicate(timeout=300)
    assert "demo: exit code 0 after " in said
    assert "2 questions" in said
    assert process.returncode == 1
