"""The few Linux calls that Python 3.11's standard library lacks: namespaces, mounts, prctl, seccomp, pidfd."""

import ctypes
import os
import platform
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

CLONE_NEWNS = 0x0002_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_MNT_DETACH = 2

_CPUCLOCK_SCHED = 2  # <linux/posix-timers_types.h>: the clock of a process is ~pid << 3 | this
_PR_SET_DUMPABLE = 4
_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x2008_0522
_MOST_CAPABILITIES = 64

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Moves this process into new namespaces. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enters the namespace behind `fd`. Raises OSError."""
    _check(_libc.setns(fd, kind), "setns")


def in_own_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a new thread that ends after it, so that only this thread leaves the process's namespaces."""
    found: list[T] = []
    problems: list[BaseException] = []

    def worked() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - raised by the caller, in its own thread
            problems.append(error)

    thread = threading.Thread(target=worked, name="in_own_thread")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return found[0]


def in_network(namespace: str, work: Callable[[], T]) -> T:
    """Runs `work` in a new thread, in the network namespace at that path. Raises OSError."""

    def entered() -> T:
        fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            setns(fd, CLONE_NEWNET)
        finally:
            os.close(fd)
        return work()

    return in_own_thread(entered)


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """Mounts a file system on a directory. Raises OSError that names the target."""
    result = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, f"mount {kind or source} on {target}")


def detach(target: str) -> None:
    """Unmounts the uppermost file system on a directory, in this mount namespace, even if the file system is in use.

    Raises OSError that names the target.
    """
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"umount {target}")


def disarm_programs() -> None:
    """Takes all capabilities from programs that this process executes later, as any user; the process keeps its own.

    Forked children that do not exec also keep their capabilities. Raises OSError.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: the low halves, then the high ones
    _check(_libc.capget(header, sets), "capget")
    sets[2] = sets[5] = 0
    _check(_libc.capset(header, sets), "capset")
    for capability in range(_MOST_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            if not capability:
                _check(-1, "drop the bounding set")
            return  # past the last capability that this kernel knows


def close_memory() -> None:
    """From now on, only processes with CAP_SYS_PTRACE can read this process's memory, files or root."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the thread that started it ends; `parent` is the pid of its process.

    Call this after any change of credentials, which clears the setting. Exits at once if the parent has already ended.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


# Syscall numbers by machine, under the kernel's names; calls that a machine lacks are left out.
_NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "read": 0,
        "write": 1,
        "pread64": 17,
        "pwrite64": 18,
        "readv": 19,
        "writev": 20,
        "msync": 26,
        "fsync": 74,
        "fdatasync": 75,
        "sync_file_range": 277,
        "fallocate": 285,
        "preadv": 295,
        "pwritev": 296,
        "preadv2": 327,
        "pwritev2": 328,
        "seccomp": 317,
        "sync": 162,
        "syncfs": 306,
    },
    "aarch64": {
        "read": 63,
        "write": 64,
        "readv": 65,
        "writev": 66,
        "pread64": 67,
        "pwrite64": 68,
        "preadv": 69,
        "pwritev": 70,
        "fsync": 82,
        "fdatasync": 83,
        "sync_file_range": 84,
        "fallocate": 47,
        "msync": 227,
        "preadv2": 286,
        "pwritev2": 287,
        "seccomp": 277,
        "sync": 81,
        "syncfs": 267,
    },
}
_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

OPERATIONS = {
    "fsync": ("fsync", "fdatasync", "sync_file_range"),
    "write": ("write", "pwrite64", "writev", "pwritev", "pwritev2", "fallocate"),
    "read": ("read", "pread64", "readv", "preadv", "preadv2"),
}
"""The system calls behind each disk operation that a fault can name."""
WHOLE_DISK = ("sync", "syncfs")
"""Calls that sync a whole disk; people use these calls, agents do not."""


def operation_of() -> dict[int, tuple[str, str]]:
    """Syscall number -> (disk operation, syscall name), for this machine."""
    numbers = _NUMBERS[platform.machine()]
    found = {numbers[name]: (operation, name) for operation, names in OPERATIONS.items() for name in names}
    return found | {numbers[name]: ("fsync", name) for name in WHOLE_DISK}


# Classic BPF, as <linux/bpf_common.h> and <linux/seccomp.h> define it.
_BPF_LD_ABS_W, _BPF_JEQ_K, _BPF_RET_K = 0x20, 0x15, 0x06
_DATA_NR, _DATA_ARCH = 0, 4
_RET_ALLOW, _RET_USER_NOTIF = 0x7FFF_0000, 0x7FC0_0000
_SET_MODE_FILTER = 1
_FLAG_NEW_LISTENER, _FLAG_WAIT_KILLABLE = 1 << 3, 1 << 5


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def notify_on(operations: Iterable[str], *, whole_disk: bool = False) -> int:
    """From now on, this process and its children wait for a supervisor's answer before each of these disk operations.

    `whole_disk`: also before the calls in WHOLE_DISK. Returns the listener's file descriptor, for the supervisor. The
    filter cannot be removed. Raises OSError if the kernel has no seccomp user notification (before 5.0).
    """
    numbers = _NUMBERS[platform.machine()]
    trapped = [numbers[name] for operation in operations for name in OPERATIONS[operation]]
    trapped += [numbers[name] for name in WHOLE_DISK if whole_disk]
    program = _filter(_AUDIT_ARCH[platform.machine()], trapped)
    buffer = ctypes.create_string_buffer(program, len(program))
    packed = _Program(len(program) // 8, ctypes.addressof(buffer))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    for flags in (_FLAG_NEW_LISTENER | _FLAG_WAIT_KILLABLE, _FLAG_NEW_LISTENER):  # the first since Linux 5.19
        listener = int(_libc.syscall(numbers["seccomp"], _SET_MODE_FILTER, flags, ctypes.byref(packed)))
        if listener >= 0:
            return listener
    return _check(listener, "seccomp user notification")


def _filter(arch: int, trapped: list[int]) -> bytes:
    def instruction(code: int, jump_true: int, jump_false: int, k: int) -> bytes:
        return struct.pack("=HBBI", code, jump_true, jump_false, k)

    count = len(trapped)
    return b"".join(
        [
            instruction(_BPF_LD_ABS_W, 0, 0, _DATA_ARCH),
            instruction(_BPF_JEQ_K, 1, 0, arch),
            instruction(_BPF_RET_K, 0, 0, _RET_ALLOW),
            instruction(_BPF_LD_ABS_W, 0, 0, _DATA_NR),
            *(instruction(_BPF_JEQ_K, count - i, 0, number) for i, number in enumerate(trapped)),
            instruction(_BPF_RET_K, 0, 0, _RET_ALLOW),
            instruction(_BPF_RET_K, 0, 0, _RET_USER_NOTIF),
        ]
    )


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process since it started; 0 if the process has ended."""
    try:
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    except OSError:
        return 0.0


def own_bytes(pid: int) -> int:
    """Bytes outside of files that the process holds and the kernel cannot reclaim; 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/status") as file:  # noqa: PTH123 - no pathlib here
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith(("RssAnon:", "RssShmem:")))
    except OSError:
        return 0


def process_state(pid: int) -> tuple[str, int] | None:
    """(state letter, start time in clock ticks since boot) of a process; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - hot path, and pathlib costs an import
            fields = stat.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[19])


def signal_process(pid: int, start_time: int, number: int) -> bool:
    """Signals exactly that process, never a later one with the same pid. False if the process has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        state = process_state(pid)
        if state is None or state[1] != start_time:
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True
