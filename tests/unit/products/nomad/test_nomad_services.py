"""Services that Nomad registers: what the load sees of two products that agree, and of two that do not."""

import json

import pytest

from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext
from hashidrill.products.nomad.loads.services import ALLOC, Services, Wrong, find_wrong
from load_clients import Client, runs_for
from virtual_time import VirtualClock, run

NOMAD = ["http://10.73.0.14:4646", "http://10.73.0.15:4646"]
CONSUL = ["http://10.73.0.11:8500", "http://10.73.0.12:8500"]
JOB = "hashidrill-web-1"


def alloc(n, *, name=None, client="running", desired="run"):
    return {
        "ID": f"alloc-{n}",
        "Name": f"{JOB}.group[{n if name is None else name}]",
        "ClientStatus": client,
        "DesiredStatus": desired,
        "CreateIndex": n,
    }


def entry(n, *, node="node-1", status="passing", meta=True):
    return {
        "Node": {"Node": node},
        "Service": {"ID": f"_nomad-task-alloc-{n}", "Meta": {ALLOC: f"alloc-{n}"} if meta else None},
        "Checks": [{"Status": "passing"}, {"Status": status}],
    }


# what is wrong


def test_two_views_of_the_same_agree():
    assert find_wrong([alloc(0), alloc(1)], [entry(0), entry(1)]) == {}


@pytest.mark.lie
@pytest.mark.parametrize(
    ("allocs", "entries", "found"),
    [
        ([alloc(0)], [], Wrong("missing", f"{JOB}.group[0]")),
        ([alloc(0)], [entry(0, status="critical")], Wrong("critical", "alloc-0")),
        ([], [entry(0)], Wrong("stale", "alloc-0")),
        ([alloc(0, client="lost", desired="stop")], [entry(0)], Wrong("stale", "alloc-0")),
        ([alloc(0, client="failed")], [entry(0)], Wrong("stale", "alloc-0")),
        ([alloc(0)], [entry(0), entry(0, node="node-2")], Wrong("duplicate", "alloc-0")),
        ([alloc(0)], [entry(0), entry(7, meta=False)], Wrong("stale", "_nomad-task-alloc-7")),
    ],
)
def test_each_kind_of_disagreement_is_told(allocs, entries, found):
    assert list(find_wrong(allocs, entries)) == [found]


@pytest.mark.parametrize("client", ["pending", "unknown"])
def test_what_may_run_is_neither_missing_nor_stale(client):
    assert find_wrong([alloc(0, client=client)], [entry(0)]) == {}
    assert find_wrong([alloc(0, client=client)], []) == {}


# the load


class World(Client):
    """Nomad and Consul in place of the HTTP client: `nomad(at_s)` and `consul(at_s)` are what they say."""

    def __init__(self, nomad, consul):
        self.nomad, self.consul, self.asked = nomad, consul, []
        self.clock = VirtualClock()

    async def request(self, method, url, *, body=None, params=None, timeout_s):
        self.asked.append((method, url, json.loads(body) if body else None))
        if method != "GET":
            return Answer(200, b"{}")
        side = self.consul if url.startswith(tuple(CONSUL)) else self.nomad
        found = side(self.clock.now_ns() / 1e9)
        return found if isinstance(found, Answer) else Answer(200, json.dumps(found).encode())


def watched(nomad, consul, seconds, **params):
    """(operations, the samples by name, what was asked) of a load that runs for so long."""
    operations, samples, asked = [], {}, []

    async def main():
        world = World(nomad, consul)
        context = LoadContext(
            NOMAD,
            clock=world.clock,
            run_id="run",
            others={"consul": CONSUL},
            emit_sample=lambda what, value, _text: samples.setdefault(what, []).append(value),
        )
        it = Services("web", Services.Params.model_validate({"count": 2, **params}), context)
        it.client = lambda: world
        operations.extend(await runs_for(it, seconds))
        await it.clean_up()
        asked.extend(world.asked)

    run(main())
    return operations, samples, asked


def both(_at_s):
    return [alloc(0), alloc(1)]


def told(operations):
    return [(op.key, op.value, op.outcome, round((op.end_ns - op.intended_ns) / 1e9, 1)) for op in operations]


def test_the_first_operations_are_instances_that_start_and_are_registered():
    operations, samples, asked = watched(
        lambda at_s: both(at_s) if at_s >= 2 else [],
        lambda at_s: [entry(n) for n in range(2) if at_s >= 3 + n],
        6,
    )
    assert told(operations) == [
        (f"{JOB}.group[0]", "missing", "ok", 3.0),
        (f"{JOB}.group[1]", "missing", "ok", 4.0),
    ]
    assert (samples["registered"][-1], samples["running"][-1], samples["missing"][-1]) == (2, 2, 0)
    [job] = [body["Job"] for method, _, body in asked if method == "POST"]
    [service] = job["TaskGroups"][0]["Services"]
    assert (service["Name"], service["Provider"]) == (JOB, "consul")
    assert [url for method, url, _ in asked if method == "DELETE"] == [f"{NOMAD[0]}/v1/job/{JOB}"]


def test_the_instances_of_all_jobs_are_missing_from_the_same_moment_on():
    """What was whole before a fault is judged by those that began first."""
    operations, samples, _ = watched(lambda _: [], lambda _: [], 3, jobs=3)
    assert {op.intended_ns for op in operations} == {0}
    assert sorted(op.key for op in operations)[::2] == [f"hashidrill-web-{n}.group[0]" for n in (1, 2, 3)]
    assert samples["missing"][-1] == 6


def test_consul_is_read_through_the_agents_of_its_own_parameter_in_turn():
    _, _, asked = watched(both, lambda _: [entry(0), entry(1)], 3)
    assert {url.partition("/v1/health")[0] for _, url, _ in asked if "/v1/health/service/" in url} == set(CONSUL)


def test_an_instance_that_consul_forgets_is_an_operation_until_it_is_back():
    operations, samples, _ = watched(both, lambda at_s: [entry(0)] if 2 <= at_s < 5 else [entry(0), entry(1)], 8)
    assert told(operations)[2:] == [(f"{JOB}.group[1]", "missing", "ok", 3.0)]
    assert max(samples["missing"]) == 1


def test_an_entry_that_nothing_runs_behind_is_an_operation_and_unknown_when_it_stays():
    operations, samples, _ = watched(both, lambda at_s: [entry(n) for n in range(2 if at_s < 2 else 3)], 6)
    assert [op[:3] for op in told(operations)[2:]] == [("alloc-2", "stale", "unknown")]
    assert samples["stale"][-1] == 1


def test_a_replica_that_moves_and_takes_its_registration_with_it_was_never_wrong():
    operations, samples, _ = watched(
        lambda at_s: (
            both(at_s) if at_s < 3 else [alloc(0), alloc(1, client="complete", desired="stop"), alloc(2, name=1)]
        ),
        lambda at_s: [entry(0), entry(1)] if at_s < 3 else [entry(0), entry(2, node="node-2")],
        6,
    )
    assert len(operations) == 2
    assert set(samples["stale"]) == {0}


@pytest.mark.lie
@pytest.mark.parametrize("blind", ["nomad", "consul"])
def test_a_product_that_does_not_answer_says_nothing_about_registrations(blind):
    def says(who, at_s):
        if who == blind and 2 <= at_s < 4:
            return Answer(500, b"No cluster leader")
        return both(at_s) if who == "nomad" else [entry(0), entry(1)]

    operations, samples, _ = watched(lambda at_s: says("nomad", at_s), lambda at_s: says("consul", at_s), 6)
    assert len(operations) == 2
    assert None in samples["missing"]
    assert samples["missing"][-1] == 0


def test_replicas_are_stopped_in_turn_the_oldest_first():
    _, _, asked = watched(both, lambda _: [entry(0), entry(1)], 7, replace_every="2s")
    stopped = [url for method, url, _ in asked if method == "POST" and "/allocation/" in url]
    assert [url.rpartition(":4646")[2] for url in stopped] == ["/v1/allocation/alloc-0/stop"] * 3


def test_without_it_nothing_is_stopped():
    _, _, asked = watched(both, lambda _: [entry(0), entry(1)], 7)
    assert not [url for _, url, _ in asked if "/allocation/" in url]
