"""The full stack up, in use and down again: seconds, memory, what is left; beside the same agents started by hand.

    pytest -m bench -s tests/bench/test_bench_stack.py

As root and as an ordinary user, ROUNDS times; the first PAIRS times in turn with the agents by hand. Memory is PSS:
what processes share is divided among them. It is read once all three products were used; by hand, once they are ready.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import hashidrill
import places
from bench_runs import table
from drills import environment
from drills import hashidrill as command_line
from full_stack import FLAGS, Stack, memory_mb
from hashidrill.lab.provision import binaries
from hashidrill.lab.provision.products import VAULT_VERSION
from hashidrill.lab.sandbox.sandbox import work_parent
from leaks import VARIABLE, Ground
from ordinary_user import ordinary_user

pytestmark = [
    pytest.mark.bench,
    pytest.mark.needs("datacenter", "nomad", f"vault {VAULT_VERSION}", "consul 1.22.2"),
]
ROUNDS = int(os.environ.get("HASHIDRILL_BENCH_ROUNDS", "10"))
PAIRS = min(int(os.environ.get("HASHIDRILL_BENCH_PAIRS", "5")), ROUNDS)
VERSIONS = {"consul": "1.22.2", "nomad": "1.10.5", "vault": VAULT_VERSION}
_GONE_WITHIN_S = 10
NOBODY = 65534


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


def by_hand(uid):
    folder = Path(tempfile.mkdtemp(prefix="hdt-hand-", dir=work_parent().parent))
    folder.chmod(0o755)
    paths = []
    for name, version in VERSIONS.items():  # where the agents' user may read them
        paths.append(folder / name)
        found = binaries.ensure(name, version).path
        try:
            paths[-1].hardlink_to(found)
        except OSError:
            shutil.copy(found, paths[-1])
    script = [sys.executable, str(places.SUPPORT / "agents_by_hand.py"), str(folder), *map(str, paths), str(uid)]
    path = os.pathsep.join([str(Path(hashidrill.__file__).parents[1]), str(places.SUPPORT)])
    try:
        done = subprocess.run(
            script, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ratios(ours, theirs):
    return [one / other for one, other in zip(ours, theirs, strict=False)]


def noted(figure, capsys):
    """Printed at once: a series that is interrupted has shown what it measured."""
    with capsys.disabled():
        print(f"\n  {json.dumps(figure)}", end="", flush=True)
    return figure


def told(capsys, title, ours, hand):
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
    if hand:
        beside, theirs = [one["ready_s"] for one in hand], [one["memory_mb"]["all"] for one in hand]
        rows += [
            row("by hand: seconds to ready", beside),
            row("  ratio, pair by pair", ratios(ready, beside)),
            row("by hand: memory in MB (PSS)", theirs),
            row("  ratio, pair by pair", ratios(memory, theirs)),
        ]
    table(capsys, f"{title}: {len(ours)} times, nothing left after each (median, range)", rows)
    assert all(value > 0 for value in (*ready, *memory))


@pytest.mark.skipif(os.geteuid() != 0, reason="measured as the ordinary user that we are, below")
def test_the_full_stack_as_root(tmp_path, capsys):
    work = Path(tempfile.mkdtemp(prefix="hdt-stack-", dir=work_parent().parent))
    env = environment(XDG_STATE_HOME=tmp_path / "state", **{VARIABLE: work})
    ground = Ground(work)
    ours, hand = [], []
    try:
        for number in range(ROUNDS):
            ours.append(noted(one_round(lambda *words: command_line(*words, env=env), work, ground), capsys))
            hand += [noted(by_hand(NOBODY), capsys)] if number < PAIRS else []
    finally:
        shutil.rmtree(work, ignore_errors=True)
    told(capsys, "full stack as root", ours, hand)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user, which takes root")
@pytest.mark.needs("setpriv")
def test_the_full_stack_as_an_ordinary_user(binary, capsys):
    ours, hand = [], []
    with ordinary_user(*(binary(name) for name in ("consul", "nomad", "vault"))) as user:
        for number in range(ROUNDS):
            ours.append(noted(one_round(user, user.work, user.ground), capsys))
            hand += [noted(by_hand(NOBODY), capsys)] if number < PAIRS else []
    told(capsys, "full stack as an ordinary user", ours, hand)
