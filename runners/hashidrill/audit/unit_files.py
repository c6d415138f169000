"""Reads systemd units and environment files: what is started how, with which environment."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from hashidrill.audit.tree import Comment, MalformedError, Place

_SECTION = re.compile(r"\[(?P<name>[^\[\]]+)\]\s*$")
_VARIABLE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>.*)$")


@dataclass(frozen=True)
class Setting:
    """`Key=value` in a section; continued lines are joined."""

    section: str
    key: str
    value: str
    place: Place


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    place: Place


@dataclass(frozen=True)
class Unit:
    settings: tuple[Setting, ...]
    comments: list[Comment] = field(default_factory=list)

    def all(self, key: str) -> list[Setting]:
        return [each for each in self.settings if each.key == key]

    def last(self, key: str) -> str:
        """What holds: the last one said; an empty string when it is not said."""
        found = self.all(key)
        return found[-1].value if found else ""

    def variables(self) -> list[Variable]:
        """Of all `Environment=` lines."""
        found = []
        for setting in self.all("Environment"):
            for word in words(setting.value):
                name, equals, value = word.partition("=")
                if equals:
                    found.append(Variable(name, value, setting.place))
        return found

    def commands(self) -> list[tuple[list[str], Place]]:
        """The words of each `ExecStart=`, without systemd's prefixes."""
        return [(words(each.value.lstrip("@-:+!")), each.place) for each in self.all("ExecStart") if each.value]


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
