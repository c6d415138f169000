"""Where clients read that follow Consul's DNS, with a resolver that answers from the weights in a catalog."""

import json

import dns.asyncquery
import dns.message
import dns.rrset
import pytest

from hashidrill.core.experiment.load_levels import Course
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.units import Percent
from hashidrill.products.consul.loads.kv import padded
from hashidrill.products.consul.loads.steering import DnsRead
from load_clients import Client, runs_for
from virtual_time import VirtualClock, run

AGENT, WAITING = "10.73.0.31", "192.0.2.1"


class Consul(Client):
    """A catalog, its DNS, and a key; what it refuses or keeps silent about is told by `sick`."""

    def __init__(self, ttl_s):
        self.weights, self.ttl_s, self.sick, self.asked, self.nodes = {}, ttl_s, set(), 0, set()

    async def request(self, method, url, *, body=None, params=None, timeout_s):
        path = url.removeprefix(f"http://{AGENT}:8500")
        if path == "/v1/txn":
            if "catalog" in self.sick:
                return Answer(500, b"no leader")
            for change in json.loads(body):
                if "Node" in change:
                    self.nodes.add(change["Node"]["Node"]["Node"])
                    continue
                service = change["Service"]["Service"]
                self.weights.pop(service["Address"], None)
                if change["Service"]["Verb"] == "set":
                    self.weights[service["Address"]] = (service["Weights"]["Passing"], service["Port"])
            return Answer(200, b"{}")
        if path == "/v1/catalog/deregister":
            self.nodes.discard(json.loads(body)["Node"])
            return Answer(200, b"true")
        return Answer(200, b"true" if method == "PUT" else padded("run.1", 64))

    async def resolve(self, question, where, *, port, **_):
        assert (where, port) == (AGENT, 8600)
        if "dns" in self.sick:
            raise OSError("no answer")
        self.asked += 1
        answer, name = dns.message.make_response(question), question.question[0].name
        records = []
        for address, (weight, target) in self.weights.items():
            records.append(f"1 {weight} {target} at-{address.replace('.', '-')}.")
            answer.additional.append(dns.rrset.from_text(f"at-{address.replace('.', '-')}.", 0, "IN", "A", address))
        if records and "names" not in self.sick:
            answer.answer.append(dns.rrset.from_text(name, self.ttl_s, "IN", "SRV", *records))
        return answer, False


@pytest.fixture
def steered(monkeypatch):
    """(operations, {signal: [(seconds, value)]}, the Consul) of a load at these levels: (seconds, level)."""

    def start(seconds, levels, *, ttl_s=1, events=(), **params):
        consul = Consul(ttl_s)
        monkeypatch.setattr(dns.asyncquery, "udp_with_fallback", consul.resolve)

        async def main():
            clock, course, seen = VirtualClock(), Course(), {}
            for at_s, level in levels:
                course.set(int(at_s * 1e9), level)

            def sample(what, value, _):
                for at_s, sick in events:
                    if clock.now_ns() >= at_s * 1e9:
                        consul.sick = sick
                seen.setdefault(what, []).append((clock.now_ns() / 1e9, value))

            context = LoadContext([f"http://{AGENT}:8500"], clock=clock, course=course, emit_sample=sample)
            it = DnsRead("players", DnsRead.Params.model_validate({"clients": 200, **params}), context)
            it.client = lambda: consul
            await it.prepare()
            operations = await runs_for(it, seconds)
            assert consul.nodes == {"hashidrill-players"}
            await it.clean_up()
            assert not consul.nodes
            return operations, seen, consul

        return run(main())

    return start


def within(seen, begin_s, end_s):
    return [value for at_s, value in seen if begin_s <= at_s < end_s]


def test_the_share_of_clients_follows_each_step_of_the_weights(steered):
    operations, seen, _ = steered(12, [(3, 0.0), (6, 0.1), (9, 0.6)])
    for span, share in (((2, 3), 1.0), ((5, 6), 0.0), ((8, 9), 0.1), ((11, 12), 0.6)):
        assert within(seen["steered"], *span) == [pytest.approx(share)] * 4
        assert within(seen["inside"], *span) == pytest.approx([share] * 4, abs=0.1)
    reads = [op for op in operations if 8 <= op.intended_ns / 1e9 < 9]
    assert 8 <= len(reads) <= 40, "clients at the waiting page read nothing"
    assert {op.outcome for op in operations if op.end_ns < 11.9e9} == {"ok"}


@pytest.mark.lie
def test_a_ttl_delays_a_step_and_clients_ask_again_only_after_it(steered):
    """Planted: a load that resolves each time would follow at once, whatever the TTL is."""
    _, seen, consul = steered(15, [(3, 0.0)], ttl_s=10)
    for at_s, share in ((4, 0.9), (8, 0.5), (12, 0.15)):
        assert within(seen["inside"], at_s, at_s + 0.5) == pytest.approx([share] * 2, abs=0.1)
        assert within(seen["behind"], at_s, at_s + 0.5) == within(seen["inside"], at_s, at_s + 0.5)
    assert within(seen["inside"], 14.25, 15) == [0.0] * 3
    assert consul.asked < 200 * 15 / 5


@pytest.mark.lie
def test_weights_that_consul_refuses_are_not_what_clients_are_steered_by(steered):
    _, seen, consul = steered(8, [(3, 0.0)], events=[(2, {"catalog"})])
    assert within(seen["steered"], 4, 8) == within(seen["behind"], 4, 8) == [None] * 16
    assert within(seen["inside"], 4, 8) == [1.0] * 16
    assert [*consul.weights] == [AGENT]


@pytest.mark.parametrize(
    ("sick", "error"), [("dns", "DNS: no answer"), ("names", "DNS: gate.service.consul has no instance (NOERROR)")]
)
def test_without_an_answer_of_dns_a_client_reads_nothing_and_says_why(sick, error, steered):
    operations, _, _ = steered(6, [], events=[(2, {sick})], clients=40)
    late = [op for op in operations if 4e9 <= op.intended_ns < 5.9e9]
    assert {(op.outcome, op.error, op.reason) for op in late} == {("fail", error, "not-sent")}


def test_what_it_may_leave_and_what_it_costs_follow_from_its_parameters():
    left = DnsRead.leaves("players", DnsRead.Params(), "run")
    assert [one.name for one in left] == ["hashidrill/players/", "hashidrill-players"]
    assert DnsRead.cost(DnsRead.Params(clients=400, every="500ms")).rate_per_s == 800
    assert DnsRead.signals["behind"] is Percent
