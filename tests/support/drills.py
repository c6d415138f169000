"""Short experiments, and the command line as a process of its own, as a user has it."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import BoundedSemaphore

from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.recording.journal import read_journal
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import JOURNAL_NAME

# the same code whatever PATH says
CLI = (sys.executable, "-c", "import sys; from hashidrill.faces.cli import main; sys.argv[0] = 'hashidrill'; main()")
PLUGINS = Path(__file__).parent / "planted"
_LONGEST_S = 120
AT_ONCE = 3
"""A run mostly waits. More of them would be other work that keeps the machine busy, to each other."""
_SEATS = BoundedSemaphore(AT_ONCE)


def experiment(
    path,
    *,
    method,
    expect=None,
    load=None,
    require=None,
    steady="2s",
    within="20s",
    recovery="3s",
    guardrails=(),
    servers=1,
    clients=0,
    beside=None,
    datacenter=None,
):
    """Write an experiment that takes some ten seconds; returns its path. `beside`: products beside Consul;
    `datacenter`: what is there in place of Consul.
    """
    consul = {"servers": servers, "clients": clients, "config": {"performance": {"raft_multiplier": 1}}}
    document = {
        "apiVersion": "hashidrill/v1",
        "kind": "Experiment",
        "metadata": {"name": path.stem, "title": "A short one", "why": "It tests hashidrill itself"},
        "datacenter": datacenter or {"consul": consul, **(beside or {})},
        "load": load or {"kv-writes": {"kind": "consul.kv.write", "rate": "30/s", "keys": 50, "value": "128B"}},
        "steady_state": {"for": steady, "within": within, "require": require or ["kv-writes.latency.p50 < 500ms"]},
        "method": method,
        "guardrails": list(guardrails),
        "recovery": {"for": recovery},
        "expect": expect or [{"no_acknowledged_write_lost": {"load": "kv-writes"}}],
    }
    path.write_text(json.dumps(document, indent=2))
    return path


def environment(**more):
    """Ours, with the planted faults and loads findable."""
    paths = [str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **{name: str(value) for name, value in more.items()}}


def start(*arguments, env=None, cwd=None):
    """`hashidrill ARGUMENTS` in a session of its own, as from another terminal."""
    return subprocess.Popen(
        [*CLI, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=env or environment(),
        cwd=cwd,
    )


def hashidrill(*arguments, env=None, cwd=None, within_s=_LONGEST_S):
    """Run to its end. The result has `returncode`, `stdout` and `stderr`; there is never a traceback in them."""
    process = start(*arguments, env=env, cwd=cwd)
    try:
        stdout, stderr = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise AssertionError(f"hashidrill {arguments} took over {within_s}s:\n{stdout}\n{stderr}") from None
    assert "Traceback" not in stdout + stderr, stdout + stderr
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def proven(runs, process, *, within_s=_LONGEST_S):
    """The journal of a run that goes on below `runs`, once a fault of it is proven."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and process.poll() is None:
        for journal in runs.glob(f"*/{JOURNAL_NAME}"):
            if any(entry.event == "fault.proven" for entry in read_journal(journal)):
                return journal
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"no fault was proven within {within_s}s: {process.communicate()}")


def run_demo(folder, env=None):
    """`hashidrill demo` in that folder: (the folder, how it ended)."""
    return folder, hashidrill("demo", cwd=folder, env=env, within_s=300)


class Drill:
    """One run of an experiment by `hashidrill run --json`; or, without `path`, the last one in `runs`, judged again."""

    def __init__(self, path, runs, *, env=None, cwd=None, within_s=_LONGEST_S):
        what = ("run", path) if path else ("check", "last")
        done = hashidrill(*what, "--json", "--runs", runs, env=env, cwd=cwd, within_s=within_s)
        self.exit_code, self.said = done.returncode, done.stderr
        assert done.stdout.startswith(("[", "{")), done.stderr
        said = json.loads(done.stdout)
        [self.result] = said if path else [said]
        self.recording = Path(self.result["recording"])
        journal = self.recording / JOURNAL_NAME
        self.journal = read_journal(journal) if journal.exists() else []  # a comparison has those of its runs

    @property
    def events(self):
        return [entry.event for entry in self.journal]

    def passed(self, path):
        """Fails unless the experiment in that file passed, and each of its faults was proven and is gone.

        A comparison passes when the runs that it compares had theirs proven, so only its verdict is looked at.
        """
        assert (self.exit_code, self.result["verdict"], self.result["outcome"]) == (0, "PASS", "complete"), self.said
        assert self.result["invalid"] == []
        asked = load_experiment(path)
        if asked.compare:
            return
        faults = Recording(self.recording).faults
        assert {window.kind for window in faults} == {step.fault for step in asked.faults}
        assert all(window.proven and window.gone_ns is not None for window in faults), faults

    def finding(self, hypothesis):
        """(finding, text) of an expectation."""
        [one] = [each for each in self.result["expectations"] if each["hypothesis"] == hypothesis]
        return one["finding"], one["text"]


def drilled(make):
    """Of a test that looks at a run, as its fixture `drill`: `make(folder)` makes it.

    It is begun ahead of the test, with the others of its module, a few at a time.
    """

    def of(test):
        test.drill = make
        return test

    return of


def seated(make, *arguments, **named):
    """What it makes, when no more than `AT_ONCE` runs go on in this session, whoever began them."""
    with _SEATS:
        return make(*arguments, **named)


@contextmanager
def ahead(makers):
    """Begins what `makers` make, by name; yields a function that waits for the one of a name."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = {name: pool.submit(seated, make) for name, make in makers.items()}
        try:
            yield lambda name: begun[name].result()
        finally:
            pool.shutdown(cancel_futures=True)
