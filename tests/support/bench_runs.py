"""What the figures of loads share: a server in a process of its own, and how a table is printed."""

import contextlib
import subprocess
import sys

import places

SERVER = places.SUPPORT / "stalling_server.py"


@contextlib.contextmanager
def server(*arguments):
    """The server in a process of its own; yields its URL and a function that reads its next line."""
    with subprocess.Popen([sys.executable, SERVER, *map(str, arguments)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process.stdout.readline
        finally:
            process.kill()


def table(capsys, title, rows):
    lines = ["".join(f"{cell:<34}" if n == 0 else f"{cell:>20}" for n, cell in enumerate(row)) for row in rows]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", "", title, *(f"  {line}" for line in lines), ""]))
