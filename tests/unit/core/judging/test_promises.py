"""What an experiment promises to do is a condition of its validity, whether or not an expectation reads it."""

import pytest

from hashidrill.core.experiment.model import Experiment
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.testing.recordings import RecordingBuilder

LOAD, STRESS, RATE = "kv-writes", "churn", 20


@pytest.fixture
def builder(tmp_path):
    """A fault from 10 s to 30 s; `kv-writes` is judged, and well all the time."""
    builder = RecordingBuilder(tmp_path / "run").fault("disk.latency", at=10, until=30).load(LOAD).healthy()
    return builder.expect("available_during", load=LOAD).expect("leadership_stays")


def judged(builder, **load):
    """`load`: what the experiment says of the stress load."""
    document = builder.experiment()
    if load:
        document["load"][STRESS] = {"kind": "consul.service.churn", "rate": f"{RATE}/s", **load}
    verdict = judge(builder.build(), Experiment.model_validate(document), near_to=builder.path.parent)
    return verdict, {each.hypothesis: each.finding for each in verdict.judgements}


def refuses(builder, start, end, reason="overloaded"):
    """The stress load starts none of what is due then."""
    for n in range(round((end - start) * RATE)):
        at = start + n / RATE
        builder.write(STRESS, "k", "v", start=at, end=at, outcome="fail", error="no", reason=reason)
    return builder


def stress(builder, **load):
    return builder.load(STRESS, rate=RATE, **load)


def test_a_stress_load_that_is_offered_is_no_doubt(builder):
    verdict, _ = judged(stress(builder))
    assert (verdict.verdict, verdict.doubts) == (Verdict.PASS, [])


@pytest.mark.lie
def test_one_that_stops_in_the_method_spoils_what_does_not_read_it(builder):
    """The datacenter was well without the load that was to make it sick."""
    verdict, found = judged(stress(builder, end=11))
    assert set(found.values()) == {Finding.INVALID}
    assert f"load {STRESS} stopped: it started no operation for 39." in verdict.doubts[0]
    assert "measured anyway: held" in verdict.judgements[0].text


@pytest.mark.lie
def test_one_that_refuses_all_of_its_operations_offers_nothing(builder):
    verdict, found = judged(refuses(stress(builder, end=10), 10, 50))
    assert set(found.values()) == {Finding.INVALID}
    assert "it started no operation for 40.0s (it refused all 800 itself), although" in " ".join(verdict.doubts)


def waits(builder):
    """Twenty operations wait for the datacenter for as long as the fault lasts, and no other one is started."""
    stress(builder, end=10).load(STRESS, rate=RATE, start=10, end=11, latency=lambda t: 30 - t)
    return stress(builder, start=30)


@pytest.mark.parametrize(("at_once", "finding"), [(20, Finding.HELD), (22, Finding.HELD), (50, Finding.INVALID)])
def test_as_many_operations_as_it_may_have_under_way_are_an_offer(builder, at_once, finding):
    """The datacenter takes no more of them. With fewer, the load did not do what it promises."""
    verdict, found = judged(waits(builder), at_once=at_once)
    assert set(found.values()) == {finding}
    held = finding is Finding.HELD
    assert bool(verdict.doubts) is not held
    said = f"20.0/s asked for 19s: all that the datacenter accepts with the load's limit of {at_once} in flight"
    assert any(said in note for note in verdict.notes) is held


@pytest.mark.lie
def test_its_own_word_that_it_could_not_start_them_is_no_offer(builder):
    """It says that it was overloaded, with 20 operations under way of the 10,000 that it may have."""
    refuses(waits(builder), 11, 30)
    verdict, found = judged(builder)
    assert set(found.values()) == {Finding.INVALID}
    assert "380 of 920 operations could not be started: generator overloaded" in " ".join(verdict.doubts)
    assert "it started no operation for 19.1s (it refused all 380 itself)" in " ".join(verdict.doubts)


@pytest.mark.lie
@pytest.mark.parametrize(("share", "finding"), [(1.0, Finding.HELD), (0.95, Finding.HELD), (0.5, Finding.INVALID)])
@pytest.mark.parametrize("spec", [{}, {"at_once": 500}])
def test_a_stress_load_that_silently_offers_half_is_not_what_was_promised(builder, share, finding, spec):
    """Nothing is refused, and nothing waits: the other half is not there."""
    stress(builder, end=10).load(STRESS, rate=RATE * share, start=10)
    verdict, found = judged(builder, rate=f"{RATE}/s", **spec)
    assert set(found.values()) == {finding}
    if finding is Finding.INVALID:
        [doubt] = verdict.doubts
        assert "load churn offered " in doubt
        assert "makes INVALID: available_during" in doubt


@pytest.mark.lie
def test_one_that_offers_half_of_what_its_level_asks_for(builder):
    """The search found 300 %, and the generator goes on at 150 %."""
    level = lambda t: 3.0 if 15 <= t < 25 else 1.0  # noqa: E731
    builder.series(f"{STRESS}.level", level, every=0.25)
    all_of_it = lambda share: stress(builder, end=15).load(STRESS, rate=3 * RATE * share, start=15, end=25)  # noqa: E731
    assert set(judged(stress(all_of_it(0.5), start=25))[1].values()) == {Finding.INVALID}


def test_a_short_burst_that_it_could_not_start_spoils_nothing_else(builder):
    """Of 100 operations in five seconds, 8."""
    stress(builder, end=15).load(STRESS, rate=RATE, start=15.4)
    assert judged(builder)[0].verdict is Verdict.PASS


def test_one_operation_that_waits_for_a_moment_is_none(builder):
    stress(builder, end=10).load(STRESS, rate=1, start=10, end=11, latency=3)
    assert set(judged(stress(refuses(builder, 11, 30), start=30))[1].values()) == {Finding.INVALID}


def test_what_fails_while_a_fault_is_in_force_is_what_the_fault_did(builder):
    verdict, _ = judged(stress(builder, outcome=lambda t: "fail" if 10 <= t < 30 else "ok"))
    assert verdict.verdict is Verdict.PASS


@pytest.mark.lie
@pytest.mark.parametrize("outcome", ["fail", "unknown"])
def test_what_fails_to_the_end_without_a_fault_is_no_stress_that_can_be_relied_on(builder, outcome):
    """A token that was refused from the method on offers no work to the product, and no fault explains it."""
    verdict, found = judged(stress(builder, outcome=lambda t: outcome if t >= 10 else "ok"))
    assert set(found.values()) == {Finding.INVALID}
    assert f"load {STRESS} had no successful operation in the last 40.0s" in verdict.doubts[0]
    assert "the last error: no leader" in verdict.doubts[0]


def test_where_an_expectation_reads_it_that_one_judges_it(builder):
    """It is broken, which is a FAIL; the others say what they say beside it."""
    stress(builder, outcome=lambda t: "fail" if t >= 10 else "ok")
    verdict, found = judged(builder.expect("writes_recover", load=STRESS, within="5s"))
    assert (found["leadership_stays"], found["writes_recover"]) == (Finding.HELD, Finding.BROKEN)
    assert verdict.verdict is Verdict.FAIL


def test_what_broke_although_a_load_was_not_served_broke(builder, tmp_path):
    builder = RecordingBuilder(tmp_path / "broken").fault("disk.latency", at=10, until=30)
    builder.load(LOAD, outcome=lambda t: "fail" if t >= 20 else "ok").expect("available_during", load=LOAD)
    assert judged(stress(builder, outcome=lambda t: "fail" if t >= 10 else "ok"))[0].verdict is Verdict.FAIL


@pytest.mark.lie
def test_one_that_came_back_only_for_the_recovery_left_nothing_to_recover_from(builder):
    builder.expect("writes_recover", load=LOAD, within="10s")
    assert judged(stress(stress(builder, end=11), start=29.5))[1]["writes_recover"] is Finding.INVALID


def test_a_hole_in_it_spoils_those_seconds_alone(builder):
    builder.expect("writes_recover", load=LOAD, within="10s")
    found = judged(stress(stress(builder, end=12), start=18))[1]
    assert (found["available_during"], found["writes_recover"]) == (Finding.INVALID, Finding.HELD)


@pytest.mark.lie
def test_a_hypothesis_that_knows_nothing_of_it_is_spoilt_too(builder, tmp_path):
    folder = tmp_path / "hypotheses"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from hashidrill.core.hypothesis import Held, hypothesis\n\n\n@hypothesis\ndef mine(recording):\n"
        "    start_ns, end_ns = recording.phases['method']\n"
        f"    assert recording.operations('{LOAD}').between(start_ns, end_ns).ok.all()\n    return Held('all')\n"
    )
    assert judged(stress(builder.expect("mine"), end=11))[1]["mine"] is Finding.INVALID


@pytest.mark.lie
@pytest.mark.parametrize("step", ["a fault", "a mark"])
def test_a_step_that_ended_well_before_its_time_did_not_happen_as_written(tmp_path, step):
    builder = RecordingBuilder(tmp_path / "run").load(LOAD).expect("available_during", load=LOAD, fault="step")
    if step == "a fault":
        builder.fault("disk.latency", at=10, until=12, name="step")
    else:
        builder.mark("step", at=10, until=12).fault("noop", at=10, until=30)
    document = builder.experiment()
    document["method"][0]["for"] = "20s"
    verdict = judge(builder.build(), Experiment.model_validate(document))
    assert verdict.verdict is Verdict.INVALID
    assert "was in force for 2s, although step 1 of the method says 20s" in verdict.invalid[0]


def service(tmp_path, until=50.0, **spec):
    """A client that reports 13.5 operations a second until it hangs."""
    builder = RecordingBuilder(tmp_path / "run").fault("disk.latency", at=10, until=30).service("orders", **spec)
    return builder.load("orders", rate=13.5, end=until).load("orders.attempts", rate=13.5, end=until)


class TestAServiceThatHangs:
    @pytest.mark.lie
    def test_is_not_available(self, tmp_path):
        """It reports its operations when they end, and the one that hangs does not end."""
        verdict, found = judged(service(tmp_path, until=10.4).expect("available_during", load="orders"))
        assert found == {"available_during": Finding.BROKEN}
        [judgement] = verdict.judgements
        assert "orders was not available while a fault was in force: 1.85% of 270 operations" in judgement.text
        assert "the service reported nothing for 39.7s, after 13.5/s before" in judgement.text

    @pytest.mark.parametrize(
        ("name", "params"),
        [
            ("latency_stays", {"load": "orders"}),
            ("writes_recover", {"load": "orders", "within": "10s"}),
            ("recovers", {"client": "orders", "within": "10s"}),
        ],
    )
    def test_is_not_fast_and_does_not_recover(self, tmp_path, name, params):
        assert judged(service(tmp_path, until=10.4).expect(name, **params))[1] == {name: Finding.BROKEN}

    @pytest.mark.lie
    @pytest.mark.parametrize("name", ["amplification", "retry_budget", "circuit_breaks", "no_storm", "bounded"])
    def test_shows_nothing_of_how_it_retries(self, tmp_path, name):
        params = {"capacity": "50/s"} if name == "no_storm" else {}
        verdict, found = judged(service(tmp_path, until=10.4).expect(name, client="orders", **params))
        assert found == {name: Finding.INVALID}
        assert "client orders went silent" in verdict.judgements[0].text

    def test_that_goes_on_later_was_away_meanwhile(self, tmp_path):
        builder = service(tmp_path, until=12).load("orders", rate=13.5, start=20)
        verdict, found = judged(builder.expect("available_during", load="orders"))
        assert found == {"available_during": Finding.BROKEN}
        assert "the service reported nothing for 8." in verdict.judgements[0].text

    def test_and_that_no_expectation_reads_offers_nothing(self, tmp_path):
        builder = service(tmp_path, until=10.4).load(LOAD).expect("available_during", load=LOAD)
        verdict, found = judged(builder)
        assert found == {"available_during": Finding.INVALID}
        assert "load orders had no successful operation" in verdict.doubts[0]

    def test_is_told_by_its_attempts_where_it_reports_nothing(self, tmp_path):
        builder = RecordingBuilder(tmp_path / "run").fault("disk.latency", at=10, until=30).service("orders")
        builder.load(LOAD).load("orders.attempts", rate=5, end=11).expect("available_during", load=LOAD)
        verdict, found = judged(builder)
        assert found == {"available_during": Finding.INVALID}
        assert "client orders sent nothing for 39." in verdict.doubts[0]


class TestAServiceThatDoesNotHang:
    def test_is_available(self, tmp_path):
        verdict, _ = judged(service(tmp_path).expect("available_during", load="orders"))
        assert (verdict.verdict, verdict.doubts) == (Verdict.PASS, [])
        assert verdict.judgements[0].figures["operations"] == 270

    def test_is_slow_where_its_operations_are(self, tmp_path):
        """One after the other, each for 6 s: it reports five operations, and was never idle."""
        builder = service(tmp_path, until=10).load("orders", rate=1 / 6, start=10, end=40, latency=6)
        builder.load("orders", rate=13.5, start=40)
        assert judged(builder.expect("available_during", load="orders"))[0].verdict is Verdict.PASS

    def test_may_say_how_seldom_it_reports(self, tmp_path):
        builder = service(tmp_path, until=12, reports_every="15s").load("orders", rate=13.5, start=20)
        assert judged(builder.expect("available_during", load="orders"))[0].verdict is Verdict.PASS

    def test_of_few_operations_no_ratio_is_judged(self, tmp_path):
        builder = RecordingBuilder(tmp_path / "run").fault("disk.latency", at=10, until=30).service("orders")
        builder.load("orders", rate=0.2).load("orders.attempts", rate=0.2)
        verdict, found = judged(
            builder.expect("amplification", client="orders").expect("retry_budget", client="orders")
        )
        assert set(found.values()) == {Finding.INVALID}
        assert "4 operations were due in that time, too few to judge (needed: 10)" in verdict.judgements[0].text
