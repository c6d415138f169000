"""Lies that a gate must not tell: planted rounds that a careless gate would call "no regression"."""

import datetime as dt
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from hashidrill.clients.audit.audited import Severity
from hashidrill.core.compare.comparison import compared
from hashidrill.core.compare.figures import Figure, Measured
from hashidrill.core.compare.statistics import Decision, Prior
from hashidrill.core.errors import RevertError, UsageError
from hashidrill.core.judging.verdict import Finding, Judgement, RunVerdict
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.util.redaction import Redactor
from hashidrill.faces.cli.app import app
from hashidrill.lab.runs.rounds import Played, Round
from hashidrill.rollouts.gate.configuration import configuration, sources_of
from hashidrill.rollouts.gate.differences import differences
from hashidrill.rollouts.gate.playing import Calibration, Plan, _known, calibrate, play_all, sides_of
from hashidrill.rollouts.gate.report import as_junit, as_markdown, as_text
from hashidrill.rollouts.gate.suite import Picked, key_map, picked, suite
from hashidrill.rollouts.gate.verdict import GateVerdict, Outcome, Ran, Slo, SloState, audited, figure_line, slos_of
from planted_gate import PlantedRuns, differing, result_of

pytestmark = [pytest.mark.long, pytest.mark.lie]

ONE = "raft/slow-leader-disk"
YES, NO = True, False


@pytest.fixture
def runs(tmp_path):
    return PlantedRuns(tmp_path)


@pytest.fixture
def outcome(tmp_path, runs):
    """What the rounds of one experiment say, with raft_multiplier 3 against 7."""

    def play(*texts, at_most=8):
        found = differing(tmp_path, *(texts or [f"performance {{ raft_multiplier = {each} }}" for each in (3, 7)]))
        plan = Plan(found, (None, None), tmp_path, 10_000.0, at_most)
        chosen = picked(
            suite([ONE], "consul"), "consul", found.keys, key_map(), budget_s=10_000.0, runs=lambda _member: 4
        )
        return play_all(chosen, plan, runs.means())[0].outcome

    return play


class TestRunsOfOneSide:
    def test_a_candidate_whose_runs_fail_now_and_then_does_not_pass_by_those_that_did_not(self, outcome, runs):
        breaks = iter([True, False] * 50)
        runs.ends = lambda side: "fault" if side == "candidate" and next(breaks) else "complete"
        found = outcome()
        assert found.rounds >= 2
        assert found.verdict is GateVerdict.CANNOT_TELL
        assert any("runs of the candidate were INVALID, and none of the baseline" in line for line in found.unsure)

    def test_a_machine_that_spoils_runs_of_both_sides_says_nothing_about_either(self, outcome, runs):
        breaks = iter([True, False, False, False, False] * 50)
        runs.ends = lambda _side: "fault" if next(breaks) else "complete"
        assert outcome().verdict is GateVerdict.NO_REGRESSION

    def test_a_machine_that_is_unfit_is_no_fault_of_the_side_that_ran_then(self, outcome, runs):
        unfit = iter([True, True, *[False] * 50])
        runs.ends = lambda side: "unfit" if side == "candidate" and next(unfit) else "complete"
        assert outcome().verdict is GateVerdict.NO_REGRESSION

    def test_two_sides_whose_agents_were_started_the_same_are_not_compared(self, outcome, runs):
        runs.plant = lambda _side, _config, run: run.run_info(config={"consul-1": {"server": True}})
        found = outcome()
        assert found.verdict is GateVerdict.CANNOT_TELL
        assert any("took no effect" in line for line in found.unsure)

    def test_sides_that_differ_in_a_secret_alone_are_compared(self, outcome, runs):
        """No recording has it: both show the same experiment, with the same configuration."""
        runs.slower = lambda config: 2.0 if config["limits"]["shared_secret"] == "hunter3hunter3" else 1.0
        runs.plant = lambda _side, config, run: run.run_info(config=Redactor().clean({"consul-1": config}))
        found = outcome(*(f'limits {{ shared_secret = "hunter{n}hunter{n}" }}' for n in (2, 3)))
        assert not any("nothing to compare" in line for line in found.unsure)
        assert found.verdict is GateVerdict.REGRESSION
        assert "hunter" not in repr(found)

    def test_a_secret_that_only_one_side_has_is_compared(self, outcome, runs):
        found = outcome("limits { rpc_rate = 5 }", 'limits { rpc_rate = 5, shared_secret = "hunter2hunter2" }')
        assert found.verdict is GateVerdict.NO_REGRESSION

    def test_a_secret_that_no_agent_was_started_with_is_not_compared(self, outcome, runs):
        runs.plant = lambda _side, _config, run: run.run_info(config={"consul-1": {"server": True}})
        found = outcome(*(f'limits {{ shared_secret = "hunter{n}hunter{n}" }}' for n in (2, 3)))
        assert found.verdict is GateVerdict.CANNOT_TELL
        assert any("limits.shared_secret took no effect" in line for line in found.unsure)

    def test_a_changed_key_that_no_agent_was_started_with_does_not_pass_by_one_that_took_effect(self, outcome, runs):
        def plant(_side, config, run):
            run.run_info(config={"consul-1": {"limits": config["limits"]}})

        runs.plant = plant
        found = outcome(*(f"limits {{ rpc_rate = {n} }}\nperformance {{ raft_multiplier = {n} }}" for n in (3, 7)))
        assert found.verdict is GateVerdict.CANNOT_TELL
        assert any("performance.raft_multiplier took no effect: there, the agents" in line for line in found.unsure)

    def test_and_junit_is_not_green_either(self, tmp_path):
        equal = of_figure(one=[1.0] * 3, other=[1.0] * 3)
        found = Outcome("x", figures=(equal,), rounds=3, doubts=("took no effect",))
        [member] = suite([ONE], "consul")
        result = result_of(differing(tmp_path), Ran(member, found))
        assert 'errors="1"' in as_junit(result)
        assert "took no effect" in as_junit(result)


class TestWhatTheExperimentDoesItself:
    def test_a_method_that_sets_the_changed_key_on_both_sides_compares_nothing(self, tmp_path):
        found = differing(tmp_path, *(f"use_streaming_backend = {value}" for value in ("true", "false")))
        plan = Plan(found, (None, None), tmp_path, 1.0)
        [member] = suite(["config/streaming-off-again"], "consul")
        with pytest.raises(UsageError, match=r"its own consul.config sets use_streaming_backend, which differs"):
            sides_of(member, plan)

    def test_nothing_is_injected_after_a_run_that_left_a_fault_in_force(self, outcome, runs):
        runs.ends = lambda _side: "revert"
        with pytest.raises(RevertError, match="hashidrill heal") as stuck:
            outcome()
        assert stuck.value.exit_code == 4
        assert len(runs.played) == 1

    def test_nor_does_a_calibration_go_on(self, tmp_path, runs):
        runs.ends = lambda _side: "revert"
        with pytest.raises(RevertError, match="hashidrill heal"):
            list(calibrate(suite([ONE], "consul"), runs_dir=tmp_path, budget_s=1e6, play=runs.means().play))
        assert len(runs.played) == 1


class TestExpectations:
    def test_a_guardrail_that_trips_for_the_candidate_alone_is_a_regression(self, outcome, runs):
        def plant(side, _config, run):
            run.guardrail("kv-writes.errors > 90%", tripped_at=29 if side == "candidate" else None)

        runs.plant = plant
        found = outcome()
        assert found.verdict is GateVerdict.REGRESSION
        assert any("guardrail" in line for line in found.regressions)

    def test_a_guardrail_that_is_blind_is_not_one_that_held(self):
        blind = judged("guardrail(x)", Finding.INVALID, hypothesis="guardrail")
        tripped = judged("guardrail(x)", Finding.BROKEN, hypothesis="guardrail")
        [slo] = slos_of([(blind, tripped)] * 3)
        assert slo.state is SloState.UNKNOWN

    @pytest.mark.parametrize(
        ("pairs", "state"),
        [
            ([(YES, YES), (YES, YES), *[(YES, None)] * 6], SloState.UNSURE),
            ([(YES, YES), (YES, YES), (YES, None), (None, YES)], SloState.HELD),
            ([(YES, YES), (YES, YES), (YES, YES), (YES, None)], SloState.HELD),
        ],
    )
    def test_what_could_not_be_judged_for_the_candidate_alone_is_no_proof_that_it_held(self, pairs, state):
        assert Slo("x", tuple(pairs)).state is state

    def test_what_judged_nothing_and_measured_nothing_that_decides_cannot_tell(self):
        found = Outcome("x", figures=(of_figure(decides=False, one=[1.0] * 3, other=[1.0] * 3),), rounds=3)
        assert found.verdict is GateVerdict.CANNOT_TELL
        assert not found.settled

    def test_a_known_issue_that_the_candidate_brings_back_is_a_regression(self):
        fixed, known = judged("x", Finding.FIXED), judged("x", Finding.KNOWN)
        assert slos_of([(fixed, known)] * 3)[0].state is SloState.BROKEN
        assert slos_of([(fixed, known)] * 2)[0].state is SloState.UNSURE

    def test_a_known_issue_that_comes_and_goes_is_none(self):
        fixed, known = judged("x", Finding.FIXED), judged("x", Finding.KNOWN)
        assert slos_of([(fixed, known), (known, known), (fixed, known), (fixed, fixed)])[0].state is SloState.HELD
        assert slos_of([(known, fixed)] * 3)[0].state is SloState.HELD


def judged(title, finding, *, hypothesis="x"):
    return RunVerdict([], [Judgement(title, hypothesis, finding, "a text")])


class TestFigures:
    def test_a_figure_that_could_not_be_measured_for_the_candidate_alone_does_not_pass_by_its_good_rounds(self):
        found = of_figure(one=[1.0] * 8, other=[1.0, None, 1.01, None, None, 0.99, None, None])
        assert found.decision is Decision.CANNOT_TELL
        assert "for the candidate alone in 5 of 8 rounds: in doubt" in found.why

    def test_nor_is_it_worse_by_what_could_not_be_measured_of_the_baseline(self):
        assert of_figure(one=[1.0, None, 1.0, None, 1.0], other=[2.0] * 5).decision is Decision.CANNOT_TELL

    def test_what_is_surely_worse_where_it_was_measured_stays_worse(self):
        assert of_figure(one=[1.0] * 8, other=[2.0] * 5 + [None] * 3).decision is Decision.WORSE

    def test_rounds_that_neither_side_measured_do_not_matter(self):
        assert of_figure(one=[1.0] * 6 + [None] * 2, other=[1.0] * 6 + [None] * 2).decision is Decision.NO_WORSE

    def test_a_tail_that_looks_worse_and_is_not_sure_yet_keeps_it_from_passing(self):
        tail = of_figure(decides=False, one=[0.05] * 3, other=[0.12, 0.25, 0.18])
        assert tail.decision is Decision.CANNOT_TELL
        found = Outcome("x", figures=(tail, of_figure(one=[1.0] * 3, other=[1.0] * 3)), rounds=3)
        assert not found.settled
        assert found.verdict is GateVerdict.CANNOT_TELL
        assert any(line.startswith("load.figure: 50ms -> 180ms") for line in found.unsure)

    def test_noise_in_what_decides_nothing_does_not(self):
        cost = of_figure(decides=False, one=[1.0, 1.3, 0.9], other=[1.1, 0.9, 1.2])
        assert cost.decision is Decision.CANNOT_TELL
        found = Outcome("x", figures=(cost, of_figure(one=[1.0] * 3, other=[1.0] * 3)), rounds=3)
        assert found.settled
        assert found.verdict is GateVerdict.NO_REGRESSION


def of_figure(*, one, other, decides=True):
    """A figure over rounds of these numbers; None is what was not measured."""
    figure = Figure("load.figure", "s", 1e-4, 1.2, decides, lambda _run: Measured(0.0))
    sides = [
        [Measured(each) if each else Measured(float("nan"), why="in doubt") for each in side] for side in (one, other)
    ]
    rounds = [
        Round(
            number,
            [Played(name, None, {figure.name: side[number]}) for name, side in zip(("a", "b"), sides, strict=True)],
            ("a", "b"),
        )
        for number in range(len(one))
    ]
    return compared(rounds, [figure])[0]


def test_what_a_change_costs_every_day_is_seen_beside_a_fault_that_costs_more(outcome, runs):
    runs.every_day = lambda config: 5.0 if config["performance"]["raft_multiplier"] == 7 else 1.0
    found = outcome()
    assert found.verdict is GateVerdict.REGRESSION
    assert any(line.startswith("kv-writes.steady.p50: 10ms -> 50ms") for line in found.regressions)


def machine(run, *, others, idle, cpus=2):
    """What the machine's own samples say all the time: in CPUs, the rest is the run's own."""
    run.run_info(machine={"cpus": cpus})
    run.series("machine.others", others, every=1.0).series("machine.idle", idle, every=1.0)


def never_steady(run):
    run.phase("start", at=0).phase("ready", at=2).phase("steady", at=4)


class TestOtherWorkOnTheMachine:
    """The experiment asks for no idle CPU: what the machine was like is in the recording all the same."""

    @pytest.mark.parametrize("side", ["baseline", "candidate"])
    def test_a_side_that_it_kept_from_getting_steady_is_neither_sick_nor_a_regression(self, outcome, runs, side):
        def plant(of, _config, run):
            machine(run, others=1.7 if of == side else 0.1, idle=0.05 if of == side else 1.4)
            if of == side:
                never_steady(run)

        runs.plant, runs.ends = plant, lambda of: "steady-state" if of == side else "complete"
        found = outcome()
        assert found.verdict is GateVerdict.CANNOT_TELL
        assert found.unsure[0] == "no round counts"
        assert any("other work on this machine took 1.7 of its 2 CPUs" in line for line in found.unsure)

    def test_rounds_that_it_disturbed_are_left_out_and_the_others_tell(self, outcome, runs):
        busy = iter([True, True, *[False] * 50])

        def plant(of, _config, run):
            starved = of == "candidate" and next(busy)
            machine(run, others=1.8 if starved else 0.1, idle=0.0 if starved else 1.4)
            if starved:
                run.end("steady-state", error="it was planted")

        runs.plant = plant
        found = outcome()
        assert found.verdict is GateVerdict.NO_REGRESSION
        assert [line for line in found.invalid if line.startswith("candidate: other work on this machine took 1.8")]

    def test_a_candidate_that_burns_the_cpu_itself_is_caught_though_others_use_some(self, outcome, runs):
        """Nothing is idle then, and with what the baseline takes there would be enough for both."""

        def plant(of, _config, run):
            machine(run, others=0.6, idle=0.0 if of == "candidate" else 0.9)

        runs.plant = plant
        runs.slower = lambda config: 1.8 if config["performance"]["raft_multiplier"] == 7 else 1.0
        found = outcome()
        assert found.verdict is GateVerdict.REGRESSION
        assert any("kv-writes.latency.p50" in line for line in found.regressions)

    @pytest.mark.parametrize("others", [0.0, 0.6])
    def test_and_so_is_one_that_never_gets_steady_for_that(self, outcome, runs, others):
        def plant(of, _config, run):
            machine(run, others=others, idle=0.0 if of == "candidate" else 1.5 - others)
            if of == "candidate":
                never_steady(run)

        runs.plant, runs.ends = plant, lambda of: "steady-state" if of == "candidate" else "complete"
        found = outcome()
        assert found.verdict is GateVerdict.REGRESSION
        assert any("steady state" in line for line in found.regressions)


def test_a_datacenter_that_takes_long_to_get_ready_is_seen_though_no_load_runs_then(outcome, runs):
    def plant(of, _config, run):
        starts = {"start": 0 if of == "candidate" else 3.2, "ready": 3.4}
        for phase, at in {**starts, "steady": 4, "method": 10, "recovery": 30, "quiesce": 50}.items():
            run.phase(phase, at=at)

    runs.plant = plant
    found = outcome()
    assert found.verdict is GateVerdict.REGRESSION
    assert any(line.startswith("ready: 800ms -> 4s") for line in found.regressions)


class TestWhatIsMissing:
    def test_a_candidate_whose_agent_dies_is_no_improvement(self, outcome, runs):
        def plant(of, _config, run):
            for host in ("consul-1", "consul-2", "consul-3"):
                end = 12 if of == "candidate" and host == "consul-3" else 50
                for signal, value in (("process.cpu", 0.5), ("process.rss", 1e8), ("process.write_rate", 1e6)):
                    for at in range(4, 50):
                        there = at < end
                        run.sample(signal, value if there else None, at=at, host=host, ok=there)

        runs.plant = plant
        found = outcome()
        assert found.verdict is GateVerdict.NO_REGRESSION
        costs = {each.figure.name: each for each in found.figures if each.figure.name in {"cpu", "memory", "written"}}
        assert {each.decision for each in costs.values()} == {Decision.CANNOT_TELL}
        assert all("consul-3 the longest" in each.why for each in costs.values())

    def test_what_only_costs_less_raises_no_hopes(self, outcome, runs):
        def plant(of, _config, run):
            for host in ("consul-1", "consul-2", "consul-3"):
                run.series("process.cpu", 0.9 if of == "baseline" else 0.3, host=host)

        runs.plant = plant
        found = outcome()
        assert found.verdict is GateVerdict.NO_REGRESSION
        assert found.improvements == []

    @pytest.mark.parametrize("seconds", [4, 12])
    def test_operations_that_were_shed_for_the_candidate_alone_count_against_it(self, outcome, runs, seconds):
        def plant(of, _config, run):
            for number in range(seconds * 20 if of == "candidate" else 0):
                at = 12 + number / 20
                run.write(
                    "kv-writes", f"shed/{number}", "x", start=at, end=at, outcome="fail", reason=Reason.OVERLOADED
                )

        runs.plant = plant
        found = outcome()
        assert found.verdict is GateVerdict.REGRESSION
        assert any(line.startswith("kv-writes.errors") for line in found.regressions)


UNTESTED = {
    "acl.default_policy": ('acl { default_policy = "allow" }', 'acl { default_policy = "deny" }'),
    "ports.grpc": ("ports { grpc = 8502 }", "ports { grpc = -1 }"),
    "retry_join": ('retry_join = ["10.0.0.1"]', 'retry_join = ["10.0.0.9"]'),
    "encrypt": ('encrypt = "swordfish-1"', 'encrypt = "swordfish-2"'),
    "tls.defaults.verify_incoming": ("tls { defaults { verify_incoming = true } }", ""),
    "data_dir": ('data_dir = "/opt/consul"', 'data_dir = "/srv/consul"'),
    "client_addr": ('client_addr = "0.0.0.0"', 'client_addr = "127.0.0.1"'),
    "node_meta.team": ('node_meta { team = "a" }', 'node_meta { team = "b" }'),
}
TESTED = {
    "nothing": Outcome(ONE, rounds=1, without=("x: no change",), no_change=True),
    "held": Outcome(ONE, slos=(Slo("x", ((True, True),) * 3),), rounds=3),
}
"""What the experiments say of a key that they did test."""


class TestWhatNoRunShows:
    def test_a_file_that_goes_is_audited_by_what_it_leaves(self, tmp_path):
        for side in ("before", "after"):
            (tmp_path / side).mkdir()
            (tmp_path / side / "a.hcl").write_text('data_dir = "/opt/consul"\nserver = true\nbootstrap_expect = 3\n')
        (tmp_path / "before" / "join.hcl").write_text('retry_join = ["10.0.0.1"]')
        before, after = (
            configuration("consul", sources_of([tmp_path / side], top=tmp_path / side)) for side in ("before", "after")
        )
        assert [
            (each.path, each.rule_id)
            for each in audited("consul", before.sources, after.sources, limit=Severity.INFO).new
        ] == [("a.hcl", "HD101")]
        assert not audited("consul", after.sources, after.sources, limit=Severity.INFO).new

    def test_what_differs_and_is_left_out_is_named_with_the_verdict(self, tmp_path):
        texts = (f'acl {{ default_policy = "{policy}" }}\nnode_name = "a"' for policy in ("allow", "deny"))
        result = result_of(differing(tmp_path, *texts))
        assert result.verdict is GateVerdict.CANNOT_TELL
        assert result.reasons[0] == "differs, and no gate tests it: acl.default_policy"
        assert result.reasons[1] == "nothing that can be compared differs, and nothing ran"
        assert 'errors="1"' in as_junit(result)

    def test_a_gossip_key_that_changes_is_told_without_its_value(self, tmp_path):
        result = result_of(differing(tmp_path, 'encrypt = "swordfish-1"', 'encrypt = "swordfish-2"'))
        assert result.verdict is GateVerdict.CANNOT_TELL
        assert result.reasons[0] == "differs, and no gate tests it: encrypt (a secret)"
        assert "swordfish" not in as_markdown(result) + as_junit(result) + as_text(result)

    def test_a_key_that_only_says_which_agent_it_is_changes_nothing(self, tmp_path):
        result = result_of(differing(tmp_path, 'node_name = "a"', 'node_name = "b"'))
        assert result.verdict is GateVerdict.NO_CHANGE
        assert result.reasons == ["nothing that can be compared differs, and nothing ran"]

    @pytest.mark.parametrize("key", UNTESTED)
    @pytest.mark.parametrize("tested", ["", "nothing", "held"])
    def test_a_tested_key_never_hides_one_that_no_gate_tests(self, tmp_path, key, tested):
        """Alone, beside a change without effect, and beside one that was measured and is no regression."""
        [member] = suite([ONE], "consul")
        ran = (Ran(member, TESTED[tested]),) if tested else ()
        log = ('log_level = "INFO"\n', 'log_level = "WARN"\n') if tested else ("", "")
        texts = (f"{level}{value}" for level, value in zip(log, UNTESTED[key], strict=True))
        result = result_of(differing(tmp_path, *texts), *ran)
        assert (result.verdict, result.verdict.exit_code) == (GateVerdict.CANNOT_TELL, 3)
        assert result.reasons[0].startswith(f"differs, and no gate tests it: {key}")
        assert ("the tested part: no regression" in result.reasons) == (tested == "held")
        assert 'errors="1"' in as_junit(result)
        assert as_markdown(result).splitlines()[2].startswith("- differs, and no gate tests it: ")

    def test_a_regression_is_one_whatever_else_was_not_tested(self, tmp_path):
        [member] = suite([ONE], "consul")
        broken = Outcome(ONE, slos=(Slo("x", ((True, False),) * 2),), rounds=2)
        found = differing(tmp_path, *UNTESTED["acl.default_policy"])
        result = result_of(found, Ran(member, broken), versions=("1", "2"))
        assert result.verdict is GateVerdict.REGRESSION
        assert result.reasons[-1] == "differs, and no gate tests it: acl.default_policy"

    def test_a_key_whose_experiments_there_was_no_time_for_is_not_hidden_by_one_that_was_tested(self, tmp_path):
        members = suite(["raft/slow-leader-disk", "raft/killed-leader"], "consul")
        one, other = (replace(each, mattering=(key,)) for each, key in zip(members, ("a.x", "b.y"), strict=True))
        chosen, ran = Picked((one,), (other,), ()), Ran(one, TESTED["held"])
        result = result_of(differing(tmp_path), ran, versions=("1.1.1", "1.1.2"), picked=chosen)
        assert result.verdict is GateVerdict.CANNOT_TELL
        assert result.reasons[0] == "changed, and there was no time for the experiments that matter for these keys: b.y"
        both = replace(result, picked=Picked((one,), (replace(other, mattering=("a.x",)),), ()))
        assert both.verdict is GateVerdict.NO_REGRESSION

    @pytest.mark.parametrize("product", ["consul", "nomad", "vault"])
    def test_a_key_that_is_left_out_matters_unless_the_table_says_otherwise(self, product, monkeypatch):
        """One that is added to the table without care keeps a gate from passing."""
        groups = [{"why": "a reason that somebody wrote", "keys": ["new_key"]}]
        monkeypatch.setattr("hashidrill.rollouts.gate.differences.shipped", lambda _name: {product: groups})
        config = configuration(product, [])
        found = differences(replace(config, settings={"new_key": 1}), replace(config, settings={"new_key": 2}))
        assert found.untested == ["new_key"]

    @pytest.mark.parametrize(
        ("product", "before", "after"),
        [
            ("consul", "server = false", "server = true"),
            ("consul", "bootstrap_expect = 3", "bootstrap_expect = 1"),
            ("consul", "ports { grpc = 8502 }", "ports { grpc = -1 }"),
            ("nomad", "server { enabled = true }", "server { enabled = false }"),
        ],
    )
    def test_what_an_agent_is_in_its_datacenter_does_not_change_without_a_word(self, tmp_path, product, before, after):
        result = result_of(differing(tmp_path, before, after, product=product))
        assert result.verdict is GateVerdict.CANNOT_TELL
        assert result.reasons[0].startswith("differs, and no gate tests it: ")

    def test_a_gate_that_was_interrupted_says_of_no_change_that_it_is_none(self, tmp_path):
        found = Outcome("x", figures=(of_figure(one=[1.0] * 3, other=[1.0] * 3),), rounds=3)
        [member] = suite([ONE], "consul")
        result = result_of(differing(tmp_path), Ran(member, found), versions=("1.1.1", "1.1.2"))
        assert result.verdict is GateVerdict.NO_REGRESSION
        stopped = replace(result, interrupted=True)
        assert stopped.verdict is GateVerdict.CANNOT_TELL
        assert stopped.reasons == ["it was interrupted"]
        assert 'errors="1"' in as_junit(stopped)

    def test_a_figure_that_fewer_rounds_measured_says_so(self):
        found = of_figure(one=[1.0] * 3 + [None] * 5, other=[1.0] * 3 + [None] * 5)
        assert found.decision is Decision.NO_WORSE
        assert figure_line(found).endswith(", measured in 3 of 8 rounds")
        assert "rounds" not in figure_line(of_figure(one=[1.0] * 3, other=[1.0] * 3))

    def test_a_calibration_of_last_year_is_not_believed(self, monkeypatch):
        at = dt.datetime.now(dt.UTC) - dt.timedelta(days=365)
        monkeypatch.setattr(
            "hashidrill.rollouts.gate.playing.kept", lambda _: Calibration("x", at, {"x": Prior(0.01, 6)})
        )
        assert _known(None) == {}

    def test_the_result_of_an_earlier_gate_does_not_outlive_one_that_ends_without_any(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        out = tmp_path / ".hashidrill" / "gate"
        out.mkdir(parents=True)
        (out / "gate.json").write_text('{"verdict": "no regression"}')
        (out / "notes.txt").write_text("of the user")
        done = CliRunner().invoke(app, ["gate", "--baseline", "none.hcl", "--candidate", "none.hcl"])
        assert done.exception.exit_code == 2
        assert [path.name for path in out.iterdir()] == ["notes.txt"]
