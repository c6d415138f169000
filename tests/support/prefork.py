"""Starts the Python reference clients without importing their libraries anew each time: hundreds of starts add up.

    python prefork.py serve SOCKET            imports the libraries, and forks a client for each that asks
    python -I -S prefork.py run SOCKET SCRIPT ARGUMENT...

`run` stands for the client: it has its environment, output and mount namespace, ends with its status, and takes it with
it when it is killed. The scripts and the libraries are the same; each client is a process of its own.
"""

# pathlib takes longer to import than all that `run` does:
# ruff: noqa: PTH109, PTH116, PTH120

import contextlib
import marshal
import os
import socket
import sys

_MESSAGE_BYTES = 1 << 20
_LIBRARIES = ("requests", "tenacity", "httpx", "aiohttp", "hvac", "consul", "nomad", "urllib.request", "uuid")


def run(path: str, argv: list[str]) -> int:
    """Have the client forked, and wait for its status."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        message = marshal.dumps([argv, dict(os.environ), os.getcwd(), os.getpid()])
        socket.send_fds(server, [len(message).to_bytes(4, "big") + message], [1, 2])
        answer = server.recv(1)
    return answer[0] if answer else 1


class Server:
    """Forks a client for each connection; the connection is its life line."""

    def __init__(self, path: str) -> None:
        import selectors

        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(512)
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self.clients: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> None:
        """Until this process is killed."""
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    self.begin()
                elif key.data in self.clients:
                    self.end(key.data)

    def begin(self) -> None:
        link, _ = self.listener.accept()
        data, descriptors, _, _ = socket.recv_fds(link, _MESSAGE_BYTES, 2)
        size = int.from_bytes(data[:4], "big")
        while len(data) < 4 + size:
            data += link.recv(_MESSAGE_BYTES)
        pid = os.fork()
        if not pid:
            for each in (self.selector, self.listener, link):
                each.close()
            client(*marshal.loads(data[4:]), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self.clients[pidfd] = pid, link
        for each in (pidfd, link):
            self.selector.register(each, 1, pidfd)

    def end(self, pidfd: int) -> None:
        """It ended, or whoever asked for it is gone."""
        pid, link = self.clients.pop(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            link.send(bytes([os.waitstatus_to_exitcode(status) & 255]))
        for each in (pidfd, link):
            self.selector.unregister(each)
        link.close()
        os.close(pidfd)


def serve(path: str) -> None:
    """Import the libraries, say that it is ready, and serve."""
    import gc
    import importlib

    for name in _LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is shared stays shared
    server = Server(path)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve()


def enter_mounts_of(pid: int) -> None:
    """Its caller may have a name server of its own: /etc/resolv.conf is mounted over for it."""
    import ctypes

    ours, theirs = "/proc/self/ns/mnt", f"/proc/{pid}/ns/mnt"
    if os.stat(ours).st_ino != os.stat(theirs).st_ino:
        place = os.open(theirs, os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(place, 0):
            raise OSError(ctypes.get_errno(), "setns")


def client(argv: list[str], environment: dict[str, str], folder: str, asker: int, descriptors: list[int]) -> None:
    """Become the client. Does not return."""
    import runpy
    import traceback

    status = 1
    try:
        for number, descriptor in zip((1, 2), descriptors, strict=True):
            os.dup2(descriptor, number)
        os.setsid()
        enter_mounts_of(asker)
        with contextlib.suppress(OSError):
            # what its caller would be given once its client is timed, and cannot give to a stranger
            os.setpriority(os.PRIO_PROCESS, 0, -10)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = argv
        sys.path[0] = os.path.dirname(argv[0])
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    else:
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 255)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(run(sys.argv[2], sys.argv[3:]))
