"""The library's experiments: which are run when, and their runs, one for all tests that look at it."""

import subprocess
from functools import cached_property
from pathlib import Path

from drills import Drill, environment, run_demo
from hashidrill.core.experiment.library import experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.lab.runs.launch import binaries_for
from places import ROOT

LIBRARY = experiments()
OF_THE_STACK = sorted(name for name in LIBRARY if name.startswith("stack/") or name == "incidents/roblox-2021-return")
_ON_THE_NODE = "tests/live/kubernetes/test_pods_live.py runs it on a node with pods"
OF_KUBERNETES = {
    "kubernetes/consul-leader-pod-killed": f"{_ON_THE_NODE}, over forwards",
    "kubernetes/consul-server-partitioned": f"{_ON_THE_NODE}, in its network; over forwards it is refused",
    "kubernetes/clock-skew-on-leader": f"{_ON_THE_NODE}, over forwards",
    "kubernetes/consul-io-latency": "refused on our node: toda, which slows the volume, is Rust and on no registry",
    "kubernetes/node-drain-with-quorum": "tests/live/kubernetes/test_pods_nightly.py runs it on three nodes",
    "kubernetes/vault-active-pod-killed": "tests/live/kubernetes/test_pods_nightly.py runs it on a node with pods",
    "kubernetes/nomad-leader-pod-killed": "tests/live/kubernetes/test_pods_nightly.py runs it on a node with pods",
}
"""Name of an experiment: where it is run, or why not. tests/unit/kubernetes/test_experiments_in_pods.py plans each."""
OF_OTHER_TIERS = (
    {name for name in LIBRARY if name.startswith(("vault/", "nomad/", "physical/", "alerts/"))}
    | set(OF_THE_STACK)
    | {*OF_KUBERNETES}
)
"""Those whose binaries take long to build: the tests of their products run them."""

LONGEST_S = 800
"""Of a run, in seconds: incidents/roblox-2021 takes eleven minutes on two cores."""

FLAGSHIP = "raft/slow-leader-disk"
"""Its run is that of `hashidrill demo`."""

IN_CI = {
    FLAGSHIP: "the demo: a disk that is slow",
    "raft/slow-leader-links": "links that are slow, by toxiproxy",
    "raft/killed-leader": "a process that ends, and an election",
    "network/partitioned-leader": "a partition, by nftables",
    "state/snapshot-reset": "acknowledged writes that are rolled back, and said to be",
    "retry/vault-503": "a client of the user's, behind a tap",
    "raft/starved-leader": "too little CPU",
    "raft/leader-disk-full": "a disk that is full",
    "raft/new-hardware": "a server that is replaced",
    "locks/lock-storm": "sessions and locks, on a narrow link",
}
"""Name of an experiment: what only it shows. `.ci/run` runs these (`-m long`); all others are of `-m nightly`."""


def needs_of_experiment(name: str) -> tuple[str, ...]:
    """What tests/support/provision.py has to get before a run of it."""
    return ("datacenter", *(" ".join(each) for each in binaries_for(load_experiment(LIBRARY[name]))))


class LibraryRuns:
    """Runs an experiment when it is first asked for, one at a time: three at a time took each other's CPU, and were
    INVALID for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: dict[str, Drill] = {}
        # tests before it change theirs: one with another HOME has another cache, and Consul would be built again
        self._environment = environment()

    def run(self, name: str) -> Drill:
        """Of any but the flagship."""
        if name not in self._done:
            self._done[name] = Drill(name, self._folder, env=self._environment, cwd=ROOT, within_s=LONGEST_S)
        return self._done[name]

    @cached_property
    def demo(self) -> tuple[Path, subprocess.CompletedProcess[str]]:
        """The run of the flagship: the folder it was in, and how it ended."""
        folder = self._folder / "demo"
        folder.mkdir()
        return run_demo(folder, self._environment)
