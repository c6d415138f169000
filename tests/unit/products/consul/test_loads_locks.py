"""What contenders ask for and when, in virtual time; and what the lock load makes of Consul's answers."""

import asyncio
import json

import pytest
from pydantic import ValidationError

from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.schedule import CANCELLED, Agenda, LagMeter, Reply
from hashidrill.core.protocols.abc import Detail, Reason
from hashidrill.products.consul.loads.locks import (
    GONE,
    SESSION_GONE,
    Action,
    Contender,
    Lock,
    Pacing,
    answered,
    reply_to,
)
from tasks import running
from virtual_time import VirtualClock, run

SECOND = 1_000_000_000


class Service:
    """A lock service with one lock. `down` says whether a request that is sent at that second goes unanswered."""

    def __init__(self, *, down=lambda action, at_s: False, takes_s=0.01, timeout_s=3.0):
        self.down, self.takes_s, self.timeout_s = down, takes_s, timeout_s
        self.sessions, self.holder = [], ""

    async def send(self, key, action):
        if self.down(action, asyncio.get_running_loop().time() - 1000):
            await asyncio.sleep(self.timeout_s)
            return Reply("unknown", error="no answer within 3s")
        await asyncio.sleep(self.takes_s)
        if action.op == "session":
            self.sessions.append(f"s{len(self.sessions)}")
            return Reply("ok", 200, detail=answered(action, session=self.sessions[-1]))
        if action.session not in self.sessions:
            return Reply("fail", 404, error=f"{GONE}: HTTP 404", reason=SESSION_GONE)
        if action.op == "claim" and self.holder not in {"", action.session}:
            return Reply("ok", 200, detail=answered(action, op="refused"))
        if action.op == "claim":
            self.holder = action.session
        elif action.op in {"release", "end"} and self.holder == action.session:
            self.holder = ""
        return Reply("ok", 200)

    def expire(self, session):
        self.sessions[self.sessions.index(session)] = "expired"
        self.holder = "" if self.holder == session else self.holder


def contend(service, *, seconds, count=1, meanwhile=None, **pacing):
    """Contenders on one lock for so long: their operations as (second, op, outcome, session), and they themselves."""
    operations, contenders = [], []

    async def main():
        agenda = Agenda("leases", VirtualClock(), operations.append)

        async def everything():
            async with asyncio.TaskGroup() as tasks:
                for n in range(count):
                    how = Pacing(**{"ttl_s": 10, "renew_s": 4, "claim_every_s": 1, **pacing})
                    one = Contender(f"c{n}", "lock", how, agenda=agenda, send=service.send, tasks=tasks)
                    contenders.append(one)
                    tasks.create_task(one.run(n * 100_000_000))
                if meanwhile is not None:
                    tasks.create_task(meanwhile(contenders))

        async with running(everything()):
            await asyncio.sleep(seconds)

    run(main())
    return [
        (op.intended_ns / SECOND, *_told(op)) for op in sorted(operations, key=lambda op: op.intended_ns)
    ], contenders


def _told(op):
    action = Action.of(op.detail)
    return action.op, op.outcome, action.session


def of(operations, *ops):
    return [(round(at, 2), outcome) for at, op, outcome, _ in operations if op in ops]


class TestContender:
    def test_makes_a_session_claims_and_renews_at_its_own_times(self):
        operations, _ = contend(Service(), seconds=13.5)
        assert operations[:3] == [(0, "session", "ok", "s0"), (1, "claim", "ok", "s0"), (1.01, "fence", "ok", "s0")]
        assert of(operations, "renew") == [(4, "ok"), (8, "ok"), (12, "ok")]
        assert len(operations) == 6

    def test_who_is_refused_asks_again_at_even_distances(self):
        operations, _ = contend(Service(), seconds=6.5, count=2)
        assert of(operations, "refused") == [(at + 0.1, "ok") for at in (1, 2, 3, 4, 5, 6)]

    def test_a_renewal_is_due_at_its_time_whatever_happened_to_the_last(self):
        """From second 3 to 11 nothing is answered: the renewal of second 8 does not wait for that of second 4."""
        down = lambda action, at_s: action.op == "renew" and 3 < at_s < 11  # noqa: E731
        operations, _ = contend(Service(down=down, timeout_s=6), seconds=12.5, renew_retries=0)
        assert of(operations, "renew") == [(4, "unknown"), (8, "unknown"), (12, "ok")]

    def test_bad_pacing_send_each_timed_out_claim_again_into_the_same_queue(self):
        down = lambda action, at_s: action.op == "claim"  # noqa: E731
        bad, _ = contend(Service(down=down, timeout_s=1.5), seconds=9.5, claim_retries=10, backoff_s=0.5)
        good, _ = contend(Service(down=down, timeout_s=1.5), seconds=9.5, claim_retries=0)
        assert len(of(good, "claim")) == 9
        assert len(of(bad, "claim")) == 25  # one more each second, and one of each earlier one every two seconds

    def test_a_renewal_is_retried_after_its_backoff_and_no_more_often_than_asked(self):
        down = lambda action, at_s: action.op == "renew" and at_s < 7.5  # noqa: E731
        service = Service(down=down, timeout_s=1)
        operations, _ = contend(service, seconds=9.9, renew_retries=2, backoff_s=0.2)
        assert of(operations, "renew") == [(4, "unknown"), (5.2, "unknown"), (6.4, "unknown"), (8, "ok")]

    def test_its_belief_ends_one_ttl_after_it_sent_the_last_renewal_that_was_answered(self):
        seen = []

        async def watch(contenders):
            for _ in range(200):
                seen.append(contenders[0].holds)
                await asyncio.sleep(0.1)

        down = lambda action, at_s: action.op != "session" and at_s > 4.5  # noqa: E731
        _, [one] = contend(Service(down=down), seconds=19, meanwhile=watch, renew_retries=0)
        held = [round(n / 10, 1) for n, holds in enumerate(seen) if holds]
        assert held[0] == pytest.approx(1.1, abs=0.1)
        assert held[-1] == pytest.approx(14, abs=0.15)  # sent at 4, and a TTL of 10
        assert one.lost == 1

    def test_who_learns_that_its_session_is_gone_makes_another_and_claims_with_it(self):
        service = Service()

        async def expire(contenders):
            await asyncio.sleep(2)
            service.expire("s0")

        operations, [one] = contend(service, seconds=6.5, meanwhile=expire)
        assert [row for row in operations if row[0] >= 4] == [
            (4, "renew", "fail", "s0"),
            (5, "session", "ok", "s1"),
            (6, "claim", "ok", "s1"),
            (6.01, "fence", "ok", "s1"),
        ]
        assert (one.lost, one.session) == (1, "s1")

    def test_a_lock_is_given_back_after_its_time_and_claimed_again(self):
        operations, _ = contend(Service(), seconds=6.5, count=2, hold_s=2)
        hands = [(session, op) for _, op, outcome, session in operations if op in {"claim", "release"}]
        assert hands[:3] == [("s0", "claim"), ("s0", "release"), ("s1", "claim")]

    def test_it_does_not_rely_on_a_claim_that_was_under_way_when_it_released(self):
        """The claim of second 1 is answered at 5.5, that of second 2 at once; what it got is released at 5."""

        class Slow(Service):
            async def send(self, key, action):
                if action.op == "claim" and asyncio.get_running_loop().time() < 1001.5:
                    await asyncio.sleep(4.5)
                return await super().send(key, action)

        seen = {}

        async def watch(contenders):
            for at_s in (3, 5.8):
                await asyncio.sleep(1000 + at_s - asyncio.get_running_loop().time())
                seen[at_s] = contenders[0].holds

        operations, _ = contend(Slow(), seconds=6.6, hold_s=2.5, claim_every_s=1, meanwhile=watch)
        assert of(operations, "release") == [(5, "ok")]
        assert seen == {3: True, 5.8: False}
        assert of(operations, "claim")[-1] == (6, "ok")

    def test_who_leaves_ends_its_session_and_asks_for_nothing_any_more(self):
        async def leave(contenders):
            await asyncio.sleep(2.5)
            contenders[0].leave()

        service = Service()
        operations, [one] = contend(service, seconds=20, meanwhile=leave)
        assert operations[-1] == (2.5, "end", "ok", "s0")
        assert not one.holds
        assert service.holder == ""

    def test_who_leaves_while_its_session_is_made_ends_that(self):
        async def leave(contenders):
            await asyncio.sleep(0.05)
            contenders[0].leave()

        operations, _ = contend(Service(takes_s=0.2), seconds=5, meanwhile=leave)
        assert [op for _, op, _, _ in operations] == ["session", "end"]

    def test_what_is_under_way_when_the_load_stops_is_unknown_and_emitted_once(self):
        operations, _ = contend(Service(takes_s=60), seconds=3)
        assert operations == [(0, "session", "unknown", "")]


class TestAgenda:
    @staticmethod
    def offer(perform, due_ns, **options):
        operations = []

        async def main():
            agenda = Agenda("load", VirtualClock(), operations.append, **options)
            await asyncio.gather(*(agenda.operation(due, "key", "value", perform) for due in due_ns))

        run(main())
        return operations

    async def test_an_operation_starts_when_it_is_due_and_a_late_one_at_once(self):
        async def quick():
            return Reply("ok", 200)

        async def stall():
            asyncio.get_running_loop().advance(2)
            return Reply("ok", 200)

        lag = LagMeter()
        operations = []
        agenda = Agenda("load", VirtualClock(), operations.append, lag=lag)
        await agenda.operation(SECOND, "a", "", stall)
        await agenda.operation(2 * SECOND, "b", "", quick)
        assert [(op.intended_ns, op.start_ns) for op in operations] == [(SECOND, SECOND), (2 * SECOND, 3 * SECOND)]
        assert lag.take_s() == pytest.approx(1)

    def test_more_at_once_than_the_bound_fail_as_generator_overload(self):
        async def slow():
            await asyncio.sleep(1)
            return Reply("ok")

        operations = self.offer(slow, [0] * 5, max_in_flight=3)
        assert sorted(op.outcome for op in operations) == ["fail", "fail", "ok", "ok", "ok"]
        assert all(op.reason == Reason.OVERLOADED for op in operations if op.outcome == "fail")

    async def test_a_cancelled_one_is_unknown(self):
        operations = []
        agenda = Agenda("load", VirtualClock(), operations.append)
        async with running(agenda.operation(0, "key", "value", lambda: asyncio.sleep(60))):
            await asyncio.sleep(1)
        assert [(op.outcome, op.error) for op in operations] == [("unknown", CANCELLED)]


CLAIM = Action("claim", "c0", "s0")


@pytest.mark.parametrize(
    ("action", "answer", "outcome", "op"),
    [
        (CLAIM, Answer(200, b"true"), "ok", "claim"),
        (CLAIM, Answer(200, b"false"), "ok", "refused"),
        (CLAIM, Answer(500, b'rpc error: invalid session "s0"'), "fail", "gone"),
        (CLAIM, Answer(500, b"No cluster leader"), "unknown", "claim"),
        (CLAIM, Answer(429, b"rate limit exceeded"), "fail", "claim"),
        (CLAIM, Answer(503, b"rate limit exceeded"), "unknown", "claim"),
        (CLAIM, Answer(0, error="no answer within 3s"), "unknown", "claim"),
        (Action("renew", "c0", "s0"), Answer(200, b"[{}]"), "ok", "renew"),
        (Action("renew", "c0", "s0"), Answer(404, b"Session id 's0' not found"), "fail", "gone"),
        (Action("renew", "c0", "s0"), Answer(500, b"No cluster leader"), "unknown", "renew"),
        (Action("release", "c0", "s0"), Answer(200, b"true"), "ok", "release"),
        (Action("release", "c0", "s0"), Answer(200, b"false"), "fail", "release"),
        (Action("end", "c0", "s0"), Answer(200, b"true"), "ok", "end"),
        (Action("session", "c0"), Answer(200, b'{"ID": "s7"}'), "ok", "session"),
        (Action("session", "c0"), Answer(200, b'{"I'), "unknown", "session"),
        (Action("session", "c0"), Answer(500, b"No cluster leader"), "unknown", "session"),
        (Action("fence", "c0", "s0"), Answer(404), "ok", "fence"),
        (Action("fence", "c0", "s0"), Answer(500, b"No cluster leader"), "fail", "fence"),
        (Action("fence", "c0", "s0"), Answer(200, b"[]"), "fail", "fence"),
    ],
)
def test_what_an_answer_means(action, answer, outcome, op):
    reply = reply_to(action, answer)
    assert reply.outcome == outcome
    assert reply.status == answer.status
    assert reply.error.startswith(GONE) == (op == "gone")
    assert (reply.reason == SESSION_GONE) == (op == "gone")
    assert bool(reply.reason) == (outcome != "ok")
    assert bool(reply.error) == (outcome != "ok")
    if reply.detail is not None:
        assert Action.of(reply.detail).op == op


def test_a_session_learns_its_id_and_a_fence_whose_the_lock_is():
    made = reply_to(Action("session", "c0", ttl_s=5), Answer(200, b'{"ID": "s7"}'))
    assert Action.of(made.detail) == Action("session", "c0", "s7", ttl_s=5)
    entry = json.dumps([{"LockIndex": 3, "Session": "s9", "Value": "YzA="}]).encode()
    assert Action.of(reply_to(Action("fence", "c0", "s7"), Answer(200, entry)).detail) == Action("fence", "c0", "s9", 3)
    free = json.dumps([{"LockIndex": 3, "Value": "YzA="}]).encode()
    assert Action.of(reply_to(Action("fence", "c0", "s7"), Answer(200, free)).detail) == Action("fence", "c0", "", 3)


def test_an_action_survives_its_way_through_the_recording():
    assert Action.of(CLAIM.detail()) == CLAIM
    with pytest.raises(ValueError, match=r"not an operation of a consul\.lock load"):
        Action.of(Detail("lock", {"colour": "red"}))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"ttl": "500ms"}, "a session's TTL is 1s to"),
        ({"ttl": "10s", "renew": "10s"}, "must be shorter than ttl"),
        ({"holders": 3, "locks": 10}, "some locks would have no contender"),
        ({"lock_delay": "2m"}, "lock_delay"),
        ({"claim_every": "0s"}, "longer than 0s"),
        ({"holders": 5000, "claim_every": "500ms"}, "one process can do"),
        ({"hold": "0s"}, "longer than 0s"),
    ],
)
def test_bad_parameters_are_told_apart(params, message):
    with pytest.raises(ValidationError, match=message):
        Lock.Params.model_validate(params)


def test_parameters_survive_the_way_to_the_load_process_and_the_incidents_leases_can_be_written():
    for lease in (
        {"ttl": "5s", "renew": "4.5s"},
        {"ttl": "10s", "renew": "5s"},
        {"ttl": "60s", "renew": "30s", "hold": "5s"},
    ):
        params = Lock.Params.model_validate(lease)
        assert Lock.Params.model_validate(params.model_dump(mode="json", by_alias=True)) == params


def test_a_load_without_an_agent_says_so():
    with pytest.raises(ValueError, match="'leases' has no agent"):
        Lock("leases", Lock.Params(), LoadContext([]))


@pytest.mark.lie
@pytest.mark.parametrize(("move_on", "asked", "moved"), [(True, "aabb", 1), (False, "aaaa", 0)])
async def test_a_contender_goes_on_once_from_an_agent_that_is_gone_where_it_may(move_on, asked, moved):
    """Two requests are under way when the agent dies: a move for each of them would lead past the next agent."""
    urls = []

    class Http:
        async def request(self, _method, url, **_):
            urls.append(url[7])
            await asyncio.sleep(0.1)
            return Answer(0, error="connection refused") if url.startswith("http://a") else Answer(200, b"true")

    load = Lock("leases", Lock.Params(move_on=move_on), LoadContext(["http://a", "http://b", "http://c"]))
    for _ in range(2):
        await asyncio.gather(*(load._send(Http(), 0, "lock", CLAIM) for _ in range(2)))
    assert (load._moves.total(), "".join(urls)) == (moved, asked)
