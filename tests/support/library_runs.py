"""The library's experiments, run a few at a time beside the other tests: a run mostly waits."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drills import AT_ONCE, Drill, environment, run_demo, seated
from hashidrill.core.experiment.library import experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.lab.runs.launch import binaries_for
from places import ROOT

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable

LIBRARY = experiments()
OF_THE_STACK = sorted(name for name in LIBRARY if name.startswith("stack/") or name == "incidents/roblox-2021-return")
_NO_NODE = "it takes a node with pods, and is planned on a Kubernetes in memory alone"
OF_KUBERNETES = {
    "kubernetes/consul-leader-pod-killed": f"{_NO_NODE}: a StatefulSet must bring the pod back",
    "kubernetes/consul-server-partitioned": f"{_NO_NODE}: chaos-daemon puts iptables into the pod",
    "kubernetes/consul-io-latency": f"{_NO_NODE}: toda, which slows the volume, is Rust and on no registry",
    "kubernetes/vault-active-pod-killed": f"{_NO_NODE}, and a Vault with an auto-unseal",
    "kubernetes/node-drain-with-quorum": f"{_NO_NODE}, and a node that may be drained",
    "kubernetes/clock-skew-on-leader": f"{_NO_NODE}: chaos-daemon sets the clock of the process in the pod",
}
"""Name of an experiment: why no live test runs it. tests/unit/kubernetes/test_experiments_in_pods.py plans each."""
OF_OTHER_TIERS = (
    {name for name in LIBRARY if name.startswith(("vault/", "nomad/", "physical/", "alerts/"))}
    | set(OF_THE_STACK)
    | {*OF_KUBERNETES}
)
"""Those whose binaries take long to build: the tests of their products run them."""

NOT_RUN: dict[str, str] = {
    "config/streaming-extreme": "it takes four minutes, and its load needs all of the machine for itself",
    "config/streaming-extreme-1-10-3": "it takes four minutes, and its load needs all of the machine for itself",
    "config/streaming-off-again": "its load needs all of the machine for itself",
    "config/streaming-moderate": "it compares two variants under a load that needs all of the machine for itself",
    "config/rollout-moderate": "what it measures is wrong while other runs take the machine's CPU",
    "config/rollout-year-end": "its load needs all of the machine for itself",
    "locks/lock-storm-rate-limited": "whether that storm outlives its cause depends on how busy the machine is",
    "incidents/uber-m3-2019": "the p99 that it judges is wrong while other runs take the machine's CPU",
    "incidents/roblox-2021": "it takes seven minutes, and its load needs all of the machine for itself",
}
"""Name of an experiment: why it is not run beside the others. `-m nightly` runs these, one at a time."""

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
    """Runs all of `names`, `AT_ONCE` at a time, once it is told to begin; asked for one, it waits for that."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._names = sorted(names, key=lambda name: (name != FLAGSHIP, name))  # what is asked for first
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._begun: dict[str, Future[Any]] = {}
        # tests beside it change theirs: one with another HOME has another cache, and Consul would be built again
        self._environment = environment()

    def begin(self) -> None:
        """Idempotent."""
        for name in self._names:
            if name not in self._begun:
                self._begun[name] = self._begin(name)

    def _begin(self, name: str) -> Future[Any]:
        if name == FLAGSHIP:
            folder = self._folder / "demo"
            folder.mkdir()
            return self._pool.submit(seated, run_demo, folder, self._environment)
        return self._pool.submit(seated, Drill, name, self._folder, env=self._environment, cwd=ROOT)

    def run(self, name: str) -> Drill:
        """Of any but the flagship."""
        return self._of(name)

    def demo(self) -> tuple[Path, subprocess.CompletedProcess[str]]:
        """The run of the flagship: the folder it was in, and how it ended."""
        return self._of(FLAGSHIP)

    def _of(self, name: str) -> Any:
        if name not in self._begun:
            self._begun[name] = self._begin(name)
        return self._begun[name].result()

    def close(self) -> None:
        """What has not begun is not begun any more; what has is waited for."""
        self._pool.shutdown(cancel_futures=True)
