"""`on HOST COMMAND` from a real terminal: the command has one of its own, and what is typed reaches it."""

import array
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from hashidrill.gamedays.training.inside import client

WITHIN_S = 20.0


class Door:
    """Answers one request as a game does: it runs the command in a session of its own, on the terminal that came."""

    def __init__(self, path):
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with self._listener, self._listener.accept()[0] as peer:
            request, fds, *_ = socket.recv_fds(peer, 65536, 3)
            code = subprocess.run(
                json.loads(request)["words"][1:],
                stdin=fds[0],
                stdout=fds[1],
                stderr=fds[2],
                check=False,
                preexec_fn=own_session,
            ).returncode
            for fd in fds:
                os.close(fd)
            peer.sendall(json.dumps({"code": code}).encode() + b"\n")


def own_session():
    os.setsid()
    with contextlib.suppress(OSError):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Typist:
    """A person at a terminal, who typed `on consul-1 COMMAND`."""

    def __init__(self, door, *words, before=""):
        code = f"import sys; sys.argv[0] = 'on'; sys.path.insert(0, {str(Path(client.__file__).parent)!r}); {before}"
        code += f"import client; client.DOOR = {str(door)!r}; sys.exit(client.main('on', ['consul-1', *{words!r}]))"
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-c", code])
        self.seen = b""

    def sees(self, text):
        end = time.monotonic() + WITHIN_S
        while text not in self.seen:
            left = end - time.monotonic()
            ready, _, _ = select.select([self.terminal], [], [], max(0, left))
            assert ready, f"{text!r} never came: {self.seen!r}"
            self.seen += os.read(self.terminal, 65536)
        self.seen = self.seen.partition(text)[2]

    def types(self, data):
        os.write(self.terminal, data)

    def ends(self):
        """The exit code; a command that was stopped fails the test at once."""
        end = time.monotonic() + WITHIN_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError):  # what it prints must be read, or it could not end
                if select.select([self.terminal], [], [], 0.05)[0]:
                    self.seen += os.read(self.terminal, 65536)
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid:
                assert not os.WIFSTOPPED(status), f"stopped by {signal.Signals(os.WSTOPSIG(status)).name}"
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        pytest.fail("it never ended")


@pytest.fixture
def on(tmp_path):
    def start(*words, **more):
        Door(tmp_path / "door")
        return Typist(tmp_path / "door", *words, **more)

    return start


def test_a_command_that_reads_the_terminal_gets_what_is_typed(on):
    typist = on("cat")
    typist.types(b"hello\r")
    typist.sees(b"hello")  # the terminal's echo
    typist.sees(b"hello")  # and cat's
    typist.types(b"\x04")
    assert typist.ends() == 0


def test_a_question_can_be_answered(on, tmp_path):
    file = tmp_path / "file"
    file.touch()
    typist = on("rm", "-i", str(file))
    typist.sees(b"remove")
    typist.types(b"y\r")
    assert typist.ends() == 0
    assert not file.exists()


@pytest.mark.parametrize("key", [b"\x03", b"\x1c"], ids=["Ctrl-C", "Ctrl-backslash"])
def test_a_key_ends_the_command_and_not_the_game(on, key):
    typist = on("sh", "-c", "echo started; exec cat")
    typist.sees(b"started")
    typist.types(key)
    assert typist.ends() != 0


def test_ctrl_z_stops_nothing(on):
    """top and vi stop themselves, and nothing would continue them."""
    stops_itself = "trap 'kill -STOP $$' TSTP; echo started; read line; echo got $line"
    typist = on("sh", "-c", stops_itself)
    typist.sees(b"started")
    typist.types(b"\x1ahello\r")
    typist.sees(b"got hello")
    assert typist.ends() == 0


def test_the_command_has_the_size_of_the_terminal_and_the_terminal_is_as_before(on):
    typist = on("stty", "size")
    fcntl.ioctl(typist.terminal, termios.TIOCSWINSZ, array.array("H", [33, 101, 0, 0]))
    before = termios.tcgetattr(typist.terminal)
    typist.sees(b"33 101")
    assert typist.ends() == 0
    assert termios.tcgetattr(typist.terminal) == before


def test_all_that_was_printed_comes_before_the_end(on):
    typist = on("sh", "-c", "seq 20000; echo last")
    typist.sees(b"last")
    assert typist.ends() == 0


def test_in_the_background_it_reads_nothing_and_is_not_stopped(on):
    """As `on consul-1 cat &`: another process group has the terminal."""
    typist = on("cat", before="import os; os.setpgid(0, 0) if os.fork() == 0 else os._exit(os.wait()[1] >> 8); ")
    assert typist.ends() == 0
