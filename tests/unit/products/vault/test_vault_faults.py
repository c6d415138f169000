"""Faults of Vault keep their contract on a Vault in memory; a fault that does nothing is caught by its own observer."""

import pytest

import virtual_time
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.protocols import registry
from hashidrill.products.vault.faults import snapshot
from hashidrill.products.vault.faults.config import ConfigParams, VaultConfig
from hashidrill.products.vault.faults.servers import Seal, StepDown, TokenRevoke
from hashidrill.products.vault.faults.snapshot import SnapshotRestore, SnapshotSave
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.faults import check_fault
from hashidrill.testing.snapshots import archived
from hashidrill.testing.vault import FakeVault, packed
from vault_fault_cases import PARAMS


@pytest.fixture
def fake(tmp_path):
    fake = FakeVault(world=FakeDatacenter(servers=1, clients=0, root=tmp_path))
    fake.operated(tmp_path)
    return fake


def params_of(kind):
    return PARAMS.get(kind, {})


def check(fake, kind, on, **more):
    cls = kind if isinstance(kind, type) else registry.fault(kind)
    fault = cls(cls.Params.model_validate(params_of(cls.kind)), fake.world)
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


@pytest.mark.lie
def test_a_step_down_whose_handover_fails_is_proven_as_what_it_is(fake):
    """Raft could not hand over: the server gave its role up, and took it back 10 s later."""
    fake.hands_over = False
    proof = check(fake, "vault.step_down", "vault-1", momentary=True)
    assert proof.gone.measured == "active: vault-1 again (no other server took over)"


@pytest.mark.lie
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


@pytest.mark.parametrize("on", ["vault-1", "vault-2"], ids=["active", "standby"])
def test_a_server_restarts_with_another_configuration_and_again_with_its_own(fake, on):
    before = fake.hosts[on].config
    proof = check(fake, "vault.config", on)
    assert proof.present.measured.startswith("its file has these values, a new process, unsealed")
    assert fake.hosts[on].config == before


@pytest.mark.long
def test_a_server_that_shows_another_value_than_its_file_is_not_proven(fake):
    class Stubborn(VaultConfig):
        async def apply(self, undo):
            await super().apply(undo)
            host = fake.hosts["vault-1"]
            host.ran_with = {**host.ran_with, "default_lease_ttl": 768 * 3600}
            fake._reigns("vault-1")

    with pytest.raises(AssertionError, match=r"to be in force.*default_lease_ttl 2764800"):
        check(fake, Stubborn, "vault-1")


@pytest.mark.lie
def test_a_server_that_does_not_find_the_others_after_its_restart_fails_the_fault(fake):
    """The next one would restart, and nobody could be active."""
    fake.members |= {"vault-4", "vault-5", "vault-6"}  # of which none answers: there is no majority
    with pytest.raises(WaitTimeoutError, match=r"vault on vault-2 to know the active server.*no server known"):
        check(fake, "vault.config", "vault-2")


@pytest.mark.long
def test_a_configuration_that_nothing_has_read_is_not_proven(fake):
    class Unread(VaultConfig):
        async def apply(self, undo):
            host = self._host(undo)
            await host.set_agent_config("vault", {**undo["prior"]["config"], **self.params.set_})

    with pytest.raises(AssertionError, match=r"to be in force.*the same process"):
        check(fake, Unread, "vault-2")


@pytest.mark.lie
@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"storage": {}}, "storage cannot be set"),
        ({"default_lease": "1h"}, "did you mean default_lease_ttl"),
        ({"max_lease_ttl": "soon"}, "max_lease_ttl is a duration"),
        ({"log_level": None}, "log_level has no value"),
    ],
)
def test_what_vault_would_ignore_or_not_show_is_refused(wanted, message):
    with pytest.raises(ValueError, match=message):
        ConfigParams.model_validate({"set": wanted})


def test_a_restore_takes_back_what_was_written_since_the_save(fake):
    check(fake, "vault.snapshot.save", "vault-1", momentary=True)
    fake.secrets["later"] = {}
    fake.tokens.discard("t")
    proof = check(fake, "vault.snapshot.restore", "vault-1", momentary=True)
    assert "later" not in fake.secrets
    assert proof.present.measured.endswith("1 secrets and 0 leases in it (saved: 1 and 0)")
    assert fake.policies == set(), "a marker is left"


def test_a_save_that_keeps_another_snapshot_is_caught(fake):
    class Old(SnapshotSave):
        async def apply(self, undo):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_bytes(packed(["sys/policy/hashidrill-marker-saved-before-another"]))

    with pytest.raises(AssertionError, match="another marker, or none"):
        check(fake, Old, "vault-1", momentary=True)


@pytest.mark.lie
def test_a_restore_that_does_nothing_is_caught(fake):
    check(fake, "vault.snapshot.save", "vault-1", momentary=True)

    class Idle(SnapshotRestore):
        async def apply(self, undo):
            await self._mark(undo, "hashidrill-marker-restored-check-vault.snapshot.restore")

    with pytest.raises(AssertionError, match="the save's is absent, the restore's is there"):
        check(fake, Idle, "vault-1", momentary=True)


def test_a_restore_without_a_save_is_refused(fake):
    with pytest.raises(FaultError, match="there is no snapshot 'before' to restore"):
        prior(fake, "vault.snapshot.restore", "vault-1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x", "not a whole gzip file"),
        (packed(["sys/token/id/1"])[:-20], "not a whole gzip file"),
        (archived({"meta.json": b"{}"}), "not a Vault snapshot"),
    ],
    ids=["no gzip", "cut off", "no state"],
)
def test_a_file_that_is_no_snapshot_of_vault_says_why(content, message):
    with pytest.raises(snapshot.SnapshotError, match=message):
        snapshot.decode(content)


def test_a_snapshot_is_counted_by_its_keys():
    keys = ["sys/policy/p", "sys/token/id/1", "sys/expire/id/auth/token/create/1", "logical/a/b/versions/1/2", "core/x"]
    found = snapshot.decode(packed(keys))
    assert (found.entries, found.policies, found.tokens, found.leases, found.versions) == (5, {"p"}, 1, 1, 1)


@pytest.mark.lie
@pytest.mark.parametrize("kind", [Seal, StepDown, TokenRevoke, VaultConfig, SnapshotSave])
def test_a_fault_that_does_nothing_is_caught_by_its_observer(fake, kind):
    class Idle(kind):
        async def apply(self, undo):
            return

    with pytest.raises(AssertionError, match="to be in force"):
        check(fake, Idle, "vault-1", momentary=kind in (StepDown, SnapshotSave))


@pytest.mark.lie
@pytest.mark.parametrize("kind", [Seal, TokenRevoke, VaultConfig])
def test_a_revert_that_does_nothing_is_caught(fake, kind):
    class Lasting(kind):
        async def revert(self, undo):
            return

    with pytest.raises(AssertionError, match="to be gone"):
        check(fake, Lasting, "vault-1")


def prior(fake, kind, on):
    cls = registry.fault(kind)
    fault = cls(cls.Params.model_validate(params_of(kind)), fake.world)
    return virtual_time.run(planned(fault, fake.target(on), "f"))


def test_what_is_sealed_already_cannot_be_sealed(fake):
    fake.sealed.add("vault-2")
    with pytest.raises(FaultError, match="vault-2: its vault cannot be sealed: sealed"):
        prior(fake, "vault.seal", "vault-2")


def test_only_the_active_server_steps_down(fake):
    with pytest.raises(FaultError, match="vault-2 is not active; vault-1 is; use on: vault:active"):
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
