"""Tries the operations that a sandbox needs, in a separate process that leaves nothing behind.

    python -m hashidrill.lab.provision.machine_trials own|user|packets|seccomp

Prints one JSON object: the name of each trial, and why the trial failed ("" if it succeeded).
"""

import errno
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hashidrill.core.protocols.packets import Block, Cut, PacketRule, Redirect, chains_of, statements_of
from hashidrill.core.util import syscalls as sc
from hashidrill.lab.sandbox import nf_tables

_ADDRESSES = ("10.73.0.12", "10.73.0.13")
PACKET_RULES: dict[str, list[PacketRule]] = {
    "drop": [Block("input", _ADDRESSES), Block("output", _ADDRESSES, 8500)],
    "drop by chance": [Block("input", _ADDRESSES, share=0.3)],
    "refuse": [Block("input", _ADDRESSES, 8500, refuse=True, resets_pass=True)],
    "redirect": [Redirect(_ADDRESSES, 8500, 22_000, "link")],
    "mark connections": [Cut("votes", _ADDRESSES, (8300,), (1,))],
}
"""The kinds of packet rules that network faults use. A kernel may support only some of these kinds."""


def main(what: str) -> None:
    """Runs the trials named by `what` and prints their results."""
    if what == "seccomp":
        _say({"seccomp": _failure(lambda: sc.notify_on(["fsync"]))})
        # skips Python's own exit handlers: the seccomp filter is in force here, and no supervisor answers it
        os._exit(0)
    trials: Mapping[str, Callable[[], object]] = PACKETS
    if what != "packets":
        trials = {"links": _links, **PACKETS, "netem": _netem}
    _say(_in_namespaces(trials, as_user=what == "user" or os.geteuid() != 0))


def _say(results: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(results) + "\n")
    sys.stdout.flush()


def _failure(trial: Callable[[], object]) -> str:
    """Why a trial failed, or "". Any exception counts as a failure."""
    try:
        trial()
    except Exception as error:  # noqa: BLE001 - the answer to "does it work?" is the error
        # netlink errors are (errno, text), not OSError
        return str(error.args[-1] if len(error.args) == 2 and not isinstance(error, OSError) else error) or repr(error)
    return ""


def _in_namespaces(trials: Mapping[str, Callable[[], object]], *, as_user: bool) -> dict[str, str]:
    if reason := _failure(lambda: _enter(as_user=as_user)):
        return {"namespaces": reason}
    # the PID namespace begins with the next child
    results, ours = os.pipe()
    child = os.fork()
    if child == 0:
        found = {"namespaces": _failure(_mount)}
        if not found["namespaces"]:
            found |= {name: _failure(trial) for name, trial in trials.items()}
        os.write(ours, json.dumps(found).encode())
        os._exit(0)
    os.close(ours)
    with open(results, "rb") as pipe:  # noqa: PTH123 - a file descriptor
        answer = pipe.read()
    os.waitpid(child, 0)
    return dict(json.loads(answer)) if answer else {"namespaces": "the first process of the PID namespace died"}


def _enter(*, as_user: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = sc.CLONE_NEWNS | sc.CLONE_NEWNET | sc.CLONE_NEWPID | sc.CLONE_NEWIPC
    if not as_user:
        sc.unshare(flags)
        return
    sc.unshare(flags | sc.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - written at once, by one write
            file.write(text)


def _mount() -> None:
    sc.mount("none", "/", "", sc.MS_REC | sc.MS_PRIVATE)
    sc.mount("proc", "/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
    sc.mount("hashidrill", "/run", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=1m")


def _links() -> None:
    with _netlink() as ip:
        ip.link("add", ifname="trial-bridge", kind="bridge")
        ip.link("add", ifname="trial-a", kind="veth", peer="trial-b")


def _netlink() -> Any:
    # late, because the import is slow and useless if namespaces fail
    return importlib.import_module("pyroute2").IPRoute()


def _packets(rules: Sequence[PacketRule]) -> None:
    nf_tables.replace("trial", chains_of(rules), statements_of(rules))
    if not any(rule.table == "trial" and rule.addresses == {*_ADDRESSES} for rule in nf_tables.rules()):
        raise OSError(errno.ENOENT, "the kernel does not list the rules that it accepted")


PACKETS = {kind: partial(_packets, rules) for kind, rules in PACKET_RULES.items()}


def _netem() -> None:
    with _netlink() as ip:
        ip.tc("add", "netem", ip.link_lookup(ifname="lo")[0], handle=0x10000, delay=1000)


if __name__ == "__main__":
    main(sys.argv[1])
