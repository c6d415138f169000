"""What `--help` and `validate` do not import: each of these takes a tenth of a second, or leads to what does."""

import json
import os
import subprocess
import sys

import pytest

from hashidrill.gamedays.history.store import opened
from places import ROOT

FILE = "experiments/raft/slow-leader-disk.yaml"
RUNS = {"hashidrill.core.engine.run", "hashidrill.lab.runs.launch", "hashidrill.lab.local.datacenter"}
SLOW = {"httpx2", "numpy", "pyroute2", "trustme", "uvloop", "msgpack", "pytest", "psutil", "sqlite3", *RUNS}
NOT_FOR_HELP = SLOW | {
    "asyncio",
    "anyio",
    "pydantic",
    "ruamel.yaml",
    "rich",
    "hashidrill.core.protocols.service",
    "hashidrill.core.hypothesis",
}
NOT_FOR_VALIDATE = SLOW | {
    "anyio",
    "asyncio",
    "httptools",
    "rich",
    "ssl",
    "statistics",
    "hashidrill.core.loads.connection",
    "hashidrill.products.consul.faults.snapshot",
}
COMMAND = "from hashidrill.faces.cli import main; main()"
LOADED = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps([n for n, m in sys.modules.items() if getattr(m, "__spec__", None)])))
"""


BEYOND_TYPER = {("--help",): 75, ("list",): 180, ("validate", FILE): 260}
"""How many modules a command may import that `import typer` does not: what starts more slowly has more of them."""


def start(*arguments, first=""):
    """What the command wrote, and the modules that were loaded in the end. Placeholders of `later` have no spec."""
    code = f"{LOADED}\nimport sys; sys.argv = {['hashidrill', *arguments]!r}\n{first}\n{COMMAND}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "runners"), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    *said, modules = done.stdout.splitlines()
    return "\n".join(said), set(json.loads(modules))


def test_help_names_every_command_and_imports_none():
    said, loaded = start("--help")
    assert "without running anything" in said  # of validate, whose module is not imported
    assert loaded & NOT_FOR_HELP == set()
    assert {name for name in loaded if name.startswith("hashidrill.faces.cli.")} == {
        "hashidrill.faces.cli.app",
        "hashidrill.faces.cli.commands",
        "hashidrill.faces.cli.output",
    }


@pytest.mark.parametrize("arguments", BEYOND_TYPER, ids=" ".join)
def test_a_command_starts_as_quickly_as_before(arguments):
    _, loaded = start(*arguments)
    code = "import sys, typer, json; print(json.dumps([*sys.modules]))"
    bare = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert len(loaded - {*bare}) <= BEYOND_TYPER[arguments]


def test_a_list_imports_nothing_that_reads_experiments():
    _, loaded = start("list")
    assert loaded & (SLOW | {"asyncio", "anyio", "rich", "hashidrill.core.experiment.model"}) == set()


def test_a_list_of_the_history_imports_nothing_that_measures(tmp_path):
    with opened(tmp_path / "history.sqlite"):
        pass
    said, loaded = start("history", "list", "--db", str(tmp_path / "history.sqlite"))
    assert "no run of" in said
    assert loaded & {"numpy", "rich", "anyio", "httpx2", "hashidrill.core.hypothesis"} == set()


@pytest.mark.parametrize(
    "line", ["hashidrill ", "hashidrill run raft/f", "hashidrill show disk.", "hashidrill lab shell c"]
)
def test_a_shell_that_completes_waits_for_no_command(line, monkeypatch):
    monkeypatch.setenv("_HASHIDRILL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    _, loaded = start()
    assert loaded & NOT_FOR_HELP == set()
    assert len(loaded) < 270


def test_validate_imports_only_what_the_experiment_names():
    said, loaded = start("validate", FILE)
    assert said == f"ok  {FILE}"
    assert loaded & NOT_FOR_VALIDATE == set()
    faults = {name for name in loaded if name.startswith("hashidrill.core.faults.")}
    assert "hashidrill.core.faults.disk" in faults
    assert (
        faults & {"hashidrill.core.faults.toxics", "hashidrill.core.faults.process", "hashidrill.core.faults.cpu"}
        == set()
    )
    loads = {name for name in loaded if name.startswith("hashidrill.products.consul.loads.")}
    assert "hashidrill.products.consul.loads.kv" in loads
    assert loads & {f"hashidrill.products.consul.loads.{name}" for name in ("cas", "locks", "views", "watch")} == set()
    assert {name for name in loaded if name.startswith("hashidrill.products.") and name.endswith(".service")} == {
        "hashidrill.products.consul.service"
    }
    assert sum(name.startswith("_hashidrill_hypotheses_") for name in loaded) <= 3


def test_validate_reads_the_entry_points_of_what_is_installed_once():
    """pydantic reads them once more, for plugins of its own."""
    first = """
import importlib.metadata as metadata
read, reads = metadata.entry_points, []
metadata.entry_points = lambda **select: (reads.append(sys._getframe(1).f_globals["__name__"]), read(**select))[1]
atexit.register(lambda: print(*(name for name in reads if name.startswith("hashidrill."))))
"""
    said, _ = start("validate", FILE, first=first)
    assert said == f"ok  {FILE}\nhashidrill.core.protocols.registry"


@pytest.mark.long
@pytest.mark.parametrize("module", sorted(SLOW | NOT_FOR_VALIDATE))
def test_one_that_is_imported_all_the_same_is_seen(module):
    """Planted."""
    _, loaded = start("--version", first=f"import {module}")
    assert module in loaded


def test_what_was_put_off_is_there_when_it_is_used():
    put_off = "from hashidrill.core.util.lazy import later; later('numpy')"
    first = f"{put_off}\nimport numpy as np\nassert np.arange(3).sum() == 3"
    _, loaded = start("--version", first=first)
    assert "numpy" in loaded
