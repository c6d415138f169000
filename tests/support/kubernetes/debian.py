"""What the node needs of Debian: its packages, downloaded and unpacked into the cache. None is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from hashidrill.core.errors import MachineError
from hashidrill.lab.provision.binaries import cache_root

PACKAGES = (
    "containerd",
    "runc",
    "containernetworking-plugins",
    "iptables",
    "ipset",
    "iproute2",
    "busybox-static",
    "stress-ng",
)
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_WITHIN_S = 300.0


def unpacked() -> Path:
    """The folder that they are unpacked in, with all that they need and this machine lacks. Raises MachineError."""
    folder = cache_root() / "node" / "debian"
    if (folder / "complete").is_file():
        return folder
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise MachineError(f"a node needs Debian's packages {', '.join(PACKAGES)}, and here is no {tool}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        asked = _run(["apt-get", "-s", "install", "--no-install-recommends", "-y", *PACKAGES], work)
        lacking = set(re.findall(r"^Inst (\S+)", asked, re.MULTILINE))
        _run(["apt-get", "download", *sorted(lacking | {*PACKAGES})], work)
        root = Path(work) / "root"
        for archive in sorted(Path(work).glob("*.deb")):
            _run(["dpkg", "-x", str(archive), str(root)], work)
        (root / "complete").touch()
        shutil.rmtree(folder, ignore_errors=True)
        root.rename(folder)
    return folder


def environment(root: Path) -> dict[str, str]:
    """What programs of it are started with."""
    places = [*(str(root / each) for each in ("usr/sbin", "usr/bin", "sbin", "bin")), "/usr/sbin", "/usr/bin", "/sbin"]
    libraries = [str(root / _LIBRARIES), str(root / "lib/x86_64-linux-gnu")]
    return {
        "PATH": ":".join([*places, "/bin"]),
        "LD_LIBRARY_PATH": ":".join(libraries),
        "XTABLES_LIBDIR": str(root / _LIBRARIES / "xtables"),
        "HOME": "/root",
    }


def program(root: Path, name: str) -> Path:
    """One of these programs, or of this machine. Raises MachineError."""
    found = shutil.which(name, path=environment(root)["PATH"])
    if found is None:
        raise MachineError(f"there is no {name} in Debian's packages {', '.join(PACKAGES)}, nor on this machine")
    return Path(found)


def libraries(root: Path, programs: list[Path]) -> dict[str, Path]:
    """The shared libraries of these programs, and where an image has them."""
    found: dict[str, Path] = {}
    for each in programs:
        said = subprocess.run(
            ["ldd", str(each)], env=os.environ | environment(root), capture_output=True, text=True, check=False
        ).stdout
        for path in re.findall(r"(/\S+) \(0x", said):
            name = path if "ld-linux" in path else f"/usr/lib/{Path(path).name}"
            found[name] = Path(path)
    return found


def _run(command: list[str], folder: str) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        raise MachineError(f"`{' '.join(command[:2])}` did not end within {_WITHIN_S:g} s") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise MachineError(f"Debian's packages of the node: `{' '.join(command[:2])}` failed: {said}")
    return done.stdout
