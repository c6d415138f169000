"""audit: checks whether retry logic is configured, and whether it is sane."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hashidrill.clients.audit.audited import Severity
from hashidrill.clients.audit.kinds import KINDS
from hashidrill.clients.audit.report import FORMATS, as_data, json_text, rule_data, summary, write_text
from hashidrill.clients.audit.report import explain as explain_rule
from hashidrill.clients.audit.run import RULES, Audit
from hashidrill.clients.audit.run import audit as run_audit
from hashidrill.core.errors import UsageError
from hashidrill.core.protocols import registry
from hashidrill.faces.cli.common import FailOn, Json, console, examples, plain_console, print_json, print_text
from hashidrill.reports.live import display as live

_FOUND, _UNREADABLE = 1, 2


class Format(StrEnum):
    """`--format`."""

    text = "text"
    sarif = "sarif"
    junit = "junit"


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "audit consul/ nomad/jobs/", "audit . --format sarif --output audit.sarif", "audit --explain HD101"
        )
    )(audit)


def audit(  # noqa: PLR0917 - each is an option of the command line
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH", help="Files and directories.")] = None,
    output_format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.text,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Lowest severity that causes exit code 1.")] = FailOn.warning,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="ID=REASON", help="Ignore a rule, with a reason. Repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Skip files or directories. Repeatable.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help=f"Kind of the files (default: recognised by content): {', '.join(KINDS)}.")
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List all rules.")] = False,
    explain: Annotated[str | None, typer.Option(metavar="ID", help="Show one rule.")] = None,
    as_json: Json = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print which files were read and which were not.")
    ] = False,
) -> None:
    """Find missing or harmful retry logic in configuration. Starts nothing.

    Reads agent configuration, Nomad jobs, Consul config entries, consul-template, systemd units, environment files, and
    Python that calls Consul, Nomad or Vault. Exit codes: 0 nothing found, 1 findings, 2 bad usage or a file that cannot
    be read (the other files are still judged).
    """
    if rules or explain is not None:
        _show_rules(explain, as_json=as_json)
        return
    if as_json and output_format is not Format.text:
        raise UsageError(f"--json and --format {output_format} exclude each other: use one")
    if not paths:
        raise UsageError("no files given: name files or directories, as in `hashidrill audit .`")
    if kind is not None and kind not in KINDS:
        raise UsageError(f"there is no kind {kind!r}: {registry.near(kind, KINDS)}")
    reasons = dict(_ignored(each) for each in ignore or [])
    result = run_audit(paths, kind=kind, exclude=exclude or [], ignore=reasons)
    _write(result, None if as_json else output_format, output)
    _tell(result, reasons, verbose=verbose)
    raise typer.Exit(_exit_code(result, fail_on))


def _show_rules(rule_id: str | None, *, as_json: bool) -> None:
    say = console()
    if as_json:
        shown = RULES.values() if rule_id is None else [RULES[_known(rule_id)]]
        print_json([rule_data(rule) for rule in shown])
        return
    if rule_id is not None:
        explain_rule(RULES[_known(rule_id)], say)
        return
    for rule in RULES.values():
        live.say(say, f"{rule.id}  {rule.severity.word:<8} {rule.name}")


def _known(rule_id: str) -> str:
    if rule_id.upper() not in RULES:
        raise UsageError(f"there is no rule {rule_id!r}: {registry.near(rule_id.upper(), RULES)}")
    return rule_id.upper()


def _ignored(text: str) -> tuple[str, str]:
    rule_id, _, reason = text.partition("=")
    if not reason.strip():
        raise UsageError(f"--ignore {text}: say why, as in --ignore 'HD101=a single node on purpose'")
    return _known(rule_id.strip()), reason.strip()


def _write(result: Audit, output_format: Format | None, output: Path | None) -> None:
    """Writes the result; without a format, as JSON."""
    try:
        if output_format is None:
            print_json(as_data(result)) if output is None else output.write_text(json_text(as_data(result)), "utf-8")
        elif output_format is not Format.text:
            text = FORMATS[output_format.value](result)
            print_text(text) if output is None else output.write_text(text, encoding="utf-8")
        elif output is None:
            write_text(result, console())
        else:
            with output.open("w", encoding="utf-8", errors="backslashreplace") as file:
                write_text(result, plain_console(file=file, width=120))
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {(error.strerror or '').lower()}") from None


def _tell(result: Audit, reasons: dict[str, str], *, verbose: bool) -> None:
    """Texts that are not findings go to standard error, so that standard output stays one document."""
    for problem in result.problems:
        print_text(f"{problem}\n", stderr=True)
    used = {finding.rule_id for finding, _ in result.suppressed}
    for rule_id in sorted(reasons.keys() - used):
        print_text(f"--ignore {rule_id}: this rule finds nothing here\n", stderr=True)
    if not result.files and not result.problems:
        print_text("nothing was checked: no file has a known kind (-v lists the skipped files)\n", stderr=True)
    if verbose:
        for path, taken_for in result.files.items():
            print_text(f"{path}: judged as {taken_for}\n", stderr=True)
        for unread in result.unread:
            print_text(f"{unread.path}: not read: a {unread.what}\n", stderr=True)
        for skipped in result.skipped:
            print_text(f"{skipped}\n", stderr=True)
        print_text(f"{summary(result)}\n", stderr=True)


def _exit_code(result: Audit, fail_on: FailOn) -> int:
    if result.problems:
        return _UNREADABLE
    if fail_on is not FailOn.never and result.at_least(Severity[fail_on.name.upper()]):
        return _FOUND
    return 0
