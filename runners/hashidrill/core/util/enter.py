"""Runs a command in namespaces of a sandbox, like util-linux's nsenter, which a machine may lack.

python -I -S -c BOOT '{"process": "123", "network": "/proc/45/ns/net"}' COMMAND...
"""

import json
import os
import signal
import sys

from hashidrill.core.util import syscalls as sc
from hashidrill.core.util.processes import boot_command


def entering(*, process: str = "", network: str = "") -> list[str]:
    """The start of a command line that enters the sandbox of that process (its mounts, processes and IPC) and the
    network namespace at the path `network` inside the sandbox.
    """
    return boot_command("hashidrill.core.util.enter", {"process": process, "network": network})


def main(process: str, network: str, command: list[str]) -> int:
    """Replaces this process by the command, or returns its exit code. Raises OSError."""
    if process:
        kinds = {"ipc": sc.CLONE_NEWIPC, "pid": sc.CLONE_NEWPID, "mnt": sc.CLONE_NEWNS}
        if os.geteuid() != 0:
            kinds = {"user": sc.CLONE_NEWUSER, **kinds}
        # all are opened first: the sandbox's /proc has other process numbers
        for fd, kind in [(os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY), kind) for name, kind in kinds.items()]:
            sc.setns(fd, kind)
            os.close(fd)
    if network:
        fd = os.open(network, os.O_RDONLY)
        sc.setns(fd, sc.CLONE_NEWNET)
        os.close(fd)
    if not process:
        os.execvp(command[0], command)  # noqa: S606 - the purpose of this program
    child = os.fork()  # the first process in the PID namespace
    if child == 0:
        os.execvp(command[0], command)  # noqa: S606 - as above
    for number in (signal.SIGINT, signal.SIGQUIT):  # the command gets them from the terminal as well
        signal.signal(number, signal.SIG_IGN)
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    try:
        sys.exit(main(spec["process"], spec["network"], sys.argv[2:]))
    except OSError as failure:
        sys.stderr.write(f"{sys.argv[2]}: {failure.strerror}\n")
        sys.exit(127 if isinstance(failure, FileNotFoundError) else 126)
