"""Truths and lies for the hypotheses of hypotheses/stack.py; importing it adds them to CASES."""

from confusion import LIE, NOTHING, TRUTH
from confusion_cases import SERVICES_AGREE, cases, of, registered
from hashidrill.testing.recordings import RecordingBuilder

FAULT = "disk.latency"


def fallen(path, *, until=30, **loads):
    """A run with a slow disk from 10 s to `until`, and for each load the seconds at which it is slow."""
    run = RecordingBuilder(path).fault(FAULT, at=10, until=until)
    for name, spans in loads.items():
        run.load(name, rate=10, latency=lambda t, spans=spans: 3.0 if any(a <= t < b for a, b in spans) else 0.01)
    return run


def waiting(path, *waits, until=50.0):
    """A load of what is wrong until it is right: (due, how long; None: never), while it looks twice a second."""
    run = fallen(path, secrets=[(12, 34)]).series("services.registered", 4.0, end=until)
    for n, (due, took) in enumerate([(11, 0.5), *waits]):
        lost = took is None
        run.write(
            "services",
            f"instance-{n}",
            "missing",
            start=due,
            end=50 if lost else due + took,
            outcome="unknown" if lost else "ok",
        )
    return run


cases(
    "cascade_within",
    {"within": "10s"},
    (
        TRUTH,
        "one falls and is back in time, the other stands",
        of(fallen, secrets=[(12, 34)], batch=[]),
        {"load": ["secrets"], "spared": ["batch"]},
    ),
    (LIE, "one is back too late", of(fallen, secrets=[(12, 34)], leases=[(12, 44)]), {"load": ["secrets", "leases"]}),
    (LIE, "one never comes back", of(fallen, secrets=[(12, 99)]), {"load": ["secrets"]}),
    (LIE, "one is back, and falls again late", of(fallen, secrets=[(12, 31), (43, 46)]), {"load": ["secrets"]}),
    (
        LIE,
        "what was to be spared falls as well",
        of(fallen, secrets=[(12, 34)], batch=[(20, 24)]),
        {"load": ["secrets"], "spared": ["batch"]},
    ),
    (NOTHING, "a breach is claimed, and nothing was in breach", of(fallen, secrets=[]), {"load": ["secrets"]}),
    (NOTHING, "it was in breach before the fault", of(fallen, secrets=[(5, 34)]), {"load": ["secrets"]}),
    (
        NOTHING,
        "the load was silent for most of the fault",
        lambda path: (
            fallen(path)
            .load("secrets", rate=10, start=4, end=16, latency=lambda t: 3.0 if t > 12 else 0.01)
            .load("secrets", rate=10, start=30, end=50)
        ),
        {"load": ["secrets"]},
    ),
    (
        NOTHING,
        "the loads stop before the time is over",
        of(fallen, until=45, secrets=[(12, 46)]),
        {"load": ["secrets"]},
    ),
    (
        TRUTH,
        "registrations are wrong for long, and right again in time",
        of(waiting, (12, 4), (28, 5)),
        {"load": ["secrets"], "waits": ["services"]},
    ),
    (
        TRUTH,
        "one more went wrong just before the loads stopped",
        of(waiting, (12, 4), (49.5, None)),
        {"load": ["secrets"], "waits": ["services"]},
    ),
    (LIE, "a registration is right too late", of(waiting, (28, 15)), {"load": ["secrets"], "waits": ["services"]}),
    (LIE, "a registration is never right again", of(waiting, (28, None)), {"load": ["secrets"], "waits": ["services"]}),
    (
        NOTHING,
        "a breach of the registrations is claimed, and none was wrong for long",
        of(waiting, (12, 1)),
        {"load": ["secrets"], "waits": ["services"]},
    ),
    (
        NOTHING,
        "nobody looked at the registrations after a while",
        of(waiting, (12, 4), until=30),
        {"load": ["secrets"], "waits": ["services"]},
    ),
)


def looks(path, outcome="ok", *, until=30, servers=3, start=4.0, fault_at=10):
    """A reader of metrics that looks at one server after the other, three times a second."""
    run = RecordingBuilder(path).fault("process.kill", at=fault_at, until=until)
    for n in range(round((50 - start) * 3)):
        at, server = start + n / 3, n % servers + 1
        what = outcome(at, server) if callable(outcome) else outcome
        run.write("metrics", f"metrics/{n}", f"10.73.0.{server}", start=at, end=at + 0.02, outcome=what)
    return run


def blind(since, until, *servers):
    return lambda t, server: "fail" if since <= t < until and (not servers or server in servers) else "ok"


GAP = {"load": "metrics", "gap_below": "3s"}


def did_not_look(path):
    run = RecordingBuilder(path).fault("process.kill", at=10, until=30)
    for at in (6, 7, 8, 12, 28):
        run.write("metrics", f"metrics/{at}", "10.73.0.1", start=at, end=at + 0.02)
    return run


cases(
    "telemetry_survives",
    {**GAP},
    (TRUTH, "all servers are read all the time", looks),
    (
        TRUTH,
        "the fault ends two of three, and the third is read all the time",
        of(looks, blind(10, 30, 1, 2)),
        {"targets_at_least": 1},
    ),
    (LIE, "nothing is read while Consul does not say where the servers are", of(looks, blind(10, 30))),
    (LIE, "nothing is read for a few seconds in the middle", of(looks, blind(17, 21))),
    (LIE, "the sick server alone is not read", of(looks, blind(10, 30, 2))),
    (NOTHING, "nothing was read before the fault either", of(looks, "fail")),
    (NOTHING, "it did not look while the fault was in force", did_not_look),
    (NOTHING, "the fault was too short for such a gap", of(looks, until=12)),
)


# a restart in order


def restarted(path, opens=32.0, *, closes=10.0, shuts_again=None, next_until=40):
    """A fault from 10 s to 30 s, the next one until `next_until`; the gate is shut from `closes` to `opens`."""
    run = RecordingBuilder(path).load("kv-writes")
    run.fault("process.kill", at=10, until=30, name="consul").fault(
        "process.kill", "consul-2", at=10, until=next_until, name="vault"
    )

    def gate(t):
        again = shuts_again is not None and shuts_again <= t < shuts_again + 2
        return 0.0 if closes <= t < opens or again else 1.0

    return run.series("raft.leader", gate)


GATE = {"fault": "consul", "require": ["raft.leader >= 1"], "within": "5s"}


cases(
    "gate_opens",
    {**GATE},
    (TRUTH, "open in time, and before the next agents start", restarted, {"before": "vault"}),
    (LIE, "open too late", of(restarted, opens=37)),
    (LIE, "never open again", of(restarted, opens=99)),
    (LIE, "open in time, and shut again later", of(restarted, shuts_again=40)),
    (
        LIE,
        "open in time, but after the next agents were started",
        of(restarted, opens=33, next_until=31),
        {"before": "vault"},
    ),
    (NOTHING, "it was never shut: nothing was down", of(restarted, opens=0)),
)


# registrations

SERVICE = "outside"


def reset(path, *, missing=(), ghosts=(), finals=None, blind=(99, 99), since=None):
    """Six instances; two of them are registered, one is deregistered, and a restore at 20 s makes some wrong.

    `missing` and `ghosts` are (instance, how long it takes to be right again; None: never). While `blind`, looks at the
    catalog fail. `since` has others that are missing from then, until then.
    """
    run = RecordingBuilder(path).fault("consul.snapshot.restore", at=20, until=21)
    for second in range(4, 50):
        failed = blind[0] <= second < blind[1]
        run.sample(f"{SERVICE}.present", None if failed else 6.0, at=second, ok=not failed)
    for number in (4, 5):
        run.write(SERVICE, f"s-{number}", "register", start=10 + number, end=10.5 + number)
    run.write(SERVICE, "s-0", "deregister", start=12, end=12.5)
    truth = {f"s-{n}": "register" for n in range(1, 6)} | {"s-0": "deregister"}
    for what, wrong in (("missing", missing), ("ghost", ghosts)):
        for key, after in wrong:
            lost = after is None
            run.write(
                SERVICE, key, what, start=20.2, end=50 if lost else 20.2 + after, outcome="unknown" if lost else "ok"
            )
            if lost:
                truth[key] = "deregister" if what == "missing" else "register"
    for key, (start, end) in (since or {}).items():
        run.write(SERVICE, key, "missing", start=start, end=end or 50, outcome="ok" if end else "unknown")
        truth[key] = "register" if end else "deregister"
    return run.only_final_reads(SERVICE, {**truth, **(finals or {})}).build()


HEAL = {"load": SERVICE, "within": "10s"}
STAY = {"load": SERVICE, "for_at_least": "25s"}


cases(
    "registrations_heal",
    {**HEAL},
    (
        TRUTH,
        "what the restore took away is there again in time",
        of(reset, missing=[("s-4", 5), ("s-5", 6)], ghosts=[("s-0", 4)]),
        {"wrong_at_least": 3},
    ),
    (LIE, "one is missing for too long", of(reset, missing=[("s-4", 15), ("s-5", 6)])),
    (LIE, "a ghost stays", of(reset, missing=[("s-4", 5)], ghosts=[("s-0", None)])),
    (
        LIE,
        "the watch saw all of it right, and the consistent read at the end lacks one",
        of(reset, missing=[("s-4", 5)], finals={"s-5": "deregister"}),
    ),
    (
        NOTHING,
        "looks at the catalog failed for longer than one may be wrong",
        of(reset, missing=[("s-4", 5)], blind=(30, 40)),
    ),
    (NOTHING, "the restore made fewer wrong than it was to", of(reset, missing=[("s-4", 5)]), {"wrong_at_least": 3}),
)

cases(
    "registrations_stay_wrong",
    {**STAY},
    (TRUTH, "nothing heals by itself", of(reset, missing=[("s-4", None), ("s-5", None)], ghosts=[("s-0", None)])),
    (LIE, "one of them is right again", of(reset, missing=[("s-4", None), ("s-5", 8)])),
    (
        LIE,
        "the consistent read at the end shows one of them rightly",
        of(reset, missing=[("s-4", None), ("s-5", None)], finals={"s-5": "register"}),
    ),
    (NOTHING, "nobody watched for long enough", of(reset, missing=[("s-4", None)]), {"for_at_least": "60s"}),
    (NOTHING, "nothing was made wrong", reset),
)


# what Nomad registers


def disagrees_at_the_last_moment(path):
    run = registered(path, wrong=[("missing", 1)])
    load = SERVICES_AGREE["load"]
    return run.write(load, "late", "stale", start=49.5, end=50, outcome="unknown")


def disagrees_at_the_end(path):
    run = registered(path, wrong=[("missing", 1)])
    load = SERVICES_AGREE["load"]
    return run.write(load, "late", "stale", start=44, end=50, outcome="unknown")


cases(
    "services_agree",
    {**SERVICES_AGREE},
    (TRUTH, "one went wrong just before the loads stopped", disagrees_at_the_last_moment),
    (LIE, "one was wrong for some seconds when the loads stopped", disagrees_at_the_end),
)
