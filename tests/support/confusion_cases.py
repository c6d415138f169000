"""For every shipped hypothesis at least one run of which it is true and one of which it is a lie.

A case is a function of a folder that returns a recording and the parameters. What is planted as a lie is what the
hypothesis is there to catch, and not just any break.
"""

from __future__ import annotations

from confusion import LIE, NOTHING, TRUTH
from hashidrill.core.tap.catalogue import VERDICTS
from hashidrill.products.consul.loads.cas import Step
from hashidrill.products.consul.loads.contender import Action
from hashidrill.products.nomad.loads.artifacts import Build
from hashidrill.products.nomad.loads.starts import Start
from hashidrill.testing.recordings import RecordingBuilder
from reset_runs import LOAD as RESET_LOAD
from reset_runs import Game, bloated, cas_recording, ordinary, step
from retry_recordings import Client, bad, good
from spiked_runs import Spiked
from streaming_runs import stepped, watched
from vault_runs import LEASES, SECRETS, at, leases, secrets

LOAD = "kv-writes"
CASES = {}
"""Name of a hypothesis -> [(what is planted, in words, the case)]."""


def case(name, planted, words):
    def add(function):
        CASES.setdefault(name, []).append((planted, words, function))
        return function

    return add


def run(path, kind="process.kill", *, at=10, until=30, **load):
    """A run with one fault and, unless told otherwise, a load that goes well."""
    return RecordingBuilder(path).fault(kind, "consul-1", at=at, until=until).load(LOAD, **load)


def slow(since, until):
    return lambda t: 3.0 if since <= t < until else 0.01


def failing(since, until):
    return lambda t: "fail" if since <= t < until else "ok"


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


@case("cold_start_within", TRUTH, "all run in time")
def started(path):
    return at_work(path).build(), {"load": REPLICAS, "limit": "5s"}


@case("cold_start_within", LIE, "all run, and too late")
def started_late(path):
    return at_work(path, started=8).build(), {"load": REPLICAS, "limit": "5s"}


@case("cold_start_within", LIE, "one of them never runs")
def one_never_started(path):
    return at_work(path, missing=1).build(), {"load": REPLICAS, "limit": "5s"}


@case("cold_start_within", LIE, "the details say that each part was quick")
def details_that_lie(path):
    """The parts are a measure: what decides is when the servers knew the last replica to run."""
    one = RecordingBuilder(path).fault("noop", "node-1", at=10, until=30)
    detail = Start(again_s=0, evaluation_s=0.1, plan_s=0.1, start_s=0.1).detail()
    one.write(REPLICAS, "web.group[0]", "node-1", start=4, end=13, detail=detail)
    return one.build(), {"load": REPLICAS, "limit": "5s"}


@case("replicas_return", TRUTH, "two go away and are replaced in time")
def replaced(path):
    return at_work(path, came_back=(2, 3)).build(), {"load": REPLICAS, "within": "5s", "lost_at_least": 2}


@case("replicas_return", TRUTH, "none goes away")
def none_lost(path):
    return at_work(path).build(), {"load": REPLICAS, "within": "5s"}


@case("replicas_return", NOTHING, "none goes away, and from the fault on every look fails")
def none_lost_unseen(path):
    return at_work(path, blind=(11, 50)).build(), {"load": REPLICAS, "within": "5s"}


@case("replicas_return", NOTHING, "two come back in time, and looks fail for longer than a replica may be away")
def replaced_unseen(path):
    return at_work(path, came_back=(2, 3), blind=(20, 28)).build(), {"load": REPLICAS, "within": "5s"}


@case("replicas_return", LIE, "one comes back late")
def replaced_late(path):
    return at_work(path, came_back=(2, 9)).build(), {"load": REPLICAS, "within": "5s"}


@case("replicas_return", LIE, "one never comes back")
def never_replaced(path):
    return at_work(path, came_back=(2, None)).build(), {"load": REPLICAS, "within": "5s"}


@case("replicas_return", NOTHING, "the fault was to take two away, and took one")
def too_few_lost(path):
    return at_work(path, came_back=(2,)).build(), {"load": REPLICAS, "within": "5s", "lost_at_least": 2}


@case("replicas_return", NOTHING, "one never ran to begin with")
def not_whole(path):
    return at_work(path, missing=1).build(), {"load": REPLICAS, "within": "5s"}


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


@case("services_agree", TRUTH, "two go wrong and are right in time")
def righted(path):
    return registered(path, wrong=[("missing", 1), ("stale", 4)]).build(), {**SERVICES_AGREE, "wrong_at_least": 2}


@case("services_agree", TRUTH, "none goes wrong")
def none_wrong(path):
    return registered(path).build(), SERVICES_AGREE


@case("services_agree", LIE, "an entry that nothing runs behind stays for too long")
def stale_for_long(path):
    return registered(path, wrong=[("missing", 1), ("stale", 20)]).build(), SERVICES_AGREE


@case("services_agree", LIE, "an instance that runs is never registered again")
def missing_for_ever(path):
    return registered(path, wrong=[("missing", None)]).build(), SERVICES_AGREE


@case("services_agree", LIE, "one allocation is registered twice")
def registered_twice(path):
    return registered(path, wrong=[("duplicate", None)]).build(), SERVICES_AGREE


@case("services_agree", NOTHING, "nobody could compare at the end")
def not_compared(path):
    return registered(path, blind_from=35).build(), SERVICES_AGREE


@case("services_agree", NOTHING, "none goes wrong, and nobody could compare for twenty seconds")
def not_compared_for_long(path):
    return registered(path, blind_from=12, blind_until=32).build(), SERVICES_AGREE


@case("services_agree", NOTHING, "the fault was to put one wrong, and put none")
def nothing_went_wrong(path):
    return registered(path).build(), {**SERVICES_AGREE, "wrong_at_least": 1}


@case("services_agree", NOTHING, "one was never registered to begin with")
def never_registered(path):
    return registered(path, never=1).build(), SERVICES_AGREE


def hosted(path, texts):
    """Where three replicas run, from the beginning and from 20 s on."""
    return hosting(path, lambda t: texts[t >= 20]), {"load": REPLICAS}


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


@case("replicas_on_distinct_hosts", TRUTH, "one on each node, also after one has moved")
def apart(path):
    return hosted(path, ("node-1: 1, node-2: 1, node-3: 1", "node-2: 1, node-3: 1, node-4: 1"))


@case("replicas_on_distinct_hosts", LIE, "all on one node from the beginning")
def together(path):
    return hosted(path, ("node-1: 3", "node-1: 3"))


@case("replicas_on_distinct_hosts", LIE, "they come together when a node is lost")
def came_together(path):
    return hosted(path, ("node-1: 1, node-2: 1, node-3: 1", "node-2: 2, node-3: 1"))


@case("replicas_on_distinct_hosts", NOTHING, "two looks succeeded")
def apart_unseen(path):
    return hosting(path, hardly_looked), {"load": REPLICAS}


@case("replicas_on_distinct_hosts", NOTHING, "there is one replica")
def alone(path):
    return hosting(path, lambda _: "node-1: 1"), {"load": REPLICAS}


@case("replicas_stay", TRUTH, "one is lost with its node, and two stay")
def two_stay(path):
    lost = lambda t: "node-2: 1, node-3: 1" if 15 <= t < 18 else "node-1: 1, node-2: 1, node-3: 1"  # noqa: E731
    return hosting(path, lost), {"load": REPLICAS, "at_least": 2}


@case("replicas_stay", LIE, "all three are lost with the node that they are on")
def none_stays(path):
    return hosting(path, lambda t: "" if 15 <= t < 18 else "node-1: 3"), {"load": REPLICAS, "at_least": 2}


@case("replicas_stay", NOTHING, "two looks succeeded")
def stay_unseen(path):
    return hosting(path, hardly_looked), {"load": REPLICAS, "at_least": 2}


@case("replicas_stay", NOTHING, "two of three looks failed all the time")
def stay_hardly_seen(path):
    seen = lambda t: None if t % 3 else "node-1: 1, node-2: 1, node-3: 1"  # noqa: E731
    return hosting(path, seen), {"load": REPLICAS, "at_least": 2}


@case("replicas_stay", NOTHING, "the load stopped looking half way through")
def stay_not_looked(path):
    one = at_work(path, looks=False).series("web.running", 3.0, end=25, every=1.0)
    return one.build(), {"load": REPLICAS, "at_least": 2}


@case("replicas_stay", NOTHING, "there were never that many")
def never_that_many(path):
    return hosting(path, lambda _: "node-1: 1"), {"load": REPLICAS, "at_least": 2}


def placements(path, **growing):
    """Each node's count of what was placed on it grows by that much a second while the fault is in force."""
    one = at_work(path, "nomad.node.black_hole")
    for host, rate in growing.items():
        counted = lambda t, rate=rate: 5 + rate * min(max(t - 10, 0), 20)  # noqa: E731 - one for each node
        one.series("nomad.allocs_placed", counted, host=host.replace("_", "-"))
    return one.build()


@case("black_hole_is_avoided", TRUTH, "it gets less than the others")
def avoided(path):
    return placements(path, node_1=0.1, node_2=1, node_3=1), {"share_below": "33%"}


@case("black_hole_is_avoided", LIE, "it swallows most of what is placed")
def swallowed(path):
    return placements(path, node_1=4, node_2=1, node_3=1), {"share_below": "33%"}


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
    return one.build(), {"share_below": "10%", "mitigation": "nomad.node.eligibility"}


@case("black_hole_is_avoided", TRUTH, "it swallows most, and nothing after the mitigation")
def ineligible_helped(path):
    return mitigated(path, before=4, after=0)


@case("black_hole_is_avoided", LIE, "it swallows most, and goes on after the mitigation")
def ineligible_did_not_help(path):
    return mitigated(path, before=4, after=4)


@case("black_hole_is_avoided", NOTHING, "it got nothing before the mitigation either")
def nothing_to_help(path):
    return mitigated(path, before=0, after=0)


@case("black_hole_is_avoided", NOTHING, "next to nothing was placed")
def hardly_placed(path):
    return placements(path, node_1=0.0, node_2=0.1, node_3=0.1), {"share_below": "33%"}


def planning(path, *, rejections=0.0, ineligible=0.0, sampled=True, leader="nomad-1"):
    """The telemetry of `nomad-1` alone is read; of the others the looks fail."""
    one = at_work(path, "nomad.node.black_hole").leader(leader, signal="nomad.leader")
    if sampled:
        one.series("nomad.plan_rejections", rejections, host="nomad-1")
        for second in range(4, 50, 2):
            one.sample("nomad.plan_rejections", None, at=second, host="nomad-2", ok=False)
    return one.series("nomad.nodes_ineligible", ineligible).build(), {"fault": "nomad.node.black_hole"}


@case("plans_are_not_rejected", TRUTH, "the counter stays at 0")
def none_rejected(path):
    return planning(path)


@case("plans_are_not_rejected", LIE, "plans are rejected for ten seconds")
def rejected(path):
    return planning(path, rejections=lambda t: 3.0 if 15 <= t < 25 else 0.0)


@case("plans_are_not_rejected", LIE, "the tracker makes a node ineligible")
def tracked(path):
    return planning(path, ineligible=lambda t: float(t >= 20))


@case("plans_are_not_rejected", NOTHING, "the leader's counter cannot be read")
def leaders_counter_unseen(path):
    return planning(path, leader="nomad-2")


@case("plans_are_not_rejected", NOTHING, "nobody counts")
def not_counted(path):
    return planning(path, sampled=False)


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
    return one.build(), {"load": BUILDS, "fault": "disk.error"}


@case("downloads_are_retried", TRUTH, "three downloads fail and are tried again")
def retried(path):
    return building(path, failed=1, restarts=1)


@case("downloads_are_retried", TRUTH, "they are tried again, and in vain")
def retried_in_vain(path):
    return building(path, failed=3, restarts=2, ok=False)


@case("downloads_are_retried", LIE, "three downloads fail, and the builds with them")
def not_retried(path):
    return building(path, failed=1, ok=False)


@case("downloads_are_retried", NOTHING, "no download fails, so nobody knows")
def none_failed(path):
    return building(path)


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


@case("no_alloc_lost", TRUTH, "each has run, runs, waits or failed")
def all_accounted(path):
    return accounted(path, "complete", "runs", "waits", "failed").build(), {"load": BATCH}


@case("no_alloc_lost", TRUTH, "one started twice, and may")
def one_repeated(path):
    return accounted(path, "complete", "complete", started={1: 2}).build(), {"load": BATCH}


@case("no_alloc_lost", LIE, "one started twice, and may not")
def one_must_not_be_repeated(path):
    return accounted(path, "complete", "complete", started={1: 2}).build(), {"load": BATCH, "once": True}


@case("no_alloc_lost", LIE, "Nomad does not know one of them any more")
def one_forgotten(path):
    return accounted(path, "complete", "forgotten").build(), {"load": BATCH}


@case("no_alloc_lost", LIE, "one ended without an allocation")
def one_dropped(path):
    return accounted(path, "complete", "dropped").build(), {"load": BATCH}


@case("no_alloc_lost", LIE, "one was lost with its node, and none came in its place")
def one_lost(path):
    return accounted(path, "lost", "complete").build(), {"load": BATCH}


@case("no_alloc_lost", TRUTH, "Nomad forgot one that said that it ran to its end")
def one_ran_and_forgotten(path):
    return accounted(path, "complete", "forgotten", heard=((1, "ended"), (1, "ended"))).build(), {"load": BATCH}


@case("no_alloc_lost", LIE, "Nomad forgot one that began and never ended")
def one_forgotten_half_way(path):
    return accounted(path, "complete", "forgotten", heard=((1, "ended"), (1, "began"))).build(), {"load": BATCH}


@case("no_alloc_lost", LIE, "one began twice, and Nomad knows of one start")
def one_began_twice(path):
    one = accounted(path, "complete", "complete", heard=((1, "ended"), (2, "ended")))
    return one.build(), {"load": BATCH, "once": True}


@case("no_alloc_lost", NOTHING, "one that may run only once has run, and nobody heard how often")
def one_unheard(path):
    one = accounted(path, "complete", "complete", heard=((1, "ended"), (0, "silent")))
    return one.build(), {"load": BATCH, "once": True}


@case("no_alloc_lost", NOTHING, "nobody looked at the end")
def nobody_looked(path):
    return accounted(path, "complete", seen=False).build(), {"load": BATCH}


@case("no_alloc_lost", NOTHING, "one of them was not looked at")
def one_unseen(path):
    one = accounted(path, "complete", "complete").write(BATCH, "run-9", "dispatched", start=20, end=20.1)
    return one.build(), {"load": BATCH}


def set_back(path, *, gone, restored=True):
    """A dispatch a second from 5 s on; saved at 10 s, restored at 20 s. `gone` are the numbers of those forgotten."""
    one = RecordingBuilder(path).fault("nomad.snapshot.save", "nomad-1", at=10, until=12, params={"name": "a"})
    one.fault("nomad.snapshot.restore", "nomad-1", at=20, until=25, proven=restored, params={"snapshot": "a"})
    for n in range(25):
        one.write(BATCH, f"run-{n}", "dispatched", start=5.5 + n, end=5.6 + n)
    return one.final_reads(BATCH, dict.fromkeys([f"run-{n}" for n in gone])).build()


SINCE = range(5, 15)


@case("no_work_lost_but_rolled_back", TRUTH, "all that came between is gone, and nothing else")
def rolled_back(path):
    return set_back(path, gone=SINCE), {"load": BATCH, "at_most": 10}


def churned(path, **finals):
    """A job is registered and stopped between save and restore; another one was registered before."""
    one = RecordingBuilder(path).fault("nomad.snapshot.save", "nomad-1", at=10, until=12, params={"name": "a"})
    one.fault("nomad.snapshot.restore", "nomad-1", at=20, until=25, params={"snapshot": "a"})
    for key, began in (("old/register", 8), ("new/register", 14), ("new/stop", 16)):
        one.write(BATCH, key, "done", start=began, end=began + 0.1)
    return one.final_reads(BATCH, {key.replace("_", "/"): value for key, value in finals.items()}).build()


@case("no_work_lost_but_rolled_back", TRUTH, "a job that was rolled back as a whole reads as stopped")
def rolled_back_as_a_whole(path):
    return churned(path, new_register=None), {"load": BATCH}


@case("no_work_lost_but_rolled_back", LIE, "a job is there as it was stopped since")
def stopped_since(path):
    return churned(path), {"load": BATCH}


@case("no_work_lost_but_rolled_back", LIE, "one from before the snapshot is gone")
def lost_from_before(path):
    return set_back(path, gone=[2, *SINCE]), {"load": BATCH}


@case("no_work_lost_but_rolled_back", LIE, "one from after the restore is gone")
def lost_from_after(path):
    return set_back(path, gone=[*SINCE, 20]), {"load": BATCH}


@case("no_work_lost_but_rolled_back", LIE, "one that came between is there")
def reappeared(path):
    return set_back(path, gone=SINCE[1:]), {"load": BATCH}


@case("no_work_lost_but_rolled_back", LIE, "more was rolled back than may be")
def too_much_rolled_back(path):
    return set_back(path, gone=SINCE), {"load": BATCH, "at_most": 9}


@case("no_work_lost_but_rolled_back", NOTHING, "nothing was proven to be restored")
def never_set_back(path):
    return set_back(path, gone=SINCE, restored=False), {"load": BATCH}


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


@case("nodes_reappear", TRUTH, "it is ready again 2 s after the fault")
def node_came_back(path):
    return nodes(path), {"within": "5s"}


@case("nodes_reappear", TRUTH, "two entries of one node are left, and may be")
def node_may_be_double(path):
    return nodes(path, double_from=33), {"within": "5s", "duplicates_at_most": 1}


@case("nodes_reappear", LIE, "it is ready again, and too late")
def node_came_late(path):
    return nodes(path, away=(12, 40)), {"within": "5s"}


@case("nodes_reappear", LIE, "it never comes back")
def node_never_came(path):
    return nodes(path, away=(12, 99)), {"within": "5s"}


@case("nodes_reappear", LIE, "it is ready in time, and goes away again")
def node_went_again(path):
    return nodes(path, shut=(40, 45)), {"within": "5s"}


@case("nodes_reappear", LIE, "it is ready in time, and gets no work")
def node_stays_shut(path):
    return nodes(path, shut=(12, 99)), {"within": "5s"}


@case("nodes_reappear", LIE, "it comes back as another node, and the old one stays")
def node_is_double(path):
    return nodes(path, double_from=33), {"within": "5s"}


@case("nodes_reappear", NOTHING, "no node went away")
def node_never_left(path):
    return nodes(path, away=None), {"within": "5s"}


# durability


@case("no_acknowledged_write_lost", TRUTH, "a store that keeps everything")
def kept(path):
    return run(path).final_reads(LOAD).build(), {"load": LOAD}


@case("no_acknowledged_write_lost", LIE, "one write of the fault is acknowledged and dropped")
def dropped(path):
    return run(path).final_reads(LOAD, {f"{LOAD}/500": None}).build(), {"load": LOAD}


@case("no_acknowledged_write_lost", LIE, "the write that was acknowledged last before a fault without any answer")
def dropped_before(path):
    silent = lambda t: "unknown" if 10 <= t < 30 else "ok"  # noqa: E731 - a total partition
    return run(path, outcome=silent).final_reads(LOAD, {f"{LOAD}/299": None}).build(), {"load": LOAD}


@case("no_acknowledged_write_lost", LIE, "a refused write is there")
def phantom(path):
    refused = run(path, outcome=failing(12, 13)).final_reads(LOAD, {f"{LOAD}/410": f"{LOAD}-410"})
    return refused.build(), {"load": LOAD}


@case("no_write_lost_but_rolled_back", TRUTH, "a reset takes what came after the snapshot, and nothing else")
def reset(path):
    game = ordinary(Game(path))
    return game.recording(), {"load": RESET_LOAD, "snapshot": "before"}


@case("no_write_lost_but_rolled_back", LIE, "a write after the restore is gone")
def lost_after(path):
    game = ordinary(Game(path)).write("b", "w0", 11, 11.1).write("b", "w1", 23, 23.1).holds("b", "w0", "w0", "w0")
    return game.recording(), {"load": RESET_LOAD}


@case("no_write_lost_but_rolled_back", LIE, "a rolled-back write comes back")
def back_again(path):
    game = ordinary(Game(path)).write("b", "w0", 17, 17.1).holds("b", None, None, "w0")
    return game.recording(), {"load": RESET_LOAD}


@case("cas_does_not_cross_reset", TRUTH, "an index from before the reset is refused")
def cas_refused(path):
    return cas_recording(Game(path), (23, step("miss", "w2", 30, "w1"))), {"load": RESET_LOAD}


@case("cas_does_not_cross_reset", LIE, "an index from before the reset succeeds on what was rolled back")
def cas_crosses(path):
    return cas_recording(Game(path), (23, step("cas", "w2", 30, "w1"))), {"load": RESET_LOAD}


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
    return builder.build(), {"load": "registers"}


@case("linearizable", TRUTH, "every read sees the write before it")
def one_order(path):
    return registers(
        path,
        (Step("write", "r.0"), 11),
        (Step("read", "r.0", 5), 12),
        (Step("write", "r.1"), 13),
        (Step("read", "r.1", 6), 14),
    )


@case("linearizable", LIE, "a stale read after the write was acknowledged")
def stale(path):
    return registers(path, (Step("write", "r.0"), 11), (Step("write", "r.1"), 13), (Step("read", "r.0", 5), 14))


def locked(path, *acts):
    builder = RecordingBuilder(path).fault("disk.latency", "consul-1", at=10, until=30)
    first = [("session", "A", 4), ("session", "B", 4), ("claim", "A", 9), ("refused", "B", 9.5)]
    for op, session, start in (*first, *acts, ("refused", "B", 40)):
        action = Action(op, f"leases/{session}", session, **({"ttl_s": 10.0} if op == "session" else {}))
        builder.write("leases", "hashidrill/leases/0", "", start=start, end=start + 0.1, detail=action.detail())
    return builder.build(), {"load": "leases"}


@case("no_two_lock_holders", TRUTH, "the second one has the lock after the lease of the first ran out")
def handed_over(path):
    return locked(path, ("renew", "B", 13), ("claim", "B", 16))


@case("no_two_lock_holders", LIE, "the second one has the lock within the lease of the first")
def held_twice(path):
    return locked(path, ("renew", "B", 11), ("claim", "B", 12))


def shed(path, renewals, claims):
    builder = RecordingBuilder(path).fault("disk.latency", "consul-1", at=10, until=30)
    for n in range(40):
        for op, ok in (("renew", n < renewals), ("claim", n < claims)):
            action = Action(op, f"leases/{n}", f"s{n}")
            start, outcome = 11 + n * 0.4, "ok" if ok else "fail"
            builder.write("leases", f"k{n}", "", start=start, end=start + 0.1, outcome=outcome, detail=action.detail())
    return builder.build(), {"load": "leases"}


@case("renewals_before_claims", TRUTH, "claims are shed, renewals are not")
def claims_shed(path):
    return shed(path, 40, 10)


@case("renewals_before_claims", LIE, "both are shed alike")
def both_shed(path):
    return shed(path, 10, 10)


# recovery, availability, health


@case("writes_recover", TRUTH, "slow during the fault, quick after it")
def recovered(path):
    return run(path, latency=slow(10, 29)).healthy().build(), {"load": LOAD, "within": "5s"}


@case("writes_recover", LIE, "slow for 8 s after the fault")
def recovers_late(path):
    return run(path, latency=slow(10, 38)).healthy().build(), {"load": LOAD, "within": "5s"}


@case("writes_recover", LIE, "quick errors after the fault")
def recovers_into_errors(path):
    return run(path, outcome=failing(30, 50)).healthy().build(), {"load": LOAD, "within": "5s"}


@case("reads_recover", TRUTH, "slow during the fault, quick after it")
def reads_recovered(path):
    return run(path, latency=slow(10, 29)).healthy().build(), {"load": LOAD, "within": "5s"}


@case("reads_recover", LIE, "a relapse 15 s after the fault")
def reads_relapse(path):
    return run(path, latency=slow(45, 50)).healthy().build(), {"load": LOAD, "within": "5s"}


@case("available_during", TRUTH, "every operation is acknowledged")
def available(path):
    return run(path).build(), {"load": LOAD}


@case("available_during", LIE, "2 % of the fault's operations fail")
def hardly_available(path):
    return run(path, outcome=lambda t: "fail" if 15 <= t < 15.4 else "ok").build(), {"load": LOAD}


@case("latency_stays", TRUTH, "quick all the time")
def quick(path):
    return run(path).build(), {"load": LOAD}


@case("latency_stays", LIE, "slow for 4 s of the fault")
def slow_for_a_while(path):
    return run(path, latency=slow(15, 19)).build(), {"load": LOAD}


@case("green_but_sick", TRUTH, "slow writes, every check green")
def sick(path):
    return run(path, "disk.latency", latency=slow(10, 30)).healthy().build(), {"load": LOAD}


@case("green_but_sick", LIE, "slow writes, and autopilot says so")
def sick_and_red(path):
    told = run(path, "disk.latency", latency=slow(10, 30)).healthy(autopilot=lambda t: 0.0 if 10 <= t < 30 else 1.0)
    return told.build(), {"load": LOAD}


@case("green_but_sick", LIE, "writes were never slow")
def never_sick(path):
    return run(path, "disk.latency").healthy().build(), {"load": LOAD}


@case("checks_keep_interval", TRUTH, "every check within 10 ms")
def on_time(path):
    return run(path).build(), {"load": LOAD}


@case("checks_keep_interval", LIE, "90 of 100 checks never fired")
def never_fired(path):
    return run(path, keys=10).series(f"{LOAD}.registered", 100.0, every=1.0).build(), {"load": LOAD}


@case("checks_keep_interval", TRUTH, "all of 100 checks fired")
def all_fired(path):
    return run(path, keys=100).series(f"{LOAD}.registered", 100.0, every=1.0).build(), {"load": LOAD}


@case("checks_keep_interval", LIE, "checks slip by 400 ms during the fault")
def slipping(path):
    return run(path, latency=lambda t: 0.4 if 10 <= t < 30 else 0.004).build(), {"load": LOAD}


# leadership


def led(path, leader, term=None, **load):
    return run(path, **load).leader(leader, term=term)


def again(at_s, silent_s=99.0):
    """The terms of a leader that was elected again then, and that nobody saw gone; it said nothing since `silent_s`."""
    return lambda t: 3 if t >= at_s else None if t >= silent_s else 2


def moved(lost, found, to="consul-2"):
    return lambda t: "consul-1" if t < lost else "" if t < found else to


@case("leader_elected", TRUTH, "another leader after 2 s")
def elected(path):
    return led(path, moved(11, 13)).build(), {"within": "4s"}


@case("leader_elected", LIE, "another leader after 8 s")
def elected_late(path):
    return led(path, moved(11, 19)).build(), {"within": "4s"}


@case("leader_elected", TRUTH, "the same leader in a new term after 3 s, never seen gone")
def elected_again(path):
    return led(path, "consul-1", again(13, 10)).build(), {"within": "4s"}


@case("leader_elected", LIE, "the same leader in a new term after 8 s, never seen gone")
def elected_again_late(path):
    return led(path, "consul-1", again(18, 10)).build(), {"within": "4s"}


@case("leader_elected", NOTHING, "one leader all the time, whose term was never heard")
def unheard(path):
    return led(path, "consul-1", lambda _: None).build(), {"within": "4s"}


def active(path, server):
    return run(path).leader(server, signal="vault.active")


@case("vault_serves_within", TRUTH, "a standby takes over after 2 s")
def took_over(path):
    return active(path, moved(11, 13)).build(), {"within": "4s"}


@case("vault_serves_within", LIE, "a standby takes over after 8 s")
def took_over_late(path):
    return active(path, moved(11, 19)).build(), {"within": "4s"}


@case("vault_has_one_active", TRUTH, "another server after 1 s")
def handed_on(path):
    return active(path, moved(15, 16)).build(), {"grace": "2s"}


@case("vault_has_one_active", LIE, "5 s with two active servers, or none")
def two_active(path):
    return active(path, moved(15, 20)).build(), {"grace": "2s"}


def slow_vault(path, server="vault-1", sealed=0.0, since=10):
    told = run(path, "disk.latency", latency=slow(since, 30)).leader(server, signal="vault.active")
    return told.series("vault.sealed", 0.0, host="vault-1").series("vault.sealed", sealed, host="vault-2")


@case("vault_green_but_sick", TRUTH, "slow writes, unsealed and active")
def vault_sick(path):
    return slow_vault(path).build(), {"load": LOAD}


@case("vault_green_but_sick", LIE, "slow writes, and a server that is sealed")
def vault_sick_and_sealed(path):
    return slow_vault(path, sealed=lambda t: float(10 <= t < 30)).build(), {"load": LOAD}


@case("vault_green_but_sick", LIE, "slow writes, and nobody is active")
def vault_sick_and_headless(path):
    return slow_vault(path, moved(10, 30)).build(), {"load": LOAD}


@case("vault_green_but_sick", LIE, "writes were never slow")
def vault_never_sick(path):
    return slow_vault(path, since=31).build(), {"load": LOAD}


@case("vault_green_but_sick", NOTHING, "nobody asked the servers")
def vault_unasked(path):
    return run(path, "disk.latency", latency=slow(10, 30)).build(), {"load": LOAD}


@case("no_secret_lost", TRUTH, "a Vault that keeps everything")
def secrets_kept(path):
    return secrets(path).build(), {"load": SECRETS}


@case("no_secret_lost", LIE, "one secret of the fault is acknowledged and dropped")
def secret_dropped(path):
    return secrets(path, gone=[at(12)]).build(), {"load": SECRETS}


@case("no_secret_lost", LIE, "a secret is read from memory, and its storage lost it")
def secret_in_memory(path):
    return secrets(path, gone=[at(12)], unlisted=1).build(), {"load": SECRETS}


@case("no_secret_lost", NOTHING, "nobody had the storage list what it holds")
def never_listed(path):
    return secrets(path, unlisted=None).build(), {"load": SECRETS}


@case("no_secret_lost", TRUTH, "a restore takes what came after the snapshot, and nothing else")
def secrets_rolled_back(path):
    run = secrets(path, reset=True, gone=range(at(13), at(20)))
    return run.build(), {"load": SECRETS, "snapshot": "before", "rolled_back_at_least": 10}


@case("no_secret_lost", LIE, "a restore takes a secret from before the snapshot")
def secret_before_snapshot(path):
    run = secrets(path, reset=True, gone=[at(8), *range(at(13), at(20))])
    return run.build(), {"load": SECRETS, "snapshot": "before"}


@case("no_secret_lost", LIE, "a secret from after the restore of the Consul beneath is gone")
def secret_after_restore(path):
    run = secrets(path, reset=True, on="consul", gone=[*range(at(13), at(20)), at(23)])
    return run.build(), {"load": SECRETS, "snapshot": "before"}


@case("no_secret_lost", NOTHING, "a restore that takes nothing back shows nothing")
def nothing_rolled_back(path):
    run = secrets(path, reset=True)
    return run.build(), {"load": SECRETS, "snapshot": "before", "rolled_back_at_least": 10}


@case("no_lease_lost", TRUTH, "a Vault that keeps every lease, and revokes what it is told to")
def leases_kept(path):
    return leases(path).build(), {"load": LEASES}


@case("no_lease_lost", LIE, "one lease is granted and forgotten")
def lease_forgotten(path):
    return leases(path, gone=[at(12)]).build(), {"load": LEASES}


@case("no_lease_lost", LIE, "a token is known from memory, and its storage lost it")
def lease_in_memory(path):
    return leases(path, gone=[at(12)], unlisted=1).build(), {"load": LEASES}


@case("no_lease_lost", NOTHING, "nobody had the storage list the tokens")
def leases_never_listed(path):
    return leases(path, unlisted=None).build(), {"load": LEASES}


@case("no_lease_lost", LIE, "a lease expires before its time")
def lease_expired_early(path):
    return leases(path, gone=[at(45)], ttl_s=20).build(), {"load": LEASES}


@case("no_lease_lost", LIE, "a token that was revoked is valid again")
def revoked_and_valid(path):
    return leases(path, valid=[at(12) + 1]).build(), {"load": LEASES}


@case("no_lease_lost", NOTHING, "all leases ran out before they were looked up")
def leases_ran_out(path):
    return leases(path, gone=range(0, at(50), 2), ttl_s=0.5).build(), {"load": LEASES}


@case("no_lease_lost", NOTHING, "those of the fault were never looked up")
def leases_unread(path):
    return leases(path, unread=[f"{LEASES}/{n}" for n in range(at(10), at(30))]).build(), {"load": LEASES}


@case("no_lease_lost", TRUTH, "a restore takes leases from after the snapshot, and revocations too")
def leases_rolled_back(path):
    run = leases(path, reset=True, gone=range(at(13), at(18), 2), valid=[at(12) + 4])
    return run.build(), {"load": LEASES, "snapshot": "before", "rolled_back_at_least": 10}


@case("no_lease_lost", LIE, "a restore takes a lease from before the snapshot")
def lease_before_snapshot(path):
    run = leases(path, reset=True, gone=[at(8), *range(at(13), at(18))])
    return run.build(), {"load": LEASES, "snapshot": "before"}


@case("leadership_leaves", TRUTH, "the faulted leader is deposed")
def left(path):
    return led(path, moved(14, 15)).build(), {"fault": "process.kill", "within": "10s"}


@case("leadership_leaves", LIE, "the faulted leader leads on")
def led_on(path):
    return led(path, "consul-1").build(), {"fault": "process.kill", "within": "10s"}


@case("leadership_stays", TRUTH, "one leader all the time")
def stayed(path):
    return led(path, "consul-1").build(), {}


@case("leadership_stays", LIE, "another leader for a while")
def went(path):
    return led(path, lambda t: "consul-2" if 20 <= t < 23 else "consul-1").build(), {}


@case("leadership_stays", LIE, "the same leader in a new term, never seen gone")
def went_and_came(path):
    return led(path, "consul-1", again(20)).build(), {}


@case("leadership_stays", NOTHING, "one leader all the time, whose term was never heard")
def stayed_unheard(path):
    return led(path, "consul-1", lambda _: None).build(), {}


def _rotating(t):
    return "consul-1" if t < 12 else f"consul-{int(t // 4) % 3 + 1}"


@case("survives_leader_changes", TRUTH, "five changes, no stall")
def survived(path):
    return led(path, _rotating).build(), {"load": LOAD}


@case("survives_leader_changes", LIE, "nothing is acknowledged for 7 s between them")
def stalled(path):
    return led(path, _rotating, outcome=failing(20, 27)).build(), {"load": LOAD}


# measures, overload


def measured(path, latency):
    builder = RecordingBuilder(path).fault("noop", at=10, until=40)
    builder.fault("consul.config", "client-1", at=14, until=24, name="measure")
    return builder.load(LOAD, latency=latency).build(), {"load": LOAD, "fault": "measure"}


@case("helps", TRUTH, "sick before, well at its end")
def helped(path):
    return measured(path, lambda t: 2.0 if t < 16 else 0.02)


@case("helps", LIE, "sick before and at its end")
def helped_not(path):
    return measured(path, lambda _: 2.0)


@case("does_not_help", TRUTH, "sick before and at its end")
def in_vain(path):
    return measured(path, lambda _: 2.0)


@case("does_not_help", LIE, "sick before, well at its end")
def not_in_vain(path):
    return measured(path, lambda t: 2.0 if t < 16 else 0.02)


@case("does_not_help", LIE, "sick before and at its end, and eight times faster")
def not_enough(path):
    return measured(path, lambda t: 5.35 if t < 16 else 0.634)


@case("stays_sick", TRUTH, "sick before and at its end, and eight times faster")
def still_sick(path):
    return not_enough(path)


@case("stays_sick", LIE, "sick before, well at its end")
def not_sick_any_more(path):
    return not_in_vain(path)


@case("makes_sick", TRUTH, "well before, sick at its end")
def sickened(path):
    return measured(path, lambda t: 0.02 if t < 16 else 2.0)


@case("makes_sick", LIE, "well before and at its end")
def left_well(path):
    return measured(path, lambda _: 0.02)


def spiked(path, status, outcome, latency):
    in_spike = lambda t: 12 <= t < 22  # noqa: E731 - when the load is at 500 %
    built = Spiked(path).fault("noop", at=10, until=30)
    built.load(
        LOAD, outcome=lambda t: outcome if in_spike(t) else "ok", latency=lambda t: latency if in_spike(t) else 0.01
    )
    return built.status(status, "too much", in_spike)


@case("load_is_shed", TRUTH, "what is too much is answered 429 at once")
def refused(path):
    return spiked(path, 429, "fail", 0.005).build(), {"load": LOAD}


@case("load_is_shed", LIE, "what is too much times out")
def hanging(path):
    return spiked(path, 0, "unknown", 10.0).build(), {"load": LOAD}


def overloaded(path, back_at):
    built = Spiked(path).fault("noop", at=10, until=30).load(LOAD, outcome=failing(12, back_at))
    for name in ("process.rss", "process.cpu"):
        for host in built.hosts:
            built.series(name, 1.0, host=host)
    return built.build(), {"load": LOAD, "within": "5s"}


@case("recovers_without_restart", TRUTH, "goodput is back 1 s after the overload")
def by_itself(path):
    return overloaded(path, 23)


@case("recovers_without_restart", LIE, "goodput is back 12 s after the overload")
def metastable(path):
    return overloaded(path, 34)


# let back in


def let_in(path, *levels, sick=(0, 0), every=2.0):
    """Shut out at 12 s, and then at one level after the other; the fault is over at 15 s."""
    built = RecordingBuilder(path).fault("process.kill", at=10, until=15).load(LOAD, latency=slow(*sick))
    built.sample(f"{LOAD}.level", 1.0, at=4)
    for n, level in enumerate((0.0, *levels)):
        built.sample(f"{LOAD}.level", level, at=12 + n * every)
    return built.build(), {"load": LOAD, "within": "25s", "step": "25%"}


@case("returns_in_steps", TRUTH, "a quarter at a time")
def in_quarters(path):
    return let_in(path, 0.25, 0.5, 0.75, 1.0)


@case("returns_in_steps", TRUTH, "with a step back while it was sick")
def with_a_step_back(path):
    return let_in(path, 0.25, 0.5, 0.25, 0.5, 0.75, 1.0, sick=(16, 18))


@case("returns_in_steps", LIE, "all at once")
def all_at_once(path):
    return let_in(path, 0.25, 1.0)


@case("returns_in_steps", LIE, "further in while it was sick")
def in_while_sick(path):
    return let_in(path, 0.25, 0.5, 0.75, 1.0, sick=(16, 18))


@case("returns_in_steps", LIE, "it never came all the way")
def half_way(path):
    return let_in(path, 0.25, 0.5, 0.75)


@case("returns_in_steps", LIE, "it came all the way and went back")
def in_and_out_again(path):
    return let_in(path, 0.25, 0.5, 0.75, 1.0, 0.75)


@case("returns_in_steps", LIE, "too late")
def late_return(path):
    return let_in(path, 0.25, 0.5, 0.75, 1.0, every=7.5)


@case("returns_in_steps", NOTHING, "it was never shut out")
def never_shut_out(path):
    built = RecordingBuilder(path).fault("process.kill", at=10, until=15).load(LOAD).sample(f"{LOAD}.level", 1.0, at=4)
    return built.build(), {"load": LOAD, "within": "25s"}


# a pool of workers


def burst(path, *, p50=3.0, cores=0.1, before=0.01, samples=True):
    """From 10 s to 30 s more is asked of consul-1 than before."""
    built = RecordingBuilder(path).mark("burst", at=10, until=30)
    built.load(LOAD, latency=lambda t: p50 if 10 <= t < 30 else before)
    if samples:
        built.series("process.cpu", cores, host="consul-1").series("process.cpu", 1.9, host="consul-2")
    return built.build(), {"load": LOAD, "host": "consul-1", "fault": "burst"}


@case("starved_while_idle", TRUTH, "requests wait for 3 s, and the host is idle")
def starved(path):
    return burst(path)


@case("starved_while_idle", LIE, "nothing waits")
def not_starved(path):
    return burst(path, p50=0.02)


@case("starved_while_idle", LIE, "the host is busy: it is the CPU that is short")
def busy(path):
    return burst(path, cores=0.95)


@case("starved_while_idle", NOTHING, "it was as slow before")
def slow_before(path):
    return burst(path, before=3.0)


@case("starved_while_idle", NOTHING, "nobody looked at its CPU")
def not_looked_at(path):
    return burst(path, samples=False)


# streaming, state


@case("streaming_no_worse_than_long_poll", TRUTH, "streaming bears every level, long polls do not")
def streaming_better(path):
    built = stepped(path, lambda level: 0.01 * level, lambda level: 0.1 * level**2)
    return built.build(), {"load": LOAD, "steps_of": "views"}


@case("streaming_no_worse_than_long_poll", LIE, "streaming breaks at a level that long polls bear")
def streaming_worse(path):
    built = stepped(path, lambda level: 0.1 * level**2, lambda level: 0.01 * level)
    return built.build(), {"load": LOAD, "steps_of": "views"}


@case("streaming_no_worse_than_long_poll", NOTHING, "nobody counted how many views were open")
def streaming_unseen(path):
    built = stepped(path, lambda level: 0.01 * level, lambda level: 0.1 * level**2, opened=None)
    return built.build(), {"load": LOAD, "steps_of": "views"}


@case("watchers_converge", TRUTH, "every watcher is told within 2 s")
def told(path):
    return watched(path, sees=lambda n: 30 + n / 10).build(), {"load": "watch", "within": "5s"}


@case("watchers_converge", LIE, "one of 20 watchers is never told")
def deaf(path):
    return watched(path, sees=lambda n: None if n == 7 else 31.0).build(), {"load": "watch", "within": "5s"}


@case("write_amplification_below", TRUTH, "bloated for the fault only, judged after it")
def compact(path):
    return bloated(path, 50).build(), {"times": 2.0}


@case("write_amplification_below", LIE, "50 times the bytes for each commit")
def amplified(path):
    return bloated(path, 50).build(), {"times": 2.0, "since": "start"}


def commits(path, value):
    builder = RecordingBuilder(path).fault("consul.raft.bloat", at=10, until=28).load(LOAD)
    return builder.series("raft.commit_time", value, host="consul-1", every=1).build(), {"below": "50ms"}


@case("raft_commit_below", TRUTH, "quick again after the fault")
def quick_commits(path):
    return commits(path, lambda t: 0.5 if 10 <= t < 30 else 0.005)


@case("raft_commit_below", NOTHING, "one sample of fifteen is good, the other looks failed")
def hardly_any_commit(path):
    one = run(path)
    for n in range(15):
        good = n == 14
        one.sample("raft.commit_time", 0.005 if good else None, at=20 + 2 * n, host="consul-1", ok=good)
    return one.build(), {"below": "100ms", "within": "0s"}


@case("raft_commit_below", LIE, "slow 20 s after the fault as well")
def slow_commits(path):
    return commits(path, lambda t: 0.5 if t >= 10 else 0.005)


# clients


def two_clients(path, worse):
    builder = RecordingBuilder(path).fault("tap.fail", at=10, until=30)
    builder.load("good").load("bad", outcome=failing(10, 30) if worse else "ok")
    return builder.build(), {"of": "available_during", "good": "good", "bad": "bad"}


@case("contrast", TRUTH, "the good client is available, the bad one is not")
def contrasting(path):
    return two_clients(path, worse=True)


@case("contrast", LIE, "both are available")
def no_contrast(path):
    return two_clients(path, worse=False)


def _verdict(name, client_of):
    def of_a_client(path):
        did, params = client_of(name, Client(path))
        return did.builder.build(), {"client": "app", **params}

    return of_a_client


for _name in VERDICTS:
    case(_name, TRUTH, "the good client of test_retry_hypotheses")(_verdict(_name, good))
    case(_name, LIE, "the bad client of test_retry_hypotheses")(_verdict(_name, bad))
