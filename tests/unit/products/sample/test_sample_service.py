"""The sample as a service: where its programs are, and what each is told."""

from pathlib import Path

import pytest

from hashidrill.core.errors import DatacenterError
from hashidrill.core.protocols.service import Site, roles_of
from hashidrill.products.sample import service
from hashidrill.products.sample.loads import Get
from hashidrill.products.sample.model import Sample
from hashidrill.products.sample.service import SampleService

SPEC = Sample.model_validate(
    {
        "store_takes": "30ms",
        "databases": [{}, {"at_once": 6, "of_one_tenant": 2}],
        "caches": [{}, {"bypass_after": "150ms"}, {"memory": True, "database": 2}],
        "pools": [{"at_least": 4}],
    }
)
HOSTS = ["store-1", "database-1", "database-2", "cache-1", "cache-2", "cache-3", "pool-1"]
ADDRESSES = {name: f"10.73.0.{n}" for n, name in enumerate(HOSTS, 11)}


def plan(host, role):
    site = Site(host, role, ADDRESSES[host], Path("/run") / host, Path("/run/sample.json"), {}, ADDRESSES)
    return SampleService(SPEC).agent(site)


def test_each_program_has_a_host_of_its_own():
    places = SampleService(SPEC).places()
    assert [(place.host, place.role) for place in places] == [(host, host[:-2]) for host in HOSTS]
    assert roles_of(SampleService(SPEC)).candidates("caches") == {"cache-1", "cache-2", "cache-3"}


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
    database, with_shares = plan("database-1", "database").config, plan("database-2", "database").config
    assert (database["at_once"], database["of_one_tenant"]) == (4, None)
    assert (with_shares["at_once"], with_shares["of_one_tenant"]) == (6, 2)
    in_memory = plan("cache-3", "cache").config
    assert (in_memory["program"], in_memory["store"]) == ("memory", "http://10.73.0.13:8080")


@pytest.mark.parametrize(
    ("cache", "wrong"),
    [
        ({"database": 2}, "caches database 2, but only 1 exist"),
        ({"memory": True, "bypass_after": "1s"}, "no disk to bypass"),
    ],
)
def test_a_cache_of_nothing_or_round_nothing_is_refused(cache, wrong):
    with pytest.raises(ValueError, match=wrong):
        Sample.model_validate({"databases": [{}], "caches": [cache]})


PARTS = {"node": ["node", "searcher"], "tier": ["node", "tier", "archive", "searcher"]}


def piped(parse, role):
    addresses = {f"{each}-1": f"10.73.0.{n}" for n, each in enumerate(PARTS[parse], 31)}
    it = SampleService(Sample.model_validate({"logs": {"parse": parse, "room": 7}}))
    assert [place.role for place in it.places()] == ["store", *PARTS[parse]]
    site = Site(f"{role}-1", role, addresses[f"{role}-1"], Path("/data"), Path("/run/sample.json"), {}, addresses)
    return it.agent(site).config


def test_a_node_that_parses_hands_on_to_search_and_a_tier_to_the_archive_too():
    node = piped("node", "node")
    assert (node["program"], node["searcher"], node["archive"]) == ("parser", "http://10.73.0.32:8080", None)
    assert (piped("tier", "node")["program"], piped("tier", "node")["tier"]) == ("node", "http://10.73.0.32:8080")
    tier = piped("tier", "tier")
    assert (tier["program"], tier["searcher"], tier["archive"]) == (
        "parser",
        "http://10.73.0.34:8080",
        "http://10.73.0.33:8080",
    )


def checked(host, role):
    addresses = {"backend-1": "10.73.0.41", "backend-2": "10.73.0.42", "checker-1": "10.73.0.43"}
    it = SampleService(Sample.model_validate({"checkers": [{"reports": "changes", "timeout": "5s", "most": 9}]}))
    assert [place.host for place in it.places()] == ["store-1", *addresses]
    return it.agent(Site(host, role, addresses[host], Path("/data"), Path("/run/sample.json"), {}, addresses)).config


def test_a_checker_is_told_where_its_targets_are_and_a_backend_to_be_there():
    checker = checked("checker-1", "checker")
    assert checker["targets"] == [("10.73.0.41", 8081), ("10.73.0.42", 8081)]
    assert (checker["reports"], checker["timeout_s"], checker["most"], checker["every_s"]) == ("changes", 5, 9, 30)
    assert checked("backend-2", "backend")["listens"] == ("10.73.0.42", 8081)


def test_what_it_is_told_is_what_its_program_takes():
    configs = [plan(host, host[:-2]).config for host in HOSTS]
    configs += [checked("backend-1", "backend"), checked("checker-1", "checker")]
    configs += [piped(parse, role) for parse, roles in PARTS.items() for role in roles]
    for each in configs:
        config = {key: value for key, value in each.items() if key not in ("address", "port")}
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


async def test_a_program_that_says_nothing_is_named(monkeypatch):
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

    with pytest.raises(Exception, match="no answer from cache-2"):
        await SampleService(SPEC).wait_ready(Hosts(), within_s=0.01, agents_run=agents_run)


@pytest.mark.parametrize(("fresh", "new"), [("0%", 0), ("10%", 10), ("100%", 100)])
def test_a_share_of_the_requests_is_for_something_new(fresh, new):
    load = Get.__new__(Get)
    load.name = "w"
    load.params = Get.Params.model_validate({"rate": "1/s", "keys": 7, "fresh": fresh, "via": "host:cache-1"})
    load.context = type("Context", (), {"run_id": "r"})
    keys = [load._plan(n)[0] for n in range(100)]
    fresh_ones = [key for key in keys if key.startswith("w/fresh-r-")]
    assert len(fresh_ones) == len(set(fresh_ones)) == new
    assert {key.partition("/")[0] for key in keys} == {"w"}, "the first part is the tenant"
    assert len({*keys} - {*fresh_ones}) == (0 if new == 100 else 7)
