"""How long Nomad takes to start 25 to 200 tasks from nothing, where the time goes, and what 10,000 would take.

    pytest -m bench -s tests/bench/test_bench_cold_start.py

The real starts are whole runs: one job of N replicas on three nodes, which share this machine. The model is fitted to
their parts and simulated (cold_start_model). A node of the model starts as many tasks a second as this whole machine
does, since all of it is what our three nodes have. Figures are printed, not judged by the clock.
"""

import json
import os
import time

import psutil
import pytest

from bench_runs import table
from cold_start_model import Measured, fit, simulate
from drills import Drill
from hashidrill.core.recording.reader import Recording
from hashidrill.products.nomad.loads.replicas import Start

pytestmark = [pytest.mark.bench, pytest.mark.nomad, pytest.mark.live, pytest.mark.needs("datacenter", "nomad")]
SIZES = (25, 50, 100, 200)
SIMULATED = (200, 1_000, 10_000)
NODES = (3, 30, 300)


def measured(path, tasks):
    document = {
        "apiVersion": "hashidrill/v1",
        "kind": "Experiment",
        "metadata": {"name": f"cold-start-{tasks}", "title": "A cold start", "why": "To see how its time grows"},
        "datacenter": {"nomad": {"version": "1.10.5", "servers": 3, "clients": 3}},
        "load": {"web": {"kind": "nomad.replicas", "count": tasks}},
        "steady_state": {"for": "1s", "within": "280s", "require": [f"web.running >= {tasks}"]},
        "method": [{"mark": "started", "for": "1s"}],
        "recovery": {"for": "1s"},
        "expect": [{"cold_start_within": {"load": "web", "limit": "280s"}}],
    }
    path.write_text(json.dumps(document))
    drill = Drill(path, path.parent / "runs", within_s=400)
    assert drill.exit_code in (0, 3), drill.result  # 3: other work kept the machine busy, which the table says
    ops = Recording(drill.recording).operations("web")
    starts = [Start.of(detail) for detail in ops.details]
    received = [start.evaluation_s + start.plan_s for start in starts]
    started = [at_s + start.start_s for at_s, start in zip(received, starts, strict=True)]
    total_s = float(ops.latency_s.max())
    one = Measured(
        tasks,
        max(start.evaluation_s for start in starts),
        min(start.plan_s for start in starts),
        max(started) - min(received),
        total_s - max(started),
    )
    return one, total_s


def test_what_a_cold_start_takes_and_what_ten_thousand_tasks_would(tmp_path, capsys):
    found = []
    rows = [("tasks", "in all", "evaluation", "plan", "starts", "until known", "load average")]
    for tasks in SIZES:
        one, total_s = measured(tmp_path / f"cold-start-{tasks}.yaml", tasks)
        found.append(one)
        parts = (total_s, one.evaluation_s, one.plan_s, one.starting_s, one.known_s)
        rows.append((str(tasks), *(f"{part:.2f} s" for part in parts), f"{os.getloadavg()[0]:.1f}"))
    model = fit(found)
    day = time.strftime("%Y-%m-%d")
    table(capsys, f"Nomad 1.10.5, 3 servers and 3 nodes on {psutil.cpu_count()} cores, {day}", rows)
    costs = [(name, f"{value:.5g}") for name, value in vars(model).items()]
    table(capsys, "fitted", costs)
    rows = [("tasks, jobs, nodes", "in all", "placed", "evaluations", "plans", "starts", "dominates")]
    for tasks in SIMULATED:
        for jobs in (1, tasks):
            for nodes in NODES:
                one = simulate(model, tasks, nodes=nodes, jobs=jobs, workers=psutil.cpu_count() or 1)
                cells = (one.total_s, one.placed_s, *one.busy_s.values())
                rows.append((f"{tasks}, {jobs}, {nodes}", *(f"{cell:.1f} s" for cell in cells), one.dominates))
    table(capsys, "simulated", rows)
    assert simulate(model, 200, nodes=1).total_s == pytest.approx(found[-1].starting_s, rel=0.5), (
        "the model does not say what was measured"
    )
