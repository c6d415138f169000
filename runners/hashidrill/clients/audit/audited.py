"""The files that an audit judges together, grouped by agent: the files that one process would read as its
configuration.

A rule: answers whether retry is configured, and sanely, and why. rules.toml has its texts.
"""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from hashidrill.clients.audit.command_lines import Command, Unit, commands_in, of_image
from hashidrill.clients.audit.kinds import entries_of
from hashidrill.clients.audit.sources import Document
from hashidrill.clients.audit.tree import Entry, Mapping, Place, texts_within


class Severity(enum.IntEnum):
    """ERROR: the configured setting cannot serve its purpose. WARNING: users will notice a fault that passes by itself.
    INFO: a default that you should know, and may well keep.
    """

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Hit:
    """A rule's match: place and sentence. `muted`: why it is not a finding after all; "" if it is one."""

    document: Document
    place: Place
    message: str
    muted: str = ""


Check = Callable[["Audited"], Iterator[Hit]]


@dataclass(frozen=True)
class Rule:
    """`source` says where the claim comes from; `verified` names the live test that proves it on the real program."""

    id: str
    name: str
    severity: Severity
    what: str
    why: str
    default: str
    fix: str
    link: str
    source: str
    check: Check
    verified: str | None = None


@dataclass(frozen=True, order=True)
class Finding:
    """A finding that is not suppressed. Sorted by file and line."""

    path: str
    place: Place
    rule_id: str
    message: str
    severity: Severity


REGISTERED: dict[str, Rule] = {}
"""The rules registered so far; `hashidrill.clients.audit.run` imports all modules with rules."""

_WORDS = tomllib.loads((Path(__file__).parent / "rules.toml").read_text(encoding="utf-8"))


def rule(rule_id: str) -> Callable[[Check], Check]:
    """A decorator that registers a check for the rule with this id in rules.toml."""

    def register(check: Check) -> Check:
        words = _WORDS[rule_id]
        REGISTERED[rule_id] = Rule(rule_id, **words | {"severity": Severity[words["severity"].upper()]}, check=check)
        return check

    return register


_File = TypeVar("_File")


HEAD = "data_dir"
"""A Consul or Nomad agent sets this key once: files that each set it belong to different agents."""


def agents_in(files: Sequence[_File], body_of: Callable[[_File], Mapping]) -> list[list[_File]]:
    """The files of a directory, grouped by the agent that reads them: one agent, unless several files set HEAD.

    In that case, each agent also gets all files without HEAD.
    """
    heads = [file for file in files if body_of(file).has(HEAD)]
    if len(heads) < 2:
        return [list(files)]
    return [[file for file in files if file is mine or file not in heads] for mine in heads]


@dataclass(frozen=True)
class Started:
    """A command of a systemd unit or a Nomad task, with the file (unit, drop-in or job) and place that set it."""

    unit: Unit | None
    document: Document
    command: Command
    place: Place

    @cached_property
    def settings(self) -> Mapping:
        return self.command.settings(self.place)


@dataclass(frozen=True)
class Agent:
    """One agent's configuration: its files, which Consul, Nomad and Vault merge, and its command-line flags.

    Either may be unknown here: the flags, if no unit is audited, or the files that a unit names.
    """

    documents: tuple[Document, ...]
    started: Started | None = None
    elsewhere: tuple[str, ...] = ()
    """Files and directories that its command line names but that are not audited."""

    @cached_property
    def layers(self) -> list[tuple[Document, Mapping]]:
        """The content of each file, and the flags. Later layers win: files in lexical order, then the flags."""
        flags = [] if self.started is None else [(self.started.document, self.started.settings)]
        return [*((document, document.body) for document in self.documents), *flags]

    @cached_property
    def merged(self) -> Mapping:
        """The merged settings of the agent."""
        return Mapping(tuple(entry for _, body in self.layers for entry in body.entries), Place(1, 1))

    @property
    def unseen(self) -> str:
        """Why the audited part of its configuration may be incomplete; "" if it is complete."""
        if self.started is None:
            return ""
        if self.started.command.unknown:
            return "its command line contains a variable, which may hold any flag"
        if self.elsewhere:
            return f"{self.elsewhere[0]}, which it also reads, is not among these files"
        within = self.started.command.container and not self.documents
        return "the configuration of its container is not among these files" if within else ""

    def bodies(self, *names: str) -> list[tuple[Document, Mapping]]:
        """Blocks with one of these names, each with its file."""
        return [(document, body) for document, layer in self.layers for body in layer.blocks(*names)]

    def find(self, *names: str) -> tuple[Document, Entry] | None:
        """The last entry with one of these names, and its place."""
        said = [(document, entry) for document, body in self.layers if (entry := body.find(*names)) is not None]
        return said[-1] if said else None

    def where(self, *names: str) -> tuple[Document, Place]:
        """The place of the first of these names that is set, preferably in a file; else the start of the first file."""
        for layer in (Agent(self.documents), self):
            for name in names:
                if (said := layer.find(name)) is not None:
                    return said[0], said[1].place
        document, body = self.layers[0]
        return document, body.entries[0].place if body.entries else Place(1, 1)


@dataclass(frozen=True)
class Audited:
    documents: tuple[Document, ...]

    def of(self, kind: str) -> list[Document]:
        return [document for document in self.documents if document.kind == kind]

    @cached_property
    def consul_agents(self) -> list[Agent]:
        return self._agents("consul-agent")

    @cached_property
    def nomad_agents(self) -> list[Agent]:
        return self._agents("nomad-agent")

    @cached_property
    def entries(self) -> list[tuple[Document, Mapping]]:
        """All of Consul's config entries, including those that an agent bootstraps."""
        found = [*self.of("consul-entry"), *self.of("consul-agent")]
        return [(document, entry) for document in found for entry in entries_of(document.value)]

    @cached_property
    def jobs(self) -> list[Job]:
        return [Job(each, body) for each in self.of("nomad-job") for body in each.body.blocks("job") or [each.body]]

    @cached_property
    def groups(self) -> list[Group]:
        return [group for job in self.jobs for group in job.groups()]

    def _agents(self, kind: str) -> list[Agent]:
        """The agents that audited commands start, and those of files that no such command names.

        A command with several directories or files is one agent; so is a command whose files are all missing here.
        """
        folders: dict[Path, list[Document]] = {}
        for document in self.of(kind):
            folders.setdefault(Path(document.path).parent, []).append(document)
        groups = [tuple(group) for each in folders.values() for group in agents_in(each, lambda file: file.body)]
        agents: list[Agent] = []
        taken: set[int] = set()
        for started in self.all_commands:
            if not started.command.starts(kind.removesuffix("-agent")):
                continue
            named = {path: _named(path, started.document, groups) for path in started.command.configured_by}
            elsewhere = tuple(path for path, found in named.items() if not found)
            its = {index for found in named.values() for index in found}
            one_for_each_host = any(len(found) > 1 for found in named.values())
            for indexes in [[index] for index in sorted(its)] if one_for_each_host else [sorted(its)]:
                documents = [document for index in indexes for document in groups[index]]
                once = tuple({document.path: document for document in documents}.values())
                agents.append(Agent(once, started, elsewhere))
            taken |= its
        return [*agents, *(Agent(group) for index, group in enumerate(groups) if index not in taken)]

    def command_lines(self) -> Iterator[Started]:
        """The commands that systemd units start, with the known variables of their environment."""
        files = self.of("environment")
        for document in self.of("systemd-unit"):
            if document.unit is None:
                continue
            variables = {each.name: each.value for each in document.unit.variables()}
            for setting in document.unit.all("EnvironmentFile"):
                for index in _named(setting.value.lstrip("-"), document, [(file,) for file in files]):
                    variables |= {each.name: each.value for each in files[index].variables}
            for command, said in document.unit.commands(variables):
                yield Started(document.unit, self.at(said.path, document), command, said.place)

    @cached_property
    def all_commands(self) -> list[Started]:
        """The commands that systemd units and the tasks of Nomad's jobs start."""
        tasks = [(group.job.document, *found) for group in self.groups for found in group.commands()]
        return [*self.command_lines(), *(Started(None, document, command, place) for document, command, place in tasks)]

    def at(self, path: str, otherwise: Document) -> Document:
        """The document with this path; `otherwise` if there is none."""
        return next((document for document in self.documents if document.path == path), otherwise)


def _named(path: str, by: Document, groups: Sequence[tuple[Document, ...]]) -> list[int]:
    """The groups of files that a path in a command line means on that command's host.

    Compares paths from their ends, because the audited files are at other paths; prefers the files nearest to `by`.
    """

    def alike(group: tuple[Document, ...]) -> tuple[int, int]:
        files = [Path(document.path).resolve() for document in group]
        same = max(_common(Path(path).parts[::-1], file.parts[::-1]) for file in (files[0].parent, *files))
        return same, _common(Path(by.path).resolve().parts, files[0].parts)

    scores = [alike(group) for group in groups]
    best = max(scores, default=(0, 0))
    return [index for index, score in enumerate(scores) if score == best and best[0]]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of leading items that both sequences share."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


@dataclass(frozen=True)
class Job:
    document: Document
    body: Mapping

    @property
    def type(self) -> str:
        """The job's type: `service` by default; "" if it is unknown before the run."""
        return (self.body.text("type") or "") if self.body.has("type") else "service"

    @property
    def name(self) -> str:
        return _name(self.body)

    def groups(self) -> list[Group]:
        """The job's groups; a task directly in the job is a separate group."""
        groups = [Group(self, body) for body in self.body.blocks("group", "TaskGroups")]
        return groups + [Group(self, Mapping((), task.place, task.labels), task) for task in self.body.blocks("task")]

    def calls_itself_again(self) -> bool:
        """Whether it runs periodically or on dispatch, so that another run follows a lost one."""
        return self.body.has("periodic", "parameterized", "ParameterizedJob")


@dataclass(frozen=True)
class Group:
    job: Job
    body: Mapping
    only_task: Mapping | None = None

    @property
    def name(self) -> str:
        return _name(self.body)

    def tasks(self) -> list[Mapping]:
        return [self.only_task] if self.only_task is not None else self.body.blocks("task", "Tasks")

    def policy(self, *names: str) -> Mapping | None:
        """The group's block merged over the job's block, like Nomad merges update, reschedule and restart."""
        return _over([*self.job.body.blocks(*names), *self.body.blocks(*names)])

    def restart(self, task: Mapping) -> Mapping | None:
        """A task's restart policy: the task's own block, merged over the group's."""
        names = ("restart", "RestartPolicy")
        return _over([*self.body.blocks(*names), *task.blocks(*names)])

    def commands(self) -> Iterator[tuple[Command, Place]]:
        """The commands of its tasks: `command` and `args`, or the command of an image."""
        for task in self.tasks():
            for config in task.blocks("config", "Config"):
                said = [config.find(name) for name in ("command", "args")]
                texts = [text for entry in said if entry is not None for text, _ in texts_within(entry.value)]
                if image := config.text("image"):
                    texts = of_image(image, texts, config.text("entrypoint") or "")
                for command in commands_in(texts):
                    split = " ".join(command.words).split() if command.words == texts else command.words
                    container = command.container or bool(image)
                    yield replace(command, words=split, container=container), config.place

    def services(self) -> list[Mapping]:
        names = ("service", "Services")
        return [*self.body.blocks(*names), *(body for task in self.tasks() for body in task.blocks(*names))]


def _over(bodies: Sequence[Mapping]) -> Mapping | None:
    entries = tuple(entry for body in bodies for entry in body.entries)
    return Mapping(entries, bodies[-1].place, bodies[-1].labels) if bodies else None


def _name(body: Mapping) -> str:
    return body.labels[0] if body.labels else body.text("Name", "ID") or "?"
