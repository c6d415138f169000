"""Recorded attempts of clients: for each verdict on retries a good one and a bad one."""

import random

from hashidrill.core import hypothesis
from hashidrill.core.loads.clients import to_operation
from hashidrill.core.protocols.abc import Operation
from hashidrill.core.tap.attempts import Attempt
from hashidrill.testing.recordings import RecordingBuilder

_NS = 1_000_000_000


def ns(seconds):
    return round(seconds * _NS)


class Client:
    """A client in a recording whose method is from 10 to 30 s; its fault is a `noop` in that time."""

    def __init__(self, tmp_path):
        self.builder = RecordingBuilder(tmp_path / "run").fault("noop", "consul-1", at=10, until=30)
        self.built = None

    def operation(self, start, *attempts, name="app", ok=True, lasts=0.5, named=False):
        """Attempts are (seconds after the start, what is noted of it)."""
        key = f"{name}/{start}"
        for after, about in attempts:
            at = ns(start + after)
            noted = {"method": "GET", "path": "/v1/kv/x", "connection": 1, **about}
            end = at + ns(noted.pop("lasts", 0.001))
            operation = to_operation(name, Attempt(at, end, operation=key if named else "", **noted))
            self.builder._operations.append(operation)
        outcome = "ok" if ok else "fail"
        self.builder._operations.append(Operation(name, ns(start), ns(start), ns(start + lasts), outcome, key))
        return self

    def check(self, name, **params):
        self.built = self.built or self.builder.build()
        return hypothesis.get(name).check(self.built, {"client": "app", **params})


FAILED = {"fault": "503", "status": 503}


SCHEDULE = [4 + number / 2 for number in range(92)]


PASSED = {"status": 200, "upstream": True}


def gaps(client, *gaps_s, name="app", start=10.0, ok=False, **about):
    """One operation whose attempts all fail, with these gaps."""
    failed = {**FAILED, **about}
    times = [sum(gaps_s[:count]) for count in range(len(gaps_s) + 1)]
    return client.operation(start, *((at, failed) for at in times), name=name, ok=ok, lasts=times[-1] + 0.5)


def good(name, client):  # noqa: C901, PLR0911, PLR0912 - a table, written as code
    """(what the good client did, parameters)."""
    twice = ((0, FAILED), (0.1, PASSED))
    if name in {"present", "transport_only"}:
        return client.operation(10, *twice), {}
    if name in {"bounded", "backoff", "exponential"}:
        for number in range(1 if name == "bounded" else 5):
            gaps(client, 0.1, 0.2, 0.4, 0.8, 1.6, start=10 + 4 * number)
        return client, {"retries": 5} if name == "bounded" else {}
    if name == "timeout_present":
        return client.operation(10, (0, {"fault": "hang", "lasts": 2}), (2.1, PASSED), lasts=3), {}
    if name == "jitter":
        chance = random.Random(1)
        for number in range(20):
            gaps(client, *(chance.uniform(0.9, 1.1) * gap for gap in (0.1, 0.2)), start=10 + number)
            gaps(client, 0.1, 0.2, start=10 + number, name="reference")
        return client, {"reference": "reference"}
    if name == "retry_after_honoured":
        for number in range(12):
            client.operation(10 + number / 2, *twice, lasts=0.4)
        for start in (18, 21, 24):
            client.operation(start, (0, {**FAILED, "retry_after_s": 2.0}), (2.01, PASSED), lasts=2.5)
        return client, {}
    if name == "idempotent_only":
        dropped = {"fault": "reply-dropped", "method": "PUT", "upstream": True}
        return client.operation(10, (0, dropped), ok=False), {}
    if name == "watch_resets":
        watch = [("0", 50), ("50", 20), ("0", 20)]
        return client.operation(
            10, *((n * 0.1, {"path": f"/v1/kv/x?index={i}", "index": x, **PASSED}) for n, (i, x) in enumerate(watch))
        ), {}
    if name == "lock_reacquired":
        lock = {"method": "PUT", "path": "/v1/kv/l?acquire=s", "granted": True, **PASSED}
        return client.operation(5, (0, lock)).operation(15, (0, lock)), {}
    for start in SCHEDULE:
        tries = [(0, PASSED)] if name != "circuit_breaks" or start < 15 or start >= 30 else []
        client.operation(start, *tries, lasts=0.4)
    return client, {"no_storm": {"capacity": "5/s"}, "recovers": {"within": "5s"}}.get(name, {})


def bad(name, client):  # noqa: C901, PLR0911, PLR0912 - as above
    if name == "present":
        return client.operation(10, (0, FAILED), ok=False), {}
    if name == "transport_only":
        reset = {"fault": "reset-after-reused", "reused": True}
        client.operation(10, (0, reset), (0.1, PASSED)).operation(11, (0, FAILED), ok=False)
        return client.operation(12, (0, {"fault": "reset-after-fresh"}), ok=False), {}
    if name == "bounded":
        return gaps(client, *[0.1] * 5), {}
    if name in {"backoff", "exponential"}:
        for number in range(5):
            gaps(client, *[0.1] * 5, start=10 + 2 * number)
        return client, {}
    if name == "timeout_present":
        return client.operation(10, (0, {"fault": "hang", "lasts": 9}), (9.1, PASSED), lasts=10), {"deadline": "5s"}
    if name == "jitter":
        for number in range(20):
            gaps(client, 0.1, 0.2, start=10 + number)
            gaps(client, 0.1, 0.2, start=10 + number, name="reference")
        return client, {"reference": "reference"}
    if name == "retry_after_honoured":
        return client.operation(10, (0, {**FAILED, "retry_after_s": 2.0}), (0.1, PASSED)), {}
    if name == "idempotent_only":
        dropped = {"fault": "reply-dropped", "method": "PUT", "upstream": True}
        return client.operation(10, (0, dropped), (0.1, {**PASSED, "method": "PUT"})), {}
    if name == "watch_resets":
        watch = [("0", 50), ("50", 20), ("50", 50)]
        return client.operation(
            10, *((n * 0.1, {"path": f"/v1/kv/x?index={i}", "index": x, **PASSED}) for n, (i, x) in enumerate(watch))
        ), {}
    if name == "lock_reacquired":
        lock = {"method": "PUT", "path": "/v1/kv/l?acquire=s", "granted": True, **PASSED}
        return client.operation(5, (0, lock)).operation(15, (0, {**lock, "granted": False})), {}
    for start in SCHEDULE:
        sick = start >= 10
        tries = [(n * 0.04, FAILED if sick else PASSED) for n in range(9 if sick else 1)]
        client.operation(start, *tries, ok=not sick, lasts=0.4)
    return client, {"no_storm": {"capacity": "5/s"}, "recovers": {"within": "5s"}}.get(name, {})
