"""What Consul's catalog should say of instances that come and go, and what counts as wrong."""

import json

import pytest

from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext
from hashidrill.products.consul.loads.registrations import Book, Registrations
from load_clients import Client, runs_for
from virtual_time import VirtualClock, ran, run

AGENTS = ["http://10.73.0.1:8500", "http://10.73.0.2:8500"]


class Catalog(Client):
    """In place of the HTTP client, and of Consul: what is in its catalog can be changed behind the load's back."""

    def __init__(self, clock, events=()):
        self.there, self.asked, self._clock, self._events = set(), [], clock, sorted(events, key=lambda one: one[0])
        self.answers = True

    async def request(self, method, url, *, body=None, params=None, timeout_s):
        while self._events and self._events[0][0] <= self._clock.now_ns() / 1e9:
            self._events.pop(0)[1](self)
        path = url.partition(":8500")[2]
        self.asked.append((method, url.removeprefix("http://"), json.loads(body) if body else None))
        if not self.answers:
            return Answer(500, b"No cluster leader")
        if method == "GET":
            return Answer(200, json.dumps([{"ServiceID": key} for key in sorted(self.there)]).encode())
        sent = json.loads(body) if body else {}
        if path == "/v1/agent/service/register":
            self.there.add(sent["ID"])
        elif path == "/v1/catalog/register":
            self.there.add(sent["Service"]["ID"])
        else:
            self.there.discard(sent.get("ServiceID") or path.rpartition("/")[2])
        return Answer(200, b"true")


@ran
async def watched(seconds, events=(), **params):
    """(operations, samples, what was asked, the final reads) of a load that runs for that long."""
    clock, samples = VirtualClock(), []
    context = LoadContext(AGENTS, clock=clock, run_id="run", emit_sample=lambda *one: samples.append(one))
    it = Registrations("web", Registrations.Params.model_validate({"services": 3, **params}), context)
    catalog = Catalog(clock, events)
    it.client = lambda: catalog
    await it.prepare()
    operations = await runs_for(it, seconds)
    catalog.answers = True
    return operations, samples, catalog, await it.final_reads(), it


def of(operations, *values):
    return [(op.key, op.value, op.outcome) for op in operations if op.value in values]


def test_an_instance_comes_and_the_oldest_goes():
    operations, samples, catalog, finals, _ = watched(3.8, rate="1/s")
    assert of(operations, "register", "deregister") == [
        ("web-run-3", "register", "ok"),
        ("web-run-0", "deregister", "ok"),
        ("web-run-4", "register", "ok"),
        ("web-run-1", "deregister", "ok"),
    ]
    assert catalog.there == {"web-run-2", "web-run-3", "web-run-4"}
    assert {value for what, value, _ in samples if what in ("missing", "ghosts")} == {0.0}
    assert finals["web-run-0"] == "deregister"
    assert finals["web-run-2"] == "register"


def test_an_instance_that_goes_missing_is_wrong_until_it_is_back():
    lose = (2.1, lambda catalog: catalog.there.discard("web-run-2"))
    back = (4.6, lambda catalog: catalog.there.add("web-run-2"))
    operations, samples, _, _, _ = watched(8, [lose, back], rate="0.1/s")
    [(key, value, outcome)] = of(operations, "missing", "ghost")
    assert (key, value, outcome) == ("web-run-2", "missing", "ok")
    [op] = [op for op in operations if op.value == "missing"]
    assert 2 <= (op.end_ns - op.intended_ns) / 1e9 <= 3
    assert max(value for what, value, _ in samples if what == "missing") == 1


def test_one_that_was_deregistered_and_is_there_again_is_a_ghost_to_the_end():
    again = (3.1, lambda catalog: catalog.there.add("web-run-0"))
    operations, _, _, finals, _ = watched(5, [again], rate="0.7/s")
    assert ("web-run-0", "ghost", "unknown") in of(operations, "ghost")
    assert finals["web-run-0"] == "register"


@pytest.mark.lie
def test_without_an_answer_nothing_is_missing():
    def silent(catalog):
        catalog.answers = False

    operations, samples, _, _, _ = watched(6, [(2.1, silent)], rate="0.1/s")
    assert of(operations, "missing", "ghost") == []
    assert ("present", None, "HTTP 500") in samples


def test_a_refused_change_is_not_expected_of_the_catalog():
    def silent(catalog):
        catalog.answers = False

    operations, _, _, finals, _ = watched(3, [(0.9, silent)], rate="1/s")
    assert ("web-run-0", "deregister", "unknown") in of(operations, "deregister")
    assert "web-run-0" not in finals, "nobody knows what should be there"


def test_external_services_are_registered_in_the_catalog_on_a_node_without_an_agent():
    _, _, catalog, _, _ = watched(2.8, rate="1/s", through="catalog")
    put = [(url.partition("/")[2], body) for method, url, body in catalog.asked if method == "PUT"]
    assert put[0] == (
        "v1/catalog/register",
        {
            "Node": "hashidrill-web",
            "Address": "192.0.2.1",
            "Service": {"ID": "web-run-0", "Service": "web-run"},
        },
    )
    assert ("v1/catalog/deregister", {"Node": "hashidrill-web", "ServiceID": "web-run-0"}) in put


def test_it_takes_away_what_it_registered():
    async def leave():
        await it.clean_up()

    _, _, catalog, _, it = watched(2.8, rate="1/s")
    run(leave())
    assert catalog.there == set()


class TestTheBook:
    @pytest.mark.lie
    def test_what_was_never_shown_is_late_and_not_wrong(self):
        book = Book()
        book.changed("a", "register", 5)
        assert book.look(set(), 10) == {}

    def test_a_look_that_began_before_the_change_says_nothing_of_it(self):
        book = Book()
        shown = book.changed("a", "register", 5)
        book.look({"a"}, 4)
        assert not shown.is_set()
        book.look({"a"}, 6)
        assert shown.is_set()

    def test_what_was_shown_and_is_not_any_more_is_wrong(self):
        book = Book()
        book.changed("a", "register", 5)
        book.changed("b", "deregister", 5)
        book.look({"a"}, 6)
        assert book.look({"b"}, 7) == {"a": "missing", "b": "ghost"}
