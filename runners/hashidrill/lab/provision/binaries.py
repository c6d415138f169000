"""Gets the binaries of a datacenter: `ensure("consul", "1.22.2")`. Exactly the requested version is run.

It tries these ways, in order: an explicit path (YAML or environment), PATH, hashidrill's cache, the vendor's release
archive, `go build`. Downloaded and built binaries stay in the cache, `$XDG_CACHE_HOME/hashidrill/bin/NAME/VERSION/NAME`
(default `~/.cache`), with a `record.json` that holds their origin, size and time.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hashidrill.core.errors import BinaryError
from hashidrill.core.util.safe_json import parse
from hashidrill.lab.provision import archive as binaries_archive
from hashidrill.lab.provision import build as binaries_build
from hashidrill.lab.provision.packages import OLDEST_GO_TEXT
from hashidrill.lab.provision.products import (
    AUDITED_VERSIONS,
    DEFAULT_VERSIONS,
    KUBERNETES_VERSIONS,
    WATCHING_VERSIONS,
    Product,
    WayError,
    check_version,
    product_named,
    reported_version,
)

Progress = Callable[[str], None]
"""Called with one plain line of text at a time."""

_VERSION = re.compile(r"\d+\.\d+\.\d+([-+.][0-9A-Za-z.+-]+)?")
_RECORD = "record.json"
_LOCK = ".lock"
_WORK = ".work-"


@dataclass(frozen=True)
class Binary:
    """A binary that reports `version`. `source` is for people and reports; `sha256` is the digest of the file."""

    path: Path
    version: str
    source: str
    sha256: str


@dataclass(frozen=True)
class Attempt:
    """One attempted way, and why it failed."""

    way: str
    reason: str


def ensure(
    name: str, version: str, *, explicit: str | None = None, progress: Progress | None = None, with_ui: bool = False
) -> Binary:
    """The binary, from the first way that succeeds. Blocks: building Consul takes minutes the first time.

    `with_ui`: a cached build without a UI is replaced by the vendor's binary, if that can be downloaded. Call `ensure`
    outside the event loop, so that Ctrl-C ends it. A second process that needs the same binary waits for the first.
    Raises BinaryError with all ways tried and why each failed.
    """
    return ensure_product(product_named(name), version, explicit=explicit, progress=progress, with_ui=with_ui)


def ensure_product(
    product: Product,
    version: str,
    *,
    explicit: str | None = None,
    progress: Progress | None = None,
    with_ui: bool = False,
) -> Binary:
    """`ensure` for a product that need not be in `PRODUCTS`, such as a product of a test."""
    _check_asked(product, version)
    say = progress or _silent
    attempts: list[Attempt] = []
    if (found := _local(product, version, explicit, attempts)) is not None:
        if with_ui and product.ui_in_releases_only and found.source.startswith(f"cache ({binaries_build.BUILT}"):
            return _official(product, version, say) or found
        return found
    try:
        with _locked(product, version, say) as folder:
            # another process may have stored it while this one waited
            return _from_cache_again(product, version) or _get(product, version, folder, attempts, say)
    except KeyboardInterrupt as stop:
        stop.add_note(
            f"{product.name} {version} was not complete, and is removed; kept: nothing; again: the same command"
        )
        raise
    except OSError as error:
        where = error.filename or cache_folder(product.name, version)
        attempts.append(Attempt("release archive, go build", f"the cache cannot be written: {where}: {error.strerror}"))
        raise _all_failed(product, version, attempts) from None


def locate(name: str, version: str, *, explicit: str | None = None) -> Binary | None:
    """The binary if it is on this machine already; None otherwise.

    Raises BinaryError for an explicit path of another version.
    """
    product = product_named(name)
    _check_asked(product, version)
    return _local(product, version, explicit, [])


def must_be_built(name: str, version: str) -> bool:
    """Whether the binary is neither on this machine nor downloadable. Checks the download, which takes seconds."""
    product = product_named(name)
    try:
        return locate(name, version) is None and binaries_archive.why_not(product, version) is not None
    except BinaryError:  # the explicit path is wrong: no other way is tried
        return False


def cache_root() -> Path:
    """The folder of hashidrill in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "")
    # the XDG base directory specification says: ignore a relative path
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "hashidrill"


def cache_folder(name: str, version: str) -> Path:
    """The folder of a binary in the cache."""
    return cache_root() / "bin" / name / version


def explicit_path(name: str) -> str | None:
    """The path of this binary that the environment gives, such as HASHIDRILL_CONSUL=/opt/consul."""
    return os.environ.get(product_named(name).variable) or None


def _silent(_line: str) -> None:
    pass


def _check_asked(product: Product, version: str) -> None:
    # the version becomes a path and a URL
    if not _VERSION.fullmatch(version):
        raise BinaryError(f"{version!r} is not a version of {product.name}; write it like 1.22.2")


def _local(product: Product, version: str, explicit: str | None, attempts: list[Attempt]) -> Binary | None:
    """Tries the ways that need neither network nor time; adds each failure to `attempts`."""
    if explicit or os.environ.get(product.variable):
        return _from_explicit(product, version, explicit)
    attempts.append(Attempt("explicit path", f"none was given (YAML, or {product.variable}=/path/to/{product.name})"))
    for way, source in (("PATH", _from_path), ("cache", _from_cache)):
        try:
            if (found := source(product, version)) is not None:
                return found
            reason = (
                f"there is no {product.name} on PATH"
                if way == "PATH"
                else f"{cache_folder(product.name, version) / product.name} does not exist"
            )
        except WayError as error:
            reason = str(error)
        attempts.append(Attempt(way, reason))
    return None


def _from_explicit(product: Product, version: str, explicit: str | None) -> Binary:
    """A person named this file, so no other way is tried."""
    named = explicit or os.environ.get(product.variable) or ""
    origin = "the YAML" if explicit else product.variable
    path = Path(named).expanduser().absolute()
    if not path.is_file():
        raise BinaryError(
            f"{origin} names {named} as the {product.name} to run, but there is no such file. "
            f"Correct the path, or remove it: hashidrill then finds {product.name} {version} itself."
        )
    try:
        found = reported_version(product, path)
    except WayError as error:
        raise BinaryError(f"{origin} names {named} as the {product.name} to run, but {error}.") from None
    if found != version:
        raise BinaryError(
            f"{origin} names {named} as the {product.name} to run: it is version {found}, but version {version} is "
            f"requested. Request {found}, name a {product.name} {version}, or remove the path."
        )
    return Binary(path, version, f"explicit path ({origin})", file_sha256(path))


def _from_path(product: Product, version: str) -> Binary | None:
    found = shutil.which(product.name) if product.says else None  # no other file would show the version
    if found is None:
        return None
    path = Path(found).absolute()
    check_version(product, version, path)
    return Binary(path, version, "PATH", file_sha256(path))


def _from_cache(product: Product, version: str) -> Binary | None:
    """Trusts a file that matches its record; checks any other file again."""
    path = cache_folder(product.name, version) / product.name
    if not path.is_file():
        return None
    record = _read_record(path)
    if record is None:
        # a person put it there (a CI image, an air-gapped machine): the version that it reports counts
        check_version(product, version, path)
        return Binary(path, version, "cache (put there by hand)", file_sha256(path))
    sha256 = str(record["sha256"])
    if _looks(path) != record.get("looks") and file_sha256(path) != sha256:
        raise WayError(f"{path} was changed or damaged since it was put there; it will be replaced")
    return Binary(path, version, f"cache ({record['source']})", sha256)


def _from_cache_again(product: Product, version: str) -> Binary | None:
    """A binary that another process has just stored; failures are not noted again."""
    try:
        return _from_cache(product, version)
    except WayError:
        return None


def _read_record(path: Path) -> dict[str, object] | None:
    try:
        record = parse((path.parent / _RECORD).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and {"sha256", "source"} <= record.keys() else None


def _looks(path: Path) -> list[int]:
    """Size and modification time, which show a change without reading 130 MB at every run."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(product: Product, version: str, say: Progress) -> Iterator[Path]:
    folder = cache_folder(product.name, version)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: another process is getting {product.name} {version}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _get(product: Product, version: str, folder: Path, attempts: list[Attempt], say: Progress) -> Binary:
    for left in folder.glob(f"{_WORK}*"):
        # a killed process left it: no other process has a work folder while this process holds the lock
        shutil.rmtree(left, ignore_errors=True)
    for way, get in (("release archive", binaries_archive.download), ("go build", binaries_build.build)):
        with tempfile.TemporaryDirectory(prefix=_WORK, dir=folder, ignore_cleanup_errors=True) as work:
            try:
                path, source = get(product, version, Path(work), say)
                check_version(product, version, path)
            except WayError as error:
                attempts.append(Attempt(way, str(error)))
                say(f"{product.name} {version}: {way}: {error}")
                continue
            return keep(product, version, path, source)
    raise _all_failed(product, version, attempts)


def _official(product: Product, version: str, say: Progress) -> Binary | None:
    """Replaces the cached binary by the vendor's own; if that fails, says why and returns None."""
    try:
        with _locked(product, version, say) as folder, tempfile.TemporaryDirectory(prefix=_WORK, dir=folder) as work:
            path, source = binaries_archive.download(product, version, Path(work), say)
            check_version(product, version, path)
            return keep(product, version, path, source)
    except (WayError, OSError) as error:
        say(f"{product.name} {version} was built on this machine and stays without a UI: {error}")
        return None


def keep(product: Product, version: str, path: Path, source: str) -> Binary:
    """Moves a checked binary into the cache.

    The record goes first, the binary last, each by an atomic rename: a cached binary is always whole.
    """
    folder = cache_folder(product.name, version)
    folder.mkdir(parents=True, exist_ok=True)
    path.chmod(0o755)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sha256 = file_sha256(path)
    record = path.parent / _RECORD
    record.write_text(json.dumps({"source": source, "sha256": sha256, "looks": _looks(path)}, indent=1) + "\n")
    record.replace(folder / _RECORD)
    path.replace(folder / product.name)
    return Binary(folder / product.name, version, source, sha256)


def _all_failed(product: Product, version: str, attempts: list[Attempt]) -> BinaryError:
    lines = [f"  {number}. {attempt.way}: {attempt.reason}" for number, attempt in enumerate(attempts, start=1)]
    release = product.release
    mirror = (
        f"  - access to {release.base}, or {release.variable}=URL of a mirror with the same layout" if release else ""
    )
    return BinaryError(
        "\n".join(
            [
                f"This machine could not get {product.name} {version}. Tried, in this order:",
                *lines,
                "Any one of these fixes it:",
                f"  - {product.variable}=/path/to/{product.name}, if you have that version",
                *([mirror] if mirror else []),
                f"  - Go {OLDEST_GO_TEXT} or newer (https://go.dev/dl), and access to its modules",
            ]
        )
    )


def is_here(name: str) -> bool:
    """Whether the version that tests need is on this machine, without network or building."""
    version = dict(reversed((*DEFAULT_VERSIONS, *WATCHING_VERSIONS, *AUDITED_VERSIONS, *KUBERNETES_VERSIONS)))[name]
    try:
        return locate(name, version) is not None
    except BinaryError:
        return False


if __name__ == "__main__":
    # for scripts: the exit code says whether the binary is on this machine
    sys.exit(0 if is_here(sys.argv[1]) else 1)
