"""What this machine can do, found by trials: for each capability, the cost of its absence, and the fix."""

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hashidrill.core.errors import BinaryError
from hashidrill.core.util.commands import tool
from hashidrill.lab.provision import archive as binaries_archive
from hashidrill.lab.provision import binaries
from hashidrill.lab.provision import build as binaries_build
from hashidrill.lab.provision.packages import CHAOSD_PACKAGES, OLDEST_GO_TEXT, TEST_TOOLS, go_by_hand, install_command
from hashidrill.lab.provision.products import DEFAULT_VERSIONS, KUBERNETES_VERSIONS, NEED_ROOT, Product, product_named
from hashidrill.lab.sandbox import cgroups

TRIAL_TIMEOUT_S = 60.0
MEMORY_BYTES = 600_000_000
"""Three servers and a client agent are about 90 MB resident each; the rest is for the runner and for peaks."""
RUN_BYTES = 500_000_000
"""Data, logs and recording of one run, with a margin."""
BUILD_BYTES = 5_000_000_000
"""Go's module and build caches after both Consul versions were built from nothing."""
_CONTINUE_KERNEL = (5, 5)
"""SECCOMP_USER_NOTIF_FLAG_CONTINUE, with which the disk layer lets a call continue, came with Linux 5.5."""


@dataclass(frozen=True)
class Capability:
    """Something that this machine can or cannot do.

    `cost` is what is lost without it; `fix` is the command that gets it. Local runs need every `required` capability.
    """

    name: str
    ok: bool
    detail: str
    cost: str = ""
    fix: str = ""
    required: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def detect() -> list[Capability]:
    """Tries every capability. Takes about two seconds; the trials leave nothing behind."""
    if platform.system() != "Linux":
        return [_linux(platform.system())]
    root = os.geteuid() == 0
    own = run_trials("own")
    user = run_trials("user") if root else own
    return [
        _linux("Linux"),
        namespaces(own, root=root),
        user_namespaces(user, root=root),
        links(own),
        seccomp(run_trials("seccomp"), platform.release()),
        packet_rules(own),
        netem(own),
        chaosd_tools(),
        cpu_cgroup(),
        fuse(),
        memory(_available_bytes()),
        nomad_drivers(),
        *tools_of_tests(),
        *_building_and_binaries(),
    ]


def local_runs_possible(found: Iterable[Capability]) -> bool:
    """Whether this machine has everything that a local run requires."""
    return all(capability.ok for capability in found if capability.required)


def run_trials(what: str) -> dict[str, str]:
    """Runs the trials of `machine_trials` in a new process: name -> why the trial failed ("" if it succeeded)."""
    # the same import path as here, however this process was started
    trials = "hashidrill.lab.provision.machine_trials"
    code = f"import sys; sys.path[:] = {sys.path!r}; from {trials} import main; main({what!r})"
    try:
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S, check=False
        )
        return dict(json.loads(run.stdout))
    except subprocess.TimeoutExpired:
        return {"trial": f"the trial did not end within {TRIAL_TIMEOUT_S:g} s"}
    except ValueError:
        return {"trial": run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"exit code {run.returncode}"}


def _came_of(trials: Mapping[str, str], name: str) -> tuple[bool, str]:
    """Whether a trial succeeded; if it failed or never ran, the reason."""
    if name in trials:
        return trials[name] == "", trials[name]
    return False, trials.get("trial") or f"not tried: no namespaces ({trials.get('namespaces', 'nothing was tried')})"


def _linux(system: str) -> Capability:
    detail = f"{system} {platform.release()} on {platform.machine()}"
    ok = system == "Linux" and platform.machine() in {"x86_64", "aarch64"}
    return Capability("Linux", ok, detail, "no local runs", "use a Linux machine, x86_64 or aarch64", required=True)


def namespaces(own: Mapping[str, str], *, root: bool) -> Capability:
    """The namespaces that a run of this user needs."""
    ok, reason = _came_of(own, "namespaces")
    who = "as root" if root else "as an ordinary user"
    return Capability(
        "namespaces",
        ok,
        f"user, mount, PID and network, {who}"
        if ok and not root
        else f"mount, PID and network, {who}"
        if ok
        else f"{who}: {reason}",
        "no local runs",
        namespace_fix(root=root),
        required=True,
    )


def user_namespaces(user: Mapping[str, str], *, root: bool) -> Capability:
    """What unprivileged users need for their runs."""
    ok, reason = _came_of(user, "namespaces")
    cost = "ordinary users have no local runs (root has)" if root else "no local runs"
    return Capability("user namespaces", ok, "tried" if ok else reason, cost, namespace_fix(root=False))


def namespace_fix(*, root: bool, sysctls: Path = Path("/proc/sys")) -> str:
    """The command that allows namespaces here, according to the kernel's settings."""
    if not root:
        for name, refusing, allowing in (
            ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),  # Ubuntu 23.10 and later
            ("kernel.unprivileged_userns_clone", "0", "1"),  # Debian 10 and earlier
            ("user.max_user_namespaces", "0", "15000"),  # hardened RHEL
        ):
            if _read(sysctls / name.replace(".", "/")) == refusing:
                return f"sudo sysctl -w {name}={allowing}"
    if in_container():
        return "start the container with --privileged"
    return "" if root else 'sudo "$(command -v hashidrill)" doctor   # root needs no user namespaces'


def in_container(root: Path = Path("/")) -> bool:
    """Whether this is a container (which may refuse namespaces even to its root)."""
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    return bool(_read(root / "run/systemd/container"))


def links(own: Mapping[str, str]) -> Capability:
    """The network between hosts."""
    ok, reason = _came_of(own, "links")
    return Capability(
        "bridge and veth",
        ok,
        "tried in a network namespace" if ok else reason,
        "no local runs: hosts are joined by a bridge",
        "sudo modprobe bridge && sudo modprobe veth",
        required=True,
    )


def seccomp(trials: Mapping[str, str], release: str) -> Capability:
    """The disk layer under each agent."""
    ok, reason = _came_of(trials, "seccomp")
    match = re.match(r"(\d+)\.(\d+)", release)
    if ok and (match is None or (int(match[1]), int(match[2])) < _CONTINUE_KERNEL):
        ok, reason = False, f"Linux {release}: 5.5 or newer is needed"
    fix = (
        "start the container with --security-opt seccomp=unconfined" if in_container() else "use a kernel 5.5 or newer"
    )
    return Capability(
        "seccomp user notification",
        ok,
        "tried" if ok else reason,
        "no local runs: the disk layer under each agent needs it",
        fix,
        required=True,
    )


_LINK_FAULTS = (
    "network.bandwidth",
    "network.latency",
    "network.limit_data",
    "network.reset",
    "network.slicer",
    "network.slow_close",
    "network.timeout",
    "toxiproxy.toxic",
)
PACKET_FAULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "drop": ("nf_tables", ("network.partition", "network.loss", "network.block", "nomad.node.disconnect")),
    "drop by chance": ("nft_numgen", ("network.loss",)),
    "refuse": ("nft_reject_inet", ("network.block", *_LINK_FAULTS)),
    "redirect": ("nft_redir", _LINK_FAULTS),
    "mark connections": ("nft_ct", ("consul.leader.avoid", "consul.leader.pin", "consul.streams.gather")),
}
"""For each kind of packet rule (machine_trials.PACKET_RULES): the kernel module that implements it, and the faults
that use it."""


def refused_faults(trials: Mapping[str, str], others: Iterable[str] = ()) -> dict[str, str]:
    """The faults whose packet rules this kernel refuses, and why. `others`: of plug-ins, which need at least `drop`."""
    refused = dict[str, str]()
    for kind, (_, faults) in reversed(PACKET_FAULTS.items()):
        ok, reason = _came_of(trials, kind)
        if not ok:
            refused |= dict.fromkeys([*faults, *(others if kind == "drop" else ())], f"{kind}: {reason}")
    return refused


def packet_rules(own: Mapping[str, str]) -> Capability:
    """nf_tables in the kernel, tried by netlink, without the `nft` program."""
    lost = refused_faults(own)
    modules = [module for kind, (module, _) in PACKET_FAULTS.items() if not _came_of(own, kind)[0]]
    return Capability(
        "packet rules (nf_tables)",
        not lost,
        "; ".join(dict.fromkeys(lost.values())) or "tried rules of each kind, by netlink",
        f"no {', '.join(sorted(lost))}" if lost else "no network faults",
        " && ".join(f"sudo modprobe {module}" for module in modules),
    )


def netem(own: Mapping[str, str]) -> Capability:
    """The netem queue discipline: used if present, never required."""
    ok, reason = _came_of(own, "netem")
    return Capability(
        "netem",
        ok,
        "tried on a loopback device" if ok else f"this kernel has none: {reason}",
        "nothing: no fault that ships needs it",
        "" if ok else netem_fix(),
    )


def chaosd_tools() -> Capability:
    """Programs that chaosd starts on the hosts of `hashidrill lab up --kubernetes`."""
    missing = [name for name in CHAOSD_PACKAGES if tool(name) is None]
    detail = f"no {', no '.join(missing)}" if missing else ", ".join(CHAOSD_PACKAGES)
    cost = "no chaos_mesh.physical.partition, .bandwidth or .cpu in a local datacenter, no `lab up --kubernetes`"
    fix = install_command(*(CHAOSD_PACKAGES[name] for name in missing)) if missing else ""
    return Capability("chaosd's tools", not missing, detail, cost, fix)


def netem_fix(root: Path = Path("/")) -> str:
    """The command that gets netem, if its module is on this machine or in a separate package (Ubuntu)."""
    release = platform.release()
    if any((root / "lib/modules" / release).rglob("sch_netem.ko*")):
        return "sudo modprobe sch_netem"
    if re.search(r"^ID=ubuntu$", _read(root / "etc/os-release"), re.MULTILINE):
        return f"{install_command(f'linux-modules-extra-{release}')} && sudo modprobe sch_netem"
    return ""


def cpu_cgroup() -> Capability:
    """Makes and removes a cgroup as a run does."""
    name = f"hashidrill-doctor-{os.getpid()}"
    try:
        group = cgroups.make(f"{name}/trial")
    finally:
        for parent in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct")):
            for left in (parent / name / "trial", parent / name):
                with contextlib.suppress(OSError):
                    left.rmdir()
        cgroups.give_back()
    present = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").is_file() else "v1"
    if group is not None:
        detail = f"cgroup v{group.version}, writable"
    else:
        detail = f"cgroup {present} is not writable for this user"
    return Capability(
        "CPU cgroup",
        group is not None,
        detail,
        "cpu.throttle stops and continues the process by signals instead, which is coarser",
        "" if group is not None else 'sudo "$(command -v hashidrill)" run ...   # as root',
    )


def fuse(device: Path = Path("/dev/fuse")) -> Capability:
    """FUSE, for information only."""
    ok = os.access(device, os.R_OK | os.W_OK)
    return Capability(
        "FUSE", ok, str(device) if ok else f"no access to {device}", "nothing: the disk layer has no FUSE"
    )


def memory(available_bytes: int) -> Capability:
    """Room for three servers, a client agent and the runner."""
    ok = available_bytes >= MEMORY_BYTES
    return Capability(
        "memory",
        ok,
        f"{available_bytes / 1e9:.1f} GB available",
        f"runs may be killed: three servers and a client agent need {MEMORY_BYTES / 1e9:g} GB",
    )


def _available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(meminfo), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def free_disk(free_bytes: int, folder: Path, *, building: bool) -> Capability:
    """Room for a run, and for Go's caches if binaries must be built first."""
    wanted = BUILD_BYTES if building else RUN_BYTES
    return Capability(
        "free disk",
        free_bytes >= wanted,
        f"{free_bytes / 1e9:.1f} GB at {folder}",
        f"{'building Consul needs' if building else 'a run needs'} {wanted / 1e9:g} GB",
        f"free some space, or set XDG_CACHE_HOME to a folder on a larger file system than {folder}",
    )


def nomad_drivers() -> Capability:
    """The task drivers, which are the same on every machine and for every user."""
    return Capability(
        "Nomad's task drivers", True, f"only raw_exec: {NEED_ROOT}; the CPU and memory limits of tasks have no effect"
    )


def tools_of_tests(tests: Path = Path(__file__).parents[4] / "tests") -> list[Capability]:
    """The tools that tests need and this machine lacks, in a checkout; otherwise nothing."""
    if not (tests / "conftest.py").is_file():
        return []
    missing = [name for name, (commands, _) in TEST_TOOLS.items() if not any(map(tool, commands))]
    detail = f"no {', no '.join(missing)}" if missing else ", ".join(TEST_TOOLS)
    cost = "tests that need them are skipped; `uv run pytest` installs them as root, or after asking on a terminal"
    fix = install_command(*dict.fromkeys(TEST_TOOLS[name][1] for name in missing)) if missing else ""
    return [Capability("tools of tests", not missing, detail, cost, fix)]


def go_toolchain(go: binaries_build.Go | None) -> Capability:
    """Go, needed only for binaries that cannot be downloaded."""
    ok = go is not None and go.usable
    detail = "not found" if go is None else f"{go.text} at {go.path}"
    return Capability(
        "Go",
        ok,
        detail if ok or go is None else f"{detail}: {OLDEST_GO_TEXT} or newer is needed",
        "binaries that cannot be downloaded are unavailable",
        go_by_hand(),
    )


def _building_and_binaries() -> list[Capability]:
    go = binaries_build.find_go()
    found = [binary(name, version, go) for name, version in DEFAULT_VERSIONS]
    of_kubernetes = [binary(name, version, go) for name, version in KUBERNETES_VERSIONS]
    cache = binaries.cache_folder("consul", DEFAULT_VERSIONS[0][1])
    folder = next(each for each in (cache, *cache.parents) if each.is_dir())
    building = any("will be built" in capability.detail for capability in found)
    disk = free_disk(shutil.disk_usage(folder).free, folder, building=building)
    return [disk, go_toolchain(go), *found, *of_kubernetes]


def binary(name: str, version: str, go: binaries_build.Go | None) -> Capability:
    """Where a binary is, or how the first run that needs this binary will get it. The default Consul is required."""
    product = product_named(name)
    title = f"{name} {version}"
    required = (name, version) == DEFAULT_VERSIONS[0]
    cost = "no local runs" if required else f"no runs that need {title}"
    try:
        here = binaries.locate(name, version)
    except BinaryError as error:
        fix = f"unset {product.variable}"
        return Capability(title, False, str(error), cost, fix, required=required)
    if here is not None:
        return Capability(title, True, f"{here.path} ({here.source})", cost, required=required)
    way, reason = _way_to(product, version, go)
    if way is not None:
        return Capability(title, True, f"not here yet: {way} by the first run that needs it", cost, required=required)
    fix = f"{go_by_hand()}   # Go, to build it" if go is None or not go.usable else install_command("gcc", "libc6-dev")
    return Capability(title, False, reason, cost, fix, required=required)


def _way_to(product: Product, version: str, go: binaries_build.Go | None) -> tuple[str | None, str]:
    reason = binaries_archive.why_not(product, version)
    if reason is None and product.release is not None:
        return f"will be downloaded from {product.release.base}", ""
    if binaries_build.module_folder(product, version) is None:
        return None, f"{reason}; and there is no pinned module to build it from"
    if go is None or not go.usable:
        return None, f"{reason}; and there is no Go to build it with"
    if binaries_build.lacks_compilers(product):
        return None, f"{reason}; and there is no C compiler to build it with"
    return f"will be built with {go.text} ({product.build_time})", ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
