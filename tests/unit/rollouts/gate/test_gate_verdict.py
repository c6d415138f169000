"""What rounds come to: regression, no regression, improvement, cannot tell; planted, and played as real ones are."""

import json
import math
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from hashidrill.clients.audit.audited import Finding as AuditFinding
from hashidrill.clients.audit.audited import Severity
from hashidrill.clients.audit.tree import Place as AuditPlace
from hashidrill.core.compare.figures import figures
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.rollouts.gate.configuration import configuration, shipped, sources_of
from hashidrill.rollouts.gate.differences import differences
from hashidrill.rollouts.gate.playing import (
    InterruptedGate,
    Plan,
    calibrate,
    calibration_lines,
    counting,
    play_all,
    sides_of,
)
from hashidrill.rollouts.gate.report import (
    FILES,
    advice,
    as_document,
    as_junit,
    as_markdown,
    as_sarif,
    pages,
    tested_lines,
    verdict_lines,
    write_all,
)
from hashidrill.rollouts.gate.suite import Picked, key_map, picked, suite
from hashidrill.rollouts.gate.verdict import Audited, GateVerdict, Outcome, Ran, Result, Slo, SloState, audited, whole
from planted_gate import A_RUN_S, PlantedRuns, configured, differing

pytestmark = pytest.mark.long

ONE = "raft/slow-leader-disk"


@pytest.fixture
def runs(tmp_path):
    return PlantedRuns(tmp_path)


@pytest.fixture
def gated(tmp_path, runs):
    """Gates two configurations of planted runs; the result as the command has it."""

    def gate(before, after, *, names=(ONE,), budget_s=10_000.0, versions=(None, None)):
        sides = [configured(tmp_path, text, name=name) for name, text in (("before", before), ("after", after))]
        found = differences(*sides)
        plan = Plan(found, versions, tmp_path, budget_s)
        chosen = picked(
            suite(names, "consul"), "consul", found.keys, key_map(), budget_s=budget_s, runs=lambda _member: 4
        )
        ran = play_all(chosen, plan, runs.means())
        shown = (versions[0] or "", versions[1] or "")
        audit = audited("consul", *(side.sources for side in sides), limit=Severity.ERROR)
        return Result(("before.hcl", "after.hcl"), shown, found, audit, chosen, tuple(ran), runs.now_s)

    return gate


def multiplier(of):
    return f"performance {{\n  raft_multiplier = {of}\n}}\n"


def slower_when_changed(factor):
    return lambda config: factor if config["performance"]["raft_multiplier"] == 7 else 1.0


class TestOneExperiment:
    def test_a_change_that_changes_nothing_is_no_regression(self, gated, runs):
        result = gated(multiplier(3), multiplier(4))
        assert result.verdict is GateVerdict.NO_REGRESSION
        assert len(runs.played) < 16, "it stops when it is sure"

    def test_each_side_runs_with_its_own_configuration_in_turn(self, gated, runs):
        gated(multiplier(3), multiplier(4))
        assert {(side, config["performance"]["raft_multiplier"]) for side, config in runs.played} == {
            ("baseline", 3),
            ("candidate", 4),
        }
        order = [side for side, _ in runs.played]
        assert order[:4] in (
            ["baseline", "candidate"] * 1 + ["candidate", "baseline"],
            ["candidate", "baseline", "baseline", "candidate"],
        )

    def test_a_figure_that_is_worse_is_a_regression_and_named_with_its_ratio(self, gated, runs):
        runs.slower = slower_when_changed(1.6)
        result = gated(multiplier(3), multiplier(7))
        assert result.verdict is GateVerdict.REGRESSION
        assert any(re.search(r"kv-writes.latency.p50: .* 1\.[56]\d times", reason) for reason in result.reasons)

    def test_a_figure_that_is_better_is_an_improvement(self, gated, runs):
        runs.slower = slower_when_changed(0.5)
        assert gated(multiplier(3), multiplier(7)).verdict is GateVerdict.IMPROVEMENT

    def test_an_expectation_that_the_candidate_breaks_is_a_regression_after_two_rounds(self, gated, runs):
        runs.back_s = lambda config: 15.0 if config["performance"]["raft_multiplier"] == 7 else 1.0
        result = gated(multiplier(3), multiplier(7))
        assert result.verdict is GateVerdict.REGRESSION
        assert "writes_recover" in result.reasons[0]
        assert (
            "holds for the baseline (2 of 2 rounds) and breaks for the candidate (it held in 0 of 2)"
            in result.reasons[0]
        )
        assert len(runs.played) == 4

    @pytest.mark.lie
    def test_one_that_breaks_for_both_says_that_the_baseline_is_sick(self, gated, runs):
        runs.back_s = lambda _config: 15.0
        result = gated(multiplier(3), multiplier(7))
        assert result.verdict is GateVerdict.CANNOT_TELL
        assert "the baseline itself is sick: writes_recover" in result.reasons[0]
        assert len(runs.played) == 4

    @pytest.mark.parametrize(
        ("end", "why"),
        [
            ("steady-state", "the baseline itself is sick: steady state"),
            ("starved", "no round counts"),
            ("unfit", "no round counts"),
        ],
    )
    def test_runs_that_end_early_on_both_sides_cannot_tell_and_a_busy_machine_makes_none_sick(
        self, gated, runs, end, why
    ):
        runs.ends = lambda _side: end
        result = gated(multiplier(3), multiplier(7))
        assert result.verdict is GateVerdict.CANNOT_TELL
        assert why in result.reasons[0]
        assert ("sick" in " ".join(result.reasons)) == (end == "steady-state")

    @pytest.mark.parametrize("end", ["steady-state", "never-ready"])
    def test_one_that_the_candidate_alone_never_reaches_is_a_regression(self, gated, runs, end):
        runs.ends = lambda side: end if side == "candidate" else "complete"
        result = gated(multiplier(3), multiplier(7))
        assert result.verdict is GateVerdict.REGRESSION
        assert "steady state holds for the baseline" in result.reasons[0]

    def test_noise_that_is_too_large_is_said_with_the_rounds_it_would_take(self, gated, runs):
        runs.noise = 0.8
        result = gated(multiplier(3), multiplier(7))
        assert result.verdict is GateVerdict.CANNOT_TELL
        assert any("would tell" in reason or "noise is too large" in reason for reason in result.reasons)

    def test_time_that_is_too_short_cannot_tell(self, gated, runs):
        result = gated(multiplier(3), multiplier(7), budget_s=2.1 * A_RUN_S)
        assert result.verdict is GateVerdict.CANNOT_TELL

    @pytest.mark.lie
    def test_what_is_lacking_is_named_as_measured_and_rounds_only_where_they_were_the_limit(self, gated):
        result = gated(multiplier(3), multiplier(7), budget_s=2.6 * A_RUN_S)
        assert f"{ONE}: cannot tell, 1 round counts (the time was used up after 1 round)" in verdict_lines(result)
        [said] = advice(result)
        assert said.startswith(f"One round of {ONE} took 1 min 20 s, and about 2 more are needed: --time-budget 5m")
        result = replace(result, ran=(replace(result.ran[0], ended="rounds"),))
        assert "2 more are needed: --rounds 3 --time-budget 5m" in advice(result)[0]
        [whole] = [each for each in ET.fromstring(as_junit(result)) if each.get("name") == "hashidrill gate"]
        with_errors = [case.get("name") for case in whole if case.find("error") is not None]
        assert with_errors == ["verdict"]

    def test_ctrl_c_keeps_what_was_found(self, tmp_path, runs):
        runs.interrupt_at = 3
        plan = Plan(differing(tmp_path), ("1.22.2", "1.10.3"), tmp_path, 10_000.0)
        ran: list[Ran] = []
        with pytest.raises(InterruptedGate):
            play_all(Picked(tuple(suite([ONE], "consul")), (), ()), plan, runs.means(), ran=ran)
        assert ran[0].outcome.rounds == 1

    def test_two_versions_are_compared_without_any_configuration(self, tmp_path, runs):
        plan = Plan(differing(tmp_path), ("1.22.2", "1.10.3"), tmp_path, 10_000.0)
        play_all(Picked(tuple(suite([ONE], "consul")), (), ()), plan, runs.means())
        assert {(side, config["version"]) for side, config in runs.played} == {
            ("baseline", "1.22.2"),
            ("candidate", "1.10.3"),
        }


@pytest.mark.long
class TestASuite:
    def test_it_ends_with_the_first_regression_and_says_what_it_did_not_run(self, gated, runs):
        runs.slower = slower_when_changed(2.0)
        result = gated(multiplier(3), multiplier(7), names=[ONE, "raft/slow-follower-disk"])
        assert [each.member.name for each in result.ran] == [ONE]
        assert [member.name for member in result.not_run] == ["raft/slow-follower-disk"]
        assert any(line.startswith("not run") for line in verdict_lines(result))

    @pytest.mark.lie
    @pytest.mark.parametrize(
        ("members", "verdict"),
        [
            (["no regression", "no regression"], "no regression"),
            (["no regression", "improvement"], "improvement"),
            (["improvement", "cannot tell"], "cannot tell"),
            (["improvement", "cannot tell", "regression"], "regression"),
            ([], "cannot tell"),
        ],
    )
    def test_a_group_cannot_pass_with_a_failing_member(self, members, verdict):
        class Member(Outcome):
            verdict = property(lambda self: GateVerdict(self.experiment))

        assert whole(map(Member, members)) == verdict

    def test_what_there_seemed_to_be_no_time_for_follows_where_there_is_some(self, gated, runs, tmp_path):
        members = suite([ONE, "raft/slow-follower-disk"], "consul")
        plan = Plan(differing(tmp_path), ("1.22.2", "1.10.3"), tmp_path, 10_000.0)
        ran = play_all(Picked((members[0],), (members[1],), ()), plan, runs.means())
        assert len(ran) == 2
        short = Plan(plan.differences, plan.versions, tmp_path, 9 * A_RUN_S)
        assert len(play_all(Picked((members[0],), (members[1],), ()), short, runs.means())) == 1

    def test_the_time_is_shared_and_what_one_leaves_the_next_one_has(self, gated, runs):
        gated(multiplier(3), multiplier(4), names=[ONE, "raft/slow-follower-disk"], budget_s=30 * A_RUN_S)
        assert runs.now_s <= 30 * A_RUN_S


YES, NO = True, False


@pytest.mark.lie
@pytest.mark.parametrize(
    ("pairs", "state"),
    [
        ([(YES, YES), (YES, YES)], SloState.HELD),
        ([(YES, NO), (YES, NO)], SloState.BROKEN),
        ([(YES, NO), (YES, YES)], SloState.UNSURE),
        ([(YES, NO), (NO, YES), (YES, NO)], SloState.UNSURE),
        ([(NO, NO), (NO, NO)], SloState.SICK),
        ([(NO, NO), (YES, YES), (YES, YES), (YES, YES)], SloState.HELD),
        ([(NO, YES), (NO, YES)], SloState.SICK),
        ([(YES, YES)], SloState.UNSURE),
        ([(None, NO), (YES, None)], SloState.UNKNOWN),
        ([], SloState.UNKNOWN),
    ],
)
def test_one_bad_run_is_no_broken_expectation(pairs, state):
    assert Slo("x", tuple(pairs)).state is state


@pytest.mark.lie
@pytest.mark.parametrize("sick", [(NO, NO), (NO, YES)])
def test_a_round_in_which_the_baseline_was_sick_is_none_that_the_candidate_passed(sick):
    """Two rounds, one of them of a baseline that broke as well: one round alone would have let it pass."""
    assert Slo("x", (sick, (YES, YES))).state is SloState.UNSURE
    assert Slo("x", (sick, (YES, YES), (YES, YES))).state is SloState.HELD


@pytest.mark.lie
def test_the_counts_are_of_the_rounds_that_the_state_is_of():
    """The baseline held in two more rounds, in which nothing is known of the candidate."""
    slo = Slo("x", ((YES, NO), (YES, None), (YES, None), (YES, NO)))
    assert (slo.state, slo.counted(0), slo.counted(1)) == (SloState.BROKEN, "2 of 2", "0 of 2")


def test_a_side_takes_over_what_matters_and_nothing_else(tmp_path):
    file = tmp_path / "server.json"
    deployed = {"bind_addr": "192.0.2.1", "performance": {"raft_multiplier": 8}, "encrypt": "secret", "server": True}
    file.write_text(json.dumps(deployed))
    config = configuration("consul", sources_of([file]))
    plan = Plan(differences(config, config, role="server"), (None, None), tmp_path, 1.0)
    [member] = suite(["raft/killed-leader"], "consul")
    for side in sides_of(member, plan):
        consul = side.resolved.experiment.datacenter.services["consul"]
        assert not consul.config.get("performance")  # the experiment's own value of what the side says
        assert consul.server_config["performance"] == {"raft_multiplier": 8}
        assert consul.server_config["autopilot"] == {"cleanup_dead_servers": False}  # of the shipped experiment
        assert not {"bind_addr", "encrypt", "server"} & consul.server_config.keys()


@pytest.mark.parametrize(
    ("product", "text", "name", "at"),
    [
        ("nomad", 'server { heartbeat_grace = "30s" }', "nomad/client-disconnect", ("config", "server")),
        (
            "vault",
            'storage "raft" {\n performance_multiplier = 5\n path = "/x"\n}',
            "vault/killed-active",
            ("config", "storage", "raft"),
        ),
    ],
)
def test_each_product_gets_its_configuration_where_its_agents_read_it(tmp_path, product, text, name, at):
    plan = Plan(differing(tmp_path, text, text, product=product), (None, None), tmp_path, 1.0)
    [member] = suite([name], product)
    part = sides_of(member, plan)[1].resolved.data["datacenter"][product]
    for key in at:
        part = part[key]
    assert part in ({"heartbeat_grace": "30s"}, {"performance_multiplier": 5})


@pytest.mark.lie
def test_a_load_that_is_there_for_its_pressure_alone_is_not_compared():
    experiment = load_experiment(find_experiment("config/rollout-year-end"))
    names = {figure.name for figure in figures(experiment)}
    counted = {figure.name for figure in counting(figures(experiment), experiment)}
    assert {name.partition(".")[0] for name in names} >= {"views", "elsewhere", "kv-writes", "cpu"}
    assert {name.partition(".")[0] for name in counted} == {"kv-writes", "ready", "cpu", "memory", "written"}


@pytest.mark.lie
def test_an_expectation_that_nobody_could_judge_keeps_a_gate_from_passing():
    held, unknown = Slo("held", ((YES, YES),) * 3), Slo("unknown", ((None, YES), (YES, None), (None, None)))
    assert Outcome("x", slos=(held,), rounds=3).verdict is GateVerdict.NO_REGRESSION
    outcome = Outcome("x", slos=(held, unknown), rounds=3)
    assert outcome.verdict is GateVerdict.CANNOT_TELL
    assert outcome.unsure == ["unknown could not be judged in any round"]


class TestAudit:
    def test_a_finding_that_the_baseline_has_too_is_not_new(self, tmp_path):
        def side(name, text):
            (tmp_path / name).mkdir()
            (tmp_path / name / "a.hcl").write_text(text)
            return configuration("consul", sources_of([tmp_path / name], top=tmp_path / name))

        joins = 'retry_join = ["10.0.0.1"]\n'
        before, after = side("a", joins + "retry_max = 3"), side("b", joins + "retry_max = 3\nui = true")
        same = audited("consul", before.sources, after.sources, limit=Severity.INFO)
        assert same.findings
        assert not same.new
        worse = audited(
            "consul", side("c", joins).sources, side("d", joins + "retry_max = 3").sources, limit=Severity.WARNING
        )
        assert [(each.path, each.rule_id) for each in worse.failing] == [("a.hcl", "HD102")]

    def test_a_new_error_is_a_regression_before_anything_runs(self, gated):
        finding = AuditFinding("a.hcl", AuditPlace(3, 1), "HD101", "joins once", Severity.ERROR)
        base = gated(multiplier(3), multiplier(4))
        result = Result(base.names, base.versions, base.differences, Audited((finding,), (finding,)))
        assert result.verdict is GateVerdict.REGRESSION
        assert result.reasons == ["a.hcl:3: HD101 joins once"]
        quiet = Audited((finding,), (finding,), limit=None)
        assert Result(base.names, base.versions, base.differences, quiet).verdict is GateVerdict.CANNOT_TELL


class TestFaces:
    @pytest.fixture
    def regression(self, gated, runs):
        runs.back_s = lambda config: 15.0 if config["performance"]["raft_multiplier"] == 7 else 1.0
        return gated('encrypt = "secret-of-the-baseline"\n' + multiplier(3), multiplier(7))

    def test_gate_json_is_as_its_schema_says(self, regression, gated):
        schema = json.loads(shipped_schema())
        for result in (regression, gated(multiplier(3), multiplier(3))):
            jsonschema.validate(json.loads(json.dumps(as_document(result), allow_nan=False)), schema)
        document = as_document(regression)
        assert document["verdict"] == "regression"
        assert document["exit_code"] == 1
        assert document["changes"][0] | {"file": "after.hcl", "line": 2} == document["changes"][0]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document | {"verdict": "fine"}, schema)

    def test_junit_has_a_case_for_each_expectation_and_figure(self, regression):
        suites = {each.get("name"): each for each in ET.fromstring(as_junit(regression))}
        cases = {case.get("name"): case for case in suites[ONE]}
        [broken] = [case for name, case in cases.items() if name.startswith("writes_recover")]
        assert "held in 2 of 2 rounds of the baseline and 0 of 2" in broken.find("failure").get("message")
        assert suites[ONE].get("failures") == "1"
        assert cases["kv-writes.latency.p50 is not worse"].find("error") is not None

    def test_sarif_puts_a_regression_on_the_changed_file_and_key(self, regression):
        [run] = json.loads(as_sarif(regression))["runs"]
        [found] = [each for each in run["results"] if each["ruleId"] == "gate/regression"]
        [place] = found["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "after.hcl"
        assert place["physicalLocation"]["region"]["startLine"] == 2
        assert "performance.raft_multiplier: 3 -> 7" in found["message"]["text"]
        assert run["tool"]["driver"]["rules"][found["ruleIndex"]]["id"] == found["ruleId"]

    def test_the_summary_says_the_verdict_the_reason_and_the_change(self, regression):
        text = as_markdown(regression)
        assert text.startswith("### ✗ regression: before.hcl against after.hcl")
        assert "| `performance.raft_multiplier` | `3` | `7` | `after.hcl:2:3` |" in text
        assert "broken by the candidate" in text

    def test_a_page_has_both_sides_on_one_timeline(self, regression):
        made = pages(regression)
        assert set(made) == {"report.html", "raft-slow-leader-disk.html"}
        data = json.loads(re.search(r'id="timeline-data">(.*?)</script>', made["raft-slow-leader-disk.html"])[1])
        latency = next(panel for panel in data["panels"] if panel["title"] == "kv-writes: latency")
        assert {series["name"] for series in latency["series"]} >= {"baseline p50", "candidate p50"}
        assert latency["sides"]
        assert [lane["title"] for lane in data["lanes"]] == ["baseline", "candidate"]
        assert [round(fault["applied"][0]) for fault in data["faults"]] == [0, 0]  # from the begin of the method
        assert {fault["label"].split(":")[0] for fault in data["faults"]} == {"baseline", "candidate"}

    def test_what_decides_comes_first_and_the_rest_is_folded(self, regression):
        page, folded = pages(regression)["report.html"].split("<details>", 1)
        assert "broken by the candidate" in page
        assert "no worse" not in page
        assert "kv-writes.steady.p50" in folded
        assert re.search(r"<summary>\d+ rows that do not decide</summary>", folded)
        assert as_markdown(regression).index("broken by the candidate") < as_markdown(regression).index("<details>")

    def test_the_version_that_ran_is_named_where_none_was_asked_for(self, regression):
        for each in regression.ran[0].rounds:
            told = json.loads((each.candidate / "run.json").read_text())
            (each.candidate / "run.json").write_text(json.dumps(told | {"versions": {"consul": "1.22.2"}}))
        [line] = tested_lines(regression)
        assert line.startswith("Both sides ran Consul 1.22.2, which the experiments name. If you run another version,")
        assert line in pages(regression)["report.html"]
        assert tested_lines(replace(regression, versions=("1.10.3", "1.22.2"))) == []

    @pytest.mark.lie
    def test_one_that_cannot_tell_says_what_to_do_in_every_form(self, gated, runs):
        runs.noise = 0.9
        result = gated(multiplier(3), multiplier(4))
        assert result.verdict is GateVerdict.CANNOT_TELL
        [line] = advice(result)
        assert "--margin kv-writes.latency.p50=PERCENT" in line
        [found] = json.loads(as_sarif(result))["runs"][0]["results"]
        assert (found["ruleId"], found["level"]) == ("gate/cannot-tell", "warning")
        assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "after.hcl"
        for text in (as_markdown(result), "\n".join(verdict_lines(result)), str(pages(result)["report.html"])):
            assert "is too noisy here" in text

    @pytest.mark.lie
    def test_all_is_written_and_no_secret_is_in_it(self, regression, tmp_path):
        written = write_all(regression, tmp_path / "out")
        assert {path.name for path in written} >= set(FILES)
        for path in written:
            assert "secret-of-the-baseline" not in path.read_text(), path

    def test_markup_in_a_configuration_stays_text(self, gated):
        result = gated(multiplier(3) + 'log_level = "info"', multiplier(3) + 'log_level = "<script>x</script>"')
        assert all("<script>x" not in page for page in pages(result).values())
        assert "<script>x" not in as_markdown(result).replace("`<script>x</script>`", "")


def shipped_schema():
    from importlib.resources import files

    assert shipped("keys.yaml")
    return files("hashidrill.rollouts.gate").joinpath("gate.schema.json").read_text()


class TestCalibration:
    def test_it_says_the_smallest_difference_of_each_figure_and_keeps_it(self, tmp_path, runs):
        [found] = calibrate(
            suite([ONE], "consul"), runs_dir=tmp_path, budget_s=1e6, play=runs.means().play, folder=tmp_path / "kept"
        )
        lines = list(calibration_lines(found))
        [latency] = [line for line in lines if "kv-writes.latency.p50" in line]
        share = float(re.search(r"a difference of (\d+)% shows", latency)[1])
        assert 2 <= share <= 15  # the noise that was planted is 3 % a run
        assert list((tmp_path / "kept").iterdir())

    def test_too_few_rounds_say_so(self, tmp_path, runs):
        runs.ends = lambda _side: "unfit"
        [found] = calibrate(
            suite([ONE], "consul"), runs_dir=tmp_path, budget_s=1e6, play=runs.means().play, folder=tmp_path / "kept"
        )
        assert found.calibration is None
        assert "too few rounds" in "".join(calibration_lines(found))


@pytest.mark.lie
def test_the_pairs_that_are_shown_are_those_of_the_factor_and_of_the_count(gated, runs):
    """Round 2 is discarded, because a run of it was INVALID."""
    ended = iter(["complete"] * 2 + ["fault"] + ["complete"] * 20)
    runs.ends = lambda _side: next(ended)
    runs.slower = slower_when_changed(1.6)
    result = gated(multiplier(3), multiplier(7))
    [ran] = result.ran
    p50 = next(each for each in ran.outcome.figures if each.figure.name == "kv-writes.latency.p50")
    assert [pair.round for pair in p50.pairs] == [1, 3, 4]
    assert p50.interval.rounds == ran.outcome.rounds == len(p50.pairs)
    product = math.prod(pair.ratio for pair in p50.pairs)
    assert product ** (1 / 3) == pytest.approx(p50.interval.ratio)
    text = as_markdown(result)
    assert "| figure | round 1 | round 3 | round 4 |" in text
    assert "3 rounds count, 1 did not" in text
    assert "1 INVALID run was left out" in text
