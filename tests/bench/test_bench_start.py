"""How long `hashidrill --help` and `validate` take, beside `chaos --help`, and what the engine adds to a run's waits.

    pytest -m bench -s tests/bench/test_bench_start.py

Start: each command in turn, so that what the machine does meanwhile falls on all of them; median of 15. Python writes
compiled files once and reads them ever after; where it may not (PYTHONDONTWRITEBYTECODE, some containers) it compiles
all it imports at each start. Both are measured. Chaos Toolkit is installed by uv, into an environment that is thrown
away.

Engine: a run of one `noop` on one server, less the waits that its YAML asks for, now and at commit BEFORE.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time

import psutil
import pytest

import places

pytestmark = pytest.mark.bench

ROUNDS = 15
RUNS = 4
BEFORE = "3880a35"
"""The last commit before the modules moved into rooms."""
FILE = str(places.ROOT / "experiments/raft/slow-leader-disk.yaml")
OURS = [sys.executable, "-c", "import sys; sys.argv[0] = 'hashidrill'; from hashidrill.cli import main; main()"]
WAITS_S = 6.0
MINIMAL = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: minimal, title: Nothing happens, why: To see what a run costs besides its own waits}
datacenter: {consul: {version: "1.22.2", servers: 1, clients: 0}}
load:
  w: {kind: consul.kv.write, rate: 20/s, keys: 10, value: 64B}
steady_state: {for: 2s, require: ["w.errors < 50%"]}
method: [{fault: noop, on: "consul:leader", for: 2s}]
recovery: {for: 2s}
expect: [{no_acknowledged_write_lost: {load: w}}]
"""


@pytest.fixture(scope="module")
def chaos(tmp_path_factory):
    """`chaos`, of Chaos Toolkit."""
    if (uv := shutil.which("uv")) is None:
        pytest.skip("there is no uv to install Chaos Toolkit with")
    place = tmp_path_factory.mktemp("chaos") / "venv"
    for command in (
        [uv, "venv", "-q", str(place)],
        [uv, "pip", "install", "-q", "--python", str(place), "chaostoolkit"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"Chaos Toolkit cannot be had here: {done.stderr.strip()[-300:]}")
    return str(place / "bin" / "chaos")


def seconds(command, environment, cwd):
    """Wall time, and CPU time of the process and its children."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, capture_output=True, timeout=300, check=True, env=environment, cwd=cwd)
    wall, after = time.perf_counter() - began, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled once", "compiled at each start"])
def test_start(chaos, compiled, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(places.ROOT / "runners"),
        "PYTHONPYCACHEPREFIX": str(tmp_path / "pyc"),
    }
    environment["PYTHONDONTWRITEBYTECODE"] = "" if compiled else "1"
    commands = {
        "hashidrill --help": [*OURS, "--help"],
        "hashidrill validate": [*OURS, "validate", FILE],
        "chaos --help": [chaos, "--help"],
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for command in commands.values():
        seconds(command, environment, tmp_path)  # compiles, and fills the page cache
    for _ in range(ROUNDS):
        for name, command in commands.items():
            taken[name].append(seconds(command, environment, tmp_path))
    beside = statistics.median(wall for wall, _ in taken["chaos --help"])
    how = "compiled once" if compiled else "compiled at each start"
    print(f"\n{psutil.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {how}")
    for name, pairs in taken.items():
        walls, cpus = zip(*pairs, strict=True)
        median = statistics.median(walls)
        print(
            f"{name:<20} {median:.3f} s (least {min(walls):.3f}), CPU {statistics.median(cpus):.3f} s, "
            f"{median / beside:.2f} times chaos --help"
        )


@pytest.mark.live
@pytest.mark.needs("consul 1.22.2")
def test_what_the_engine_adds_to_the_waits_of_a_run(tmp_path):
    before = tmp_path / "before"
    before.mkdir()
    archive = subprocess.run(["git", "archive", BEFORE], capture_output=True, cwd=places.ROOT, check=False)
    if archive.returncode:
        pytest.skip(f"commit {BEFORE} is not in this clone")
    subprocess.run(["tar", "-x", "-C", str(before)], input=archive.stdout, check=True)
    file = tmp_path / "minimal.yaml"
    file.write_text(MINIMAL)
    taken: dict[str, list[float]] = {"before": [], "now": []}
    for number in range(RUNS + 1):
        for name, root in (("before", before), ("now", places.ROOT)):
            environment = {**os.environ, "PYTHONPATH": str(root / "runners"), "PYTHONDONTWRITEBYTECODE": ""}
            environment["PYTHONPYCACHEPREFIX"] = str(tmp_path / f"pyc-{name}")
            wall, _ = seconds([*OURS, "run", "--plain", str(file)], environment, tmp_path)
            if number:  # the first one compiles
                taken[name].append(wall - WAITS_S)
    print(f"\n{psutil.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; seconds outside of the waits")
    for name, each in taken.items():
        print(f"{name:<7} median {statistics.median(each):.2f} ({', '.join(f'{one:.2f}' for one in sorted(each))})")
