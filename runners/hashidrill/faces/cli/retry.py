"""retry: does a command retry, and does it retry well?"""

import asyncio
import contextlib
import hashlib
import os
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hashidrill.clients.retry.battery import Settings, run_battery
from hashidrill.clients.retry.private_consul import private_consul
from hashidrill.clients.retry.surroundings import Authority
from hashidrill.clients.retry.verdicts import Judged, overall
from hashidrill.core.errors import UsageError
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.protocols.registry import near
from hashidrill.core.tap import catalogue
from hashidrill.core.tap.command import unrunnable
from hashidrill.core.tap.upstream import HttpUpstream, Scripted, Upstream
from hashidrill.core.util.durations import timed, usual_s
from hashidrill.core.util.redaction import Redactor
from hashidrill.faces.cli.common import Json, console, duration_s, examples, on_interrupt, print_json
from hashidrill.lab.provision import binaries
from hashidrill.reports.live.progress import Progress

CONSUL_VERSION = "1.22.2"


def register(app: typer.Typer) -> None:
    how = {"allow_interspersed_args": False}  # words after the command belong to it
    app.command(
        context_settings=how,
        epilog=examples("retry -- curl -s --retry 3 {url}/v1/kv/x", "retry --json -- python my_client.py"),
    )(retry)


def retry(  # noqa: PLR0917 - typer reads options from parameters
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="Must do one operation and exit.")],
    timeout: Annotated[str, typer.Option(help="Your deadline for one operation.", metavar="DURATION")] = "30s",
    attempts: Annotated[int, typer.Option(help="More retries count as unbounded.", min=0)] = catalogue.MOST_RETRIES,
    jitter_clients: Annotated[
        int, typer.Option(help="Number of clients for measuring jitter.", min=4)
    ] = catalogue.JITTER_CLIENTS,
    fault: Annotated[list[str] | None, typer.Option(help="Test only this fault. Repeatable.", metavar="FAULT")] = None,
    upstream: Annotated[str, typer.Option(help="Your own server instead of a private Consul.", metavar="URL")] = "",
    no_upstream: Annotated[bool, typer.Option("--no-upstream", help="Answer from a script, without a server.")] = False,
    tls: Annotated[
        bool, typer.Option("--tls", help="Listen with TLS; environment variables name the CA to the command.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Fail the requests of a command, and judge how it retries.

    The command runs behind a tap that fails its requests in many ways. The tap's address replaces {url}, and is set in
    CONSUL_HTTP_ADDR, NOMAD_ADDR, VAULT_ADDR and http_proxy. The command runs about 70 times.

    Exit codes: 0 all PASS, 1 a FAIL, 2 bad usage, 3 INVALID, 130 interrupted.
    """
    settings = Settings(_deadline_s(timeout), attempts, jitter_clients, _known(fault or []))
    if upstream and no_upstream:
        raise UsageError("--upstream and --no-upstream exclude each other: give only one")
    if command and (reason := unrunnable(command[0])):  # before anything is built or started for it
        raise UsageError(f"{command[0]}: {reason}")
    say = console(stderr=True)
    with contextlib.ExitStack() as stack:
        if tls:
            authority = stack.enter_context(Authority())
            trusting = {**settings.environment, **authority.environment()}
            settings = replace(settings, certificate=authority.certificate, environment=trusting)
        what = f"retry {hashlib.sha256(repr((command, timeout, jitter_clients, fault)).encode()).hexdigest()[:16]}"
        private = "" if upstream or no_upstream else ", and so is the private Consul"
        ended = f"the command's processes and the tap are ended{private}; kept: nothing"
        stack.enter_context(on_interrupt(lambda: f"{ended}; again: the same command"))
        with Progress(say, usual_s(what)) as progress, timed(what):
            judged = asyncio.run(_judge(command, settings, upstream, progress.item, scripted=no_upstream))
    shown, judged = _redacted(command, judged)
    if as_json:
        print_json({"command": list(shown), "verdicts": [one.as_json() for one in judged]})
    else:
        print_card(console(), shown, judged)
    raise typer.Exit(overall(judged).exit_code)


def _redacted(command: list[str], judged: list[Judged]) -> tuple[list[str], list[Judged]]:
    """Removes the tokens of the command line and the environment from both: CI logs show the card."""
    redactor = Redactor()
    redactor.learn_environment(os.environ)
    shown = redactor.clean(command)
    return shown, [replace(one, text=redactor.text(one.text), evidence=redactor.data(one.evidence)) for one in judged]


async def _judge(
    command: list[str], settings: Settings, url: str, say: Callable[[str], None], *, scripted: bool
) -> list[Judged]:
    async with _upstream(url, say, scripted=scripted) as (upstream, private):
        return await run_battery(command, upstream, settings, may_seed=private, say=say)


@contextlib.asynccontextmanager
async def _upstream(url: str, say: Callable[[str], None], *, scripted: bool) -> AsyncIterator[tuple[Upstream, bool]]:
    """The tap's upstream, and whether it is private: keys may only be written to a private one."""
    if scripted:
        yield Scripted(), False
    elif url:
        yield HttpUpstream(url), False
    else:
        # building takes minutes, and Ctrl-C has to end it
        binary = await anyio.to_thread.run_sync(
            lambda: binaries.ensure("consul", CONSUL_VERSION, progress=say),
            abandon_on_cancel=True,
        )
        async with private_consul(binary.path) as address:
            yield HttpUpstream(address), True


def _deadline_s(text: str) -> float:
    deadline_s = duration_s("--timeout", text)
    if not deadline_s:
        raise UsageError("--timeout: the deadline must be above zero; write a duration like 10s")
    return deadline_s


def _known(faults: list[str]) -> tuple[str, ...]:
    for fault in faults:
        if fault not in catalogue.FAULTS:
            raise UsageError(f"--fault: there is no fault {fault!r}: {near(fault, catalogue.FAULTS)}")
    return tuple(faults)


_COLOURS = {Verdict.PASS: "bold green", Verdict.FAIL: "bold red", Verdict.INVALID: "yellow"}


def print_card(console: Console, command: Sequence[str], judged: Sequence[Judged]) -> None:
    console.print(Text(shlex.join(command), style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    order = [Verdict.FAIL, Verdict.INVALID, Verdict.PASS]
    for one in sorted(judged, key=lambda one: (not one.applies, order.index(one.verdict))):
        fix = f"\nfix: {one.fix or catalogue.FIXES[one.name]}" if one.verdict is Verdict.FAIL else ""
        style = _COLOURS[one.verdict] if one.applies else "dim"
        plain = "" if one.applies else "dim"
        table.add_row(Text(one.word, style), *(Text(word, plain) for word in (one.name, one.fault, one.text + fix)))
    console.print(table)
    counts = {verdict: sum(one.verdict is verdict and one.applies for one in judged) for verdict in Verdict}
    rest = sum(not one.applies for one in judged)
    verdict = overall(judged)
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    line = Text.assemble((verdict.value, _COLOURS[verdict]), f": {summary}")
    console.print(line + Text(f"; {rest} say nothing about this command" if rest else ""))
