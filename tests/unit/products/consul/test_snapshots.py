"""Snapshot files are read whole, of either version, and a damaged one is named for what it is."""

import gzip
import json
import random

import msgpack
import pytest

from hashidrill.products.consul.snapshots import (
    Entry,
    Session,
    SnapshotError,
    decode,
    read_snapshot,
    restored_name,
    saved_name,
)
from hashidrill.testing.snapshots import FakeKv, archived, packed

ENTRIES = [
    Entry("a/1", b"one", 5, 5),
    Entry("a/2", b"", 6, 9, flags=42),
    Entry("a/locked", b"\xff\x00 not text", 7, 11, lock_index=2, session="s-1"),
    Entry("b/große", bytes(range(256)) * 300, 8, 8),
]
SESSIONS = [Session("s-1", "consul-1", "me", "10s", "release", 4)]
WHOLE = packed(ENTRIES, SESSIONS, index=77, term=3)


def test_all_that_was_packed_is_read_and_other_objects_are_stepped_over():
    snapshot = decode(WHOLE)
    assert list(snapshot.kv.values()) == ENTRIES
    assert list(snapshot.sessions.values()) == SESSIONS
    assert (snapshot.index, snapshot.term, snapshot.last_index) == (77, 3, 77)
    assert snapshot.objects == {0: 1, 3: 1, 2: 4}


def test_a_file_is_read_and_its_name_is_in_the_errors(tmp_path):
    file = tmp_path / saved_name("before")
    with pytest.raises(SnapshotError, match=r"snapshot-before\.snap: no snapshot can be read there: No such file"):
        read_snapshot(file)
    file.write_bytes(WHOLE)
    assert read_snapshot(file) == decode(WHOLE)
    file.write_bytes(WHOLE[:-40])
    with pytest.raises(SnapshotError, match=r"snapshot-before\.snap: not a whole gzip file"):
        read_snapshot(file)
    assert restored_name("before") != saved_name("before")


def test_every_truncated_or_damaged_file_is_refused():
    rng = random.Random(3)
    for at in [0, 1, 5, *(rng.randrange(len(WHOLE)) for _ in range(60))]:
        with pytest.raises(SnapshotError):
            decode(WHOLE[:at])
    for _ in range(200):
        at = rng.randrange(18, len(WHOLE))  # the header of gzip holds times and names that mean nothing
        damaged = bytearray(WHOLE)
        damaged[at] ^= 1 << rng.randrange(8)
        with pytest.raises(SnapshotError):
            decode(bytes(damaged))


def members(**replaced):
    """The files of WHOLE, with some replaced (None: left out)."""
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(WHOLE))) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}
    names = {"meta": "meta.json", "state": "state.bin", "sums": "SHA256SUMS"}
    found |= {names[name]: content for name, content in replaced.items()}
    return {name: content for name, content in found.items() if content is not None}


def summed(files):
    import hashlib

    sums = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in ("meta.json", "state.bin"))
    return archived({**files, "SHA256SUMS": sums.encode()})


STATE = members()["state.bin"]
PLANTED = {
    "no checksums": (archived(members(sums=None)), "SHA256SUMS is missing"),
    "no state": (archived(members(state=None)), "state.bin is missing"),
    "another state": (archived(members(state=STATE + b"\x02\xc0")), "state.bin does not match its SHA256SUMS"),
    "another meta": (archived(members(meta=b"{}")), "meta.json does not match its SHA256SUMS"),
    "meta without index": (summed(members(meta=b'{"Size": 3}')), "meta.json cannot be read as Raft's"),
    "meta that is no JSON": (summed(members(meta=b"no")), "meta.json cannot be read as Raft's"),
    "state of another size": (summed(members(state=STATE[:-1])), "bytes, but meta.json says"),
    "not gzip": (b"GET / HTTP/1.1", "not a whole gzip file"),
    "not a tar": (gzip.compress(b"x" * 600), "not a"),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_a_file_that_is_no_snapshot_says_what_is_missing(defect):
    content, message = PLANTED[defect]
    with pytest.raises(SnapshotError, match=message):
        decode(content)


def state_of(*parts):
    state = b"".join(parts)
    meta = json.dumps({"Index": 1, "Term": 1, "Size": len(state)}).encode()
    return summed(members(meta=meta, state=state))


HEADER = msgpack.packb({"LastIndex": 1})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ((), "breaks off at byte 0 of 0"),
        ((HEADER, b"\x02"), "breaks off at byte"),
        ((HEADER, b"\x02", msgpack.packb({"Key": "a"})[:-1]), "breaks off at byte"),
        ((HEADER, b"\x02", msgpack.packb({"Key": "a"})), "does not read as Consul's: KeyError"),
        ((HEADER, b"\x02", msgpack.packb("text")), "does not read as Consul's"),
        ((msgpack.packb([]),), "does not read as Consul's"),
    ],
)
def test_a_state_that_breaks_off_or_is_another_one_is_refused(state, message):
    with pytest.raises(SnapshotError, match=message):
        decode(state_of(*state))


def test_the_fake_store_restores_what_it_saved_with_its_indexes():
    store = FakeKv()
    for n in range(3):
        store.answer("PUT", f"/v1/kv/k/{n}", {}, b"old")
    saved = store.answer("GET", "/v1/snapshot", {}, b"").body
    before = dict(store.entries)
    store.answer("PUT", "/v1/kv/k/0", {}, b"new")
    store.answer("DELETE", "/v1/kv/k/1", {}, b"")
    assert store.answer("PUT", "/v1/kv/k/2", {"cas": "1"}, b"x").body == b"false"
    assert store.answer("PUT", "/v1/snapshot", {}, saved[:-9]).status == 500
    index = store.index
    assert store.answer("PUT", "/v1/snapshot", {}, saved).status == 200
    assert store.entries == before
    assert store.index > index
