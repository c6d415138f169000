"""The contract of imports holds, and an import that goes up breaks it."""

import os
import subprocess
import sys

import pytest

from places import ROOT

CONTRACT = "[tool.importlinter]" + (ROOT / "pyproject.toml").read_text().partition("[tool.importlinter]")[2]


def lint(folder, text):
    """(exit code, what it said) of import-linter with that contract."""
    config = folder / "pyproject.toml"
    config.write_text(text)
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "runners")}
    done = subprocess.run(
        [*command, "--config", config, "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=120,
        env=environment,
    )
    return done.returncode, done.stdout + done.stderr


def test_imports_go_down(tmp_path):
    assert lint(tmp_path, CONTRACT)[0] == 0


@pytest.mark.lie
@pytest.mark.parametrize(
    ("true", "planted", "named"),
    [
        (
            '    "lab",\n    "core",\n',
            '    "core",\n    "lab",\n',
            "lab is not allowed to import hashidrill.core",
        ),
        ('    "staging | clients",\n', '    "clients",\n', "hashidrill.staging"),  # a room without a floor
    ],
)
def test_an_import_that_goes_up_and_a_room_without_a_floor_are_seen(tmp_path, true, planted, named):
    assert true in CONTRACT
    code, said = lint(tmp_path, CONTRACT.replace(true, planted))
    assert code == 1
    assert named in said
