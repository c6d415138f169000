"""Reads the pages of the documentation, and says what is wrong with their commands, names, links and code."""

from __future__ import annotations

import ast
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer
from ruamel.yaml import YAML
from typer.exceptions import TyperException

from hashidrill.core import hypothesis
from hashidrill.core.errors import ExperimentError, UnknownNameError
from hashidrill.core.experiment.conditions import probe_signals
from hashidrill.core.experiment.library import experiment_name, find_experiment, list_experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.protocols import registry
from hashidrill.faces.cli.app import app
from places import ROOT

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(f"playbooks/{p.name}" for p in (ROOT / "playbooks").glob("*.md")),
)
COMMANDS = typer.main.get_command(app)
_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_OURS = re.compile(r"^(?:[A-Z_]+=\S+\s+)*(?:uv run (?:--project \S+ )?)?hashidrill(?=\s|$)(?!/)")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z-]*")
_KINDS = re.compile(r"(?<![\w.])(?:disk|network|process|cpu)\.[a-z_]+|consul\.kv\.[a-z_]+")
_SNAKE = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")


@dataclass(frozen=True)
class Page:
    """One page: its path from the root, and its text, which a test may change to plant a lie."""

    path: str
    text: str

    @classmethod
    def read(cls, path: str) -> Page:
        return cls(path, (ROOT / path).read_text())

    @property
    def prose(self) -> str:
        """Without what is fenced, so that code is no heading, link or inline code."""
        return _FENCE.sub("", self.text)

    def fences(self, language: str) -> list[str]:
        return [m["body"] for m in _FENCE.finditer(self.text) if m["info"].split(" ")[0] == language]

    def runnable(self) -> list[str]:
        return [m["body"] for m in _FENCE.finditer(self.text) if m["info"] == "python runnable"]

    def inline(self) -> list[str]:
        return CODE.findall(self.prose)

    def section(self, title: str) -> str:
        """What stands below a heading, down to the next one of its level or above."""
        found = re.search(
            rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |^\1 |\Z)", self.prose, re.MULTILINE | re.DOTALL
        )
        assert found is not None, f"{self.path} has no heading {title!r}"
        return found[2]


PARSED = [Page.read(path) for path in PAGES]


def page(path: str) -> Page:
    return next(each for each in PARSED if each.path == path)


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without headings and rulers."""
    lines = [line.strip().strip("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    rulers = [index for index, row in enumerate(cells) if all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    heads = {index - 1 for index in rulers}
    return [row for index, row in enumerate(cells) if index not in heads and index not in rulers]


# commands


def commands(each: Page) -> Iterator[tuple[str, bool]]:
    """(command line, whether it must be complete) for all that the page shows of ours."""
    for block in [*each.fences("sh"), *re.findall(r"(?:^    \S.*\n)+", each.prose, re.MULTILINE)]:
        yield from ((line.strip(), True) for line in block.splitlines() if _OURS.match(line.strip()))
    for block in each.fences("yaml"):
        yield from ((found[1], True) for found in re.finditer(r"(uv run --project \S+ hashidrill .*)", block))
    yield from ((code, False) for code in each.inline() if _OURS.match(code))


def words_of(line: str) -> list[str]:
    """The arguments, up to a pipe, a redirection, another command or a comment."""
    lexer = shlex.shlex(line[_OURS.match(line).end() :], posix=True, punctuation_chars=True)  # type: ignore[union-attr]
    lexer.commenters = "#"
    lexer.whitespace_split = True  # `3+2` is one word, as in a shell
    words = []
    for word in lexer:
        if set(word) <= set("|&;<>()"):
            break
        words.append(word)
    return words


def command_trouble(line: str, *, complete: bool, made: set[str]) -> str:
    """Why this command line would not work, or an empty string."""
    words = words_of(line)
    context = COMMANDS.make_context("hashidrill", ["doctor"])
    if not words:
        return ""
    if words[0].startswith("-"):
        known = {name for parameter in COMMANDS.params for name in [*parameter.opts, "-h", "--help"]}
        return "" if set(words) <= known else f"hashidrill has no option {words}"
    command, words, trouble = command_of(words, complete=complete)
    if command is None:
        return trouble
    try:
        # in a context of its own, as the options of a command line set variables
        values = copy_context().run(command.make_context, words[0], words[1:], parent=context).params
    except TyperException as error:
        if not complete and type(error).__name__ == "MissingParameter":
            return ""  # in running text a command may be named without its arguments
        return error.format_message()
    named = [*(values.get("experiments") or []), *([values["like"]] if values.get("like") else [])]
    if words[0] == "show" and "name" in values:
        named.append(values["name"])
    return next((f"there is no {name!r}" for name in named if not there(name, made)), "")


def command_of(words: list[str], *, complete: bool) -> tuple[Any, list[str], str]:
    """(the command, down to that of a group; its words; what is wrong where there is none)."""
    command = COMMANDS.commands.get(words[0])
    if command is None:
        return None, words, f"there is no command {words[0]!r}"
    while hasattr(command, "commands") and words[1:] and not words[1].startswith("-"):
        if words[1] not in command.commands:
            return None, words, f"there is no command '{words[0]} {words[1]}'"
        command, words = command.commands[words[1]], words[1:]
    if hasattr(command, "commands"):  # a group, named without any of its commands
        needless = not complete or {"-h", "--help"} & set(words)
        return None, words, "" if needless else f"{words[0]} needs one of its commands"
    return command, words, ""


def there(name: str, made: set[str]) -> bool:
    """Whether what a command names exists, or was made by a command before it."""
    if name in made or name == "last" or _PLACEHOLDER.fullmatch(name):
        return True
    kinds = {**registry.faults(), **registry.loads(), **hypothesis.all_hypotheses(), **hypothesis.all_comparisons()}
    if name in kinds or name in registry.probe_kinds() or list(ROOT.glob(name)):
        return True
    try:
        find_experiment(name)
    except UnknownNameError:
        return False
    return True


def command_troubles(each: Page) -> list[str]:
    made = {words_of(line)[1] for line, complete in commands(each) if " new " in line}
    return [
        f"{each.path}: `{line}`: {trouble}"
        for line, complete in commands(each)
        if (trouble := command_trouble(line, complete=complete, made=made))
    ]


# names


def unknown_names(each: Page) -> list[str]:
    """Inline code that looks like an experiment, a kind, or a name of ours, and is none."""
    experiments = known_experiments()
    folders = "|".join({name.partition("/")[0] for name in experiments})
    kinds = {*registry.faults(), *registry.loads(), *registry.probes(), *probe_signals()}
    kinds |= set(re.findall(r'kind: ClassVar\[str\] = "([^"]+)"', each.text))  # what an example defines
    names = known_words() | set(_SNAKE.findall(" ".join(each.fences("python"))))
    wrong = []
    for code in each.inline():
        if re.match(r"https?://", code):
            continue
        if (path := re.fullmatch(r"(?:uv run pytest )?(tests/[\w/.]+)(?:::[\w:]+)?(?: -s)?", code)) is not None:
            wrong += [] if (ROOT / path[1]).exists() else [f"{each.path}: there is no {path[1]}"]
            continue
        if re.fullmatch(rf"(?:{folders})/[a-z0-9-]+", code) and code not in experiments:
            wrong.append(f"{each.path}: there is no experiment {code}")
        wrong += [f"{each.path}: there is no {kind}" for kind in _KINDS.findall(code) if kind not in kinds]
        wrong += [f"{each.path}: nothing is called {name}" for name in _SNAKE.findall(code) if name not in names]
    return wrong


@cache
def known_experiments() -> frozenset[str]:
    return frozenset(experiment_name(path) for path in list_experiments())


@cache
def known_words() -> frozenset[str]:
    """Every snake_case name in the sources: what the docs call by name has to occur there."""
    folders = ("runners", "hypotheses", "experiments", "tests/contract")
    sources = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".yaml", ".hcl", ".toml"}
    ]
    names = {name for path in sources for name in _SNAKE.findall(f"{path.stem} {path.read_text()}")}
    return frozenset(names | {"f_await", "w_await", "test_docs"})  # columns of iostat; these tests


# links


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(each: Page) -> list[str]:
    dead = []
    for target in _LINK.findall(each.prose):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / each.path).parent / path if path else ROOT / each.path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            dead.append(f"{each.path}: {target} leads nowhere")
    return dead


# fenced code


def code_troubles(each: Page) -> list[str]:
    troubles = []
    for block in each.fences("python"):
        try:
            ast.parse(block)
        except SyntaxError as error:
            troubles.append(f"{each.path}: python: {error}")
    for block in each.fences("yaml"):
        first = block.splitlines()[0]
        if not first.startswith("# fragment"):
            troubles += experiment_trouble(each, block)
        elif YAML(typ="safe").load(block) is None:
            troubles.append(f"{each.path}: yaml: empty fragment")
    return troubles


def experiment_trouble(each: Page, block: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "block.yaml"
        path.write_text(block)
        try:
            load_experiment(path)
        except ExperimentError as error:
            return [f"{each.path}: yaml without `# fragment` is no experiment that loads: {error}"]
    return []
