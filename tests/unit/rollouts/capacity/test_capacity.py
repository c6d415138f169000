"""The search for a limit: what is tried, what is known in the end, and how one run is judged."""

import gc
import json
import weakref

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.experiment.library import find_experiment, read_experiment
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.judging.at_worst import at_worst
from hashidrill.core.recording.reader import Recording
from hashidrill.faces.cli import capacity as command
from hashidrill.faces.cli.app import app
from hashidrill.rollouts import capacity as capacity_runs
from hashidrill.rollouts.capacity import Outcome, Probe, Value, Varied, judged, probe_of, search
from hashidrill.testing.recordings import RecordingBuilder

SLO = Condition.parse("kv-writes.latency.p50 < 300ms")


def limit_at(limit, *, generator=float("inf")):
    """A datacenter that bears `limit`, with a generator that can offer so much."""

    def probe(value):
        if value.number > generator:
            return Probe(value, Outcome.GENERATOR, "the generator used up its core")
        return Probe(value, Outcome.HELD if value.number <= limit else Outcome.BROKEN, "measured")

    return probe


# the search


@pytest.mark.parametrize("limit", [50, 51, 99, 333.3, 4000, 123456])
@pytest.mark.parametrize("precision", [0.02, 0.1, 0.5])
def test_the_limit_is_found_within_the_precision(limit, precision):
    found = search(Value.parse("50/s"), limit_at(limit), precision=precision, tries=50)
    assert found.held.number <= limit < found.not_held.number
    assert found.not_held.number <= found.held.number * (1 + precision) * 1.02
    # only the ends of the bracket are run twice
    again = [value for value in {probe.value for probe in found.probes} if found.counts(value).total() > 1]
    assert {value.number for value in again} == {found.held.number, found.not_held.number}


def test_it_doubles_first_and_bisects_then():
    found = search(Value.parse("50/s"), limit_at(330), precision=0.1)
    assert [str(probe.value) for probe in found.probes] == [
        "50/s",
        "100/s",
        "200/s",
        "400/s",
        "283/s",
        "336/s",
        "308/s",
        "308/s",
        "336/s",
    ]
    assert command.answer(found, "load.x.rate") == "it holds at load.x.rate = 308/s, and fails at 336/s"
    assert command.exit_code(found) == 0


def test_whole_numbers_stay_whole_and_the_search_ends_between_neighbours():
    found = search(Value.parse(1), limit_at(5), precision=0.01)
    assert [probe.value.written for probe in found.probes] == [1, 2, 4, 8, 6, 5, 5, 6]
    assert (found.held.written, found.not_held.written) == (5, 6)


def test_it_goes_no_higher_than_it_may():
    found = search(Value.parse("50/s"), limit_at(1e9), highest=Value.parse("300/s"))
    assert [probe.value.number for probe in found.probes] == [50, 100, 200, 300, 300]
    assert command.answer(found, "x") == "it held at x = 300/s, the highest value tried"


def test_what_does_not_hold_at_the_beginning_is_said_after_two_runs():
    found = search(Value.parse("50/s"), limit_at(10))
    assert len(found.probes) == 2
    assert command.exit_code(found) == 1
    assert command.answer(found, "x") == "it fails even at x = 50/s; start lower"


def test_a_run_that_overloaded_the_generator_bounds_the_search_and_is_said():
    found = search(Value.parse("50/s"), limit_at(1e9, generator=250), precision=0.1)
    assert 227 <= found.held.number <= 250 < found.not_held.number
    assert found.bounded_by_generator
    assert "the generator was the bottleneck, so the limit may be higher" in command.answer(found, "x")
    assert command.exit_code(found) == 0


def test_a_limit_below_what_the_generator_bears_is_the_datacenters():
    found = search(Value.parse("50/s"), limit_at(120, generator=150), precision=0.05)
    assert not found.bounded_by_generator
    assert found.held.number <= 120 < found.not_held.number


def test_a_generator_that_is_too_weak_for_the_first_run_is_invalid():
    found = search(Value.parse("50/s"), limit_at(1e9, generator=10))
    assert command.exit_code(found) == 3
    assert "start lower" in command.answer(found, "x")


def runs_of(script):
    """A datacenter whose runs at a value come out as the script has it, one after the other; `ihb`: the last stays."""
    meaning = {"h": Outcome.HELD, "b": Outcome.BROKEN, "g": Outcome.GENERATOR, "i": Outcome.INVALID}
    seen = {}

    def probe(value):
        said = script.get(value.number, "h" if value.number < 300 else "b")
        seen[value.number] = seen.get(value.number, -1) + 1
        return Probe(
            value, meaning[said[min(seen[value.number], len(said) - 1)]], "the run ended as crashed: no memory"
        )

    return probe


@pytest.mark.lie
def test_a_single_unlucky_run_does_not_set_the_limit():
    """One run is a sample: another job on the machine, an election at the wrong moment."""
    found = search(Value.parse("50/s"), runs_of({100: "bhh", 200: "h", 400: "b"}), precision=0.5)
    assert found.counts(Value.parse("100/s")) == {Outcome.BROKEN: 1, Outcome.HELD: 2}
    assert (found.held.number, found.not_held.number) == (283, 400)


@pytest.mark.lie
def test_a_single_lucky_run_does_not_either():
    found = search(Value.parse("50/s"), runs_of({200: "hbb", 400: "b", 283: "b"}), precision=0.5)
    assert (found.held.number, found.not_held.number) == (141, 200)
    assert "at 200/s it held in 1 of 3 runs" in command.answer(found, "x")


@pytest.mark.lie
def test_a_crash_is_repeated_and_is_no_bound():
    found = search(Value.parse("50/s"), runs_of({200: "ih"}), precision=0.5)
    assert [p.outcome for p in found.probes if p.value.number == 200] == [Outcome.INVALID, Outcome.HELD]
    assert (found.held.number, found.not_held.number) == (283, 400)
    assert command.exit_code(found) == 0


@pytest.mark.lie
def test_what_crashes_twice_ends_the_search_under_its_own_name():
    found = search(Value.parse("50/s"), runs_of({200: "i"}))
    assert (found.held.number, found.not_held, found.bounded_by_generator) == (100, None, False)
    assert command.exit_code(found) == 3
    said = command.answer(found, "x")
    assert said.startswith("it held at x = 100/s, the highest value tried")
    assert "stopped at 200/s, where two runs were not valid: the run ended as crashed: no memory" in said
    assert "generator" not in said


def test_an_end_that_was_not_repeated_is_said():
    found = search(Value.parse("50/s"), limit_at(330), tries=7)
    assert "308/s was not run often enough for 2 runs to agree (--tries)" in command.answer(found, "x")
    assert "often" not in command.answer(search(Value.parse("50/s"), limit_at(330), repeat=1), "x", 1)


def test_it_ends_after_so_many_runs():
    assert len(search(Value.parse("1/s"), limit_at(1e12), tries=4).probes) == 4


# values and places


@pytest.mark.parametrize(
    ("text", "number", "written"),
    [
        ("50/s", 99.96, "100/s"),
        ("0.5/s", 0.123456, "0.123/s"),
        ("64kB", 90.5, "90.5kB"),
        (250, 353.55, 354),
        (1, 0.2, 1),
    ],
)
def test_a_value_keeps_its_unit_and_has_three_digits(text, number, written):
    assert Value.parse(text).at(number).written == written


@pytest.mark.parametrize("text", ["", "fast", "-5/s", "0/s", True, None, {"a": 1}, "50/s/s 5"])
def test_what_is_no_value_is_bad_usage(text):
    with pytest.raises(UsageError, match="write a number over 0 with its unit"):
        Value.parse(text)


def path():
    return find_experiment("raft/slow-leader-disk")


@pytest.mark.parametrize(
    ("place", "present"),
    [
        ("load.kv-writes.rate", "50/s"),
        ("method.0.with.delay", "500ms"),
        ("datacenter.consul.clients", 1),
        ("load.kv-writes.timeout", None),
    ],
)
def test_any_place_of_the_file_can_be_varied(place, present, tmp_path):
    varied = Varied.of(path(), place)
    assert varied.present() == present
    file = varied.write(Value.parse("7s" if present is None else present), tmp_path)
    changed, before = YAML(typ="safe").load(file.read_text()), read_experiment(path()).data
    at = changed
    for key in place.split("."):
        at = at[int(key) if isinstance(at, list) else key]
    assert at == ("7s" if present is None else present)
    if present is not None:
        assert changed == before
    assert (tmp_path / "hypotheses").resolve() == path().resolve().parents[2] / "hypotheses"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("load.kv-write.rate", "there is no load.kv-write.rate: load has kv-writes"),
        ("method.3.for", "method has 0 to 0"),
        ("metadata.name.first", "metadata.name has no parts"),
        ("lode.x", "the experiment has apiVersion, kind"),
    ],
)
def test_a_place_that_is_not_there_is_bad_usage(place, said):
    with pytest.raises(UsageError, match=said):
        Varied.of(path(), place)


# one run


@pytest.fixture
def run(tmp_path):
    return RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).healthy()


@pytest.mark.parametrize(
    ("latency", "outcome", "measured"), [(0.01, Outcome.HELD, "10ms"), (0.4, Outcome.BROKEN, "400ms")]
)
def test_a_run_is_judged_from_the_steady_state_to_the_end_of_the_method(run, latency, outcome, measured):
    built = run.load("kv-writes", latency=lambda t: latency if 5 <= t < 30 else 9.0).build()
    found, text = judged(built, [SLO])
    assert found is outcome
    assert f"measured {measured} " in text


def test_a_condition_with_a_window_holds_over_every_window(run):
    built = run.load("kv-writes", latency=lambda t: 2.0 if 20 <= t < 24 else 0.01).build()
    assert judged(built, [SLO])[0] is Outcome.HELD
    assert judged(built, [Condition.parse("kv-writes.latency.p50 < 300ms for 2s")])[0] is Outcome.BROKEN


@pytest.mark.lie
def test_the_time_of_a_fault_is_not_diluted_by_the_rest_of_the_run(tmp_path):
    """60 s of method, 15 s of them with a disk so slow that no write is in time: the median of all is as before."""
    slow = RecordingBuilder(tmp_path / "run")
    for phase, at in {"start": 0, "ready": 2, "steady": 4, "method": 20, "recovery": 80, "quiesce": 90}.items():
        slow.phase(phase, at=at)
    slow.fault("disk.latency", at=30, until=45).healthy()
    built = slow.load("kv-writes", latency=lambda t: 2.0 if 30 <= t < 45 else 0.01, end=88).build()
    found, text = judged(built, [SLO])
    assert (found, "measured 2s under disk.latency" in text) == (Outcome.BROKEN, True)
    assert at_worst(built, Condition.parse("kv-writes.rate > 60/s")).when == "in the steady state"


@pytest.mark.lie
def test_what_was_not_measured_is_neither_held_nor_broken(run):
    built = run.load("kv-writes").series("raft.commit_time", lambda _t: 0.01, start=4, end=15, every=1).build()
    found, text = judged(built, [Condition.parse("raft.commit_time < 100ms for 3s")])
    assert (found, "nothing was measured over 3 s" in text) == (Outcome.INVALID, True)
    broken = judged(built, [Condition.parse("raft.commit_time < 1ms for 3s")])
    assert broken[0] is Outcome.BROKEN


@pytest.mark.lie
@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("raft.commit_time < 100ms", Outcome.HELD),
        ("raft.commit_time < 1ms", Outcome.BROKEN),  # the leader's alone
        ("disk.fsync < 100ms", Outcome.INVALID),
        ("disk.fsync < 1ms", Outcome.BROKEN),  # one of the two that were
        ("process.cpu > 3", Outcome.BROKEN),
        ("process.cpu > 1", Outcome.HELD),
        ("process.cpu == 5", Outcome.BROKEN),
    ],
)
def test_of_several_hosts_the_one_that_breaks_it_counts_and_one_that_was_not_measured_is_a_gap(run, text, outcome):
    unknown = float("nan")
    for signal, values in {
        "raft.commit_time": (0.01, unknown, unknown),
        "disk.fsync": (0.01, 0.02, unknown),
        "process.cpu": (5, 5, 2),
    }.items():
        for number, value in enumerate(values, 1):
            run.series(signal, value, host=f"consul-{number}")
    assert judged(run.load("kv-writes").build(), [Condition.parse(text)])[0] is outcome


@pytest.mark.lie
def test_a_steady_state_without_a_single_operation_says_nothing(run):
    assert judged(run.end("steady-state").build(), [SLO])[0] is Outcome.INVALID


def test_what_was_not_acknowledged_is_slow_and_an_error(run):
    built = run.load("kv-writes", outcome=lambda t: "fail" if 10 <= t < 28 else "ok").build()
    assert judged(built, [SLO])[0] is Outcome.BROKEN
    assert judged(built, [Condition.parse("kv-writes.errors < 50%")])[0] is Outcome.BROKEN


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("raft.last_contact < 200ms", Outcome.HELD),
        ("raft.last_contact < 10ms", Outcome.BROKEN),
        ("kv-writes.rate > 49/s", Outcome.HELD),
        ("kv-writes.rate > 51/s", Outcome.BROKEN),
        ("disk.fsync < 1s", Outcome.INVALID),
    ],
)
def test_signals_of_probes_and_rates_count_too(run, text, outcome):
    assert judged(run.load("kv-writes").build(), [Condition.parse(text)])[0] is outcome


def test_a_generator_that_fell_behind_says_nothing(run):
    found, text = judged(run.load("kv-writes", lag=0.5, latency=9.0).build(), [SLO])
    assert found is Outcome.GENERATOR
    assert "fell behind its own schedule" in text


def test_a_generator_that_used_up_its_core_says_nothing(run):
    built = run.load("kv-writes").series("generator.cpu", lambda t: 0.97 if 12 <= t < 16 else 0.4, every=1).build()
    found, text = judged(built, [SLO])
    assert found is Outcome.GENERATOR
    assert "over 0.9 for 4 s in a row, at most 0.97" in text


def test_a_burst_of_the_generator_is_no_saturation(run):
    built = run.load("kv-writes").series("generator.cpu", lambda t: 0.97 if 12 <= t < 14 else 0.4, every=1).build()
    assert judged(built, [SLO])[0] is Outcome.HELD


@pytest.mark.parametrize(
    ("ended", "outcome", "said"),
    [
        ("steady-state", Outcome.BROKEN, "the steady state never held"),
        ("guardrail", Outcome.BROKEN, "a guardrail tripped"),
        ("crashed", Outcome.INVALID, "the run crashed: out of memory"),
        (None, Outcome.INVALID, "died"),
    ],
)
def test_a_run_that_ended_early_is_told_apart(run, ended, outcome, said):
    if ended == "guardrail":
        run.guardrail("kv-writes.errors > 90%", tripped_at=15)
    found, text = judged(run.load("kv-writes").end(ended, error="out of memory").build(), [SLO])
    assert found is outcome
    assert said in text


def test_a_probe_runs_the_changed_experiment_and_names_its_recording(run):
    seen = []
    built = run.load("kv-writes").build()

    def fake(resolved):
        assert not resolved.path.exists(), "a folder that a killed search would leave"
        seen.append(resolved.data["load"]["kv-writes"]["rate"])
        return built.path

    done = probe_of(Varied.of(path(), "load.kv-writes.rate"), [SLO], fake)(Value.parse("75/s"))
    assert seen == ["75/s"]
    assert (done.outcome, done.recording) == (Outcome.HELD, str(built.path))


@pytest.mark.long
@pytest.mark.lie
def test_a_search_keeps_no_recording_of_the_runs_that_it_judged(run, monkeypatch):
    """Each holds all its operations, and a search makes dozens."""
    built, kept = run.load("kv-writes").build(), []

    class Counted(Recording):
        def __init__(self, path):
            super().__init__(path)
            kept.append(weakref.ref(self))

    monkeypatch.setattr(capacity_runs, "Recording", Counted)
    probe = probe_of(Varied.of(path(), "load.kv-writes.rate"), [SLO], lambda _resolved: built.path)
    done = [probe(Value.parse("75/s")) for _ in range(3)]
    gc.collect()
    assert [each.outcome for each in done] == [Outcome.HELD] * 3
    assert [each() for each in kept] == [None] * 3


# the command


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """The command with runs that are not real: writes slow down over 300/s."""
    runs = []

    def run(resolved, *, runs_dir, events):
        rate = float(resolved.data["load"]["kv-writes"]["rate"].removesuffix("/s"))
        runs.append(rate)
        if rate == machine_.interrupted_at:
            raise KeyboardInterrupt(tmp_path)
        built = RecordingBuilder(tmp_path / str(len(runs))).fault("noop", at=10, until=30)
        ended = "revert" if rate == machine_.stuck_at else "complete"
        return built.load("kv-writes", latency=0.01 if rate <= 300 else 2.0).end(ended).build().path

    class machine_:  # noqa: N801 - a bag of switches
        interrupted_at = stuck_at = None

    monkeypatch.setattr(command, "run_experiment", run)
    return machine_


ARGUMENTS = ["capacity", "raft/slow-leader-disk", "--vary", "load.kv-writes.rate", "--until", SLO.text]


@pytest.mark.long
def test_the_command_prints_a_table_and_the_answer(machine):
    result = CliRunner().invoke(app, ARGUMENTS)
    assert result.exit_code == 0, result.output
    assert "it holds at load.kv-writes.rate = 283/s, and fails at 308/s" in result.output
    rows = [line.split()[0] for line in result.output.splitlines() if "held" in line or "broken" in line]
    assert [row for row in rows if row.endswith("/s")] == [
        "50/s",
        "100/s",
        "200/s",
        "283/s",
        "283/s",
        "308/s",
        "308/s",
        "336/s",
        "400/s",
    ]


@pytest.mark.long
def test_the_command_prints_json_for_scripts(machine):
    result = CliRunner().invoke(app, [*ARGUMENTS, "--from", "200/s", "--to", "250/s", "--json"])
    document = json.loads(result.stdout)
    assert (document["held"], document["not_held"]) == ("250/s", None)
    assert [probe["value"] for probe in document["probes"]] == ["200/s", "250/s", "250/s"]
    assert (document["confirmed"], document["stuck_at"]) == (True, None)
    assert all(probe["recording"] for probe in document["probes"])


def test_ctrl_c_reports_what_is_known(machine):
    machine.interrupted_at = 200
    result = CliRunner().invoke(app, [*ARGUMENTS, "--json"])
    assert result.exit_code == 130
    assert json.loads(result.stdout)["held"] == "100/s"


def test_a_fault_that_stays_ends_the_search(machine):
    machine.stuck_at = 100
    result = CliRunner().invoke(app, ARGUMENTS)
    assert result.exit_code == 4
    assert "hashidrill heal" in result.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--vary", "load.kv-writes.speed"], "give the first value with --from"),
        (["--vary", "load.kv-reads.rate"], "there is no load.kv-reads.rate"),
        (["--until", "kv-writes.latency.p51 < 1s"], "nothing measures kv-writes.latency.p51"),
        (["--until", "quick"], "--until 'quick' is not a condition"),
        (["--until", "kv-writes.level < 5"], "has no unit: a level"),
        (["--precision", "10"], "--precision '10' has no unit"),
        (["--precision", "0.1%"], "runs are not precise enough for less than 1%"),
        (["--to", "10/s"], "--to 10/s is not above the first value 50/s"),
        (["--to", "10kB"], "different units"),
        (["--from", "9s"], "'9s' is not a rate"),
    ],
)
def test_bad_usage_is_said_before_anything_runs(machine, more, said):
    result = CliRunner().invoke(app, [*ARGUMENTS, *more])
    assert result.exit_code != 0
    assert said in str(result.exception).replace("\n    ", " ") + result.output


@pytest.mark.parametrize(
    ("until", "said"), [("page.okk < 1", "did you mean page.ok"), ("page.latency < 5", "has no unit: a duration")]
)
def test_a_probe_of_ones_own_may_bound_a_search_and_its_mistakes_are_said(machine, until, said):
    experiment = load_experiment(find_experiment("network/api-blocked-for-users"))
    assert command._condition("page.latency < 300ms", experiment).limit == 0.3
    words = ["capacity", "network/api-blocked-for-users", "--vary", "load.kv-writes.rate", "--until", until]
    result = CliRunner().invoke(app, words)
    assert said in str(result.exception).replace("\n    ", " ") + result.output
