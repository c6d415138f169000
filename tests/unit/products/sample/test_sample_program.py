"""The programs of the sample do what they are there for: wrong as real ones were, and right where they are told so."""

from __future__ import annotations

import threading
import time

import pytest

from hashidrill.products.sample import program
from hashidrill.products.sample.program import Cache, Pool

STORE = "http://10.73.0.11:8080"
LONG_S = 60.0


class Stored:
    """Stands for the store: answers what it is asked, once it may."""

    def __init__(self, monkeypatch):
        self.asked = []
        self.may = threading.Event()
        self.may.set()
        monkeypatch.setattr(program, "fetch", self)

    def __call__(self, store, path):
        assert store == STORE
        self.asked.append(path)
        assert self.may.wait(LONG_S)
        return f"stored {path}".encode()


@pytest.fixture
def stored(monkeypatch):
    return Stored(monkeypatch)


class Disk:
    """Stands for a disk, some of whose operations do not end before they may."""

    def __init__(self, monkeypatch):
        self.stuck, self.may, self.held = set(), threading.Event(), 0
        for name in ("_read", "_write"):
            monkeypatch.setattr(program, name, self._held(name, getattr(program, name)))

    def _held(self, name, real):
        def operation(*arguments):
            if name in self.stuck:
                self.held += 1
                assert self.may.wait(LONG_S)
            return real(*arguments)

        return operation


@pytest.fixture
def disk(monkeypatch):
    it = Disk(monkeypatch)
    yield it
    it.may.set()


def in_thread(act):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(act()))
    thread.start()
    return thread, answers


def until(condition):
    ends = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < ends
        threading.Event().wait(0.001)


def cache(folder, bypass_after_s=None):
    return Cache(STORE, str(folder), bypass_after_s, LONG_S)


def test_what_the_store_answered_is_on_disk_before_it_is_handed_on_and_comes_from_there_next_time(tmp_path, stored):
    it = cache(tmp_path)
    assert it("/a/b") == b"stored /a/b"
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"stored /a/b"]
    assert it("/a/b") == b"stored /a/b"
    assert stored.asked == ["/a/b"]


@pytest.mark.parametrize("operation", ["_read", "_write"])
def test_a_cache_waits_for_its_disk_however_long_that_takes(tmp_path, stored, disk, operation):
    it = cache(tmp_path)
    disk.stuck = {operation}
    thread, answers = in_thread(lambda: it("/a"))
    until(lambda: disk.held)
    assert answers == []
    disk.may.set()
    thread.join()
    assert answers == [b"stored /a"]


@pytest.mark.lie
@pytest.mark.parametrize("operation", ["_read", "_write"])
def test_one_that_goes_round_answers_from_the_store_and_leaves_its_disk_alone_for_a_while(
    tmp_path, stored, disk, operation
):
    it = cache(tmp_path, bypass_after_s=0.01)
    disk.stuck = {operation}
    assert [it("/a"), it("/b"), it("/a")] == [b"stored /a", b"stored /b", b"stored /a"]
    assert disk.held == 1, "the disk was asked again"
    assert stored.asked == ["/a", "/b", "/a"]


def test_after_that_while_the_cache_is_used_again(tmp_path, stored, disk):
    it = Cache(STORE, str(tmp_path), LONG_S, 0.0)
    assert it("/a") == it("/a") == b"stored /a"
    assert stored.asked == ["/a"]


def test_a_request_waits_while_all_workers_wait_for_the_store(stored):
    it = Pool(STORE, at_least=2, most=2, grows_every_s=LONG_S, calls=3)
    stored.may.clear()
    threads = [in_thread(lambda n=n: it(f"/{n}"))[0] for n in range(3)]
    until(lambda: len(stored.asked) == 2)
    assert len(stored.asked) == 2, "a third worker came from nowhere"
    stored.may.set()
    for thread in threads:
        thread.join()
    assert len(stored.asked) == 9, "each request makes three calls"


def test_a_pool_gets_one_worker_more_while_work_waits_and_no_more_than_it_may(stored):
    it = Pool(STORE, at_least=1, most=3, grows_every_s=0.001, calls=1)
    stored.may.clear()
    threads = [in_thread(lambda n=n: it(f"/{n}"))[0] for n in range(4)]
    until(lambda: len(stored.asked) == 3)
    threading.Event().wait(0.02)
    assert len(stored.asked) == 3
    stored.may.set()
    for thread in threads:
        thread.join()


def test_a_store_that_fails_is_the_requests_error_and_the_worker_goes_on(monkeypatch):
    answers = iter([OSError("the store answered 503"), b"well"])

    def fetch(*_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(program, "fetch", fetch)
    it = Pool(STORE, at_least=1, most=1, grows_every_s=LONG_S, calls=1)
    with pytest.raises(OSError, match="503"):
        it("/a")
    assert it("/a") == b"well"


@pytest.fixture
def served(monkeypatch):
    """Stands for the time that the database takes: `paths` are being served until `may`."""
    it = type("Served", (), {"paths": [], "may": threading.Event()})()

    def serve(_, path):
        it.paths.append(path)
        assert it.may.wait(LONG_S)
        return path.encode()

    monkeypatch.setattr(program.Store, "__call__", serve)
    yield it
    it.may.set()


@pytest.mark.parametrize(("of_one_tenant", "noisy"), [(3, 3), (2, 2)])
def test_a_database_serves_so_many_at_a_time_and_with_shares_so_many_of_one_tenant(served, of_one_tenant, noisy):
    it = program.Database(0.0, 3, of_one_tenant)
    threads = [in_thread(lambda n=n: it(f"/noisy/{n}"))[0] for n in range(5)]
    until(lambda: len(served.paths) == noisy)
    quiet, _ = in_thread(lambda: it("/quiet/0"))
    if noisy < 3:
        until(lambda: "/quiet/0" in served.paths)
    threading.Event().wait(0.02)
    assert len(served.paths) == 3, "more than it serves at a time, or less"
    assert ("/quiet/0" in served.paths) is (noisy < 3)
    served.may.set()
    for thread in [*threads, quiet]:
        thread.join()
    assert len(served.paths) == 6


def test_a_cache_in_memory_asks_once_and_is_empty_after_a_restart(stored):
    it = program.Memory(STORE)
    assert [it("/a/b"), it("/a/b")] == [b"stored /a/b"] * 2
    program.Memory(STORE)("/a/b")
    assert stored.asked == ["/a/b", "/a/b"]
