"""Reads Consul's snapshot files, which `GET /v1/snapshot` and `consul snapshot save` return in 1.10.3 and in 1.22.2.

A file is a gzipped tar of `meta.json` (Raft's own index, term and size), `state.bin` and `SHA256SUMS`. `state.bin` is a
header, then for each object a byte that names its type and the object in MessagePack, in the old form that does not
distinguish text from bytes (agent/consul/fsm/snapshot.go and snapshot/archive.go of both versions).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from hashidrill.core.util.raft_archive import STATE, SnapshotError, decoded, restored_name, saved_name, unpack

__all__ = [
    "KVS",
    "SESSION",
    "Entry",
    "Session",
    "Snapshot",
    "SnapshotError",
    "decode",
    "read_snapshot",
    "restored_name",
    "saved_name",
]
KVS, SESSION = 2, 3
"""The types of Consul's objects (structs.MessageType) that are read; all other objects are skipped."""


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
    """The content of a snapshot. `index` and `term` are Raft's; `last_index` is the index of the data's last change."""

    index: int
    term: int
    last_index: int
    kv: Mapping[str, Entry]
    sessions: Mapping[str, Session]
    objects: Mapping[int, int] = field(default_factory=dict)
    """How many objects of each type there are, as `consul snapshot inspect` counts them."""


def read_snapshot(path: Path) -> Snapshot:
    """The decoded file. Raises SnapshotError, which says what is wrong with the file."""
    return decoded(path, decode)


def decode(packed: bytes) -> Snapshot:
    """Decodes the bytes of a snapshot file. Raises SnapshotError."""
    archive = unpack(packed, "Consul")
    return _state(archive.state, archive.index, archive.term)


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
        raise SnapshotError(f"its {STATE} does not read as Consul's: {type(error).__name__} {error}") from None
    return Snapshot(index, term, last_index, kv, sessions, counts)


def _objects(state: bytes) -> Iterator[tuple[int, Any]]:
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(state)
    kind = -1
    while True:
        try:
            yield kind, unpacker.unpack()
        except (msgpack.UnpackException, ValueError) as error:
            raise SnapshotError(
                f"its {STATE} breaks off at byte {unpacker.tell()} of {len(state)}: {type(error).__name__}"
            ) from None
        if unpacker.tell() == len(state):
            return
        kind = unpacker.read_bytes(1)[0]


def _entry(raw: Mapping[bytes, Any]) -> Entry:
    return Entry(
        raw[b"Key"].decode(errors="replace"),
        raw[b"Value"] or b"",
        raw[b"CreateIndex"],
        raw[b"ModifyIndex"],
        raw[b"LockIndex"],
        raw[b"Flags"],
        _text(raw, b"Session"),
    )


def _session(raw: Mapping[bytes, Any]) -> Session:
    return Session(
        _text(raw, b"ID"),
        _text(raw, b"Node"),
        _text(raw, b"Name"),
        _text(raw, b"TTL"),
        _text(raw, b"Behavior"),
        raw[b"CreateIndex"],
    )


def _text(raw: Mapping[bytes, Any], key: bytes) -> str:
    return bytes(raw.get(key) or b"").decode(errors="replace")
