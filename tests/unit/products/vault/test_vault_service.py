"""Vault as a service: its hosts, roles, readiness, keys, and the keeper that unseals what comes up sealed."""

import json
import stat
from contextlib import suppress

import anyio
import pytest

import virtual_time
from hashidrill.core.errors import DatacenterError, SelectorError, WaitTimeoutError
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.experiment.selectors import parse_selector
from hashidrill.core.protocols.service import Site, Workspace
from hashidrill.core.util.redaction import Redactor
from hashidrill.products.vault import api as vault_api
from hashidrill.products.vault import ready, service, settings
from hashidrill.products.vault.model import Vault
from hashidrill.products.vault.operator import KeyRing, Keys, VaultOperator, look
from hashidrill.products.vault.service import VaultService
from hashidrill.testing.vault import FakeVault


@pytest.fixture
def fresh(monkeypatch):
    """Three servers that have just started, and whatever asks Vault asks them."""
    fake = FakeVault(initialized=False)
    for module in (vault_api, ready):
        monkeypatch.setattr(module, "VaultApi", fake.api)
    return fake


@pytest.fixture
def redactor():
    return Redactor()


@pytest.fixture
def vault_service(tmp_path, redactor):
    made = VaultService(Vault())
    made.open(Workspace(tmp_path, redactor.know))
    return made


async def nothing():
    return


def get_ready(made, fake, within_s=5):
    virtual_time.run(made.wait_ready(fake.world, within_s=within_s, agents_run=nothing))


def site(name="vault-1", **roles):
    addresses = {f"vault-{n}": f"10.73.0.{10 + n}" for n in (1, 2, 3)}
    from pathlib import Path

    return Site(
        name,
        "server",
        addresses[name],
        Path("/data"),
        Path("/vault.json"),
        {"vault": Path("/bin/vault")},
        addresses,
        {"vault": "server", **roles},
    )


# hosts and roles


def test_each_server_may_become_active_and_a_single_one_has_no_standbys():
    three, one = VaultService(Vault()), VaultService(Vault(servers=1))
    assert three.candidates("active") == three.candidates("standbys") == {"vault-1", "vault-2", "vault-3"}
    assert (three.most("active"), three.most("standbys"), three.most("servers")) == (1, 2, 3)
    assert (
        parse_selector("vault:one-standby")
        .impossible([one])
        .endswith("a single server has no standbys (datacenter.vault.servers is 1)")
    )


def test_the_configuration_is_that_of_its_storage_and_the_yaml_wins():
    plan = VaultService(Vault(config={"log_level": "debug", "storage": {"raft": {"performance_multiplier": 5}}})).agent(
        site()
    )
    raft = plan.config["storage"]["raft"]
    assert (raft["node_id"], raft["path"], raft["performance_multiplier"]) == ("vault-1", "/data", 5)
    assert [each["leader_api_addr"] for each in raft["retry_join"]] == [
        "http://10.73.0.12:8200",
        "http://10.73.0.13:8200",
    ]
    assert plan.config["log_level"] == "debug"
    assert plan.command == ["/bin/vault", "server", "-config=/vault.json"]
    consul = VaultService(Vault(storage="consul")).agent(site(consul="client")).config["storage"]
    assert consul == {"consul": {"address": "127.0.0.1:8500", "path": "vault/"}}


def test_storage_consul_without_consul_is_one_clear_message_before_anything_starts(tmp_path):
    document = {
        "apiVersion": "hashidrill/v1",
        "kind": "Experiment",
        "metadata": {"name": "alone", "title": "t", "why": "w"},
        "datacenter": {"vault": {"storage": "consul"}},
        "load": {"secrets": {"kind": "vault.kv.write", "rate": "5/s"}},
        "steady_state": {"require": ["secrets.errors < 1%"]},
        "method": [{"fault": "process.kill", "on": "vault:active", "for": "5s"}],
        "expect": [{"writes_recover": {"load": "secrets", "p50_below": "300ms", "within": "3s"}}],
    }
    path = tmp_path / "alone.yaml"
    path.write_text(json.dumps(document))
    with pytest.raises(Exception, match=r"add datacenter\.consul, or use `storage: raft`") as failure:
        load_experiment(path)
    assert str(failure.value).count("alone.yaml:") == 1
    document["datacenter"]["consul"] = {}
    path.write_text(json.dumps(document))
    assert load_experiment(path).datacenter.vault.storage == "consul"
    with pytest.raises(DatacenterError, match=r"add datacenter\.consul"):
        VaultService(Vault(storage="consul")).agent(site())


# ready


@pytest.mark.lie
def test_a_server_that_took_its_key_and_has_yet_to_join_gets_no_second_one(fresh, vault_service):
    """It would wait for leadership twice, and answer a step-down without stepping down."""
    fresh.joins_after = {"vault-2": 3, "vault-3": 5}
    get_ready(vault_service, fresh)
    keys = [host for host, method, path in fresh.asked if (method, path) == ("PUT", "sys/unseal")]
    assert sorted(keys) == ["vault-1", "vault-2", "vault-3"]


def test_a_server_that_took_its_key_and_never_joins_gets_another_one(fresh, vault_service):
    fresh.joins_after = {"vault-2": 1000}
    with pytest.raises(WaitTimeoutError, match="vault-2: sealed"):
        get_ready(vault_service, fresh, within_s=20)
    keys = [host for host, method, path in fresh.asked if (method, path) == ("PUT", "sys/unseal")]
    assert keys.count("vault-2") == 2


def test_ready_is_initialised_unsealed_with_one_active_and_a_secret_written(fresh, vault_service):
    get_ready(vault_service, fresh)
    assert fresh.initialized
    assert fresh.sealed == set()
    assert vault_service.access()["VAULT_TOKEN"] in fresh.tokens
    assert vault_service.access()["VAULT_TOKEN"] != fresh.root
    assert any(path.endswith("/data/ready") for path in fresh.secrets)
    chosen = {role: virtual_time.run(vault_service.select(role, fresh.world)) for role in vault_service.roles}
    assert {role: [host.name for host in hosts] for role, hosts in chosen.items()} == {
        "active": ["vault-1"],
        "standbys": ["vault-2", "vault-3"],
        "one-standby": ["vault-2"],
        "servers": ["vault-1", "vault-2", "vault-3"],
    }


def test_a_server_that_stays_sealed_is_named(fresh, vault_service, monkeypatch):
    stubborn = fresh.hosts["vault-3"]
    unseal = fresh._unseal
    monkeypatch.setattr(fresh, "_unseal", lambda host, body: unseal(host, {} if host is stubborn else body))
    with pytest.raises(WaitTimeoutError, match="vault to be unsealed; last seen: vault-3: sealed"):
        get_ready(vault_service, fresh)


@pytest.mark.lie
def test_a_standby_without_a_vote_could_not_take_over_and_is_named(fresh, vault_service):
    fresh.without_vote.add("vault-2")
    with pytest.raises(WaitTimeoutError, match="to have a vote; last seen: without a vote: vault-2"):
        get_ready(vault_service, fresh)


def test_an_active_server_that_is_cut_off_and_still_claims_it_does_not_count(fresh, vault_service, monkeypatch):
    get_ready(vault_service, fresh)
    answer = fresh.answer

    def cut_off(host, method, path, token, body):
        if path == "sys/leader" and host.name == "vault-3":
            return 200, {"is_self": True, "leader_address": f"http://{host.address}:8200"}
        return answer(host, method, path, token, body)

    monkeypatch.setattr(fresh, "answer", cut_off)
    assert [host.name for host in virtual_time.run(vault_service.select("active", fresh.world))] == ["vault-1"]


def test_nobody_active_is_an_error_that_says_so(fresh, vault_service):
    get_ready(vault_service, fresh)
    fresh.sealed |= {"vault-1", "vault-2"}
    with pytest.raises(SelectorError, match="no server is active just now"):
        virtual_time.run(vault_service.select("active", fresh.world))


# keys


def test_no_key_can_be_read_anywhere_once_it_is_made(fresh, vault_service, redactor, tmp_path):
    get_ready(vault_service, fresh)
    for secret in (fresh.key, fresh.root, vault_service.access()["VAULT_TOKEN"]):
        assert redactor.text(f"vault said {secret}") == "vault said [redacted]"
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600


@pytest.mark.lie
def test_keys_are_hidden_before_they_are_written_or_used(tmp_path):
    hidden = []
    ring = KeyRing(
        tmp_path, lambda *secrets: hidden.extend((secret, (tmp_path / "keys.json").exists()) for secret in secrets)
    )
    ring.keep(Keys("key", "root", "load"))
    assert hidden == [("key", False), ("root", False), ("load", False)]
    assert repr(ring.keys) == "Keys(...)"


def test_before_it_is_initialised_there_are_no_keys(tmp_path):
    with pytest.raises(DatacenterError, match="it has no keys"):
        _ = KeyRing(tmp_path, print).keys


# the keeper


@pytest.fixture
def kept(tmp_path):
    fake = FakeVault()
    ring, sealed = fake.operated(tmp_path)
    fake.told = []

    async def once(name):
        async with fake.api() as api:
            await look(api, fake.hosts[name], ring, sealed, fake.told.append)

    fake.look = lambda name: virtual_time.run(once(name))
    fake.stays = sealed
    return fake


def test_a_server_that_comes_up_sealed_is_unsealed_and_that_is_told(kept):
    kept.sealed.add("vault-2")
    kept.look("vault-2")
    assert kept.sealed == set()
    assert kept.told == ["vault-2: its vault came up sealed; hashidrill unsealed it (datacenter.vault.unseal: auto)"]


def test_an_unsealed_server_and_one_that_does_not_answer_are_left_alone(kept):
    kept.look("vault-1")
    kept.hosts["vault-2"].process = None
    kept.look("vault-2")
    assert kept.told == []


@pytest.mark.lie
def test_what_a_fault_sealed_stays_sealed_until_it_is_reverted(kept):
    operator = kept.hosts["vault-2"].use(VaultOperator)
    virtual_time.run(operator.keep_sealed("f-1"))
    kept.sealed.add("vault-2")
    kept.look("vault-2")
    assert (kept.sealed, kept.told) == ({"vault-2"}, [])
    virtual_time.run(operator.leave("f-1"))
    kept.look("vault-2")
    assert kept.sealed == set()


def test_a_server_that_hangs_does_not_keep_another_one_sealed(fresh, vault_service, monkeypatch):
    get_ready(vault_service, fresh)
    told, answer = [], fresh.answer
    fresh.sealed.add("vault-3")
    monkeypatch.setattr(fresh.hosts["vault-2"], "process", None)
    assert answer

    async def for_a_second():
        with anyio.move_on_after(1):
            await vault_service.keep(fresh.world, told.append)

    virtual_time.run(for_a_second())
    assert fresh.sealed == set()
    assert len(told) == 1


def test_with_unseal_never_nobody_unseals(fresh, tmp_path, redactor):
    never = VaultService(Vault(unseal="never"))
    never.open(Workspace(tmp_path, redactor.know))
    get_ready(never, fresh)
    fresh.sealed.add("vault-3")

    async def for_a_second():
        with suppress(TimeoutError), anyio.fail_after(1):
            await never.keep(fresh.world, print)
            return "it returned"

    assert virtual_time.run(for_a_second()) == "it returned"
    assert fresh.sealed == {"vault-3"}


def test_its_name_for_the_port_is_the_one_of_its_agents():

    assert service.PORT == settings.PORT
