"""What one of our processes hands to the next: nobody else can read it, and it goes no further."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hashidrill.core.util.files import private
from hashidrill.core.util.processes import python_path
from hashidrill.lab.sandbox.sandbox import handed_over
from hashidrill.lab.up.running import RunningDatacenter, remember

SECRET = "s3cret-handed-over"
CHILD = """
import json, subprocess, sys
from hashidrill.lab.sandbox.sandbox import read_given
given = read_given()
inherited = subprocess.run([sys.executable, "-c", "import sys; print(len(sys.stdin.read()))"], capture_output=True)
print(json.dumps({"given": given, "left": sys.stdin.read(), "inherited": inherited.stdout.decode()}))
"""


@pytest.mark.lie
def test_a_specification_reaches_the_process_and_stands_in_no_command_line_or_environment():
    given = {"token": SECRET, "much": "x" * 300_000}  # more than a pipe holds: nobody has to write while we wait
    with handed_over(given) as stdin:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=stdin,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        for file in ("cmdline", "environ"):
            assert SECRET.encode() not in Path(f"/proc/{child.pid}/{file}").read_bytes()
    answer = json.loads(child.communicate(timeout=30)[0])
    assert answer == {"given": given, "left": "", "inherited": "0\n"}


def test_nothing_to_hand_over_is_an_empty_input():
    with handed_over(None) as stdin:
        assert stdin == subprocess.DEVNULL


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_private_file_is_for_its_owner_alone_even_when_it_was_there_before(tmp_path, mode):
    path = tmp_path / "engine.log"
    path.write_text("before\n")
    path.chmod(0o644)
    with private(path, mode) as file:
        file.write(b"now\n")
    assert path.read_text() == ("now\n" if mode == "wb" else "before\nnow\n")
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_stands_is_remembered_for_its_owner_alone(tmp_path):
    remember(RunningDatacenter("default", 1, 1, "/r", "/c", "1.22.2", "", []), tmp_path / "default.json")
    assert (tmp_path / "default.json").stat().st_mode & 0o777 == 0o600
