"""Truths and lies for the hypotheses of hypotheses/stack.py; importing it adds them to CASES."""

from __future__ import annotations

from confusion import LIE, NOTHING, TRUTH
from confusion_cases import SERVICES_AGREE, case, registered
from hashidrill.testing.recordings import RecordingBuilder

FAULT = "disk.latency"


def fallen(path, *, until=30, **loads):
    """A run with a slow disk from 10 s to `until`, and for each load the seconds at which it is slow."""
    run = RecordingBuilder(path).fault(FAULT, at=10, until=until)
    for name, spans in loads.items():
        run.load(name, rate=10, latency=lambda t, spans=spans: 3.0 if any(a <= t < b for a, b in spans) else 0.01)
    return run


@case("cascade_within", TRUTH, "one falls and is back in time, the other stands")
def fell_and_rose(path):
    run = fallen(path, secrets=[(12, 34)], batch=[])
    return run.build(), {"load": ["secrets"], "spared": ["batch"], "within": "10s"}


@case("cascade_within", LIE, "one is back too late")
def rose_late(path):
    return fallen(path, secrets=[(12, 34)], leases=[(12, 44)]).build(), {"load": ["secrets", "leases"], "within": "10s"}


@case("cascade_within", LIE, "one never comes back")
def never_rose(path):
    return fallen(path, secrets=[(12, 99)]).build(), {"load": ["secrets"], "within": "10s"}


@case("cascade_within", LIE, "one is back, and falls again late")
def fell_again(path):
    return fallen(path, secrets=[(12, 31), (43, 46)]).build(), {"load": ["secrets"], "within": "10s"}


@case("cascade_within", LIE, "what was to be spared falls as well")
def not_spared(path):
    run = fallen(path, secrets=[(12, 34)], batch=[(20, 24)])
    return run.build(), {"load": ["secrets"], "spared": ["batch"], "within": "10s"}


@case("cascade_within", NOTHING, "a breach is claimed, and nothing was in breach")
def nothing_fell(path):
    return fallen(path, secrets=[]).build(), {"load": ["secrets"], "within": "10s"}


@case("cascade_within", NOTHING, "it was in breach before the fault")
def sick_before(path):
    return fallen(path, secrets=[(5, 34)]).build(), {"load": ["secrets"], "within": "10s"}


@case("cascade_within", NOTHING, "the load was silent for most of the fault")
def not_covered(path):
    run = fallen(path).load("secrets", rate=10, start=4, end=16, latency=lambda t: 3.0 if t > 12 else 0.01)
    return run.load("secrets", rate=10, start=30, end=50).build(), {"load": ["secrets"], "within": "10s"}


@case("cascade_within", NOTHING, "the loads stop before the time is over")
def stopped_early(path):
    return fallen(path, until=45, secrets=[(12, 46)]).build(), {"load": ["secrets"], "within": "10s"}


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
    return run.build(), {"load": ["secrets"], "waits": ["services"], "within": "10s"}


@case("cascade_within", TRUTH, "registrations are wrong for long, and right again in time")
def wrong_and_right(path):
    return waiting(path, (12, 4), (28, 5))


@case("cascade_within", TRUTH, "one more went wrong just before the loads stopped")
def wrong_at_the_last_moment(path):
    return waiting(path, (12, 4), (49.5, None))


@case("cascade_within", LIE, "a registration is right too late")
def right_late(path):
    return waiting(path, (28, 15))


@case("cascade_within", LIE, "a registration is never right again")
def never_right(path):
    return waiting(path, (28, None))


@case("cascade_within", NOTHING, "a breach of the registrations is claimed, and none was wrong for long")
def never_wrong(path):
    return waiting(path, (12, 1))


@case("cascade_within", NOTHING, "nobody looked at the registrations after a while")
def nobody_looked(path):
    return waiting(path, (12, 4), until=30)


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


@case("telemetry_survives", TRUTH, "all servers are read all the time")
def read_all(path):
    return looks(path).build(), GAP


@case("telemetry_survives", TRUTH, "the fault ends two of three, and the third is read all the time")
def read_the_one_that_is_left(path):
    return looks(path, blind(10, 30, 1, 2)).build(), {**GAP, "targets_at_least": 1}


@case("telemetry_survives", LIE, "nothing is read while Consul does not say where the servers are")
def blind_all_along(path):
    return looks(path, blind(10, 30)).build(), GAP


@case("telemetry_survives", LIE, "nothing is read for a few seconds in the middle")
def blind_for_a_while(path):
    return looks(path, blind(17, 21)).build(), GAP


@case("telemetry_survives", LIE, "the sick server alone is not read")
def blind_for_the_sick_one(path):
    return looks(path, blind(10, 30, 2)).build(), GAP


@case("telemetry_survives", NOTHING, "nothing was read before the fault either")
def always_blind(path):
    return looks(path, "fail").build(), GAP


@case("telemetry_survives", NOTHING, "it did not look while the fault was in force")
def did_not_look(path):
    run = RecordingBuilder(path).fault("process.kill", at=10, until=30)
    for at in (6, 7, 8, 12, 28):
        run.write("metrics", f"metrics/{at}", "10.73.0.1", start=at, end=at + 0.02)
    return run.build(), GAP


@case("telemetry_survives", NOTHING, "the fault was too short for such a gap")
def too_short(path):
    return looks(path, until=12).build(), GAP


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


@case("gate_opens", TRUTH, "open in time, and before the next agents start")
def opened(path):
    return restarted(path).build(), {**GATE, "before": "vault"}


@case("gate_opens", LIE, "open too late")
def opened_late(path):
    return restarted(path, opens=37).build(), GATE


@case("gate_opens", LIE, "never open again")
def never_opened(path):
    return restarted(path, opens=99).build(), GATE


@case("gate_opens", LIE, "open in time, and shut again later")
def shut_again(path):
    return restarted(path, shuts_again=40).build(), GATE


@case("gate_opens", LIE, "open in time, but after the next agents were started")
def opened_after_the_next(path):
    return restarted(path, opens=33, next_until=31).build(), {**GATE, "before": "vault"}


@case("gate_opens", NOTHING, "it was never shut: nothing was down")
def never_shut(path):
    return restarted(path, opens=0).build(), GATE


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


@case("registrations_heal", TRUTH, "what the restore took away is there again in time")
def healed(path):
    return reset(path, missing=[("s-4", 5), ("s-5", 6)], ghosts=[("s-0", 4)]), {**HEAL, "wrong_at_least": 3}


@case("registrations_heal", LIE, "one is missing for too long")
def healed_late(path):
    return reset(path, missing=[("s-4", 15), ("s-5", 6)]), HEAL


@case("registrations_heal", LIE, "a ghost stays")
def ghost_stays(path):
    return reset(path, missing=[("s-4", 5)], ghosts=[("s-0", None)]), HEAL


@case("registrations_heal", LIE, "the watch saw all of it right, and the consistent read at the end lacks one")
def not_at_the_end(path):
    return reset(path, missing=[("s-4", 5)], finals={"s-5": "deregister"}), HEAL


@case("registrations_heal", NOTHING, "looks at the catalog failed for longer than one may be wrong")
def healed_unseen(path):
    return reset(path, missing=[("s-4", 5)], blind=(30, 40)), HEAL


@case("registrations_heal", NOTHING, "the restore made fewer wrong than it was to")
def too_few_wrong(path):
    return reset(path, missing=[("s-4", 5)]), {**HEAL, "wrong_at_least": 3}


@case("registrations_stay_wrong", TRUTH, "nothing heals by itself")
def stays_wrong(path):
    return reset(path, missing=[("s-4", None), ("s-5", None)], ghosts=[("s-0", None)]), STAY


@case("registrations_stay_wrong", LIE, "one of them is right again")
def one_healed(path):
    return reset(path, missing=[("s-4", None), ("s-5", 8)]), STAY


@case("registrations_stay_wrong", LIE, "the consistent read at the end shows one of them rightly")
def right_at_the_end(path):
    return reset(path, missing=[("s-4", None), ("s-5", None)], finals={"s-5": "register"}), STAY


@case("registrations_stay_wrong", NOTHING, "nobody watched for long enough")
def watched_too_short(path):
    return reset(path, missing=[("s-4", None)]), {**STAY, "for_at_least": "60s"}


@case("registrations_stay_wrong", NOTHING, "nothing was made wrong")
def nothing_wrong(path):
    return reset(path), STAY


# what Nomad registers


@case("services_agree", TRUTH, "one went wrong just before the loads stopped")
def disagrees_at_the_last_moment(path):
    run = registered(path, wrong=[("missing", 1)])
    load = SERVICES_AGREE["load"]
    return run.write(load, "late", "stale", start=49.5, end=50, outcome="unknown").build(), SERVICES_AGREE


@case("services_agree", LIE, "one was wrong for some seconds when the loads stopped")
def disagrees_at_the_end(path):
    run = registered(path, wrong=[("missing", 1)])
    load = SERVICES_AGREE["load"]
    return run.write(load, "late", "stale", start=44, end=50, outcome="unknown").build(), SERVICES_AGREE
