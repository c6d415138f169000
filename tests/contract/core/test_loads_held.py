"""Views, watchers and churn over real sockets, against an agent that restarts and whose indexes go backwards."""

import json
from collections import Counter, defaultdict
from itertools import groupby, pairwise

import pytest

from hashidrill.core.engine.load_generator import LoadGenerator, LoadSpecification
from hashidrill.core.experiment.load_levels import Course, Piece
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.protocols.abc import CleansUp
from hashidrill.core.recording.journal import Clock
from hashidrill.core.util.wait import wait_until
from hashidrill.products.consul.loads.base import mark
from hashidrill.products.consul.loads.churn import ServiceChurn
from hashidrill.products.consul.loads.streams import Streams
from hashidrill.products.consul.loads.views import Views, Watch
from streaming_server import StreamingServer
from tasks import running
from watched_consul import WatchedConsul

pytestmark = pytest.mark.long


class Offered:
    """A load that runs: what it emitted and sampled, and ways to wait for more of it."""

    def __init__(self, kind, params, *agents, course=None):
        self.operations, self.samples, self.clock = [], defaultdict(list), Clock()
        self.course = course or Course()
        context = LoadContext(
            [agent.url for agent in agents], clock=self.clock, course=self.course, emit_sample=self._sampled
        )
        self.load = kind("x", kind.Params.model_validate(params), context)

    def _sampled(self, what, value, text):
        self.samples[what].append(value)

    async def __aenter__(self):
        self._running = running(self.load.run(self.operations.append))
        self.task = await self._running.__aenter__()
        return self

    async def __aexit__(self, *_):
        await self._running.__aexit__(None, None, None)
        if isinstance(self.load, CleansUp):
            await self.load.clean_up()

    async def until(self, what, enough, *, within_s=20):
        async def check():
            if self.task.done():
                self.task.result()
            return enough(self) or None, f"{Counter(op.outcome for op in self.operations)}, {dict(self.samples)}"

        return await wait_until(what, check, within_s=within_s, gap_s=0.01)

    @property
    def seen(self):
        """{key: every state in order}"""
        states = defaultdict(list)
        for op in self.operations:
            states[op.key].append(op.value)
        return states


def open_now(count):
    return lambda offered: offered.samples["open"][-1:] == [count]


# views


async def test_views_are_opened_at_their_rate_in_every_agent_and_a_restarted_agent_gets_its_own_again():
    async with WatchedConsul().running() as one, WatchedConsul(backend="blocking-query").running() as two:
        offered = Offered(Views, {"count": 20, "establish": "100/s", "service": "web"}, one, two)
        async with offered:
            # at once, before the load has looked after them for the first time
            await offered.until("all views", lambda o: len(o.operations) == 40)
            assert one.cache == two.cache == {f"t{n}" for n in range(20)}
            assert {path for path, _ in one.asked} >= {"/v1/health/service/web?cached&tag=t7"}
            one.restart()
            await offered.until("the lost views", lambda _: len(one.cache) == 20)
            await offered.until("the count", open_now(40))
            assert offered.samples["streaming"][-1] == 0.5
            one.restart()
            await offered.until("the views that were lost again", lambda _: len(one.cache) == 20)
        operations = offered.operations
    assert len(operations) == 80
    assert {op.outcome for op in operations} == {"ok"}
    assert {op.value for op in operations} == {"streaming", "blocking-query"}
    due = sorted(op.intended_ns for op in operations[:40])
    assert {later - earlier for earlier, later in pairwise(due)} == {10_000_000}


async def test_views_follow_the_level_up_and_stay_when_it_falls():
    async with WatchedConsul().running() as agent:
        course = Course([Piece(0, 3.0), Piece(2_000_000_000, 0.5)])
        async with Offered(Views, {"count": 10, "establish": "500/s"}, agent, course=course) as offered:
            await offered.until("the first", open_now(10))
            course.begin(offered.clock.now_ns())
            await offered.until("three times of it", open_now(30))
            await offered.until("more samples", lambda o: len(o.samples["open"]) > 5)
            opened, cached = offered.samples["open"], len(agent.cache)
    assert opened[-1] == cached == 30


async def test_a_view_that_is_not_open_yet_is_given_up_when_the_level_falls():
    """Else it would be opened in its agent later, perhaps after a restart, in a time in which there should be none."""

    async with WatchedConsul().running() as quick, WatchedConsul(delay_s=60).running() as slow:
        course = Course([Piece(0, 1.0), Piece(300_000_000, 0.0)])
        async with Offered(Views, {"count": 5, "establish": "500/s"}, quick, slow, course=course) as offered:
            await offered.until("all to be asked for", lambda _: len(slow.asked) >= 5)
            course.begin(offered.clock.now_ns())
            await offered.until("the slow ones to be given up", lambda o: len(o.operations) == 10)
            assert Counter(op.outcome for op in offered.operations) == {"ok": 5, "unknown": 5}
            assert len(quick.cache) == 5


async def test_a_view_that_is_refused_is_a_failed_operation_and_is_tried_again():
    async with WatchedConsul(status=503).running() as agent:
        async with Offered(Views, {"count": 3, "establish": "50/s"}, agent) as offered:
            await offered.until("refusals", lambda o: len(o.operations) >= 3)
            agent.status = 200
            await offered.until("all views", open_now(3))
        operations = offered.operations
    assert [op.outcome for op in operations[:3]] == ["fail"] * 3
    assert operations[0].error == "HTTP 503: rate limit exceeded"
    assert [op.outcome for op in operations[-3:]] == ["ok"] * 3


async def test_a_view_that_is_being_opened_when_the_load_stops_is_unknown():
    async with (
        WatchedConsul(delay_s=5).running() as agent,
        Offered(Views, {"count": 2, "establish": "50/s"}, agent) as offered,
    ):
        await offered.until("both to be asked", lambda _: len(agent.asked) == 2)
    assert [op.outcome for op in offered.operations] == ["unknown", "unknown"]


# watchers


def instances(*rows, sent_ns=0):
    return json.dumps(
        [
            {"Service": {"ID": i, "Meta": {"m": mark(sent_ns)}}, "Checks": [{"CheckID": f"service:{i}", "Status": s}]}
            for i, s in rows
        ]
    ).encode()


async def test_every_watcher_is_told_of_a_change_with_the_latency_since_it_was_sent():
    async with WatchedConsul(state=instances(("web-1", "passing"))).running() as agent:
        params = {"count": 8, "service": "web", "establish": "100/s"}
        async with Offered(Watch, params, agent) as offered:
            await offered.until("all to wait", lambda o: agent.waiting == 8)
            await offered.until("half a second", lambda o: o.clock.now_ns() > 500_000_000)
            sent_ns = offered.clock.now_ns() - 500_000_000
            await agent.change(instances(("web-1", "critical"), sent_ns=sent_ns))
            await offered.until("all to be told", lambda o: len(o.operations) >= 16)
            await offered.until("a sample", lambda o: 8.0 in o.samples["wakeups"])
            assert {index for _, index in agent.asked[-8:]} == {"11"}
            final = await offered.load.final_reads()
    told = offered.operations[8:16]
    assert {op.intended_ns for op in told} == {sent_ns}
    assert all(0.5e9 <= op.end_ns - op.intended_ns < 2e9 for op in told)
    assert {op.key for op in told} == {f"web#{n}" for n in range(8)}
    assert {states[-1] for states in offered.seen.values()} == set(final.values())
    assert len({states[0] for states in offered.seen.values()} | set(final.values())) == 2


async def test_a_wait_that_is_over_is_no_operation():
    async with (
        WatchedConsul().running() as agent,
        Offered(Watch, {"count": 2, "service": "web", "wait": "50ms"}, agent) as offered,
    ):
        await offered.until("some rounds", lambda o: len(agent.asked) > 12)
    assert len(offered.operations) == 2


@pytest.mark.parametrize("reset", [True, False])
async def test_a_watcher_begins_again_when_the_index_goes_backwards_and_one_with_the_planted_bug_misses_the_next_change(
    reset,
):
    async with WatchedConsul(state=b"run.1;", index=100).running() as agent:
        params = {"count": 1, "keys_of": "w", "keys": 1, "reset": reset, "wait": "100ms"}
        async with Offered(Watch, params, agent) as offered:
            await offered.until("it to wait", lambda o: agent.waiting == 1)
            await agent.change(b"run.0;", index=20)  # a snapshot was restored
            await offered.until("another round", lambda o: len(agent.asked) > 4)
            if not reset:  # it asks with the old index: nothing short of the whole `wait` ends that
                assert {index for _, index in agent.asked[1:]} == {"100"}
            seen, asked = offered.seen, [index for _, index in agent.asked]
    assert seen["hashidrill/w/0#0"] == ["run.1", "run.0"]
    if reset:  # on a busy machine, a `wait` may be over before the index goes backwards
        assert [index for index, _ in groupby(asked)] == [None, "100", None, "20"]


async def test_an_error_is_one_failed_operation_and_the_watcher_comes_back():
    async with WatchedConsul(state=b"run.1;").running() as agent:
        params = {"count": 1, "keys_of": "w", "keys": 1, "wait": "100ms", "retry": "50ms"}
        async with Offered(Watch, params, agent) as offered:
            await offered.until("it to wait", lambda o: agent.waiting == 1)
            agent.status = 500
            await offered.until("its error", lambda o: any(op.outcome == "fail" for op in o.operations))
            agent.status = 200
            await offered.until("its return", lambda o: o.operations[-1].outcome == "ok")
        operations = offered.operations
    assert operations[0].outcome == operations[-1].outcome == "ok"
    failed = [op for op in operations if op.outcome == "fail"]
    assert failed[0].error == "HTTP 500: rate limit exceeded"
    assert failed[0].status == 500


async def test_watchers_are_closed_when_the_level_falls():
    async with WatchedConsul().running() as agent:
        course = Course()
        async with Offered(
            Watch, {"count": 20, "service": "web", "establish": "500/s"}, agent, course=course
        ) as offered:
            await offered.until("all", open_now(20))
            # one that has not got there would be closed before the agent could count it
            await offered.until("the agent to have all", lambda _: agent.waiting == 20)
            course.set(offered.clock.now_ns(), 0.25)
            await offered.until("a quarter of them", open_now(5))
            await offered.until("the agent to see it", lambda _: agent.waiting == 5)


# churn


async def test_instances_come_fail_get_well_and_go_and_none_is_left():
    async with WatchedConsul().running() as one, WatchedConsul().running() as two:
        async with Offered(
            ServiceChurn, {"rate": "200/s", "services": 6, "service": "web", "at_once": 10_000}, one, two
        ) as offered:
            await offered.until("some turns", lambda o: len(o.operations) >= 60)
        operations = offered.operations
    assert {op.outcome for op in operations if op.status} == {"ok"}
    assert [op.value for op in operations if op.key == "web-x-0"][:6] == [
        "register",
        "critical",
        "passing",
        "deregister",
        "register",
        "critical",
    ]
    assert one.services == two.services == {}
    assert {json.loads(body)["Name"] for path, body in one.puts if path.endswith("register") and body} == {"web"}
    assert {json.loads(body)["ID"] for path, body in one.puts if path.endswith("/register")} == {
        "web-x-0",
        "web-x-2",
        "web-x-4",
    }


@pytest.mark.parametrize("to_the_end", [True, False])
async def test_instances_are_there_for_the_final_reads_of_who_watches_them_and_go_after_that(to_the_end):
    """Who watches is to converge on what was there while it watched. A run that breaks off leaves nothing either."""
    churn = ServiceChurn.Params.model_validate({"rate": "50/s", "services": 4, "service": "web", "only": "flips"})
    watch = Watch.Params.model_validate({"count": 2, "service": "web"})

    async with WatchedConsul().running() as agent, LoadGenerator(Clock(), "run") as loads:
        offered = [
            LoadSpecification("churn", "consul.service.churn", churn, [agent.url]),
            LoadSpecification("watch", "consul.watch", watch, [agent.url]),
        ]
        await loads.start(offered, lambda _: None, lambda _t_ns, _sample: None)

        async def all_registered():
            return len(agent.services) == 4 or None, f"{len(agent.services)} instances"

        await wait_until("all instances", all_registered, within_s=20)
        if to_the_end:
            await loads.stop()
            assert len(agent.services) == 4
            await loads.final_reads()
            assert agent.services == {}
    assert agent.services == {}
    assert agent.registered_at_final_reads == ([4] if to_the_end else [])


async def test_what_happens_to_one_instance_happens_in_order_however_slow_the_agent_is():
    async with WatchedConsul(delay_s=0.02).running() as agent:
        async with Offered(ServiceChurn, {"rate": "200/s", "services": 2, "at_once": 10_000}, agent) as offered:
            await offered.until("some turns", lambda o: len(o.operations) >= 40)
        operations = offered.operations
    assert {op.outcome for op in operations if op.status} == {"ok"}
    assert agent.services == {}


async def test_as_many_changes_as_may_be_are_under_way_and_none_beyond_them_is_made():
    async with WatchedConsul(delay_s=0.5).running() as agent:
        params = {"rate": "200/s", "services": 50, "at_once": 5}
        async with Offered(ServiceChurn, params, agent) as offered:
            await offered.until("some rounds", lambda o: len(o.operations) >= 20)
            ended, sent = len(offered.operations), len(agent.puts)  # later come those that clean up
        operations, under_way = offered.operations, sent - ended
    assert {op.outcome for op in operations} <= {"ok", "unknown"}
    assert under_way <= 5
    assert max(sum(one.start_ns <= op.start_ns < one.end_ns for one in operations) for op in operations) == 5


async def test_changes_may_go_straight_to_the_catalog():
    async with WatchedConsul().running() as agent:
        params = {"rate": "200/s", "services": 3, "through": "catalog", "service": "web", "at_once": 10_000}
        async with Offered(ServiceChurn, params, agent) as offered:
            await offered.until("some turns", lambda o: len(o.operations) >= 30)
        operations = offered.operations
    assert {op.outcome for op in operations if op.status} == {"ok"}
    assert {path for path, _ in agent.puts} == {"/v1/catalog/register", "/v1/catalog/deregister"}
    told = [json.loads(body) for path, body in agent.puts if path.endswith("/register")]
    assert {each["Check"]["Status"] for each in told} == {"passing", "critical"}
    assert {(each["Node"], each["Service"]["Service"]) for each in told} == {("hashidrill-x", "web")}
    assert agent.services == {}


async def test_flips_change_checks_alone():
    async with WatchedConsul().running() as agent:
        params = {"rate": "200/s", "services": 3, "only": "flips", "at_once": 10_000}  # however busy the machine
        async with Offered(ServiceChurn, params, agent) as offered:
            await offered.until("some turns", lambda o: len(o.operations) >= 30)
    values = [op.value for op in offered.operations if op.key.endswith("-1")]
    assert values[:5] == ["register", "critical", "passing", "critical", "passing"]


async def test_an_agent_that_refuses_is_a_failure_and_an_unknown_instance_that_should_go_is_none():
    refusals = {("critical", "fail", 404), ("deregister", "ok", 404)}
    async with WatchedConsul(missing=404).running() as agent:
        params = {"rate": "100/s", "services": 1}
        async with Offered(ServiceChurn, params, agent) as offered:

            def refused(offered):
                agent.services.clear()  # as an agent that was restarted, however often it is told again
                agent.checks.clear()
                return refusals <= {(op.value, op.outcome, op.status) for op in offered.operations}

            await offered.until("refusals", refused)


# streams


def streams(server, **params):
    agent = WatchedConsul(url="http://127.0.0.1:1")
    return Offered(Streams, {"port": server.port, "service": "web", "establish": "500/s", **params}, agent)


async def test_streams_stand_over_few_connections_and_measure_the_lag_of_each_event():
    async with StreamingServer().running() as server, streams(server, count=50, connections=2) as offered:
        await offered.until("all streams", open_now(50))
        assert len(server.connections) == 2
        sent_ns = offered.clock.now_ns() - 300_000_000
        server.publish(mark(sent_ns).encode())
        await offered.until("the events", lambda o: 50.0 in o.samples["events"])
        await offered.until("their lag", lambda o: o.samples["lag"])
        server.publish(mark(sent_ns - 5_000_000_000).encode())  # a deregistration tells of the last change
        await offered.until("the others", lambda o: o.samples["events"].count(50.0) == 2)
    assert {(op.outcome, op.error) for op in offered.operations} == {("ok", "")}
    assert len({op.key for op in offered.operations}) == len(server.calls) == 50
    assert {(call[1], call[2]) for call in server.calls} == {(1, b"web")}
    assert len(offered.samples["lag"]) == 1
    assert 0.3 <= offered.samples["lag"][0] < 2


async def test_streams_that_are_lost_are_opened_again():
    async with StreamingServer().running() as server, streams(server, count=10) as offered:
        await offered.until("all streams", open_now(10))
        server.drop()
        await offered.until("a loss", lambda o: o.samples["open"][-1] < 10)
        await offered.until("all streams again", open_now(10))
    assert len(offered.operations) == 20


async def test_a_stream_that_is_refused_or_never_gets_its_snapshot_is_a_failure_that_says_why():
    async with StreamingServer().running() as server:
        server.refuse = "14"
        async with streams(server, count=1) as offered:
            await offered.until("a refusal", lambda o: o.operations)
        server.refuse, server.silent = "", True
        async with streams(server, count=1, timeout="100ms") as silent:
            await silent.until("a silence", lambda o: o.operations)
            await silent.until("its end", lambda o: server.cancelled)
    async with streams(server, count=1) as nobody:
        await nobody.until("nobody", lambda o: o.operations)
    refused, silent, nobody = [each.operations[0] for each in (offered, silent, nobody)]
    assert [op.outcome for op in (refused, silent, nobody)] == ["fail"] * 3
    assert refused.error == "gRPC status 14: no leader"
    assert silent.error == "no snapshot within 100ms"
    assert nobody.error.startswith("could not connect")


async def test_streams_are_closed_when_the_level_falls_and_all_when_the_load_ends():
    async with StreamingServer().running() as server, streams(server, count=20) as offered:
        await offered.until("all", open_now(20))
        offered.course.set(offered.clock.now_ns(), 0.25)
        await offered.until("a quarter", open_now(5))
        await offered.until("the server to see it", lambda o: server.cancelled == 15)
    assert {op.outcome for op in offered.operations} == {"ok"}


async def test_a_server_that_speaks_something_else_is_a_failure():
    async with WatchedConsul().running() as agent:
        port = int(agent.url.rpartition(":")[2])
        async with Offered(Streams, {"count": 1, "port": port}, agent) as offered:
            await offered.until("its failure", lambda o: o.operations)
        failed = offered.operations[0]
    assert failed.outcome == "fail"
    assert failed.error
