"""Container images from local files: a docker-archive of one layer, as `ctr images import` reads it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hashidrill.core.errors import MachineError
from hashidrill.lab.provision.binaries import cache_root
from kubernetes import debian

REGISTRY = "hashidrill.test"
"""No server has that name: what is not in the node already fails at once."""


@dataclass(frozen=True)
class Image:
    """`files`: by absolute path, a file of this machine, its text, or another path of the image after `->`."""

    name: str
    files: Mapping[str, Path | str]
    entrypoint: Sequence[str] = ()
    folder: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        return f"{REGISTRY}/{self.name}:1"

    @property
    def key(self) -> str:
        """Changes with whatever is in it."""
        states = {
            name: [str(source), source.stat().st_size, source.stat().st_mtime_ns]
            if isinstance(source, Path)
            else source
            for name, source in self.files.items()
        }
        told = json.dumps([self.name, states, list(self.entrypoint), self.folder, dict(self.environment)])
        return hashlib.sha256(told.encode()).hexdigest()

    def write(self, path: Path) -> None:
        layer = path.with_suffix(".layer")
        with tarfile.open(layer, "w") as tar:
            for name in ("tmp", "run", "etc", "proc", "sys", "dev"):
                _add(tar, name, kind=tarfile.DIRTYPE, mode=0o1777 if name == "tmp" else 0o755)
            known = {"tmp", "run", "etc", "proc", "sys", "dev"}
            for name, source in {**_ACCOUNTS, **self.files}.items():
                place = name.strip("/")
                for parent in reversed(Path(place).parents):
                    if str(parent) not in {".", *known}:
                        known.add(str(parent))
                        _add(tar, str(parent), kind=tarfile.DIRTYPE, mode=0o755)
                if isinstance(source, Path):
                    with source.open("rb") as file:
                        information = _described(place, size=source.stat().st_size, mode=0o755)
                        tar.addfile(information, file)
                elif source.startswith("->"):
                    _add(tar, place, kind=tarfile.SYMTYPE, to=source[2:])
                else:
                    _add(tar, place, text=source.encode(), mode=0o755)
        with layer.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        configuration = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {
                    "Entrypoint": list(self.entrypoint),
                    "WorkingDir": self.folder,
                    "Env": [f"{name}={value}" for name, value in ({"PATH": _PATH} | {**self.environment}).items()],
                },
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
        ).encode()
        named = f"{hashlib.sha256(configuration).hexdigest()}.json"
        manifest = [{"Config": named, "RepoTags": [self.reference], "Layers": ["layer.tar"]}]
        with tarfile.open(path, "w") as tar:
            _add(tar, named, text=configuration)
            tar.add(layer, "layer.tar")
            _add(tar, "manifest.json", text=json.dumps(manifest).encode())
        layer.unlink()


_PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ACCOUNTS = {
    "/etc/passwd": "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
}


def _described(name: str, *, size: int = 0, mode: int = 0o644, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.mode, made.type = size, mode, kind
    return made


def _add(
    tar: tarfile.TarFile,
    name: str,
    *,
    text: bytes = b"",
    mode: int = 0o644,
    kind: bytes = tarfile.REGTYPE,
    to: str = "",
) -> None:
    made = _described(name, size=len(text), mode=mode, kind=kind)
    made.linkname = to
    tar.addfile(made, io.BytesIO(text))


def shell(root: Path) -> dict[str, Path | str]:
    """A shell and the usual commands, from one static file."""
    busybox = debian.program(root, "busybox")
    names = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True).stdout.split()
    return {**{f"/bin/{name}": "->busybox" for name in names}, "/bin/busybox": busybox}


def pause(root: Path) -> Image:
    """What holds a pod's namespaces, and what Chaos Mesh puts in the place of a container that shall fail."""
    waits = "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait $!; done"
    return Image("pause", shell(root), ("/bin/sh", "-c", waits))


def web(root: Path) -> Image:
    """An HTTP server on port 8080, for tests of the node itself."""
    files = {**shell(root), "/www/index.html": "it works\n"}
    return Image("web", files, ("/bin/httpd", "-f", "-p", "8080", "-h", "/www"))


def tools(root: Path, *names: str) -> dict[str, Path | str]:
    """Programs of Debian with their libraries, below /usr/sbin. `iptables` brings its extensions."""
    found = {name: debian.program(root, "xtables-legacy-multi" if name == "iptables" else name) for name in names}
    extensions = sorted((root / "usr/lib/x86_64-linux-gnu/xtables").glob("*.so")) if "iptables" in names else []
    files: dict[str, Path | str] = {f"/usr/sbin/{path.name}": path for path in found.values()}
    files |= debian.libraries(root, [*found.values(), *extensions])
    files |= {f"/usr/lib/x86_64-linux-gnu/xtables/{each.name}": each for each in extensions}
    if extensions:
        legacy = (f"{ip}{what}" for ip in ("iptables", "ip6tables") for what in ("", "-save", "-restore"))
        files |= {f"/usr/sbin/{name}": "->xtables-legacy-multi" for name in legacy}
    return files


def stand_ins() -> Path:
    """stand_ins.c, compiled into the cache. Raises MachineError."""
    source = Path(__file__).with_name("stand_ins.c")
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    made = cache_root() / "node" / f"stand-ins-{key}"
    if not made.is_file():
        made.parent.mkdir(parents=True, exist_ok=True)
        whole = made.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CC") or "cc", "-static", "-O2", "-o", str(whole), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise MachineError(f"a node needs a C compiler, and there is no {command[0]}") from None
        if done.returncode != 0:
            raise MachineError(f"`{' '.join(command)}`: {done.stderr.strip()[-1000:]}")
        whole.rename(made)
    return made
