"""A canary that stands in for what will listen: it is there, it says nothing, and it steps aside at once."""

from __future__ import annotations

import socket

import pytest

from hashidrill.datacenter.local.inside.canary import Canary


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def canary(tmp_path, port):
    found = Canary(str(tmp_path))
    found.answer({"op": "stand_in", "address": "127.0.0.1", "ports": [port]})
    yield found
    found.answer({"op": "step_aside", "ports": [port]})


def test_who_connects_is_sent_away(canary, port):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
            assert wire.recv(1) == b""


def test_the_port_is_free_once_it_has_stepped_aside_and_taken_again_later(canary, port):
    for _ in range(20):
        canary.answer({"op": "step_aside", "ports": [port]})
        with socket.socket() as other:  # as Go's servers do not: with no address of a port that somebody has
            other.bind(("127.0.0.1", port))
            other.listen()
        canary.answer({"op": "stand_in", "address": "127.0.0.1", "ports": [port]})


def test_both_can_be_asked_twice(canary, port):
    canary.answer({"op": "stand_in", "address": "127.0.0.1", "ports": [port]})
    for _ in range(2):
        assert canary.answer({"op": "step_aside", "ports": [port, 1]}) == {}
