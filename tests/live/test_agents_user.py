"""Under root, the agents of a run are an ordinary user's processes with an ordinary user's files."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from drills import environment, experiment, start
from hashidrill.core.recording.journal import read_journal
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.core.util.processes import is_machine_root
from leaks import VARIABLE

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs("consul 1.22.2"),
    pytest.mark.skipif(not is_machine_root(), reason="an ordinary user has no other user for agents"),
    pytest.mark.may_skip("as an ordinary user, agents are that user's anyway"),
]
_WITHIN_S = 60


def agents_below(work):
    """Consul processes whose configuration lies below a directory."""
    for process in psutil.process_iter(["cmdline"]):
        if "agent" in (process.info["cmdline"] or []) and str(work) in " ".join(process.info["cmdline"]):
            yield process


def what_is_there(work):
    """The users of the agents, the owners of their files, and the mode of a configuration."""
    users = {uid for agent in agents_below(work) for uid in agent.uids()}
    folders = list(work.glob("hashidrill-*/hosts/consul-1"))
    owners = {file.stat().st_uid for folder in folders for file in (folder / "data" / "consul").rglob("*")}
    configs = [(folder / "consul.json").stat() for folder in folders]
    return users, owners | {config.st_uid for config in configs}, sum(config.st_mode for config in configs)


@pytest.mark.lie
def test_agents_own_their_files_and_none_of_the_machines(tmp_path):
    work = Path(os.environ[VARIABLE]) / "agents"
    work.mkdir()
    roots = tmp_path / "tmp"
    roots.mkdir(0o700)
    # Consul makes a snapshot in a temporary file
    method = [
        {"fault": "consul.snapshot.save", "on": "consul:leader", "with": {"name": "one"}, "for": "1s"},
        {"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "100ms"}, "at": "1s", "for": "60s"},
    ]
    path, runs = experiment(tmp_path / "short.yaml", method=method), tmp_path / "runs"
    process = start("run", path, "--plain", "--runs", runs, env=environment(**{VARIABLE: work, "TMPDIR": roots}))
    deadline = time.monotonic() + _WITHIN_S
    proven = False
    while not proven and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
        events = [entry.event for journal in runs.glob(f"*/{JOURNAL_NAME}") for entry in read_journal(journal)]
        proven = events.count("fault.proven") == len(method)
    try:
        seen = what_is_there(work)
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=_WITHIN_S)
    assert proven, said
    users, owners, mode = seen
    assert len(users) == 1
    assert 0 not in users
    assert owners == users
    assert mode & 0o077 == 0
    work.rmdir()
