"""load_is_shed and recovers_without_restart: refusals and timeouts, and overloads that do not end by themselves."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.core.protocols.abc import Reason
from spiked_runs import Spiked


@pytest.fixture
def run(tmp_path):
    return Spiked(tmp_path / "run").fault("noop", at=10, until=30)


def in_spike(t):
    return 12 <= t < 22


def check(built, name, **params):
    return hypothesis.get(name).check(built.build(), {"load": "kv-writes", **params})


class TestLoadIsShed:
    def refused(self, run, *, latency=0.005, hanging=lambda t: False):
        run.load(
            "kv-writes",
            outcome=lambda t: ("unknown" if hanging(t) else "fail") if in_spike(t) else "ok",
            latency=lambda t: 10.0 if in_spike(t) and hanging(t) else latency,
        )
        run.status(429, "rate limit exceeded", lambda t: in_spike(t) and not hanging(t))
        return run.status(0, "no answer within 10s", lambda t: in_spike(t) and hanging(t))

    @pytest.mark.parametrize("status", [429, 503])
    def test_holds_when_what_is_too_much_is_refused_at_once(self, run, status):
        built = self.refused(run).status(status, "rate limit exceeded", in_spike)
        held = check(built, "load_is_shed")
        assert held.figures["refused_share"] == 1.0
        assert held.figures["refused"] == 500
        assert held.figures["p99_of_refusals_s"] == pytest.approx(0.005)

    def test_is_broken_when_operations_time_out_instead(self, run):
        with pytest.raises(Broken) as broken:
            check(self.refused(run, hanging=lambda t: int(t) % 2), "load_is_shed")
        assert "50% were refused with 429 or 503, expected at least 90%" in broken.value.text
        assert "first failure without a refusal: 13.0s into the run, unknown: no answer within 10s" in broken.value.text

    def test_is_broken_when_errors_are_no_refusals(self, run):
        with pytest.raises(Broken, match="0% were refused"):
            check(self.refused(run).status(500, "No cluster leader", in_spike), "load_is_shed")

    def test_is_broken_when_refusals_are_slow(self, run):
        with pytest.raises(Broken, match="99% of the refusals came within 3s, expected within 1s"):
            check(self.refused(run, latency=3.0), "load_is_shed")

    def test_a_load_that_was_never_too_much_is_invalid(self, run):
        with pytest.raises(HypothesisInvalidError, match="there was no overload to shed"):
            check(run.load("kv-writes"), "load_is_shed")

    def test_what_the_generator_did_not_send_is_invalid(self, run):
        built = self.refused(run).status(0, "full", in_spike, reason=Reason.OVERLOADED)
        with pytest.raises(HypothesisInvalidError, match="were never sent"):
            check(built, "load_is_shed")


class TestRecoversWithoutRestart:
    def overloaded(self, run, *, sick_until=22.0, restarted_at=None):
        run.load("kv-writes", latency=lambda t: 5.0 if 12 <= t < sick_until else 0.01)
        run.series("process.rss", 1e8, host="consul-1", every=1)
        cpu_of = lambda t: restarted_at is None or not restarted_at <= t < restarted_at + 1  # noqa: E731
        for second in range(4, 50):
            if cpu_of(second):
                run.sample("process.cpu", 0.5, at=second, host="consul-1")
        return run

    def test_holds_when_goodput_is_back_soon_after_the_load_is(self, run):
        held = check(self.overloaded(run, sick_until=24.0), "recovers_without_restart", within="5s")
        assert held.figures["recovered_after_s"] == pytest.approx(2.0, abs=0.11)
        assert held.figures["goodput_before_per_s"] == pytest.approx(50)

    @pytest.mark.parametrize(("sick_until", "said"), [(40.0, r"after 17\.\d+s|after 18s"), (50.0, "never")])
    def test_is_broken_when_the_overload_outlives_its_cause(self, run, sick_until, said):
        with pytest.raises(Broken, match=said) as broken:
            check(self.overloaded(run, sick_until=sick_until), "recovers_without_restart", within="5s")
        assert "did not recover within 5s after the load was back to normal (22.0s into the run)" in broken.value.text

    def test_a_relapse_is_no_recovery(self, run):
        run.load("kv-writes", latency=lambda t: 5.0 if 12 <= t < 22 or 40 <= t < 41 else 0.01)
        with pytest.raises(Broken, match="did not recover"):
            check(run, "recovers_without_restart", within="5s")

    def test_is_broken_when_an_agent_was_restarted_for_it(self, run):
        with pytest.raises(Broken, match="not by itself: meanwhile the agent exited or was restarted on consul-1"):
            check(self.overloaded(run, sick_until=26.0, restarted_at=24), "recovers_without_restart", within="8s")

    def test_is_broken_when_an_agent_was_gone_for_a_while(self, run):
        built = self.overloaded(run, sick_until=26.0).sample(
            "process.rss", None, at=24.5, host="consul-2", text="consul does not run", ok=False
        )
        with pytest.raises(Broken, match="restarted on consul-2"):
            check(built, "recovers_without_restart", within="8s")

    def test_a_restart_just_before_the_recovery_is_found_at_the_next_look(self, run):
        """At 24.5 s, between two looks at the process: at 25 s it is a new one, and goodput is back."""
        with pytest.raises(Broken, match="restarted on consul-1"):
            check(self.overloaded(run, sick_until=24.6, restarted_at=25), "recovers_without_restart", within="8s")

    def test_a_restart_during_the_overload_is_another_matter(self, run):
        assert check(self.overloaded(run, restarted_at=15), "recovers_without_restart", within="5s")

    def test_time_runs_from_the_last_fault_when_that_was_gone_later(self, run):
        run.fault("network.latency", "consul-2", at=12, until=28)
        held = check(self.overloaded(run, sick_until=29.0), "recovers_without_restart", within="3s")
        assert held.figures["recovered_after_s"] == pytest.approx(1.0, abs=0.11)

    def test_loads_that_stopped_too_soon_are_invalid(self, run):
        with pytest.raises(HypothesisInvalidError, match="the loads stopped 28s after the load was back to normal"):
            check(self.overloaded(run), "recovers_without_restart", within="28s")

    def test_a_ramp_that_never_ends_is_invalid(self, run):
        run.profile = {"ramp": {"to": "300%", "over": "5s"}}
        with pytest.raises(HypothesisInvalidError, match="ramps and never returns to 100%"):
            check(self.overloaded(run), "recovers_without_restart", within="5s")
