"""What a trainee tries who would rather search than diagnose.

Standard library alone: it runs in the trainee's own shell. `program(tells)` is the text for `python3 -c`: the words it
searches for are in no argument and no environment, so that it does not find itself. It prints one JSON object: what it
tried, how much it saw there, what it could not read, and what it found. hashidrill's own library is not among the
findings, but counted apart: it lies on the disk before any scenario begins, and says nothing of which one is played.
"""

import base64
import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_OF_A_FILE = 512 * 1024
MOST_OF_A_PROCESS = 64 * 1024 * 1024
MOST_FILES = 40_000
SECONDS = 60.0
UNSEARCHED = ("/proc", "/sys", "/dev", "/usr", "/lib", "/lib64", "/bin", "/sbin", "/boot", "/opt/venv")
PACKAGED = {"site-packages", "dist-packages", "__pycache__", "lib-dynload"}
"""What came with the machine's Pythons."""
RULES = (b" drop", b" reject", b"dnat", b"redirect", b"numgen", b"netem", b"tbf ", b" queue", b"-j DROP", b"-j REJECT")
SAME_FOR_PEERS = ("TracerPid", "Seccomp", "Seccomp_filters", "NoNewPrivs", "State")
_COMMANDS = """
rules: nft list ruleset; nft -a list tables; iptables-save; ip6tables-save; tc -s qdisc show; tc filter show
rules: ip rule
links: ip -d link; ip route show table all; ip netns list; ip neigh
sockets: ss -tanpi; netstat -tanp; lsof -nP -iTCP; nstat -az; conntrack -L; ss -tan state time-wait; ss -xap
sockets: ss -lntup
processes: ps -ef --forest; ps axewww; pstree -alp; lsns
mounts: findmnt -A; df -a
kernel: dmesg; ipcs -a; bpftool prog; journalctl -n 500 --no-pager
our own commands: hashidrill lab status; hashidrill lab status --json; hashidrill history; hashidrill report last
our own commands: hashidrill heal; hashidrill list scenarios
products: consul kv get -recurse -keys; consul kv get -recurse; consul catalog services
products: consul catalog nodes -detailed; consul members -detailed; consul operator raft list-peers
products: nomad job status; nomad node status -verbose; nomad eval list; vault status; vault secrets list
products: vault policy list
"""
COMMANDS = [
    (place, command)
    for place, _, listed in (line.partition(": ") for line in _COMMANDS.strip().splitlines())
    for command in listed.split("; ")
]
_OF_THE_KERNEL = "mounts self/mountinfo keys locks net/unix net/tcp net/udp net/arp net/nf_conntrack cmdline"
_ASKED = """
/ /proxies /version /v1/agent/self /v1/agent/checks /v1/session/list /v1/agent/metrics /v1/jobs
/v1/allocations /metrics /debug/pprof/cmdline
"""
ASKED = _ASKED.split()
PRODUCTS = (4646, 4647, 4648, 8200, 8201, 8300, 8301, 8302, 8500, 8501, 8502, 8503, 8600)
"""Where agents listen: hosts differ by which of them they have."""
API_PORTS = ({4646}, {8200}, {8500, 8501})
PORTS = (22, 80, 443, 4646, 8000, 8080, 8200, 8474, 8475, 8500, 9090)


class Search:
    """Counts what was looked at, and keeps what matches."""

    def __init__(self, tells: Iterable[str], library: Iterable[str] = ()):
        self.tells = sorted({tell.lower().encode() for tell in tells})
        self.library = tuple(str(Path(one)) for one in library)
        self.tried: dict[str, dict[str, int]] = {}
        self.found: list[dict[str, str]] = []
        self.shelf = 0
        self.listens: list[int] = []
        self.links: list[list[str | int]] = []

    def _row(self, place: str) -> dict[str, int]:
        return self.tried.setdefault(place, {"looked at": 0, "bytes": 0, "refused": 0})

    def refused(self, place: str) -> None:
        self._row(place)["refused"] += 1

    def report(self, place: str, where: str, tell: str, text: bytes) -> None:
        if self._on_the_shelf(where):
            self.shelf += 1
            return
        self.found.append({"place": place, "where": where, "tell": tell, "text": text[:200].decode(errors="replace")})

    def look(self, place: str, where: str, text: bytes, also: Sequence[bytes] = ()) -> None:
        """`where` is looked at too: a name tells as much as what is behind it."""
        row = self._row(place)
        row["looked at"] += 1
        row["bytes"] += len(text)
        for seen in (where.encode(errors="replace"), text):
            lower = seen.lower()
            for tell in (*self.tells, *also):
                at = lower.find(tell.lower())
                if at >= 0:
                    self.report(place, where, tell.decode(), seen[max(0, at - 60) : at + 100])

    def _on_the_shelf(self, where: str) -> bool:
        return any(where == one or where.startswith(f"{one}/") for one in self.library)

    def said(self) -> dict[str, object]:
        return {
            "tried": self.tried,
            "found": self.found,
            "library": self.shelf,
            "listeners": self.listens,
            "connections": self.links,
        }


def _read(path: Path, most: int = MOST_OF_A_FILE) -> bytes:
    """The begin and the end of a file. Raises OSError."""
    with path.open("rb") as file:
        first = file.read(most // 2)
        if len(first) < most // 2:
            return first
        file.seek(0, os.SEEK_END)
        file.seek(max(most // 2, file.tell() - most // 2))
        return first + file.read(most // 2)


def processes(search: Search, proc: Path = Path("/proc"), me: int | None = None) -> None:
    """Arguments, names, environments, maps, folders, open files, namespaces and cgroups of all that can be seen."""
    for folder in _numbered(proc):
        if int(folder.name) == (me or os.getpid()):
            continue
        for name in ("cmdline", "comm", "environ", "maps", "cgroup", "mountinfo", "status", "wchan", "stack"):
            _file(search, f"processes: {name}", folder / name)
        for link in ("exe", "cwd", "root"):
            _link(search, f"processes: {link}", folder / link)
        try:
            for fd in (folder / "fd").iterdir():
                _link(search, "processes: open files", fd)
        except OSError:
            search.refused("processes: open files")


def memory(search: Search, proc: Path = Path("/proc"), me: int | None = None) -> None:
    """What processes of the same user have written into memory: an engine that can be seen can be read."""
    for folder in _numbered(proc):
        if int(folder.name) == (me or os.getpid()):
            continue
        left = MOST_OF_A_PROCESS
        try:
            maps = (folder / "maps").read_text().splitlines()
            with (folder / "mem").open("rb", buffering=0) as file:
                for line in maps:
                    span, rights, *rest = line.split()
                    if not rights.startswith("rw") or (len(rest) > 3 and rest[3].startswith("/")) or left <= 0:
                        continue
                    first, last = (int(part, 16) for part in span.split("-"))
                    try:
                        file.seek(first)
                        read = file.read(min(last - first, left))
                    except (OSError, OverflowError, ValueError):
                        continue
                    left -= len(read)
                    search.look("processes: memory", f"{folder}/mem", read)
        except (OSError, ValueError):
            search.refused("processes: memory")


def peers(search: Search, proc: Path = Path("/proc"), symptoms: Iterable[str] = ()) -> None:
    """Agents of one product are alike. What holds one of them by a tracer or a filter says which host is sick."""
    rows: dict[bytes, dict[str, dict[str, str]]] = {}
    for folder in _numbered(proc):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            status = dict(
                line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line
            )
        except (OSError, ValueError):
            continue
        if len(words) > 1 and words[1] in {b"agent", b"server"}:
            rows.setdefault(words[0].rsplit(b"/", 1)[-1], {})[folder.name] = status
    for product, agents in rows.items():
        for key in SAME_FOR_PEERS:
            search.look("processes: peers", f"{product.decode()} {key}", b"")
            values = {pid: _kind(key, status.get(key, "")) for pid, status in agents.items()}
            if key not in symptoms and len(set(values.values())) > 1:
                search.report("processes: peers", product.decode(), key, str(values).encode())


def _kind(key: str, value: str) -> str:
    """Running and sleeping are one; so is every tracer."""
    if key == "State":
        return "stopped" if value[:1] in {"T", "t"} else "runs"
    return str(value != "0") if key == "TracerPid" else value


def files(search: Search, folders: Iterable[Path], seconds: float = SECONDS, skip: Iterable[str] = UNSEARCHED) -> None:
    """Names and contents, to the end of the time; newest folders of the trainee first, as the caller orders them."""
    until, count = time.monotonic() + seconds, 0
    seen: set[str] = set()
    for top in folders:
        for path in _below(Path(top), tuple(skip)):
            if str(path) in seen:
                continue
            seen.add(str(path))
            count += 1
            if count > MOST_FILES or time.monotonic() > until:
                search.refused("files: not reached in time")
                return
            _file(search, "files", path)


def _below(top: Path, skip: tuple[str, ...]) -> Iterator[Path]:
    for folder, folders, names in os.walk(top, onerror=None):
        if folder in skip or folder.startswith(tuple(f"{one}/" for one in skip)):
            folders[:] = []
            continue
        folders[:] = [one for one in folders if one not in PACKAGED]
        yield from (Path(folder) / name for name in [*names, *folders])


def _file(search: Search, place: str, path: Path) -> None:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            search.look(place, str(path), os.fsencode(path.readlink()))
        elif stat.S_ISREG(mode):
            search.look(place, str(path), _read(path))
        else:
            search.look(place, str(path), b"")
    except OSError:
        search.refused(place)


def _link(search: Search, place: str, path: Path) -> None:
    try:
        search.look(place, str(path), os.fsencode(path.readlink()))
    except OSError:
        search.refused(place)


def _numbered(proc: Path) -> list[Path]:
    try:
        return sorted((one for one in proc.iterdir() if one.name.isdecimal()), key=lambda one: int(one.name))
    except OSError:
        return []


def kernel(search: Search, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
    """Mounts, network tables, locks and keys; names and limits of cgroups."""
    for name in _OF_THE_KERNEL.split():
        _file(search, "kernel", proc / name)
    for path in _below(cgroups, ()):
        if path.name in {"cpu.max", "cpu.cfs_quota_us", "io.max", "memory.max"} or not path.suffix:
            _file(search, "cgroups", path)


def environment(search: Search, given: Mapping[str, str] | None = None) -> None:
    for name, value in (os.environ if given is None else given).items():
        search.look("environment", name, value.encode(errors="replace"))


Run = Callable[[str], bytes | None]


def run(command: str) -> bytes | None:
    """What it prints; None where there is no such command or it does not end."""
    try:
        done = subprocess.run(
            command, shell=True, capture_output=True, timeout=10, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode in {126, 127} else done.stdout + done.stderr


def commands(search: Search, runs: Run = run, listed: Sequence[tuple[str, str]] = COMMANDS) -> None:
    """What the tools of the shell print, ours among them. Of rules, one that drops or redirects is enough."""
    for place, command in listed:
        said = runs(command)
        if said is None:
            search.refused(f"commands: {place}")
        else:
            search.look(f"commands: {place}", command, said, RULES if place == "rules" else ())


def listeners(proc: Path = Path("/proc")) -> list[int]:
    """The TCP ports that somebody listens on here."""
    heard: set[int] = set()
    for name in ("net/tcp", "net/tcp6"):
        try:
            rows = (proc / name).read_text().splitlines()[1:]
        except OSError:
            continue
        heard |= {int(row.split()[1].rsplit(":", 1)[1], 16) for row in rows if row.split()[3] == "0A"}
    return sorted(heard)


def unlike(listens: Mapping[str, Iterable[int]]) -> dict[int, list[str]]:
    """Ports, but for the products', that some hosts listen on and others do not: what is special about them?"""
    heard = {host: set(ports) - {*PRODUCTS} for host, ports in listens.items()}
    common = set.intersection(*heard.values()) if heard else set()
    return {
        port: sorted(host for host, ports in heard.items() if port in ports)
        for port in sorted(set().union(*heard.values()) - common)
    }


def connections(proc: Path = Path("/proc")) -> list[list[str | int]]:
    """What `ss -tan`, netstat and lsof show here but for listeners: [address, port, other address, other port]."""
    found: list[list[str | int]] = []
    for name in ("net/tcp", "net/tcp6"):
        try:
            rows = [row.split() for row in (proc / name).read_text().splitlines()[1:]]
        except OSError:
            continue
        found += [[*_end(row[1]), *_end(row[2])] for row in rows if row[3] != "0A"]
    return sorted(found, key=str)


def _end(text: str) -> tuple[str, int]:
    """The kernel writes each word of an address in its own order of bytes. Of IPv6, an IPv4 address is the last one."""
    address, _, port = text.partition(":")
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(address[-8:]))), int(port, 16)


def unlike_connections(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Connections that some hosts have and hosts with the same agents have not, by what each said: whose are they?

    Those between agents are no finding: to a port of a product, from another host.
    """
    kinds: dict[str, set[str]] = {}
    for host, said in hosts.items():
        ours = set(said["listeners"]) - {*PRODUCTS}
        one_product = not any({*said["listeners"]} & others for others in API_PORTS if 8500 not in others)
        kinds[host] = set()
        for address, port, other, other_port in said["connections"]:
            if {port, other_port} & ours:
                kinds[host].add(f"with port {port if port in ours else other_port}")
            if address == other and one_product and other_port in {8500, 8501}:
                kinds[host].add(f"to its own port {other_port}")
    agents = {host: frozenset({*said["listeners"]} & {*PRODUCTS}) for host, said in hosts.items()}
    found: dict[str, list[str]] = {}
    for kind in sorted(set().union(*kinds.values())):
        have = [host for host in hosts if kind in kinds[host]]
        if any(agents[host] == agents[other] for host in have for other in hosts if other not in have):
            found[kind] = have
    return found


Ask = Callable[[str, int, str], bytes | None]


def ask(address: str, port: int, path: str) -> bytes | None:
    try:
        with socket.create_connection((address, port), timeout=0.3) as wire:
            wire.settimeout(1)
            wire.sendall(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
            got = b""
            while len(got) < MOST_OF_A_FILE and (more := wire.recv(65536)):
                got += more
            return got
    except OSError:
        return None


def doors(search: Search, addresses: Iterable[str], asks: Ask = ask, proc: Path = Path("/proc")) -> None:
    """Every port that listens, and those that tools of our trade listen on: each is asked what it is."""
    heard = {*PORTS, *listeners(proc)}
    for address in addresses:
        for port in sorted(heard):
            if (first := asks(address, port, "/")) is None:
                search.refused("doors")
                continue
            search.look("doors", f"{address}:{port}/", first)
            for path in ASKED[1:]:
                search.look("doors", f"{address}:{port}{path}", asks(address, port, path) or b"")


def addresses() -> list[str]:
    """Everybody on the bridge, as the datacenter numbers them."""
    return ["127.0.0.1", *(f"10.73.0.{last}" for last in (1, 2, *range(11, 26), *range(31, 40)))]


def everything(
    tells: Sequence[str], library: Sequence[str], symptoms: Sequence[str], seconds: float = SECONDS
) -> dict[str, object]:
    search = Search(tells, library)
    search.links = connections()  # before its own
    environment(search)
    processes(search)
    memory(search)
    peers(search, symptoms=symptoms)
    kernel(search)
    commands(search)
    doors(search, addresses())
    mine = [Path.cwd(), Path.home(), *(Path(os.environ[name]) for name in ("HASHIDRILL_WORK",) if name in os.environ)]
    search.listens = listeners()
    files(search, [*mine, Path("/tmp"), Path("/var/tmp"), Path("/run"), Path("/dev/shm"), Path("/")], seconds)
    return search.said()


def program(
    tells: Sequence[str], *, library: Sequence[str] = (), symptoms: Sequence[str] = (), seconds: float = SECONDS
) -> str:
    """This file as one line for `python3 -c`, with what it searches for out of sight; files for `seconds` at most."""
    told = {"tells": list(tells), "library": list(library), "symptoms": list(symptoms), "seconds": seconds}
    given = json.dumps(told)
    text = re.sub(r'(?m)^if __name__ == "__main__":[\s\S]*\Z', "", Path(__file__).read_text())
    text += f"\nprint(json.dumps(everything(**json.loads({given!r}))))\n"
    packed = base64.b85encode(zlib.compress(text.encode())).decode()
    return f"import base64,zlib;exec(zlib.decompress(base64.b85decode({packed!r})))"


if __name__ == "__main__":
    print(json.dumps(everything(sys.argv[1:], [], []), indent=2))
