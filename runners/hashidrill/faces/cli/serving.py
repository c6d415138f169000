"""--serve, --metrics and OpenTelemetry: the options by which commands publish their runs."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hashidrill.core.errors import UsageError
from hashidrill.core.util.files import write_whole
from hashidrill.faces.cli.common import print_text
from hashidrill.reports.live.display import say as say_line
from hashidrill.reports.text import plain_line

if TYPE_CHECKING:
    from rich.console import Console

    from hashidrill.core.protocols.events import Audience, Bus, Subscriber
    from hashidrill.gamedays.warroom.room import Room

Serve = Annotated[bool, typer.Option("--serve", help="Serve a live page of the run on 127.0.0.1.")]
Port = Annotated[
    int, typer.Option("--port", metavar="PORT", help="With --serve: the port of the page; 0 is any free port.")
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="PORT|FILE",
        help="Expose the run to Prometheus: on a port of 127.0.0.1, or in a .prom file for node_exporter's textfile"
        " collector; the file is kept.",
    ),
]

PeopleAt = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="With --serve: an IPv4 address of this machine, on which phones and other machines reach people's pages."
        " Plain HTTP; the lead's page stays on 127.0.0.1.",
    ),
]
NOTES_NAME = "notes.md"


@contextlib.contextmanager
def war_room(serve: bool, port: int, say: Console, *, people_at: str = "") -> Iterator[Room | None]:
    """The war room of a command, whose addresses are printed; None without --serve. Raises UsageError."""
    if not serve:
        for given, option in ((port, "--port"), (people_at, "--people-at")):
            if given:
                raise UsageError(f"{option} says where --serve serves its page: use it with --serve")
        yield None
        return
    from hashidrill.gamedays.warroom.serving import serve as serving  # noqa: PLC0415 - a web server, which most runs do not need

    if people_at:
        check_address("--people-at", people_at)
    with serving(port, elsewhere=people_at) as room:
        say_line(say, f"page for the lead      {room.lead_url}")
        say_line(say, f"page for watchers      {room.watch_url}")
        yield room


def check_address(option: str, address: str) -> None:
    """Raises UsageError for anything but one IPv4 address."""
    with contextlib.suppress(ValueError):
        if not ipaddress.IPv4Address(address).is_unspecified:
            return
    raise UsageError(f"{option} {address}: name one IPv4 address of this machine; the page is only served on that one")


@contextlib.contextmanager
def elsewhere(metrics: str | None, say: Console) -> Iterator[Sequence[Subscriber]]:
    """What runs report to: Prometheus (--metrics), OpenTelemetry (OTEL_TRACES_EXPORTER=otlp), Grafana
    (HASHIDRILL_GRAFANA_URL).

    Raises UsageError.
    """
    with contextlib.ExitStack() as stack:
        subscribers: list[Subscriber] = []
        if metrics is not None:
            from hashidrill.reports.live.metrics import exposed  # noqa: PLC0415 - an extra, which most runs do not need

            subscribers.append(stack.enter_context(exposed(metrics)))
        if (
            os.environ.get("OTEL_TRACES_EXPORTER") == "otlp"
            and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
        ):
            from hashidrill.reports.live.traces import sent  # noqa: PLC0415 - as above

            subscribers.append(stack.enter_context(sent(lambda line: say_line(say, line))))
        if os.environ.get("HASHIDRILL_GRAFANA_URL"):
            from hashidrill.reports.live.annotations import annotated  # noqa: PLC0415 - as above

            subscribers.append(stack.enter_context(annotated(lambda line: say_line(say, line))))
        yield subscribers


@dataclass(frozen=True)
class Onlookers:
    """What gets a run's events besides the terminal: a writer of JSON lines, a page, and others."""

    lines: tuple[Subscriber, Audience] | None = None
    room: Room | None = None
    others: Sequence[Subscriber] = ()

    def join(self, events: Bus, title: str) -> None:
        """Subscribes all of them to the events of a run that begins."""
        if self.lines is not None:
            events.subscribe(*self.lines)
        if self.room is not None:
            self.room.begins(title)
            events.subscribe(self.room.tell)
        for other in self.others:
            events.subscribe(other)

    def keep_notes(self, recording: Path) -> None:
        """Writes the scribe's notes from the page into the recording's folder, once the run has ended."""
        notes = [] if self.room is None else self.room.take_notes()
        if not notes:
            return
        path = recording / NOTES_NAME
        try:
            write_whole(path, "".join(f"- {plain_line(line)}\n" for line in notes))
        except OSError as error:
            print_text(f"hashidrill: warning: {path}: the notes cannot be kept: {error.strerror}\n", stderr=True)


NOBODY = Onlookers()
