"""Go profiles as Go writes them, with the stacks that a test says; and runs that took some."""

import gzip

from hashidrill.testing.recordings import RecordingBuilder

TYPES = {
    "cpu": (("samples", "count"), ("cpu", "nanoseconds")),
    "goroutine": (("goroutine", "count"),),
    "mutex": (("contentions", "count"), ("delay", "nanoseconds")),
}
SAMPLE_NS = 10_000_000
WALL_NS = 1_700_000_000_000_000_000
STREAM = ("net/http.serve", "example.com/agent/stream.(*Subscription).Next", "runtime.selectgo")
RAFT = ("raft.(*Raft).run", "example.com/bbolt.(*freelist).write")
OTHER = ("net/http.serve", "encoding/json.Marshal")
HEALTHY, SICK = {OTHER: 20, STREAM: 2}, {OTHER: 60, STREAM: 200}


def _varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number, value):
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def encoded(stacks, kind="cpu", *, at=0.0, length_s=3.0, skew_s=0.0):
    """`stacks`: samples by stack, the root first. `at`: seconds of the run; `skew_s`: the error of its clock."""
    texts = {"": 0}

    def text(word):
        return texts.setdefault(word, len(texts))

    out = b"".join(_field(1, _field(1, text(a)) + _field(2, text(b))) for a, b in TYPES[kind])
    names = {}
    for stack, count in stacks.items():
        places = b"".join(_varint(names.setdefault(name, len(names) + 1)) for name in reversed(stack))
        values = _varint(count) + (_varint(count * SAMPLE_NS) if len(TYPES[kind]) > 1 else b"")
        out += _field(2, _field(1, places) + _field(2, values))
    for name, number in names.items():
        out += _field(4, _field(1, number) + _field(4, _field(1, number) + _field(2, 7)))
        out += _field(5, _field(1, number) + _field(2, text(name)))
    out += b"".join(_field(6, each.encode()) for each in texts)
    out += _field(9, WALL_NS + int((at + skew_s) * 1e9))
    out += _field(10, 0 if kind == "goroutine" else int(length_s * 1e9))
    return gzip.compress(out)


class Profiled(RecordingBuilder):
    """A run whose fault lasts from 10 s to 30 s, and its profiles."""

    def __init__(self, path, **more):
        super().__init__(path)
        self.fault("cpu.limit", "consul-1", at=10, until=30, name="sick", **more).load("kv-writes").leader("consul-1")

    def profile(self, body, *, at, host="consul-1", kind="cpu", why=None, ends=None):
        """One file, as if it had been taken then; `body` may be its stacks."""
        if isinstance(body, dict):
            body = encoded(body, kind, at=at)
        name = f"artifacts/profiles/{host}-{kind}-{at:g}.pb.gz"
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(body)
        why = why or ("steady state" if at < 10 else "kv-writes.latency.p50 < 300ms (measured 2s)")
        told = {"file": name, "host": host, "agent": "consul", "kind": kind, "why": why}
        return self.event("profile", at=at + 3 if ends is None else ends, began_ns=int(at * 1e9), **told)


def profiled(
    path,
    sick=SICK,
    healthy=HEALTHY,
    *,
    sick_host="consul-1",
    healthy_host="consul-1",
    at=15,
    before=6,
    kind="cpu",
    why=None,
):
    """A run with a healthy profile, and one that may be sick; `why` is given for both."""
    run = Profiled(path).profile(healthy, at=before, host=healthy_host, kind=kind, why=why if before > 10 else None)
    return run.profile(sick, at=at, host=sick_host, kind=kind, why=None if before > 10 else why)
