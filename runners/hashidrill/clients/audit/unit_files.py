"""Reads systemd units and environment files: what is started how, with which environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hashidrill.clients.audit.command_lines import VARIABLE, Command, commands_in, expanded, words
from hashidrill.clients.audit.tree import Comment, MalformedError, Place

_SECTION = re.compile(r"\[(?P<name>[^\[\]]+)\]\s*$")


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

    def commands(self, variables: Mapping[str, str]) -> list[tuple[Command, Setting]]:
        """The commands of each `ExecStart=` that holds, without systemd's prefixes; `variables` are those it is given.

        Not expanded before a shell has split them: what is quoted for it is one word here.
        """
        return [
            (command, each)
            for each in self.all("ExecStart")
            for found in commands_in(words(each.value.lstrip("@-:+!")))
            for command in [replace(found, words=expanded(found.words, variables))]
        ]

    def with_dropins(self, dropins: Sequence[tuple[str, Unit]]) -> Unit:
        """What systemd makes of it and its drop-ins: (path, what it says), in the order in which they are read."""
        more = [replace(each, path=path) for path, dropin in dropins for each in dropin.settings]
        return replace(self, settings=(*self.settings, *more))


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
        elif found := VARIABLE.match(bare):
            variables.append(Variable(found["name"], found["value"].strip().strip("\"'"), Place(number, 1)))
    return variables, comments
