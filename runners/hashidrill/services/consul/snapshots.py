"""Reads Consul's snapshot files: what `GET /v1/snapshot` and `consul snapshot save` give, of 1.10.3 and 1.22.2 alike.

A file is a gzipped tar of `meta.json` (Raft's own index, term and size), `state.bin` and `SHA256SUMS`. `state.bin` is a
header, then for each object a byte that names its type and the object in MessagePack, in the old form that knows no
difference between text and bytes (agent/consul/fsm/snapshot.go and snapshot/archive.go of both versions).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]

from hashidrill.errors import RecordingError
from hashidrill.util.foreign import parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

KVS, SESSION = 2, 3
"""Consul's types of objects (structs.MessageType) that are kept; all others are stepped over."""

_META, _STATE, _SUMS = "meta.json", "state.bin", "SHA256SUMS"


def saved_name(name: str) -> str:
    """What the file of a saved snapshot is called among a recording's artifacts."""
    return f"snapshot-{name}.snap"


def restored_name(name: str) -> str:
    """The snapshot that was taken right after that one was restored: the evidence of what the restore made."""
    return f"snapshot-{name}.restored.snap"


class SnapshotError(RecordingError):
    """A snapshot file that is not whole, or not one."""


@dataclass(frozen=True)
class Entry:
    """One key of Consul's KV store."""

    key: str
    value: bytes
    create_index: int
    modify_index: int
    lock_index: int = 0
    flags: int = 0
    session: str = ""


@dataclass(frozen=True)
class Session:
    """One session; `ttl` as Consul writes it, like `10s`."""

    id: str
    node: str
    name: str = ""
    ttl: str = ""
    behavior: str = ""
    create_index: int = 0


@dataclass(frozen=True)
class Snapshot:
    """What a snapshot holds. `index` and `term` are Raft's; `last_index` is that of the last change to the data."""

    index: int
    term: int
    last_index: int
    kv: Mapping[str, Entry]
    sessions: Mapping[str, Session]
    objects: Mapping[int, int] = field(default_factory=dict)
    """How many objects of each type there are, as `consul snapshot inspect` counts them."""


def read_snapshot(path: Path) -> Snapshot:
    """What the file holds. Raises SnapshotError that says what is wrong with it."""
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise SnapshotError(f"{path}: no snapshot can be read there: {error.strerror}") from None
    try:
        return decode(packed)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from None


def decode(packed: bytes) -> Snapshot:
    """The same from bytes. Raises SnapshotError."""
    members = _members(packed)
    _check_sums(members)
    try:
        meta = parse(members[_META])
        index, term, size = int(meta["Index"]), int(meta["Term"]), int(meta["Size"])
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"its {_META} does not read as Raft's: {type(error).__name__} {error}") from None
    if size != len(members[_STATE]):
        raise SnapshotError(f"its {_STATE} has {len(members[_STATE])} bytes, and {_META} says {size}")
    return _state(members[_STATE], index, term)


def _members(packed: bytes) -> dict[str, bytes]:
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
    if missing := [name for name in (_META, _STATE, _SUMS) if name not in found]:
        raise SnapshotError(f"not a Consul snapshot: {', '.join(missing)} is not in it")
    return found


def _check_sums(members: Mapping[str, bytes]) -> None:
    """Both files, as Consul checks them before a restore."""
    lines = [line.split() for line in members[_SUMS].decode(errors="replace").splitlines()]
    sums = {words[1]: words[0] for words in lines if len(words) == 2}
    for name in (_META, _STATE):
        if sums.get(name) != hashlib.sha256(members[name]).hexdigest():
            raise SnapshotError(f"its {name} is not what its {_SUMS} says: the file was changed or damaged")


def _state(state: bytes, index: int, term: int) -> Snapshot:
    objects = _objects(state)
    try:
        header = next(objects)[1]
        last_index = int(header[b"LastIndex"])
        kv: dict[str, Entry] = {}
        sessions: dict[str, Session] = {}
        counts: dict[int, int] = {}
        for kind, each in objects:
            counts[kind] = counts.get(kind, 0) + 1
            if kind == KVS:
                entry = _entry(each)
                kv[entry.key] = entry
            elif kind == SESSION:
                session = _session(each)
                sessions[session.id] = session
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise SnapshotError(f"its {_STATE} does not read as Consul's: {type(error).__name__} {error}") from None
    return Snapshot(index, term, last_index, kv, sessions, counts)


def _objects(state: bytes) -> Iterator[tuple[int, Any]]:
    """(type, object) of each; the header comes first, with type -1."""
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(state)
    kind = -1
    while True:
        try:
            yield kind, unpacker.unpack()
        except (msgpack.UnpackException, ValueError) as error:
            raise SnapshotError(
                f"its {_STATE} breaks off at byte {unpacker.tell()} of {len(state)}: {type(error).__name__}"
            ) from None
        if unpacker.tell() == len(state):
            return
        kind = unpacker.read_bytes(1)[0]


def _entry(raw: Mapping[bytes, Any]) -> Entry:
    return Entry(
        raw[b"Key"].decode(errors="replace"), raw[b"Value"] or b"", raw[b"CreateIndex"], raw[b"ModifyIndex"],
        raw[b"LockIndex"], raw[b"Flags"], _text(raw, b"Session"),
    )  # fmt: skip


def _session(raw: Mapping[bytes, Any]) -> Session:
    return Session(
        _text(raw, b"ID"), _text(raw, b"Node"), _text(raw, b"Name"), _text(raw, b"TTL"), _text(raw, b"Behavior"),
        raw[b"CreateIndex"],
    )  # fmt: skip


def _text(raw: Mapping[bytes, Any], key: bytes) -> str:
    return bytes(raw.get(key) or b"").decode(errors="replace")
