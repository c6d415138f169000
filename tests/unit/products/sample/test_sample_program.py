"""The programs of the sample do what they are there for: wrong as real ones were, and right where they are told so."""

import threading
import time

import pytest

from hashidrill.products.sample import program
from hashidrill.products.sample.program import COUNTS, KEYS, Archive, Cache, Full, Node, Parser, Pool, Searcher

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
    it = Pool(STORE, at_least=2, most=2, grows_every_s=LONG_S, calls=3, leaks=0)
    stored.may.clear()
    threads = [in_thread(lambda n=n: it(f"/{n}"))[0] for n in range(3)]
    until(lambda: len(stored.asked) == 2)
    assert len(stored.asked) == 2, "a third worker came from nowhere"
    stored.may.set()
    for thread in threads:
        thread.join()
    assert len(stored.asked) == 9, "each request makes three calls"


def test_a_pool_gets_one_worker_more_while_work_waits_and_no_more_than_it_may(stored):
    it = Pool(STORE, at_least=1, most=3, grows_every_s=0.001, calls=1, leaks=0)
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
    it = Pool(STORE, at_least=1, most=1, grows_every_s=LONG_S, calls=1, leaks=0)
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


@pytest.mark.lie
@pytest.mark.parametrize("of_one_tenant", [None, 2])
def test_one_line_for_all_makes_everybody_wait_for_the_noisy_tenant_and_shares_do_not(monkeypatch, of_one_tenant):
    """Shares as large as the database would do the same as small ones: the noisy tenant would wait in its own line."""
    paths, may = [], threading.Semaphore(0)

    def serve(_, path):
        paths.append(path)
        assert may.acquire(timeout=LONG_S)
        return path.encode()

    monkeypatch.setattr(program.Store, "__call__", serve)
    it = program.Database(0.0, 3, of_one_tenant)
    threads = []
    for n in range(9):
        threads.append(in_thread(lambda n=n: it(f"/noisy/{n}"))[0])
        waiting = it._places if of_one_tenant is None else it._shares.get("noisy", it._places)
        until(lambda n=n, waiting=waiting: len(paths) + len(waiting._line) == n + 1)
    threads.append(in_thread(lambda: it("/quiet/0"))[0])
    until(lambda: len(paths) + len(it._places._line) + sum(len(one._line) for one in it._shares.values()) == 10)
    assert len(paths) == 3
    assert ("/quiet/0" in paths) is (of_one_tenant is not None)
    may.release(10)
    for thread in threads:
        thread.join()
    assert len(paths) == 10
    assert (paths.index("/quiet/0") >= 7) is (of_one_tenant is None), paths


@pytest.mark.lie
def test_who_comes_late_does_not_get_a_place_before_the_first_in_line():
    """A semaphore of Python's gives a free place to the next request, however many wait: no tenant would be hurt."""
    line, served = program.Line(1), []
    line.__enter__()
    first, _ = in_thread(lambda: served.append("first") if line.__enter__() is None else None)
    until(lambda: len(line._line) == 1)
    line.__exit__()
    late, _ = in_thread(lambda: served.append("late") if line.__enter__() is None else None)
    first.join()
    until(lambda: len(line._line) == 1)
    assert served == ["first"]
    line.__exit__()
    late.join()
    assert served == ["first", "late"]


def test_a_cache_in_memory_asks_once_and_is_empty_after_a_restart(stored):
    it = program.Memory(STORE)
    assert [it("/a/b"), it("/a/b")] == [b"stored /a/b"] * 2
    program.Memory(STORE)("/a/b")
    assert stored.asked == ["/a/b", "/a/b"]


def test_a_pool_that_leaks_keeps_that_much_of_each_request_that_it_served(stored):
    it = Pool(STORE, at_least=1, most=1, grows_every_s=LONG_S, calls=1, leaks=1000)
    for n in range(3):
        it(f"/{n}")
    until(lambda: len(it._leaked) == 3)
    assert sum(map(len, it._leaked)) == 3000


class Behind:
    """Stands for the parts behind a part: keeps what is put there, or is full, or gone."""

    def __init__(self, monkeypatch):
        self.kept, self.full, self.asked = {}, set(), 0
        monkeypatch.setattr(program, "fetch", self)

    def __call__(self, place, path, body=None):
        if body is None:
            assert path == COUNTS
            return b'{"indexed": 1}'
        self.asked += 1
        if place in self.full:
            raise Full
        self.kept.setdefault(place, []).append(path)
        return b""


@pytest.fixture
def behind(monkeypatch):
    return Behind(monkeypatch)


@pytest.fixture
def parses(monkeypatch):
    """Batches are parsed while it is set."""
    may = threading.Event()
    monkeypatch.setattr(program, "parse", lambda _: may.wait(LONG_S))
    yield may
    may.set()


def counts(part):
    return program.json.loads(part(COUNTS))


def drained(part):
    until(lambda: not counts(part)["waiting"])
    return counts(part)


@pytest.mark.lie
def test_a_node_that_parses_takes_all_it_is_given_and_drops_what_finds_its_buffer_full(behind, parses):
    it = Parser("search", None, 0.0, room=2)
    assert it.put("/0", b"0") == b"taken"
    until(it._taken.empty)
    assert [it.put(f"/{n}", b"") for n in range(1, 6)] == [b"taken"] * 5
    assert counts(it) == {"waiting": 3, "dropped": 3, "indexed": 1}
    parses.set()
    dropped = drained(it)["dropped"]
    assert dropped >= 3, "its second buffer may be full too"
    assert len(behind.kept["search"]) + dropped == 6


def test_a_node_offers_again_and_again_what_search_refuses(behind, parses, monkeypatch):
    monkeypatch.setattr(program, "_RETRY_S", 0.001)
    parses.set()
    behind.full = {"search"}
    it = Parser("search", None, 0.0, room=2)
    it.put("/0", b"")
    until(lambda: behind.asked >= 3)
    behind.full.clear()
    assert drained(it)["rejected"] >= 3
    assert behind.kept == {"search": ["/0"]}


@pytest.mark.lie
def test_a_tier_stores_first_and_sheds_and_counts_what_search_has_no_room_for(behind, parses):
    it = Parser("search", "archive", 0.0, room=2)
    behind.full = {"search"}
    it.put("/0", b"")
    until(it._taken.empty)
    for n in range(1, 6):
        it.put(f"/{n}", b"")
    parses.set()
    counted = drained(it)
    assert behind.kept == {"archive": [f"/{n}" for n in range(6)]}
    assert counted["shed"] == 6, "some found no room in the tier, the others none in search"
    assert 1 <= counted["rejected"] <= 3
    assert behind.asked == 6 + counted["rejected"], "search was offered something again"


def test_what_the_archive_does_not_take_the_tier_does_not_acknowledge(behind, parses):
    behind.full = {"archive"}
    it = Parser("search", "archive", 0.0, room=2)
    with pytest.raises(Full):
        it.put("/0", b"")
    assert counts(it).get("waiting", 0) == 0


def test_a_node_that_forwards_refuses_more_than_it_may_have_under_way(monkeypatch):
    may, asked = threading.Event(), []

    def fetch(*about):
        asked.append(about)
        assert may.wait(LONG_S)
        return b"taken"

    monkeypatch.setattr(program, "fetch", fetch)
    it = Node("tier", at_once=1)
    thread, answers = in_thread(lambda: it.put("/0", b"0"))
    until(lambda: asked)
    with pytest.raises(Full):
        it.put("/1", b"1")
    may.set()
    thread.join()
    assert (answers, it.put("/2", b"2")) == ([b"taken"], b"taken")


def test_search_refuses_batches_and_searches_while_its_queue_is_full(monkeypatch):
    may = threading.Event()
    monkeypatch.setattr(program.time, "sleep", lambda _: may.wait(LONG_S))
    it = Searcher(0.1, room=1)
    it.put("/0", b"first\nline")
    until(it._work.empty)
    it.put("/1", b"second\nline")
    with pytest.raises(Full):
        it.put("/2", b"")
    with pytest.raises(Full):
        it("/0")
    assert counts(it) == {"waiting": 2, "indexed": 0}
    may.set()
    assert drained(it)["indexed"] == 2
    assert it("/0") == b"first"
    assert it("/2") == b"no hits"
    assert program.json.loads(it(KEYS)) == {"/0": "first", "/1": "second"}


def test_the_archive_names_the_write_of_each_batch_that_it_has_on_disk(tmp_path):
    it = Archive(str(tmp_path))
    it.put("/logs/r/1", b"r.1\nline")
    (tmp_path / "%2Flogs%2Fr%2F2.140").write_bytes(b"r.2")  # of a write that was cut off
    assert program.json.loads(it(KEYS)) == {"/logs/r/1": "r.1"}


def test_parsing_takes_the_cpu_that_it_is_told_and_not_the_time():
    began_s = time.thread_time()
    program.parse(0.02)
    assert 0.02 <= time.thread_time() - began_s < 0.1
