"""The sample as a service: where its programs are, and what each is told."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from hashidrill.core.errors import DatacenterError
from hashidrill.core.protocols.service import Site, roles_of
from hashidrill.products.sample import service
from hashidrill.products.sample.loads import Get
from hashidrill.products.sample.model import Sample
from hashidrill.products.sample.service import SampleService

SPEC = Sample.model_validate(
    {"store_takes": "30ms", "caches": [{}, {"bypass_after": "150ms"}], "pools": [{"at_least": 4}]}
)
ADDRESSES = {name: f"10.73.0.{n}" for n, name in enumerate(["store-1", "cache-1", "cache-2", "pool-1"], 11)}


def plan(host, role):
    site = Site(host, role, ADDRESSES[host], Path("/run") / host, Path("/run/sample.json"), {}, ADDRESSES)
    return SampleService(SPEC).agent(site)


def test_each_program_has_a_host_of_its_own():
    places = SampleService(SPEC).places()
    assert [(place.host, place.role) for place in places] == [
        ("store-1", "store"),
        ("cache-1", "cache"),
        ("cache-2", "cache"),
        ("pool-1", "pool"),
    ]
    assert roles_of(SampleService(SPEC)).candidates("caches") == {"cache-1", "cache-2"}


def test_each_is_told_where_the_store_is_and_what_the_yaml_says_of_it():
    assert plan("store-1", "store").config == {
        "program": "store",
        "address": "10.73.0.11",
        "port": 8080,
        "takes_s": 0.03,
    }
    waits, goes_round = plan("cache-1", "cache").config, plan("cache-2", "cache").config
    assert waits["store"] == goes_round["store"] == "http://10.73.0.11:8080"
    assert (waits["bypass_after_s"], goes_round["bypass_after_s"]) == (None, 0.15)
    assert goes_round["data"] == "/run/cache-2"
    assert plan("pool-1", "pool").config["at_least"] == 4


def test_what_it_is_told_is_what_its_program_takes():
    for host, role in (("store-1", "store"), ("cache-1", "cache"), ("pool-1", "pool")):
        config = {key: value for key, value in plan(host, role).config.items() if key not in ("address", "port")}
        made = service_program().PROGRAMS[config.pop("program")]
        wanted = made.__init__.__annotations__.keys() - {"return"}
        assert config.keys() == wanted


def service_program():
    from hashidrill.products.sample import program

    return program


def test_its_source_stands_in_the_command_for_an_ordinary_user_cannot_read_ours():
    command = plan("store-1", "store").command
    assert command[1:] == ["-c", Path(service_program().__file__).read_text(), "/run/sample.json"]


def test_a_python_that_agents_cannot_reach_is_not_taken(monkeypatch, tmp_path):
    closed = tmp_path / "root"
    (closed / "python").mkdir(parents=True)
    closed.chmod(0o700)
    monkeypatch.setattr(service, "is_machine_root", lambda: True)
    monkeypatch.setattr(service.sys, "base_prefix", str(closed / "python"))
    system = tmp_path / "python3"
    monkeypatch.setattr(service, "_SYSTEM", system)
    with pytest.raises(DatacenterError, match="apt install python3"):
        service.python()
    system.touch()
    assert service.python() == system


def test_a_program_that_says_nothing_is_named(monkeypatch):
    class Silent:
        def __init__(self, name, answers):
            self.name, self.roles, self._answers = name, {"sample": "cache"}, answers

        def use(self, _):
            return self

        async def agent_answers(self, agent, _within_s):
            assert agent == "sample"
            return self._answers

    class Hosts:
        def all_hosts(self):
            return [Silent("cache-1", True), Silent("cache-2", False)]

    async def agents_run():
        pass

    async def wait():
        await SampleService(SPEC).wait_ready(Hosts(), within_s=0.01, agents_run=agents_run)

    with pytest.raises(Exception, match="no answer from cache-2"):
        anyio.run(wait)


@pytest.mark.parametrize(("fresh", "new"), [("0%", 0), ("10%", 10), ("100%", 100)])
def test_a_share_of_the_requests_is_for_something_new(fresh, new):
    load = Get.__new__(Get)
    load.name = "w"
    load.params = Get.Params.model_validate({"rate": "1/s", "keys": 7, "fresh": fresh, "via": "host:cache-1"})
    load.context = type("Context", (), {"run_id": "r"})
    keys = [load._plan(n)[0] for n in range(100)]
    fresh_ones = [key for key in keys if key.startswith("w/fresh-r-")]
    assert len(fresh_ones) == len(set(fresh_ones)) == new
    assert len({*keys} - {*fresh_ones}) == (0 if new == 100 else 7)
