"""BoltDB's files are read as bolt itself reads them, and bloated without a change to what they hold."""

import fcntl
from dataclasses import replace

import pytest

from hashidrill.products.consul import boltdb
from hashidrill.products.consul.boltdb import BoltError, bloat, fnv64a, free_pages, read_meta
from hashidrill.testing.raft import PAGE_SIZE, bolt_file, commit


@pytest.fixture
def db(tmp_path):
    path = tmp_path / "raft.db"
    bolt_file(path, free=[5, 7, 8])
    return path


def test_the_hash_is_fnv_1a():
    """Vectors of the reference implementation (draft-eastlake-fnv)."""
    assert fnv64a(b"") == 0xCBF29CE484222325
    assert fnv64a(b"a") == 0xAF63DC4C8601EC8C
    assert fnv64a(b"foobar") == 0x85944171F73967E8


def test_the_newer_valid_meta_page_counts(db):
    meta = read_meta(db)
    assert (meta.transaction, meta.high_water, meta.freelist) == (10, 9, 3)
    commit(db, replace(meta, transaction=11, high_water=8))
    assert read_meta(db).transaction == 11
    damaged = bytearray(db.read_bytes())
    damaged[PAGE_SIZE + 40] ^= 1  # in the page of transaction 11
    db.write_bytes(damaged)
    assert read_meta(db).transaction == 10


@pytest.mark.parametrize("page_size", [1024, 4096, 16384, 65536])
def test_any_page_size_is_read(tmp_path, page_size):
    bolt_file(tmp_path / "db", free=[9], page_size=page_size, transaction=11)
    assert read_meta(tmp_path / "db").page_size == page_size
    assert free_pages(tmp_path / "db") == [9]


@pytest.mark.parametrize("more", [1, 1000, 0xFFFF - 5, 0xFFFF - 4, 0xFFFF - 3, 200_000])
def test_bloat_adds_so_many_free_pages_and_takes_no_space_for_them(db, more):
    """Around 65535 pages the count moves from the page's head to behind it."""
    before = db.read_bytes()
    old = read_meta(db)
    bloat(db, more)
    now = read_meta(db)
    assert free_pages(db) == [3, 5, 7, 8, *range(9, 9 + more)]  # 3 held the old list
    assert now.freelist == 9 + more
    assert now.transaction == old.transaction + 2
    assert replace(now, freelist=old.freelist, high_water=old.high_water, transaction=old.transaction) == old
    content = db.read_bytes()[2 * PAGE_SIZE : len(before)]
    assert content == before[2 * PAGE_SIZE :]
    assert db.stat().st_size == now.high_water * PAGE_SIZE
    assert db.stat().st_blocks * 512 < (more * boltdb.ID_BYTES) * 2 + 100_000


@pytest.mark.long
def test_either_meta_page_knows_of_the_new_list(db):
    """So that a reader that looks at one of them only is not misled."""
    bloat(db, 70_000)
    whole = read_meta(db)
    damaged = bytearray(db.read_bytes())
    damaged[whole.transaction % 2 * PAGE_SIZE + 40] ^= 1
    db.write_bytes(damaged)
    assert read_meta(db) == replace(whole, transaction=whole.transaction - 1)


def test_bloat_twice_adds_up(db):
    bloat(db, 1000)
    bloat(db, 1000)
    assert len(free_pages(db)) > 2003


def test_a_file_that_is_in_use_is_left_alone(db):
    before = db.read_bytes()
    with db.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BoltError, match=r"raft\.db: a process has it open; stop the server first"):
            bloat(db, 1000)
    assert db.read_bytes() == before


def test_a_list_of_unsorted_neighbours_stays_sorted(tmp_path):
    bolt_file(tmp_path / "db", free=range(10, 600))
    bloat(tmp_path / "db", 5)
    found = free_pages(tmp_path / "db")
    assert found == sorted(set(found))
    assert {3, 4} <= set(found)  # the old list took two pages


def no_list(db):
    commit(db, replace(read_meta(db), transaction=11, freelist=2**64 - 1))


def another_page(db):
    commit(db, replace(read_meta(db), transaction=11, freelist=2))


def cut(db):
    db.write_bytes(db.read_bytes()[: 8 * PAGE_SIZE])


def cut_list(db):
    """The list claims more than the file holds."""
    content = bytearray(db.read_bytes())
    content[3 * PAGE_SIZE + 10 : 3 * PAGE_SIZE + 12] = (60_000).to_bytes(2, "little")
    db.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda db: db.write_bytes(b"SQLite format 3\0" * 1000), "not a BoltDB file"),
        (lambda db: db.write_bytes(b""), "not a BoltDB file"),
        (lambda db: db.unlink(), "No such file"),
        (cut, "truncated"),
        (no_list, "no_freelist_sync"),
        (another_page, "page 2 is not a list of free pages"),
        (cut_list, "its list of free pages ends after"),
    ],
)
def test_a_file_that_cannot_be_bloated_says_why_and_stays_as_it_is(db, spoil, message):
    spoil(db)
    before = db.read_bytes() if db.exists() else None
    with pytest.raises(BoltError, match=message):
        bloat(db, 1000)
    assert (db.read_bytes() if db.exists() else None) == before
