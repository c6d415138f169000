"""Reads systemd units and environment files: what is started how, with which environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hashidrill.audit.tree import Comment, MalformedError, Place

_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
_STARTERS = frozenset({"dumb-init", "env", "nohup", "setsid", "tini"})
"""They start the rest of their command line, after options of their own that take no value."""
_BEFORE = frozenset({"!", "command", "do", "else", "exec", "if", "then", "until", "while", "{", "("})
"""What a shell may have before a command."""
_SHELL_COMMAND = re.compile(r"-[a-z]*c[a-z]*")
_SEPARATOR = re.compile(r"\|\||&&|[;|&\n]")
_SECTION = re.compile(r"\[(?P<name>[^\[\]]+)\]\s*$")
_VARIABLE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>.*)$")


@dataclass(frozen=True)
class Setting:
    """`Key=value` in a section; continued lines are joined."""

    section: str
    key: str
    value: str
    place: Place
    path: str = ""
    """The file that says it, for one that comes from a drop-in."""


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    place: Place
    path: str = ""


@dataclass(frozen=True)
class Unit:
    """A unit, with what its drop-ins say after it. `partial`: a drop-in whose unit is not among the files."""

    settings: tuple[Setting, ...]
    comments: list[Comment] = field(default_factory=list)
    partial: bool = False

    def all(self, key: str) -> list[Setting]:
        """All that holds of a list: an empty value takes back whatever was said before it."""
        found: list[Setting] = []
        for each in self.settings:
            if each.key == key:
                found = [*found, each] if each.value else []
        return found

    def last(self, key: str) -> str:
        """What holds: the last one said; an empty string when it is not said, or taken back."""
        found = [each.value for each in self.settings if each.key == key]
        return found[-1] if found else ""

    def variables(self) -> list[Variable]:
        """Of all `Environment=` lines that hold; of one that is set twice, the last."""
        found = {}
        for setting in self.all("Environment"):
            for word in words(setting.value):
                name, equals, value = word.partition("=")
                if equals:
                    found[name] = Variable(name, value, setting.place, setting.path)
        unset = {word for setting in self.all("UnsetEnvironment") for word in words(setting.value)}
        return [each for each in found.values() if not {each.name, f"{each.name}={each.value}"} & unset]

    def commands(self) -> list[tuple[list[str], Setting]]:
        """The words of each command of each `ExecStart=` that holds, without systemd's prefixes and without a shell."""
        return [
            (command, each)
            for each in self.all("ExecStart")
            for command in commands_in(words(each.value.lstrip("@-:+!")))
        ]

    def with_dropins(self, dropins: Sequence[tuple[str, Unit]]) -> Unit:
        """What systemd makes of it and its drop-ins: (path, what it says), in the order in which they are read."""
        more = [replace(each, path=path) for path, dropin in dropins for each in dropin.settings]
        return replace(self, settings=(*self.settings, *more))


def commands_in(line: Sequence[str]) -> list[list[str]]:
    """The commands of a command line: itself, or what it has a shell, `env` or an init run."""
    rest = list(line)
    while rest and (rest[0] in _BEFORE or _VARIABLE.match(rest[0]) or rest[0].rpartition("/")[2] in _STARTERS):
        rest = rest[1:]
        while rest and rest[0].startswith("-"):
            rest = rest[1:]
    if not rest or rest[0].rpartition("/")[2] not in _SHELLS:
        return [rest] if rest else []
    for index, word in enumerate(rest[1:-1], 1):
        if _SHELL_COMMAND.fullmatch(word):
            parts = _SEPARATOR.split(rest[index + 1])
            return [command for part in parts for command in commands_in(words(part.strip()))]
        if not word.startswith(("-", "+")):
            break
    return [rest]


def words(line: str) -> list[str]:
    """A command line as words; where its quotes do not match, split at spaces."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def read_unit(text: str) -> Unit:
    """Raises MalformedError for a line that is neither section, setting nor comment."""
    settings, comments, section = [], [], ""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        bare = line.strip()
        if not bare:
            continue
        if bare[0] in "#;":
            comments.append(Comment(bare[1:].strip(), number, trailing=False))
        elif header := _SECTION.match(bare):
            section = header["name"]
        else:
            key, equals, value = bare.partition("=")
            if not equals or not section:
                raise MalformedError(Place(number, 1), "a unit has [Section] lines and Key=value lines below them")
            while value.endswith("\\"):
                value = value[:-1].rstrip() + " " + next(lines, (0, ""))[1].strip()
            settings.append(Setting(section, key.strip(), value.strip(), Place(number, 1)))
    return Unit(tuple(settings), comments)


def read_environment(text: str) -> tuple[list[Variable], list[Comment]]:
    """A file as `EnvironmentFile=` takes it. Lines that set nothing are systemd's to complain about."""
    variables, comments = [], []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith(("#", ";")):
            comments.append(Comment(bare[1:].strip(), number, trailing=False))
        elif found := _VARIABLE.match(bare):
            variables.append(Variable(found["name"], found["value"].strip().strip("\"'"), Place(number, 1)))
    return variables, comments
