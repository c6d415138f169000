"""`hashidrill bisect` with planted recordings in place of runs: what it searches, says, logs, and refuses."""

import dataclasses
import json
import math
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hashidrill.core.compare.measured import Figure, Measured
from hashidrill.core.errors import BinaryError
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.util.nested import merge
from hashidrill.faces.cli import bisect as command
from hashidrill.faces.cli.app import app
from hashidrill.rollouts.bisect import candidates
from hashidrill.rollouts.bisect.broken import Expectations, Limit, Worse
from hashidrill.rollouts.bisect.trials import Outcome, Trial, hash_of, hash_of_secret
from hashidrill.testing.recordings import RecordingBuilder

pytestmark = pytest.mark.long

EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: small, title: A small one, why: It tests the search}
datacenter: {consul: {version: "1.22.2", servers: 3, clients: 1, server_config: {performance: {raft_multiplier: 1}}}}
load:
  kv-writes: {kind: consul.kv.write, rate: 50/s, keys: 10}
steady_state: {for: 1s, require: ["kv-writes.errors < 50%"]}
method: [{fault: noop, on: "consul:leader", for: 20s}]
expect:
  - latency_stays: {load: kv-writes, p50_below: 300ms}
  - available_during: {load: kv-writes}
"""
KEYS = 24


def config(number: int, value: int) -> str:
    """One of many settings that a Consul server may have, as HCL."""
    return f"limits {{ request_limits {{ key_{number:02} = {value} }} }}\n"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A recording in which writes are slow or quick, that ended that way; `others`: CPUs of 2 that other work took.

    It is of `datacenter` (JSON), whose agents were started from `binary` with the configuration `started` (JSON).
    """

    @cache
    def planted_(*, slow, ended, others=0.0, datacenter="", started="", binary=""):
        built = RecordingBuilder(tmp_path_factory.mktemp("runs") / "run").fault("noop", at=10, until=30)
        built.expect("latency_stays", load="kv-writes", p50_below="300ms")
        built.expect("available_during", load="kv-writes")
        built.run_info(machine={"cpus": 2}, config={"consul-1": json.loads(started)})
        built.run_info(binaries={"consul": {"sha256": binary}})
        built.variant("candidate", datacenter=json.loads(datacenter))
        built.series("machine.others", others, every=1.0).series("machine.idle", 1.8 - others, every=1.0)
        if ended == "steady-state":
            built.phase("start", at=0).phase("ready", at=2).phase("steady", at=4)
        return built.load("kv-writes", rate=10, latency=2.0 if slow else 0.01).end(ended).build().path

    return planted_


@pytest.fixture
def box(monkeypatch, tmp_path, planted):
    """The command, whose runs are planted: `slow` says of the datacenter's data whether writes are slow."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(EXPERIMENT)
    (tmp_path / "good.hcl").write_text("server = true\n" + "".join(config(n, 1) for n in range(KEYS)))
    (tmp_path / "bad.hcl").write_text("server = true\n" + "".join(config(n, 2) for n in range(KEYS)))
    (tmp_path / "same.hcl").write_text((tmp_path / "good.hcl").read_text() + 'data_dir = "/var/lib/consul"\n')

    class Box:
        interrupted_at = stuck_at = 0
        invalid_at: tuple[int, ...] = ()
        unsteady = staticmethod(lambda _datacenter: False)
        started = staticmethod(
            lambda datacenter: merge(datacenter["consul"].get("config", {}), datacenter["consul"]["server_config"])
        )
        """What of it the agents are started with."""
        binary = staticmethod(lambda datacenter: datacenter["consul"]["version"])
        """The checksum of what they are started from."""
        others = 0.0
        refusal = staticmethod(lambda _settings: "")

        def __init__(self):
            self.made = []

        @staticmethod
        def slow(datacenter):
            return limits(datacenter).get("key_17") == 2

        def run(self, *more):
            return CliRunner().invoke(app, ["bisect", *more])

        def keys(self, *more):
            return self.run("--experiment", "small.yaml", "--good", "good.hcl", "--bad", "bad.hcl", *more)

    def runner(_runs_dir, _say, *, plain):
        def run(resolved, _title):
            box.made.append(resolved.data["datacenter"])
            number = len(box.made)
            if number == box.interrupted_at:
                raise KeyboardInterrupt(tmp_path)
            datacenter = resolved.data["datacenter"]
            ended = "revert" if number == box.stuck_at else "fault" if number in box.invalid_at else "complete"
            of = {
                "datacenter": json.dumps(datacenter),
                "started": json.dumps(box.started(datacenter)),
                "binary": box.binary(datacenter),
            }
            if box.unsteady(datacenter):
                return planted(slow=False, ended="steady-state", others=box.others, **of)
            return planted(slow=box.slow(datacenter), ended=ended, **of)

        return run

    box = Box()
    monkeypatch.setattr(command, "_runner", runner)
    monkeypatch.setattr(
        command, "_asking", lambda _given, _say: lambda _p: lambda _f, _w, settings: box.refusal(settings)
    )
    monkeypatch.setattr(command.binaries, "ensure", lambda *_, **__: None)
    return box


def limits(datacenter) -> dict:
    return datacenter["consul"].get("server_config", {}).get("limits", {}).get("request_limits", {})


def logged(tmp_path: Path) -> list[dict]:
    (log,) = (tmp_path / ".hashidrill" / "bisect").glob("*.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_the_changed_key_that_breaks_is_named_with_its_place(box, tmp_path):
    result = box.keys()

    assert result.exit_code == 0, result.output
    assert "this change breaks it, of 24:" in result.output
    assert "limits.request_limits.key_17: 1 -> 2  (bad.hcl:19:" in result.output
    assert len({json.dumps(datacenter) for datacenter in box.made}) <= 8
    lines = logged(tmp_path)
    assert [line["kind"] for line in lines] == ["question", *["run"] * len(box.made), "answer"]
    assert lines[-1]["found"] == ["limits.request_limits.key_17"]
    assert lines[-1]["wrong_at_most"] < 0.01


def test_two_keys_that_only_break_together_are_named(box):
    box.slow = lambda datacenter: {limits(datacenter).get("key_03"), limits(datacenter).get("key_20")} == {2}

    result = box.keys("--json")

    document = json.loads(result.stdout)
    assert document["found"] == ["limits.request_limits.key_03", "limits.request_limits.key_20"]
    assert "these 2 changes together break it, of 24" in document["answer"]
    assert document["candidates"][0]["shown"] == "good, unchanged"
    assert all(run["recording"] for each in document["candidates"] for run in each["runs"])


def test_what_the_agent_refuses_is_found_without_a_run(box):
    """It takes key 4 changed only together with key 17, as when two keys need each other."""
    box.refusal = lambda settings: (
        "key_04 needs key_17"
        if len({settings["limits"]["request_limits"][k] for k in ("key_04", "key_17")}) > 1
        else ""
    )

    result = box.keys()

    assert result.exit_code == 0, result.output
    assert "cannot be run: key_04 needs key_17" in result.output
    assert "it is unknown whether all of them are needed: the agent refuses some" in result.output
    assert all(limits(d)["key_04"] == limits(d)["key_17"] for d in box.made)


def test_an_end_that_the_agent_refuses_is_said_at_once_with_its_words(box):
    box.refusal = lambda settings: (
        "key_05 is no such key" if settings["limits"]["request_limits"]["key_05"] == 2 else ""
    )

    result = box.keys()

    assert "the bad end (bad, all changes) cannot be run: key_05 is no such key" in str(result.exception)
    assert result.exception.exit_code == 2
    assert box.made == []


def test_a_key_that_only_one_side_says_falls_back_to_the_agents_default(box, tmp_path):
    (tmp_path / "good.hcl").write_text('performance { leave_drain_time = "5s" }')
    (tmp_path / "bad.hcl").write_text("performance { raft_multiplier = 9 }")
    box.slow = lambda datacenter: (
        "leave_drain_time" not in datacenter["consul"].get("config", {}).get("performance", {})
    )

    result = box.keys("--json")

    assert json.loads(result.stdout)["found"] == ["performance.leave_drain_time"]
    # the experiment's own raft_multiplier of 1 is taken away: the good side does not say it
    assert all("raft_multiplier" not in str(d["consul"].get("server_config")) for d in box.made)


def test_an_interrupted_search_goes_on_and_makes_no_run_twice(box, tmp_path):
    whole = box.keys("--log", "whole.jsonl")
    runs = len(box.made)
    box.made.clear()
    box.interrupted_at = 7

    stopped = box.keys("--log", "log.jsonl")

    assert stopped.exit_code == 130
    assert "again: hashidrill bisect --resume log.jsonl" in stopped.output
    box.interrupted_at = 0
    result = box.run("--resume", "log.jsonl")
    assert result.exit_code == 0, result.output
    assert "6 runs are in log.jsonl" in result.output
    assert result.output.splitlines()[-4:] == whole.output.splitlines()[-4:]
    assert len(box.made) == runs + 1
    assert box.run("--resume", "log.jsonl").exit_code == 0
    assert len(box.made) == runs + 1


OWN_HYPOTHESIS = (
    "from hashidrill.core.hypothesis import hypothesis\n\n@hypothesis\ndef quick(recording):\n    assert 1 > 0\n"
)
CHANGED = {
    "bad": ("bad.hcl", "key_05 = 2", "key_05 = 3"),
    "source": ("small.yaml", "50/s", "60/s"),
    "hypotheses": ("hypotheses/own.py", "assert 1", "assert 2"),
    "role": (("good.hcl", "bad.hcl"), "server = true", "server = false"),
    "binaries": ("dev", "one build", "the next one"),
}
"""What a question depends on: the files, what is in them, and in its place. `role`: who gets the configuration."""


@pytest.mark.lie
@pytest.mark.parametrize("what", [*CHANGED, "runs_on"])
def test_a_resumed_search_notices_that_its_question_is_another_one(box, tmp_path, monkeypatch, what):
    """Else runs that one rule called good, and another bad, would be one search."""
    (tmp_path / "hypotheses").mkdir()
    (tmp_path / "hypotheses" / "own.py").write_text(OWN_HYPOTHESIS)
    (tmp_path / "small.yaml").write_text(EXPERIMENT + "  - quick: {}\n")
    (tmp_path / "dev").write_text("one build")
    monkeypatch.setenv("HASHIDRILL_CONSUL", str(tmp_path / "dev"))
    box.interrupted_at = 3
    box.keys("--log", "log.jsonl")
    if what == "runs_on":
        monkeypatch.setattr(command, "usable_cores", lambda: 64.0)
    else:
        files, old, new = CHANGED[what]
        for file in [files] if isinstance(files, str) else files:
            (tmp_path / file).write_text((tmp_path / file).read_text().replace(old, new))
    result = box.run("--resume", "log.jsonl")
    assert f"its runs answer another question: {what} changed since then" in str(result.exception)


def test_invalid_runs_are_made_again_and_count_as_nothing(box):
    box.invalid_at = (1, 4, 5)

    result = box.keys("--json")

    document = json.loads(result.stdout)
    assert document["found"] == ["limits.request_limits.key_17"]
    said = [run["outcome"] for each in document["candidates"] for run in each["runs"]]
    assert said.count("invalid") == 3


@pytest.mark.lie
def test_what_is_sick_without_any_fault_is_broken(box):
    box.slow, box.unsteady = (lambda _datacenter: False), box.slow

    result = box.keys("--json")

    document = json.loads(result.stdout)
    assert (result.exit_code, document["found"]) == (0, ["limits.request_limits.key_17"])
    said = {run["text"] for each in document["candidates"] for run in each["runs"] if run["outcome"] == "broken"}
    assert said == {"the steady state never held, so no fault was applied"}


@pytest.mark.lie
def test_but_not_where_other_work_left_it_no_cpu_nor_for_a_hypothesis_that_judged_nothing(box):
    box.slow, box.unsteady = (lambda _datacenter: False), box.slow
    assert box.keys("--expect", "latency_stays").exit_code == 3

    box.others = 1.8
    result = box.keys("--json")

    document = json.loads(result.stdout)
    assert (result.exit_code, document["found"]) == (3, [])
    said = {run["outcome"] for each in document["candidates"] for run in each["runs"]}
    assert said == {"held", "invalid"}


def test_a_good_end_whose_runs_are_all_invalid_is_no_answer(box):
    box.invalid_at = tuple(range(1, 50))

    result = box.keys()

    assert result.exit_code == 3
    assert (
        "cannot tell: good, unchanged broke in 0 of 0 runs, and 5 more were INVALID (a fault could not be put in force"
        in result.output
    )
    assert len(box.made) == 5
    (log,) = Path(".hashidrill/bisect").glob("*.jsonl")
    box.invalid_at = ()
    assert box.run("--resume", str(log)).exit_code == 0  # the machine is quieter now


def test_ends_that_are_exchanged_are_said(box):
    box.slow = lambda datacenter: limits(datacenter).get("key_17") == 1
    result = box.keys()
    assert result.exit_code == 2
    assert "exchange them to find what fixed it" in result.output


def test_a_search_without_enough_runs_says_what_it_takes(box):
    result = box.keys("--tries", "4", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["found"]) == (3, [])
    assert "more runs: resume with --tries" in document["takes"]


@pytest.mark.lie
def test_ends_that_start_the_same_agents_are_no_ends(box):
    """The runs differ by chance, or by what is no candidate: the agents never got the changed keys."""
    box.started = lambda datacenter: datacenter["consul"]["version"]

    result = box.keys()

    assert result.exit_code == 3
    assert "cannot tell: between the good end and the bad end," in " ".join(result.output.split())
    assert "took no effect: both started the same agents with the same configuration" in " ".join(result.output.split())
    assert len(box.made) < 5


@pytest.mark.lie
def test_a_key_that_no_agent_gets_is_no_culprit(box):
    """All agents get the changes but key 17, and whatever makes those runs slow is not it."""
    box.started = lambda datacenter: {
        "limits": {"request_limits": {k: v for k, v in limits(datacenter).items() if k != "key_17"}}
    }

    result = box.keys("--json")

    document = json.loads(result.stdout)
    assert (result.exit_code, document["found"]) == (3, [])
    assert "1 of 24 changes (limits.request_limits.key_17) had different results" in document["answer"]


@pytest.mark.lie
def test_a_version_that_ran_the_binary_of_the_one_before_it_is_no_culprit(box):
    """Whatever it is called: the run says which file it started."""
    box.slow = lambda datacenter: datacenter["consul"]["version"] >= "1.14.0"
    box.binary = lambda datacenter: "other" if datacenter["consul"]["version"] == "1.22.2" else "same"

    result = box.run("--experiment", "small.yaml", "--versions", "1.10.3", "1.11.4", "1.14.0", "1.22.2")

    assert result.exit_code == 3
    assert "runs of consul 1.11.4 and consul 1.14.0 had different results, but" in " ".join(result.output.split())


def test_a_fault_that_stays_ends_the_search(box):
    box.stuck_at = 2
    result = box.keys()
    assert "hashidrill heal" in str(result.exception)
    assert result.exception.exit_code == 4


def test_one_expectation_can_be_what_breaks(box):
    """Writes are slow and acknowledged: the other expectation holds in each run."""
    slow = box.keys("--expect", "latency_stays")
    held = box.keys("--expect", "available_during")
    assert slow.exit_code == 0, slow.output
    assert "the bad end is not bad" in held.output


def test_a_figure_that_gets_worse_can_be_what_breaks(box):
    result = box.keys("--figure", "kv-writes.latency.p50", "--factor", "3")
    assert result.exit_code == 0, result.output
    assert "kv-writes.latency.p50 of the good end: 10ms, the median of 3 runs" in result.output
    assert "limits.request_limits.key_17" in result.output
    assert box.keys("--figure", "kv-writes.latency.p50", "--factor", "500").exit_code == 2


@pytest.mark.long
def test_a_search_by_a_figure_resumes_with_the_same_reference(box):
    whole = box.keys("--figure", "kv-writes.latency.p50", "--log", "whole.jsonl")
    for stop in (2, 3, 4, 9):
        box.made.clear()
        box.interrupted_at = stop
        name = f"{stop}.jsonl"
        assert box.keys("--figure", "kv-writes.latency.p50", "--log", name).exit_code == 130
        box.interrupted_at = 0
        result = box.run("--resume", name)
        assert result.output.splitlines()[-4:] == whole.output.splitlines()[-4:]


def test_the_version_that_breaks_is_named(box, monkeypatch):
    def ensure(_name, version, **_):
        if version == "1.12.0":
            raise BinaryError("consul 1.12.0: it cannot be had")

    monkeypatch.setattr(command.binaries, "ensure", ensure)
    box.slow = lambda datacenter: datacenter["consul"]["version"] >= "1.14.0"
    found = box.run("--experiment", "small.yaml", "--versions", "1.10.3", "1.11.4", "1.12.0", "1.14.0", "1.22.2")
    assert found.exit_code == 0, found.output
    assert "one of consul 1.12.0, consul 1.14.0 is the first that breaks it" in found.output
    assert "consul 1.12.0 cannot be run: consul 1.12.0: it cannot be had" in found.output

    exchanged = box.run("--experiment", "small.yaml", "--versions", "1.22.2", "1.10.3")
    assert "exchange them to find what fixed it" in exchanged.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--good", "good.hcl", "--bad", "bad.hcl"], "name the experiment that breaks"),
        (["--experiment", "small.yaml"], "say what to search, one of"),
        (["--experiment", "small.yaml", "--good", "good.hcl"], "needs both ends: --bad is missing"),
        (["--experiment", "small.yaml", "--good", "good.hcl", "--bad", "no.hcl"], "no.hcl: there is no such file"),
        (["--experiment", "small.yaml", "--good", "good.hcl", "--bad", "same.hcl"], "agents alike: nothing to search"),
        (["--experiment", "small.yaml", "--good", "good.hcl", "--bad", "same.hcl"], "left out: data_dir"),
        (["--experiment", "small.yaml", "--versions", "1.10.3"], "--versions needs two or more"),
        (["--experiment", "small.yaml", "--versions", "1.1.0", "1.1.0"], "1.1.0 is listed more than once"),
        (["--experiment", "small.yaml", "1.10.3", "1.22.2"], "Versions come after --versions"),
        (["--experiment", "small.yaml", "--versions", "1", "2", "--product", "nomad"], "small does not run it"),
        (["--experiment", "small.yaml", "--git", "a..b"], "--git needs to know what to test of each commit"),
        (["--experiment", "small.yaml", "--git", "a..b", "--build", "make", "--path", "x"], "use one of them"),
        (["--experiment", "small.yaml", "--git", "a..b", "--path", "x", "--client", "y=z"], "give --build too"),
        (["--experiment", "small.yaml", "--versions", "1", "2", "--build", "make"], "--build needs --git"),
        (["--experiment", "no.yaml", "--versions", "1", "2"], "no.yaml"),
        (["--experiment", "small.yaml", "--versions", "1", "2", "--expect", "a_b"], "small does not expect that"),
        (["--experiment", "small.yaml", "--versions", "1", "2", "--figure", "kv.p50"], "no figure 'kv.p50'"),
        (
            [
                "--experiment",
                "small.yaml",
                "--versions",
                "1",
                "2",
                "--figure",
                "kv-writes.latency.p50",
                "--factor",
                "0.5",
            ],
            "worse is more than 1 times as much",
        ),
        (["--experiment", "small.yaml", "--versions", "1", "2", "--factor", "2"], "name the figure with --figure"),
        (
            ["--experiment", "small.yaml", "--versions", "1", "2", "--figure", "cpu", "--expect", "latency_stays"],
            "both define a broken run",
        ),
        (["--experiment", "small.yaml", "--versions", "1", "2", "--duet"], "it needs --build and --figure"),
        (["--experiment", "small.yaml", "--versions", "1", "2", "--figure", "cpu", "--duet"], "it needs --build"),
        (["--experiment", "small.yaml", "--git", "a..b", "--build", "x", "--duet"], "it needs --build and"),
        (["--experiment", "small.yaml", "--git", "a..b", "--build", "x", "--figure", "cpu", "--duet"], "not a latency"),
        (["--experiment", "small.yaml", "--git", "a..b", "--path", "/etc"], "write it from the top of the repository"),
        (["--experiment", "small.yaml", "--git", "a..b", "--path", "../x"], "write it from the top of the repository"),
        (["--resume", "none.jsonl"], "none.jsonl: this log cannot be read"),
        (["--resume", "log.jsonl", "--experiment", "small.yaml"], "takes the question from its log"),
    ],
)
def test_bad_usage_is_said_before_anything_runs(box, arguments, said):
    result = box.run(*arguments)

    assert result.exit_code != 0
    assert said in str(result.exception).replace("\n    ", " ") + result.output
    assert box.made == []


def test_bad_hcl_is_said_with_its_place(box, tmp_path):
    (tmp_path / "bad.hcl").write_text("limits {\n  rpc_rate = \n}\n")
    result = box.keys()
    assert "bad.hcl:" in str(result.exception)
    assert box.made == []


def test_a_secret_that_changes_is_in_no_log_and_no_answer(box, tmp_path):
    for end, secret in (("good", "hunter2hunter2"), ("bad", "hunter3hunter3")):
        (tmp_path / f"{end}.hcl").write_text(f'server = true\nlimits {{ shared_secret = "{secret}" }}')
    box.slow = lambda datacenter: "hunter3" in json.dumps(datacenter)

    result = box.keys()

    log = "".join(json.dumps(line) for line in logged(tmp_path))
    assert "limits.shared_secret" in result.output
    assert "hunter" not in result.output + log


@pytest.mark.lie
def test_a_key_that_no_agent_gets_is_no_culprit_beside_a_secret_that_changes(box, tmp_path):
    """No recording shows whether the secret differs; key 17 is none."""
    for end, number in (("good", 1), ("bad", 2)):
        secret = f'limits {{ shared_secret = "hunter{number}hunter" }}\n'
        (tmp_path / f"{end}.hcl").write_text("server = true\n" + secret + config(16, number) + config(17, number))
    box.started = lambda datacenter: {"limits": {"request_limits": {"key_16": limits(datacenter)["key_16"]}}}

    result = box.keys("--json")

    document = json.loads(result.stdout)
    assert (result.exit_code, document["found"]) == (3, [])
    assert "limits.request_limits.key_17 took no effect" in document["answer"]


@pytest.mark.lie
def test_nor_does_its_hash_let_anybody_try_words_on_it():
    secret, plain = {"limits": {"shared_secret": "swordfish"}}, {"limits": {"rpc_rate": 5}}
    assert hash_of_secret(secret) != hash_of(secret)
    assert hash_of_secret(secret) == hash_of_secret(dict(secret))
    assert hash_of_secret(plain) == hash_of(plain)


def test_two_ends_that_differ_in_what_no_bisection_tests_are_told_what(box, tmp_path):
    for end in ("good", "bad"):
        (tmp_path / f"{end}.hcl").write_text(f'server = true\nencrypt = "key-of-the-{end}-end"')
    said = " ".join(str(box.keys().exception).split())
    assert "configure an experiment's agents alike: nothing to search" in said
    assert "encrypt" in said
    assert "key-of" not in said


@pytest.mark.lie
def test_a_commit_that_drops_a_key_does_not_get_what_the_experiment_sets(box, tmp_path):
    (tmp_path / "drops.hcl").write_text("limits { rpc_rate = 5 }")
    (tmp_path / "says.hcl").write_text("performance { raft_multiplier = 5 }")
    given = resolve(tmp_path / "small.yaml")
    taken = {"product": "consul", "refusal": lambda _product: lambda *_: ""}
    found = candidates.configured(given, [tmp_path / "drops.hcl"], ends=[[tmp_path / "says.hcl"]], **taken)
    assert "raft_multiplier" not in str(found.data["datacenter"])
    assert "raft_multiplier" in str(candidates.configured(given, [tmp_path / "drops.hcl"], **taken).data["datacenter"])


@pytest.mark.lie
def test_what_held_until_a_guardrail_ended_the_method_says_nothing(tmp_path):
    built = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load("kv-writes", latency=0.01)
    built.expect("latency_stays", load="kv-writes", p50_below="300ms")
    recording = built.end("guardrail").build()
    named = Expectations.of("latency_stays", recording.experiment).trial(recording, tmp_path / "x.yaml")
    assert named.outcome is Outcome.INVALID
    assert "until a guardrail ended the method" in named.text


@pytest.mark.lie
def test_a_cost_lacks_what_agents_would_have_taken_that_were_gone():
    found = Figure("cpu", "CPU seconds", 0.5, 1.3, False, lambda _: Measured(0.0))
    limit = Limit(Worse(found, 1.5), 30.0, 0.0)
    less = Trial(Outcome.MEASURED, "cpu 20 CPU seconds", value=20.0, absent=0.4)
    assert limit.compared(less).outcome is Outcome.INVALID
    assert "while they were down" in limit.compared(less).text
    assert limit.compared(dataclasses.replace(less, value=90.0)).outcome is Outcome.BROKEN
    died = Limit(Worse(found, 1.5), 10.0, 0.4)
    assert died.compared(dataclasses.replace(less, value=30.0, absent=0.0)).outcome is Outcome.INVALID
    cut = Trial(Outcome.MEASURED, "cpu 20 CPU seconds", value=20.0, cut=True)
    assert limit.compared(cut).outcome is Outcome.INVALID


def test_a_key_is_removed_with_the_block_that_is_empty_without_it():
    settings = {"a": {"b": {"c": 1}}, "d": 2}
    candidates._take(settings, ("a", "b", "c"))
    candidates._take(settings, ("x", "y"))
    assert settings == {"d": 2}
    candidates._put(settings, ("d", "e"), 3)
    assert settings == {"d": {"e": 3}}


@pytest.mark.lie
def test_a_known_issue_is_broken_for_who_names_it_and_for_nobody_else(tmp_path):
    built = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load("kv-writes", latency=2.0)
    built.expect("latency_stays", load="kv-writes", p50_below="300ms", known_issue="https://example.com/issues/1")
    recording = built.build()
    named = Expectations.of("latency_stays", recording.experiment).trial(recording, tmp_path / "x.yaml")
    assert named.outcome is Outcome.BROKEN
    assert named.text.startswith("latency_stays")
    assert Expectations.of(None, recording.experiment).trial(recording, tmp_path / "x.yaml").outcome is Outcome.HELD


def test_a_figure_that_never_came_back_is_no_number_of_times_as_bad():
    found = Figure("kv-writes.recovery", "s", 1.0, 1.5, True, lambda _: Measured(0.0))
    limit = Limit(Worse(found, 2.0), 2.0)
    never = limit.compared(Trial(Outcome.MEASURED, "kv-writes.recovery never", value=math.inf))
    assert (never.outcome, never.text) == (Outcome.BROKEN, "kv-writes.recovery never, of the good end 2s")
    alike = Limit(limit.rule, math.inf).compared(Trial(Outcome.MEASURED, "kv-writes.recovery never", value=math.inf))
    assert (alike.outcome, alike.text) == (Outcome.HELD, "kv-writes.recovery never, of the good end never")
    late = Limit(Worse(found, 2.0), 18.0).compared(Trial(Outcome.MEASURED, "kv-writes.recovery never", value=math.inf))
    assert late.outcome is Outcome.BROKEN, "the run was too short for 36 s, and never is longer than that"
    later = limit.compared(Trial(Outcome.MEASURED, "kv-writes.recovery 3s", value=3.0))
    assert (later.outcome, later.text) == (Outcome.HELD, "kv-writes.recovery 3s, of the good end 2s: 1.33 times")
