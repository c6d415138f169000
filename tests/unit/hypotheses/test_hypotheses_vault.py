"""vault_serves_within and vault_has_one_active."""

import pytest

import vault_runs
from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import Finding
from hashidrill.testing.recordings import RecordingBuilder


def check(tmp_path, name, server, *, until=30, **params):
    """A run whose fault takes vault-1 from 10 s on; `server(t)` is active."""
    run = RecordingBuilder(tmp_path / "run").fault("process.kill", "vault-1", at=10, until=until)
    run.load("secrets").leader(server, signal="vault.active")
    return hypothesis.get(name).check(run.build(), params)


def handover(lost, found, to="vault-2"):
    return lambda t: "vault-1" if t < lost else "" if t < found else to


class TestVaultServesWithin:
    def test_a_takeover_between_two_samples_counts(self, tmp_path):
        held = check(tmp_path, "vault_serves_within", handover(11, 11), within="4s")
        assert held.figures["active_after_s"] == pytest.approx(0.5)

    def test_the_same_server_is_active_again_although_no_look_found_it_standing_by(self, tmp_path):
        run = RecordingBuilder(tmp_path / "run").fault("process.restart", "vault-1", at=10, until=30)
        since = lambda t: 1_767_225_600.0 if t < 10 else None if t < 12 else 1_767_225_611.5  # noqa: E731
        run.load("secrets").leader("vault-1", signal="vault.active", term=since)
        held = hypothesis.get("vault_serves_within").check(run.build(), {"within": "4s"})
        assert held.figures["active_after_s"] == pytest.approx(2.0)

    def test_nobody_at_all_is_broken(self, tmp_path):
        with pytest.raises(Broken, match="no active server was seen"):
            check(tmp_path, "vault_serves_within", handover(11, 99), within="4s")

    def test_a_fault_that_leaves_the_active_server_is_nothing_to_judge(self, tmp_path):
        with pytest.raises(HypothesisInvalidError, match="vault_has_one_active"):
            check(tmp_path, "vault_serves_within", "vault-1", within="4s")

    def test_too_short_a_look_says_nothing(self, tmp_path):
        with pytest.raises(HypothesisInvalidError, match="watched for only"):
            check(tmp_path, "vault_serves_within", handover(11, 99), within="2m")


@pytest.mark.parametrize(
    ("run", "name", "params"),
    [
        (vault_runs.secrets, "no_secret_lost", {"load": "secrets"}),
        (vault_runs.leases, "no_lease_lost", {"load": "leases"}),
    ],
)
@pytest.mark.parametrize("reset", [False, True])
def test_losses_are_judged_as_the_judge_reads_a_recording(tmp_path, run, name, params, reset):
    """It notes what each hypothesis reads, so it hands over its own sort of recording."""
    more = {"snapshot": "before"} if reset else {}
    recording = run(tmp_path / "run", reset=reset).expect(name, **params, **more).build()
    [outcome] = judge(recording).judgements
    assert outcome.finding is Finding.HELD, outcome.text


class TestAResetThatCannotBeJudged:
    def judged(self, tmp_path, *steps, snapshot="before"):
        run = RecordingBuilder(tmp_path / "run")
        for kind, at, params in steps:
            run.fault(f"vault.snapshot.{kind}", "vault-1", at=at, until=at + 1, params=params)
        run.load("secrets", rate=5).final_reads("secrets").sample("secrets.unlisted", 0.0, at=51)
        return hypothesis.get("no_secret_lost").check(run.build(), {"load": "secrets", "snapshot": snapshot})

    SAVE, RESTORE = ("save", 11, {"name": "before"}), ("restore", 20, {"snapshot": "before"})

    @pytest.mark.parametrize(
        ("steps", "snapshot", "said"),
        [
            ([SAVE], "before", "this run restored 0 snapshots"),
            ([SAVE, RESTORE, ("restore", 25, {"snapshot": "before"})], "before", "this run restored 2 snapshots"),
            ([SAVE, RESTORE], "monday", "this run restored the snapshot 'before', not 'monday'"),
            ([SAVE, ("save", 15, {"name": "before"}), RESTORE], "before", "saved the snapshot 'before' 2 times"),
        ],
    )
    def test_it_says_why(self, tmp_path, steps, snapshot, said):
        with pytest.raises(HypothesisInvalidError, match=said):
            self.judged(tmp_path, *steps, snapshot=snapshot)


class TestNoLeaseLost:
    def test_the_verdict_says_how_many_leases_were_checked_in_all_and_inside_the_fault(self, tmp_path):
        held = hypothesis.get("no_lease_lost").check(vault_runs.leases(tmp_path / "run").build(), {"load": "leases"})
        assert held.text == (
            "115 of 115 leases that were not revoked could be checked, 50 of them granted while a fault was in force"
            " (of 50): none was lost; 115 revoked ones stayed revoked"
        )

    @pytest.mark.lie
    def test_a_lease_that_ran_out_is_no_loss_and_counts_as_not_checkable(self, tmp_path):
        gone = range(0, vault_runs.at(31), 2)
        run = vault_runs.leases(tmp_path / "run", gone=gone, ttl_s=21)
        with pytest.raises(HypothesisInvalidError, match=r"50 leases of leases were granted while"):
            hypothesis.get("no_lease_lost").check(run.build(), {"load": "leases"})


class TestVaultHasOneActive:
    def test_a_change_within_the_grace_is_held(self, tmp_path):
        assert check(tmp_path, "vault_has_one_active", handover(15, 16), grace="2s").figures["longest_s"] == 1.0

    def test_with_a_fault_only_its_time_counts(self, tmp_path):
        held = check(tmp_path, "vault_has_one_active", handover(35, 45), fault="process.kill", grace="2s")
        assert held.figures["longest_s"] == 0

    def test_without_samples_there_is_nothing_to_judge(self, tmp_path):
        run = RecordingBuilder(tmp_path / "run").fault("process.kill", "vault-1", at=10, until=30).load("secrets")
        with pytest.raises(HypothesisInvalidError, match=r"vault\.active"):
            hypothesis.get("vault_has_one_active").check(run.build(), {})
