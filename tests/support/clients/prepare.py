"""Gets the reference clients ready to run: builds the Go ones once, and fills in their command lines.

Builds the OpenTelemetry collector of tests/support/collector in the same way.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from hashidrill.lab.provision import binaries
from hashidrill.lab.provision import build as binaries_build
from hashidrill.lab.provision.packages import OLDEST_GO_TEXT

FOLDER = Path(__file__).parent
_SOURCES = FOLDER / "go"
_NAME = "reference-clients"
_COLLECTOR = FOLDER.parent / "collector"
_GENERATORS = FOLDER.parent / "generators"


def go_binaries() -> Path:
    """The folder of the Go clients, from the cache of hashidrill; built now if their sources are new.

    Raises FileNotFoundError without a Go that can build them, and CalledProcessError with Go's output on stderr.
    """
    return _built(_NAME, _SOURCES, "./cmd/...")


def collector_binary() -> Path:
    """The OpenTelemetry collector, from the same cache; the first build takes minutes. Raises as `go_binaries`."""
    return _built("otel-collector", _COLLECTOR, ".") / "collector"


def generators() -> Path:
    """The folder of k6 and vegeta, from the same cache; the first build takes minutes. Raises as `go_binaries`."""
    return _built("load-generators", _GENERATORS, "tool")


def _built(name: str, sources: Path, package: str) -> Path:
    folder = binaries.cache_folder(name, _key(sources))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at a time build once
        if not folder.is_dir():
            _build(folder, sources, package)
            for old in folder.parent.iterdir():
                if old.is_dir() and old != folder:
                    shutil.rmtree(old, ignore_errors=True)
    return folder


def command(argv: tuple[str, ...], *, url: str, bin_folder: Path, seconds: float = 0) -> list[str]:
    """The command line with its placeholders filled in. `seconds` is how long a service runs."""
    values = {"python": sys.executable, "bin": bin_folder, "clients": FOLDER, "url": url, "seconds": seconds}
    return [word.format_map(values) for word in argv]


def environment(url: str) -> dict[str, str]:
    """Ours, with the address in the variables that clients read, and without any proxy."""
    ours = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return ours | dict.fromkeys(("CONSUL_HTTP_ADDR", "VAULT_ADDR", "NOMAD_ADDR"), url)


def _key(sources: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(sources)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _build(folder: Path, sources: Path, package: str) -> None:
    go = binaries_build.find_go()
    if go is None or not go.usable:
        raise FileNotFoundError(f"Go {OLDEST_GO_TEXT} or newer is needed to build {sources}")
    work = folder.with_name(f".{folder.name}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    environment = os.environ | {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off", "CGO_ENABLED": "0"}
    build = [str(go.path), "build", "-trimpath", "-ldflags", "-s -w", "-o", f"{work}/", package]
    subprocess.run(build, cwd=sources, env=environment, check=True, stdin=subprocess.DEVNULL, timeout=900)
    work.rename(folder)
