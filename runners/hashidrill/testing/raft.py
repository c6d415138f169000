"""Hand-made BoltDB files, for tests of code that reads such files; and servers of a fake datacenter that write to
these files.
"""

from array import array
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hashidrill.products.consul.boltdb import ID_BYTES, Meta, free_pages, listed, read_meta
from hashidrill.testing.fakes import FakeDatacenter, FakeHost

PAGE_SIZE = 4096
_LEAF_PAGE = 0x02
_COMMIT_BYTES = 16_000


def bolt_file(path: Path, free: Iterable[int] = (), *, transaction: int = 10, page_size: int = PAGE_SIZE) -> None:
    """Pages 0 and 1 are meta pages, 2 is the root; then come the free list's pages, then pages that may be free."""
    ids = array("Q", sorted(free))
    run = listed(ids, 3, page_size)
    high_water = max([3 + len(run) // page_size, *(page + 1 for page in ids)])
    metas = [Meta(page_size, 0, (2, 0), 3, high_water, number) for number in (transaction, transaction - 1)]
    root = (2).to_bytes(8, "little") + _LEAF_PAGE.to_bytes(2, "little")
    pages = b"".join(meta.packed() for meta in sorted(metas, key=lambda meta: meta.transaction % 2))
    content = pages + root.ljust(page_size, b"\0") + run
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.ljust(high_water * page_size, b"\0"))


def commit(path: Path, meta: Meta) -> None:
    """Writes the result of a transaction: the other meta page, with the next number."""
    with path.open("r+b") as file:
        file.seek(meta.transaction % 2 * meta.page_size)
        file.write(meta.packed())


def raft_db(host: FakeHost) -> Path:
    return host.data / "consul" / "raft" / "raft.db"


def with_raft_logs(world: FakeDatacenter) -> FakeDatacenter:
    """Gives each server a raft.db; each write to the KV store is a transaction in every running server's file."""
    for host in world.hosts.values():
        if host.role == "server":
            bolt_file(raft_db(host), free=[5, 6])

    def written() -> None:
        for host in world.hosts.values():
            path = raft_db(host)
            if host.process is not None and path.is_file():
                meta = read_meta(path)
                commit(path, replace(meta, transaction=meta.transaction + 1))
                host.written += _COMMIT_BYTES + ID_BYTES * len(free_pages(path))

    world.consul.kv.on_commit.append(written)
    return world
