"""What the scripts of Consul's faults report, got in the background: they wait for elections most of the time."""

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import hashidrill
from hashidrill.lab.sandbox.sandbox import sandbox

SCRIPT = Path(__file__).with_name("real_consul_faults.py")


class ConsulReports:
    """One sandbox a run (`1.22.2 long`), one after the other. `consul` gets the path of a version's binary."""

    def __init__(self, consul: Callable[[str], Path], folder: Path) -> None:
        self._consul, self._folder = consul, folder
        self._pool = ThreadPoolExecutor(1)
        self._begun: dict[str, Future[tuple[list[dict[str, object]], str]]] = {}

    def begin(self, runs: Sequence[str]) -> None:
        """Idempotent."""
        for run in runs:
            if run not in self._begun:
                self._begun[run] = self._pool.submit(self._report, run)

    def of(self, run: str) -> tuple[list[dict[str, object]], str]:
        """What the script said, and its log; waits until it has ended."""
        self.begin([run])
        return self._begun[run].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _report(self, run: str) -> tuple[list[dict[str, object]], str]:
        consul = self._consul(run.partition(" ")[0])
        log = self._folder / f"{run}.log"
        command = [sys.executable, str(SCRIPT), str(consul), "{root}", run]
        with sandbox(command, {"PYTHONPATH": str(Path(hashidrill.__file__).parents[1])}, log) as box:
            return [json.loads(line) for line in box.output], log.read_text()
