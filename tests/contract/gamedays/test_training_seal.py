"""What a game's keeper does before anything else, and what an ordinary user can read of what it keeps."""

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hashidrill.core.errors import MachineError
from hashidrill.gamedays.training.seal import Key, Sealer, seal

SECRET = b"fault.intent disk.latency"
_DUMPABLE = 4


def test_nothing_that_starts_threads_is_imported_before_the_seal():
    """An ordinary user gets no namespace in a process of several threads, and numpy starts one for each core."""
    code = "import sys, hashidrill.gamedays.training.sealed; print({'numpy', 'anyio', 'pydantic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@contextlib.contextmanager
def ordinary(work):
    """That work in a process of an ordinary user: what it tells as JSON. The process ends with the block."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            if os.geteuid() == 0:
                account = pwd.getpwnam("nobody")
                os.setgroups([])
                os.setgid(account.pw_gid)
                os.setuid(account.pw_uid)
                ctypes.CDLL(None).prctl(_DUMPABLE, 1, 0, 0, 0)  # as after the start of a program of theirs
            with os.fdopen(writes, "w") as out:
                work(lambda told: (out.write(json.dumps(told) + "\n"), out.flush()))
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as lines:
        try:
            yield json.loads(lines.readline() or "null")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
            os.waitpid(pid, 0)


def keeper(folder):
    """It seals, writes in clear and encrypted, and starts a program, as the engine is one."""

    def work(say):
        try:
            seal(folder)
        except MachineError as refused:
            say({"refused": str(refused)})
            return
        (folder / "clear").write_bytes(SECRET)
        (folder / "journal.jsonl").write_bytes(Sealer(Key().public)(SECRET))
        with subprocess.Popen(["sleep", "30"]) as engine:
            say({"keeper": os.getpid(), "engine": engine.pid})
            engine.wait()

    return ordinary(work)


def taken(paths):
    """What an ordinary user gets of them; None of what the kernel refuses."""

    def work(say):
        found = {}
        for path in paths:
            try:
                found[path] = Path(path).read_bytes().decode("latin-1") if "/ns/" not in path else str(os.open(path, 0))
            except OSError:
                found[path] = None
        say(found)

    with ordinary(work) as found:
        return found


@pytest.fixture
def folder():
    base = Path(tempfile.mkdtemp(dir="/tmp", prefix="seal-"))
    base.chmod(0o755)
    (base / "sealed").mkdir()
    if os.geteuid() == 0:
        shutil.chown(base / "sealed", "nobody")
    yield base / "sealed"
    shutil.rmtree(base)


@pytest.mark.lie
def test_an_ordinary_user_gets_nothing_of_the_keeper_and_of_the_engines_files_what_is_encrypted(folder):
    """By /proc/PID/root, or as `nsenter -U` does."""
    with keeper(folder) as told:
        if "refused" in told:
            pytest.skip(told["refused"])
        of_keeper, of_engine = f"/proc/{told['keeper']}", f"/proc/{told['engine']}"
        refused = [f"{of_keeper}/root{folder}/clear", f"{of_keeper}/ns/user", f"{of_keeper}/environ"]
        journal = f"{of_engine}/root{folder}/journal.jsonl"
        try:
            found = taken([*refused, journal])
        finally:
            os.kill(told["engine"], 9)
    assert {path: found[path] for path in refused} == dict.fromkeys(refused)
    assert found[journal], "the engine's files are open to its user: only their content is closed"
    assert SECRET.decode() not in found[journal]
