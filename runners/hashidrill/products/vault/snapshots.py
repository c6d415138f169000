"""Reads the snapshots of Vault's integrated storage, as `GET sys/storage/raft/snapshot` of 1.21.0 returns them.

The state is a sequence of storage entries: the length as a varint, then a protobuf message of key (1), value (2) and
a flag (3) (FSM.writeTo of physical/raft/fsm.go). Values are encrypted. Keys are readable, so entries can be counted
without Vault and without its keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hashidrill.core.util.raft_archive import SnapshotError, decoded, unpack

__all__ = ["Snapshot", "SnapshotError", "decode", "read_snapshot"]

_POLICIES, _TOKENS, _LEASES, _SECRETS = "sys/policy/", "sys/token/id/", "sys/expire/id/", "logical/"
_VERSIONS = "/versions/"
"""Each version of a secret of a KV engine (version 2) is an entry of its own."""
_KEY = 0x0A
"""The first byte of a message: field 1, bytes follow."""


@dataclass(frozen=True)
class Snapshot:
    """The content of a snapshot, counted by the keys of its entries."""

    index: int
    entries: int
    policies: frozenset[str]
    tokens: int
    leases: int
    versions: int
    """The number of versions of all secrets."""


def read_snapshot(path: Path) -> Snapshot:
    """The content of the file. Raises SnapshotError, which says what is wrong with the file."""
    return decoded(path, decode)


def decode(packed: bytes) -> Snapshot:
    """Decodes the bytes of a snapshot file. Raises SnapshotError."""
    archive = unpack(packed, "Vault")
    keys = list(_keys(archive.state))
    return Snapshot(
        archive.index,
        len(keys),
        frozenset(key.removeprefix(_POLICIES) for key in keys if key.startswith(_POLICIES)),
        sum(key.startswith(_TOKENS) for key in keys),
        sum(key.startswith(_LEASES) for key in keys),
        sum(key.startswith(_SECRETS) and _VERSIONS in key for key in keys),
    )


def _keys(state: bytes) -> Iterator[str]:
    at = 0
    while at < len(state):
        length, start = _varint(state, at)
        entry = state[start : start + length]
        if len(entry) < length or not entry or entry[0] != _KEY:
            raise SnapshotError(f"its state does not read as Vault's at byte {at} of {len(state)}")
        size, begin = _varint(entry, 1)
        yield entry[begin : begin + size].decode(errors="replace")
        at = start + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data):
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return number, at
    raise SnapshotError("its state breaks off in the middle of a number")
