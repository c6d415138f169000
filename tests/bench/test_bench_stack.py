"""The full stack up, in use and down again: seconds, memory, what is left.

    pytest -m bench -s tests/bench/test_bench_stack.py

As root and as an ordinary user, ROUNDS times. Memory is PSS: what processes share is divided among them. It is read
once all three products were used.
"""

import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import pytest

from bench_runs import table
from drills import environment
from drills import hashidrill as command_line
from full_stack import FLAGS, Stack, memory_mb
from hashidrill.lab.provision.products import VAULT_VERSION
from hashidrill.lab.sandbox.sandbox import work_parent
from leaks import VARIABLE, Ground
from ordinary_user import ordinary_user

pytestmark = [
    pytest.mark.bench,
    pytest.mark.needs("datacenter", "nomad", f"vault {VAULT_VERSION}", "consul 1.22.2"),
]
ROUNDS = int(os.environ.get("HASHIDRILL_BENCH_ROUNDS", "10"))
_GONE_WITHIN_S = 10


def one_round(call, work, ground):
    """One figure a round: seconds to ready, seconds of use, seconds to down, memory, and what was left."""
    began = time.monotonic()
    done = call("lab", "up", "--json", *FLAGS)
    ready_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    try:
        Stack(call).use()
        use_s = time.monotonic() - began - ready_s
        memory = memory_mb(work)
    finally:
        began = time.monotonic()
        down = call("lab", "down")
        down_s = time.monotonic() - began
    assert down.returncode == 0, down.stderr
    left = ground.left_after(_GONE_WITHIN_S)
    assert left == []
    return {"ready_s": round(ready_s, 1), "use_s": round(use_s, 1), "down_s": round(down_s, 1), "memory_mb": memory}


def noted(figure, capsys):
    """Printed at once: a series that is interrupted has shown what it measured."""
    with capsys.disabled():
        print(f"\n  {json.dumps(figure)}", end="", flush=True)
    return figure


def told(capsys, title, ours):
    def row(name, values):
        return (name, f"{statistics.median(values):.1f}", f"{min(values):.1f} to {max(values):.1f}")

    ready, memory = [one["ready_s"] for one in ours], [one["memory_mb"]["all"] for one in ours]
    rows = [
        row("seconds to ready", ready),
        row("seconds of use", [one["use_s"] for one in ours]),
        row("seconds to down", [one["down_s"] for one in ours]),
        row("memory in MB (PSS)", memory),
        ("of it, by program", json.dumps(ours[-1]["memory_mb"]), ""),
    ]
    table(capsys, f"{title}: {len(ours)} times, nothing left after each (median, range)", rows)
    assert all(value > 0 for value in (*ready, *memory))


@pytest.mark.skipif(os.geteuid() != 0, reason="measured as the ordinary user that we are, below")
def test_the_full_stack_as_root(tmp_path, capsys):
    work = Path(tempfile.mkdtemp(prefix="hdt-stack-", dir=work_parent().parent))
    env = environment(XDG_STATE_HOME=tmp_path / "state", **{VARIABLE: work})
    ground = Ground(work)
    ours = []
    try:
        call = lambda *words: command_line(*words, env=env)  # noqa: E731 - a command in that environment
        ours.extend(noted(one_round(call, work, ground), capsys) for _ in range(ROUNDS))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    told(capsys, "full stack as root", ours)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user, which takes root")
@pytest.mark.needs("setpriv")
def test_the_full_stack_as_an_ordinary_user(binary, capsys):
    ours = []
    with ordinary_user(*(binary(name) for name in ("consul", "nomad", "vault"))) as user:
        ours.extend(noted(one_round(user, user.work, user.ground), capsys) for _ in range(ROUNDS))
    told(capsys, "full stack as an ordinary user", ours)
