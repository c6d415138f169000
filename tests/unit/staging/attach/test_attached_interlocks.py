"""What interlocks are told of a plan, and that a run in an estate is refused by them."""

from dataclasses import replace

import anyio
import httpx2
import pytest

from attached_estates import FakeEstate, attach_file
from hashidrill.core.errors import FaultError, InterlockError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import ApiAnswer, SetsBack
from hashidrill.core.protocols.rights import Right
from hashidrill.staging.attach import interlocks
from hashidrill.staging.attach.discovery import Estate, FoundHost, with_links
from hashidrill.staging.attach.http import Wire
from hashidrill.staging.attach.interlocks import names_of, open_interlocks, servers_down, subject_of, window_of
from hashidrill.staging.attach.links import Link
from hashidrill.staging.attach.plan import Action, Plan, digest_of
from hashidrill.staging.attach.target import read_target
from hashidrill.staging.interlocks.kv import Kv, SilentError
from hashidrill.staging.interlocks.production import DenyList, Named
from hashidrill.staging.interlocks.settings import settings_of

pytestmark = pytest.mark.lie

SERVERS = ("consul-1", "consul-2", "consul-3")
CONSUL = '  consul: {address: "http://10.73.0.11:8500", token_file: token}\n'
ESTATE = Estate(
    "staging",
    {
        name: FoundHost(
            name,
            f"10.73.0.1{n}",
            {"consul": "server"},
            {"consul": f"http://10.73.0.1{n}:8500"},
            {"consul.environment": "staging"},
        )
        for n, name in enumerate(SERVERS, 1)
    },
    voters={"consul": SERVERS},
    datacenters={"consul": "dc1"},
)
EVERYONE = frozenset({*SERVERS, "client-1"})


@pytest.fixture
def target(tmp_path):
    return read_target(attach_file(tmp_path, CONSUL), {})


@pytest.fixture
def plan(target):
    experiment = resolve(find_experiment("raft/slow-leader-disk")).experiment
    apply = Action("apply", "disk.latency", "consul:leader", SERVERS, "consul", 0.0, 20.0, step=0)
    offer = Action("offer", "consul.kv.write", "consul:clients", (), "consul", 0.0, 40.0, "kv-writes", many=True)
    return Plan(target, ESTATE, experiment, (offer, apply))


def test_a_subject_has_what_the_plan_has(plan):
    subject = subject_of(plan)
    assert (subject.datacenter, subject.experiment) == ("staging", "slow-leader-disk")
    [window] = subject.windows
    assert (window.hosts, window.most, window.begins_s, window.ends_s) == (frozenset(SERVERS), 1, 0.0, 20.0)
    assert subject.loads == {"kv-writes": "consul.kv.write"}
    assert subject.metas["consul-1"] == {"consul.environment": "staging"}
    assert Right("consul", "key", "hashidrill-interlocks/lock", "write") in subject.rights
    assert not subject.breaks_quorum
    assert not subject.may_break_quorum
    assert subject.digest == digest_of(plan.experiment, settings_of({}, "x"))
    said = replace(plan, target=plan.target.saying(interlocks.BREAKS_QUORUM))
    assert subject_of(said).breaks_quorum
    assert subject_of(replace(plan, run_id="20261123-x")).run == "20261123-x"


def test_a_run_needs_all_of_its_phases(plan):
    parts = plan.experiment
    least = parts.steady_state.within + 20 + parts.recovery.for_
    assert subject_of(plan).needs_s > least


def test_a_step_on_many_hosts_may_disturb_all_of_them_and_a_rolling_one_one(plan):
    many = Action("apply", "disk.latency", "consul:servers", SERVERS, "consul", 0.0, 20.0, many=True, step=0)
    assert window_of(many, plan.experiment, EVERYONE).at_once == 3
    assert window_of(replace(many, what="consul.config"), plan.experiment, EVERYONE).at_once == 1


@pytest.mark.lie
@pytest.mark.parametrize("kind", ["consul.snapshot.restore", "nomad.snapshot.restore", "vault.snapshot.restore"])
def test_a_restore_is_on_every_host_whatever_it_is_put_on(plan, kind):
    """It counted as 0 servers, and everybody's keys, ACLs and catalog went back."""
    window = window_of(replace(plan.actions[1], what=kind), plan.experiment, EVERYONE)
    assert (window.hosts, window.at_once, window.sets_back) == (EVERYONE, 4, True)


NO_HOST = {
    "noop": "it does nothing",
    "consul.kv.bloat": "it adds keys below a prefix that is empty, and nobody reads",
    "consul.snapshot.save": "it only reads",
    "nomad.snapshot.save": "it only reads",
    "vault.snapshot.save": "it only reads",
    "nomad.job.stop": "it is about one job, which the experiment names",
    "nomad.alloc.fail": "as above",
    "nomad.alloc.signal": "as above",
    "vault.token.revoke": "it revokes the token of our own loads",
}


def test_a_fault_that_counts_as_none_says_why_and_one_that_may_write_all_state_sets_it_back():
    kinds = {kind: registry.fault(kind) for kind in registry.fault_kinds()}
    assert {
        kind
        for kind, fault in kinds.items()
        if getattr(fault, "at_a_time", None) == 0 and not isinstance(fault, SetsBack)
    } == {*NO_HOST}
    assert {kind for kind, fault in kinds.items() if isinstance(fault, SetsBack)} == {
        f"{product}.snapshot.restore" for product in ("consul", "nomad", "vault")
    }


def test_a_window_knows_what_it_comes_after(plan):
    method = [
        {"fault": "noop", "on": "consul:leader", "for": "5s", "name": "first"},
        {"fault": "noop", "on": "consul:leader", "for": "5s", "at": "5s", "after": ["first"]},
    ]
    experiment = plan.experiment.model_validate({**plan.experiment.model_dump(by_alias=True), "method": method})
    action = Action("apply", "noop", "consul:leader", SERVERS, "consul", 5.0, 5.0, step=1)
    assert window_of(action, experiment, EVERYONE).after == {0}


def test_everything_that_has_a_name_is_looked_at(tmp_path):
    path = attach_file(tmp_path, '  consul: {address: "https://consul.prod.example:8501", token_file: token}\n')
    assert Named("address", "consul.prod.example") in names_of(read_target(path, {}), ESTATE)
    named = {(one.what, one.name) for one in names_of(read_target(path, {}), ESTATE)}
    assert {("attach file", "staging"), ("datacenter of consul", "dc1"), ("host", "consul-2")} <= named


def test_an_ip_address_is_no_name(target):
    assert "address" not in {one.what for one in names_of(target, ESTATE)}


def linked(**upstreams):
    """The estate, with proxies that lead to its hosts."""
    links = {name: Link("10.73.0.90", 21000 + n, to, 8500) for n, (name, to) in enumerate(upstreams.items())}
    return with_links(ESTATE, links)


def test_a_proxy_of_productions_that_a_toxiproxy_shares_with_staging_is_refused(target):
    """Its upstream begins with the name of a host here: it would get the toxics."""
    deny = DenyList()
    assert not list(deny.troubles(names_of(target, linked(consul="consul-1.staging.example", api="10.73.0.12")), {}))
    shared = names_of(target, linked(consul="consul-1.prod.example"))
    assert list(deny.troubles(shared, {})) == ["upstream of proxy consul 'consul-1.prod.example'"]
    assert list(deny.troubles(names_of(target, linked(prod_consul="consul-1")), {})) == ["proxy 'prod_consul'"]
    assert not list(deny.troubles(names_of(target, linked(web="web.prod.example")), {})), "nothing is put on it"


def test_the_address_of_the_toxiproxy_is_looked_at(target):
    named = names_of(replace(target, toxiproxy="http://toxiproxy.prod.example:8474"), ESTATE)
    assert list(DenyList().troubles(named, {})) == ["address 'toxiproxy.prod.example'"]


def test_what_a_product_has_of_production_is_looked_at(target, plan):
    """One Nomad may serve both: by its namespaces, its datacenters and the classes of its nodes."""
    consul = replace(target.logins["consul"], said="namespace team-a, partition prod")
    found = list(DenyList().troubles(names_of(replace(target, logins={"consul": consul}), ESTATE), {}))
    assert found == ["partition of consul 'prod'"]
    host = ESTATE.hosts["consul-2"]
    for key, said in (("nomad.datacenter", "datacenter of nodes of nomad"), ("nomad.class", "class of nodes of nomad")):
        there = replace(ESTATE, hosts=dict(ESTATE.hosts) | {"consul-2": replace(host, meta={key: "prod-eu"})})
        assert list(DenyList().troubles(names_of(target, there), {})) == [f"{said} 'prod-eu'"]
    same = replace(ESTATE, hosts=dict(ESTATE.hosts) | {"consul-2": replace(host, meta={"consul.datacenter": "dc1"})})
    assert [one.what for one in names_of(target, same) if one.name == "dc1"] == ["datacenter of consul"], "said once"
    other = replace(ESTATE, hosts=dict(ESTATE.hosts) | {"consul-2": replace(host, meta={"nomad.rack": "prod-eu"})})
    assert list(DenyList().troubles((), subject_of(replace(plan, estate=other)).metas)) == [
        "node consul-2 says nomad.rack: prod-eu"
    ]


WAYS = {
    "address": ({"addresses": {"consul-1": "db.prod.example:2222"}}, "SSH address of consul-1 'db.prod.example'"),
    "jump host": ({"jump": "10.0.0.7, ana@bastion.prod.example:22"}, "jump host 'bastion.prod.example'"),
    "no name": ({"jump": "[fd00::1]:22", "addresses": {"consul-1": "10.9.9.9"}}, ""),
    "nonsense": ({"jump": 7, "addresses": ["x"]}, ""),
    "brackets": ({"jump": "[prod"}, ""),
}


@pytest.mark.parametrize("case", WAYS)
def test_where_ssh_goes_is_looked_at(target, case):
    ssh, said = WAYS[case]
    named = names_of(replace(target, carriers={"ssh": ssh}), ESTATE)
    assert list(DenyList().troubles(named, {})) == ([said] if said else [])


# who is down


class Wires:
    def __init__(self, answers):
        self.answers, self.asked = answers, []

    async def request(self, method, path, *, url="", timeout_s=5.0, **_):
        self.asked.append((method, path))
        answer = self.answers[url]
        if isinstance(answer, Exception):
            raise answer
        return ApiAnswer(answer, b"")


def test_a_server_that_does_not_answer_or_does_not_serve_is_down():
    urls = [f"http://10.73.0.1{n}:8500" for n in (1, 2, 3)]
    wires = Wires(dict(zip(urls, [200, FaultError("refused"), 503], strict=True)))
    assert anyio.run(servers_down, ESTATE, {"consul": wires}) == {"consul-2", "consul-3"}
    assert {method for method, _ in wires.asked} == {"GET"}


def test_one_that_wants_another_token_is_not_down():
    wires = Wires({f"http://10.73.0.1{n}:8500": 403 for n in (1, 2, 3)})
    assert anyio.run(servers_down, ESTATE, {"consul": wires}) == frozenset()


# whole


def test_an_estate_that_is_not_armed_is_refused_and_nothing_is_written(plan):
    estate = FakeEstate()
    estate.world.consul.services_listed = {}

    async def main():
        wires = estate.wires(plan.target)
        try:
            await open_interlocks(plan.target, ESTATE, wires).check(plan)
        finally:
            for wire in wires.values():
                await wire.aclose()

    with pytest.raises(InterlockError) as refused:
        anyio.run(main)
    assert refused.value.exit_code == 2
    assert {request.method for request in estate.asked} <= {"GET"}


def test_settings_that_cannot_be_are_refused_before_anybody_is_asked(tmp_path):
    path = attach_file(tmp_path, CONSUL)
    path.write_text(path.read_text() + "interlocks: {stop: {within: 1h}}\n")
    with pytest.raises(InterlockError, match=r"interlocks\.stop\.within"):
        open_interlocks(read_target(path, {}), ESTATE, {"consul": None})


def test_without_consul_there_are_no_interlocks_and_no_run(tmp_path, target):
    with pytest.raises(InterlockError, match="kept in Consul"):
        open_interlocks(replace(target, logins={}), ESTATE, {})


@pytest.mark.parametrize("silent", ["no answer", "no leader"])
def test_a_server_that_a_fault_silences_is_left_for_the_next_one(target, silent):
    """Interlocks asked one server for ever: a run lost its lock after 30 s, as its own fault had hit that one."""
    asked = []

    def answer(request):
        asked.append(request.url.host)
        if request.url.host == "10.73.0.13":
            return httpx2.Response(200, json=[{"Value": None, "ModifyIndex": 7}])
        if silent == "no answer":
            raise httpx2.ReadTimeout("", request=request)
        return httpx2.Response(500, text="No cluster leader")

    wire = Wire(target.logins["consul"], transport=httpx2.MockTransport(answer))
    kv = Kv(open_interlocks(target, ESTATE, {"consul": wire})._guard.consul)

    async def main():
        async with wire:
            for _ in range(2):
                with pytest.raises(SilentError):
                    await kv.get("stop")
            return [(await kv.get("stop")).modified for _ in range(2)]

    assert anyio.run(main) == [7, 7]
    assert asked == ["10.73.0.11", "10.73.0.12", "10.73.0.13", "10.73.0.13"]


def test_who_runs_it_is_said_as_a_person_at_a_machine():
    assert "@" in interlocks.who()
