"""The first process of the node, in namespaces of its own: mounts, starts every program, and ends all when one ends.

`python init.py FOLDER`, started by node.py, which wrote FOLDER/plan.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ADDRESS, NETWORK, SERVICE = "10.22.0.1", "10.22.0.0/16", "10.96.0.1"
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


class Init:
    """`folder` holds plan.json, the data and the logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = json.loads((folder / "plan.json").read_text())
        self.programs = self.plan["programs"]
        self.environment = self.plan["environment"] | {"KUBECONFIG": str(folder / "inside"), "GOMAXPROCS": "2"}
        self.running: dict[int, str] = {}
        self.trouble: SystemExit | None = None
        self.began_s = time.monotonic()

    def told(self, what: str) -> None:
        with (self.folder / "progress").open("a") as file:
            file.write(f"{time.monotonic() - self.began_s:.1f} {what}\n")

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
        for place in ("/run", "/var/log", "/var/lib"):
            run("mount", "-t", "tmpfs", "tmpfs", place)
        for name in ("containerd", "kubelet"):
            mine = self.folder / name
            mine.mkdir(exist_ok=True)
            Path("/var/lib", name).mkdir()
            run("mount", "--bind", str(mine), f"/var/lib/{name}")
        Path("/run/lock").mkdir()
        run("mount", "--make-rshared", "/")

    def network(self) -> None:
        run("hostname", NAME)
        for words in (
            "link set lo up",
            "link add cni0 type bridge",
            f"addr add {ADDRESS}/16 dev cni0",
            f"addr add {SERVICE}/32 dev lo",
            "link set cni0 up",
        ):
            run("ip", *words.split())
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def start(self, name: str, *options: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [self.programs[name], *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment
            )
        self.running[process.pid] = name

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
        self.start("containerd", f"--config={self.folder}/containerd.toml")
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
            time.sleep(0.1)

    def begin(self) -> None:
        self.mounts()
        self.network()
        self.told("namespaces ready")
        self.control_plane()
        importing = threading.Thread(target=self.importing)
        importing.start()
        kubeconfig = f"--kubeconfig={self.folder}/inside"
        self.until([self.programs["kubectl"], "get", "--raw", "/readyz"], 60)
        self.told("API server ready")
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
        self.until([self.programs["ctr"], "version"], 30)
        self.start(
            "kubelet",
            f"--config={self.folder}/kubelet.json",
            kubeconfig,
            f"--node-ip={ADDRESS}",
            f"--hostname-override={NAME}",
        )
        importing.join()
        if self.trouble is not None:
            raise self.trouble
        ready = ["wait", "--for=condition=Ready", f"node/{NAME}", "--timeout=5s"]
        self.until([self.programs["kubectl"], *ready], 60)
        self.told("node ready")

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
    folder = Path(sys.argv[1])
    init = Init(folder)
    try:
        init.begin()
        (folder / "ready").touch()
        init.watch()
    except BaseException as error:
        (folder / "ended").write_text(f"{type(error).__name__}: {error}"[-2000:])
        raise


if __name__ == "__main__":
    main()
