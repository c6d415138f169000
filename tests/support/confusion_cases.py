"""For every shipped hypothesis at least one run of which it is true and one of which it is a lie.

A case is a function of a folder that returns a recording and the parameters. What is planted as a lie is what the
hypothesis is there to catch, and not just any break.
"""

from functools import partial

from confusion import LIE, NOTHING, TRUTH
from go_profiles import HEALTHY, OTHER, RAFT, SICK, STREAM, Profiled, encoded, profiled
from hashidrill.core.probes.alerts import told
from hashidrill.core.tap.catalogue import VERDICTS
from hashidrill.products.consul.loads.cas import Step
from hashidrill.products.consul.loads.locks import Action
from hashidrill.products.nomad.loads.artifacts import Build
from hashidrill.products.nomad.loads.replicas import Start
from hashidrill.testing.recordings import RecordingBuilder
from reset_runs import LOAD as RESET_LOAD
from reset_runs import Game, bloated, cas_recording, ordinary, step
from retry_recordings import FAILED, PASSED, Client, bad, good
from spiked_runs import Spiked
from streaming_runs import stepped, watched
from vault_runs import LEASES, SECRETS, at, leases, secrets

LOAD = "kv-writes"
CASES = {}
"""Name of a hypothesis -> [(what is planted, in words, the case)]."""


def cases(name, params, *rows):
    """What is planted for one hypothesis: (what it is, in words, what builds the run, parameters of this row)."""
    for planted, words, build, *more in rows:
        CASES.setdefault(name, []).append((planted, words, partial(_case, build, params | dict(*more))))


def of(build, *args, **more):
    """What builds that run: `of(at_work, missing=1)`."""
    return lambda path: build(path, *args, **more)


def _case(build, params, path):
    run = build(path)
    return run.build() if hasattr(run, "build") else run, params


def run(path, kind="process.kill", *, at=10, until=30, **load):
    """A run with one fault and, unless told otherwise, a load that goes well."""
    return RecordingBuilder(path).fault(kind, "consul-1", at=at, until=until).load(LOAD, **load)


def slow(since, until):
    return lambda t: 3.0 if since <= t < until else 0.01


def failing(since, until):
    return lambda t: "fail" if since <= t < until else "ok"


cases(
    "steady_state_holds",
    {},
    (TRUTH, "nothing fails", run),
    (TRUTH, "one of hundreds fails", of(run, outcome=failing(20, 20.01))),
    (LIE, "a second in the middle fails", of(run, outcome=failing(18, 19))),
    (LIE, "the last seconds of the method fail", of(run, outcome=failing(28, 30))),
    (LIE, "all fails from the fault on", of(run, outcome=failing(10, 99))),
    (NOTHING, "its load begins after the fault", of(run, start=31)),
)


# signals of one's own probes


def page(path, ok=lambda _: 1.0, *, unknown=(99, 99), silent=(99, 99), every=1.0, end=50.0):
    """A page that is asked each second; `unknown` and `silent`: from when to when its looks fail, or are missing."""
    one = run(path).probe("page", url="http://client-1:8500/", every=f"{every:g}s")
    for n in range(int((end - 4) / every)):
        at = 4 + n * every
        if not silent[0] <= at < silent[1]:
            known = not unknown[0] <= at < unknown[1]
            one.sample("page.ok", ok(at) if known else None, at=at, ok=known, text="" if known else "reset by peer")
    return one


def late(since, until):
    return lambda t: 30.0 if since <= t < until else 2.0


def down(since, until):
    return lambda t: 0.0 if since <= t < until else 1.0


cases(
    "signal_stays",
    {"condition": "page.ok == 1"},
    (TRUTH, "the page is up at every look", page),
    (TRUTH, "it is down before the fault and after it", of(page, lambda t: float(10 <= t < 30))),
    (TRUTH, "a look fails, which was allowed", of(page, unknown=(20, 21)), {"gap": "3s"}),
    (LIE, "it is down at one look", of(page, down(20, 21))),
    (LIE, "it is down for the whole fault", of(page, down(10, 30))),
    (LIE, "it is down at one look, and another look fails", of(page, down(20, 21), unknown=(22, 23))),
    (LIE, "it is down after the fault", of(page, down(40, 41)), {"during": "run"}),
    (NOTHING, "one look fails", of(page, unknown=(20, 21))),
    (NOTHING, "looks fail for longer than allowed", of(page, unknown=(20, 24)), {"gap": "3s"}),
    (NOTHING, "there is no look for six seconds", of(page, silent=(20, 26))),
    (NOTHING, "the looks end in the middle of the fault", of(page, end=20)),
    (NOTHING, "there is no look while the fault is in force", of(page, silent=(10, 30))),
    (NOTHING, "every look fails", of(page, unknown=(0, 60))),
)

cases(
    "signal_recovers",
    {"condition": "page.ok == 1", "within": "5s"},
    (TRUTH, "it is down until three seconds after the fault", of(page, down(10, 33))),
    (TRUTH, "it was never down", page),
    (TRUTH, "looks fail while it may be down", of(page, down(10, 33), unknown=(31, 34))),
    (TRUTH, "it fails over at once", of(page, down(10, 14)), {"since": "start"}),
    (LIE, "it is down until ten seconds after the fault", of(page, down(10, 40))),
    (LIE, "it never comes back", of(page, down(10, 60))),
    (LIE, "it comes back, and is down again at the end", of(page, down(45, 46))),
    (LIE, "it is back after the fault only", of(page, down(10, 33)), {"since": "start"}),
    (NOTHING, "a look fails after it has recovered", of(page, unknown=(45, 46))),
    (NOTHING, "it recovers between a look in time and one that is late", of(page, down(10, 35), every=1.3)),
    (NOTHING, "the looks end before it would be late", of(page, down(10, 60), end=33)),
    (NOTHING, "the looks end once it has recovered", of(page, end=36)),
    (NOTHING, "it is not looked at in the allowed time, and up later", of(page, silent=(29, 40))),
)

cases(
    "signal_shows",
    {"condition": "page.ok == 0", "within": "5s"},
    (TRUTH, "the page is down two seconds after the fault began", of(page, down(12, 30))),
    (TRUTH, "one look in time shows it, and another failed", of(page, down(12, 30), unknown=(13, 15))),
    (LIE, "it stays up", page),
    (LIE, "it is down ten seconds after the fault began", of(page, down(20, 30))),
    (NOTHING, "it is down before the fault too", of(page, down(6, 30))),
    (NOTHING, "a look failed where it might have been down", of(page, unknown=(12, 13))),
    (NOTHING, "a look failed before the fault", of(page, down(12, 30), unknown=(6, 7))),
    (NOTHING, "nothing was looked at before the fault", of(page, down(12, 30), silent=(4, 10))),
    (NOTHING, "nothing was looked at in the allowed time", of(page, down(12, 30), silent=(10, 16))),
)

# alerts


def alerts(path, firing=(99, 99), *more, pending=(99, 99), unknown=(99, 99), silent=(99, 99), every=1.0, **load):
    """A probe that watches SlowDisk each second; it fires and is pending in these spans, and others fire all the time.

    `unknown` and `silent`: from when to when its looks fail, or are missing.
    """

    def during(at, *spans):
        return any(start <= at < end for start, end in spans)

    one = run(path, **load).probe("page", "alerts", url="http://prometheus-1:9090", alerts=["SlowDisk", "SlowDisks"])
    for n in range(int((50 - 4) / every)):
        if during(at := 4 + n * every, silent):
            continue
        if during(at, unknown):
            one.sample("page.firing", None, at=at, ok=False, text="HTTP 503: it restarts, firing: SlowDisk")
            continue
        fires = ["SlowDisk"] if during(at, firing, *more) else []
        text = told(["SlowDisks", *fires], ["SlowDisk"] if during(at, pending) else [])
        one.sample("page.firing", 1.0 + len(fires), at=at, text=text)
    return one


def of_page(path, down=(99, 99), unknown=(99, 99)):
    """The alert fires at 16 s; the page that users see is looked at half a second before the alert."""
    one = alerts(path, (16, 32)).probe("site", url="http://client-1:8500/")
    for n in range(46):
        at = 4.5 + n
        known = not unknown[0] <= at < unknown[1]
        one.sample("site.ok", float(not down[0] <= at < down[1]) if known else None, at=at, ok=known)
    return one


CLEARS = {"clears_within": "5s"}
FIRST = {"before": "kv-writes.latency.p50 > 300ms"}

cases(
    "alert_fires",
    {"alert": "SlowDisk", "within": "8s"},
    (TRUTH, "it fires four seconds after the fault began", of(alerts, (14, 32))),
    (TRUTH, "it clears three seconds after the fault", of(alerts, (14, 33)), CLEARS),
    (TRUTH, "users are hurt later", of(alerts, (14, 32), latency=slow(20, 30)), FIRST),
    (TRUTH, "the page of users is down later", of(of_page, down=(20, 30)), {"before": "site.ok == 0"}),
    (LIE, "the page of users is down first", of(of_page, down=(12, 30)), {"before": "site.ok == 0"}),
    (TRUTH, "users are never hurt", of(alerts, (14, 32)), FIRST),
    (TRUTH, "looks fail once it fires", of(alerts, (14, 32), unknown=(16, 20))),
    (LIE, "another alert fires, whose name begins alike", alerts),
    (LIE, "it fires fifteen seconds after the fault began", of(alerts, (25, 32))),
    (LIE, "it is pending all the time, and never fires", of(alerts, pending=(12, 40))),
    (LIE, "it still fires ten seconds after the fault", of(alerts, (14, 40)), CLEARS),
    (LIE, "it clears, and fires again", of(alerts, (14, 32), (44, 45)), CLEARS),
    (LIE, "users are hurt at once", of(alerts, (16, 32), latency=slow(10, 30)), FIRST),
    (LIE, "users are hurt first", of(alerts, (16, 32), latency=slow(12, 30)), FIRST),
    (
        LIE,
        "operations fail first, and fast",
        of(alerts, (16, 32), outcome=failing(12, 30)),
        {"before": "kv-writes.errors > 5%"},
    ),
    (NOTHING, "it fires before the fault", of(alerts, (8, 32))),
    (NOTHING, "it fired before the fault, and cleared", of(alerts, (6, 7), (14, 32))),
    (NOTHING, "a look failed before the fault", of(alerts, (14, 32), unknown=(8, 9))),
    (NOTHING, "there was no look before the fault", of(alerts, (14, 32), silent=(4, 10))),
    (NOTHING, "looks failed where it may have fired", of(alerts, (19, 32), unknown=(15, 19))),
    (NOTHING, "there was no look in the allowed time", of(alerts, (19, 32), silent=(11, 19))),
    (NOTHING, "it fired between a look in time and a late one", of(alerts, (17.5, 32), every=1.3)),
    (NOTHING, "a look failed after it cleared", of(alerts, (14, 32), unknown=(45, 46)), CLEARS),
    (NOTHING, "it cleared while no look was made", of(alerts, (14, 38), silent=(32, 38)), CLEARS),
    (NOTHING, "users were hurt between two looks", of(alerts, (14, 32), latency=slow(13.9, 30)), FIRST),
    (NOTHING, "whether users are hurt is unknown", of(of_page, unknown=(13, 14)), {"before": "site.ok == 0"}),
    (NOTHING, "users are hurt all the time", of(alerts, (14, 32), latency=1.0), FIRST),
    (NOTHING, "no user came for a while", of(alerts, (17, 32), start=14), FIRST),
)

cases(
    "alert_stays_quiet",
    {"alert": "SlowDisk"},
    (TRUTH, "only another alert fires", alerts),
    (TRUTH, "it is pending for a while", of(alerts, pending=(12, 20))),
    (LIE, "it fires at one look", of(alerts, (20, 21))),
    (LIE, "it fires in the last second", of(alerts, (49, 50))),
    (LIE, "it fires, and another look fails", of(alerts, (20, 21), unknown=(30, 31))),
    (LIE, "it fires after the fault", of(alerts, (32, 34))),
    (NOTHING, "it fires before the fault too", of(alerts, (6, 40))),
    (NOTHING, "one look fails", of(alerts, unknown=(20, 21))),
    (NOTHING, "every look fails, and names it", of(alerts, unknown=(0, 60))),
    (NOTHING, "there is no look for six seconds", of(alerts, silent=(20, 26))),
    (NOTHING, "the looks end early", of(alerts, silent=(40, 60))),
    (NOTHING, "it is pending in the end", of(alerts, pending=(45, 60))),
    (NOTHING, "no probe watches it", alerts, {"alert": "SlowDisc"}),
)

# telemetry: series that must exist, and how late they are


def telemetry(path, ok=lambda _: 1.0, lag=lambda _: 2.0, *, unknown=(99, 99), silent=(99, 99), end=50.0):
    """A contract that is looked at each second at two places, `old` and `new`; at `old`, all is well."""
    one = run(path)
    for name in ("old", "new"):
        one.probe(name, "metrics", url="http://prometheus:9090", series=["consul_raft_commitTime"])
        for second in range(4, int(end)):
            if name == "new" and silent[0] <= second < silent[1]:
                continue
            known = name == "old" or not unknown[0] <= second < unknown[1]
            both = {"ok": 1.0, "lag": 2.0} if name == "old" else {"ok": ok(second), "lag": lag(second)}
            for signal, value in both.items():
                text = "" if known else "HTTP 503"
                one.sample(f"{name}.{signal}", value if known else None, at=second, ok=known, text=text)
    return one


cases(
    "metrics_exist",
    {"probes": ["old", "new"]},
    (TRUTH, "all series exist at every look", telemetry),
    (TRUTH, "a look fails, which was allowed", of(telemetry, unknown=(20, 21)), {"gap": "3s"}),
    (TRUTH, "one is missing after the fault, which is not judged", of(telemetry, down(40, 45)), {"during": "fault"}),
    (LIE, "one is missing at the new version from the start", of(telemetry, lambda _: 0.0)),
    (LIE, "one is missing once the new version runs", of(telemetry, down(25, 60))),
    (LIE, "one is missing at one look", of(telemetry, down(20, 21))),
    (LIE, "one is missing, and another look fails", of(telemetry, down(20, 21), unknown=(30, 31))),
    (NOTHING, "the new version was never asked", of(telemetry, silent=(0, 60))),
    (NOTHING, "the new version never answered", of(telemetry, unknown=(0, 60))),
    (NOTHING, "there is no look for six seconds", of(telemetry, silent=(20, 26))),
    (NOTHING, "the looks end in the middle", of(telemetry, end=30)),
)

cases(
    "telemetry_lag_below",
    {"probe": "new", "lag": "10s"},
    (TRUTH, "samples are two seconds old", telemetry),
    (TRUTH, "they are late after the fault, which is not judged", of(telemetry, lag=late(35, 45))),
    (TRUTH, "a look fails, which was allowed", of(telemetry, unknown=(20, 21)), {"gap": "3s"}),
    (LIE, "they are late while the fault is in force", of(telemetry, lag=late(15, 30))),
    (LIE, "they are late at one look", of(telemetry, lag=late(20, 21))),
    (LIE, "they are late after the fault", of(telemetry, lag=late(35, 45)), {"during": "run"}),
    (LIE, "they are exactly as old as is allowed", of(telemetry, lag=lambda _: 10.0)),
    (LIE, "they are late, and Prometheus is silent then", of(telemetry, lag=late(15, 30), silent=(16, 29))),
    (NOTHING, "Prometheus does not answer while it is late", of(telemetry, lag=late(15, 18), unknown=(15, 18))),
    (NOTHING, "there is no look for six seconds", of(telemetry, silent=(20, 26))),
    (NOTHING, "looks fail for longer than allowed", of(telemetry, unknown=(20, 24)), {"gap": "3s"}),
    (NOTHING, "the age is never known", of(telemetry, unknown=(0, 60))),
)

# objectives of OpenSLO


def objective(
    path, bad=lambda _: 0.0, *, total=lambda _: 100.0, window="28d", unknown=(99, 99), silent=(99, 99), end=50.0
):
    """An objective of 99 % whose events are counted each second, from the steady state to `end`."""
    source = {"metricSource": {"spec": {"query": "q"}}}
    slo = {
        "apiVersion": "openslo/v1",
        "kind": "SLO",
        "metadata": {"name": "checkout"},
        "spec": {
            "indicator": {"spec": {"ratioMetric": {"counter": True, "good": source, "total": source}}},
            "timeWindow": [{"duration": window, "isRolling": True}],
            "budgetingMethod": "Occurrences",
            "objectives": [{"target": 0.99}],
        },
    }
    one = run(path).probe("checkout", "slo", url="http://prometheus:9090", slo=slo)
    for phase, at_s in (("steady", 4), ("method", 10), ("recovery", 30), ("quiesce", max(end, 50))):
        one.phase(phase, at=at_s)
    for second in range(4, int(end)):
        if silent[0] <= second < silent[1]:
            continue
        known = not unknown[0] <= second < unknown[1]
        for signal, value in (("good", total(second) - bad(second)), ("total", total(second))):
            text = "" if known else "the counter was reset"
            one.sample(f"checkout.{signal}", value if known else None, at=second, ok=known, text=text)
    return one


def hour(path, bad, **more):
    return objective(path, bad, window="1h", **more)


def minutes(path, bad, **more):
    """A run of more than two minutes, whose window is one."""
    return objective(path, bad, window="1m", end=140, **more)


def wrong(since, until, count):
    return lambda second: float(count) if since <= second < until else 0.0


cases(
    "slo_met",
    {"probe": "checkout", "budget": "1%"},
    (TRUTH, "no event is bad", objective),
    (TRUTH, "all are bad for a second, of 28 days", of(objective, wrong(20, 21, 100))),
    (TRUTH, "the first look of a counter counts nothing", of(objective, unknown=(0, 5))),
    (LIE, "half are bad, of few", of(objective, wrong(10, 30, 1), total=lambda _: 2.0, window="1h")),
    (LIE, "all are bad while the fault is in force", of(hour, wrong(10, 30, 100))),
    (LIE, "so many are bad that unknown looks do not matter", of(hour, wrong(10, 30, 100), unknown=(32, 34))),
    (LIE, "all are bad in the last second", of(hour, wrong(49, 50, 100))),
    (NOTHING, "there is no data", of(objective, unknown=(0, 60))),
    (NOTHING, "there is no event", of(objective, total=lambda _: 0.0)),
    (NOTHING, "a counter is reset", of(objective, unknown=(20, 21))),
    (NOTHING, "a counter is reset while events are bad", of(hour, wrong(20, 21, 100), unknown=(20, 21))),
    (NOTHING, "there is no look for six seconds", of(objective, silent=(20, 26))),
    (NOTHING, "the looks begin late", of(objective, unknown=(0, 12))),
    (NOTHING, "the looks end early", of(objective, end=40)),
    (NOTHING, "more events are good than there are", of(objective, wrong(10, 30, -1))),
)

cases(
    "slo_met",
    {"probe": "checkout"},
    (TRUTH, "few enough are bad in each minute", of(minutes, wrong(10, 140, 0.5))),
    (LIE, "too many are bad in one minute, and few enough in the run", of(minutes, wrong(70, 90, 4))),
    (LIE, "a minute burns more of its budget than is allowed", of(minutes, wrong(70, 90, 1)), {"budget": "30%"}),
    (NOTHING, "a counter is reset in the worst minute", of(minutes, wrong(70, 90, 4), unknown=(80, 81))),
    (NOTHING, "the window is longer than the run", objective),
)

# Nomad's work

REPLICAS = "web"


def at_work(
    path, kind="process.kill", *, started=3.0, missing=0, came_back=(), blind=(99, 99), looks=True, applied=None
):
    """Four replicas that start; `missing` of them never do; some go away at 12 s and are back that much later.

    The load looks each second; while `blind`, its looks fail.
    """
    one = RecordingBuilder(path).fault(kind, "node-1", at=10, until=30, applied=applied)
    for second in range(4, 50) if looks else ():
        failed = blind[0] <= second < blind[1]
        one.sample(f"{REPLICAS}.running", None if failed else 4.0, at=second, ok=not failed)
    for n in range(4):
        outcome = "unknown" if n < missing else "ok"
        one.write(
            REPLICAS, f"web.group[{n}]", "node-1", start=4, end=50 if n < missing else 4 + started, outcome=outcome
        )
    for n, after in enumerate(came_back):
        lost = after is None
        one.write(
            REPLICAS,
            f"web.group[{n}]",
            "node-2",
            start=12,
            end=50 if lost else 12 + after,
            outcome="unknown" if lost else "ok",
        )
    return one


def details_that_lie(path):
    """The parts are a measure: what decides is when the servers knew the last replica to run."""
    one = RecordingBuilder(path).fault("noop", "node-1", at=10, until=30)
    detail = Start(again_s=0, evaluation_s=0.1, plan_s=0.1, start_s=0.1).detail()
    one.write(REPLICAS, "web.group[0]", "node-1", start=4, end=13, detail=detail)
    return one


cases(
    "cold_start_within",
    {"load": REPLICAS, "limit": "5s"},
    (TRUTH, "all run in time", at_work),
    (LIE, "all run, and too late", of(at_work, started=8)),
    (LIE, "one of them never runs", of(at_work, missing=1)),
    (LIE, "the details say that each part was quick", details_that_lie),
)

cases(
    "replicas_return",
    {"load": REPLICAS, "within": "5s"},
    (TRUTH, "two go away and are replaced in time", of(at_work, came_back=(2, 3)), {"lost_at_least": 2}),
    (TRUTH, "none goes away", at_work),
    (NOTHING, "none goes away, and from the fault on every look fails", of(at_work, blind=(11, 50))),
    (
        NOTHING,
        "two come back in time, and looks fail for longer than a replica may be away",
        of(at_work, came_back=(2, 3), blind=(20, 28)),
    ),
    (LIE, "one comes back late", of(at_work, came_back=(2, 9))),
    (LIE, "one never comes back", of(at_work, came_back=(2, None))),
    (NOTHING, "the fault was to take two away, and took one", of(at_work, came_back=(2,)), {"lost_at_least": 2}),
    (NOTHING, "one never ran to begin with", of(at_work, missing=1)),
)


def registered(path, *, never=0, wrong=(), blind_from=None, blind_until=99):
    """Four instances that are registered after 3 s; `wrong` are (what, seconds until it is right, None for never)."""
    one = RecordingBuilder(path).fault("nomad.node.drain", "node-1", at=10, until=30)
    for n in range(4):
        outcome = "unknown" if n < never else "ok"
        one.write(REPLICAS, f"web.group[{n}]", "missing", start=4, end=50 if n < never else 7, outcome=outcome)
    for n, (what, after) in enumerate(wrong):
        one.write(
            REPLICAS,
            f"alloc-{n}",
            what,
            start=12,
            end=50 if after is None else 12 + after,
            outcome="unknown" if after is None else "ok",
        )
    for second in range(4, 50):
        seen = blind_from is None or not blind_from <= second < blind_until
        one.sample(f"{REPLICAS}.missing", float(len(wrong)) if seen else None, at=second, ok=seen)
    return one


SERVICES_AGREE = {"load": REPLICAS, "within": "5s"}


cases(
    "services_agree",
    {**SERVICES_AGREE},
    (
        TRUTH,
        "two go wrong and are right in time",
        of(registered, wrong=[("missing", 1), ("stale", 4)]),
        {"wrong_at_least": 2},
    ),
    (TRUTH, "none goes wrong", registered),
    (
        LIE,
        "an entry that nothing runs behind stays for too long",
        of(registered, wrong=[("missing", 1), ("stale", 20)]),
    ),
    (LIE, "an instance that runs is never registered again", of(registered, wrong=[("missing", None)])),
    (LIE, "one allocation is registered twice", of(registered, wrong=[("duplicate", None)])),
    (NOTHING, "nobody could compare at the end", of(registered, blind_from=35)),
    (
        NOTHING,
        "none goes wrong, and nobody could compare for twenty seconds",
        of(registered, blind_from=12, blind_until=32),
    ),
    (NOTHING, "the fault was to put one wrong, and put none", registered, {"wrong_at_least": 1}),
    (NOTHING, "one was never registered to begin with", of(registered, never=1)),
)


def hosted(path, texts):
    """Where three replicas run, from the beginning and from 20 s on."""
    return hosting(path, lambda t: texts[t >= 20])


def hosting(path, where):
    """What the servers say of each second: `node-1: 2, node-2: 1`."""
    one = at_work(path, looks=False)
    for second in range(4, 50):
        text = where(second)
        running = (
            None if text is None else float(sum(int(part.rpartition(" ")[2]) for part in text.split(", ") if part))
        )
        one.sample("web.running", running, at=second, text=text or "", ok=text is not None)
    return one.build()


def hardly_looked(second):
    """Nearly every look at Nomad fails."""
    return "node-1: 1, node-2: 1, node-3: 1" if second in {9, 40} else None


cases(
    "replicas_on_distinct_hosts",
    {"load": REPLICAS},
    (
        TRUTH,
        "one on each node, also after one has moved",
        of(hosted, ("node-1: 1, node-2: 1, node-3: 1", "node-2: 1, node-3: 1, node-4: 1")),
    ),
    (LIE, "all on one node from the beginning", of(hosted, ("node-1: 3", "node-1: 3"))),
    (
        LIE,
        "they come together when a node is lost",
        of(hosted, ("node-1: 1, node-2: 1, node-3: 1", "node-2: 2, node-3: 1")),
    ),
    (NOTHING, "two looks succeeded", of(hosting, hardly_looked)),
    (NOTHING, "there is one replica", of(hosting, lambda _: "node-1: 1")),
)

cases(
    "replicas_stay",
    {"load": REPLICAS, "at_least": 2},
    (
        TRUTH,
        "one is lost with its node, and two stay",
        of(hosting, lambda t: "node-2: 1, node-3: 1" if 15 <= t < 18 else "node-1: 1, node-2: 1, node-3: 1"),
    ),
    (
        LIE,
        "all three are lost with the node that they are on",
        of(hosting, lambda t: "" if 15 <= t < 18 else "node-1: 3"),
    ),
    (NOTHING, "two looks succeeded", of(hosting, hardly_looked)),
    (
        NOTHING,
        "two of three looks failed all the time",
        of(hosting, lambda t: None if t % 3 else "node-1: 1, node-2: 1, node-3: 1"),
    ),
    (
        NOTHING,
        "the load stopped looking half way through",
        lambda path: at_work(path, looks=False).series("web.running", 3.0, end=25, every=1.0),
    ),
    (NOTHING, "there were never that many", of(hosting, lambda _: "node-1: 1")),
)


def placements(path, **growing):
    """Each node's count of what was placed on it grows by that much a second while the fault is in force."""
    one = at_work(path, "nomad.node.black_hole")
    for host, rate in growing.items():
        counted = lambda t, rate=rate: 5 + rate * min(max(t - 10, 0), 20)  # noqa: E731 - one for each node
        one.series("nomad.allocs_placed", counted, host=host.replace("_", "-"))
    return one.build()


def mitigated(path, *, before, after):
    """What the node of the black hole gets a second, before a mitigation at 20 s and after; the others get 1 each."""
    one = at_work(path, "nomad.node.black_hole").fault("nomad.node.eligibility", "node-1", at=20, until=29)
    one.series(
        "nomad.allocs_placed",
        lambda t: before * min(max(t - 10, 0), 10) + after * min(max(t - 20, 0), 10),
        host="node-1",
    )
    for host in ("node-2", "node-3"):
        one.series("nomad.allocs_placed", lambda t: min(max(t - 10, 0), 20), host=host)
    return one


cases(
    "black_hole_is_avoided",
    {},
    (TRUTH, "it gets less than the others", of(placements, node_1=0.1, node_2=1, node_3=1), {"share_below": "33%"}),
    (LIE, "it swallows most of what is placed", of(placements, node_1=4, node_2=1, node_3=1), {"share_below": "33%"}),
    (
        TRUTH,
        "it swallows most, and nothing after the mitigation",
        of(mitigated, before=4, after=0),
        {"share_below": "10%", "mitigation": "nomad.node.eligibility"},
    ),
    (
        LIE,
        "it swallows most, and goes on after the mitigation",
        of(mitigated, before=4, after=4),
        {"share_below": "10%", "mitigation": "nomad.node.eligibility"},
    ),
    (
        NOTHING,
        "it got nothing before the mitigation either",
        of(mitigated, before=0, after=0),
        {"share_below": "10%", "mitigation": "nomad.node.eligibility"},
    ),
    (NOTHING, "next to nothing was placed", of(placements, node_1=0.0, node_2=0.1, node_3=0.1), {"share_below": "33%"}),
)


def planning(path, *, rejections=0.0, ineligible=0.0, sampled=True, leader="nomad-1"):
    """The telemetry of `nomad-1` alone is read; of the others the looks fail."""
    one = at_work(path, "nomad.node.black_hole").leader(leader, signal="nomad.leader")
    if sampled:
        one.series("nomad.plan_rejections", rejections, host="nomad-1")
        for second in range(4, 50, 2):
            one.sample("nomad.plan_rejections", None, at=second, host="nomad-2", ok=False)
    return one.series("nomad.nodes_ineligible", ineligible)


cases(
    "plans_are_not_rejected",
    {"fault": "nomad.node.black_hole"},
    (TRUTH, "the counter stays at 0", planning),
    (LIE, "plans are rejected for ten seconds", of(planning, rejections=lambda t: 3.0 if 15 <= t < 25 else 0.0)),
    (LIE, "the tracker makes a node ineligible", of(planning, ineligible=lambda t: float(t >= 20))),
    (NOTHING, "the leader's counter cannot be read", of(planning, leader="nomad-2")),
    (NOTHING, "nobody counts", of(planning, sampled=False)),
)


BUILDS = "builds"


def building(path, *, failed=0, restarts=0, ok=True):
    """Ten builds while a disk fails; the first three had `failed` downloads that failed, and `restarts`."""
    one = RecordingBuilder(path).fault("disk.error", "node-1", at=10, until=30)
    for n in range(10):
        hit = n < 3
        detail = Build("node-2", failed if hit else 0, restarts if hit else 0).detail()
        one.write(
            BUILDS,
            f"run-{n}",
            "built",
            start=11 + n,
            end=12 + n,
            detail=detail,
            outcome="ok" if ok or not hit else "fail",
        )
    return one


cases(
    "downloads_are_retried",
    {"load": BUILDS, "fault": "disk.error"},
    (TRUTH, "three downloads fail and are tried again", of(building, failed=1, restarts=1)),
    (TRUTH, "they are tried again, and in vain", of(building, failed=3, restarts=2, ok=False)),
    (LIE, "three downloads fail, and the builds with them", of(building, failed=1, ok=False)),
    (NOTHING, "no download fails, so nobody knows", building),
)


# work that Nomad acknowledged, and nodes that go away

BATCH = "batch"


def accounted(path, *states, seen=True, started=None, heard=()):
    """Dispatches that Nomad acknowledged, what the load saw of each at the end, and what the tasks said themselves."""
    one = RecordingBuilder(path).fault("nomad.node.disconnect", "node-1", at=10, until=30)
    for n, state in enumerate(states):
        one.write(BATCH, f"run-{n}", "dispatched", start=5 + n, end=5.1 + n)
        if seen:
            one.sample(f"{BATCH}.work", (started or {}).get(n, 1), at=50, text=f"run-{n} {state}")
    for n, (began, state) in enumerate(heard):
        one.sample(f"{BATCH}.witnessed", began, at=50, text=f"run-{n} {state}")
    return one


cases(
    "no_alloc_lost",
    {"load": BATCH},
    (TRUTH, "each has run, runs, waits or failed", of(accounted, "complete", "runs", "waits", "failed")),
    (TRUTH, "one started twice, and may", of(accounted, "complete", "complete", started={1: 2})),
    (LIE, "one started twice, and may not", of(accounted, "complete", "complete", started={1: 2}), {"once": True}),
    (LIE, "Nomad does not know one of them any more", of(accounted, "complete", "forgotten")),
    (LIE, "one ended without an allocation", of(accounted, "complete", "dropped")),
    (LIE, "one was lost with its node, and none came in its place", of(accounted, "lost", "complete")),
    (
        TRUTH,
        "Nomad forgot one that said that it ran to its end",
        of(accounted, "complete", "forgotten", heard=((1, "ended"), (1, "ended"))),
    ),
    (
        LIE,
        "Nomad forgot one that began and never ended",
        of(accounted, "complete", "forgotten", heard=((1, "ended"), (1, "began"))),
    ),
    (
        LIE,
        "one began twice, and Nomad knows of one start",
        of(accounted, "complete", "complete", heard=((1, "ended"), (2, "ended"))),
        {"once": True},
    ),
    (
        NOTHING,
        "one that may run only once has run, and nobody heard how often",
        of(accounted, "complete", "complete", heard=((1, "ended"), (0, "silent"))),
        {"once": True},
    ),
    (NOTHING, "nobody looked at the end", of(accounted, "complete", seen=False)),
    (
        NOTHING,
        "one of them was not looked at",
        lambda path: accounted(path, "complete", "complete").write(BATCH, "run-9", "dispatched", start=20, end=20.1),
    ),
)


def set_back(path, *, gone, restored=True):
    """A dispatch a second from 5 s on; saved at 10 s, restored at 20 s. `gone` are the numbers of those forgotten."""
    one = RecordingBuilder(path).fault("nomad.snapshot.save", "nomad-1", at=10, until=12, params={"name": "a"})
    one.fault("nomad.snapshot.restore", "nomad-1", at=20, until=25, proven=restored, params={"snapshot": "a"})
    for n in range(25):
        one.write(BATCH, f"run-{n}", "dispatched", start=5.5 + n, end=5.6 + n)
    return one.final_reads(BATCH, dict.fromkeys([f"run-{n}" for n in gone])).build()


SINCE = range(5, 15)


def churned(path, **finals):
    """A job is registered and stopped between save and restore; another one was registered before."""
    one = RecordingBuilder(path).fault("nomad.snapshot.save", "nomad-1", at=10, until=12, params={"name": "a"})
    one.fault("nomad.snapshot.restore", "nomad-1", at=20, until=25, params={"snapshot": "a"})
    for key, began in (("old/register", 8), ("new/register", 14), ("new/stop", 16)):
        one.write(BATCH, key, "done", start=began, end=began + 0.1)
    return one.final_reads(BATCH, {key.replace("_", "/"): value for key, value in finals.items()}).build()


cases(
    "no_work_lost_but_rolled_back",
    {"load": BATCH},
    (TRUTH, "all that came between is gone, and nothing else", of(set_back, gone=SINCE), {"at_most": 10}),
    (TRUTH, "a job that was rolled back as a whole reads as stopped", of(churned, new_register=None)),
    (LIE, "a job is there as it was stopped since", churned),
    (LIE, "one from before the snapshot is gone", of(set_back, gone=[2, *SINCE])),
    (LIE, "one from after the restore is gone", of(set_back, gone=[*SINCE, 20])),
    (LIE, "one that came between is there", of(set_back, gone=SINCE[1:])),
    (LIE, "more was rolled back than may be", of(set_back, gone=SINCE), {"at_most": 9}),
    (NOTHING, "nothing was proven to be restored", of(set_back, gone=SINCE, restored=False)),
)


NODES = ("node-1", "node-2", "node-3")


def nodes(path, *, away=(12.0, 32.0), shut=None, double_from=None):
    """Three nodes, of which node-1 is down, and ineligible, for these seconds; the fault lasts from 10 s to 30 s."""
    one = RecordingBuilder(path).fault("nomad.node.disconnect", "node-1", at=10, until=30)
    for tick in range(8, 100):
        at = tick / 2
        gone = ["node-1"] if away and away[0] <= at < away[1] else []
        out = ["node-1"] if shut and shut[0] <= at < shut[1] else []
        double = ["node-1"] if double_from is not None and at >= double_from else []
        named = (("ready", [name for name in NODES if name not in gone]), ("down", gone + double), ("ineligible", out))
        for what, names in named:
            one.sample(f"nomad.nodes_{what}", float(len(names)), at=at, text=", ".join(names))
    return one.build()


cases(
    "nodes_reappear",
    {"within": "5s"},
    (TRUTH, "it is ready again 2 s after the fault", nodes),
    (TRUTH, "two entries of one node are left, and may be", of(nodes, double_from=33), {"duplicates_at_most": 1}),
    (LIE, "it is ready again, and too late", of(nodes, away=(12, 40))),
    (LIE, "it never comes back", of(nodes, away=(12, 99))),
    (LIE, "it is ready in time, and goes away again", of(nodes, shut=(40, 45))),
    (LIE, "it is ready in time, and gets no work", of(nodes, shut=(12, 99))),
    (LIE, "it comes back as another node, and the old one stays", of(nodes, double_from=33)),
    (NOTHING, "no node went away", of(nodes, away=None)),
)


# durability


cases(
    "no_acknowledged_write_lost",
    {"load": LOAD},
    (TRUTH, "a store that keeps everything", lambda path: run(path).final_reads(LOAD)),
    (
        LIE,
        "one write of the fault is acknowledged and dropped",
        lambda path: run(path).final_reads(LOAD, {f"{LOAD}/500": None}),
    ),
    (
        LIE,
        "the write that was acknowledged last before a fault without any answer",
        lambda path: run(path, outcome=lambda t: "unknown" if 10 <= t < 30 else "ok").final_reads(
            LOAD, {f"{LOAD}/299": None}
        ),
    ),
    (
        LIE,
        "a refused write is there",
        lambda path: run(path, outcome=failing(12, 13)).final_reads(LOAD, {f"{LOAD}/410": f"{LOAD}-410"}),
    ),
)


def reset(path):
    game = ordinary(Game(path))
    return game.recording()


cases(
    "no_write_lost_but_rolled_back",
    {"load": RESET_LOAD},
    (TRUTH, "a reset takes what came after the snapshot, and nothing else", reset, {"snapshot": "before"}),
    (
        LIE,
        "a write after the restore is gone",
        lambda path: (
            ordinary(Game(path))
            .write("b", "w0", 11, 11.1)
            .write("b", "w1", 23, 23.1)
            .holds("b", "w0", "w0", "w0")
            .recording()
        ),
    ),
    (
        LIE,
        "a rolled-back write comes back",
        lambda path: ordinary(Game(path)).write("b", "w0", 17, 17.1).holds("b", None, None, "w0").recording(),
    ),
)

cases(
    "cas_does_not_cross_reset",
    {"load": RESET_LOAD},
    (
        TRUTH,
        "an index from before the reset is refused",
        lambda path: cas_recording(Game(path), (23, step("miss", "w2", 30, "w1"))),
    ),
    (
        LIE,
        "an index from before the reset succeeds on what was rolled back",
        lambda path: cas_recording(Game(path), (23, step("cas", "w2", 30, "w1"))),
    ),
)


def registers(path, *steps):
    builder = RecordingBuilder(path).fault("process.pause", "consul-1", at=10, until=20)
    for each, start in steps:
        builder.write(
            "registers",
            "hashidrill/registers/r/0",
            each.value or "",
            start=start,
            end=start + 0.1,
            detail=each.detail(),
        )
    return builder


cases(
    "linearizable",
    {"load": "registers"},
    (
        TRUTH,
        "every read sees the write before it",
        of(
            registers,
            (Step("write", "r.0"), 11),
            (Step("read", "r.0", 5), 12),
            (Step("write", "r.1"), 13),
            (Step("read", "r.1", 6), 14),
        ),
    ),
    (
        LIE,
        "a stale read after the write was acknowledged",
        of(registers, (Step("write", "r.0"), 11), (Step("write", "r.1"), 13), (Step("read", "r.0", 5), 14)),
    ),
)


def locked(path, *acts):
    builder = RecordingBuilder(path).fault("disk.latency", "consul-1", at=10, until=30)
    first = [("session", "A", 4), ("session", "B", 4), ("claim", "A", 9), ("refused", "B", 9.5)]
    for op, session, start in (*first, *acts, ("refused", "B", 40)):
        action = Action(op, f"leases/{session}", session, **({"ttl_s": 10.0} if op == "session" else {}))
        builder.write("leases", "hashidrill/leases/0", "", start=start, end=start + 0.1, detail=action.detail())
    return builder


cases(
    "no_two_lock_holders",
    {"load": "leases"},
    (
        TRUTH,
        "the second one has the lock after the lease of the first ran out",
        of(locked, ("renew", "B", 13), ("claim", "B", 16)),
    ),
    (
        LIE,
        "the second one has the lock within the lease of the first",
        of(locked, ("renew", "B", 11), ("claim", "B", 12)),
    ),
)


def shed(path, renewals, claims):
    builder = RecordingBuilder(path).fault("disk.latency", "consul-1", at=10, until=30)
    for n in range(40):
        for op, ok in (("renew", n < renewals), ("claim", n < claims)):
            action = Action(op, f"leases/{n}", f"s{n}")
            start, outcome = 11 + n * 0.4, "ok" if ok else "fail"
            builder.write("leases", f"k{n}", "", start=start, end=start + 0.1, outcome=outcome, detail=action.detail())
    return builder


cases(
    "renewals_before_claims",
    {"load": "leases"},
    (TRUTH, "claims are shed, renewals are not", of(shed, 40, 10)),
    (LIE, "both are shed alike", of(shed, 10, 10)),
)


# recovery, availability, health


cases(
    "writes_recover",
    {"load": LOAD, "within": "5s"},
    (TRUTH, "slow during the fault, quick after it", lambda path: run(path, latency=slow(10, 29)).healthy()),
    (LIE, "slow for 8 s after the fault", lambda path: run(path, latency=slow(10, 38)).healthy()),
    (LIE, "quick errors after the fault", lambda path: run(path, outcome=failing(30, 50)).healthy()),
)

cases(
    "reads_recover",
    {"load": LOAD, "within": "5s"},
    (TRUTH, "slow during the fault, quick after it", lambda path: run(path, latency=slow(10, 29)).healthy()),
    (LIE, "a relapse 15 s after the fault", lambda path: run(path, latency=slow(45, 50)).healthy()),
)

cases(
    "available_during",
    {"load": LOAD},
    (TRUTH, "every operation is acknowledged", run),
    (LIE, "2 % of the fault's operations fail", of(run, outcome=lambda t: "fail" if 15 <= t < 15.4 else "ok")),
)

cases(
    "latency_stays",
    {"load": LOAD},
    (TRUTH, "quick all the time", run),
    (LIE, "slow for 4 s of the fault", of(run, latency=slow(15, 19))),
)


cases(
    "green_but_sick",
    {"load": LOAD},
    (TRUTH, "slow writes, every check green", lambda path: run(path, "disk.latency", latency=slow(10, 30)).healthy()),
    (
        LIE,
        "slow writes, and autopilot says so",
        lambda path: run(path, "disk.latency", latency=slow(10, 30)).healthy(
            autopilot=lambda t: 0.0 if 10 <= t < 30 else 1.0
        ),
    ),
    (LIE, "writes were never slow", lambda path: run(path, "disk.latency").healthy()),
)

cases(
    "checks_keep_interval",
    {"load": LOAD},
    (TRUTH, "every check within 10 ms", run),
    (
        LIE,
        "90 of 100 checks never fired",
        lambda path: run(path, keys=10).series(f"{LOAD}.registered", 100.0, every=1.0),
    ),
    (TRUTH, "all of 100 checks fired", lambda path: run(path, keys=100).series(f"{LOAD}.registered", 100.0, every=1.0)),
    (LIE, "checks slip by 400 ms during the fault", of(run, latency=lambda t: 0.4 if 10 <= t < 30 else 0.004)),
)


# leadership


def led(path, leader, term=None, **load):
    return run(path, **load).leader(leader, term=term)


def again(at_s, silent_s=99.0):
    """The terms of a leader that was elected again then, and that nobody saw gone; it said nothing since `silent_s`."""
    return lambda t: 3 if t >= at_s else None if t >= silent_s else 2


def moved(lost, found, to="consul-2"):
    return lambda t: "consul-1" if t < lost else "" if t < found else to


cases(
    "leader_elected",
    {"within": "4s"},
    (TRUTH, "another leader after 2 s", of(led, moved(11, 13))),
    (LIE, "another leader after 8 s", of(led, moved(11, 19))),
    (TRUTH, "the same leader in a new term after 3 s, never seen gone", of(led, "consul-1", again(13, 10))),
    (LIE, "the same leader in a new term after 8 s, never seen gone", of(led, "consul-1", again(18, 10))),
    (NOTHING, "one leader all the time, whose term was never heard", of(led, "consul-1", lambda _: None)),
)


def active(path, server):
    return run(path).leader(server, signal="vault.active")


cases(
    "vault_serves_within",
    {"within": "4s"},
    (TRUTH, "a standby takes over after 2 s", of(active, moved(11, 13))),
    (LIE, "a standby takes over after 8 s", of(active, moved(11, 19))),
)

cases(
    "vault_has_one_active",
    {"grace": "2s"},
    (TRUTH, "another server after 1 s", of(active, moved(15, 16))),
    (LIE, "5 s with two active servers, or none", of(active, moved(15, 20))),
)


def slow_vault(path, server="vault-1", sealed=0.0, since=10):
    told = run(path, "disk.latency", latency=slow(since, 30)).leader(server, signal="vault.active")
    return told.series("vault.sealed", 0.0, host="vault-1").series("vault.sealed", sealed, host="vault-2")


cases(
    "vault_green_but_sick",
    {"load": LOAD},
    (TRUTH, "slow writes, unsealed and active", slow_vault),
    (LIE, "slow writes, and a server that is sealed", of(slow_vault, sealed=lambda t: float(10 <= t < 30))),
    (LIE, "slow writes, and nobody is active", of(slow_vault, moved(10, 30))),
    (LIE, "writes were never slow", of(slow_vault, since=31)),
    (NOTHING, "nobody asked the servers", of(run, "disk.latency", latency=slow(10, 30))),
)

cases(
    "no_secret_lost",
    {"load": SECRETS},
    (TRUTH, "a Vault that keeps everything", secrets),
    (LIE, "one secret of the fault is acknowledged and dropped", of(secrets, gone=[at(12)])),
    (LIE, "a secret is read from memory, and its storage lost it", of(secrets, gone=[at(12)], unlisted=1)),
    (NOTHING, "nobody had the storage list what it holds", of(secrets, unlisted=None)),
    (
        TRUTH,
        "a restore takes what came after the snapshot, and nothing else",
        of(secrets, reset=True, gone=range(at(13), at(20))),
        {"snapshot": "before", "rolled_back_at_least": 10},
    ),
    (
        LIE,
        "a restore takes a secret from before the snapshot",
        of(secrets, reset=True, gone=[at(8), *range(at(13), at(20))]),
        {"snapshot": "before"},
    ),
    (
        LIE,
        "a secret from after the restore of the Consul beneath is gone",
        of(secrets, reset=True, on="consul", gone=[*range(at(13), at(20)), at(23)]),
        {"snapshot": "before"},
    ),
    (
        NOTHING,
        "a restore that takes nothing back shows nothing",
        of(secrets, reset=True),
        {"snapshot": "before", "rolled_back_at_least": 10},
    ),
)

cases(
    "no_lease_lost",
    {"load": LEASES},
    (TRUTH, "a Vault that keeps every lease, and revokes what it is told to", leases),
    (LIE, "one lease is granted and forgotten", of(leases, gone=[at(12)])),
    (LIE, "a token is known from memory, and its storage lost it", of(leases, gone=[at(12)], unlisted=1)),
    (NOTHING, "nobody had the storage list the tokens", of(leases, unlisted=None)),
    (LIE, "a lease expires before its time", of(leases, gone=[at(45)], ttl_s=20)),
    (LIE, "a token that was revoked is valid again", of(leases, valid=[at(12) + 1])),
    (NOTHING, "all leases ran out before they were looked up", of(leases, gone=range(0, at(50), 2), ttl_s=0.5)),
    (
        NOTHING,
        "those of the fault were never looked up",
        of(leases, unread=[f"{LEASES}/{n}" for n in range(at(10), at(30))]),
    ),
    (
        TRUTH,
        "a restore takes leases from after the snapshot, and revocations too",
        of(leases, reset=True, gone=range(at(13), at(18), 2), valid=[at(12) + 4]),
        {"snapshot": "before", "rolled_back_at_least": 10},
    ),
    (
        LIE,
        "a restore takes a lease from before the snapshot",
        of(leases, reset=True, gone=[at(8), *range(at(13), at(18))]),
        {"snapshot": "before"},
    ),
)

cases(
    "leadership_leaves",
    {"fault": "process.kill", "within": "10s"},
    (TRUTH, "the faulted leader is deposed", of(led, moved(14, 15))),
    (LIE, "the faulted leader leads on", of(led, "consul-1")),
)

cases(
    "leadership_stays",
    {},
    (TRUTH, "one leader all the time", of(led, "consul-1")),
    (LIE, "another leader for a while", of(led, lambda t: "consul-2" if 20 <= t < 23 else "consul-1")),
    (LIE, "the same leader in a new term, never seen gone", of(led, "consul-1", again(20))),
    (NOTHING, "one leader all the time, whose term was never heard", of(led, "consul-1", lambda _: None)),
)


def _rotating(t):
    return "consul-1" if t < 12 else f"consul-{int(t // 4) % 3 + 1}"


cases(
    "survives_leader_changes",
    {"load": LOAD},
    (TRUTH, "five changes, no stall", of(led, _rotating)),
    (LIE, "nothing is acknowledged for 7 s between them", of(led, _rotating, outcome=failing(20, 27))),
    (
        LIE,
        "each write takes 3 s for 7 s: a stall that heartbeats hide",
        of(led, _rotating, latency=slow(20, 27)),
        {"served_within": "300ms"},
    ),
    (TRUTH, "the same, where slow acknowledgements count", of(led, _rotating, latency=slow(20, 27))),
)


# measures, overload


def measured(path, latency):
    builder = RecordingBuilder(path).fault("noop", at=10, until=40)
    builder.fault("consul.config", "client-1", at=14, until=24, name="measure")
    return builder.load(LOAD, latency=latency)


cases(
    "helps",
    {"load": LOAD, "fault": "measure"},
    (TRUTH, "sick before, well at its end", of(measured, lambda t: 2.0 if t < 16 else 0.02)),
    (LIE, "sick before and at its end", of(measured, lambda _: 2.0)),
)


def cured(path):
    return measured(path, lambda t: 2.0 if t < 16 else 0.02)


def not_enough(path):
    return measured(path, lambda t: 5.35 if t < 16 else 0.634)


cases(
    "does_not_help",
    {"load": LOAD, "fault": "measure"},
    (TRUTH, "sick before and at its end", of(measured, lambda _: 2.0)),
    (LIE, "sick before, well at its end", cured),
    (LIE, "sick before and at its end, and eight times faster", not_enough),
)

cases(
    "stays_sick",
    {"load": LOAD, "fault": "measure"},
    (TRUTH, "sick before and at its end, and eight times faster", not_enough),
    (LIE, "sick before, well at its end", cured),
)

cases(
    "makes_sick",
    {"load": LOAD, "fault": "measure"},
    (TRUTH, "well before, sick at its end", of(measured, lambda t: 0.02 if t < 16 else 2.0)),
    (LIE, "well before and at its end", of(measured, lambda _: 0.02)),
)


def spiked(path, status, outcome, latency):
    in_spike = lambda t: 12 <= t < 22  # noqa: E731 - when the load is at 500 %
    built = Spiked(path).fault("noop", at=10, until=30)
    built.load(
        LOAD, outcome=lambda t: outcome if in_spike(t) else "ok", latency=lambda t: latency if in_spike(t) else 0.01
    )
    return built.status(status, "too much", in_spike)


cases(
    "load_is_shed",
    {"load": LOAD},
    (TRUTH, "what is too much is answered 429 at once", of(spiked, 429, "fail", 0.005)),
    (LIE, "what is too much times out", of(spiked, 0, "unknown", 10.0)),
)


def piped(path, *, indexed, shed, unknown=0, final=True):
    """A hundred batches of logs, acknowledged but for the first `unknown`; what the pipeline counted at the end."""
    built = RecordingBuilder(path).mark("burst", at=12, until=24)
    built.load(LOAD, rate=2.5, start=5, end=45, outcome=lambda at: "unknown" if at < 5 + unknown / 2.5 else "ok")
    for what, count in (("indexed", indexed), ("shed", shed)):
        built.sample(f"{LOAD}.{what}", 0.0, at=5).sample(f"{LOAD}.{what}", count, at=51, ok=count is not None)
    return built.final_reads(LOAD) if final else built


cases(
    "shed_is_counted",
    {"load": LOAD},
    (TRUTH, "forty are lacking, and forty were counted", of(piped, indexed=60, shed=40)),
    (TRUTH, "one of two whose outcome is unknown was shed", of(piped, indexed=60, shed=39, unknown=2)),
    (LIE, "one that is lacking was not counted", of(piped, indexed=60, shed=39)),
    (LIE, "one was counted that is in search", of(piped, indexed=60, shed=41)),
    (LIE, "more were counted than the unknown ones explain", of(piped, indexed=60, shed=41, unknown=2)),
    (LIE, "all that buffers dropped was counted by no one", of(piped, indexed=60, shed=0)),
    (NOTHING, "nothing was shed", of(piped, indexed=100, shed=0)),
    (NOTHING, "the last count failed", of(piped, indexed=60, shed=None)),
    (NOTHING, "queues were not empty when the run ended", of(piped, indexed=60, shed=40, final=False)),
)


def overloaded(path, back_at):
    built = Spiked(path).fault("noop", at=10, until=30).load(LOAD, outcome=failing(12, back_at))
    for name in ("process.rss", "process.cpu"):
        for host in built.hosts:
            built.series(name, 1.0, host=host)
    return built


cases(
    "recovers_without_restart",
    {"load": LOAD, "within": "5s"},
    (TRUTH, "goodput is back 1 s after the overload", of(overloaded, 23)),
    (LIE, "goodput is back 12 s after the overload", of(overloaded, 34)),
)


# let back in


def let_in(path, *levels, sick=(0, 0), every=2.0):
    """Shut out at 12 s, and then at one level after the other; the fault is over at 15 s."""
    built = RecordingBuilder(path).fault("process.kill", at=10, until=15).load(LOAD, latency=slow(*sick))
    built.sample(f"{LOAD}.level", 1.0, at=4)
    for n, level in enumerate((0.0, *levels)):
        built.sample(f"{LOAD}.level", level, at=12 + n * every)
    return built


cases(
    "returns_in_steps",
    {"load": LOAD, "within": "25s"},
    (TRUTH, "a quarter at a time", of(let_in, 0.25, 0.5, 0.75, 1.0), {"step": "25%"}),
    (
        TRUTH,
        "with a step back while it was sick",
        of(let_in, 0.25, 0.5, 0.25, 0.5, 0.75, 1.0, sick=(16, 18)),
        {"step": "25%"},
    ),
    (LIE, "all at once", of(let_in, 0.25, 1.0), {"step": "25%"}),
    (LIE, "further in while it was sick", of(let_in, 0.25, 0.5, 0.75, 1.0, sick=(16, 18)), {"step": "25%"}),
    (LIE, "it never came all the way", of(let_in, 0.25, 0.5, 0.75), {"step": "25%"}),
    (LIE, "it came all the way and went back", of(let_in, 0.25, 0.5, 0.75, 1.0, 0.75), {"step": "25%"}),
    (LIE, "too late", of(let_in, 0.25, 0.5, 0.75, 1.0, every=7.5), {"step": "25%"}),
    (
        NOTHING,
        "it was never shut out",
        lambda path: (
            RecordingBuilder(path).fault("process.kill", at=10, until=15).load(LOAD).sample(f"{LOAD}.level", 1.0, at=4)
        ),
    ),
)


# a pool of workers


def burst(path, *, p50=3.0, cores=0.1, before=0.01, samples=True):
    """From 10 s to 30 s more is asked of consul-1 than before."""
    built = RecordingBuilder(path).mark("burst", at=10, until=30)
    built.load(LOAD, latency=lambda t: p50 if 10 <= t < 30 else before)
    if samples:
        built.series("process.cpu", cores, host="consul-1").series("process.cpu", 1.9, host="consul-2")
    return built


cases(
    "starved_while_idle",
    {"load": LOAD, "host": "consul-1", "fault": "burst"},
    (TRUTH, "requests wait for 3 s, and the host is idle", burst),
    (LIE, "nothing waits", of(burst, p50=0.02)),
    (LIE, "the host is busy: it is the CPU that is short", of(burst, cores=0.95)),
    (NOTHING, "it was as slow before", of(burst, before=3.0)),
    (NOTHING, "nobody looked at its CPU", of(burst, samples=False)),
)


# streaming, state


cases(
    "streaming_no_worse_than_long_poll",
    {"load": LOAD, "steps_of": "views"},
    (
        TRUTH,
        "streaming bears every level, long polls do not",
        of(stepped, lambda level: 0.01 * level, lambda level: 0.1 * level**2),
    ),
    (
        LIE,
        "streaming breaks at a level that long polls bear",
        of(stepped, lambda level: 0.1 * level**2, lambda level: 0.01 * level),
    ),
    (
        NOTHING,
        "nobody counted how many views were open",
        of(stepped, lambda level: 0.01 * level, lambda level: 0.1 * level**2, opened=None),
    ),
)


cases(
    "watchers_converge",
    {"load": "watch", "within": "5s"},
    (TRUTH, "every watcher is told within 2 s", of(watched, sees=lambda n: 30 + n / 10)),
    (LIE, "one of 20 watchers is never told", of(watched, sees=lambda n: None if n == 7 else 31.0)),
)

cases(
    "write_amplification_below",
    {"times": 2.0},
    (TRUTH, "bloated for the fault only, judged after it", of(bloated, 50)),
    (LIE, "50 times the bytes for each commit", of(bloated, 50), {"since": "start"}),
)


def commits(path, value):
    builder = RecordingBuilder(path).fault("consul.raft.bloat", at=10, until=28).load(LOAD)
    return builder.series("raft.commit_time", value, host="consul-1", every=1)


def hardly_any_commit(path):
    one = run(path)
    for n in range(15):
        good = n == 14
        one.sample("raft.commit_time", 0.005 if good else None, at=20 + 2 * n, host="consul-1", ok=good)
    return one


cases(
    "raft_commit_below",
    {},
    (TRUTH, "quick again after the fault", of(commits, lambda t: 0.5 if 10 <= t < 30 else 0.005), {"below": "50ms"}),
    (
        NOTHING,
        "one sample of fifteen is good, the other looks failed",
        hardly_any_commit,
        {"below": "100ms", "within": "0s"},
    ),
    (LIE, "slow 20 s after the fault as well", of(commits, lambda t: 0.5 if t >= 10 else 0.005), {"below": "50ms"}),
)


# profiles


def two_profiled(path, *, leader_is_sick):
    """One server names the function, the other one is as busy with something else; consul-1 leads."""
    sick, other = SICK, {OTHER: 200}
    one, two = (sick, other) if leader_is_sick else (other, sick)
    run = Profiled(path)
    for host, stacks in (("consul-1", one), ("consul-2", two)):
        run.profile(HEALTHY, at=6, host=host).profile(stacks, at=15, host=host)
    return run


cases(
    "profile_names",
    {"function": r"stream\.\(\*Subscription\)\.Next$"},
    (TRUTH, "two thirds of a busy CPU, 100 times as much as when healthy", profiled),
    (
        TRUTH,
        "its host's clock is an hour behind",
        of(profiled, *(encoded(stacks, at=at, skew_s=-3600) for stacks, at in ((SICK, 15), (HEALTHY, 6)))),
    ),
    (
        TRUTH,
        "goroutines that wait in it",
        of(profiled, {OTHER: 30, STREAM: 6000}, kind="goroutine"),
        {"kind": "goroutine"},
    ),
    (TRUTH, "the leader's names it", of(two_profiled, leader_is_sick=True), {"host": "leader"}),
    (TRUTH, "the freelist of another leader", of(profiled, {OTHER: 60, RAFT: 90}), {"function": "freelist"}),
    (LIE, "the CPU is as busy with something else", of(profiled, {OTHER: 260, STREAM: 2})),
    (LIE, "it has not grown: it always takes that much", of(profiled, SICK, SICK)),
    (
        LIE,
        "another function of that name's begin has grown",
        of(profiled, {OTHER: 60, (*STREAM[:1], "x/stream.(*Subscription).NextStep"): 200}),
    ),
    (LIE, "only a follower's names it", of(two_profiled, leader_is_sick=False), {"host": "leader"}),
    (
        LIE,
        "many more goroutines, but not there",
        of(profiled, {OTHER: 6000, STREAM: 6}, kind="goroutine"),
        {"kind": "goroutine"},
    ),
    (
        NOTHING,
        "it is of another host than the one asked for",
        of(profiled, sick_host="consul-2", healthy_host="consul-2"),
        {"host": "consul-1"},
    ),
    (NOTHING, "the healthy one is of another host", of(profiled, healthy_host="consul-2")),
    (NOTHING, "it was taken before the fault", of(profiled, at=7, why="always")),
    (NOTHING, "it was taken after the fault", of(profiled, at=40)),
    (NOTHING, "the fault began while it was taken", of(profiled, at=8.5, why="always")),
    (NOTHING, "the healthy one was taken under the fault", of(profiled, before=12, why="steady state")),
    (NOTHING, "the file is one from before the fault", of(profiled, encoded(SICK, at=6))),
    (NOTHING, "the file is of another day", of(profiled, encoded(SICK, at=86400))),
    (NOTHING, "its gzip is truncated", of(profiled, encoded(SICK, at=15)[:-9])),
    (NOTHING, "it has no bytes", of(profiled, b"")),
    (NOTHING, "it has no samples", of(profiled, {})),
    (NOTHING, "the healthy one has no samples", of(profiled, healthy={})),
    (NOTHING, "it is HTML", of(profiled, b"<html>not found</html>")),
    (NOTHING, "it does not say how long it took", of(profiled, encoded(SICK, at=15, length_s=0))),
    (NOTHING, "an idle server: 29 samples", of(profiled, {STREAM: 29})),
    (NOTHING, "there is none", lambda path: Profiled(path)),  # noqa: PLW0108 - as the others
)


# clients


def two_clients(path, worse):
    builder = RecordingBuilder(path).fault("tap.fail", at=10, until=30)
    builder.load("good").load("bad", outcome=failing(10, 30) if worse else "ok")
    return builder


cases(
    "contrast",
    {"of": "available_during", "good": "good", "bad": "bad"},
    (TRUTH, "the good client is available, the bad one is not", of(two_clients, worse=True)),
    (LIE, "both are available", of(two_clients, worse=False)),
)


def _of_a_client(name, client_of, path):
    did, params = client_of(name, Client(path))
    return did.builder.build(), {"client": "app", **params}


def syncing(path, *, attempts=4, finished=1):
    """Two operations a second of four attempts each; in the fault of so many, and one in `finished` succeeds."""
    client = Client(path)
    for n in range(2 * 4, 2 * 40):
        hit = 10 <= n / 2 < 30
        ok = not hit or n % finished == 0
        last = PASSED if ok else FAILED
        each = range(attempts if hit else 4)
        client.operation(n / 2, *((0.1 * at, PASSED if at < each[-1] else last) for at in each), ok=ok)
    return client.builder


cases(
    "progress_stays",
    {"client": "app"},
    (TRUTH, "all that was begun is finished, at more attempts", of(syncing, attempts=5)),
    (TRUTH, "one in three is finished, and 30 % is asked", of(syncing, finished=3), {"finished": "30%"}),
    (LIE, "as many attempts as before, and one in ten is finished", of(syncing, finished=10)),
    (LIE, "more attempts than before, and one in three is finished", of(syncing, attempts=5, finished=3)),
    (NOTHING, "a quarter of the attempts: it was not busy", of(syncing, attempts=1, finished=10)),
)


for _name in VERDICTS:
    CASES[_name] = [
        (TRUTH, "the good client of test_retry_hypotheses", partial(_of_a_client, _name, good)),
        (LIE, "the bad client of test_retry_hypotheses", partial(_of_a_client, _name, bad)),
    ]
