"""Commands that are run in a sandbox from outside, without nsenter."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from hashidrill.core.util import syscalls as sc
from hashidrill.core.util.enter import entering
from hashidrill.lab.sandbox.sandbox import sandbox

pytestmark = pytest.mark.needs("datacenter")
WITHIN_S = 60


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The pid of a sandbox's first process, as it is outside."""
    with sandbox(["sh", "-c", "echo up; exec sleep 600"], {}, tmp_path_factory.mktemp("sandbox") / "log") as box:
        assert box.output.readline() == b"up\n"
        yield (box.root / "pid").read_text().strip()


def run(start, *command, **more):
    return subprocess.run([*start, *command], capture_output=True, text=True, timeout=WITHIN_S, check=False, **more)


def test_a_command_is_in_the_sandbox_with_its_own_environment_and_its_exit_code_comes_back(first):
    seen = 'echo $COLOUR; ls /proc | grep -c "^[0-9]"; grep -c : /proc/net/dev; exit 7'
    start = entering(process=first, network="/proc/1/ns/net")
    done = run(start, "sh", "-c", seen, env={**os.environ, "COLOUR": "green"})
    assert done.returncode == 7, done.stderr
    colour, processes, devices = done.stdout.split()
    assert colour == "green"
    assert int(processes) < 10
    assert devices == "1", "its loopback device"


def test_the_network_alone_can_be_entered_and_no_other_thread_is_ever_there(first):
    def here():
        return Path("/proc/thread-self/ns/net").readlink()

    namespace = f"/proc/{first}/ns/net"
    before = here()
    assert run(entering(network=namespace), "cat", "/proc/net/dev").stdout.count(":") == 1
    assert sc.in_network(namespace, here) == Path(namespace).readlink() != before
    assert here() == before


def test_what_fails_in_another_namespace_fails_here():
    with pytest.raises(FileNotFoundError):
        sc.in_network("/proc/0/ns/net", os.getpid)


def test_a_command_that_a_signal_ends_and_one_that_is_not_there_say_so(first):
    start = entering(process=first)
    assert run(start, "sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL
    done = run(start, "no-such-command")
    assert (done.returncode, done.stderr) == (127, "no-such-command: No such file or directory\n")


def test_a_command_that_is_stopped_stops_who_waits_for_it_and_both_go_on(first):
    """As a shell's job does with Ctrl-Z and fg."""
    start = entering(process=first)
    with subprocess.Popen([*start, "sh", "-c", "kill -STOP $$; echo went on"], stdout=subprocess.PIPE) as waiting:
        _, status = os.waitpid(waiting.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        waiting.send_signal(signal.SIGCONT)
        assert waiting.communicate(timeout=WITHIN_S)[0] == b"went on\n"
