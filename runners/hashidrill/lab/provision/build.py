"""Builds a binary with Go from the pinned wrapper module of this package (`modules/NAME-VERSION/go.mod` and go.sum)."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from hashidrill.core.errors import MachineError
from hashidrill.core.util.commands import tool
from hashidrill.core.util.durations import so_far, timed, usual_s
from hashidrill.core.util.interrupts import PutOff
from hashidrill.core.util.safe_json import parse
from hashidrill.lab.provision import packages
from hashidrill.lab.provision.products import Product, WayError

PROGRESS_GAP_S = 10.0
BUILT = "built with"
"""Begins the origin of a binary that was built here."""
_LOG_TAIL_LINES = 6
_USUAL_PLACES = ("/usr/local/go", "~/.local/go", "/usr/lib/go-1.*")
"""Go's usual folders: of its installation guide, of an ordinary user, and of Debian's packages of one version."""


@dataclass(frozen=True)
class Go:
    """A Go toolchain. `version` is (major, minor); `text` is what Go calls it, such as go1.26.8."""

    path: Path
    version: tuple[int, int]
    text: str

    @property
    def usable(self) -> bool:
        return self.version >= packages.OLDEST_GO


def find_go() -> Go | None:
    """A usable Go on PATH or in a usual place; otherwise a Go that is too old; None if no Go runs."""
    on_path = shutil.which("go")
    places = [Path(place).expanduser() for place in _USUAL_PLACES]
    paths = [Path(on_path)] if on_path else []
    paths += [
        folder / "bin" / "go" for place in places for folder in sorted(place.parent.glob(place.name), reverse=True)
    ]
    found = [go for path in paths if (go := _go_at(path)) is not None]
    return next((go for go in found if go.usable), found[0] if found else None)


def _go_at(path: Path) -> Go | None:
    try:
        printed = _go_version(path)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\b(go(\d+)\.(\d+)\S*)", printed)
    return Go(path, (int(match[2]), int(match[3])), match[1]) if match else None


def _go_version(go: Path, *of: str) -> str:
    # local, and outside any module: otherwise `go version` could fetch another toolchain
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    command = [str(go), "version", *of]
    return subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, timeout=20, check=False
    ).stdout


def module_folder(product: Product, version: str) -> Path | None:
    """The wrapper module of this version, if there is one."""
    folder = (product.modules or _modules()) / f"{product.module}-{version}"
    return folder if (folder / "go.mod").is_file() else None


def buildable_versions(product: Product) -> list[str]:
    """The versions that have a wrapper module."""
    prefix = f"{product.module}-"
    return sorted(folder.name.removeprefix(prefix) for folder in (product.modules or _modules()).glob(f"{prefix}*"))


def _modules() -> Path:
    # wheels are always unpacked, so this is a folder on disk
    return Path(str(resources.files("hashidrill.lab.provision") / "modules"))


def build(product: Product, version: str, work: Path, say: Callable[[str], None]) -> tuple[Path, str]:
    """Builds the binary in `work`; returns its path and origin. Raises WayError with the end of Go's output."""
    module = module_folder(product, version)
    if module is None:
        raise WayError(
            f"this package has no pinned module for {product.name} {version}; "
            f"it can build {' and '.join(buildable_versions(product)) or 'none'}"
        )
    go = _toolchain(product, say)
    copied = work / "module"
    copied.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(module / name, copied / name)
    into = work / product.name
    if product.files:
        say(f"getting {product.name} {version} from the sources of its module: this takes {product.build_time}")
        _take(go, product, version, into, _environment(os.environ, work, product))
        return into, "from the sources of the pinned module"
    say(f"building {product.name} {version} with Go: this takes {product.build_time} the first time")
    with timed(f"build {product.name}"):
        _run(build_command(go, product, version, into), copied, _environment(os.environ, work, product), version, say)
    # the toolchain that go.mod requested may be newer than the Go that was found
    compiled = re.search(r": (go\d+\.\d+\S*)\s*$", _go_version(go.path, str(into)))
    return into, f"{BUILT} {compiled[1] if compiled else go.text} from pinned modules"


def build_command(go: Go, product: Product, version: str, into: Path) -> list[str]:
    """The `go build` command of the pinned package (GOFLAGS keep go.mod and go.sum unchanged)."""
    flags = "-s -w" + (f" -X {product.stamp}={product.stamp_as.format(version=version)}" if product.stamp else "")
    tags = ["-tags", product.tags] if product.tags else []
    return [str(go.path), "build", "-trimpath", *tags, "-ldflags", flags, "-o", str(into), product.package]


def _take(go: Go, product: Product, version: str, into: Path, environment: dict[str, str]) -> None:
    folder = into.parent / "module"
    command = [str(go.path), "mod", "download", "-json", product.package]
    said = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    told = parse(said.stdout) if said.returncode == 0 else {}
    if not isinstance(told, dict) or "Dir" not in told:
        raise WayError(f"`go mod download {product.package}`: {(said.stderr or said.stdout).strip()[-500:]}")
    found = sorted(Path(told["Dir"]).glob(product.files))
    if not found:
        raise WayError(f"{product.package} {version} has no {product.files}")
    into.write_text(f"# {product.name} {version}\n" + "".join(f"---\n{_document(each)}\n" for each in found))


def _document(path: Path) -> str:
    return path.read_text().strip().removeprefix("---").strip()


def lacks_compilers(product: Product) -> list[packages.Package]:
    """The system packages that this machine lacks to build the product."""
    go = find_go()
    lacking = [] if go is not None and go.usable else [packages.GO]
    if lacking and tool(packages.CERTIFICATES.tool) is None:
        lacking.append(packages.CERTIFICATES)
    if product.cgo and shutil.which(os.environ.get("CC") or "gcc") is None:
        lacking += packages.C_COMPILER
    return lacking


def _toolchain(product: Product, say: Callable[[str], None]) -> Go:
    """The Go to build the product with. Installs Go and a C compiler if they are missing. Raises WayError."""
    try:
        if lacking := lacks_compilers(product):
            packages.install_packages(lacking, say)
    except MachineError as error:
        raise WayError(f"{_unusable(find_go()) or f'{product.name} needs a C compiler'}: {error}") from None
    go = find_go()
    if go is None or not go.usable:
        raise WayError(_unusable(go))
    return go


def _unusable(go: Go | None) -> str:
    if go is None:
        return "there is no Go on PATH, nor in /usr/local/go"
    return "" if go.usable else f"{go.path} is {go.text}: Go {packages.OLDEST_GO_TEXT} or newer is needed"


def _environment(inherited: Mapping[str, str], work: Path, product: Product) -> dict[str, str]:
    """The user's environment (proxies, module cache, GOTOOLCHAIN), without variables that would change the build."""
    scratch = work / "tmp"
    scratch.mkdir()
    changed = {"GOOS", "GOARCH", "GOEXPERIMENT", "GOFIPS140", "GOROOT", "CGO_CFLAGS", "CGO_LDFLAGS"}
    return {key: value for key, value in inherited.items() if key not in changed} | {
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOWORK": "off",
        "GO111MODULE": "on",
        "CGO_ENABLED": "1" if product.cgo else "0",
        # not /tmp, which may be a small file system in memory: Consul's objects take hundreds of megabytes
        "GOTMPDIR": str(scratch),
    }


def _run(
    command: list[str], folder: Path, environment: dict[str, str], version: str, say: Callable[[str], None]
) -> None:
    name = Path(command[-2]).name
    log = folder / "go.log"
    began, usual = time.monotonic(), usual_s(f"build {name}")
    with log.open("wb") as output, PutOff() as interrupts:
        go = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            interrupts.now()
            while True:
                try:
                    code = go.wait(timeout=PROGRESS_GAP_S)
                    break
                except subprocess.TimeoutExpired:
                    say(f"building {name} {version} with Go: {so_far(time.monotonic() - began, usual)}")
        except BaseException:
            # Ctrl-C must not leave a build running in the background
            go.kill()
            go.wait()
            raise
    if code != 0:
        raise WayError(f"`{' '.join(command[:2])} {command[-1]}` ended with exit code {code}:\n{_tail(log)}")
    say(f"built {name} {version} in {time.monotonic() - began:.0f} s")


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    # "go: downloading ..." fills the log without explaining the failure
    telling = [line for line in lines if not line.startswith("go: downloading")] or lines
    return "\n".join(f"       {line[:300]}" for line in telling[-_LOG_TAIL_LINES:])
