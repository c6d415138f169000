"""What the health-check load registers, and how its server answers."""

import asyncio
import json

import pytest
from pydantic import ValidationError

from hashidrill.core.errors import DatacenterError
from hashidrill.core.experiment.load_levels import Course, Piece
from hashidrill.core.loads.arrivals import CheckServer, _Connection
from hashidrill.core.loads.base import LoadContext
from hashidrill.products.consul.loads.checks import HealthChecks
from tasks import running
from virtual_time import VirtualClock, run

AGENTS = ["http://10.73.0.31:8500/", "http://10.73.0.32:8500"]


def load(agents=AGENTS, *, course=None, **params):
    params = HealthChecks.Params.model_validate({"checks": 3, "interval": "2s", "check_timeout": "1500ms", **params})
    context = LoadContext(agents, clock=VirtualClock() if course else None, course=course or Course())
    return HealthChecks("explosion", params, context)


def test_every_agent_makes_every_check():
    it = load()
    assert it._places(range(2)) == [
        ("http://10.73.0.31:8500", 0),
        ("http://10.73.0.32:8500", 0),
        ("http://10.73.0.31:8500", 1),
        ("http://10.73.0.32:8500", 1),
    ]


def test_a_check_names_who_makes_it_and_begins_as_passing():
    it = load()
    it._server.port = 4711
    assert json.loads(it._definition("http://10.73.0.31:8500", 7)) == {
        "ID": "hashidrill-explosion-7",
        "Name": "hashidrill-explosion-7",
        "ServiceID": "hashidrill-explosion",
        "HTTP": "http://127.0.0.1:4711/10.73.0.31/7",
        "Interval": "2000ms",
        "Timeout": "1500ms",
        "Status": "passing",
    }


def followed(course, seconds, *, refusing=lambda at_s: False):
    """What was asked of the agent under a course: (second, what, which check); and how many checks it ended with."""
    asked, registered = [], []

    async def main():
        it = load(AGENTS[:1], course=course, checks=10)
        it._registered = 10

        async def ask(client, url, body=None):
            at_s = it.context.clock.now_ns() / 1e9
            number = int((json.loads(body)["ID"] if body else url).rpartition("-")[2])
            asked.append((round(at_s, 2), "register" if body else "deregister", number))
            return not refusing(at_s)

        it._ask = ask
        async with running(it._follow_level(None)):
            await asyncio.sleep(seconds)
            registered.append(it._registered)

    run(main())
    return asked, registered[0]


def test_the_level_of_the_profile_is_that_of_the_checks():
    course = Course([Piece(1_000_000_000, 1.3), Piece(2_000_000_000, 0.9)])
    course.begin(0)
    asked, registered = followed(course, 3)
    assert [row[1:] for row in asked if row[0] < 2] == [("register", n) for n in (10, 11, 12)]
    assert [row[1:] for row in asked if row[0] >= 2] == [("deregister", n) for n in (9, 10, 11, 12)]
    assert {row[0] for row in asked} == {1.0, 2.0}
    assert registered == 9


def test_what_an_agent_does_not_take_is_tried_again():
    course = Course([Piece(1_000_000_000, 1.1)])
    course.begin(0)
    asked, registered = followed(course, 3, refusing=lambda at_s: at_s < 1.4)
    assert asked == [(1.0, "register", 10), (1.25, "register", 10), (1.5, "register", 10)]
    assert registered == 11


def test_a_spike_is_cut_off_at_what_can_be_answered():
    course = Course([Piece(1_000_000_000, 1000.0)])
    course.begin(0)
    _, registered = followed(course, 30)
    assert registered == 3000 * 2  # every two seconds


class Transport:
    def __init__(self):
        self.written, self.closed, self.aborted = b"", False, False

    def write(self, data):
        self.written += data

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True


def answer(*chunks, known=("10.73.0.31/7",)):
    asked, transport = [], Transport()

    def on_check(check):
        asked.append(check)
        return check in known

    connection = _Connection(on_check)
    connection.connection_made(transport)
    for chunk in chunks:
        connection.data_received(chunk)
    return asked, transport


def test_a_check_is_answered_once_its_request_is_whole():
    request = b"GET /10.73.0.31/7 HTTP/1.1\r\nHost: x\r\nUser-Agent: Consul Health Check\r\n\r\n"
    asked, transport = answer(request)
    assert asked == ["10.73.0.31/7"]
    assert transport.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert transport.closed
    asked, transport = answer(request[:20])
    assert (asked, transport.written, transport.closed) == ([], b"", False)
    assert answer(request[:20], request[20:])[0] == ["10.73.0.31/7"]


def test_a_check_that_nobody_registered_is_not_found():
    _, transport = answer(b"GET /elsewhere HTTP/1.1\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("noise", [b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01 \xff \xff\r\n\r\n"])
def test_what_is_no_request_is_not_found(noise):
    assert answer(noise)[1].written.startswith(b"HTTP/1.1 404 ")


def test_a_request_without_an_end_is_cut_off():
    assert answer(b"GET / " + b"x" * 20_000)[1].aborted


def test_stopping_a_server_that_never_started_does_nothing():
    CheckServer(lambda _: True).stop()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"interval": "500ms"}, "Consul's shortest interval is 1s"),
        ({"checks": 0}, "checks"),
        ({"checks": 10_000, "interval": "1s"}, "10000 checks a second from each agent"),
        ({"check_timeout": "0s"}, "longer than 0s"),
    ],
)
def test_bad_parameters_are_told_apart(params, message):
    with pytest.raises(ValidationError, match=message):
        HealthChecks.Params.model_validate(params)


def test_more_checks_than_can_be_answered_are_refused_before_anything_is_registered():
    with pytest.raises(DatacenterError, match="4000 checks on each of 2 agents are more than the 3000 a second"):
        asyncio.run(load(checks=4000, interval="2s").prepare())


def test_parameters_survive_the_way_to_the_load_process():
    params = HealthChecks.Params.model_validate({"checks": 7, "interval": "90s"})
    assert HealthChecks.Params.model_validate(params.model_dump(mode="json", by_alias=True)) == params


def test_a_load_without_an_agent_says_so():
    with pytest.raises(ValueError, match="'explosion' has no agent"):
        load(agents=[])
