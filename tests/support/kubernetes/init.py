"""The first process of a kubelet's namespaces: mounts, starts every program, and ends all when one of them ends.

`python init.py FOLDER NAME`, started by node.py, which wrote FOLDER/plan.json. The first node also has the control
plane, and starts the other nodes: they share its PIDs and its volumes, and are routed to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

ADDRESS, SERVICE = "10.22.0.1", "10.96.0.1"
SERVICES = "10.96.0.0/16"
NAME = "node-1"
CONTAINERD = "/run/containerd/containerd.sock"
_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet sets for the whole machine, and the value that it wants."""


def apart(cgroup: str, places: Iterable[str], *options: str) -> list[str]:
    """Makes a cgroup below each of these folders; returns what starts a command there, in namespaces of its own.

    `options`: more of unshare's. Raises OSError.
    """
    enters = []
    for place in places:
        own = Path(place, cgroup)
        own.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (own / name).exists() and Path(place, name).exists():
                (own / name).write_text(Path(place, name).read_text())
        enters.append(str(own / "cgroup.procs"))
    script = f'for each in {" ".join(enters)}; do echo $$ > $each; done; exec "$@"'
    unshare = ["unshare", "-m", "-n", "-i", "-u", "-C", "--propagation", "private", *options]
    return ["sh", "-c", script, "sh", "setpriv", "--pdeathsig", "KILL", *unshare]


class Init:
    """`folder` holds plan.json, the data and the logs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.first = folder, name, name == NAME
        self.subnet = f"10.22.{int(name.removeprefix('node-')) - 1}"
        self.address = f"{self.subnet}.1"
        self.plan = json.loads((folder / "plan.json").read_text())
        self.programs = self.plan["programs"]
        self.environment = self.plan["environment"] | {"KUBECONFIG": str(folder / "inside"), "GOMAXPROCS": "2"}
        self.running: dict[int, str] = {}
        self.trouble: SystemExit | None = None
        self.began_s = time.monotonic()

    def told(self, what: str) -> None:
        with (self.folder / "progress").open("a") as file:
            file.write(f"{time.monotonic() - self.began_s:.1f} {what}{'' if self.first else f' on {self.name}'}\n")

    def mounts(self) -> None:
        run("mount", "-t", "proc", "proc", "/proc")
        run("mount", "--make-rshared", "/")
        for name, value in _SYSCTLS.items():
            mine = self.folder / "sysctl" / name
            mine.parent.mkdir(parents=True, exist_ok=True)
            mine.write_text(f"{value}\n")
            run("mount", "--bind", str(mine), f"/proc/sys/{name}")
        run("mount", "-t", "sysfs", "sysfs", "/sys")
        run("mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup")
        for place, options in self.plan["cgroups"].items():
            where = Path("/sys/fs/cgroup", Path(place).name)
            where.mkdir()
            run(
                "mount",
                "-t",
                "cgroup" if options else "cgroup2",
                *(["-o", options] if options else []),
                "cgroup",
                where,
            )
        for place in ("/run", "/var/log", *(["/var/lib"] if self.first else [])):
            run("mount", "-t", "tmpfs", "tmpfs", place)
        for name in ("containerd", "kubelet"):
            mine = self.folder / self.name / name
            mine.mkdir(parents=True)
            Path("/var/lib", name).mkdir(exist_ok=True)
            run("mount", "--bind", str(mine), f"/var/lib/{name}")
        Path("/run/lock").mkdir()
        run("mount", "--make-rshared", "/")

    def network(self) -> None:
        run("hostname", self.name)
        there = "nsenter --net=/proc/1/ns/net ip"
        service = [f"ip addr add {SERVICE}/32 dev lo"]
        routed = [
            f"{there} link add {self.name} type veth peer name eth0 netns {os.getpid()}",
            f"{there} link set {self.name} up",
            f"{there} route add {self.subnet}.0/24 via {self.address} dev {self.name} onlink",
            "ip link set eth0 up",
            f"ip route add default via {ADDRESS} dev eth0 onlink src {self.address}",
        ]
        for words in (
            "ip link set lo up",
            "ip link add cni0 type bridge",
            f"ip addr add {self.address}/24 dev cni0",
            "ip link set cni0 up",
            *(service if self.first else routed),
        ):
            run(*words.split())
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        pods = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "isDefaultGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": f"{self.subnet}.0/24"}]]},
        }
        Path("/run/cni").mkdir()
        Path("/run/cni/pods.conflist").write_text(
            json.dumps({"cniVersion": "0.4.0", "name": self.name, "plugins": [pods]})
        )

    def start(self, name: str, *options: str, command: Iterable[str] = ()) -> None:
        with (self.folder / f"{name}{'' if self.first else f'-{self.name}'}.log").open("ab") as log:
            process = subprocess.Popen(
                [*(command or [self.programs[name]]), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
            )
        self.running[process.pid] = name

    def other_nodes(self) -> None:
        places = [f"/sys/fs/cgroup/{Path(place).name}" for place in self.plan["cgroups"]]
        for name in self.plan["nodes"][1:]:
            self.start(name, command=[*apart(name, places), sys.executable, __file__, str(self.folder), name])

    def control_plane(self) -> None:
        clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        self.start(
            "etcd",
            f"--data-dir={self.folder}/etcd",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        )
        papers = self.folder / "papers"
        self.start(
            "kube-apiserver",
            f"--etcd-servers={clients}",
            "--secure-port=443",
            "--bind-address=0.0.0.0",
            f"--advertise-address={ADDRESS}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--cert-dir={papers}",
            f"--tls-cert-file={papers}/tls.crt",
            f"--tls-private-key-file={papers}/tls.key",
            f"--token-auth-file={papers}/tokens.csv",
            "--authorization-mode=RBAC",
            f"--service-account-key-file={papers}/accounts.key",
            f"--service-account-signing-key-file={papers}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            "--endpoint-reconciler-type=master-count",
            "--feature-gates=MutatingAdmissionPolicy=true",
            "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
        )

    def importing(self) -> None:
        """In a thread: containerd unpacks images while the API server starts."""
        try:
            self.images()
        except SystemExit as error:
            self.trouble = error

    def images(self) -> None:
        control = [self.programs["ctr"], "-n", "k8s.io"]
        self.until([*control, "version"], 30)
        for path in self.plan["images"]:
            said = subprocess.run(
                [*control, "images", "import", path], env=self.environment, capture_output=True, text=True, check=False
            )
            if said.returncode != 0:
                raise SystemExit(f"the image {path} was not imported: {said.stderr[-500:]}")
        self.told("images imported")

    def until(self, command: list[str], within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while (
            said := subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        ).returncode:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"`{' '.join(command[:4])}` failed for {within_s:g} s: {said.stderr[-500:]}")
            time.sleep(0.1 if self.first else 0.5)  # each try takes CPU from the API server

    def begin(self) -> None:
        self.mounts()
        self.network()
        self.told("namespaces ready")
        if self.first:
            self.other_nodes()
            self.control_plane()
        self.start("containerd", f"--config={self.folder}/containerd.toml")
        importing = threading.Thread(target=self.importing)
        importing.start()
        kubeconfig = f"--kubeconfig={self.folder}/inside"
        self.until([self.programs["kubectl"], "get", "--raw", "/readyz"], 60)
        self.told("API server ready")
        if self.first:
            self.controllers(kubeconfig)
        self.until([self.programs["ctr"], "version"], 30)
        self.start(
            "kubelet",
            f"--config={self.folder}/kubelet.json",
            kubeconfig,
            f"--node-ip={self.address}",
            f"--hostname-override={self.name}",
        )
        importing.join()
        if self.trouble is not None:
            raise self.trouble
        ready = ["wait", "--for=condition=Ready", f"node/{self.name}", "--timeout=5s"]
        self.until([self.programs["kubectl"], *ready], 60)
        self.told("node ready")

    def controllers(self, kubeconfig: str) -> None:
        papers = self.folder / "papers"
        self.start(
            "kube-controller-manager",
            kubeconfig,
            "--leader-elect=false",
            f"--service-account-private-key-file={papers}/accounts.key",
            f"--root-ca-file={papers}/ca.crt",
            "--use-service-account-credentials=true",
            "--bind-address=127.0.0.1",
        )
        self.start("kube-scheduler", kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1")

    def watch(self) -> None:
        """Reaps whatever dies here; ends when one of its own programs does."""
        while True:
            pid, status = os.wait()
            if (name := self.running.get(pid)) is not None:
                raise SystemExit(f"{name} ended with the status {status}")


def run(*command: object) -> None:
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise SystemExit(f"`{' '.join(map(str, command))}`: {said.stderr.strip()}")


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    init = Init(folder, name)
    try:
        init.begin()
        (folder / name / "ready").write_text(str(os.getpid()))
        init.watch()
    except BaseException as error:
        with (folder / "ended").open("a") as ended:
            ended.write(f"{name}: {type(error).__name__}: {error}"[-2000:] + "\n")
        raise


if __name__ == "__main__":
    main()
