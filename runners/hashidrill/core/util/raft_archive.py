"""The files in which Consul, Nomad and Vault save a snapshot of their Raft state.

Such a file is a gzipped tar of `meta.json` (Raft's index, term and size), `state.bin` (in the product's own format) and
`SHA256SUMS` with the sums of both (snapshot/archive.go of Consul, helper/snapshot/archive.go of Nomad).
"""

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hashidrill.core.errors import RecordingError
from hashidrill.core.util.files import private_folder, write_whole
from hashidrill.core.util.safe_json import parse

T = TypeVar("T")
META, STATE, SUMS = "meta.json", "state.bin", "SHA256SUMS"


class SnapshotError(RecordingError):
    """A file is not a complete snapshot."""


@dataclass(frozen=True)
class Archive:
    """The content of a snapshot file. `index` and `term` are Raft's."""

    index: int
    term: int
    state: bytes


def saved_name(name: str) -> str:
    """The file name of a saved snapshot among a recording's artifacts."""
    return f"snapshot-{name}.snap"


def restored_name(name: str) -> str:
    """The file name of a snapshot taken right after the restore of `name`, as evidence of the restore's result."""
    return f"snapshot-{name}.restored.snap"


def keep(path: Path, packed: bytes) -> None:
    private_folder(path.parent)
    write_whole(path, packed)


def decoded(path: Path, decode: Callable[[bytes], T]) -> T:
    """The decoded content of the file. Raises SnapshotError that says what is wrong with the file."""
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise SnapshotError(f"{path}: no snapshot can be read there: {error.strerror}") from None
    try:
        return decode(packed)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from None


def unpack(packed: bytes, product: str) -> Archive:
    """Unpacks a snapshot with the checks that the product makes before a restore. Raises SnapshotError."""
    members = _members(packed, product)
    _check_sums(members)
    try:
        meta = parse(members[META])
        index, term, size = int(meta["Index"]), int(meta["Term"]), int(meta["Size"])
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"its {META} cannot be read as Raft's: {type(error).__name__} {error}") from None
    if size != len(members[STATE]):
        raise SnapshotError(f"its {STATE} has {len(members[STATE])} bytes, but {META} says {size}")
    return Archive(index, term, members[STATE])


def _members(packed: bytes, product: str) -> dict[str, bytes]:
    try:
        archive = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise SnapshotError(f"not a whole gzip file ({len(packed)} bytes): {error}") from None
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                file = tar.extractfile(member)
                found[member.name] = b"" if file is None else file.read()
    except tarfile.TarError as error:
        raise SnapshotError(f"not a whole tar archive: {error}") from None
    if missing := [name for name in (META, STATE, SUMS) if name not in found]:
        raise SnapshotError(f"not a {product} snapshot: {', '.join(missing)} is missing")
    return found


def _check_sums(members: Mapping[str, bytes]) -> None:
    lines = [line.split() for line in members[SUMS].decode(errors="replace").splitlines()]
    sums = {words[1]: words[0] for words in lines if len(words) == 2}
    for name in (META, STATE):
        if sums.get(name) != hashlib.sha256(members[name]).hexdigest():
            raise SnapshotError(f"its {name} does not match its {SUMS}: the file was changed or damaged")
