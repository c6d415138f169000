"""Recorded runs of streaming beside long polls, and of watchers."""

from hashidrill.testing.recordings import RecordingBuilder

STEPS = ["50%", "100%", "200%", "400%", "0%", "50%", "100%", "200%", "400%"]


CONFIG = {"set": {"use_streaming_backend": False}, "by": "auto"}


class Stepped(RecordingBuilder):
    """A run of two sweeps of 4 steps of 5 s; the method begins at 10, long polls are in force from 34 to 60."""

    steps = STEPS

    def experiment(self):
        document = super().experiment()
        document["load"]["views"] = {
            "kind": "consul.views",
            "count": 100,
            "profile": {"steps": self.steps, "each": "5s"},
        }
        for step in document["method"]:
            step["with"] = CONFIG
        return document

    def build(self):
        for phase, at in (("start", 0), ("ready", 2), ("steady", 4), ("method", 10), ("recovery", 60), ("quiesce", 65)):
            self.phase(phase, at=at)
        return super().build()


def as_asked(level):
    return 100 * level


def stepped(tmp_path, streaming, polling, *, host_lag=0.0, opened=as_asked):
    """p50 by level in each arm; the arm that is default first. `opened`: how many views are open at each level."""
    run = Stepped(tmp_path / "run")
    levels = dict(zip(range(10, 55, 5), (0.5, 1, 2, 4, 0, 0.5, 1, 2, 4), strict=True))

    def latency(t):
        level = levels.get(int(t // 5 * 5), 1)
        return (streaming if t < 30 else polling)(level)

    for n in (1, 2):
        run.fault("consul.config", f"client-{n}", at=33 + n * host_lag, until=57, params=CONFIG, step=None)
    if opened is not None:
        run.series("views.open", lambda t: opened(levels.get(int(t // 5 * 5), 1)), every=1.0, end=65)
    return run.load("kv-writes", rate=20, end=65, latency=latency).load("churn", rate=10, end=65)


def watched(tmp_path, *, sees=lambda n: 31.0, state="new", last_write=29.0):
    """20 watchers of 4 keys; a reset ends at 30 and leaves `new`, which each one sees at `sees(n)` (None: never)."""
    built = RecordingBuilder(tmp_path / "run").fault("consul.snapshot.restore", at=20, until=30)
    for n in range(20):
        key = f"k/{n % 4}"
        built.write("watch", f"{key}#{n}", "old", start=4, end=4.1)
        if (at := sees(n)) is not None:
            built.write("watch", f"{key}#{n}", state, start=at, end=at)
        built.write("kv-writes", key, "new", start=last_write, end=last_write)
    return built.final_reads("watch", {f"k/{n}": "new" for n in range(4)})
