"""What Consul's loads leave: each place that they may write to is named, and sessions are ended."""

import asyncio
import contextlib
import json

import pytest
from pydantic import ValidationError

from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import NeedsLoadRights
from hashidrill.core.protocols.rights import Left
from hashidrill.products.consul.loads.locks import Lock
from load_clients import Client, runs_for
from virtual_time import VirtualClock, ran

GUESSES = ({}, {"rate": "5/s"}, {"rate": "5/s", "find": "kv"}, {"find": "kv"}, {"targets": 3, "find": "kv"})


def fitting(kind):
    """Some parameters of it; the one that finds its targets in the KV store, where it has a choice."""
    for guess in reversed(GUESSES):
        with contextlib.suppress(ValidationError):
            return kind.Params.model_validate(guess)
    return None


def writers():
    """(kind, what it may write) of all loads that may write keys."""
    for name, kind in registry.loads().items():
        params = fitting(kind)
        if params is None:
            continue
        rights = kind.rights("it", params) if isinstance(kind, NeedsLoadRights) else ()
        rights = [one for one in rights if one.resource in {"key", "key_prefix"}]
        if written := {one.name for one in rights if one.access == "write"}:
            yield name, kind, params, written


def keys_left(kind, params):
    return [each for each in kind.leaves("it", params, "run-1") if each.what in {"key", "keys below"}]


@pytest.mark.lie
def test_each_place_that_a_load_may_write_to_is_among_what_it_leaves():
    found = list(writers())
    for name, kind, params, written in found:
        left = [each.name for each in keys_left(kind, params)]
        for place in written:
            assert any(each.startswith(place) for each in left), f"{name} may write {place} and leaves {left}"
        assert all(any(each.startswith(place) for place in written) for each in left), f"{name}: not its own: {left}"
    assert {name for name, *_ in found} >= {"consul.kv.write", "consul.kv.read", "consul.kv.cas", "consul.lock"}


def test_no_place_is_that_of_another_load():
    for name, kind, params, _ in writers():
        for left in keys_left(kind, params):
            assert left.name.endswith("/") or left.what == "key", name
            assert "it" in left.name.split("/"), name


def test_keys_that_are_written_once_are_those_of_the_run():
    kind = registry.load("consul.kv.write")
    params = kind.Params.model_validate({"rate": "5/s"})
    assert kind.leaves("kv-writes", params, "run-1") == (
        Left("consul", "keys below", "hashidrill/kv-writes/"),
        Left("consul", "keys below", "hashidrill-once/kv-writes/run-1/"),
    )
    none_once = kind.Params.model_validate({"rate": "5/s", "once": "0%"})
    assert len(kind.leaves("kv-writes", none_once, "run-1")) == 1


class Sessions(Client):
    """Consul's sessions, in place of the HTTP client. `sick`: agents that do not answer."""

    def __init__(self):
        self.there, self.made, self.sick = set(), 0, set()

    async def request(self, method, url, *, body=None, params=None, timeout_s):
        await asyncio.sleep(0.01)
        if any(url.startswith(agent) for agent in self.sick):
            await asyncio.sleep(timeout_s)
            return Answer(0, b"")
        what, _, session = url.partition("/v1/session/")[2].partition("/")
        if what == "create":
            self.made += 1
            self.there.add(f"s{self.made}")
            return Answer(200, json.dumps({"ID": f"s{self.made}"}).encode())
        if what == "destroy":
            self.there.discard(session)
            return Answer(200, b"true")
        return Answer(200, b"true" if method == "PUT" else b"[]")


AGENTS = ["http://10.73.0.31:8500", "http://10.73.0.32:8500"]


@ran
async def locked(then):
    """(sessions, samples) after a load of ten holders, and `then(sessions)`, and its clean-up."""
    sessions, samples = Sessions(), []
    context = LoadContext(AGENTS, clock=VirtualClock(), emit_sample=lambda *one: samples.append(one))
    load = Lock("leases", Lock.Params.model_validate({"holders": 10, "locks": 2}), context)
    load.client = lambda: sessions
    await runs_for(load, 8)
    held = len(sessions.there)
    then(sessions)
    samples.clear()
    await load.clean_up()
    return held, sessions, samples


def test_the_sessions_of_a_lock_load_end_with_it():
    held, sessions, samples = locked(lambda _: None)
    assert (held, sessions.there, samples) == (10, set(), [])


def test_where_one_agent_is_sick_another_ends_them():
    _, sessions, samples = locked(lambda sessions: sessions.sick.add(AGENTS[0]))
    assert (sessions.there, samples) == (set(), [])


def test_sessions_that_nobody_ends_are_told():
    _, sessions, samples = locked(lambda sessions: sessions.sick.update(AGENTS))
    assert len(sessions.there) == 10
    assert samples == [("left", 10.0, "10 sessions were not ended: each ends by its TTL")]
