"""The file of a game day: what is right is read, and each mistake is one message with its place."""

import json

import jsonschema
import pytest
from typer.testing import CliRunner

from folded import unfolded
from game_days import DAY, day_file, planned
from hashidrill.core.errors import ExperimentError
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.gameday.plan import gameday_schema, giveaways, read_plan, schema_text
from places import ROOT

PEOPLE = DAY["people"]
KILLED = {"experiment": "raft/killed-leader"}


def refusal(folder, **changes):
    with pytest.raises(ExperimentError) as refused:
        read_plan(day_file(folder, **changes))
    said = unfolded(str(refused.value))
    assert "Traceback" not in said
    assert "a-day.yaml:" in said
    return said


def test_a_day_is_read_with_its_experiments(tmp_path):
    plan = planned(tmp_path)
    assert [run.name for run in plan.runs] == ["first", "second"]
    assert [run.resolved.name for run in plan.runs] == ["killed-leader", "slow-follower-disk"]
    assert plan.runs[0].questions == ("leader", "stop")
    assert plan.runs[0].alerts == ("slow",)
    assert plan.day.lead == "ada"


def test_an_alert_may_watch_a_probe_of_one_of_its_experiments(tmp_path):
    blocked = [{"experiment": "network/api-blocked-for-users", "name": "blocked"}, {**KILLED, "name": "killed"}]
    changes = {"experiments": blocked, "alerts": {"down": "page.ok < 1 for 3s"}, "messages": []}
    plan = read_plan(day_file(tmp_path, **changes))
    assert [run.alerts for run in plan.runs] == [("down",), ()]
    assert "page.okk is not a signal: did you mean page.ok" in refusal(
        tmp_path, **changes | {"alerts": {"a": "page.okk < 1"}}
    )


def test_the_day_that_ships_takes_less_than_six_minutes_and_is_right():
    plan = read_plan(ROOT / "playbooks/first-game-day.yaml")
    assert 2 <= len(plan.runs) <= 3
    seconds = 0.0
    for run in plan.runs:
        experiment = run.resolved.experiment
        ends = [step.at + (step.for_ or 0) for step in experiment.method]
        seconds += experiment.steady_state.for_ + max(ends) + experiment.recovery.for_ + 40  # start, proofs, and end
        assert set(run.questions) == set(plan.day.questions)
    assert seconds + sum(run.spec.pause for run in plan.runs) < 360
    assert not plan.needs_a_person()


SHIPPED = [ROOT / "playbooks/first-game-day.yaml", ROOT / "runners/hashidrill/faces/cli/templates/gameday.yaml"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_day_that_ships_does_not_say_beforehand_what_it_breaks(path, tmp_path):
    written = path.read_text().replace("@@experiment@@", "raft/slow-leader-disk").replace("@@name@@", "summer")
    (tmp_path / "day.yaml").write_text(written)
    plan = read_plan(tmp_path / "day.yaml")
    assert [giveaways(run) for run in plan.runs] == [{}] * len(plan.runs)
    assert all(run.spec.title and run.spec.watch for run in plan.runs)


@pytest.mark.lie
@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"title": "We kill somebody"}, {"title": "kill"}),
        ({"title": "Killed, and who leads?", "watch": "The leaders' seconds"}, {"title": "killed", "watch": "leaders"}),
        ({"title": "One of three servers goes away", "watch": "kv-writes"}, {}),
        ({"title": "A process ends", "title_after": "The leader is killed"}, {"title": "process"}),
    ],
)
def test_a_word_of_the_fault_or_its_target_gives_the_answer_away(tmp_path, entry, words):
    first, second = DAY["experiments"]
    plan = planned(tmp_path, experiments=[first | entry, second])
    assert giveaways(plan.runs[0]) == words
    said = CliRunner().invoke(app, ["validate", str(tmp_path / "a-day.yaml")])
    assert said.exit_code == 0
    for key, word in words.items():
        assert f"experiments[0].{key}: this reveals before the run what breaks ({word})" in unfolded(said.stderr)
    assert ("warning: " in said.stderr) is bool(words)
    [row] = json.loads(CliRunner().invoke(app, ["validate", str(tmp_path / "a-day.yaml"), "--json"]).stdout)
    assert (row["error"], len(row["warnings"])) == (None, bool(words))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "Gameday"}, "not a game day: it begins with `apiVersion: hashidrill/v1` and `kind: GameDay`"),
        ({"people": {"ada": {"role": "on-call"}}}, "no person is the lead: give one person `role: lead`"),
        ({"people": PEOPLE | {"bob": {"role": "lead"}}}, "ada is already the lead"),
        ({"people": {"ada": {"role": "boss"}}}, "'boss' is not a valid value"),
        ({"people": {"Ada Lovelace": {"role": "lead"}}}, "a name of lower-case words joined by dashes"),
        ({"people": {"ada": {"role": "lead", "name": "x" * 121}}}, "at most 120 characters"),
        ({"goal": ["x"]}, "unknown key 'goal': did you mean goals?"),
        ({"before": [{"check": "machine", "confirm": "Yes"}]}, "says check and confirm: write one of"),
        ({"before": [{}]}, "says nothing: write one of"),
        ({"before": [{"check": "machine", "unattended": True}]}, "`unattended` is only for `confirm`"),
        ({"before": [{"condition": "machine.memory > 2GB"}]}, "machine.memory cannot be checked before a day"),
        ({"before": [{"condition": "kv-writes.errors < 1%"}]}, "kv-writes.errors cannot be checked before a day"),
        ({"before": [{"condition": "machine.memory_available > 2s"}]}, "is not a size"),
        ({"before": [{"condition": "machine.load < 50%"}]}, "with a plain number"),
        ({"before": [{"condition": "machine.cpus > 1 for 5s"}]}, "leave out `for`"),
        ({"questions": {"stop": {"measure": "stop", "ask": "?"}}}, "stop is measured for one load: add `load"),
        ({"questions": {"l": {"measure": "leader", "ask": "?", "load": "x"}}}, "leader is not measured for one load"),
        ({"questions": {"l": {"measure": "leader", "ask": "?", "signal": "raft.led"}}}, "names no leader"),
        ({"questions": {"a": {"measure": "alerts", "ask": "?"}}, "alerts": None}, "the day has no `alerts`"),
        ({"alerts": {"a": "raft.leaders < 1"}}, "raft.leaders is not a signal: did you mean raft.leader"),
        ({"alerts": {"a": "kv-write.errors > 5%"}}, "has a load kv-write: did you mean kv-writes"),
        ({"alerts": {"a": "kv-writes.latency.p50 is high"}}, "is not a condition; write it like"),
        ({"experiments": []}, "at least 1 entry"),
        ({"experiments": [{"experiment": "raft/dead-leader"}]}, "there is no experiment 'raft/dead-leader'"),
        ({"experiments": [{"experiment": "x" * 400}]}, "there is no experiment"),
        ({"experiments": [{"experiment": "../../nowhere/passwd"}]}, "there is no experiment"),
        ({"experiments": [KILLED, KILLED]}, "experiments[0] is called killed-leader too"),
        ({"experiments": [KILLED | {"variant": "new"}]}, "has no variant 'new': it has no variants"),
        ({"experiments": [KILLED | {"predict": ["sotp"]}], "messages": None}, "no question sotp: did you mean stop"),
        ({"experiments": [KILLED | {"pause": "5"}]}, "has no unit"),
        ({"messages": [{"when": "before third", "to": "a", "say": "b"}]}, "no experiment of the day is called third"),
        ({"messages": [{"when": "soon", "to": "a", "say": "b"}]}, "messages[0].when"),
        ({"abort": {"measured": [{"measure": "stop", "load": "kv-writes", "above": "10%"}]}}, "is not a duration"),
        ({"abort": {"measured": [{"measure": "stop", "load": "x", "above": "10s"}]}}, "of the day has a load x"),
        ({"abort": {"failed": 0}}, "at least 1"),
        ({"on_failure": {"owner": "bob"}}, "`people` has no key bob"),
    ],
)
def test_a_mistake_is_one_message_with_its_place(tmp_path, changes, said):
    assert said in refusal(tmp_path, **changes)


def test_a_question_that_an_experiment_cannot_answer_is_not_asked_or_refused_where_it_is_wanted(tmp_path):
    questions = DAY["questions"] | {"other": {"measure": "stop", "load": "mail", "ask": "?"}}
    assert "other" not in planned(tmp_path, questions=questions).runs[0].questions
    wanted = [KILLED | {"predict": ["other"]}]
    assert "killed-leader has no load mail" in refusal(tmp_path, questions=questions, experiments=wanted, messages=None)


def test_an_experiment_with_variants_needs_the_name_of_one(tmp_path):
    found = next(path for path in sorted((ROOT / "experiments").rglob("*.yaml")) if "\nvariants:" in path.read_text())
    said = refusal(tmp_path, experiments=[{"experiment": str(found)}], messages=None, questions={})
    assert "name one with `variant`" in said


def test_an_experiment_with_a_mistake_is_told_where_the_day_names_it(tmp_path):
    (tmp_path / "mine.yaml").write_text("apiVersion: hashidrill/v1\nkind: Experiment\nmetadata: {}\n")
    said = refusal(tmp_path, experiments=[{"experiment": "mine.yaml"}], messages=None)
    assert "mine.yaml:" in said
    assert "hashidrill validate mine.yaml" in said


def test_a_path_is_relative_to_the_file(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(
        (ROOT / "experiments/raft/frozen-leader.yaml").read_text().replace("../bases/", f"{ROOT}/experiments/bases/")
    )
    path = day_file(tmp_path, experiments=[{"experiment": "mine.yaml"}], messages=None)
    monkeypatch.chdir("/")
    assert read_plan(path).runs[0].resolved.name == "frozen-leader"


def test_two_people_of_one_name_are_told_apart(tmp_path):
    people = {"alex": {"role": "lead", "name": "Alex Kim"}, "alex-2": {"role": "observer", "name": "alex kim"}}
    day = planned(tmp_path, people=people, on_failure=None).day
    assert [day.shown(key) for key in day.people] == ["Alex Kim (alex)", "alex kim (alex-2)"]
    assert planned(tmp_path).day.shown("ada") == "Ada"  # one of a name needs no key


def test_control_characters_in_a_name_are_refused(tmp_path):
    said = refusal(tmp_path, people={"ada": {"role": "lead", "name": "A\x1b[31mda"}})
    assert "not text" in said
    assert "\x1b" not in said


@pytest.mark.long
def test_a_file_of_ten_thousand_lines_is_read_or_refused_in_one_message(tmp_path):
    path = day_file(tmp_path)
    path.write_text("# a comment\n" * 10_000 + path.read_text())
    assert len(read_plan(path).runs) == 2
    assert "at most 100 entries" in refusal(tmp_path, goals=["a goal"] * 9_000)
    assert "too large" in refusal(tmp_path, goals=["a goal"] * 10_001)
    with pytest.raises(ExperimentError, match="larger than 256 kB"):
        read_plan(day_file(tmp_path, goals=["a goal that is long enough"] * 10_000))


def test_validate_takes_a_day_and_names_what_is_wrong_in_it(tmp_path):
    path = day_file(tmp_path)
    done = CliRunner().invoke(app, ["validate", str(path)])
    assert (done.exit_code, done.stdout.split()) == (0, ["ok", *str(path).split()])
    done = CliRunner().invoke(app, ["validate", str(day_file(tmp_path, people={"a": {"role": "scribe"}})), "--json"])
    assert done.exit_code == 2
    assert "no person is the lead" in unfolded(json.loads(done.stdout)[0]["error"])


def test_the_schema_is_printed():
    assert CliRunner().invoke(app, ["schema", "gameday"]).stdout == schema_text()
    assert "did you mean gameday" in str(CliRunner().invoke(app, ["schema", "gamedays"]).exception)


def test_the_schema_takes_what_is_right_and_sees_what_it_can():
    validator = jsonschema.Draft202012Validator(gameday_schema())
    validator.check_schema(gameday_schema())
    assert not list(validator.iter_errors(DAY))
    for wrong in (
        {"people": {}},
        {"before": [{"check": "machine", "confirm": "x"}]},
        {"before": [{}]},
        {"experiments": [{"experiment": "x", "pause": "5"}]},
        {"goal": []},
        {"kind": "Base"},
    ):
        assert list(validator.iter_errors(DAY | wrong)), wrong
