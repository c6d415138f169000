"""INVALID has a scope: seconds that were not validly measured spoil what is judged from them, and nothing else."""

import pytest

from hashidrill.core.experiment.model import Experiment, LoadSpec
from hashidrill.core.judging.doubts import closed_loop
from hashidrill.core.judging.judge import judge, read_verdict, write_verdict
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.probes import hosts
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import SILENT_S, probed
from hashidrill.core.units import Duration
from hashidrill.products.consul import probes as consul
from hashidrill.testing.recordings import RecordingBuilder

PERIODS = registry.services()["consul"].periods
LOAD = "kv-writes"


@pytest.fixture
def builder(tmp_path):
    """A run with nothing wrong, once `good` has been called: a fault from 10 s to 30 s, loads until 50 s."""
    return RecordingBuilder(tmp_path / "run")


def good(builder, **load):
    builder.fault("disk.latency", "consul-1", at=10, until=30)
    return builder.load(LOAD, **load).final_reads(LOAD)


def judged(builder):
    """The verdict, and the finding of each expectation by the name of its hypothesis."""
    verdict = judge(builder.build(), near_to=builder.path.parent)
    return verdict, {judgement.hypothesis: judgement.finding for judgement in verdict.judgements}


def cpu(builder, busy=lambda t: False, until=50):
    return builder.series("generator.cpu", lambda t: 0.97 if busy(t) else 0.3, every=1.0, end=until)


def both(builder):
    """One expectation over the time under the fault, one over the time after it, one over the leader."""
    builder.expect("available_during", load=LOAD).expect("writes_recover", load=LOAD, within="10s")
    return builder.expect("leadership_stays")


class TestAGeneratorThatFellBehind:
    @pytest.mark.lie
    def test_spoils_what_is_judged_from_those_seconds_and_the_rest_stands(self, builder):
        cpu(both(good(builder).healthy()), lambda t: 35 <= t < 45)
        verdict, found = judged(builder)
        assert verdict.invalid == []
        assert found == {
            "available_during": Finding.HELD,
            "writes_recover": Finding.INVALID,
            "leadership_stays": Finding.HELD,
        }
        assert verdict.verdict is Verdict.INVALID
        (doubt,) = verdict.doubts
        assert "the generator used up its core: over 0.9 for 10 s in a row, at most 0.97" in doubt
        assert "(from 34.0s to 45.0s into the run)" in doubt
        assert (
            "this makes INVALID: writes_recover(load=kv-writes, within=10s); the other 2 of 3 expectations stand"
            in doubt
        )
        assert "measured anyway: held" in verdict.judgements[1].text

    @pytest.mark.lie
    def test_the_rest_that_could_not_be_judged_for_another_reason_does_not_stand(self, builder):
        cpu(both(good(builder).healthy()).expect("leadership_stays", service="nomad"), lambda t: 35 <= t < 45)
        verdict, _ = judged(builder)
        assert [each.finding for each in verdict.judgements].count(Finding.INVALID) == 2
        assert verdict.doubts[0].endswith("; 2 of the other 3 expectations stand")

    def test_is_no_matter_in_seconds_that_nothing_is_judged_from(self, builder):
        cpu(good(builder).healthy().expect("available_during", load=LOAD), lambda t: 35 <= t < 45)
        verdict, _ = judged(builder)
        assert verdict.verdict is Verdict.PASS
        assert verdict.doubts[0].endswith("this makes no expectation INVALID")

    def test_spoils_an_operation_that_was_due_before_and_came_back_in_those_seconds(self, builder):
        good(builder, latency=lambda t: 8.0 if 29 < t < 30 else 0.01).expect("available_during", load=LOAD)
        assert judged(cpu(builder, lambda t: 33 <= t < 38))[1] == {"available_during": Finding.INVALID}

    def test_two_busy_seconds_are_a_burst(self, builder):
        assert judged(cpu(both(good(builder).healthy()), lambda t: 35 <= t < 37))[0].doubts == []

    def test_spoils_neither_a_lost_write_nor_that_none_was_lost(self, builder):
        cpu(good(builder), lambda t: 12 <= t < 20).expect("no_acknowledged_write_lost", load=LOAD)
        assert judged(builder)[1] == {"no_acknowledged_write_lost": Finding.HELD}

    def test_is_seen_by_the_lag_of_its_operations(self, builder):
        verdict, found = judged(both(good(builder, lag=lambda t: 0.4 if t >= 40 else 0.0).healthy()))
        assert found["available_during"] is Finding.HELD
        assert found["writes_recover"] is Finding.INVALID
        (doubt,) = verdict.doubts
        assert "load kv-writes: the generator fell behind its own schedule: 100% of the operations" in doubt
        assert "p99 400ms" in doubt
        assert "(from 40.0s into the run to the end)" in doubt

    @pytest.mark.lie
    def test_a_median_over_some_seconds_cannot_be_its_own_lag(self, builder):
        """3.5 s of 46 s are under a tenth of all operations, and all of those that a window of a second has."""
        verdict, found = judged(both(good(builder, lag=lambda t: 0.4 if 40 <= t < 43.5 else 0.0).healthy()))
        assert found["writes_recover"] is Finding.INVALID
        assert len(verdict.doubts) == 1

    @pytest.mark.parametrize(
        "lag",
        [lambda t: 0.4 if 40 <= t < 42 else 0.0, 0.1, lambda t: 0.4 if t % 1 < 0.05 else 0.0],
        ids=["a hiccup", "steadily a little", "a little now and then"],
    )
    def test_one_that_kept_its_schedule_well_enough_is_fine(self, builder, lag):
        assert judged(both(good(builder, lag=lag).healthy()))[0].doubts == []

    def test_operations_that_it_could_not_start_spoil_their_own_seconds(self, builder):
        both(good(builder).healthy())
        for at in (40.0, 40.2):
            builder.write(LOAD, "k", "v", start=at, end=at, outcome="fail", reason="overloaded")
        verdict, found = judged(builder)
        assert found["available_during"] is Finding.HELD
        assert found["writes_recover"] is Finding.INVALID
        assert "2 of 2302 operations could not be started" in verdict.doubts[0]


class TestALoadThatDoesNotCoverTheMethod:
    @pytest.mark.lie
    def test_one_that_stops_half_way_through_is_invalid_from_then_on(self, builder):
        both(good(builder, end=20).healthy()).expect("no_acknowledged_write_lost", load=LOAD)
        verdict, found = judged(builder)
        assert found == {
            "available_during": Finding.INVALID,
            "writes_recover": Finding.INVALID,
            "leadership_stays": Finding.INVALID,
            "no_acknowledged_write_lost": Finding.INVALID,
        }
        assert (
            "load kv-writes stopped: it started no operation for 30.0s, although the experiment asks for at least 50/s"
            in verdict.doubts[0]
        )

    def test_a_hole_in_it_spoils_what_is_judged_from_the_hole(self, builder):
        builder.fault("disk.latency", "consul-1", at=10, until=30).load(LOAD, end=14).load(LOAD, start=22)
        verdict, found = judged(both(builder.healthy()))
        assert found["available_during"] is Finding.INVALID
        assert found["writes_recover"] is Finding.HELD
        assert verdict.verdict is Verdict.INVALID

    def test_a_lost_write_is_broken_all_the_same(self, builder):
        good(builder, end=20).final_reads(LOAD, {"kv-writes/3": None}).expect("no_acknowledged_write_lost", load=LOAD)
        assert judged(builder)[0].verdict is Verdict.FAIL

    @pytest.mark.parametrize(("level", "stopped"), [(0.0, False), (0.005, False), (0.02, True)])
    def test_a_low_level_asks_for_as_much_less(self, builder, level, stopped):
        """8 s at 50/s and 0.5 % are two operations, which may come a little later; at 2 % they are eight."""
        builder.fault("disk.latency", "consul-1", at=10, until=30).load(LOAD, end=14).load(LOAD, start=22)
        builder.series(f"{LOAD}.level", lambda t: level if 14 <= t < 22 else 1.0, every=1.0)
        assert bool(judged(both(builder.healthy()))[0].doubts) is stopped

    @pytest.mark.parametrize("kind", PERIODS)
    def test_one_without_a_rate_that_is_due_again_and_again_stops_too(self, builder, kind):
        good(builder, end=12).healthy().expect("available_during", load=LOAD)
        document = builder.experiment()
        document["load"] = {LOAD: {"kind": kind}}
        (verdict,) = [judge(builder.build(), Experiment.model_validate(document))]
        assert f"load {LOAD} stopped: it started no operation for 38.0s" in verdict.doubts[0]

    @pytest.mark.parametrize("kind", PERIODS)
    def test_how_often_that_is_by_itself_is_what_the_load_says(self, kind):
        parameter, default = PERIODS[kind]
        assert registry.load(kind).Params.model_fields[parameter].default == Duration(default)

    def test_how_many_it_has_under_way_at_most_is_what_the_load_says(self):
        for kind, (parameter, default) in registry.services()["consul"].at_once.items():
            assert registry.load(kind).Params.model_fields[parameter].default == default
            assert closed_loop(LoadSpec(kind=kind, rate="1/s")) == default
            assert closed_loop(LoadSpec(kind=kind, rate="1/s", **{parameter: 7})) == 7
        assert closed_loop(LoadSpec(kind="consul.kv.write", rate="1/s")) is None

    def test_a_generator_without_a_sign_of_life_measured_nothing(self, builder):
        _, found = judged(both(cpu(good(builder).healthy(), until=40)))
        assert found["writes_recover"] is Finding.INVALID
        assert found["available_during"] is Finding.HELD

    @pytest.mark.lie
    def test_a_guardrail_over_it_was_blind(self, builder):
        good(builder, end=20).healthy().expect("leadership_stays").guardrail("kv-writes.errors > 90% for 20s")
        verdict, found = judged(builder)
        assert found["guardrail"] is Finding.INVALID
        assert "guardrail `kv-writes.errors > 90% for 20s` was blind" in verdict.judgements[-1].text
        assert verdict.verdict is Verdict.INVALID


class TestAProbeThatDiesInTheMiddle:
    @pytest.mark.lie
    def test_the_leader_is_not_known_to_have_stayed(self, builder):
        verdict, found = judged(both(good(builder).healthy(end=18)))
        assert found["leadership_stays"] is Finding.INVALID
        assert found["available_during"] is Finding.HELD
        assert any("was silent for 32.5s" in doubt and "more probes" in doubt for doubt in verdict.doubts)

    def test_probes_that_were_silent_together_are_one_line_and_each_spoils_what_it_is_of(self, builder):
        for host in ("consul-1", "consul-2", "consul-3"):
            builder.series("process.rss", 0.0, host=host, every=1.0, end=12)
        good(builder).healthy().expect("writes_recover", load=LOAD, within="10s")
        verdict, found = judged(builder)
        assert found == {"writes_recover": Finding.HELD}
        (doubt,) = [each for each in verdict.doubts if "was silent" in each]
        assert "; and 2 more probes; 3 times, " in doubt, verdict.doubts
        assert doubt.endswith("this makes no expectation INVALID")

    def test_of_every_probe_it_is_known_how_long_it_may_be_silent(self):
        """What it samples is in one group, and a probe that waits for its answer as long as it may is not silent.

        Of the log of snapshots nothing is judged: a moment that never came makes a run INVALID.
        """
        ours = [*vars(consul).values(), *vars(hosts).values()]
        for probe in (each for each in ours if isinstance(each, type) and vars(each).get("signals")):
            if probe in {consul.RaftTimesProbe, consul.SnapshotLogProbe, hosts.MachineProbe}:
                continue
            [group] = [each for each in probed() if set(probe.signals) <= each.signals]
            assert group.regular in group.signals, probe
            assert probe.interval_s + probe.timeout_s <= group.silent_s - 2, probe
        assert min(each.silent_s for each in probed()) == SILENT_S

    @pytest.mark.lie
    @pytest.mark.parametrize(
        ("looks", "finding"),
        [
            ((1, 50, 99, 99), Finding.HELD),
            ((1, 22, 99, 99), Finding.INVALID),  # silent from 22 s on
            ((1, 50, 15, 23), Finding.INVALID),  # it looks, and sees nothing
            ((4, 50, 14, 18), Finding.HELD),  # one look that failed, of a probe that looks seldom
            ((4, 50, 12, 28), Finding.INVALID),
        ],
    )
    def test_of_a_declared_probe_counts_by_how_often_it_looks(self, builder, tmp_path, looks, finding):
        """Also for a hypothesis that was written without a thought of it, and for a guardrail."""
        every, end, fails, until = looks
        mine(tmp_path, "return recording.series('page.ok').between(10 * 10**9, 30 * 10**9).value.min()")
        good(builder).probe("page", url="http://client-1/", every=f"{every}s").guardrail("page.ok < 1 for 3s")
        for at in range(4, end, every):
            known = not fails <= at < until
            builder.sample("page.ok", 1.0 if known else None, at=at, ok=known)
            builder.sample("page.value", None, at=at, ok=False)
        verdict, found = judged(builder.expect("mine", load=LOAD))
        assert {"guardrail": finding, **found} == {"mine": finding, "guardrail": finding}
        assert verdict.verdict is (Verdict.PASS if finding is Finding.HELD else Verdict.INVALID)

    def test_silence_after_what_is_judged_does_not_matter(self, builder):
        good(builder).leader(end=38).expect("leadership_stays", fault="disk.latency")
        verdict, found = judged(builder)
        assert found == {"leadership_stays": Finding.HELD}
        assert verdict.verdict is Verdict.PASS

    def test_silence_of_one_host_spoils_what_is_read_of_that_host(self, builder, tmp_path):
        mine(tmp_path, "return recording.series('disk.fsync', host).value.max()", "host: str")
        good(builder).series("disk.fsync", 0.01, host="consul-1").series("disk.fsync", 0.01, host="consul-2", end=20)
        builder.expect("mine", host="consul-1").expect("mine", host="consul-2")
        assert [each.finding for each in judged(builder)[0].judgements] == [Finding.HELD, Finding.INVALID]

    def test_a_sick_target_is_no_silent_probe(self, builder):
        good(builder).leader(lambda t: "" if t >= 18 else "consul-1").expect("leadership_stays")
        verdict, found = judged(builder)
        assert verdict.doubts == []
        assert found == {"leadership_stays": Finding.BROKEN}


class TestAFaultThatFaded:
    @pytest.mark.lie
    def test_spoils_all_from_its_last_good_proof_on(self, builder):
        """The disk was slow for a moment; that the load was quick "under the fault" and "after it" says nothing."""
        builder.fault("disk.latency", "consul-1", at=10, until=30, faded=True).load(LOAD).final_reads(LOAD).healthy()
        both(builder).expect("no_acknowledged_write_lost", load=LOAD)
        verdict, found = judged(builder)
        assert set(found.values()) == {Finding.INVALID}
        assert verdict.verdict is Verdict.INVALID
        assert "fault disk.latency on consul-1 was no longer in force just before its revert" in verdict.doubts[0]
        assert "asked for in force, measured nothing of it" in verdict.doubts[0]

    def test_what_was_judged_before_it_stands(self, builder):
        builder.fault("process.kill", "consul-2", at=10, until=15).load(LOAD).final_reads(LOAD).healthy()
        builder.fault("disk.latency", "consul-1", at=20, until=30, faded=True)
        builder.expect("available_during", load=LOAD, fault="process.kill")
        builder.expect("available_during", load=LOAD, fault="disk.latency")
        assert [each.finding for each in judged(builder)[0].judgements] == [Finding.HELD, Finding.INVALID]

    def test_a_lost_write_is_lost(self, builder):
        builder.fault("disk.latency", "consul-1", at=10, until=30, faded=True).load(LOAD)
        builder.final_reads(LOAD, {"kv-writes/3": None}).expect("no_acknowledged_write_lost", load=LOAD)
        assert judged(builder)[0].verdict is Verdict.FAIL


class TestAFaultThatFollows:
    def test_one_that_was_given_up_because_the_role_moved_is_no_reason(self, builder):
        builder.fault("disk.latency", "consul-1", at=10, until=11, proven=False, moved=True)
        builder.fault("disk.latency", "consul-2", at=11, until=30, step=0).load(LOAD).final_reads(LOAD)
        assert judged(builder.expect("available_during", load=LOAD))[0].verdict is Verdict.PASS

    def test_one_that_could_not_even_be_applied_there_is_none_either(self, builder):
        builder.fault("disk.latency", "consul-1", at=10, until=11, failed="does not lead")
        builder.event("fault.moved", at=11, fault_id="disk.latency-0", on="consul:leader")
        builder.fault("disk.latency", "consul-2", at=11, until=30, step=0).load(LOAD).final_reads(LOAD)
        assert judged(builder.expect("available_during", load=LOAD))[0].verdict is Verdict.PASS

    def test_one_that_is_still_seen_where_the_role_was_is(self, builder):
        builder.fault("disk.latency", "consul-1", at=10, until=11, proven=False, moved=True, gone=False)
        builder.fault("disk.latency", "consul-2", at=11, until=30, step=0).load(LOAD).final_reads(LOAD)
        assert judged(builder)[0].invalid

    @pytest.mark.lie
    def test_one_that_was_never_proven_anywhere_is(self, builder):
        builder.fault("disk.latency", "consul-1", at=10, until=11, proven=False, moved=True)
        builder.fault("disk.latency", "consul-2", at=11, until=12, proven=False, moved=True, step=0)
        builder.load(LOAD).final_reads(LOAD)
        assert len(judged(builder)[0].invalid) == 2


def mine(tmp_path, body, params="load: str"):
    """A hypothesis of a user's own."""
    (tmp_path / "hypotheses").mkdir()
    (tmp_path / "hypotheses" / "mine.py").write_text(
        "import json\nimport sqlite3\nfrom hashidrill.core.hypothesis import hypothesis\n"
        f"@hypothesis\ndef mine(recording, *, {params}):\n    {body}\n"
    )


@pytest.mark.lie
@pytest.mark.parametrize(
    "body",
    [
        "assert recording.operations(load).latency_s.max() < 9",
        "ops = recording.operations(load); assert ops.ok[(ops.intended_ns < 30 * 10**9)].all()",
        "assert recording.final_reads(load)",
        "assert recording.journal",
        "assert recording.events('end')",
        "assert sqlite3.connect(recording.path / 'recording.sqlite').execute('select 1').fetchall()",
        "return 'nothing was read at all'",
        "assert recording.operations(load).between(0, 60 * 10**9).within([(34 * 10**9, 36 * 10**9)]).ok.all()",
    ],
)
def test_in_doubt_a_hypothesis_is_judged_from_the_whole_run(builder, tmp_path, body):
    mine(tmp_path, body)
    cpu(good(builder).expect("mine", load=LOAD), lambda t: 35 <= t < 45)
    assert judged(builder)[1] == {"mine": Finding.INVALID}


@pytest.mark.parametrize(
    "body",
    [
        "assert recording.operations(load).between(0, 30 * 10**9).ok.all()",
        "assert recording.operations(load).within([(0, 10**9), (20 * 10**9, 30 * 10**9)]).ok.all()",
        "assert recording.operations(load).between(0, 30 * 10**9).between(0, 60 * 10**9).ok.all()",
        "from hashidrill import measure; measure.sliding(recording.operations(load), 0, 30 * 10**9).worst()",
    ],
)
def test_a_hypothesis_of_a_user_that_narrows_what_it_reads_stands(builder, tmp_path, body):
    mine(tmp_path, body)
    cpu(good(builder).expect("mine", load=LOAD), lambda t: 35 <= t < 45)
    assert judged(builder)[1] == {"mine": Finding.HELD}


def test_the_doubts_are_in_the_verdict_that_is_left(builder):
    recording = cpu(both(good(builder).healthy()), lambda t: 35 <= t < 45).build()
    written = write_verdict(recording)
    assert written.doubts
    assert read_verdict(recording.path) == written


@pytest.mark.lie
class TestAMachineThatOtherWorkKeptBusy:
    """On two CPUs (RecordingBuilder's). A datacenter without CPU breaks every SLO, and that is no finding about it."""

    @staticmethod
    def slow(builder, others=1.8, idle=0.0, when=lambda t: True):
        """Writes that never recover, with what other work took of the machine meanwhile."""
        good(builder, latency=lambda t: 0.9 if t > 10 else 0.01).healthy().expect(
            "writes_recover", load=LOAD, within="5s"
        )
        builder.series("machine.others", lambda t: others if when(t) else 0.1, every=1.0)
        return builder.series("machine.idle", lambda t: idle if when(t) else 1.2, every=1.0)

    def test_what_broke_then_is_invalid_and_says_what_to_do(self, builder):
        verdict, found = judged(self.slow(builder))
        assert found == {"writes_recover": Finding.INVALID}
        assert verdict.verdict is Verdict.INVALID
        (doubt,) = verdict.doubts
        assert "processes outside of the run used up to 1.8 of 2 CPUs" in doubt
        assert "run it again when the machine is quieter" in verdict.judgements[0].text
        assert "measured anyway: broken" in verdict.judgements[0].text

    @pytest.mark.parametrize(
        ("at_most", "found"), [("9s", Finding.KNOWN), ("1ms", Finding.INVALID)], ids=["as known", "worse than known"]
    )
    def test_a_known_break_needs_no_such_excuse_and_a_worse_one_has_it(self, builder, at_most, found):
        good(builder, latency=lambda t: 0.9 if t > 10 else 0.01).healthy()
        bound = {"issue": "hashicorp/consul#1", "at_most": {"worst_p50_s": at_most}}
        builder.expect("latency_stays", load=LOAD, p50_below="300ms", known_issue=bound)
        builder.series("machine.others", 1.8, every=1.0).series("machine.idle", 0.0, every=1.0)
        (judgement,) = judged(builder)[0].judgements
        assert judgement.finding is found, judgement.text

    def test_what_happened_often_is_one_line_with_the_longest_time(self, builder):
        busy = lambda t: 31 <= t < 35 or 36 <= t < 44 or 45 <= t < 49  # noqa: E731
        verdict, found = judged(self.slow(builder, when=busy))
        assert found == {"writes_recover": Finding.INVALID}
        (doubt,) = verdict.doubts
        assert "(from 35.0s to 43.0s into the run; 3 times, 16s in total); this makes INVALID: writes_rec" in doubt

    @pytest.mark.parametrize(
        ("down", "found"),
        [((20,), Finding.BROKEN), ((40,), Finding.INVALID), ((20, 40), Finding.BROKEN), ((34.5,), Finding.INVALID)],
    )
    def test_one_look_in_a_quiet_second_is_enough_for_a_break(self, builder, down, found):
        """On a shared machine no break of a whole run would ever count otherwise."""
        good(builder).healthy().expect("signal_stays", condition="page.ok == 1", during="run")
        builder.probe("page", url="http://client-1:8500/", every="500ms")
        for t in [4 + n / 2 for n in range(92)]:
            builder.sample("page.ok", 0.0 if t in down else 1.0, at=t)
        busy = lambda t: 35 <= t < 45  # noqa: E731
        builder.series("machine.others", lambda t: 1.8 if busy(t) else 0.1, every=1.0)
        builder.series("machine.idle", lambda t: 0.0 if busy(t) else 1.2, every=1.0)
        assert judged(builder)[1] == {"signal_stays": found}

    @pytest.mark.parametrize(("timeout", "found"), [("1s", Finding.BROKEN), ("8s", Finding.INVALID)])
    def test_a_look_may_have_been_made_for_as_long_as_its_timeout(self, builder, timeout, found):
        """The page was asked while the machine was busy, and given up five seconds later."""
        good(builder).healthy().expect("signal_stays", condition="page.ok == 1", during="run")
        builder.probe("page", url="http://client-1:8500/", every="5s", timeout=timeout)
        for t in range(5, 50, 5):
            builder.sample("page.ok", 0.0 if t == 25 else 1.0, at=t)
        busy = lambda t: 12 <= t < 21  # noqa: E731
        builder.series("machine.others", lambda t: 1.8 if busy(t) else 0.1, every=1.0)
        builder.series("machine.idle", lambda t: 0.0 if busy(t) else 1.2, every=1.0)
        assert judged(builder)[1] == {"signal_stays": found}

    def test_what_held_in_spite_of_it_held(self, builder):
        good(builder).healthy().expect("writes_recover", load=LOAD, within="10s")
        builder.series("machine.others", 1.8, every=1.0).series("machine.idle", 0.0, every=1.0)
        verdict, found = judged(builder)
        assert found == {"writes_recover": Finding.HELD}
        assert verdict.verdict is Verdict.PASS

    def test_a_write_that_is_gone_is_lost_however_busy_the_machine_was(self, builder):
        good(builder).healthy().final_reads(LOAD, {"kv-writes/3": None})
        builder.expect("no_acknowledged_write_lost", load=LOAD)
        builder.series("machine.others", 1.8, every=1.0).series("machine.idle", 0.0, every=1.0)
        assert judged(builder)[0].verdict is Verdict.FAIL

    @pytest.mark.parametrize(
        ("others", "idle"), [(0.3, 0.0), (1.0, 0.4)], ids=["it was the run's own work", "there was CPU left"]
    )
    def test_no_other_work_that_starved_it_is_no_excuse(self, builder, others, idle):
        assert judged(self.slow(builder, others, idle))[1] == {"writes_recover": Finding.BROKEN}

    def test_nor_is_other_work_while_nothing_was_judged(self, builder):
        assert judged(self.slow(builder, when=lambda t: t < 8))[1] == {"writes_recover": Finding.BROKEN}

    def test_two_busy_seconds_are_a_burst(self, builder):
        assert judged(self.slow(builder, when=lambda t: 20 <= t < 22))[1] == {"writes_recover": Finding.BROKEN}
