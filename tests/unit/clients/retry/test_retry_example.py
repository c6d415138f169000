"""The example client: it is as good or as bad as its options say."""

import email.utils
import time

import pytest

from hashidrill.clients.retry import example
from hashidrill.clients.retry.example import Asked, Budget, FailedError, Retries, layered


@pytest.fixture
def slept(monkeypatch):
    gaps = []
    monkeypatch.setattr(time, "sleep", gaps.append)
    return gaps


def retries(count, gap_s=0.0, *, backoff=1.0, jitter=0.0, heed=False, budget=None):
    return Retries(count, gap_s, backoff, jitter, heed, budget)


class Server:
    """Fails the first so many attempts."""

    def __init__(self, failures, wait_s=0.0):
        self.left, self.attempts, self.wait_s = failures, 0, wait_s

    def __call__(self):
        self.attempts += 1
        if self.left:
            self.left -= 1
            raise FailedError("HTTP 503", self.wait_s)


@pytest.mark.parametrize(("count", "failures", "attempts"), [(0, 0, 1), (3, 2, 3), (3, 3, 4)])
def test_it_tries_until_it_succeeds(count, failures, attempts, slept):
    server = Server(failures)
    retries(count).call(server)
    assert server.attempts == attempts


@pytest.mark.parametrize(("count", "layers", "attempts"), [(0, 1, 1), (2, 1, 3), (2, 2, 9), (2, 3, 27), (3, 2, 16)])
def test_layers_multiply(count, layers, attempts, slept):
    server = Server(1000)
    with pytest.raises(FailedError):
        layered(retries(count), layers, server)
    assert server.attempts == attempts


@pytest.mark.parametrize(("options", "asked"), [((), 5), (("--from-start",), 7)])
def test_a_retry_asks_for_what_failed_or_begins_from_the_start(options, asked, slept, monkeypatch):
    """The third of four requests fails once."""
    paths = []

    def once(self, path=""):
        paths.append(path)
        if len(paths) == 3:
            raise FailedError("HTTP 503")

    monkeypatch.setattr(Asked, "once", once)
    monkeypatch.setattr(example.sys, "argv", ["example", "--times", "4", "--retries", "1", *options, "http://x"])
    assert example.main() == 0
    assert len(paths) == asked


def test_gaps_grow_and_are_capped(slept):
    with pytest.raises(FailedError):
        retries(8, 0.5, backoff=2.0).call(Server(100))
    assert slept == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_jitter_takes_away_up_to_its_share(slept):
    for _ in range(200):
        with pytest.raises(FailedError):
            retries(1, 1.0, jitter=0.3).call(Server(100))
    assert 0.7 <= min(slept) < 0.75
    assert 0.95 < max(slept) <= 1.0


@pytest.mark.parametrize(("heed", "gap_s"), [(True, 5.0), (False, 0.5)])
def test_retry_after_is_heeded_when_asked_for(heed, gap_s, slept):
    retries(1, 0.5, heed=heed).call(Server(1, wait_s=5.0))
    assert slept == [gap_s]


def test_a_budget_allows_its_share_of_retries_and_no_more(slept):
    server, one = Server(10_000), retries(4, budget=Budget(0.1))
    for _ in range(1000):
        with pytest.raises(FailedError):
            one.call(server)
    assert 1.1 <= server.attempts / 1000 <= 1.11


@pytest.mark.parametrize(("said", "seconds"), [("7", 7), ("", 0), ("soon", 0), ("-3", 0)])
def test_retry_after_is_a_number(said, seconds):
    assert example._seconds(said) == seconds


def test_retry_after_is_a_date():
    soon = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert 55 < example._seconds(soon) <= 60
    assert example._seconds(email.utils.formatdate(0, usegmt=True)) == 0


@pytest.mark.parametrize(("resets", "asked"), [(True, [0, 20, 0, 30]), (False, [0, 20, 20, 30])])
def test_a_watch_begins_again_where_the_index_went_backwards_or_keeps_it(resets, asked, monkeypatch):
    seen, answers = [], iter([20, 10, 30])

    def once(self, path=""):
        seen.append(int(path.partition("index=")[2].partition("&")[0]))
        if len(seen) > 3:
            raise KeyboardInterrupt
        return b"", {"x-consul-index": str(next(answers))}

    monkeypatch.setattr(Asked, "once", once)
    with pytest.raises(KeyboardInterrupt):
        example.watch(Asked("http://tap/v1/kv/x", "GET", b"", None), resets=resets)
    assert seen == asked
