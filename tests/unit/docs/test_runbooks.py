"""Runbooks say what they are rehearsed on, when that was, and use nothing that a rehearsal's host lacks."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from ruamel.yaml import YAML

from docs_pages import Page, page, rows
from hashidrill.core.experiment.library import experiment_name, list_experiments
from places import ROOT

RUNBOOKS = sorted(f"playbooks/{path.name}" for path in (ROOT / "playbooks").glob("runbook-*.md"))
INDEX = "playbooks/runbooks.md"
EXPERIMENTS = frozenset(experiment_name(path) for path in list_experiments())

_FRONT = re.compile(r"\A---\n(?P<yaml>.*?)^---\n(?P<body>.*)\Z", re.MULTILINE | re.DOTALL)
_BADGE = re.compile(
    r"^> Rehearsed \d{4}-\d{2}-\d{2} with [A-Z]\w+ \d+\.\d+\.\d+.*: .+$|^> Never rehearsed\.$", re.MULTILINE
)
_BLOCK = re.compile(r"^```sh (?:observe|act|confirm)\b[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)

_TOOLS = """
awk bbolt cat chmod chown consul curl cut date df find grep head journalctl jq ls mv nft nomad paste rm sed sort ss
stat sudo systemctl tail tee timeout tr vault wc
"""
TOOLS = frozenset(_TOOLS.split())
"""What a rehearsal's host has: the vendors' commands, its stand-ins for a service manager, and an ordinary Linux."""
_SHELL = """
break case continue do done echo elif else esac exit false fi for if in printf sleep test then true until while
"""
SHELL = frozenset(_SHELL.split())
_OPENS = re.compile(
    r"(?:^|\||&&|;|\$\(|\b(?:do|then|else|if|while|until)\s|!\s)\s*(?P<word>[A-Za-z][\w.-]*)(?![\w=])", re.MULTILINE
)


def front_matter(each: Page) -> dict[str, Any]:
    found = _FRONT.match(each.text)
    return YAML(typ="safe").load(found["yaml"]) if found else {}


def used(script: str) -> Iterator[str]:
    """The commands of a script: what opens a line, a part of a pipe or a substitution, outside of single quotes."""
    bare = re.sub(r"'[^']*'", "''", script).replace("\\\n", " ")
    bare = re.sub(r"\|\s*\n\s*", "| ", bare)
    return (found["word"] for found in _OPENS.finditer(bare))


def troubles(each: Page) -> list[str]:
    """What is wrong with a runbook, as sentences."""
    front = front_matter(each)
    if not front:
        return [f"{each.path}: it has no front matter"]
    found = []
    if f"playbooks/runbook-{front.get('runbook')}.md" != each.path:
        found.append(f"{each.path}: its front matter calls it {front.get('runbook')!r}")
    alike = front.get("look_alikes") or {}
    if len(alike) < 2:
        found.append(f"{each.path}: {len(alike)} look-alikes; a runbook must be told from two at least")
    named = {*(front.get("experiments") or {}), *alike} - {"healthy"}
    found += [f"{each.path}: there is no experiment {name}" for name in sorted(named - EXPERIMENTS)]
    if not front.get("experiments"):
        found.append(f"{each.path}: it is rehearsed on no experiment")
    badges = _BADGE.findall(each.text)
    if len(badges) != 1:
        found.append(f"{each.path}: {len(badges)} badge lines; write one, `> Never rehearsed.` until it was")
    for block in _BLOCK.finditer(each.text):
        lacking = sorted({*used(block["body"])} - TOOLS - SHELL)
        found += [f"{each.path}: a rehearsal's host has no {word}" for word in lacking]
    return found


def index_troubles(each: Page, runbooks: list[Page]) -> list[str]:
    """The table names every runbook with its pager, the experiments it is rehearsed on, and its look-alikes."""
    shown = {row[1]: row for row in rows(each.text) if len(row) == 4}
    wrong = []
    for book in runbooks:
        front = front_matter(book)
        file = book.path.removeprefix("playbooks/")
        row = next((row for link, row in shown.items() if f"({file})" in link), None)
        right = [
            front["pager"],
            *(", ".join(f"`{name}`" for name in front[key]) for key in ("experiments", "look_alikes")),
        ]
        if row is None:
            wrong.append(f"{each.path}: {file} is not in the table")
        elif [row[0], *row[2:]] != right:
            wrong.append(f"{each.path}: {file}: the table says {[row[0], *row[2:]]}, its front matter {right}")
    return wrong


@pytest.mark.parametrize("path", RUNBOOKS)
def test_a_runbook_says_what_it_is_rehearsed_on_and_when_it_was(path):
    assert troubles(page(path)) == []


def test_the_table_of_runbooks_is_that_of_their_front_matter():
    assert index_troubles(page(INDEX), [page(path) for path in RUNBOOKS]) == []


def test_every_runbook_is_reached_from_the_readme():
    assert f"({INDEX})" in page("README.md").text


LIES = [
    (
        "experiments:\n  raft/leader-disk-full:",
        "experiments:\n  raft/full-disk:",
        "there is no experiment raft/full-disk",
    ),
    ("  raft/leader-disk-errors: {diagnosis: failing-disk, after: 12s}\n", "", "1 look-alikes"),
    ("runbook: full-disk", "runbook: disk-full", "calls it 'disk-full'"),
    ("df -P", "lsof -P", "has no lsof"),
    ("| awk 'NR == 2", "| gawk 'NR == 2", "has no gawk"),
]


@pytest.mark.lie
@pytest.mark.parametrize(("right", "wrong", "said"), LIES)
def test_a_runbook_that_is_wrong_is_found(right, wrong, said):
    each = page("playbooks/runbook-full-disk.md")
    assert right in each.text
    lie = Page(each.path, each.text.replace(right, wrong))
    assert any(said in trouble for trouble in troubles(lie))


@pytest.mark.lie
@pytest.mark.parametrize(
    "badge", ["", "> Rehearsed: yes.", "> Rehearsed 2026-11-23.", "> Never rehearsed.\n> Never rehearsed."]
)
def test_a_badge_that_says_nothing_is_none(badge):
    each = page("playbooks/runbook-full-disk.md")
    lie = Page(each.path, _BADGE.sub(badge, each.text))
    assert any("badge lines" in trouble for trouble in troubles(lie))


@pytest.mark.lie
def test_a_runbook_missing_from_the_table_is_found():
    each = page(INDEX)
    lie = Page(each.path, each.text.replace("(runbook-full-disk.md)", "(runbook-slow-leader.md)"))
    assert any(
        "is not in the table" in wrong for wrong in index_troubles(lie, [page("playbooks/runbook-full-disk.md")])
    )


def test_commands_are_found_wherever_they_stand():
    script = "a=$(one | two)\nif [ \"$(three)\" ]; then\n  four && five || six\nfi\necho '| seven' |\n  eight"
    assert {*used(script)} - SHELL == {"one", "two", "three", "four", "five", "six", "eight"}
