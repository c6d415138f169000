"""The server of the page as a process: where it listens, what it says when it cannot, and what its stop button does."""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time

import httpx2
import psutil
import pytest

from hashidrill.core.errors import UsageError
from hashidrill.gamedays.warroom import serving
from hashidrill.gamedays.warroom.room import Room
from hashidrill.gamedays.warroom.serving import serve

JSON = {"content-type": "application/json"}


def origin(url):
    return url.rsplit("/", 2)[0]


def post(url, what, body=None, **headers):
    return httpx2.post(f"{url}{what}", json=body or {}, headers={"origin": origin(url), **headers}, trust_env=False)


def test_it_listens_on_the_loopback_alone_and_is_gone_afterwards():
    with serve() as room:
        port = int(origin(room.lead_url).rsplit(":", 1)[1])
        listening = [
            each.laddr
            for each in psutil.Process().net_connections("inet")
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port
        ]
        assert [each.ip for each in listening] == ["127.0.0.1"]
        assert httpx2.get(room.watch_url, trust_env=False).status_code == 200
        assert httpx2.get(f"{origin(room.lead_url)}/x/", trust_env=False).status_code == 404
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(room.watch_url, trust_env=False)
    assert [each.name for each in threading.enumerate() if each.name == "warroom"] == []


@pytest.mark.lie
def test_at_another_address_it_answers_to_that_one_alone():
    with serve(address="127.0.0.2") as room:
        assert room.lead_url.startswith("http://127.0.0.2:")
        assert httpx2.get(room.lead_url, trust_env=False).status_code == 200
        for host in ("127.0.0.1", "localhost", "evil.example"):
            there = f"{host}:{httpx2.URL(room.lead_url).port}"
            assert httpx2.get(room.lead_url, headers={"host": there}, trust_env=False).status_code == 403
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(room.lead_url.replace("127.0.0.2", "127.0.0.1"), trust_env=False)


def test_a_port_that_is_taken_or_is_none_is_said_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"--port {port}: .*in use.*choose another port"), serve(port):
            pytest.fail("it was served")
    for port in (-1, 65536):
        with pytest.raises(UsageError, match="from 1 to 65535"), serve(port):
            pytest.fail("it was served")


@pytest.mark.lie
def test_people_open_their_pages_elsewhere_and_the_lead_does_not():
    """127.0.0.2 stands for an address in a network: another one than that of the lead's page."""
    with serve(elsewhere="127.0.0.2") as room:
        ada = room.invite("ada")
        assert ada.startswith("http://127.0.0.2:")
        assert ada == room.invite("ada") != room.invite("grace")
        assert room.watch_url.startswith("http://127.0.0.2:")
        for url in (ada, room.watch_url, room.lead_url):
            assert httpx2.get(url, trust_env=False).status_code == 200
        assert httpx2.get(room.lead_url.replace("127.0.0.1", "127.0.0.2"), trust_env=False).status_code == 404
        said = post(ada, "predict", {"run": 1, "answers": {"stop": "x" * 1_000_000}})
        assert (said.status_code, said.json()["said"]) == (413, "this is too long: the limit is 16 KiB")
        assert httpx2.get(f"{origin(ada)}/{'x' * 32}/", trust_env=False).status_code == 404
    with (
        pytest.raises(UsageError, match=r"--people-at 203\.0\.113\.7, --port \d+: the page cannot be served there"),
        serve(elsewhere="203.0.113.7"),
    ):
        pytest.fail("it was served")


def test_a_person_whose_page_stays_closed_has_left(monkeypatch):
    monkeypatch.setattr(serving, "LEFT_AFTER_S", 0.1)
    gone = queue.SimpleQueue()
    with serve() as room:
        room.left = gone.put
        url = room.invite("grace")
        with httpx2.stream("GET", f"{url}events", trust_env=False) as stream:
            next(stream.iter_lines())
            assert gone.empty()
        assert gone.get(timeout=20) == "grace"


def idle(room, count, said=b""):
    """Connections that send `said` and nothing more."""
    port = int(origin(room.lead_url).rsplit(":", 1)[1])
    opened = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(count)]
    for one in opened:
        with contextlib.suppress(OSError):  # it had to leave already
            one.sendall(said)
    return opened


def still_open(connections):
    found = 0
    for one in connections:
        one.settimeout(0.2)
        try:
            found += one.recv(1) != b""
        except TimeoutError:
            found += 1
        except OSError:
            pass
    return found


def in_a_request(room):
    return f"GET /{'x' * 32}/ HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ".encode()


def with_the_token_of_those_who_watch(room):
    path = room.watch_url.split("/", 3)[3]
    return f"GET /{path}events HTTP/1.1\r\nHost: {origin(room.watch_url)[7:]}\r\n\r\n".encode()


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize("said", [lambda room: b"", in_a_request, with_the_token_of_those_who_watch])
def test_the_leads_stop_gets_through_however_many_others_are_connected(said):
    pressed = []
    with serve(room=Room(interrupt=lambda: pressed.append("stop"))) as room:
        room.begins("a run")
        others = idle(room, 300, said(room))
        assert httpx2.get(room.lead_url, trust_env=False).status_code == 200
        assert post(room.lead_url, "stop").status_code == 200
        assert pressed == ["stop"]
        for one in others:
            one.close()


@pytest.mark.long
def test_what_the_lead_has_open_stays_and_the_oldest_strangers_leave_first():
    with serve() as room, httpx2.Client(trust_env=False) as lead:
        with lead.stream("GET", f"{room.lead_url}events") as stream:
            lines = stream.iter_lines()
            next(lines)
            others = idle(room, serving.MOST + 20)
            assert post(room.lead_url, "stop").status_code == 409, "there is nothing to stop, but it was heard"
            room.note("ana", "still here")
            assert any("still here" in line for line in lines)
            assert still_open(others[:20]) == 0
            assert still_open(others[-20:]) == 20
        for one in others:
            one.close()


@pytest.mark.long
def test_a_connection_without_a_token_has_a_moment_to_show_one(monkeypatch):
    monkeypatch.setattr(serving, "INTRODUCES_WITHIN_S", 0.3)
    with serve() as room:
        for said in (b"", in_a_request(room)):
            [stranger] = idle(room, 1, said)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
            stranger.close()
        [watching] = idle(room, 1, with_the_token_of_those_who_watch(room))
        assert watching.recv(12) == b"HTTP/1.1 200"
        time.sleep(0.5)
        assert still_open([watching])
        watching.close()


RUN = """
import sys, time
from hashidrill.gamedays.warroom.serving import serve
with serve() as room:
    room.begins("a run")
    try:
        print(room.lead_url, room.watch_url, flush=True)
        {waits}
    except KeyboardInterrupt:
        print("reverted", flush=True)
        sys.exit(130)
"""
WAITS = {
    "while it sleeps": "time.sleep(60)",
    "while it waits for a line": "input()",
    "while it waits for an event": "__import__('queue').SimpleQueue().get()",
}


@pytest.mark.lie
@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
def test_the_stop_button_does_what_ctrl_c_does(waits):
    started = subprocess.Popen(
        [sys.executable, "-c", RUN.format(waits=waits)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        lead, watch = started.stdout.readline().split()
        assert post(watch, "stop").status_code == 403
        assert post(lead, "stop", origin="http://evil.example").status_code == 403
        assert started.poll() is None
        assert post(lead, "stop").status_code == 200
        assert started.stdout.readline() == "reverted\n"
        assert started.wait(30) == 130
    finally:
        started.kill()
        started.communicate()


def test_where_ctrl_c_is_ignored_it_sends_sigterm_as_a_run_wants_it():
    script = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
def ended(*_):
    sys.exit(130)
signal.signal(signal.SIGTERM, ended)
from hashidrill.gamedays.warroom.room import interrupt
import threading
threading.Thread(target=interrupt).start()
time.sleep(60)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 130


@pytest.mark.long
@pytest.mark.lie
def test_a_browser_that_reads_nothing_holds_up_nobody():
    """It connects, asks for the stream, and never takes a byte. The run goes on, and so does everybody else's page."""
    with serve() as room:
        host = origin(room.lead_url).removeprefix("http://")
        with socket.create_connection(tuple(host.split(":"))) as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            path = room.lead_url.split(host)[1]
            stuck.sendall(f"GET {path}events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            for number in range(3000):
                room.note("", f"{number} " + "x" * 1500)
            with httpx2.stream("GET", f"{room.lead_url}events", trust_env=False) as other:
                assert "2999 x" in next(line for line in other.iter_lines() if line.startswith('data: {"missed'))
    assert room.is_over


def test_the_lead_page_is_not_in_the_environment_or_the_command_line_of_the_runner():
    with serve() as room:
        token = room.lead_url.rsplit("/", 2)[1]
        assert token not in " ".join(psutil.Process().cmdline())
        assert token not in " ".join(os.environ.values())
