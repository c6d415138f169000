"""Faults of Vault keep their contract on a Vault in memory; a fault that does nothing is caught by its own observer."""

from __future__ import annotations

import pytest

import virtual_time
from hashidrill import registry
from hashidrill.engine.inject import planned
from hashidrill.errors import FaultError
from hashidrill.services.vault.faults.active import StepDown
from hashidrill.services.vault.faults.seal import Seal
from hashidrill.services.vault.faults.token import TokenRevoke
from hashidrill.testing.faults import check_fault
from hashidrill.testing.vault import FakeVault


@pytest.fixture
def fake(tmp_path):
    fake = FakeVault()
    fake.operated(tmp_path)
    return fake


def check(fake, kind, on, **more):
    cls = kind if isinstance(kind, type) else registry.fault(kind)
    fault = cls(cls.Params(), fake.world)
    return virtual_time.run(
        check_fault(fault, lambda: fake.target(on), recreate=cls is registry.fault(cls.kind), **more)
    )


@pytest.mark.parametrize("on", ["vault-1", "vault-2"], ids=["active", "standby"])
def test_a_sealed_server_serves_nobody_and_is_unsealed_afterwards(fake, on):
    proof = check(fake, "vault.seal", on)
    assert "Vault is sealed" in proof.present.measured
    assert proof.gone.measured.startswith("HTTP 403")
    assert fake.sealed == set()


def test_a_standby_is_sealed_by_a_restart_as_vault_seals_only_an_active_server(fake):
    before = fake.hosts["vault-2"].process
    check(fake, "vault.seal", "vault-2")
    assert fake.hosts["vault-2"].process != before
    assert fake.hosts["vault-1"].process is not None
    assert ("vault-2", "PUT", "sys/seal") not in fake.asked


def test_a_step_down_makes_another_server_active(fake):
    proof = check(fake, "vault.step_down", "vault-1", momentary=True)
    assert proof.present.measured == "active: vault-2"


def test_a_step_down_whose_handover_fails_is_proven_as_what_it_is(fake):
    """Raft could not hand over: the server gave its role up, and took it back 10 s later."""
    fake.hands_over = False
    proof = check(fake, "vault.step_down", "vault-1", momentary=True)
    assert proof.gone.measured == "active: vault-1 again (no other server took over)"


@pytest.mark.parametrize("dead", [(), ("vault-2",), ("vault-2", "vault-3")], ids=["all answer", "one is dead", "alone"])
def test_a_step_down_that_does_nothing_is_caught_whoever_else_answers(fake, dead):
    class Idle(StepDown):
        async def apply(self, undo):
            fake.members -= {*dead}  # or the active server would have no majority
            for name in dead:
                fake.hosts[name].process = None

    with pytest.raises(AssertionError, match=r"to be in force.*active: vault-1"):
        check(fake, Idle, "vault-1", momentary=True)


def test_a_step_down_is_not_proven_by_a_server_that_does_not_answer(fake):
    class Frozen(StepDown):
        async def apply(self, undo):
            for host in fake.hosts.values():
                host.process = None

    with pytest.raises(AssertionError, match=r"to be in force.*active: none"):
        check(fake, Frozen, "vault-1", momentary=True)


def test_a_revoked_token_is_refused_until_it_is_made_again(fake):
    proof = check(fake, "vault.token.revoke", "vault-1")
    assert "HTTP 403" in proof.present.measured
    assert fake.load in fake.tokens


@pytest.mark.parametrize("kind", [Seal, StepDown, TokenRevoke])
def test_a_fault_that_does_nothing_is_caught_by_its_observer(fake, kind):
    class Idle(kind):
        async def apply(self, undo):
            return

    with pytest.raises(AssertionError, match="to be in force"):
        check(fake, Idle, "vault-1", momentary=kind is StepDown)


@pytest.mark.parametrize("kind", [Seal, TokenRevoke])
def test_a_revert_that_does_nothing_is_caught(fake, kind):
    class Lasting(kind):
        async def revert(self, undo):
            return

    with pytest.raises(AssertionError, match="to be gone"):
        check(fake, Lasting, "vault-1")


def prior(fake, kind, on):
    cls = registry.fault(kind)
    return virtual_time.run(planned(cls(cls.Params(), fake.world), fake.target(on), "f"))


def test_what_is_sealed_already_cannot_be_sealed(fake):
    fake.sealed.add("vault-2")
    with pytest.raises(FaultError, match="vault-2: its vault cannot be sealed: sealed"):
        prior(fake, "vault.seal", "vault-2")


def test_only_the_active_server_steps_down(fake):
    with pytest.raises(FaultError, match="vault-2 is not active, vault-1 is; put it on vault:active"):
        prior(fake, "vault.step_down", "vault-2")


def test_a_single_server_has_nobody_to_step_down_for(tmp_path):
    alone = FakeVault(servers=1)
    alone.operated(tmp_path)
    with pytest.raises(FaultError, match="no other server is unsealed"):
        prior(alone, "vault.step_down", "vault-1")


def test_what_an_undo_holds_is_no_secret(fake):
    for kind in ("vault.seal", "vault.step_down", "vault.token.revoke"):
        undo = str(prior(fake, kind, "vault-1"))
        assert not any(secret in undo for secret in (fake.key, fake.root, fake.load))
