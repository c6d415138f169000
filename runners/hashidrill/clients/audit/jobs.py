"""A Nomad job, in HCL or as the API's JSON, with its groups and tasks and the policies that hold for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hashidrill.clients.audit.command_lines import Command, commands_in, of_image
from hashidrill.clients.audit.sources import Document
from hashidrill.clients.audit.tree import Mapping, Place, texts_within


@dataclass(frozen=True)
class Job:
    document: Document
    body: Mapping

    @property
    def type(self) -> str:
        """`service` unless it says otherwise; an empty string when that is not known before the run."""
        return (self.body.text("type") or "") if self.body.has("type") else "service"

    @property
    def name(self) -> str:
        return _name(self.body)

    def groups(self) -> list[Group]:
        """Its groups; a task directly in the job is a group of its own."""
        groups = [Group(self, body) for body in self.body.blocks("group", "TaskGroups")]
        return groups + [Group(self, Mapping((), task.place, task.labels), task) for task in self.body.blocks("task")]

    def calls_itself_again(self) -> bool:
        """Whether it runs periodically or on dispatch, so that a lost run is followed by another."""
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
        """A block of the group merged over that of the job, as Nomad does with update, reschedule and restart."""
        found = [*self.job.body.blocks(*names), *self.body.blocks(*names)]
        if not found:
            return None
        place = found[-1].place
        return Mapping(tuple(entry for body in found for entry in body.entries), place, found[-1].labels)

    def restart(self, task: Mapping) -> Mapping | None:
        """A task's restart policy: its own over the group's."""
        names = ("restart", "RestartPolicy")
        found = [*self.body.blocks(*names), *task.blocks(*names)]
        if not found:
            return None
        return Mapping(tuple(entry for body in found for entry in body.entries), found[-1].place)

    def commands(self) -> Iterator[tuple[Command, Place]]:
        """What the tasks start: command and args, or those of an image."""
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


def _name(body: Mapping) -> str:
    return body.labels[0] if body.labels else body.text("Name", "ID") or "?"


def jobs_of(documents: Iterable[Document]) -> list[Job]:
    """All jobs of these files."""
    return [Job(each, body) for each in documents for body in each.body.blocks("job") or [each.body]]
