"""Faults of Consul's state keep their contract on the fake datacenter, and each is seen when it is disarmed."""

import os
import subprocess

import anyio
import pytest

import virtual_time
from fault_cases import STATE_CASES, fault_of, nature
from hashidrill.core.engine import inject
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.products.consul import boltdb, markers
from hashidrill.products.consul.snapshots import read_snapshot, restored_name, saved_name
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.faults import check_fault
from hashidrill.testing.raft import raft_db, with_raft_logs


@pytest.fixture
def world(tmp_path):
    """Servers with a raft.db, some keys, and a snapshot called `before`."""
    world = with_raft_logs(FakeDatacenter(root=tmp_path / "hosts"))
    for name in ("kept", "changed", "deleted"):
        put(world, f"app/{name}", b"old")
    taken = fault_of(world, "consul.snapshot.save", name="before")
    anyio.run(applied, taken, world)
    return world


async def applied(one, world, fault_id="first"):
    undo = await planned(one, world.target("consul-1"), fault_id)
    await one.apply(undo)
    return undo


def put(world, key, value):
    assert world.consul.kv.answer("PUT", f"/v1/kv/{key}", {}, value).body == b"true"


def state(world):
    return {key: entry for key, entry in world.consul.kv.entries.items() if not key.startswith(markers.PREFIX)}


@pytest.fixture
def with_bbolt(world, bbolt):
    """The real one."""
    world.tools["bbolt"] = bbolt.path


@pytest.mark.parametrize(("kind", "params"), STATE_CASES)
def test_a_fault_of_the_state_keeps_its_contract(kind, params, world, with_bbolt):
    if kind == "consul.raft.compact":
        anyio.run(applied, fault_of(world, "consul.raft.bloat", free_pages=50_000), world)
    one = fault_of(world, kind, **params)
    report = anyio.run(lambda: check_fault(one, lambda: world.target("consul-1"), **nature(kind)))
    assert report.present.ok
    assert report.gone.ok
    assert not [key for key in world.consul.kv.entries if key.startswith(markers.PREFIX)]
    assert not list(raft_db(world.hosts["consul-1"]).parent.glob("*.compacted"))
    assert world.hosts["consul-1"].process is not None


async def test_a_restore_sets_back_everything_and_leaves_its_evidence(world):
    before = state(world)
    put(world, "app/changed", b"new")
    put(world, "app/created", b"new")
    world.consul.kv.answer("DELETE", "/v1/kv/app/deleted", {}, b"")
    restore = fault_of(world, "consul.snapshot.restore", snapshot="before")
    undo = await applied(restore, world)
    assert (await restore.verify(undo, present=True)).ok
    await restore.revert(undo)
    assert (await restore.verify(undo, present=False)).ok
    assert state(world) == before
    saved, after = (read_snapshot(world.artifacts / name("before")) for name in (saved_name, restored_name))
    assert {k: e for k, e in saved.kv.items() if k in before} == {k: e for k, e in after.kv.items() if k in before}


def test_a_restore_is_reverted_and_seen_to_be_over_while_a_sick_leader_takes_25_s_for_a_write(world, monkeypatch):
    """As in incidents/roblox-2021 on two cores, where three tries of 5 s a request ended the run."""
    answered = type(world.hosts["consul-1"]).api

    async def sick(host, method, path, *, timeout_s=5.0, **rest):
        if method != "GET":
            await anyio.sleep(min(25, timeout_s))
            if timeout_s < 25:
                raise FaultError(f"{method} {path}: ReadTimeout")
        return await answered(host, method, path, timeout_s=timeout_s, **rest)

    async def restored():
        restore = fault_of(world, "consul.snapshot.restore", snapshot="before")
        undo = await applied(restore, world)
        monkeypatch.setattr(type(world.hosts["consul-1"]), "api", sick)
        with anyio.fail_after(inject.REVERT_WITHIN_S):
            await restore.revert(undo)
        with anyio.fail_after(restore.observed_within_s):
            return await restore.verify(undo, present=False)

    assert virtual_time.run(restored()).ok


async def test_a_restore_that_was_answered_and_not_done_is_not_proven(world, monkeypatch):
    answer = world.consul.kv.answer

    def lost(method, path, params, body):
        return answer("GET", path, params, body) if path == "/v1/snapshot" else answer(method, path, params, body)

    monkeypatch.setattr(world.consul.kv, "answer", lost)
    restore = fault_of(world, "consul.snapshot.restore", snapshot="before")
    evidence = await restore.verify(await applied(restore, world), present=True)
    assert not evidence.ok
    assert "what was written before the restore is there" in evidence.measured
    assert not (world.artifacts / restored_name("before")).exists()


def test_a_restore_of_what_was_never_saved_or_is_damaged_applies_nothing(world):
    file = world.artifacts / saved_name("before")
    file.write_bytes(file.read_bytes()[:-30])
    before = state(world)
    for name, reason in (("never", "No such file"), ("before", "not a whole gzip file")):
        with pytest.raises(
            FaultError, match=f"nothing was applied: there is no snapshot '{name}' to restore: .*{reason}"
        ):
            anyio.run(applied, fault_of(world, "consul.snapshot.restore", snapshot=name), world)
    assert state(world) == before


def test_a_save_that_is_not_whole_or_of_another_time_is_not_proven(world):
    async def verified(spoil):
        save = fault_of(world, "consul.snapshot.save", name="spoilt")
        undo = await applied(save, world, "second")
        assert (await save.verify(undo, present=True)).ok
        spoil(world.artifacts / saved_name("spoilt"))
        return await save.verify(undo, present=True)

    assert "not a whole gzip file" in anyio.run(verified, lambda file: os.truncate(file, 100)).measured
    other = (world.artifacts / saved_name("before")).read_bytes()
    assert "another marker" in anyio.run(verified, lambda file: file.write_bytes(other)).measured


async def test_bloat_and_compaction_may_overlap_and_the_first_then_has_nothing_to_revert(world, with_bbolt):
    host = world.hosts["consul-1"]
    bloat, compact = fault_of(world, "consul.raft.bloat", free_pages=60_000), fault_of(world, "consul.raft.compact")
    undo = await applied(bloat, world, "bloat")
    armed = await bloat.verify(undo, present=True)
    cure = await applied(compact, world, "compact")
    assert (await compact.verify(cure, present=True)).ok
    disarmed = await bloat.verify(undo, present=True)
    process = host.process
    await bloat.revert(undo)
    assert host.process == process
    gone = await bloat.verify(undo, present=False)
    assert (armed.ok, disarmed.ok, gone.ok) == (True, False, True)
    assert armed.figures["bytes_per_commit"] > 20 * armed.figures["bytes_per_commit_before"]


def test_a_server_that_cannot_be_bloated_says_why(world, with_bbolt):
    def refused(spoil):
        spoil(world.hosts["consul-1"])
        with pytest.raises(FaultError) as refusal:
            anyio.run(applied, fault_of(world, "consul.raft.bloat"), world)
        return str(refusal.value)

    store = {"boltdb": {"no_freelist_sync": True}}
    assert "no_freelist_sync" in refused(lambda host: host.config.update(raft_logstore=store))
    text = refused(lambda host: (host.config.pop("raft_logstore"), raft_db(host).unlink()))
    assert "keeps its Raft log in WAL, the default of this version, not in BoltDB" in text
    assert "raft_logstore: {backend: boltdb}" in text
    with pytest.raises(FaultError, match="client-1 is not a server"):
        anyio.run(planned, fault_of(world, "consul.raft.bloat"), world.target("client-1"), "client")
    bloat = fault_of(world, "consul.raft.bloat", by="writes", free_pages=200_000)
    with pytest.raises(FaultError, match="`by: writes` can produce at most 100000 free pages"):
        anyio.run(planned, bloat, world.target("consul-2"), "writes")


@pytest.mark.long
def test_bbolt_itself_finds_nothing_wrong_with_a_bloated_file(tmp_path, bbolt):
    """One with real content: all of it is still there, and there are so many free pages more."""
    tool, db = str(bbolt.path), tmp_path / "raft.db"

    def run(*arguments):
        return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True, cwd=tmp_path).stdout

    run("bench", "-path", str(db), "-work", "-count", "3000", "-batch-size", "100", "-value-size", "2000")
    [bucket] = run("buckets", str(db)).split()
    before, keys = len(boltdb.free_pages(db)), run("keys", str(db), bucket)
    assert len(keys.split()) >= 3000
    boltdb.bloat(db, 100_000)
    assert run("check", str(db)).strip() == "OK"
    assert run("keys", str(db), bucket) == keys
    assert f"Item Count: {len(boltdb.free_pages(db))}\n" in run("page", str(db), str(boltdb.read_meta(db).freelist))
    assert 100_000 < len(boltdb.free_pages(db)) - before < 100_100
