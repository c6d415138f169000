"""How tests share the cores: whole folders run in a process per core, and what uses the machine runs in one of them.

Units, tests of the plugin, and contract tests of rooms that measure nothing go file by file to whichever process is
free. Everything else starts agents, measures, or listens on fixed ports: it is one group, last, in the order that
conftest.py gives it.
"""

import os
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling

MACHINE = "the machine"
"""The scope of all tests that may not run beside others. When it begins, another process may still run the last file of
units that it was given: Consul's faults come first, which bear that."""
_AT_MOST = 4  # each process collects all tests: about 300 MB and 20 s of a core
_BESIDE_OTHERS = (
    "tests/unit/",
    "tests/plugin/",
    "tests/contract/faces/",
    "tests/contract/kubernetes/test_kinds_real.py",  # for half of the tier's time; its node is in its own namespaces
    "tests/contract/reports/",
    "tests/contract/rollouts/",
)


def processes(config: Any) -> int | None:
    """How many processes this selection is worth; None: this one is enough."""
    option = config.option
    if option.numprocesses is not None or option.dist != "no" or hasattr(config, "workerinput"):
        return None
    if option.collectonly or option.usepdb or option.capture == "no":
        return None
    folders = [Path(each) for each in config.args]
    if not all(folder.is_dir() for folder in folders):
        return None
    return min(len(os.sched_getaffinity(0)), _AT_MOST)


def beside_others(nodeid: str) -> bool:
    """Whether a test with that id may run while others do."""
    return nodeid.startswith(_BESIDE_OTHERS)


class UnitsThenMachine(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process a file of unit tests at a time, and the rest to the first that has none left."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0] if beside_others(nodeid) else MACHINE
