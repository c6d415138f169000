"""The docs say what is there: commands, kinds, tables, links, examples. Each check is seen to catch a planted lie.
The examples of the docs are run, as they stand on the page.
"""

import asyncio
import difflib
import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs_pages import (
    CODE,
    COMMANDS,
    PAGES,
    PARSED,
    ROOT,
    Page,
    code_troubles,
    command_trouble,
    command_troubles,
    commands,
    dead_links,
    known_experiments,
    page,
    rows,
    there,
    unknown_names,
    words_of,
)
from hashidrill.core import hypothesis
from hashidrill.core.engine.run import EXIT_CODES
from hashidrill.core.experiment.conditions import LOAD_STATISTICS, probe_signals
from hashidrill.core.experiment.library import find_experiment, read_document
from hashidrill.core.experiment.load_levels import Course
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.experiment.pydantic_messages import is_kind
from hashidrill.core.experiment.selectors import forms
from hashidrill.core.judging.verdict import Finding
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.protocols import events
from hashidrill.core.protocols.abc import LoadCost, cost_of, selectors_of
from hashidrill.faces.cli import reference
from hashidrill.faces.cli.library import COMMON
from hashidrill.gamedays.gameday.plan import is_game_day, read_plan
from hashidrill.gamedays.training.campaign import read_campaign
from hashidrill.gamedays.training.scenario import read_scenario
from hashidrill.testing.recordings import RecordingBuilder
from tasks import running
from virtual_time import VirtualClock

# reference pages and tables


@cache
def generated(name: str) -> str:
    return reference.PAGES[name]()


def generated_troubles(each: Page) -> list[str]:
    """A generated page is what the code says now."""
    right = generated(each.path.removeprefix("playbooks/"))
    lines = difflib.unified_diff(each.text.splitlines(), right.splitlines(), "the page", "the code", n=0, lineterm="")
    difference = "\n".join(lines)
    how = "regenerate it with `python -m hashidrill.faces.cli.reference`"
    return [f"{each.path}: {how}:\n{difference}"] if difference else []


def image_troubles(each: Page) -> list[str]:
    """Every picture of the page is there, is a PNG, and says in words what it shows."""
    troubles = []
    for words, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", each.prose):
        file = (ROOT / each.path).parent / target
        if not file.is_file() or not file.read_bytes().startswith(b"\x89PNG"):
            troubles.append(f"{each.path}: {target} is no PNG file")
        if len(words) < 20:
            troubles.append(f"{each.path}: {target} has no words for those who cannot see it")
    return troubles


def dependency_troubles(each: Page) -> list[str]:
    """The list of dependencies is that of pyproject.toml, and each has a purpose and a reason."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    bare = lambda lines: {re.split(r"[<>=\[ ]", line)[0] for line in lines}  # noqa: E731
    runtime = bare(project["project"]["dependencies"])
    extras = project["project"]["optional-dependencies"]
    runtime |= {name for lines in extras.values() for name in bare(lines)}
    dev = bare(project["dependency-groups"]["dev"]) - {project["project"]["name"]}
    shown = rows(each.section("Dependencies"))
    troubles = [
        f"{each.path}: {name} is not explained" for name in (runtime | dev) - {row[0].strip("`") for row in shown}
    ]
    for name, purpose, reason in shown:
        if name.strip("`") not in runtime | dev:
            troubles.append(f"{each.path}: {name} is no dependency")
        extra = next((key for key, lines in extras.items() if name.strip("`") in bare(lines)), "")
        if extra and not purpose.startswith(f"extra `{extra}`: "):
            troubles.append(f"{each.path}: {name}: the extra {extra} is not named")
        if ("(dev)" in purpose) != (name.strip("`") in dev) or len(reason) < 20:
            troubles.append(f"{each.path}: {name}: wrong group, or no reason")
    return troubles


def exit_code_troubles(each: Page) -> list[str]:
    """The documented codes are those that the code ends with."""
    shown = {row[0]: row[1] for row in rows(each.section("Verdicts and exit codes"))}
    right = {"0": "PASS", "1": "FAIL", "2": "", "3": "INVALID", "4": "", "130": ""}
    return [] if shown == right else [f"{each.path}: exit codes are {right}, the table says {shown}"]


def event_troubles(each: Page) -> list[str]:
    """Every event has its section, with each of its fields and who may see it; and each outcome is there."""
    right = {", ".join(f"`{name}`" for name in kind.names): kind for kind in events.KINDS}
    headings = set(re.findall(r"^## (`.+)$", each.prose, re.MULTILINE))
    troubles = [f"{each.path}: {title} has no section" for title in right.keys() - headings]
    troubles += [f"{each.path}: there is no event {title}" for title in headings - right.keys()]
    for title in right.keys() & headings:
        shown = {row[0].strip("`"): row[1] for row in rows(each.section(title))}
        seen_by = {
            field.name: str(field.metadata.get("audience", right[title].audience))
            for field in fields(right[title])
            if field.name not in {"event", "t_ns"}
        }
        if shown != seen_by:
            troubles.append(f"{each.path}: {title} has {seen_by}, the table says {shown}")
    outcomes = next((row[2] for row in rows(each.section("`end`")) if row[0] == "`outcome`"), "")
    if set(CODE.findall(outcomes)) != set(EXIT_CODES):
        troubles.append(f"{each.path}: the outcomes are {sorted(EXIT_CODES)}")
    return troubles


INCIDENTS = ("roblox-2021", "tfs-2013", "juju-2021", "uber-m3-2019", "line-lbaas-2021")


def incident_troubles(each: Page) -> list[str]:
    """Each row names what exists; each experiment that cites an incident is in its table; what is missing has a why."""
    cited = {name: find_experiment(name).read_text() for name in sorted(known_experiments())}
    troubles = []
    for key in INCIDENTS:
        shown = rows(each.section(key))
        troubles += [] if shown else [f"{each.path}: {key} has no row"]
        for said, here in shown:
            names = CODE.findall(here)
            found = [
                command_trouble(name, complete=False, made=set())
                if name.startswith("hashidrill ")
                else ("" if there(name, set()) else f"there is no {name}")
                for name in names
            ]
            found += [] if names or "](" in here else ["nothing is named"]
            troubles += [f"{each.path}: {key}: {said}: {why}" for why in found if why]
        named = {name for row in shown for name in CODE.findall(row[1])}
        unnamed = [name for name, text in cited.items() if key in text and name not in named]
        troubles += [f"{each.path}: {key}: {name} cites it and is in no row" for name in unnamed]
    missing = rows(each.section("Not built"))
    troubles += [f"{each.path}: {row[0]} is not an incident" for row in missing if row[0] not in INCIDENTS]
    return troubles + [f"{each.path}: {row[1]}: no reason" for row in missing if len(row[2]) < 10]


CHECKS: dict[str, tuple[Callable[[Page], list[str]], tuple[str, ...]]] = {
    "commands": (command_troubles, PAGES),
    "names": (unknown_names, PAGES),
    "links": (dead_links, PAGES),
    "code": (code_troubles, PAGES),
    "generated": (generated_troubles, tuple(f"playbooks/{name}" for name in reference.PAGES)),
    "images": (image_troubles, PAGES),
    "dependencies": (dependency_troubles, ("playbooks/decisions.md",)),
    "exit codes": (exit_code_troubles, ("README.md",)),
    "events": (event_troubles, ("playbooks/reference-events.md",)),
    "incidents": (incident_troubles, ("playbooks/incidents.md",)),
}


@pytest.mark.long
@pytest.mark.parametrize(("check", "path"), [(check, path) for check, (_, paths) in CHECKS.items() for path in paths])
def test_what_a_page_says_is_so(check, path):
    assert CHECKS[check][0](page(path)) == []


LIES = [
    ("commands", "README.md", "hashidrill check last ", "hashidrill chekc last ", "no command 'chekc'"),
    (
        "commands",
        "README.md",
        "    uv run hashidrill demo",
        "    uv run hashidrill demo --fast",
        "No such option: --fast",
    ),
    (
        "commands",
        "README.md",
        "hashidrill show disk.latency",
        "hashidrill show disk.slowness",
        "there is no 'disk.slowness'",
    ),
    ("commands", "README.md", "`hashidrill doctor`", "`hashidrill docter`", "no command 'docter'"),
    (
        "commands",
        "playbooks/local-datacenter.md",
        "--like raft/leader-disk-full",
        "--like raft/full-disk",
        "raft/full-disk",
    ),
    ("commands", "playbooks/first-game-day.md", "run raft/killed-leader", "run raft/dead-leader", "raft/dead-leader"),
    (
        "commands",
        "playbooks/gate-a-config-change.md",
        "check last --runs runs",
        "check last --run-dir runs",
        "--run-dir",
    ),
    (
        "names",
        "playbooks/machine-and-limits.md",
        "`raft/leader-disk-full`",
        "`raft/leader-disk-fill`",
        "no experiment raft/leader-disk-fill",
    ),
    ("names", "CHANGELOG.md", "`disk.latency`", "`disk.latencies`", "there is no disk.latencies"),
    ("names", "CHANGELOG.md", "`writes_recover`", "`writes_recovers`", "nothing is called writes_recovers"),
    ("links", "README.md", "(CONTRIBUTING.md)", "(CONTRIBUTE.md)", "CONTRIBUTE.md leads nowhere"),
    ("links", "playbooks/gate-a-config-change.md", "#a-hypothesis", "#hypotheses", "#hypotheses leads nowhere"),
    ("code", "README.md", "def test_no_write", "def test no_write", "python:"),
    ("code", "playbooks/steps-and-proofs.md", "# fragment: the method", "# the method", "no experiment that loads"),
    ("generated", "playbooks/reference-faults.md", "- `jitter` (0s)", "- `jitter` (1s)", "- `jitter` (1s)"),
    ("generated", "playbooks/reference-faults.md", "### `disk.full`", "### `disk.fuller`", "### `disk.fuller`"),
    ("generated", "playbooks/reference-verdicts.md", "`grace` (1s)", "`grace` (2s)", "`grace` (2s)"),
    (
        "generated",
        "playbooks/reference-kubernetes-faults.md",
        "### `litmus.pod_delete`",
        "### `litmus.pod`",
        "`litmus.pod`",
    ),
    (
        "generated",
        "playbooks/reference-library.md",
        "| `raft/killed-leader` |",
        "| `raft/dead-leader` |",
        "dead-leader",
    ),
    (
        "generated",
        "playbooks/reference-commands.md",
        "- `--plain`: Print",
        "- `--plain` (on): Print",
        "- `--plain` (on)",
    ),
    ("images", "README.md", "images/report.png", "images/no-report.png", "no-report.png is no PNG"),
    (
        "images",
        "README.md",
        "![Report of the demo: PASS, what happened, and a harder next step]",
        "![report]",
        "no words",
    ),
    ("generated", "playbooks/reference-keys.md", "- `at_once` (50)", "- `at_once` (60)", "- `at_once` (60)"),
    ("dependencies", "playbooks/decisions.md", "| `uvloop` |", "| `trio` |", "uvloop is not explained"),
    ("dependencies", "playbooks/decisions.md", "extra `ssh`: ", "", "the extra ssh is not named"),
    ("exit codes", "README.md", "| 3 | INVALID |", "| 5 | INVALID |", "exit codes are"),
    ("events", "playbooks/reference-events.md", "## `tick`", "## `tock`", "`tick` has no section"),
    ("events", "playbooks/reference-events.md", "| `leaders` | operator |", "| `leaders` | trainee |", "`tick` has"),
    ("events", "playbooks/reference-events.md", "| `verdict` | trainee |", "| `result` | trainee |", "`judged` has"),
    ("events", "playbooks/reference-events.md", "`unfit`, ", "", "the outcomes are"),
    ("incidents", "playbooks/incidents.md", "`nomad/cold-start`", "`nomad/cold-begin`", "no nomad/cold-begin"),
    ("incidents", "playbooks/incidents.md", "`network.slicer`", "`network.dicer`", "no network.dicer"),
    ("incidents", "playbooks/incidents.md", "`load_is_shed`", "`load_is_sold`", "no load_is_sold"),
    ("incidents", "playbooks/incidents.md", "`hashidrill bisect`", "`hashidrill dissect`", "no command 'dissect'"),
    ("incidents", "playbooks/incidents.md", "`state/obsolete-kv`, ", "", "state/obsolete-kv cites it and is in no row"),
    ("incidents", "playbooks/incidents.md", "`renewals_before_claims` |", " |", "nothing is named"),
    ("incidents", "playbooks/incidents.md", "| roblox-2021 |", "| roblox-2012 |", "roblox-2012 is not an incident"),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("check", "path", "true", "lie", "message"), LIES, ids=[f"{c}-{lie}"[:60] for c, _, _, lie, _ in LIES]
)
def test_a_lie_in_a_page_is_caught(check, path, true, lie, message):
    told = page(path)
    assert true in told.text, f"{path} no longer says {true!r}: plant another lie"
    planted = replace(told, text=told.text.replace(true, lie, 1))
    assert any(message in trouble for trouble in CHECKS[check][0](planted))


def test_the_commands_of_the_readme_are_seen_at_all():
    """A reader of pages that finds nothing would find no lie either."""
    lines = [line for line, _ in commands(page("README.md"))]
    assert "uv run hashidrill demo" in lines
    assert {word for line in lines for word in words_of(line)[:1]} >= {
        "demo",
        "new",
        "show",
        "validate",
        "run",
        "check",
        "list",
        "doctor",
    }
    assert len([line for each in PARSED for line, _ in commands(each)]) > 40


def test_selectors_conditions_and_findings_are_documented_completely():
    faults, verdicts = page("playbooks/steps-and-proofs.md"), page("playbooks/verdicts.md")
    assert [row[0].strip("`") for row in rows(faults.section("A step of the method"))] == forms()
    conditions = rows(verdicts.section("Conditions: steady state and guardrails"))
    assert sorted(CODE.findall(" ".join(row[1] for row in conditions))) == sorted([*LOAD_STATISTICS, *probe_signals()])
    assert {row[0]: row[2] for row in rows(verdicts.section("Findings"))} == {f.value: f.verdict.value for f in Finding}


@pytest.mark.long
def test_every_parameter_of_a_hypothesis_is_in_its_text():
    for name, one in (hypothesis.all_hypotheses() | hypothesis.all_comparisons()).items():
        unsaid = [each for each in one.Params.model_fields if each not in COMMON and f"`{each}" not in one.doc]
        assert unsaid == [], name


@pytest.mark.long
def test_the_examples_of_every_command_work():
    """`--help` ends with them."""
    groups = [COMMANDS, *COMMANDS.commands.values()]
    each = [command for group in groups for command in getattr(group, "commands", {}).values()]
    lines = [line for command in each for line in re.findall(r"hashidrill .+", command.epilog or "")]
    assert len(lines) > 30
    assert command_troubles(Page("--help", "```sh\n" + "\n".join(lines) + "\n```\n")) == []


def test_every_key_and_option_says_what_it_means():
    for path in ("playbooks/reference-keys.md", "playbooks/reference-commands.md"):
        explained = re.findall(r"^- (`.+?`)[^:]*: (.*)$", page(path).text, re.MULTILINE)
        assert len(explained) > 100
        for name, meaning in explained:
            assert len(meaning) > 10, f"{path}: {name} has no meaning: {meaning!r}"


def test_the_references_are_not_longer_than_a_reader_can_search():
    """150 KB for what is looked up most: tell what several have in common once, before you raise it."""
    pages = [f"playbooks/reference-{name}.md" for name in ("faults", "verdicts", "keys", "commands", "library")]
    assert sum(len(page(path).text.encode()) for path in pages) <= 150_000


def test_the_readme_is_read_in_one_sitting():
    assert len(page("README.md").text.splitlines()) <= 160


def test_files_of_playbooks_that_are_yaml_are_experiments_game_days_scenarios_or_campaigns():
    for path in [*(ROOT / "playbooks").rglob("*.yaml"), *(ROOT / "playbooks").rglob("*.yml")]:
        if is_game_day(read_document(path)):
            read_plan(path)
        elif is_kind(read_document(path), "Scenario"):
            read_scenario(path)
        elif is_kind(read_document(path), "Campaign"):
            read_campaign(path)
        else:
            load_experiment(path)


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """Writes the runnable blocks of a page under the paths in their first lines; imports one of them by its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(path: str) -> Callable[[str], Any]:
        for block in page(path).runnable():
            file = tmp_path / block.splitlines()[0].removeprefix("# ")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block)
        return load

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(Path(name).stem, tmp_path / name)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield write
    for name in set(sys.modules) - before:
        if (file := getattr(sys.modules[name], "__file__", None)) and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


def cases_of(module: Any) -> list[Callable[..., None]]:
    found = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert found
    return found


def test_every_runnable_example_is_run_by_a_test_here():
    source = Path(__file__).read_text()
    of_the_tap = (ROOT / "tests/plugin/test_tap_fixture.py").read_text()
    for each in PARSED:
        for block in each.runnable():
            if each.path.rpartition("/")[2] in of_the_tap:  # that file runs every example on its page, in pytest
                continue
            name = block.splitlines()[0].removeprefix("# ")
            assert f'"{name}"' in source or name == "readonly_disk.py", f"{each.path}: {name}"


def test_the_example_of_a_fault_keeps_the_contract(examples, monkeypatch):
    monkeypatch.setattr("hashidrill.testing.faults.PROVEN_WITHIN_S", 0.1)
    for test in cases_of(examples("playbooks/extend.md")("test_readonly_disk.py")):
        test()


async def test_the_example_of_a_load_offers_its_rate_and_has_all_that_is_asked_of_one(examples):
    ticker = examples("playbooks/extend.md")("ticker.py").Ticker
    operations: list[Any] = []
    params = ticker.Params.model_validate({"rate": "50/s"})
    load = ticker("ticks", params, LoadContext([], clock=VirtualClock(), course=Course()))
    async with running(load.run(operations.append)):
        await asyncio.sleep(1.999)
    assert [operation.outcome for operation in operations] == ["ok"] * 100
    assert (selectors_of(ticker, None), cost_of(ticker, None)) == ({}, LoadCost())


def test_the_example_of_a_hypothesis_judges_as_its_tests_say(examples, tmp_path):
    load = examples("playbooks/extend.md")
    assert load("hypotheses/patience.py").nobody_waits_longer_than
    for index, test in enumerate(cases_of(load("test_patience.py"))):
        (tmp_path / str(index)).mkdir()
        test(tmp_path / str(index))


@pytest.mark.parametrize("slowest_s", [3.0, 11.0])
def test_the_example_of_a_hand_written_assertion_can_hold_and_break(examples, tmp_path, slowest_s):
    [test] = cases_of(examples("README.md")("tests/test_our_consul.py"))
    run = RecordingBuilder(tmp_path / "run").fault("disk.latency", at=10, until=30)
    recording = run.load("kv-writes", latency=lambda t: slowest_s if 10 <= t < 30 else 0.01).build()
    if slowest_s < 10:
        test(recording)
    else:
        with pytest.raises(AssertionError):
            test(recording)
    [mark] = test.pytestmark
    assert (ROOT / "tests" / mark.args[0]).resolve().is_file()
