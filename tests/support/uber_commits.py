"""64 commits of the ingest service of the sample, one of which makes each worker new; and a bisection of them."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drills import hashidrill
from hashidrill.products.sample import ingest
from repositories import git

COMMITS = 64
BEFORE = """\
        worker = self._idle.pop() if self._idle else Worker(self._store)
        worker.handle(point)
        self._idle.append(worker)
"""
AFTER = """\
        worker = Worker(self._store)
        worker.handle(point)
        self._idle.clear()
"""
CLIENT = "ingest={python} {checkout}/ingest.py --every 2 --points 60 {url}"


@dataclass(frozen=True)
class History:
    """A repository whose tag `good` is followed by 64 commits. `culprit` is the commit that makes it slow."""

    top: Path
    culprit: str


def write_history(top: Path, number: int) -> History:
    """Commit `number` of 64 (from 1) is the culprit; the others change what nobody notices."""
    top.mkdir(parents=True)
    source = Path(ingest.__file__).read_text()
    if source.count(BEFORE) != 1:
        raise AssertionError("the two lines that the culprit changes are not in the service")

    def commit(message: str) -> str:
        git(top, "add", "-A")
        git(top, "commit", "-q", "-m", message)
        return git(top, "rev-parse", "HEAD")

    git(top, "init", "-q", "-b", "main")
    (top / "ingest.py").write_text(source)
    commit("take in metrics")
    git(top, "tag", "good")
    culprit = ""
    for each in range(1, COMMITS + 1):
        if each == number:
            (top / "ingest.py").write_text((top / "ingest.py").read_text().replace(BEFORE, AFTER))
            culprit = commit("simplify the pool")
            continue
        with (top / "ingest.py").open("a") as file:
            file.write(f"# revision {each}\n")
        commit(f"revision {each}")
    return History(top, culprit)


def bisected(history: History, *more: str, within_s: float = 1500) -> dict[str, Any]:
    """What `hashidrill bisect --json` says of it, by its p99."""
    done = hashidrill(
        "bisect",
        "--experiment",
        "incidents/uber-m3-2019",
        "--git",
        "good..HEAD",
        "--build",
        "python3 -m py_compile ingest.py",
        "--client",
        CLIENT,
        *shlex.split("--figure ingest.latency.p99 --factor 1.5 --duet --json"),
        *more,
        cwd=history.top,
        within_s=within_s,
    )
    if done.returncode:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
