"""The small commands of a trainee's shell: help, say, hint, users, pager, on, rotation, iostat, systemctl, journalctl,
hashidrill.

This file is copied into the shell's file system. It needs only the standard library and the shell's socket
(`DOOR`). It is one program with several names.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import termios
import time
import tty

DOOR = "/run/game/door"
_CTRL_Z = b"\x1a"
_KEYS = {signal.SIGINT: b"\x03", signal.SIGQUIT: b"\x1c"}
_READS_NOTHING = frozenset(
    [
        "consul",
        "curl",
        "df",
        "du",
        "free",
        "iostat",
        "ip",
        "journalctl",
        "ls",
        "netstat",
        "ps",
        "rotation",
        "ss",
        "stat",
        "systemctl",
        "uptime",
        "users",
    ]
)
"""Commands that read no keys, unless a word says so (`-`, `@-`): what is typed meanwhile stays for the shell."""


def main(name: str, words: list) -> int:  # type: ignore[type-arg]  # any Python 3 runs it
    """The exit code."""
    if name == "hashidrill":  # the same command as outside
        if words[:1] != ["say"]:
            sys.stderr.write(
                "this shell has only `hashidrill say ready | detected | diagnosis WORDS | done | hint | give-up`\n"
            )
            return 2
        name, words = "say", words[1:]
    if name in ("hint", "users", "pager"):
        name, words = "say", [name, *words]
    if name == "say" and not words:
        sys.stderr.write("say ready | detected | diagnosis WORDS | done | hint | give-up\n")
        return 2
    if name == "on" and len(words) < 2:
        sys.stderr.write("on HOST COMMAND...\n")
        return 2
    request = json.dumps({"name": name, "words": words}).encode() + b"\n"
    answer = b""
    with socket.socket(socket.AF_UNIX) as door, contextlib.suppress(ConnectionError, FileNotFoundError):
        door.connect(DOOR)
        if name == "on" and os.isatty(0):
            answer = through_a_terminal(door, request, keys=reads_keys(words[1:]))
        else:
            socket.send_fds(door, [request], [0, 1, 2])
            answer = door.makefile("rb").readline()
    if not answer.strip():
        sys.stderr.write("the game is over\n")
        return 1
    told = json.loads(answer)
    if told.get("text"):
        sys.stdout.write(told["text"] + "\n")
    if told.get("error"):
        sys.stderr.write(told["error"] + "\n")
    return int(told.get("code", 1 if told.get("error") else 0))


def iostat(words: list) -> int:  # type: ignore[type-arg]  # as above
    """`iostat [SECONDS [TIMES]]`: what the host's disk did in each time, as sysstat's `iostat -x` shows it."""
    numbers = [int(word) for word in words if word.isdecimal()]
    seconds, times = [*numbers, *(2, 1)[len(numbers) :]][:2]
    titles = ("Device", "r/s", "rkB/s", "r_await", "w/s", "wkB/s", "w_await", "f/s", "f_await", "%util")
    before = disk()
    for _ in range(times):
        time.sleep(max(seconds, 1))
        now = disk()
        took = [(after - at) / max(seconds, 1) for at, after in zip(before, now, strict=False)]
        before = now
        rates = [took[0], took[2] / 2, waits(took[0], took[3]), took[4], took[6] / 2, waits(took[4], took[7])]
        rates += [took[15], waits(took[15], took[16]), min(took[9] / 10, 100)]
        for row in (titles, ("vda", *(f"{rate:.1f}" for rate in rates))):
            sys.stdout.write(f"{row[0]:6}{''.join(f'{cell:>8}' for cell in row[1:])}\n")
        sys.stdout.flush()
    return 0


def waits(number: float, waited_ms: float) -> float:
    return waited_ms / number if number else 0


def disk() -> list:  # type: ignore[type-arg]  # as above
    with open("/proc/diskstats", encoding="utf-8") as file:  # noqa: PTH123 - no pathlib here
        return [int(word) for word in file.readline().split()[3:]]


def reads_keys(command: list) -> bool:  # type: ignore[type-arg]  # as above
    """Whether the command may read typed input."""
    return bool({"-", "@-"} & {*command}) or os.path.basename(command[0]) not in _READS_NOTHING  # noqa: PTH119 - no pathlib here


def through_a_terminal(door: socket.socket, request: bytes, *, keys: bool) -> bytes:
    """Gives the command on the other host its own terminal, and copies: the command is in another session, so a read
    from this terminal would stop it, and the game with it. A background command gets no input.
    """
    if os.tcgetpgrp(0) != os.getpgrp():
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - no pathlib here
            socket.send_fds(door, [request], [nothing.fileno(), 1, 2])
        return door.makefile("rb").readline()
    ours, theirs = os.openpty()
    before = termios.tcgetattr(0)
    same_size(ours)
    signal.signal(signal.SIGWINCH, lambda *_: same_size(ours))
    try:
        if keys:
            tty.setraw(0, termios.TCSADRAIN)  # earlier typed text stays
        else:
            for number, key in _KEYS.items():
                signal.signal(number, lambda *_, key=key: os.write(ours, key))
            signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        socket.send_fds(door, [request], [theirs if os.isatty(fd) else fd for fd in (0, 1, 2)])
        os.close(theirs)
        return copied(door, ours, keys=keys)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def same_size(terminal: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))


def copied(door: socket.socket, terminal: int, *, keys: bool) -> bytes:
    """Copies both ways (without `keys`, the command's output alone) until the answer, then the rest of the output."""
    sources, answer = [*([0] if keys else []), terminal, door.fileno()], b""
    while True:
        ready, _, _ = select.select(sources, [], [], 0 if answer.endswith(b"\n") else None)
        if not ready:
            return answer
        for source in ready:
            try:
                data = os.read(source, 65536)
            except OSError:  # the other end is closed
                data = b""
            if source == door.fileno():
                answer += data
            elif data:
                # a command that Ctrl-Z stopped could never be continued: it has no shell
                written(terminal if source == 0 else 1, data.replace(_CTRL_Z, b"") if source == 0 else data)
            if source == door.fileno() and (not data or answer.endswith(b"\n")):
                sources = [each for each in sources if each == terminal]  # only the printed output remains to be copied
                answer = answer if answer.endswith(b"\n") else answer + b"\n"
            elif not data:
                sources.remove(source)


def written(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a closed pipe ends it quietly
    called = os.path.basename(sys.argv[0])  # noqa: PTH119 - it starts in 20 ms
    sys.exit(iostat(sys.argv[1:]) if called == "iostat" else main(called, sys.argv[1:]))
