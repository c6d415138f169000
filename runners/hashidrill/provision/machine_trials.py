"""Tries, in a process of its own, what a sandbox will do; whatever it makes ends with it.

    python -m hashidrill.provision.machine_trials own|user|seccomp

Prints one JSON object: the name of each trial, and why it failed ("" when it did not).
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from hashidrill.provision.packages import tool
from hashidrill.sandbox import syscalls as sc

if TYPE_CHECKING:
    from collections.abc import Callable

NFT_SCRIPT = """
table inet trial {
  chain input {
    type filter hook input priority 0; policy accept;
    ip saddr 10.73.0.12 drop
    tcp dport 8500 reject with tcp reset
    numgen random mod 100 < 30 drop
  }
}
"""
"""The kinds of rule that partitions, blocked ports and packet loss are made of."""


def main(what: str) -> None:
    """Run the trials named by `what` and print what came of them."""
    if what == "seccomp":
        _say({"seccomp": _failure(lambda: sc.notify_on(["fsync"]))})
        # without Python's own ending: the filter is in force here, and nobody answers it
        os._exit(0)
    _say(_in_namespaces(as_user=what == "user" or os.geteuid() != 0))


def _say(results: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(results) + "\n")
    sys.stdout.flush()


def _failure(trial: Callable[[], object]) -> str:
    """Why a trial failed, or "". Any exception at all is an answer here."""
    try:
        trial()
    except Exception as error:  # noqa: BLE001 - the answer to "does it work?" is the error
        # netlink errors are (errno, text), and are no OSError
        return str(error.args[-1] if len(error.args) == 2 and not isinstance(error, OSError) else error) or repr(error)
    return ""


def _in_namespaces(*, as_user: bool) -> dict[str, str]:
    if reason := _failure(lambda: _enter(as_user=as_user)):
        return {"namespaces": reason}
    # the PID namespace begins with the next child
    results, ours = os.pipe()
    child = os.fork()
    if child == 0:
        found = {"namespaces": _failure(_mount)}
        if not found["namespaces"]:
            found |= {"links": _failure(_links), "nftables": _failure(_nft), "netem": _failure(_netem)}
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
    # late, because it is slow to import and not wanted where namespaces fail
    return importlib.import_module("pyroute2").IPRoute()


def _nft() -> None:
    nft = tool("nft")
    if nft is None:
        raise FileNotFoundError("there is no nft on this machine")
    run = subprocess.run([nft, "-f", "-"], input=NFT_SCRIPT, capture_output=True, text=True, timeout=20, check=False)
    if run.returncode != 0:
        raise OSError(run.stderr.strip().splitlines()[0] if run.stderr.strip() else f"exit code {run.returncode}")


def _netem() -> None:
    with _netlink() as ip:
        ip.tc("add", "netem", ip.link_lookup(ifname="lo")[0], handle=0x10000, delay=1000)


if __name__ == "__main__":
    main(sys.argv[1])
