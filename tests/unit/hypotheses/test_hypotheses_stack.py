"""cascade_within and telemetry_survives: what they measure and how they say it."""

import pytest

from confusion_stack import GAP, blind, fallen, looks
from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken


def check(name, run, **params):
    return hypothesis.get(name).check(run.build(), params)


class TestCascadeWithin:
    def test_it_says_when_each_load_fell_and_when_it_was_back(self, tmp_path):
        run = fallen(tmp_path / "run", secrets=[(13, 34)], leases=[(15, 32)])
        held = check("cascade_within", run, load=["secrets", "leases"], within="10s")
        assert held.figures["secrets_breach_after_s"] == pytest.approx(3, abs=0.15)
        assert held.figures["secrets_back_after_s"] == pytest.approx(3, abs=0.2)
        assert held.figures["leases_worst_s"] == 3.0
        assert "consul (secrets) in breach 3s into" in held.text

    def test_of_a_product_the_first_breach_and_the_last_return_count(self, tmp_path):
        run = fallen(tmp_path / "run", secrets=[(13, 34)], leases=[(15, 32)])
        figures = check("cascade_within", run, load=["secrets", "leases"], within="10s").figures
        assert figures["consul_breach_after_s"] == figures["secrets_breach_after_s"]
        assert figures["consul_back_after_s"] == figures["secrets_back_after_s"]

    def test_one_that_is_late_is_named_and_its_figures_are_kept(self, tmp_path):
        run = fallen(tmp_path / "run", secrets=[(13, 34)], leases=[(15, 45)])
        with pytest.raises(Broken, match="leases not back within 10s") as broken:
            check("cascade_within", run, load=["secrets", "leases"], within="10s")
        assert broken.value.figures["leases_back_after_s"] > 10

    def test_what_was_spared_says_so(self, tmp_path):
        run = fallen(tmp_path / "run", secrets=[(13, 34)], batch=[])
        held = check("cascade_within", run, load=["secrets"], spared=["batch"], within="10s")
        assert held.figures["batch_breach_after_s"] == "never"
        assert "consul (batch) never in breach" in held.text

    def test_errors_count_as_a_breach(self, tmp_path):
        run = fallen(tmp_path / "run")
        run.load("secrets", rate=10, outcome=lambda t: "fail" if 12 <= t < 20 else "ok")
        assert check("cascade_within", run, load=["secrets"], within="10s").figures["secrets_worst_s"] == "never"

    def test_a_load_that_nobody_has_is_nothing_to_judge(self, tmp_path):
        with pytest.raises(HypothesisInvalidError):
            check("cascade_within", fallen(tmp_path / "run", secrets=[(12, 34)]), load=["others"], within="10s")


class TestTelemetrySurvives:
    def test_the_longest_gap_of_the_worst_server_is_the_figure(self, tmp_path):
        held = check("telemetry_survives", looks(tmp_path / "run", blind(15, 16)), **GAP)
        assert 1 < held.figures["longest_gap_s"] < 3
        assert held.figures["targets"] == 3

    def test_a_gap_that_reaches_into_the_fault_from_before_counts_from_its_start(self, tmp_path):
        held = check("telemetry_survives", looks(tmp_path / "run", blind(9, 11.5)), **GAP)
        assert held.figures["longest_gap_s"] == pytest.approx(2, abs=0.7)

    def test_a_blind_reader_is_told_with_what_it_was_told(self, tmp_path):
        with pytest.raises(Broken, match="was blind: it read no metrics for 20s") as broken:
            check("telemetry_survives", looks(tmp_path / "run", blind(10, 30)), **GAP)
        assert "first failure" in broken.value.text
        assert broken.value.figures["failed"] == broken.value.figures["looks"] == 60
