"""How long `hashidrill --help` and `validate` take, beside `chaos --help`, and what the engine adds to a run's waits.

    pytest -m bench -s tests/bench/test_bench_start.py

Start: each command in turn, so that what the machine does meanwhile falls on all of them; median of 15. Python writes
compiled files once and reads them ever after; where it may not (PYTHONDONTWRITEBYTECODE, some containers) it compiles
all it imports at each start. Both are measured. Chaos Toolkit is installed by uv, into an environment that is thrown
away.

Engine: a run of one `noop` on one server, less the waits that its YAML asks for, now and at commit BEFORE, in pairs
whose order alternates (A B B A); wall time, CPU time, and where the time goes by the phases of the journal. `ready` is
left out of the sum: it is Consul's election, whose timeout Consul draws by lot.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from itertools import pairwise

import psutil
import pytest

import places

pytestmark = pytest.mark.bench

ROUNDS = 15
PAIRS = 5
BEFORE = "3880a35"
"""The last commit before the modules moved into rooms."""
FILE = str(places.ROOT / "experiments/raft/slow-leader-disk.yaml")
OURS = [sys.executable, "-c", "import sys; sys.argv[0] = 'hashidrill'; from hashidrill.faces.cli import main; main()"]
WAITS_S = 6.0
MINIMAL = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: minimal, title: Nothing happens, why: To see what a run costs besides its own waits}
datacenter: {consul: {version: "1.22.2", servers: 1, clients: 0, config: {performance: {raft_multiplier: 1}}}}
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


def phases(runs_dir, began, ended):
    """Seconds of each part of the newest run: until its journal begins, its phases, and from its end to its exit."""
    journal = max(runs_dir.glob("*/journal.jsonl"), key=lambda path: path.stat().st_mtime)
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    marks = [("launch", began)]
    marks += [(entry["phase"], entry["wall"]) for entry in entries if entry["event"] == "phase"]
    marks += [("judge and report", next(entry["wall"] for entry in entries if entry["event"] == "end")), ("", ended)]
    return {name: after - at for (name, at), (_, after) in pairwise(marks)}


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
    roots = {"before": before, "now": places.ROOT}
    walls: dict[str, list[float]] = {name: [] for name in roots}
    cpus: dict[str, list[float]] = {name: [] for name in roots}
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in roots}
    for number in range(PAIRS + 1):
        for name in list(roots) if number % 2 else reversed(roots):
            environment = {**os.environ, "PYTHONPATH": str(roots[name] / "runners"), "PYTHONDONTWRITEBYTECODE": ""}
            environment["PYTHONPYCACHEPREFIX"] = str(tmp_path / f"pyc-{name}")
            runs_dir, began = tmp_path / f"runs-{name}", time.time()
            wall, cpu = seconds([*OURS, "run", "--plain", "--runs", str(runs_dir), str(file)], environment, tmp_path)
            if number:  # the first one compiles
                parts[name].append(phases(runs_dir, began, time.time()))
                walls[name].append(wall - WAITS_S - parts[name][-1]["ready"])
                cpus[name].append(cpu)
    print(f"\n{psutil.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; {PAIRS} pairs")
    for name in roots:
        spread = ", ".join(f"{one:.2f}" for one in sorted(walls[name]))
        print(
            f"{name:<7} outside of the waits {statistics.median(walls[name]):.2f} s ({spread}), "
            f"CPU {statistics.median(cpus[name]):.2f} s"
        )
        for part in parts[name][0]:
            print(f"    {part:<18}{statistics.median(each[part] for each in parts[name]):6.2f} s")
    more = [now - then for then, now in zip(walls["before"], walls["now"], strict=True)]
    print(f"now less before, of each pair: {', '.join(f'{each:+.2f}' for each in more)} s")
