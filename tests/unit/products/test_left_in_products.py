"""What loads leave in the catalog of a Consul, in a Nomad and in a Vault of others is removed, and nothing else."""

import json
from urllib.parse import unquote

import anyio
import httpx2
import pytest

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import LeavesThings
from hashidrill.staging.attach.http import Login, Wire
from hashidrill.staging.attach.product import attachables
from virtual_time import ran


class Consul:
    """A catalog: (node, instance id) by service. What an agent has comes back unless the agent itself is told."""

    def __init__(self, **services):
        self.catalog = {name: list(instances) for name, instances in services.items()}
        self.nodes, self.agents_answer, self.status, self.told = {"web-1", "web-2"}, True, 200, []

    def __call__(self, request):
        path, body = unquote(request.url.path), json.loads(request.content or b"null")
        if request.method == "GET" and path.startswith("/v1/catalog/service/"):
            found = self.catalog.get(path.rpartition("/")[2], [])
            listed = [{"Node": node, "Address": f"10.0.0.{node[-1]}", "ServiceID": one} for node, one in found]
            return httpx2.Response(self.status, json=listed)
        if path.startswith("/v1/catalog/node/"):
            name = path.rpartition("/")[2]
            return httpx2.Response(200, json={"Node": {"Node": name}}) if name in self.nodes else httpx2.Response(404)
        self.told.append((request.url.host, path))
        if path.startswith("/v1/agent/"):
            if not self.agents_answer:
                raise httpx2.ConnectError("refused", request=request)
            return self._gone(lambda _node, one: one == path.rpartition("/")[2])
        if "ServiceID" in body:
            return self._gone(lambda node, one: (node, one) == (body["Node"], body["ServiceID"]))
        self.nodes.discard(body["Node"])
        return httpx2.Response(200, json=True)

    def _gone(self, is_it):
        self.catalog = {name: [one for one in found if not is_it(*one)] for name, found in self.catalog.items()}
        return httpx2.Response(200, json=True)


class Nomad:
    def __init__(self, *jobs):
        self.jobs, self.status = set(jobs), 200

    def __call__(self, request):
        path = unquote(request.url.raw_path.decode().partition("?")[0])
        if request.method == "GET":
            prefix = request.url.params["prefix"]
            found = [{"ID": one} for one in sorted(self.jobs) if one.startswith(prefix)]
            return httpx2.Response(self.status, json=found)
        assert request.url.params["purge"] == "true"
        self.jobs.discard(path.removeprefix("/v1/job/"))
        return httpx2.Response(self.status, json={})


class Vault:
    """A KV engine of version 2: its secrets by path. `keeps`: it says that it deletes, and does not."""

    def __init__(self, *secrets):
        self.secrets, self.status, self.keeps = set(secrets), 200, False

    def __call__(self, request):
        path = unquote(request.url.path).removeprefix("/v1/hashidrill/metadata/")
        if request.method == "DELETE":
            self.secrets -= set() if self.keeps else {path}
            return httpx2.Response(204 if self.status == 200 else self.status)
        assert request.url.params["list"] == "true"
        below = [one.removeprefix(path) for one in self.secrets if one.startswith(path)]
        names = {name if not rest else f"{name}/" for name, _, rest in (one.partition("/") for one in below)}
        status = 404 if self.status == 200 and not names else self.status
        return httpx2.Response(status, json={"data": {"keys": sorted(names)}})


@ran
async def removed(product, fake, kind, **params):
    """How many of each that a load of that kind may leave."""
    load = registry.load(kind)
    lefts = load.leaves("work", load.Params.model_validate(params), "run-1")
    wire = Wire(
        Login(product, f"http://10.0.0.9:{attachables([product])[product].port}"), transport=httpx2.MockTransport(fake)
    )
    with anyio.fail_after(60):
        return [await attachables([one.service])[one.service].remove(wire, one) for one in lefts]


CHURN = {"rate": "5/s", "service": "web", "services": 4}


def test_instances_of_a_load_go_by_their_own_agents_and_others_of_that_service_stay():
    theirs = [("web-1", "web-1"), ("web-2", "web-work-live"), ("web-1", "web-work-2-0")]
    fake = Consul(web=[("web-1", "web-work-0"), ("web-2", "web-work-1"), *theirs], db=[("web-1", "web-work-0")])
    fake.catalog["db"] = [("web-1", "db-1")]
    assert removed("consul", fake, "consul.service.churn", **CHURN) == [2]
    assert fake.catalog == {"web": theirs, "db": [("web-1", "db-1")]}
    assert fake.told == [
        ("10.0.0.1", "/v1/agent/service/deregister/web-work-0"),
        ("10.0.0.2", "/v1/agent/service/deregister/web-work-1"),
    ]


def test_what_no_agent_has_goes_out_of_the_catalog_with_its_node():
    fake = Consul(web=[("hashidrill-work", "web-work-0")])
    fake.nodes.add("hashidrill-work")
    fake.agents_answer = False
    assert removed("consul", fake, "consul.service.churn", through="catalog", **CHURN) == [1, 1]
    assert fake.catalog == {"web": []}
    assert fake.nodes == {"web-1", "web-2"}
    assert removed("consul", fake, "consul.service.churn", through="catalog", **CHURN) == [0, 0]


def test_all_instances_of_a_service_that_has_the_name_of_the_run_go():
    fake = Consul(**{"work-run-1": [("web-1", "work-run-1-7")], "work-run-2": [("web-1", "work-run-2-7")]})
    assert removed("consul", fake, "consul.service.registrations", rate="1/s") == [1]
    assert fake.catalog == {"work-run-1": [], "work-run-2": [("web-1", "work-run-2-7")]}


def test_jobs_of_a_load_go_with_what_was_dispatched_of_them_and_others_stay():
    theirs = {"hashidrill-worker", "web", "hashidrill"}
    fake = Nomad("hashidrill-work", "hashidrill-work-1", "hashidrill-work/dispatch-1764-ab", *theirs)
    assert removed("nomad", fake, "nomad.replicas", count=2) == [3]
    assert fake.jobs == theirs
    assert removed("nomad", fake, "nomad.replicas", count=2) == [0]


@pytest.mark.parametrize("kind", ["vault.kv.write", "vault.kv.read"])
def test_the_secrets_of_a_run_go_with_their_versions_and_those_of_others_stay(kind):
    theirs = {"work/run-12/once/0", "work/run-2/once/0", "other/run-1/turn/0", "work/run-1"}
    fake = Vault(*(f"work/run-1/once/{n}" for n in range(30)), "work/run-1/turn/7", "work/run-1/3", *theirs)
    assert removed("vault", fake, kind, rate="1/s") == [32]
    assert fake.secrets == theirs
    assert removed("vault", fake, kind, rate="1/s") == [0]


@pytest.mark.lie
def test_a_secret_that_vault_keeps_is_not_called_gone():
    fake = Vault("work/run-1/once/0")
    fake.keeps = True
    with pytest.raises(TimeoutError):
        removed("vault", fake, "vault.kv.write", rate="1/s")
    assert fake.secrets == {"work/run-1/once/0"}


@pytest.mark.lie
@pytest.mark.parametrize(
    ("service", "fake", "kind", "params"),
    [
        ("consul", Consul(web=[]), "consul.service.churn", CHURN),
        ("nomad", Nomad(), "nomad.replicas", {"count": 2}),
        ("vault", Vault(), "vault.kv.write", {"rate": "1/s"}),
    ],
)
def test_what_cannot_be_seen_is_not_called_gone(service, fake, kind, params):
    fake.status = 403
    with pytest.raises(FaultError, match="HTTP 403"):
        removed(service, fake, kind, **params)


def test_each_load_that_puts_something_into_a_product_says_what_it_may_leave():
    leaving = {kind for kind, load in registry.loads().items() if isinstance(load, LeavesThings)}
    assert leaving >= {kind for kind in registry.loads() if kind.startswith("nomad.")}
    assert leaving >= {"consul.service.churn", "consul.service.registrations", "vault.kv.read", "vault.kv.write"}
