"""Reads and bloats files of BoltDB, in which Consul's servers keep their Raft log (boltdb/bolt v1 and bbolt alike).

All pages have the same size. The first two are meta pages; the valid meta page with the higher transaction number
counts, and says where the list of free pages is. Every commit rewrites that list, 8 bytes per page, so a long list
makes every commit expensive. The layouts are those of go.etcd.io/bbolt internal/common/page.go, meta.go and
internal/freelist/shared.go; bolt v1.3.1 has the same layouts.
"""

from __future__ import annotations

import fcntl
import os
import struct
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from hashidrill.core.errors import FaultError

_PAGE = struct.Struct("<QHHI")
"""id, flags, count, overflow."""
_META = struct.Struct("<IIIIQQQQQ")
"""magic, version, page size, flags, root page, root sequence, free list, high water, transaction; then the checksum."""
_CHECKSUM = struct.Struct("<Q")
_MAGIC, _VERSION = 0xED0CDAED, 2
_META_PAGE, _FREELIST_PAGE = 0x04, 0x10
_NO_FREELIST = 2**64 - 1
_COUNT_OVERFLOW = 0xFFFF
"""From this many free pages on, the page's own count field is too small; the count is then in the next 8 bytes."""
ID_BYTES = 8
"""The bytes that one free page adds to each commit."""


class BoltError(FaultError):
    """The file is not a BoltDB file, or cannot be bloated."""


@dataclass(frozen=True)
class Meta:
    """One meta page. `high_water` is the first page that was never used; `root` is (page, sequence)."""

    page_size: int
    flags: int
    root: tuple[int, int]
    freelist: int
    high_water: int
    transaction: int

    def packed(self) -> bytes:
        """The whole page, with its checksum."""
        body = _META.pack(
            _MAGIC, _VERSION, self.page_size, self.flags, *self.root, self.freelist, self.high_water, self.transaction
        )
        page = _PAGE.pack(self.transaction % 2, _META_PAGE, 0, 0) + body + _CHECKSUM.pack(fnv64a(body))
        return page.ljust(self.page_size, b"\0")


def fnv64a(data: bytes) -> int:
    """The 64-bit FNV-1a hash."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def free_pages(path: Path) -> list[int]:
    """The free pages of a file that no process writes to. Raises BoltError."""
    with _opened(path, "rb") as file:
        meta = _meta(file, path)
        return list(_free(file, meta, path)[0])


def read_meta(path: Path) -> Meta:
    """The valid meta page with the higher transaction number. Raises BoltError."""
    with _opened(path, "rb") as file:
        return _meta(file, path)


def bloat(path: Path, more: int) -> None:
    """Adds `more` free pages to the file, as if they had been used and freed. The content stays unchanged.

    The new pages are a hole in the file and take no space until they are used. No process may have the file open.
    The old content stays valid until the new meta page is written. Raises BoltError.
    """
    with _opened(path, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BoltError(f"{path}: a process has it open; stop the server first") from None
        meta = _meta(file, path)
        free, old_run = _free(file, meta, path)
        first_new, list_at = meta.high_water, meta.high_water + more
        free.extend(range(meta.freelist, meta.freelist + old_run))  # the list's own pages are free once it has moved
        free = array("Q", sorted(free))
        free.extend(range(first_new, list_at))
        run = listed(free, list_at, meta.page_size)
        file.seek(list_at * meta.page_size)
        file.write(run)
        _sync(file)
        moved = replace(meta, freelist=list_at, high_water=list_at + len(run) // meta.page_size)
        # both meta pages, because readers may use either one
        for transaction in (meta.transaction + 1, meta.transaction + 2):
            file.seek(transaction % 2 * meta.page_size)
            file.write(replace(moved, transaction=transaction).packed())
            _sync(file)


def _opened(path: Path, mode: str) -> BinaryIO:
    try:
        return path.open(mode)  # type: ignore[return-value]
    except OSError as error:
        raise BoltError(f"{path}: {error.strerror}") from None


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _meta(file: BinaryIO, path: Path) -> Meta:
    size = os.fstat(file.fileno()).st_size
    found = []
    for offset in (0, *(1 << shift for shift in range(10, 17))):  # the second page is at the page size: 1 kB to 64 kB
        file.seek(offset + _PAGE.size)
        raw = file.read(_META.size + _CHECKSUM.size)
        if len(raw) == _META.size + _CHECKSUM.size and (meta := _unpacked(raw)) is not None:
            found.append(meta)
    if not found:
        raise BoltError(f"{path}: not a BoltDB file: neither of its meta pages is valid")
    newest = max(found, key=lambda meta: meta.transaction)
    if newest.high_water * newest.page_size > size:
        raise BoltError(f"{path}: truncated: {size} bytes, but its pages take {newest.high_water} * page size")
    return newest


def _unpacked(raw: bytes) -> Meta | None:
    body = raw[: _META.size]
    magic, version, page_size, flags, *root, freelist, high_water, transaction = _META.unpack(body)
    if (magic, version) != (_MAGIC, _VERSION) or _CHECKSUM.unpack(raw[_META.size :])[0] != fnv64a(body):
        return None
    return Meta(page_size, flags, (root[0], root[1]), freelist, high_water, transaction)


def _free(file: BinaryIO, meta: Meta, path: Path) -> tuple[array[int], int]:
    if meta.freelist == _NO_FREELIST:
        raise BoltError(f"{path}: keeps no list of free pages (no_freelist_sync), so it cannot be bloated")
    file.seek(meta.freelist * meta.page_size)
    number, flags, count, overflow = _PAGE.unpack(file.read(_PAGE.size))
    if number != meta.freelist or flags != _FREELIST_PAGE:
        raise BoltError(
            f"{path}: page {meta.freelist} is not a list of free pages: the file is being written, or damaged"
        )
    if count == _COUNT_OVERFLOW:
        (count,) = struct.unpack("<Q", file.read(ID_BYTES))
    ids = array("Q", file.read(count * ID_BYTES))
    if len(ids) != count:
        raise BoltError(f"{path}: its list of free pages ends after {len(ids)} of {count}")
    return ids, overflow + 1


def listed(ids: array[int], at: int, page_size: int) -> bytes:
    """The consecutive pages that hold the list of these free pages."""
    many = len(ids) >= _COUNT_OVERFLOW
    body = (struct.pack("<Q", len(ids)) if many else b"") + ids.tobytes()
    pages = -(-(_PAGE.size + len(body)) // page_size)
    head = _PAGE.pack(at, _FREELIST_PAGE, _COUNT_OVERFLOW if many else len(ids), pages - 1)
    return (head + body).ljust(pages * page_size, b"\0")
