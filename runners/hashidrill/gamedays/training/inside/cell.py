"""A shell of a trainee on one host: what it can see, and the attendant that serves it.

`python -I -S -c BOOT SPEC_FILE`, inside the game's sandbox. The process forks. The child gets its own PID, mount, IPC
and UTS namespaces and the host's network. It sees only its own processes, the system's programs, the host's folder and
its own home; it has no capability and runs as the agents' user. The parent stays outside, as the attendant: it carries
out the requests of the shell's commands (hashidrill.gamedays.training.inside.client), and reports typed lines to the
game's keeper.

The spec: root, id, host, hosts {name: {address, pid, folder, agents, environment}}, user ([uid, gid] or null), binaries
{name: path}, python (the interpreter and its prefix), hidden (folders that must not be seen), boot (how to start this
module again), client (the path of client.py), command, term.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hashidrill.core.util import syscalls as sc
from hashidrill.gamedays.training.inside import own, rotation
from hashidrill.lab.local.inside import journalctl, systemctl

_MS_RDONLY, _MS_REMOUNT = 1, 32
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CLONE_NEWUTS = 0x0400_0000
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt")
_TOOLS = "/opt/hashistack/bin"
_CLIENT_NAMES = (
    *("help", "say", "hint", "users", "pager", "on", "rotation"),
    *("systemctl", "journalctl", "iostat", "hashidrill"),
)
_HOME = "/home/oncall"
_LOOK_S = 0.3
_DISK_EVERY_S = 1.0
_KILLED = 128
_NO_SUCH_UNIT = 5
_RC = r"""
PS1='\h:\w\$ '
enable -n help
unset HISTFILE HISTCONTROL HISTIGNORE HISTTIMEFORMAT PROMPT_COMMAND
shopt -s cmdhist checkwinsize
__typed() { local l; l=$(history 1); l=${l#*[0-9]  }; printf '%s\t%s\n' "${EPOCHREALTIME:-$(date +%s)}" "${l//$'\n'/ ; }" >> /run/game/typed; }
PS0='$(__typed)'
alias ll='ls -l'
"""  # noqa: E501 - one function of bash


def main(path: str) -> int:
    """The exit code of the shell, or of the command."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs an import here
        spec = json.load(file)
    cell = f"{spec['root']}/cells/{spec['id']}"
    os.makedirs(f"{cell}/share", exist_ok=True)  # noqa: PTH103 - as above
    owner = spec["user"] or [os.geteuid(), os.getegid()]
    typed = f"{cell}/share/typed"
    os.close(os.open(typed, os.O_CREAT | os.O_WRONLY, 0o600))
    own.write_disk_figures(spec, f"{cell}/diskstats")
    door = socket.socket(socket.AF_UNIX)
    door.bind(f"{cell}/share/door")
    door.listen(16)
    for each in (f"{cell}/share", typed, f"{cell}/share/door"):
        os.chown(each, *owner)
    child = os.fork()
    if child == 0:
        door.close()
        _as_parent_of_a_shell(spec, cell)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the shell
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    over = threading.Event()
    attendant = Attendant(spec, typed)
    threading.Thread(target=attendant.serve, args=(door,), daemon=True).start()
    noting = threading.Thread(target=attendant.note_until, args=(over,), daemon=True)
    noting.start()
    status = os.waitpid(child, 0)[1]
    over.set()
    noting.join(5)
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - as above
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _KILLED - code


# the attendant


class Attendant:
    """Answers the requests of one shell."""

    def __init__(self, spec: dict[str, Any], typed: str, run: Callable[..., Any] = subprocess.run) -> None:
        self._spec, self._typed, self._run = spec, typed, run
        self._read = 0

    def serve(self, door: socket.socket) -> None:
        while True:
            connection, _ = door.accept()
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        fds: list[int] = []
        with connection, contextlib.suppress(OSError, ValueError, LookupError, RecursionError):
            line, fds, _, _ = socket.recv_fds(connection, 1 << 16, 3)
            request = json.loads(line)
            answer = self.answer(str(request["name"]), [str(word) for word in request["words"]], fds)
            connection.sendall(json.dumps(answer).encode() + b"\n")
        for fd in fds:
            os.close(fd)

    def answer(self, name: str, words: list[str], fds: list[int]) -> dict[str, Any]:
        """The answer to a command of the shell: `text` and `error` to print, and its exit `code`."""
        if name == "say":
            told = self.keeper({"op": "say", "what": words[0], "words": " ".join(words[1:])})
            return {"text": told["text"]} if "text" in told else {"error": told.get("error", "the game is over")}
        if name == "help":
            return {"text": help_text(self._spec["host"], self._spec["hosts"])}
        if name == "on":
            return self._elsewhere(words[0], words[1:], fds)
        if name in {"systemctl", "journalctl"}:
            return self._hand(name, words)
        if name == "rotation":
            return rotation.answer(words, self._spec["hosts"], Path(f"{self._spec['root']}/cells/rotation"))
        return {"error": f"{name}: no such command", "code": 127}

    def _hand(self, name: str, words: list[str]) -> dict[str, Any]:
        """Runs the host's systemctl and journalctl, which signal processes that the shell cannot see.

        The command line is parsed once, so the checked command is the one that runs.
        """
        host = self._spec["hosts"][self._spec["host"]]
        tool: Any = systemctl if name == "systemctl" else journalctl
        try:
            asked = tool.parse(words)
        except systemctl.MisusedError as error:
            return {"error": str(error), "code": 1}
        if foreign := [unit for unit in asked.units if unit not in host["agents"]]:
            return {"error": f"Unit {foreign[0]}.service not found.", "code": _NO_SUCH_UNIT}
        if name == "systemctl" and asked.verb not in systemctl.LOOKS:
            for unit in asked.units:
                self._acted(asked, unit)
        out, err = io.StringIO(), io.StringIO()
        code = tool.run(asked, socket=self._socket(), logs=f"{host['folder']}/logs", out=out, err=err)
        return {"text": out.getvalue().rstrip("\n"), "error": err.getvalue().rstrip("\n"), "code": code}

    def _acted(self, asked: systemctl.Systemctl, unit: str) -> None:
        text = f"{asked.verb} {unit}"
        if asked.verb == "kill":
            text += f" (SIG{asked.signal.name.removeprefix('SIG')})"
        self.keeper({"op": "acted", "host": self._spec["host"], "text": text, "wall": time.time()})

    def _socket(self) -> str:
        return f"{self._spec['root']}/s/{self._spec['host']}.host"

    def _elsewhere(self, host: str, words: list[str], fds: list[int]) -> dict[str, Any]:
        if host not in self._spec["hosts"]:
            return {"error": f"on: no host {host}; there are {', '.join(self._spec['hosts'])}", "code": 2}
        number = f"{self._spec['id']}-{time.monotonic_ns()}"
        spec = {**self._spec, "id": number, "host": host, "command": words}
        path = f"{self._spec['root']}/cells/{number}.json"
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123 - no pathlib
            json.dump(spec, file)
        done = self._run([*self._spec["boot"], path], stdin=fds[0], stdout=fds[1], stderr=fds[2], check=False)
        return {"code": done.returncode}

    def keeper(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request to the game's keeper; returns its answer, or {} if the game has ended."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(30)
                connection.connect(f"{self._spec['root']}/door")
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as lines:
                    answer: dict[str, Any] = json.loads(lines.readline() or b"{}")
        except (OSError, ValueError):
            return {}
        return answer

    def note_until(self, over: threading.Event) -> None:
        """Passes typed lines on to the keeper until `over` is set."""
        looked_s = time.monotonic()
        while not over.wait(_LOOK_S):
            self.note()
            if time.monotonic() - looked_s > _DISK_EVERY_S:
                looked_s = time.monotonic()
                own.write_disk_figures(self._spec, f"{self._spec['root']}/cells/{self._spec['id']}/diskstats")
        self.note()

    def note(self) -> None:
        """Passes new lines on to the keeper."""
        with contextlib.suppress(OSError), open(self._typed, "rb") as file:  # noqa: PTH123 - no pathlib here
            file.seek(self._read)
            lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                wall, _, text = line.partition("\t")
                with contextlib.suppress(ValueError):
                    self.keeper({"op": "typed", "host": self._spec["host"], "text": text, "wall": float(wall)})


_LOOKS = {
    "consul": "consul members, consul info, consul operator raft list-peers",
    "nomad": "nomad server members, nomad node status, nomad job status",
    "vault": "vault status, vault operator raft list-peers",
}
_METRICS = {"consul": "curl -s $CONSUL_HTTP_ADDR/v1/agent/metrics | jq ."}


def help_text(here: str, hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """One screen: the commands to observe, to repair and to report."""
    agents = list(hosts[here]["agents"])
    agent, other = agents[0] if agents else "consul", next((name for name in hosts if name != here), here)
    looks = [_LOOKS[each] for each in agents if each in _LOOKS] + [
        _METRICS[each] for each in agents if each in _METRICS
    ]
    return "\n".join(
        [
            *textwrap.wrap(f"You are on call, on {here}. Hosts: {', '.join(hosts)}", 78),
            "",
            "look    users                     what users see now; pager: their message",
            *(f"        {look}" for look in looks),
            f"        journalctl -u {agent} -n 50, systemctl status {agent}   log, process",
            "        iostat, df -h /srv/*      the disk of this host; also /proc/diskstats",
            "        ss -tan, ip neigh, top    connections, neighbours, your own processes",
            f"        on {other} COMMAND".ljust(34) + "any of these on another host",
            f"        ${agent.upper()}_DATA, ${agent.upper()}_CONFIG, ${agent.upper()}_LOG   where its files are",
            f"repair  systemctl stop|start|restart|kill -s SIGNAL {agent}",
            "        rotation out|in HOST      take a host out of the users' rotation, or in",
            "say     say ready                 you have looked around; now it may break",
            "        say detected              you see that something is wrong",
            "        say diagnosis WORDS       what is wrong, where; the last one counts",
            "        say hint                  the next hint, for points",
            "        say done                  users are back: this ends the game; `back` is",
            "                                  a normal p50 and few errors for 15 s more",
            "        say give-up               this ends the game as failed",
            "",
            "exit leaves this shell; the game goes on; `hashidrill lab shell` opens another.",
        ]
    )


# the shell


def _as_parent_of_a_shell(spec: dict[str, Any], cell: str) -> None:
    """Never returns. It leaves its PID namespace, and so cannot start threads, which the attendant must do."""
    code = 71
    try:
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)  # meant for the shell
        sc.die_with_parent(os.getppid())
        own.enter(spec)
        sc.unshare(sc.CLONE_NEWPID)
        first = os.fork()
        if first == 0:
            _as_shell(spec, cell)
        code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    except OSError as error:
        sys.stderr.write(f"this shell cannot be opened: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(code if code >= 0 else _KILLED - code)


def _as_shell(spec: dict[str, Any], cell: str) -> None:
    """Never returns."""
    code = 71
    try:
        code = _shell(spec, cell)
    except OSError as error:
        sys.stderr.write(f"this shell cannot be opened: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


def _shell(spec: dict[str, Any], cell: str) -> int:
    host = spec["hosts"][spec["host"]]
    network = os.open(f"/proc/{host['pid']}/ns/net", os.O_RDONLY)
    sc.setns(network, sc.CLONE_NEWNET)
    os.close(network)
    sc.unshare(sc.CLONE_NEWNS | sc.CLONE_NEWIPC | _CLONE_NEWUTS)
    socket.sethostname(spec["host"])
    listener = sc.notify_on(["fsync", "write", "read"], whole_disk=True)
    _register(listener, spec, host)
    _build(spec, cell, host)
    home = _HOME
    os.chdir(home)
    environment = _environment(spec, host)
    words = list(spec["command"]) or ["bash", "--rcfile", "/run/game/rc", "-i"]
    if spec["command"]:
        _log(spec)
    return _run_as_init(words, environment, spec["user"], interactive=not spec["command"])


def _register(listener: int, spec: dict[str, Any], host: dict[str, Any]) -> None:
    """Makes the host's disk as slow for the shell as for the host's agents."""
    with socket.socket(socket.AF_UNIX) as registration:
        registration.connect(f"{spec['root']}/s/reg")
        hello = json.dumps({"host": spec["host"], "data": os.path.realpath(f"{host['folder']}/data")}).encode()
        socket.send_fds(registration, [hello], [listener])
        registration.recv(1)
    os.close(listener)


def _log(spec: dict[str, Any]) -> None:
    line = " ".join(spec["command"]).replace("\n", " ; ")
    with open("/run/game/typed", "a", encoding="utf-8") as file:  # noqa: PTH123 - no pathlib here
        file.write(f"{time.time()}\t{line}\n")


def _environment(spec: dict[str, Any], host: dict[str, Any]) -> dict[str, str]:
    environment = {
        "PATH": f"{_TOOLS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": _HOME,
        "USER": "oncall",
        "LOGNAME": "oncall",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": spec.get("term") or "dumb",
        "EDITOR": "vi",
        **host["environment"],
    }
    for agent in host["agents"]:
        name, folder = agent.upper(), host["folder"]
        environment |= {
            f"{name}_DATA": f"{folder}/data/{agent}",
            f"{name}_CONFIG": f"{folder}/{agent}.json",
            f"{name}_LOG": f"{folder}/logs/{agent}.log",
        }
    return environment


def _run_as_init(words: list[str], environment: dict[str, str], user: list[int] | None, *, interactive: bool) -> int:
    """The caller is the first process of its PID namespace: it starts the command, reaps, and ends with the command."""
    child = os.fork()
    if child == 0:
        try:
            if os.isatty(0):
                _take_terminal(shared=interactive)
            for number in (signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            sc.disarm_programs()
            if user:
                os.setgroups([])
                os.setgid(user[1])
                os.setuid(user[0])
            sc.die_with_parent(1)
            os.umask(0o022)
            os.execvpe(words[0], words, environment)  # noqa: S606 - the trainee's own command
        except OSError as error:
            sys.stderr.write(f"{words[0]}: {error.strerror}\n")
            sys.stderr.flush()
        os._exit(127)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _KILLED - code


def _take_terminal(*, shared: bool) -> None:
    """`shared`: the shell outside uses it too. The terminal of `on` is used only by the command."""
    if shared:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    else:
        os.setsid()
        with contextlib.suppress(OSError):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)


# its file system


def _build(spec: dict[str, Any], cell: str, host: dict[str, Any]) -> None:
    """Builds a new root in memory; afterwards, only the files in it are visible."""
    sc.mount("none", "/", "", sc.MS_REC | sc.MS_PRIVATE)
    new = f"{cell}/root"
    os.makedirs(new, exist_ok=True)  # noqa: PTH103 - no pathlib here
    sc.mount("root", new, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=64m")
    for name in _SYSTEM:
        _system(f"/{name}", f"{new}/{name}")
    for name in ("dev", "proc", "tmp", "run", "var", "srv", "home"):
        os.mkdir(f"{new}/{name}", 0o755)  # noqa: PTH102 - as above
    sc.mount("/dev", f"{new}/dev", "", sc.MS_BIND | sc.MS_REC)
    for quiet in ("dev/shm", "dev/mqueue"):
        if os.path.isdir(f"{new}/{quiet}"):  # noqa: PTH112 - as above
            sc.mount("none", f"{new}/{quiet}", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=1777,size=16m")
    sc.mount("proc", f"{new}/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
    sc.mount(f"{cell}/diskstats", f"{new}/proc/diskstats", "", sc.MS_BIND)  # the machine's disks are not the host's
    os.chmod(f"{new}/tmp", 0o1777)  # noqa: PTH101, S103, S108 - as /tmp is
    _tools(spec, new)
    prefix = spec["python"]["prefix"]
    if not prefix.startswith("/usr"):
        _bind(prefix, f"{new}{prefix}")
    for each in spec["hidden"]:
        if os.path.isdir(new + each):  # noqa: PTH112 - as above
            sc.mount("none", new + each, "tmpfs", _MS_RDONLY, "mode=755,size=4k")
    _bind(host["folder"], new + host["folder"])
    own.logs(new, host)
    _home(spec, new, host)
    _bind(f"{cell}/share", f"{new}/run/game")
    with open(f"{new}/run/game/rc", "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
        file.write(_RC)
    os.mkdir(f"{new}/.old")  # noqa: PTH102 - as above
    os.chdir(new)
    if sc._libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b".old") != 0:  # noqa: SLF001 - this module's kind
        raise OSError("pivot_root was refused")
    os.chdir("/")
    sc.detach("/.old")
    os.rmdir("/.old")  # noqa: PTH106 - as above


def _system(source: str, target: str) -> None:
    if os.path.islink(source):  # noqa: PTH114 - no pathlib here
        os.symlink(os.readlink(source), target)  # noqa: PTH115, PTH211 - as above
    elif os.path.isdir(source):  # noqa: PTH112 - as above
        _bind(source, target)


def _bind(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)  # noqa: PTH103 - no pathlib here
    sc.mount(source, target, "", sc.MS_BIND | sc.MS_REC)


def _tools(spec: dict[str, Any], new: str) -> None:
    opt = f"{new}/opt"
    if os.path.isdir(opt):  # noqa: PTH112 - no pathlib here
        sc.mount("none", opt, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=4m")
    folder = new + _TOOLS
    os.makedirs(folder, 0o755, exist_ok=True)  # noqa: PTH103 - as above
    for name, path in spec["binaries"].items():
        os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY, 0o755))
        sc.mount(path, f"{folder}/{name}", "", sc.MS_BIND)
    with open(spec["client"], encoding="utf-8") as file:  # noqa: PTH123 - as above
        text = f"#!{spec['python']['program']} -IS\n{file.read()}"
    for name in _CLIENT_NAMES:
        with open(f"{folder}/{name}", "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
            file.write(text)
        os.chmod(f"{folder}/{name}", 0o755)  # noqa: PTH101, S103 - a program


def _home(spec: dict[str, Any], new: str, host: dict[str, Any]) -> None:
    home = new + _HOME
    os.makedirs(home, 0o755)  # noqa: PTH103 - no pathlib here
    os.makedirs(f"{new}/var/log")  # noqa: PTH103 - as above
    os.makedirs(f"{new}/var/tmp", exist_ok=True)  # noqa: PTH103, S108 - as above
    for agent in host["agents"]:
        folder = host["folder"]
        os.symlink(f"{folder}/data/{agent}", f"{new}/srv/{agent}")  # noqa: PTH211 - as above
        os.symlink(f"{folder}/logs/{agent}.log", f"{new}/var/log/{agent}.log")  # noqa: PTH211 - as above
        os.symlink(f"{folder}/{agent}.json", f"{home}/{agent}.json")  # noqa: PTH211 - as above
    with open(f"{new}/run/hosts", "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
        file.write("127.0.0.1 localhost\n" + "".join(f"{h['address']} {n}\n" for n, h in spec["hosts"].items()))
    sc.mount(f"{new}/run/hosts", f"{new}/etc/hosts", "", sc.MS_BIND)
    if spec["user"]:
        os.chown(home, *spec["user"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
