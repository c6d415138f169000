"""What the disk layer costs while it has no rule: `uv run pytest -m bench -s tests/bench` prints the ratio."""

import json
import statistics
import sys
from pathlib import Path

import pytest

import hashidrill
import places
from hashidrill.lab.provision import binaries
from hashidrill.lab.sandbox.sandbox import sandbox

pytestmark = [pytest.mark.bench, pytest.mark.needs("datacenter", "consul")]
SCRIPT = places.SUPPORT / "datacenter_figures.py"
PAIRS = 10


def writes_per_s(tmp_path: Path, disk: str) -> float:
    consul = binaries.ensure("consul", "1.22.2")
    command = [sys.executable, str(SCRIPT), str(consul.path), "{root}", disk]
    environment = {"PYTHONPATH": str(Path(hashidrill.__file__).parents[1])}
    log = tmp_path / "log"
    with sandbox(command, environment, log) as box:
        line = box.output.readline()
    assert line, log.read_text()
    return json.loads(line)["writes_per_s"]


def test_write_throughput_on_the_idle_disk_layer_beside_the_bare_disk(tmp_path, capsys):
    pairs = [(writes_per_s(tmp_path, "layer"), writes_per_s(tmp_path, "bare")) for _ in range(PAIRS)]
    ratios = [layer / bare for layer, bare in pairs]
    layer, bare = (statistics.median(each) for each in zip(*pairs, strict=True))
    with capsys.disabled():
        print(
            f"\nKV writes a second, 16 writers: idle disk layer {layer:.1f}, bare disk {bare:.1f} (of {PAIRS}); "
            f"ratio, pair by pair: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
        )
    assert min(map(min, pairs)) > 0
