"""The wheel, installed alone: every module is importable, and commands and the plugin work far from any checkout."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from places import EXPERIMENTS, ROOT

IMPORT_ALL = """
import importlib, json, pkgutil, hashidrill
from hashidrill.core.util.extras import MissingExtraError
found, failed, extras = [], {}, {}
for module in pkgutil.walk_packages(hashidrill.__path__, "hashidrill."):
    found.append(module.name)
    try:
        importlib.import_module(module.name)
    except MissingExtraError as error:
        extras[module.name] = str(error)
    except Exception as error:
        failed[module.name] = repr(error)
print(json.dumps([hashidrill.__file__, found, failed, extras]))
"""


def run(*command, cwd, env=None):
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """`installed(*command)`: runs a script of an environment with the wheel and no extra."""
    uv = os.environ.get("UV") or shutil.which("uv")
    folder = tmp_path_factory.mktemp("wheel")
    run(uv, "build", "--quiet", "--wheel", "--out-dir", folder / "dist", cwd=ROOT)
    # the versions of the lock, so that a release of today breaks no test; what is asked for, the wheel says
    run(
        uv,
        *shlex.split("export --quiet --frozen --no-emit-project --no-hashes --all-groups --output-file"),
        folder / "versions.txt",
        cwd=ROOT,
    )
    run(uv, "venv", "--quiet", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    [wheel] = (folder / "dist").glob("*.whl")
    run(uv, "pip", "install", "--quiet", "--python", python, "--constraint", folder / "versions.txt", wheel, cwd=folder)
    (folder / "elsewhere").mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST_"))}
    environment |= {"HOME": str(folder)}

    def of(script, *arguments, cwd=folder / "elsewhere", **variables):
        return run(python.with_name(script), *arguments, cwd=cwd, env=environment | variables)

    return of


@pytest.mark.long
def test_every_module_can_be_imported_or_names_the_extra_that_it_needs(installed):
    where, found, failed, extras = json.loads(installed("python", "-c", IMPORT_ALL))
    assert "/elsewhere" not in where
    assert "/venv/" in where
    assert failed == {}
    assert {text.partition("pip install ")[2] for text in extras.values()} == {
        f"'hashidrill[{name}]'" for name in ("kubernetes", "metrics", "otel", "page", "ssh")
    }
    assert not {
        name for name in extras if name.startswith(("hashidrill.core.", "hashidrill.lab.", "hashidrill.faces."))
    }
    sources = (ROOT / "runners" / "hashidrill").rglob("*.py")
    assert len(found) == sum(1 for each in sources if each.parent.name != "hashidrill" or each.name != "__init__.py")


@pytest.mark.long
def test_the_library_the_training_and_a_new_experiment_are_there(installed):
    listed = json.loads(installed("hashidrill", "list", "--json"))
    assert len(listed) > 50
    names = {path.relative_to(EXPERIMENTS).with_suffix("").as_posix() for path in EXPERIMENTS.rglob("*.yaml")}
    assert {row["name"] for row in listed} <= names
    installed("hashidrill", "validate", "raft/slow-leader-disk")
    assert "first" in installed("hashidrill", "train", "--list")
    installed("hashidrill", "new", "mine.yaml")
    assert "mine.yaml" in installed("hashidrill", "validate", "mine.yaml")
    assert "$schema" not in installed("hashidrill", "show", "./mine.yaml")


@pytest.mark.long
def test_the_plugin_collects_experiments_there(installed):
    installed("hashidrill", "new", "collected.yaml")
    assert "writes_recover" in installed("pytest", "--collect-only", "-q", "collected.yaml")


@pytest.mark.long
def test_what_init_writes_is_right_there_and_all_that_ships_is_found_by_name(installed, tmp_path):
    installed("hashidrill", "init", cwd=tmp_path)
    right = installed(
        *("hashidrill", "validate", "experiments/first-experiment.yaml", "playbooks/game-day.yaml"),
        *("first-game-day", "runbook-slow-leader.md", "training/first"),
        cwd=tmp_path,
    )
    assert right.count("ok  ") == 5
    for words in (
        ["our-killed-leader", "--from", "raft/killed-leader"],
        ["gameday", "spring"],
        ["runbook", "disk"],
        ["hypothesis", "ours"],
        ["fault", "ours"],
    ):
        installed("hashidrill", "new", *words, cwd=tmp_path)
    installed("pytest", "-q", "tests", cwd=tmp_path)


@pytest.mark.long
@pytest.mark.needs("consul 1.22.2")
def test_init_and_run_in_an_empty_folder_pass_and_so_does_its_game_day(installed, binary, tmp_path):
    binary("consul", "1.22.2")
    cache = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")}
    installed("hashidrill", "init", cwd=tmp_path)
    [result] = json.loads(installed("hashidrill", "run", "--json", cwd=tmp_path, **cache))
    assert result["verdict"] == "PASS"
    assert "nobody_waits_longer_than" in json.dumps(result)
    installed("hashidrill", "gameday", "run", "playbooks/game-day.yaml", "--yes", cwd=tmp_path, **cache)
