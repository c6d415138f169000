"""The files that an audit judges together, and their agents: what one process would read as its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hashidrill.audit.jobs import Group, Job, jobs_of
from hashidrill.audit.kinds import entries_of
from hashidrill.audit.sources import Document
from hashidrill.audit.tree import Mapping, Place
from hashidrill.audit.unit_files import Unit


@dataclass(frozen=True)
class Agent:
    """One agent's configuration: one file, or several of a directory, which Consul, Nomad and Vault merge."""

    documents: tuple[Document, ...]

    @cached_property
    def merged(self) -> Mapping:
        """All that it is told, as one. A later file wins, as with Consul, which reads them in lexical order."""
        return Mapping(tuple(entry for document in self.documents for entry in document.body.entries), Place(1, 1))

    def bodies(self, *names: str) -> list[tuple[Document, Mapping]]:
        """Blocks with one of these names, each with the file that it stands in."""
        return [(document, body) for document in self.documents for body in document.body.blocks(*names)]

    def where(self, *names: str) -> tuple[Document, Place]:
        """Where the first of these names is said; the start of the first file when none is."""
        for name in names:
            for document in reversed(self.documents):
                if (entry := document.body.find(name)) is not None:
                    return document, entry.place
        first = self.documents[0].body.entries
        return self.documents[0], first[0].place if first else Place(1, 1)


@dataclass(frozen=True)
class Started:
    """A command of a systemd unit, and the file and place that say it: the unit's own, or those of a drop-in."""

    unit: Unit
    document: Document
    words: list[str]
    place: Place


@dataclass(frozen=True)
class Audited:
    """All documents of one audit."""

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
        """All of Consul's config entries, those that an agent bootstraps included."""
        found = [*self.of("consul-entry"), *self.of("consul-agent")]
        return [(document, entry) for document in found for entry in entries_of(document.value)]

    @cached_property
    def jobs(self) -> list[Job]:
        return jobs_of(self.of("nomad-job"))

    @cached_property
    def groups(self) -> list[Group]:
        return [group for job in self.jobs for group in job.groups()]

    def _agents(self, kind: str) -> list[Agent]:
        """The files of a directory are one agent, unless several of them set data_dir: then each of those is one.

        An agent has one data_dir, so two of them are two agents; the other files are then taken for parts of each.
        """
        folders: dict[Path, list[Document]] = {}
        for document in self.of(kind):
            folders.setdefault(Path(document.path).parent, []).append(document)
        agents = []
        for documents in folders.values():
            heads = [document for document in documents if document.body.has("data_dir")]
            parts = [document for document in documents if document not in heads]
            groups = [(head, *parts) for head in heads] if len(heads) > 1 else [tuple(documents)]
            agents += [Agent(group) for group in groups]
        return agents

    def command_lines(self) -> Iterator[Started]:
        """What systemd units start."""
        for document in self.of("systemd-unit"):
            if document.unit is not None:
                for words, said in document.unit.commands():
                    yield Started(document.unit, self.at(said.path, document), words, said.place)

    def at(self, path: str, otherwise: Document) -> Document:
        """The document with this path, or the other one where it is empty."""
        return next((document for document in self.documents if document.path == path), otherwise)

    def all_commands(self) -> Iterator[tuple[Document, list[str], Place]]:
        """What systemd units and the tasks of Nomad's jobs start."""
        yield from ((each.document, each.words, each.place) for each in self.command_lines())
        for group in self.groups:
            yield from ((group.job.document, words, place) for words, place in group.commands())

    def flags_of(self, agent: Agent) -> list[str]:
        """The command line of the unit that starts this agent: one that names its directory or one of its files.

        Compared by the last part of the path, because a unit names the path on the host.
        """
        names = {Path(document.path).name for document in agent.documents}
        names.add(Path(agent.documents[0].path).resolve().parent.name)
        for words in (each.words for each in self.command_lines()):
            given = [word.rpartition("=")[2] for word in words]
            if "agent" in words and any(Path(word).name in names for word in given if "/" in word):
                return words
        return []

    def flags_unknown(self, agent: Agent) -> bool:
        """Whether its unit passes on a variable, which may hold any flag."""
        return any(word.startswith("$") for word in self.flags_of(agent))
