"""Figures of the local datacenter, as ratios side by side: `uv run pytest -m bench -s tests/bench`.

They are printed, not judged by the clock; what is asserted is only that they were measured.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import pytest

import hashidrill
import places
from hashidrill.lab.provision import binaries
from hashidrill.lab.sandbox.sandbox import sandbox

pytestmark = [pytest.mark.bench, pytest.mark.needs("datacenter", "consul")]
SCRIPT = places.SUPPORT / "datacenter_figures.py"
PAIRS = 10


def figures(tmp_path: Path, what: str, *more: str) -> tuple[dict, float]:
    """(what the script printed, seconds for the whole sandbox from its start to the end of the measurement)."""
    consul = binaries.ensure("consul", "1.22.2")
    command = [sys.executable, str(SCRIPT), what, str(consul.path), "{root}", *more]
    environment = {"PYTHONPATH": str(Path(hashidrill.__file__).parents[1])}
    log = tmp_path / "log"
    began = time.monotonic()
    with sandbox(command, environment, log) as box:
        line = box.output.readline()
        took = time.monotonic() - began
    assert line, log.read_text()
    return json.loads(line), took


def pairs(name: str, ours: list[float], theirs: list[float], capsys) -> None:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    with capsys.disabled():
        print(
            f"\n{name}: ours {statistics.median(ours):.3f}, beside it {statistics.median(theirs):.3f} (medians of "
            f"{len(ours)}); ratio, pair by pair: median {statistics.median(ratios):.3f}, "
            f"from {min(ratios):.3f} to {max(ratios):.3f}"
        )
    assert all(value > 0 for value in ours + theirs)


def test_ready_time_beside_three_servers_started_by_hand(tmp_path, capsys):
    ours, by_hand, whole = [], [], []
    for _ in range(PAIRS):
        figure, took = figures(tmp_path, "ready")
        ours.append(figure["ready_s"])
        whole.append(took)
        by_hand.append(figures(tmp_path, "by-hand")[0]["ready_s"])
    pairs("seconds to ready, three servers, beside the same by hand", ours, by_hand, capsys)
    pairs("the same from the start of the sandbox's first process", whole, by_hand, capsys)


def test_write_throughput_on_the_idle_disk_layer_beside_the_bare_disk(tmp_path, capsys):
    layer, bare = [], []
    for _ in range(PAIRS):
        layer.append(figures(tmp_path, "throughput", "layer")[0]["writes_per_s"])
        bare.append(figures(tmp_path, "throughput", "bare")[0]["writes_per_s"])
    pairs("KV writes a second, 16 writers, idle disk layer beside bare disk", layer, bare, capsys)


def test_time_from_inject_to_effect_and_from_revert_to_gone(tmp_path, capsys):
    figure, _ = figures(tmp_path, "reaction")
    with capsys.disabled():
        for what, seconds in figure.items():
            print(f"\n{what}: median {statistics.median(seconds) * 1e3:.1f} ms, longest {max(seconds) * 1e3:.1f} ms")
    assert len(figure) == 6
