"""A datacenter that keeps running: `hashidrill lab up`, `status`, `shell`, `down`.

`up` starts a keeper, a separate process that holds one sandbox. For each datacenter, a small file in the user's state
directory says how to find its keeper again. The sandbox ends with the keeper.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hashidrill.core.errors import DatacenterError, UsageError
from hashidrill.core.experiment.model import DatacenterSpec, services_of
from hashidrill.core.protocols import registry
from hashidrill.core.util import syscalls as sc
from hashidrill.core.util.durations import timed, usual_s
from hashidrill.core.util.enter import entering
from hashidrill.core.util.files import private, write_whole
from hashidrill.core.util.folders import state_folder
from hashidrill.core.util.interrupts import PutOff
from hashidrill.core.util.processes import python_path
from hashidrill.core.util.safe_json import parse
from hashidrill.lab.provision import binaries
from hashidrill.lab.sandbox.sandbox import handed_over

_DOWN_WITHIN_S = 30.0
_SAID_EVERY_S = 1.0


@dataclass(frozen=True)
class RunningDatacenter:
    """A datacenter that is up.

    `consul` and `version` are Consul's binary and version, "" without Consul. `urls` holds the page of each exposed
    service on this machine's loopback, and `url` the first of them, or "". `environments` holds the variables of a
    shell on each host.
    """

    name: str
    pid: int
    start_time: int
    root: str
    consul: str
    version: str
    url: str
    hosts: list[dict[str, Any]]
    versions: dict[str, str] = field(default_factory=dict)
    binaries: dict[str, str] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    without_ui: list[str] = field(default_factory=list)
    """Services among `urls` whose binary has no UI: only their API is served there."""
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    """Paths of files that its services wrote for people, by name, such as `kubeconfig`."""

    def shown(self) -> dict[str, Any]:
        """The data for JSON, without the environments, which hold tokens."""
        return {key: value for key, value in asdict(self).items() if key != "environments"}

    @property
    def alive(self) -> bool:
        state = sc.process_state(self.pid)
        return state is not None and state[1] == self.start_time and state[0] != "Z"


def state_dir() -> Path:
    """`$XDG_STATE_HOME/hashidrill/up`, by default below ~/.local/state."""
    return state_folder() / "up"


DEFAULT = "default"
"""The name of a datacenter that was given no name."""


def all_running() -> list[RunningDatacenter]:
    """The running datacenters, by name. Removes the state files of ended datacenters."""
    found = []
    for file in sorted(state_dir().glob("*.json")):
        with contextlib.suppress(ValueError, TypeError, FileNotFoundError):
            one = RunningDatacenter(**parse(file.read_text()))
            if one.alive:
                found.append(one)
                continue
        file.unlink(missing_ok=True)
    return found


def get(name: str | None) -> RunningDatacenter:
    """The datacenter of that name; without a name, the only one that runs, or else `default`. Raises UsageError that
    names the running datacenters.
    """
    names = {one.name: one for one in all_running()}
    if name is None:
        name = next(iter(names)) if len(names) == 1 else DEFAULT
    if name not in names:
        what = registry.near(name, names) if names else "no datacenter is up; start one with `hashidrill lab up`"
        raise UsageError(f"no datacenter {name!r} is up: {what}")
    return names[name]


def up(name: str, spec: DatacenterSpec, *, expose: Mapping[str, int], say: Any) -> RunningDatacenter:
    """Starts a datacenter and waits until it is ready.

    `expose`: for each service, the loopback port for its UI; 0 is any free port. Raises UsageError, DatacenterError.
    """
    if any(one.name == name for one in all_running()):
        raise UsageError(
            f"a datacenter {name!r} is up already; `hashidrill lab down {name}` ends it, `--name` gives another name"
        )
    for port in expose.values():
        _require_free(port)
    wanted = [each for service in services_of(spec) for each in service.binaries()]
    if not services_of(spec):
        raise UsageError("that datacenter has no agents: nothing would be up")
    found = {
        one.name: binaries.ensure(
            one.name, one.version, explicit=one.explicit, progress=say, with_ui=one.name in expose
        )
        for one in wanted
    }
    folder = state_dir()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    request = {
        "name": name,
        "spec": spec.model_dump(mode="json", by_alias=True),
        "binaries": {name: str(one.path) for name, one in found.items()},
        "versions": {name: one.version for name, one in found.items()},
        "expose": dict(expose),
        "state": str(folder / f"{name}.json"),
    }
    log = folder / f"{name}.log"
    agents = " ".join(f"{service.name}={len([*service.places()])}" for service in services_of(spec))
    say(f"starting {agents}", left_s=usual_s(f"up {agents}"))
    with timed(f"up {agents}"), PutOff() as interrupts:
        with handed_over(request) as stdin, private(log, "wb") as errors:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "hashidrill.lab.up.keeper"],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": python_path()},
            )
        assert keeper.stdout is not None
        try:
            interrupts.now()
            with keeper.stdout as said:
                while not select.select([said], [], [], _SAID_EVERY_S)[0]:
                    say(f"starting {agents}")
                line = said.readline()
        except KeyboardInterrupt:
            keeper.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                keeper.wait(_DOWN_WITHIN_S)
            raise
        if not line:
            keeper.wait()
            raise DatacenterError(f"the datacenter did not start: {_last_line(log)}")
        answer = json.loads(line)
        if "error" in answer:
            keeper.wait()
            raise DatacenterError(f"the datacenter did not start: {answer['error']}")
    keeper.returncode = 0  # the keeper outlives this process, which does not wait for it
    return RunningDatacenter(**answer)


def _require_free(port: int) -> None:
    if not port:
        return
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"--expose {port}: cannot use that port ({error}); --expose 0 takes a free one") from None


def remember(one: RunningDatacenter, path: Path) -> None:
    """Writes the state file, whole or not at all."""
    write_whole(path, json.dumps(asdict(one), indent=2) + "\n")


def down(one: RunningDatacenter) -> None:
    """Ends the datacenter, and waits until nothing is left of it. Raises DatacenterError after 30 s."""
    sc.signal_process(one.pid, one.start_time, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_WITHIN_S
    ended = os.pidfd_open(one.pid) if one.alive else None
    if ended is not None:
        select.select([ended], [], [], max(0.0, deadline - time.monotonic()))
        os.close(ended)
    if one.alive:
        raise DatacenterError(f"the keeper of {one.name} (process {one.pid}) does not end; `kill -9 {one.pid}` is safe")
    (state_dir() / f"{one.name}.json").unlink(missing_ok=True)


def shell_command(one: RunningDatacenter, host: str, command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command line, and the environment, that run `command` (or a shell) on the host. Raises UsageError."""
    hosts = {row["name"]: row for row in one.hosts}
    if host not in hosts:
        raise UsageError(f"there is no host {host!r} in {one.name}: {registry.near(host, hosts)}")
    first = (Path(one.root) / "pid").read_text().strip()
    enter = entering(process=first, network=f"/proc/{hosts[host]['pid']}/ns/net")
    wanted = list(command) or [os.environ.get("SHELL", "/bin/sh")]
    folders = dict.fromkeys(str(Path(binary).parent) for binary in one.binaries.values())
    environment = {
        **os.environ,
        **one.environments.get(host, {}),
        "PATH": ":".join([*folders, os.environ.get("PATH", "")]),
        "HASHIDRILL_HOST": host,
        "PS1": f"{host}$ ",
    }
    return [*enter, *wanted], environment


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "its log is empty"
