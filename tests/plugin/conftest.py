"""A user's project in which running an experiment means copying a recording that was planted for it."""

import json
import shutil
import sys
import types

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.events import decode
from hashidrill.lab.runs import launch
from hashidrill.testing.recordings import RecordingBuilder

LOAD = "kv-writes"
OVERLAY = {"datacenter": {"consul": {"config": {"performance": {"raft_multiplier": 5}}}}}

# pytester forgets what a session inside of it imported: what is imported here is imported once
registry.faults()
registry.loads()
hypothesis.all_hypotheses()


class Project:
    """`experiments/NAME.yaml`, what running each of them leaves, and how often each was run."""

    def __init__(self, pytester):
        self.pytester = pytester
        self.path = pytester.path
        self.ran = []
        self.runs_dirs = []
        self.events = [{"event": "phase", "phase": "method", "t_ns": 10_000_000_000}]

    def builder(self, name="slow-disk", *, recovery=2.0, proven=True, tags=(), **load):
        """An experiment whose fault is a disk of 3 s; its recording recovers so many seconds after it."""
        slow = lambda t: 3.0 if 10 <= t < 30 + recovery else 0.01  # noqa: E731
        builder = RecordingBuilder(self.path / "planted" / name, name=name, tags=tags)
        builder.fault("noop", "consul-1", at=10, until=30, proven=proven)
        return builder.load(LOAD, **{"latency": slow, **load}).final_reads(LOAD).healthy()

    def plant(self, builder, folder="experiments"):
        """Write the experiment and its recording; returns the path of the YAML, as a user types it."""
        builder.build()
        document = builder.experiment()
        path = self.path / folder / f"{builder.name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2))
        return f"{folder}/{path.name}"

    def run(self, *args, plugins=()):
        return self.pytester.runpytest_inprocess(
            "-W", "error", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *args, plugins=plugins
        )

    def run_experiment(self, resolved, *, runs_dir, events):
        """Stands for hashidrill.lab.runs.launch.run_experiment."""
        name = "-".join(filter(None, [resolved.path.stem, resolved.variant]))
        self.ran.append(name)
        self.runs_dirs.append(runs_dir)
        for event in self.events:
            events.publish(decode(event))
        target = runs_dir / f"{name}-{len(self.ran)}"
        shutil.copytree(self.path / "planted" / name, target)
        return target

    def plant_variants(self, builders, *, compare, rounds=1, **sections):
        """An experiment with variants, and a recording of each; returns the path of the YAML, as a user types it.

        `builders` are those of the runs by variant; their experiments are that of a file that says what differs.
        """
        overlays = {}
        for name, builder in builders.items():
            builder.path = self.path / "planted" / f"{builder.name}-{name}"
            overlays[name] = {} if not overlays else OVERLAY
            builder.variant(name, **overlays[name]).run_info(
                config={"consul-1": {"performance": {"raft_multiplier": len(overlays)}}}
            ).build()
        first = next(iter(builders.values()))
        document = {**first.experiment(), "variants": overlays, "compare": compare, "rounds": rounds, **sections}
        path = self.path / "experiments" / f"{first.name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2))
        return f"experiments/{path.name}"


@pytest.fixture
def project(pytester, monkeypatch):
    made = Project(pytester)
    fake = types.ModuleType("hashidrill.lab.runs.launch")
    fake.run_experiment, fake.new_folder, fake.RUNS_DIR = made.run_experiment, launch.new_folder, launch.RUNS_DIR
    fake.prepare = lambda *_: {}
    monkeypatch.setitem(sys.modules, "hashidrill.lab.runs.launch", fake)
    return made
