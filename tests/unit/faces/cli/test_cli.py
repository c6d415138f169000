"""The command line: help with examples, errors as one message, JSON where a script would want it."""

import contextlib
import io
import json
import math
import os
import re
import sys
from collections import Counter
from contextvars import copy_context

import pytest
import typer
from rich.console import Console

from command_line import command_line, leaves
from hashidrill import __version__
from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.experiment.library import find_experiment, list_experiments
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.schema import schema_text
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.events import (
    Audience,
    Began,
    Bus,
    End,
    Figures,
    InForce,
    Intent,
    Phase,
    Proof,
    Seen,
    Tick,
    Where,
    decode,
)
from hashidrill.core.recording.journal import Clock, Journal
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.core.util.run_origin import here
from hashidrill.faces.cli import commands, common, heal, library, runs
from hashidrill.faces.cli.app import app
from hashidrill.faces.cli.remembering import Memory
from hashidrill.gamedays.warroom.room import Room
from hashidrill.lab.up import running
from hashidrill.reports.live import display as live
from hashidrill.testing.recordings import RecordingBuilder
from our_runs import began
from places import ROOT
from tasks import raising

COMMANDS = sorted(typer.main.get_command(app).commands)


@pytest.fixture
def hashidrill(monkeypatch, tmp_path, capsys):
    """The whole command line in this process. Nothing can be started by it."""
    monkeypatch.setattr(runs, "run_experiment", lambda *_, **__: pytest.fail("a run was started"))
    return command_line(monkeypatch, capsys, tmp_path)


@pytest.fixture
def recorded(tmp_path):
    """Makes recordings in the place where runs are kept; returns their paths."""

    def make(name, *, outcome="complete", refused=False, **load):
        builder = RecordingBuilder(tmp_path / ".hashidrill" / "runs" / name, name="slow-disk")
        builder.fault("disk.latency", "consul-1", at=10, until=30)
        slow = lambda t: 3.0 if 10 <= t < 32 else 0.01  # noqa: E731
        load = {"latency": slow, **load, **({"outcome": lambda _: "fail"} if refused else {})}
        builder.load("kv-writes", **load).final_reads("kv-writes").healthy()
        builder.expect("writes_recover", load="kv-writes", p50_below="300ms", within="10s")
        builder.expect("no_acknowledged_write_lost", load="kv-writes").end(outcome)
        builder.build()
        return builder.path

    return make


# help


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does_and_how_it_is_called(command, hashidrill):
    said = hashidrill(command, "-h")
    assert said.code == 0
    assert f"Usage: hashidrill {command}" in said.stdout
    assert "Example" in said.stdout
    _, _, examples = said.stdout.rpartition("Example")
    assert f"hashidrill {command}" in examples


PRINT_NO_JSON = {
    "lab shell": "a shell, or the output of a command in it",
    "schema": "a schema is JSON, with or without an option",
    "staging proxies": "a populate file of toxiproxy is JSON, with or without an option",
}
"""Commands without --json, and why."""


def test_every_command_prints_json_in_the_same_way_or_says_why_not():
    options = {name: [one for one in command.params if "--json" in one.opts] for name, command in leaves()}
    assert sorted(name for name, found in options.items() if not found) == sorted(PRINT_NO_JSON)
    assert {one.help for found in options.values() for one in found} == {"Print JSON, for scripts."}


def test_no_module_prints_json_on_its_own():
    """Only `print_json` does; reference.py writes pages."""
    folder = ROOT / "runners/hashidrill/faces/cli"
    own = re.compile(r"json\.dumps?\(|as_json: bool = |stderr=as_json")
    found = {path.name for path in folder.glob("*.py") if own.search(path.read_text())}
    assert found == {"common.py", "reference.py"}


@pytest.mark.lie
def test_with_json_standard_output_is_json_whatever_else_is_printed(capsys):
    """Planted: a command that prints as any does."""
    planted = typer.Typer()

    @planted.command()
    def talks(as_json: common.Json = False) -> None:
        live.say(common.console(), "by rich")
        common.print_text("a text\n")
        common.print_table(("name",), [("a row",)])
        if as_json:
            common.print_json({"x": 1})

    copy_context().run(planted, ["--json"], standalone_mode=False)  # as LazyGroup does
    said = capsys.readouterr()
    assert json.loads(said.out) == {"x": 1}
    assert said.err == "by rich\na text\nname\na row\n"
    planted([], standalone_mode=False)
    assert capsys.readouterr().out == "by rich\na text\nname\na row\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "raft/no-such", "--json"), 2),
        (("check", "last", "--json"), 2),
        (("validate", "bad.yaml", "--json"), 2),
        (("list", "nonsense", "--json"), 2),
        (("lab", "down", "--json"), 2),
        (("audit", "nowhere", "--json"), 2),
        (("history", "show", "last", "--json"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_errors_keep_their_exit_codes_with_json(words, code, hashidrill, tmp_path):
    (tmp_path / "bad.yaml").write_text("kind: Experiment\n")
    said = hashidrill(*words)
    assert said.code == code
    assert said.stdout == "" or json.loads(said.stdout)


@pytest.mark.parametrize(
    "refused", [("run", "--json"), ("check", "--json-lines", "last"), ("list", "--json", "--no-such")]
)
def test_a_command_line_that_is_refused_leaves_nothing_to_the_next(refused, hashidrill):
    """Planted: what prints as usual after it went to standard error."""
    assert hashidrill(*refused).code == 2
    assert hashidrill("schema").stdout


def test_without_a_command_there_is_help_in_panels_with_a_line_for_each(hashidrill, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = hashidrill("-h").stdout.splitlines()
    assert [title for title in commands.PANELS if f"{title}:" not in lines] == []
    for group, prefix in [
        (COMMANDS, ()),
        *((list(typer.main.get_command(app).commands[one].commands), (one,)) for one in commands.GROUPS),
    ]:
        said = hashidrill(*prefix, "-h").stdout.splitlines()
        listed = [line.split()[0] for line in said if line.startswith("  ") and line.split()[0] in group]
        assert sorted(listed) == sorted(group), "each has one line, none runs over it"
        assert all(len(line) <= 80 for line in said)


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_in_help_is_that_of_the_command_itself(width, hashidrill, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    for name, command in leaves():
        *group, last = name.split()
        summary = " ".join(command.help.split()).partition(". ")[0].rstrip(".")
        assert any(line.split(maxsplit=1) == [last, summary] for line in hashidrill(*group, "-h").stdout.splitlines())


@pytest.mark.parametrize(("earlier", "now"), commands.MOVED.items())
def test_a_command_that_moved_says_where_it_is(earlier, now, hashidrill):
    said = hashidrill(earlier, "--anything")
    assert (said.code, said.stdout) == (2, "")
    assert said.stderr == f"hashidrill: `hashidrill {earlier}` is now `hashidrill {now}`\n"
    assert hashidrill(*now.split(), "-h").code == 0


def test_no_page_and_no_message_prints_a_command_that_moved():
    wrong = re.compile(rf"(?<!from )hashidrill ({'|'.join(set(commands.MOVED) - {'import'})})\b")
    files = [
        path
        for folder in ("runners", "playbooks", "experiments", "hypotheses", ".ci", ".github")
        for path in (ROOT / folder).rglob("*")
    ]
    told = [
        path
        for path in files
        if path.is_file() and path.suffix != ".pyc" and wrong.search(path.read_text(errors="replace"))
    ]
    assert told == []
    assert wrong.search("see `hashidrill " + "up --stack`"), "planted"


def test_the_version_is_told(hashidrill):
    assert hashidrill("--version").stdout == f"hashidrill {__version__}\n"


# errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "raft/frozen-leeder"), "did you mean raft/frozen-leader"),
        (("run", "raft/frozen-leader", "no/such"), "there is no experiment 'no/such'"),
        (("show", "disk.latensy"), "did you mean disk.latency?"),
        (("check", "last"), "no recordings yet"),
        (("check", "20261121"), "there is no recording '20261121'"),
        (("heal", "20261121"), "there is no recording '20261121'"),
        (("list", "experiment"), "did you mean experiments?"),
        (("lab", "down"), "no datacenter is up; start one with `hashidrill lab up`"),
        (("lab", "shell", "consul-1"), "no datacenter 'default' is up"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_users_mistake_is_one_message_on_stderr_and_exit_code_2(arguments, said, hashidrill):
    result = hashidrill(*arguments)
    assert result.code == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert result.stderr.startswith("hashidrill: ")
    assert result.stderr.count("hashidrill: ") == 1


def test_check_last_after_a_training_game_says_where_training_keeps_its_recordings(tmp_path):
    (tmp_path / "training").mkdir()
    with pytest.raises(UsageError, match=f"training keeps its own in {tmp_path}/training/GAME/recording"):
        common.find_recording("last", tmp_path / "runs")


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("show",), ("run", "--nonsense"), ("lab", "up", "--servers", "0")]
)
def test_bad_usage_is_exit_code_2_with_a_way_to_help(arguments, hashidrill):
    result = hashidrill(*arguments)
    assert result.code == 2
    assert "-h" in result.stderr


def test_nothing_is_run_when_one_of_several_experiments_is_not_right(hashidrill, tmp_path):
    (tmp_path / "bad.yaml").write_text("apiVersion: hashidrill/v1\nkind: Experiment\nmetadata: {}\n")
    result = hashidrill("run", "raft/frozen-leader", "bad.yaml")
    assert result.code == 2
    assert "bad.yaml:" in result.stderr


@pytest.mark.parametrize("kind", HashidrillError.__subclasses__(), ids=lambda kind: kind.__name__)
def test_every_error_has_an_exit_code_of_its_own_kind(kind, hashidrill, monkeypatch):
    monkeypatch.setattr(runs, "run_experiment", raising(kind("what happened, and what to do next")))
    result = hashidrill("run", "raft/frozen-leader")
    assert (result.code, result.stderr.splitlines()[-1]) == (
        kind.exit_code,
        "hashidrill: what happened, and what to do next",
    )


# list, show, new, validate, schema


@pytest.mark.parametrize(
    ("kind", "key", "known"),
    [
        ("experiments", "name", "raft/slow-leader-disk"),
        ("faults", "kind", "disk.latency"),
        ("loads", "kind", "consul.kv.write"),
        ("hypotheses", "name", "no_acknowledged_write_lost"),
        ("gamedays", "name", "first-game-day"),
        ("runbooks", "name", "runbook-slow-leader"),
        ("scenarios", "name", "first"),
    ],
)
def test_lists_are_for_people_and_for_scripts(kind, key, known, hashidrill):
    rows = hashidrill("list", kind, "--json").json
    assert known in [row[key] for row in rows]
    text = hashidrill("list", kind).stdout
    for row, line in zip(rows, text.splitlines(), strict=True):
        assert line.split(maxsplit=1) == [row[key], row.get("what") or row.get("title")], "one line an item, whole"


def test_experiments_are_listed_by_their_tags(hashidrill):
    rows = hashidrill("list", "--json").json
    both = [row["name"] for row in rows if {"gate", "raft"} <= set(row["tags"])]
    assert both
    assert [row["name"] for row in hashidrill("list", "--tag", "gate", "--tag", "raft", "--json").json] == both
    unknown = hashidrill("list", "--tag", "gaet")
    assert (unknown.code, unknown.stdout) == (2, "")
    assert "no experiment has the tag 'gaet'; there are: " in unknown.stderr
    assert hashidrill("list", "faults", "--tag", "gate").code == 2


def test_lists_of_faults_and_loads_say_what_their_classes_say(hashidrill):
    for kind, classes in (("faults", registry.faults()), ("loads", registry.loads())):
        told = {row["kind"]: row["what"] for row in hashidrill("list", kind, "--json").json}
        assert told == {name: cls.__doc__.strip().splitlines()[0] for name, cls in classes.items()}


@pytest.mark.parametrize("width", [60, 80])
def test_on_a_terminal_a_line_of_a_list_fits(hashidrill, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = hashidrill("list").stdout.splitlines()
    assert len(lines) == len(list_experiments())
    assert max(map(len, lines)) == width


@pytest.mark.parametrize("words", [("train", "first"), ("gameday", "run", "first-game-day", "--yes")])
def test_what_cannot_write_a_recording_says_so_before_anything_starts(hashidrill, tmp_path, words):
    """As in a folder that is read-only: here a file is where the folder would be."""
    (tmp_path / "taken").write_text("")
    said = hashidrill(*words, "--runs", str(tmp_path / "taken" / "runs"))
    assert said.code == 2
    assert "cannot write a recording here" in " ".join(said.stderr.split())


def test_runs_are_listed_with_their_verdicts(hashidrill, recorded):
    assert "no recordings" in hashidrill("list", "runs").stdout
    assert hashidrill("list", "runs", "--json").json == []
    recorded("a")
    recorded("b")
    assert [row["verdict"] for row in hashidrill("list", "runs", "--json").json] == ["no verdict", "no verdict"]
    hashidrill("check", "a")
    assert [row["verdict"] for row in hashidrill("list", "runs", "--json").json] == ["PASS", "no verdict"]


@pytest.mark.parametrize("written", ["{", "[]", '{"invalid": 3, "judgements": [{}]}', "\0"])
def test_one_run_whose_verdict_is_not_readable_does_not_hide_the_others(hashidrill, recorded, written):
    (recorded("a") / "verdict.json").write_text(written)
    recorded("b")
    rows = hashidrill("list", "runs", "--json").json
    assert [row["verdict"] for row in rows] == ["not readable", "no verdict"]


def test_an_experiment_is_shown_as_it_is_written(hashidrill):
    shown = hashidrill("show", "raft/slow-leader-disk")
    [path] = [path for path in list_experiments() if path.parts[-2:] == ("raft", "slow-leader-disk.yaml")]
    assert shown.stdout == path.read_text()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("disk.latency", ("delay", "required", "Added time", "jitter", "default 0s", "percent")),
        ("consul.kv.read", ("mode", "default, stale, consistent", "rate")),
        ("writes_recover", ("p50_below", "within", "how long it may take")),
        ("noop", ("No parameters.",)),
    ],
)
def test_the_parameters_of_a_kind_are_shown(name, parameters, hashidrill):
    text = hashidrill("show", name).stdout
    assert text.startswith(name)
    assert all(parameter in text for parameter in parameters)


@pytest.mark.long
def test_every_parameter_of_every_kind_has_a_sentence(hashidrill):
    kinds = [*registry.faults(), *registry.loads(), *library.known_hypotheses(None)]
    told = {kind: library._of_kind(kind, None)["parameters"] for kind in kinds}
    assert [f"{kind}.{row['name']}" for kind, rows in told.items() for row in rows if len(row["meaning"]) < 9] == []
    own = {row["name"] for rows in told.values() for row in rows}
    own |= {f"{kind}.{row['name']}" for kind, rows in told.items() for row in rows}
    assert set(library.OWN) <= own, "nothing is explained that no kind has"
    having = Counter(row["name"] for rows in told.values() for row in rows)
    assert [name for name in library.OWN if "." not in name and having[name] < 2] == [], "others may mean another thing"


@pytest.mark.parametrize("name", ["disk.latency", "consul.kv.write", "writes_recover", "noop"])
def test_a_kind_is_shown_for_scripts_too(name, hashidrill):
    told = hashidrill("show", name, "--json").json
    assert told["kind"] == name
    assert all(row["name"] in hashidrill("show", name).stdout for row in told["parameters"])


def test_an_experiment_and_a_run_are_shown_for_scripts_too(hashidrill, recorded):
    assert hashidrill("show", "raft/slow-leader-disk", "--json").json["experiment"]["kind"] == "Experiment"
    recorded("a")
    assert hashidrill("show", "a", "--json").json["verdict"] == hashidrill("check", "a", "--json").json["verdict"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_terminal_what_is_shown_breaks_between_words(width, hashidrill, monkeypatch):
    piped = hashidrill("show", "disk.latency").stdout
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said = hashidrill("show", "disk.latency").stdout
    assert said.split() == piped.split()
    assert max(map(len, said.splitlines())) <= width


def test_a_run_is_shown_as_a_summary(hashidrill, recorded):
    recorded("a")
    assert "no_acknowledged_write_lost" in hashidrill("show", "a").stdout
    assert hashidrill("show", "last").stdout == hashidrill("show", "a").stdout


def test_a_new_experiment_names_the_schema_that_is_there_and_no_other(hashidrill, tmp_path):
    (tmp_path / "chaos/raft").mkdir(parents=True)
    (tmp_path / "chaos/raft/schema.json").write_text('{"title": "our own data"}')
    assert hashidrill("new", "chaos/raft/one.yaml").code == 0
    assert "$schema" not in (tmp_path / "chaos/raft/one.yaml").read_text()
    (tmp_path / "chaos/schema.json").write_text('{"title": "hashidrill experiment"}')
    hashidrill("new", "chaos/raft/two.yaml")
    hashidrill("new", "chaos/three.yaml")
    for name, line in (("raft/two", "../schema.json"), ("three", "schema.json")):
        first = (tmp_path / f"chaos/{name}.yaml").read_text().splitlines()[0]
        assert first == f"# yaml-language-server: $schema={line}"


@pytest.mark.long
def test_the_library_is_right(hashidrill):
    said = hashidrill("validate")
    assert said.code == 0
    assert said.stdout.count("ok  ") == len(list_experiments())


def test_what_is_not_right_is_told_beside_what_is(hashidrill, tmp_path):
    (tmp_path / "bad.yaml").write_text("apiVersion: hashidrill/v1\nkind: Experimant\n")
    said = hashidrill("validate", "raft/frozen-leader", "bad.yaml")
    assert said.code == 2
    assert "ok  " in said.stdout
    assert "bad.yaml:2:" in said.stderr
    rows = hashidrill("validate", "raft/frozen-leader", "bad.yaml", "--json").json
    assert [row["error"] is None for row in rows] == [True, False]


def test_the_schema_is_printed_whole(hashidrill):
    said = hashidrill("schema")
    assert said.stdout == schema_text()
    assert said.json["title"]


# check


def test_a_recording_is_judged_again(hashidrill, recorded):
    path = recorded("a")
    said = hashidrill("check", "last", "--json")
    result = said.json
    assert (said.code, result["verdict"], result["exit_code"]) == (0, "PASS", 0)
    assert result["recording"].endswith("a")
    assert {each["finding"] for each in result["expectations"]} == {"held"}
    assert (path / "report.html").is_file()
    assert (path / "summary.md").is_file()
    assert (path / "verdict.json").is_file()


@pytest.mark.parametrize(
    ("load", "code", "verdict"),
    [({"latency": lambda t: 3.0 if t >= 10 else 0.01}, 1, "FAIL"), ({"refused": True}, 3, "INVALID")],
)
def test_a_recording_that_fails_or_counts_for_nothing_has_its_exit_code(load, code, verdict, hashidrill, recorded):
    recorded("a", **load)
    said = hashidrill("check", "a", "--json")
    assert (said.code, said.json["verdict"], bool(said.json["invalid"])) == (code, verdict, code == 3)


# run


@pytest.fixture
def ran(hashidrill, recorded, monkeypatch):
    """`run` and `demo` leave these recordings, one after the other."""

    def plan(*recordings):
        queue = list(recordings)
        monkeypatch.setattr(runs, "run_experiment", lambda *_, **__: queue.pop(0))
        return hashidrill

    return plan


SLOW_FOR_EVER = {"latency": lambda t: 3.0 if t >= 10 else 0.01}
NEVER = {"refused": True}


def test_a_run_prints_its_verdict_as_json_and_nothing_else(ran, recorded):
    said = ran(recorded("a"))("run", "raft/slow-leader-disk", "--json")
    [result] = said.json
    assert (said.code, result["verdict"], result["outcome"]) == (0, "PASS", "complete")
    assert result["report"].endswith("report.html")
    assert "report" in said.stderr  # for the person who watches


@pytest.mark.long
@pytest.mark.parametrize(
    ("loads", "code"),
    [(({}, {}), 0), (({}, SLOW_FOR_EVER), 1), ((NEVER, SLOW_FOR_EVER), 1), ((NEVER, {}), 3), ((SLOW_FOR_EVER, {}), 1)],
)
def test_the_exit_code_of_several_runs_is_their_worst_verdict(loads, code, ran, recorded):
    paths = [recorded(f"run-{n}", **load) for n, load in enumerate(loads)]
    said = ran(*paths)("run", "raft/slow-leader-disk", "raft/frozen-leader", "--json")
    assert said.code == code
    assert len(said.json) == 2


@pytest.mark.long
def test_a_fault_that_could_not_be_reverted_is_exit_code_4_whatever_else_there_is(ran, recorded):
    stuck = recorded("stuck", outcome="revert", **SLOW_FOR_EVER)
    assert ran(stuck, recorded("fine"))("run", "raft/slow-leader-disk", "raft/frozen-leader").code == 4
    assert ran(stuck)("demo").code == 4


def test_an_interrupted_run_is_judged_reported_and_exit_code_130(hashidrill, recorded, monkeypatch):
    path = recorded("stopped", outcome="interrupted")
    monkeypatch.setattr(runs, "run_experiment", raising(KeyboardInterrupt(path)))
    said = hashidrill("run", "raft/slow-leader-disk", "raft/frozen-leader")
    assert said.code == 130
    assert "interrupted" in said.stdout
    assert (path / "report.html").is_file()


@pytest.fixture
def stopped_while_telling(monkeypatch):
    """Somebody types Ctrl-C while the webhook is told of a turn."""
    monkeypatch.setattr("hashidrill.gamedays.history.on_turn_red.send", raising(KeyboardInterrupt))
    return "--notify", "https://hooks.example.org/x"


@pytest.mark.long
@pytest.mark.lie
def test_ctrl_c_while_the_webhook_is_told_costs_no_verdict_and_ends_the_series(ran, recorded, stopped_while_telling):
    three = ("raft/slow-leader-disk", "raft/frozen-leader", "raft/killed-leader")
    run = ran(recorded("a"), recorded("b", **SLOW_FOR_EVER), recorded("c"))
    said = run("run", *three, "--json", *stopped_while_telling)
    assert said.code == 130
    assert [(one["verdict"], one["exit_code"]) for one in said.json] == [("PASS", 0), ("FAIL", 1)]
    assert said.json[1]["turned"]
    assert "stopped: 1 of 3 experiments were not begun" in said.stderr


@pytest.mark.long
def test_ctrl_c_while_the_webhook_is_told_of_the_last_run_leaves_its_exit_code(ran, recorded, stopped_while_telling):
    assert ran(recorded("a"))("run", "raft/slow-leader-disk").code == 0
    said = ran(recorded("b", **SLOW_FOR_EVER))("run", "raft/slow-leader-disk", "--json", *stopped_while_telling)
    assert (said.code, said.json[0]["verdict"]) == (1, "FAIL")
    assert "turned from PASS to FAIL" in said.stderr


def test_a_variant_that_ended_counts_though_somebody_stopped_what_came_after_it(ran, recorded, monkeypatch, tmp_path):
    path, counted, shown = recorded("a"), [], io.StringIO()
    ran(path)

    def play_variants(one, *, runs_dir, run, **_):
        try:
            run(one, runs_dir=runs_dir, events=None)
        except KeyboardInterrupt as stop:
            counted.extend(stop.args)
            raise KeyboardInterrupt from None

    monkeypatch.setattr("hashidrill.faces.cli.remembering.keep", raising(KeyboardInterrupt))
    monkeypatch.setattr(runs, "play_variants", play_variants)
    one = resolve(find_experiment("raft/slow-leader-disk"))
    with pytest.raises(KeyboardInterrupt):
        runs.Runs(tmp_path, Console(file=shown, width=400), Memory(), plain=True).variants(one)
    assert counted == [path]
    assert f"`hashidrill history add {path}` adds it" in shown.getvalue()


class Stopped:
    """An existing datacenter, where these recordings are what each run leaves."""

    def __init__(self, *paths):
        self.left = list(paths)
        self.asked = []

    def allowed(self, resolved):
        """Every interlock agrees."""
        self.asked.append((resolved.name, len(self.left)))

    def run(self, resolved, *, runs_dir, events):
        return self.left.pop(0)


@pytest.fixture
def there(hashidrill, monkeypatch):
    """`hashidrill run ... --attach FILE`, where runs leave these recordings."""

    def against(*paths):
        estate = Stopped(*paths)
        monkeypatch.setattr(runs, "for_run", lambda names, *_, **__: [estate] * len(names))
        monkeypatch.setattr(runs, "resolve_all", lambda names, *_: [resolve(find_experiment(name)) for name in names])
        return estate, lambda *more: hashidrill(
            "run", "raft/slow-leader-disk", "raft/frozen-leader", "--attach", "x", *more
        )

    return against


def test_a_run_that_the_stop_button_ended_is_exit_code_130_and_nothing_more_begins(there, recorded):
    estate, run = there(recorded("stopped", outcome="interrupted"), recorded("never"))
    said = run("--json")
    assert said.code == 130
    assert [(one["outcome"], one["verdict"], one["exit_code"]) for one in said.json] == [
        ("interrupted", "INVALID", 130)
    ]
    assert len(estate.left) == 1
    assert "stopped: 1 of 2 experiments were not begun" in said.stderr


def test_nothing_more_begins_in_a_datacenter_where_a_fault_is_still_in_force(there, recorded):
    estate, run = there(recorded("stuck", outcome="revert", **SLOW_FOR_EVER), recorded("never"))
    assert run().code == 4
    assert len(estate.left) == 1


def test_one_run_after_the_other_where_nobody_stops_them(there, recorded):
    estate, run = there(recorded("a"), recorded("b", refused=True))
    said = run()
    assert (said.code, estate.left) == (3, [])
    assert "not begun" not in said.stdout + said.stderr
    assert estate.asked == [("slow-leader-disk", 2), ("frozen-leader", 2)], "the interlocks, before the first begins"


@pytest.mark.parametrize(
    ("codes", "worst"), [([0, 130, 1], 130), ([130, 4], 4), ([0, 1, 3], 1), ([0, 3], 3), ([0, 1, 4, 3], 4)]
)
def test_codes_merge_as_verdicts_do_and_an_interruption_outranks_them(codes, worst):
    assert runs._worst(codes) == worst


# run, as lines of JSON


@pytest.fixture
def told(hashidrill, recorded, monkeypatch):
    """`run` publishes these events of an engine, and leaves this recording."""

    def plan(*events, interrupted=False, **load):
        path = recorded("slow-disk-run", **load)

        def run_experiment(resolved, *, runs_dir, events: Bus):
            for event in told:
                events.publish(event)
            if interrupted:
                raise KeyboardInterrupt(path)
            return path

        told = events
        monkeypatch.setattr(runs, "run_experiment", run_experiment)
        return hashidrill

    return plan


INTENT = Intent(t_ns=1, fault_id="f1", kind="disk.latency", target=Where("consul-1"), params={"delay": "500ms"})
TOLD = (
    Began(id="slow-disk-run", experiment="slow-disk"),
    Phase(phase="method"),
    INTENT,
    Proof(event="fault.proven", fault_id="f1", evidence=Seen("500ms", "501ms")),
    Tick(
        phase="method",
        loads={"kv-writes": Figures(rate=50.0, p50_s=math.inf)},
        leaders=(("leader", "consul-1"),),
        faults=(InForce("f1", "disk.latency", "consul-1"),),
    ),
    End(outcome="complete"),
)
HINTS = ("disk.latency", "slow-disk", "slow-leader-disk", "consul-1", "500ms", "501ms", "fault.", "writes_recover")


def lines_of(said):
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_each_event_is_a_line_of_json_as_it_comes_and_the_verdict_is_the_last(told):
    said = told(*TOLD)("run", "raft/slow-leader-disk", "--json-lines")
    *events, judged = lines_of(said)
    assert [event["event"] for event in events] == ["run", "phase", "fault.intent", "fault.proven", "tick", "end"]
    assert [decode(event) for event in events] == list(TOLD)
    assert (said.code, judged["event"], judged["verdict"]) == (0, "judged", "PASS")
    assert [each["finding"] for each in judged["expectations"]] == ["held", "held"]
    assert judged["report"].endswith("report.html")
    assert judged["t_ns"] > 0


def test_what_people_read_is_on_standard_error_whether_or_not_it_is_to_be_plain(told):
    plan = told(*TOLD)
    for more in ([], ["--plain"]):
        said = plan("run", "raft/slow-leader-disk", "--json-lines", *more)
        assert len(lines_of(said)) == len(TOLD) + 1
        assert "disk.latency on consul-1: applying (delay=500ms)" in said.stderr
        assert "PASS" in said.stderr


@pytest.mark.parametrize(
    ("plan", "code", "verdict"),
    [
        ({}, 0, "PASS"),
        ({"latency": lambda t: 3.0 if t >= 10 else 0.01}, 1, "FAIL"),
        ({"refused": True}, 3, "INVALID"),
        ({"outcome": "revert"}, 4, "INVALID"),
        ({"outcome": "interrupted", "interrupted": True}, 130, "INVALID"),
    ],
    ids=["pass", "fail", "invalid", "not reverted", "interrupted"],
)
def test_the_lines_change_no_exit_code_and_tell_the_verdict_of_every_end(plan, code, verdict, told):
    said = told(*TOLD, **plan)("run", "raft/slow-leader-disk", "--json-lines")
    assert said.code == code
    assert lines_of(said)[-1]["verdict"] == verdict


@pytest.mark.lie
def test_the_lines_for_a_trainee_do_not_tell_what_is_broken(told):
    plan = told(*TOLD, latency=lambda t: 3.0 if t >= 10 else 0.01)
    said = plan("run", "raft/slow-leader-disk", "--json-lines", "--audience", "trainee")
    assert [hint for hint in HINTS if hint in said.stdout] == []
    events = lines_of(said)
    assert [event["event"] for event in events] == ["phase", "tick", "end", "judged"]
    assert (said.code, events[-1]["verdict"]) == (1, "FAIL")
    assert events[1]["loads"] == {
        "kv-writes": {"rate": 50.0, "p50_s": "inf", "p99_s": None, "errors": None, "waiting": 0, "waited_s": None}
    }
    assert "disk.latency" in said.stderr, "the operator's lines"


def test_the_lines_for_an_operator_do(told):
    """Planted: else the test of the trainee could not fail."""
    said = told(*TOLD)("run", "raft/slow-leader-disk", "--json-lines")
    assert {"disk.latency", "consul-1", "500ms", "fault.", "writes_recover"} <= {h for h in HINTS if h in said.stdout}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--json", "--json-lines"), "both print to standard output"),
        (("--audience", "trainee"), "use it with --json-lines"),
        (("--port", "8800"), "use it with --serve"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_runs(arguments, said, hashidrill):
    result = hashidrill("run", "raft/slow-leader-disk", *arguments)
    assert (result.code, result.stdout) == (2, "")
    assert said in result.stderr


# run, with a page


@pytest.fixture
def paged(monkeypatch):
    """--serve without a network: the room alone, in which `wrote` is on the page of the lead."""
    wrote, shown = [], []

    @contextlib.contextmanager
    def serving(port, elsewhere):
        assert (port, elsewhere) == (0, "")
        room = Room()
        room.lead_url, room.watch_url = "http://127.0.0.1:1/lead/", "http://127.0.0.1:1/watch/"
        for text in wrote:
            room.write("scribe", text, watchers=False)
        yield room
        shown.extend(json.loads(room.since(audience, None).data) for audience in (Audience.OPERATOR, Audience.TRAINEE))

    monkeypatch.setattr("hashidrill.gamedays.warroom.serving.serve", serving)
    return wrote, shown


@pytest.mark.lie
def test_a_run_with_a_page_says_where_it_is_and_shows_its_verdict_there(told, paged):
    said = told(*TOLD)("run", "raft/slow-leader-disk", "--serve")
    assert said.code == 0
    assert "http://127.0.0.1:1/lead/" in said.stdout
    assert "http://127.0.0.1:1/watch/" in said.stdout
    lead, watch = paged[1]
    assert lead["run"]["title"].startswith("slow-leader-disk: ")
    assert [tree["run"]["verdict"]["verdict"] for tree in (lead, watch)] == ["PASS", "PASS"]
    assert [hint for hint in HINTS if hint in json.dumps(watch)] == []
    assert [hint for hint in HINTS if hint not in json.dumps(lead)] == ["fault."], "or nothing is proven"


def test_a_page_lists_the_experiments_of_the_command_and_tells_watchers_how_many_there_are(told, paged):
    told(*TOLD)("run", "raft/slow-leader-disk", "raft/killed-leader", "--serve")
    lead, watch = paged[1]
    assert [run["title"].partition(":")[0] for run in lead["runs"]] == ["slow-leader-disk", "killed-leader"]
    assert [(run["title"], run["verdict"]) for run in watch["runs"]] == [("", "PASS"), ("", "PASS")]
    assert lead["run"]["number"] == 2


def test_what_the_scribe_wrote_is_kept_next_to_the_run(told, paged, tmp_path):
    paged[0].extend(["writes stopped", "a second\nline"])
    told(*TOLD)("run", "raft/slow-leader-disk", "--serve")
    [notes] = (tmp_path / ".hashidrill/runs").glob("*/notes.md")
    lines = notes.read_text().splitlines()
    assert [line.split(" UTC ")[1] for line in lines] == ["scribe: writes stopped", "scribe: a second line"]


def test_the_addresses_of_the_page_do_not_get_into_json(told, paged):
    said = told(*TOLD)("run", "raft/slow-leader-disk", "--serve", "--json")
    assert "127.0.0.1" not in said.stdout
    assert "/lead/" in said.stderr


class Unread(io.TextIOBase):
    """Standard output whose reader has gone after the first line."""

    def __init__(self):
        self.lines = []

    def write(self, text):
        if self.lines:
            raise BrokenPipeError(32, "Broken pipe")
        self.lines.append(text)
        return len(text)


@pytest.mark.lie
def test_a_reader_that_goes_away_neither_ends_the_run_nor_changes_its_exit_code(told, monkeypatch):
    out = Unread()
    plan = told(*TOLD, latency=lambda t: 3.0 if t >= 10 else 0.01)
    monkeypatch.setattr(sys, "stdout", out)
    said = plan("run", "raft/slow-leader-disk", "--json-lines")
    assert (said.code, len(out.lines)) == (1, 1)
    assert "BrokenPipe" not in said.stderr


# heal, status


def test_nothing_to_heal_is_said(hashidrill, recorded, monkeypatch):
    recorded("a")
    monkeypatch.setattr(heal, "sweep", list)
    assert hashidrill("heal").stdout == "nothing to heal\n"
    assert hashidrill("heal", "--json").json == {"healed": [], "removed": []}


def test_a_dead_run_is_healed_and_named(hashidrill, tmp_path, monkeypatch):
    monkeypatch.setattr(heal, "sweep", list)
    path = tmp_path / ".hashidrill" / "runs" / "dead"
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"id": "dead", "experiment": "slow-disk"}))
    with began(path, "dead", root="/var/tmp/no-such-sandbox", origin=here(), sandbox="pid:[1]") as journal:
        journal.write("fault.intent", fault_id="0-slow", kind="disk.latency", undo={"fault_id": "0-slow"})
    said = hashidrill("heal")
    assert (said.code, said.stdout) == (
        0,
        "dead: its runner died; 1 fault ended with the sandbox, which has no process left\n",
    )
    assert hashidrill("heal").stdout == "nothing to heal\n"
    assert hashidrill("history", "list").stdout.split()[2:4] == ["crashed", "dead"]


def test_a_run_that_goes_on_is_not_healed_and_that_is_said(hashidrill, tmp_path, monkeypatch):
    monkeypatch.setattr(heal, "sweep", list)
    path = tmp_path / ".hashidrill" / "runs" / "alive"
    path.mkdir(parents=True)
    with began(path, "alive", root="/var/tmp/no-such-sandbox", origin=here(), sandbox="pid:[1]"):
        named = hashidrill("heal", "alive")
        assert named.code == 2
        assert "did nothing: its runner still holds the journal" in named.stderr
        every = hashidrill("heal")
        assert (every.code, every.stdout) == (
            0,
            "alive: did nothing: its runner still holds the journal: the run is in progress\n",
        )


def test_a_dead_run_of_another_machine_is_left_alone_unless_it_is_named(hashidrill, tmp_path, monkeypatch):
    """A stranger's archive, unpacked among one's own recordings, decides about no process of ours."""
    monkeypatch.setattr(heal, "sweep", list)
    path = tmp_path / ".hashidrill" / "runs" / "theirs"
    path.mkdir(parents=True)
    with Journal(path / JOURNAL_NAME, Clock()) as journal:
        journal.write("run", id="theirs", root="/var/tmp/no-such-sandbox", origin=here(), sandbox="pid:[1]")
    before = (path / JOURNAL_NAME).read_bytes()
    said = hashidrill("heal")
    assert (said.code, said.stdout.partition(": another")[0]) == (
        0,
        "theirs: did nothing: this machine does not know it as its own",
    )
    assert (path / JOURNAL_NAME).read_bytes() == before
    assert hashidrill("heal", "theirs").stdout == "theirs: its runner died; no fault was in force\n"


def test_yes_is_about_hosts_of_one_recording(hashidrill):
    assert "name RUN, with --attach FILE" in hashidrill("heal", "--yes", "consul-1").stderr


def test_what_stands_is_told(hashidrill, monkeypatch):
    assert hashidrill("lab", "status").stdout.startswith("no datacenter is up")
    assert hashidrill("lab", "status", "--json").json == []
    hosts = [{"name": "consul-1", "role": "server", "address": "10.73.0.11", "pid": 1}]
    one = running.RunningDatacenter(
        "default", 1, 1, "/nowhere", "/bin/consul", "1.22.2", "", hosts, urls={"consul": "http://127.0.0.1:8500/ui/"}
    )
    monkeypatch.setattr(running, "all_running", lambda: [one])
    text = hashidrill("lab", "status").stdout
    assert all(word in text for word in ("default", "1.22.2", "consul-1", "10.73.0.11", "http://127.0.0.1:8500/ui/"))
    assert hashidrill("lab", "status", "--json").json[0]["hosts"] == hosts


def test_the_only_datacenter_is_meant_where_none_is_named(hashidrill, monkeypatch):
    hosts = [{"name": "nomad-1", "role": "server", "address": "10.73.0.11", "pid": 1}]
    one, two = (running.RunningDatacenter(name, 1, 1, "/", "/bin/consul", "1.22.2", "", hosts) for name in ("a", "b"))
    monkeypatch.setattr(running, "all_running", lambda: [one])
    calls = []
    monkeypatch.setattr(running, "shell_command", lambda one, host, command: ([one.name, host, *command], {}))
    monkeypatch.setattr(os, "execvpe", lambda *words: calls.append(words[1]))
    monkeypatch.setattr(running, "down", lambda one: calls.append(one.name))
    for said in (hashidrill("lab", "shell", "nomad-1"), hashidrill("lab", "down")):
        assert (said.code, said.stderr) == (0, "the only datacenter that is up is a\n")
    assert calls == [["a", "nomad-1"], "a"]
    assert hashidrill("lab", "shell", "nomad-1", "--name", "a").stderr == ""
    assert hashidrill("lab", "shell", "nomad-1", "--name", "b").code == 2
    monkeypatch.setattr(running, "all_running", lambda: [one, two])
    assert hashidrill("lab", "down").code == 2  # which of them?
