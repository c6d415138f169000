"""Starts the Python reference clients without importing their libraries anew each time: hundreds of starts add up.

    python prefork.py serve SOCKET            imports the libraries, and forks a client for each that asks
    python -I -S prefork.py run SOCKET SCRIPT ARGUMENT...

`run` stands for the client: it has its environment, output and mount namespace, ends with its status, and takes it with
it when it is killed. The scripts and the libraries are the same; each client is a process of its own.
"""

import marshal
import os
import socket
import sys

_MESSAGE_BYTES = 1 << 20


def run(path: str, argv: list[str]) -> int:
    """Have the client forked, and wait for its status."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        message = marshal.dumps([argv, dict(os.environ), os.getcwd(), os.getpid()])
        socket.send_fds(server, [len(message).to_bytes(4) + message], [1, 2])
        answer = server.recv(1)
    return answer[0] if answer else 1


def serve(path: str) -> None:
    """Until it is killed."""
    import contextlib
    import gc
    import importlib
    import selectors
    import signal

    for name in ("requests", "tenacity", "httpx", "aiohttp", "hvac", "consul", "nomad", "urllib.request", "uuid"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(512)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    clients: dict[int, tuple[int, socket.socket]] = {}

    def begin() -> None:
        link, _ = listener.accept()
        data, descriptors, _, _ = socket.recv_fds(link, _MESSAGE_BYTES, 2)
        size = int.from_bytes(data[:4])
        while len(data) < 4 + size:
            data += link.recv(_MESSAGE_BYTES)
        argv, environment, folder, asker = marshal.loads(data[4:])
        pid = os.fork()
        if not pid:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            selector.close()
            listener.close()
            link.close()
            client(argv, environment, folder, asker, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        clients[pidfd] = pid, link
        selector.register(pidfd, selectors.EVENT_READ, pidfd)
        selector.register(link, selectors.EVENT_READ, pidfd)

    def end(pidfd: int) -> None:
        """It ended, or whoever asked for it is gone."""
        pid, link = clients.pop(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            link.send(bytes([os.waitstatus_to_exitcode(status) & 255]))
        selector.unregister(link)
        selector.unregister(pidfd)
        link.close()
        os.close(pidfd)

    while True:
        for key, _ in selector.select():
            if key.data is None:
                begin()
            elif key.data in clients:
                end(key.data)


def client(argv: list[str], environment: dict[str, str], folder: str, asker: int, descriptors: list[int]) -> None:
    """Become the client. Does not return."""
    import contextlib
    import ctypes
    import runpy
    import traceback

    status = 1
    try:
        for number, descriptor in zip((1, 2), descriptors, strict=True):
            os.dup2(descriptor, number)
        os.setsid()
        ours, theirs = "/proc/self/ns/mnt", f"/proc/{asker}/ns/mnt"
        if os.stat(ours).st_ino != os.stat(theirs).st_ino:
            place = os.open(theirs, os.O_RDONLY)
            if ctypes.CDLL(None, use_errno=True).setns(place, 0):
                raise OSError(ctypes.get_errno(), "setns")
        with contextlib.suppress(OSError):
            # what its caller would be given once its client is timed, and cannot give to a stranger
            os.setpriority(os.PRIO_PROCESS, 0, -10)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = argv
        sys.path[0] = os.path.dirname(argv[0])
        runpy.run_path(argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 255)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(run(sys.argv[2], sys.argv[3:]))
