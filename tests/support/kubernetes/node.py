"""A node of Kubernetes that runs pods: control plane, kubelet and containerd, in namespaces and cgroups of its own.

`with node() as one:` and everything is gone with its first process, however we die. No program of it is installed, and
no setting of the machine changes. With `kubelets=3`, two more nodes join: each has its own kubelet, containerd and
network.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hashidrill.core.errors import MachineError
from hashidrill.lab.provision.binaries import cache_root
from kubernetes import builds, debian, images
from kubernetes.images import Image
from kubernetes.init import ADDRESS, CONTAINERD, NAME, SERVICE, apart

T = TypeVar("T")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
READY_WITHIN_S = 120.0
ADMIN, USER = "admin-token", "hashidrill-token"
_CGROUP = "hashidrill-node-"
_NAMESPACES = ("mount", "net", "pid", "ipc", "uts", "cgroup")
_TOOLS = ("unshare", "nsenter", "setpriv", "mount", "ip", "ldd")


def why_not() -> str:
    """Why this machine cannot have a node, in one line; "" if it can."""
    if os.geteuid() != 0:
        return "a node of Kubernetes needs root: the folders of cgroups are root's"
    mounted = cgroup_mounts()
    if lacking := [name for name in CONTROLLERS if name not in ",".join(mounted.values()).split(",")]:
        return f"a node of Kubernetes needs cgroup v1 with {', '.join(lacking)}: with cgroup v2 alone it never ran"
    if lacking := [name for name in _TOOLS if shutil.which(name) is None]:
        return f"a node of Kubernetes needs {', '.join(lacking)} on this machine"
    tried = subprocess.run(
        ["unshare", "-m", "-n", "-p", "-i", "-u", "-C", "-f", "true"], capture_output=True, text=True, check=False
    )
    return f"this machine gives a node no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def cgroup_mounts() -> dict[str, str]:
    """Where each hierarchy is mounted, and the options that mount it again; none for cgroup v2."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        place = before.split(" ")[4]
        if kind == "cgroup2":
            found[place] = ""
        elif kind == "cgroup":
            named = [each for each in options.split(",") if each not in {"rw", "ro", "relatime"}]
            found[place] = ",".join(["none", *named] if named[0].startswith("name=") else named)
    return found


@contextmanager
def node(
    *, kubelets: int = 1, say: Callable[[str], None] = lambda _: None, with_images: Iterable[Image] = ()
) -> Iterator[Node]:
    """A node that is ready. Raises MachineError, in one line if this machine cannot have one."""
    if why := why_not():
        raise MachineError(why)
    programs, root = builds.programs(builds.NODE, say), debian.unpacked()
    one = Node(programs, root, kubelets)
    try:
        one.start([images.pause(root), images.web(root), *with_images])
        yield one
    finally:
        one.close()


class Node:
    """`kubeconfig` is for this machine, `inside` for what is in the node's network; both are the administrator's.

    `user` is like `inside`, for a user who has no role. `names`: of all its nodes; without a name, the first is meant.
    """

    def __init__(self, programs: Mapping[str, Path], root: Path, kubelets: int = 1) -> None:
        self.root, self.names = root, [f"node-{number}" for number in range(1, kubelets + 1)]
        own = {name: debian.program(root, name) for name in ("containerd", "ctr")}
        self.programs = {**programs, **own}
        nodes = cache_root() / "node" / "running"
        nodes.mkdir(parents=True, exist_ok=True)
        sweep(nodes)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=nodes))
        self.cgroup = f"{_CGROUP}{self.folder.name}"
        self.kubeconfig, self.inside, self.user = (self.folder / name for name in ("kubeconfig", "inside", "user"))
        self.environment = debian.environment(root)
        self._process: subprocess.Popen[bytes] | None = None
        self._forwarders: list[Forwarder] = []
        self.ready_s = 0.0
        self.installed: set[str] = set()
        """The keys of images that it knows, and what tests share on it."""

    def start(self, with_images: Iterable[Image]) -> None:
        """Returns when the node is ready and its service account is there. Raises MachineError."""
        began_s = time.monotonic()
        authority = self._papers()
        self._settings([self._archive(image) for image in with_images])
        self.inside.write_text(kubeconfig(f"https://{ADDRESS}", authority, ADMIN))
        self.user.write_text(kubeconfig(f"https://{ADDRESS}", authority, USER))
        enters = apart(self.cgroup, cgroup_mounts(), "-p", "-f", "--kill-child")
        inside = [sys.executable, str(Path(__file__).with_name("init.py")), str(self.folder), NAME]
        with (self.folder / "init.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*enters, *inside], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        self._wait(began_s)
        api = self.forward(ADDRESS, 443)
        self.kubeconfig.write_text(kubeconfig(f"https://127.0.0.1:{api.port}", authority, ADMIN))
        self.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=30s")
        self.ready_s = time.monotonic() - began_s

    def _wait(self, began_s: float) -> None:
        assert self._process is not None
        while not all((self.folder / name / "ready").exists() for name in self.names):
            if self._process.poll() is not None or time.monotonic() - began_s > READY_WITHIN_S:
                raise MachineError(f"the node did not get ready: {self.troubles()}")
            time.sleep(0.05)

    def troubles(self) -> str:
        """Why it ended, and the end of each log."""
        ended = self.folder / "ended"
        said = ended.read_text() if ended.is_file() else (self.folder / "init.log").read_text()[-1000:]
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join([said, *(f"--- {log.name}: {log.read_text(errors='replace')[-800:]}" for log in logs)])

    @property
    def timings(self) -> dict[str, float]:
        """Seconds from the start until each step."""
        lines = (self.folder / "progress").read_text().splitlines()
        return {what: float(at_s) for at_s, what in (line.split(" ", 1) for line in lines)}

    @property
    def pid(self) -> int:
        """The first process of the node, as this machine counts."""
        assert self._process is not None
        found = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if len(found) != 1:
            raise MachineError("the node is gone")
        return int(found[0])

    def kubectl(self, *args: str, stdin: str | None = None, timeout: float = 60.0, check: bool = True) -> str:
        """What kubectl prints, as the administrator. Raises MachineError with its complaint."""
        inside = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]
        command = [*inside, str(self.programs["kubectl"]), f"--kubeconfig={self.inside}", *args]
        try:
            done = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                env={"HOME": "/", "PATH": self.environment["PATH"]},
            )
        except subprocess.TimeoutExpired:
            raise MachineError(f"`kubectl {' '.join(args)}` did not end within {timeout:g} s") from None
        if check and done.returncode != 0:
            raise MachineError(f"`kubectl {' '.join(args)}`: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def get(self, *args: str) -> Any:
        """`kubectl get` as JSON."""
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def apply(self, manifests: Iterable[Mapping[str, Any]], *, timeout: float = 60.0) -> None:
        """Creates or changes objects. Raises MachineError."""
        made = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=made, timeout=timeout)

    def load(self, image: Image) -> str:
        """Makes an image known to the node; returns what a pod calls it. Raises MachineError."""
        if image.key in self.installed:
            return image.reference
        command = [str(self.programs["ctr"]), "-n", "k8s.io", "images", "import", str(self._archive(image))]
        with ThreadPoolExecutor() as threads:
            for said in threads.map(lambda name: self.enter(command, on=name), self.names):
                if said.returncode != 0:
                    raise MachineError(f"the image {image.name} was not imported: {said.stderr[-1000:]}")
        self.installed.add(image.key)
        return image.reference

    def load_image(
        self, name: str, files: Mapping[str, Path | str], *, entrypoint: Sequence[str] = (), folder: str = "/"
    ) -> str:
        """The same for an image of these files: see Image."""
        return self.load(Image(name, files, entrypoint, folder))

    def enter(self, argv: Sequence[str], *, timeout: float = 60.0, on: str = NAME) -> subprocess.CompletedProcess[str]:
        """Runs a command in the node's namespaces, with its programs on PATH and KUBECONFIG set."""
        spaces = [f"--{name}" for name in _NAMESPACES]
        into = ["nsenter", "-t", str(self.pid), *spaces, "--wdns=/", "--"]
        if on != NAME:  # its PIDs are those of the first node
            into += ["nsenter", "-t", (self.folder / on / "ready").read_text(), *spaces, "--wdns=/", "--"]
        return subprocess.run(
            [*into, *argv],
            env=self.environment | {"KUBECONFIG": str(self.inside)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def call_inside(self, call: Callable[[], T]) -> T:
        """Calls it in a thread of ours that has the node's network: pods are reached at their own addresses."""
        done: list[Any] = []

        def inside() -> None:
            try:
                enter_network(self.pid)
                done.append((call(), None))
            except BaseException as error:  # raised again by the thread that called
                done.append((None, error))

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        [(result, error)] = done
        if error is not None:
            raise error
        return result

    def forward(self, address: str, port: int) -> Forwarder:
        """A port of this machine's loopback that leads to that address in the node's network."""
        one = Forwarder(self.pid, address, port)
        self._forwarders.append(one)
        return one

    def close(self) -> None:
        """Kills its first process, and with it everything; may be called twice."""
        for one in self._forwarders:
            one.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        remove_cgroups(self.cgroup)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _archive(self, image: Image) -> Path:
        folder = cache_root() / "node" / "images"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{image.name}-{image.key[:16]}.tar"
        if not path.is_file():
            for old in folder.glob(f"{image.name}-????????????????.tar"):
                old.unlink()
            whole = path.with_suffix(f".{os.getpid()}")
            image.write(whole)
            whole.rename(path)
        return path

    def _papers(self) -> str:
        """Certificates, keys and tokens; returns the authority's certificate."""
        folder = self.folder / "papers"
        folder.mkdir()
        authority = trustme.CA()
        names = (ADDRESS, SERVICE, "127.0.0.1", "localhost", "kubernetes.default.svc", "kubernetes")
        made = authority.issue_cert(*names)
        (folder / "tls.crt").write_bytes(b"".join(one.bytes() for one in made.cert_chain_pems))
        (folder / "tls.key").write_bytes(made.private_key_pem.bytes())
        (folder / "ca.crt").write_bytes(authority.cert_pem.bytes())
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (folder / "accounts.key").write_bytes(key)
        (folder / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n{USER},hashidrill,2\n')
        self.authority = authority
        return authority.cert_pem.bytes().decode()

    def _settings(self, archives: Sequence[Path]) -> None:
        plan = {
            "programs": {name: str(path) for name, path in self.programs.items()},
            "environment": self.environment,
            "cgroups": cgroup_mounts(),
            "images": [str(path) for path in archives],
            "nodes": self.names,
        }
        (self.folder / "plan.json").write_text(json.dumps(plan))
        (self.folder / "kubelet.json").write_text(json.dumps(_KUBELET))
        (self.folder / "containerd.toml").write_text(
            _CONTAINERD.format(
                pause=images.pause(self.root).reference,
                runc=debian.program(self.root, "runc"),
                plugins=self.root / "usr/lib/cni",
                socket=CONTAINERD,
            )
        )


def kubeconfig(server: str, authority: str, token: str) -> str:
    """In JSON, which is YAML too. `authority` is PEM."""
    pem = base64.b64encode(authority.encode()).decode()
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": NAME,
            "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
            "clusters": [{"name": NAME, "cluster": {"server": server, "certificate-authority-data": pem}}],
            "users": [{"name": NAME, "user": {"token": token}}],
        }
    )


_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
    "failSwapOn": False,
    "evictionHard": dict.fromkeys(
        ("memory.available", "nodefs.available", "imagefs.available", "nodefs.inodesFree"), "0%"
    ),
    "imageGCHighThresholdPercent": 100,
    "makeIPTablesUtilChains": False,
    "resolvConf": "",
    "maxPods": 60,
    "volumePluginDir": "/var/lib/kubelet/plugins-of-volumes",
    "nodeStatusUpdateFrequency": "4s",
    # a kubelet doubles its pause before it restarts a container, up to 5 minutes: tests that kill one would get slower
    "featureGates": {"KubeletCrashLoopBackOffMax": True},
    "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
}
_CONTAINERD = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  # without CAP_SYS_RESOURCE, runc dies of a lower score
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugins}"
  conf_dir = "/run/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  SystemdCgroup = false
"""


class Forwarder:
    """Takes connections on a port of this machine's loopback; a thread that has the node's network makes the others."""

    def __init__(self, pid: int, address: str, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._leads_to = (address, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(pid,), daemon=True)
        self._thread.start()

    def _run(self, pid: int) -> None:
        enter_network(pid)
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._connected, sock=self._listener))
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._leads_to)
        except OSError:
            writer.close()
            return
        with contextlib.suppress(asyncio.CancelledError):  # closed, while it was in use
            await asyncio.gather(_copied(reader, there_writer), _copied(there_reader, writer))

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._listener.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def enter_network(pid: int) -> None:
    """Moves the calling thread, and no other, into the network of that process. Raises OSError."""
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0x40000000) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def sweep(nodes: Path) -> None:
    """Removes what nodes left whose process was killed: they ended with it, their folders and cgroups did not."""
    for left in nodes.iterdir():
        if not Path("/proc", left.name.partition("-")[0]).exists():
            remove_cgroups(f"{_CGROUP}{left.name}")
            shutil.rmtree(left, ignore_errors=True)


def remove_cgroups(name: str, *, within_s: float = 10.0) -> None:
    """Bottom up, killing what is still in them; what a dying process holds is tried again."""
    deadline_s = time.monotonic() + within_s
    while left := [Path(place, name) for place in cgroup_mounts() if Path(place, name).exists()]:
        for top in left:
            for folder in sorted([top, *(each for each in top.rglob("*") if each.is_dir())], reverse=True):
                for pid in _processes(folder):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    folder.rmdir()
        if time.monotonic() > deadline_s:
            raise MachineError(f"cgroups of a node stay: {', '.join(map(str, left))}")
        time.sleep(0.05)


def _processes(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []
