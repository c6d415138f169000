"""Gets a binary from its vendor's release archive, over HTTPS; opens the archive only if its SHA-256 is right.

This package has the SHA-256 of the versions that hashidrill requests by itself (pins.sha256, in the format of
`sha256sum`); a maintainer adds a version with `python -m hashidrill.lab.provision.pins`. Any other version is checked
against its vendor's published list, and a message says so, because an attacker who can change the archive on that
server can also change the list.
"""

import hashlib
import hmac
import ipaddress
import platform
import re
import shutil
import time
import zipfile
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath

import httpx2

from hashidrill.core.util.durations import so_far
from hashidrill.lab.provision.products import DEFAULT_VERSIONS, Product, Release, WayError

CONNECT_TIMEOUT_S = 3.0
"""Short, so that a machine without network soon tries the next way."""
SILENCE_TIMEOUT_S = 10.0
"""How long a server may stay silent."""
DOWNLOAD_TIMEOUT_S = 900.0
"""For one whole file: 200 MB at 250 kB/s. A slower download is abandoned."""
PROGRESS_GAP_S = 5.0
LARGEST_BYTES = 1_500_000_000
"""Limits how much a wrong server can write here. No release comes near it (vault, the largest, is 0.5 GB
unpacked).
"""
LARGEST_CHECKSUMS_BYTES = 1_000_000
_PINNED = "this package"

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


def parse_pins(text: str) -> dict[str, str]:
    """Path below the vendor's base URL -> SHA-256. Raises ValueError for a line that is neither a pin nor a comment."""
    pins: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or match[2] in pins:
            raise ValueError(f"line {number}: expected `SHA256  PATH`, each path once, found {line!r}")
        pins[match[2]] = match[1]
    return pins


@cache
def _known() -> dict[str, str]:
    return parse_pins(pins_file().read_text())


def pins_file() -> Path:
    # wheels are always unpacked, so this is a file on disk
    return Path(str(resources.files("hashidrill.lab.provision") / "pins.sha256"))


def pinned(path: str) -> str | None:
    """The SHA-256 that the file at this path below its vendor's base URL must have; None if unknown."""
    return _known().get(path)


def download(product: Product, version: str, work: Path, say: Callable[[str], None]) -> tuple[Path, str]:
    """Downloads the binary into `work`: (path, origin). Never opens a file with a wrong checksum. Raises WayError."""
    release = _release(product)
    path = _archive(product, version)
    archive_url = f"{release.base}/{path}"
    with _client(release.base) as client:
        wanted, by = _wanted(client, product, version, path)
        if by != _PINNED:
            say(f"the SHA-256 of {product.name} {version} is not in this package: trusting the list at {by}")
        archive = work / "archive"
        found = _fetch(client, archive_url, archive, say)
    if not hmac.compare_digest(found, wanted):
        raise WayError(
            f"{archive_url} has SHA-256 {found}, but {by} says {wanted}: the file was not used "
            "(a broken download, or an attacker in between)"
        )
    source = f"release archive {archive_url}"
    if not archive_url.endswith(".zip"):
        archive.chmod(0o755)
        return archive, source
    return _unpack(archive, product.name, work / product.name, archive_url), source


def why_not(product: Product, version: str) -> str | None:
    """Why `download` would fail, as far as a check without downloading shows; None if it should succeed."""
    try:
        release = _release(product)
        path = _archive(product, version)
        with _client(release.base) as client:
            _, by = _wanted(client, product, version, path)
            if by == _PINNED:  # no list is needed: does the release exist at all?
                _require_there(client, f"{release.base}/{path}")
    except WayError as error:
        return str(error)
    return None


def measured(product: Product, version: str, arch: str, work: Path, say: Callable[[str], None]) -> tuple[str, str]:
    """(path below the base URL, SHA-256) of one archive, checked against its vendor's list. Raises WayError."""
    release = _release(product)
    names = {"name": product.name, "version": version, "arch": arch}
    path = release.archive.format(**names)
    with _client(release.base) as client:
        listed = _checksum(client, f"{release.base}/{release.checksums.format(**names)}", path.rpartition("/")[2])
        found = _fetch(client, f"{release.base}/{path}", work / f"archive-{arch}", say)
    if found != listed:
        raise WayError(f"{path} has SHA-256 {found}, but its vendor's list says {listed}")
    return path, found


def _release(product: Product) -> Release:
    if product.release is None:
        raise WayError(f"hashidrill does not download {product.name}: it builds it")
    _require_https(product.release.base, f"{product.release.variable} is")
    return product.release


def _archive(product: Product, version: str) -> str:
    return _release(product).archive.format(name=product.name, version=version, arch=architecture())


def _wanted(client: httpx2.Client, product: Product, version: str, path: str) -> tuple[str, str]:
    """(SHA-256 that the archive must have, who says so). Raises WayError."""
    if (pin := pinned(path)) is not None:
        return pin, _PINNED
    if (product.name, version) in DEFAULT_VERSIONS:
        raise WayError(f"this package has no SHA-256 for {path}, and does not use downloads that it cannot check")
    release = _release(product)
    url = f"{release.base}/{release.checksums.format(name=product.name, version=version, arch=architecture())}"
    return _checksum(client, url, path.rpartition("/")[2]), url


def architecture() -> str:
    """The machine's architecture in vendors' file names. Raises WayError if vendors release nothing for it."""
    machine = platform.machine().lower()
    if machine not in _ARCHITECTURES:
        raise WayError(
            f"vendors' archives are used only on {' and '.join(sorted(set(_ARCHITECTURES.values())))}; "
            f"this machine is {machine}"
        )
    return _ARCHITECTURES[machine]


def _client(base: str) -> httpx2.Client:
    """A client that follows redirects, and refuses plain HTTP for the first request and for each redirect."""

    def check(request: httpx2.Request) -> None:
        _require_https(str(request.url), f"{base} leads to")

    timeout = httpx2.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    return httpx2.Client(follow_redirects=True, timeout=timeout, event_hooks={"request": [check]})


def _require_https(url: str, who: str) -> None:
    """Raises WayError unless `url` is https; on loopback, plain HTTP is allowed, for a mirror or a test."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise WayError(f"{who} {url!r}, which is not a URL: {error}") from None
    if parsed.scheme != "https" and not (parsed.scheme == "http" and _is_loopback(parsed.host)):
        raise WayError(f"{who} {url!r}: binaries are fetched over https:// only")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _checksum(client: httpx2.Client, url: str, file_name: str) -> str:
    """The SHA-256 that `url` gives for `file_name`, in lower-case hex."""
    text = bytearray()
    try:
        with client.stream("GET", url) as answer:
            _require_ok(answer, url)
            for chunk in answer.iter_bytes():
                text += chunk
                if len(text) > LARGEST_CHECKSUMS_BYTES:
                    raise WayError(f"{url} is not a list of checksums: it is over {LARGEST_CHECKSUMS_BYTES} bytes")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise WayError(_reason(url, error)) from None
    for line in text.decode(errors="replace").splitlines():
        fields = line.split()
        # sha256sum puts a * before the name of a file that it read in binary mode
        if len(fields) == 2 and fields[1].removeprefix("*") == file_name and len(fields[0]) == 64:
            return fields[0].lower()
    raise WayError(f"{url} has no SHA-256 for {file_name}")


def _require_there(client: httpx2.Client, url: str) -> None:
    try:
        with client.stream("GET", url) as answer:
            _require_ok(answer, url)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise WayError(_reason(url, error)) from None


def _fetch(client: httpx2.Client, url: str, into: Path, say: Callable[[str], None]) -> str:
    began = said = time.monotonic()
    digest, received = hashlib.sha256(), 0
    say(f"downloading {url}")
    try:
        with client.stream("GET", url) as answer, into.open("wb") as file:
            _require_ok(answer, url)
            total = int(answer.headers.get("content-length", 0))
            for chunk in answer.iter_bytes(chunk_size=65536):
                received += len(chunk)
                digest.update(chunk)
                file.write(chunk)
                now = time.monotonic()
                if received > LARGEST_BYTES:
                    raise WayError(f"{url} is larger than {LARGEST_BYTES / 1e9:g} GB: that is not a release")
                if now - began > DOWNLOAD_TIMEOUT_S:
                    raise WayError(f"{url}: gave up after {now - began:.0f} s and {received / 1e6:.1f} MB")
                if now - said > PROGRESS_GAP_S:
                    said = now
                    whole_s = (now - began) * total / received if total else None
                    say(f"downloading {url}: {_amount(received, total)}, {so_far(now - began, whole_s)}")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise WayError(_reason(url, error, received)) from None
    return digest.hexdigest()


def _require_ok(answer: httpx2.Response, url: str) -> None:
    if answer.status_code == httpx2.codes.NOT_FOUND:
        raise WayError(f"{url} does not exist (404): is that version published?")
    if answer.status_code != httpx2.codes.OK:
        raise WayError(f"{url} answered {answer.status_code} {answer.reason_phrase}".rstrip())


def _amount(received: int, total: int) -> str:
    return f"{received / 1e6:.0f} of {total / 1e6:.0f} MB" if total else f"{received / 1e6:.0f} MB"


def _reason(url: str, error: Exception, received: int = 0) -> str:
    if isinstance(error, httpx2.ConnectTimeout):
        return f"{url}: no connection within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(error, httpx2.TimeoutException):
        after = f" after {received / 1e6:.1f} MB" if received else ""
        return f"{url}: the server sent nothing for {SILENCE_TIMEOUT_S:g} s{after}"
    if isinstance(error, httpx2.RemoteProtocolError) and received:
        return f"{url}: the connection ended early, after {received / 1e6:.1f} MB"
    return f"{url}: {error or type(error).__name__}"


def _unpack(archive: Path, member: str, into: Path, url: str) -> Path:
    """Unpacks the one file `member` of a ZIP archive. Paths in the archive are never used as paths here."""
    try:
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise WayError(f"{url} holds the path {name!r}, which leads out of the archive: it was not used")
            size = zipped.getinfo(member).file_size
            if size > LARGEST_BYTES:
                raise WayError(f"{url}: {member} in it would be {size / 1e9:.1f} GB: that is not a release")
            # zipfile stops at the size that was just checked, and checks the CRC
            with zipped.open(member) as source, into.open("wb") as file:
                shutil.copyfileobj(source, file)
    except KeyError:
        raise WayError(f"{url} holds no file {member!r}") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise WayError(f"{url} is not a readable ZIP archive: {error}") from None
    into.chmod(0o755)
    return into
