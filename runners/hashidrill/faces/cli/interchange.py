"""convert export and import: experiments for Chaos Mesh and Litmus, and of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.protocols.registry import near
from hashidrill.faces.cli.common import Json, examples, print_json, print_text

FORMATS = ("chaos-mesh", "litmus")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def register(app: typer.Typer) -> None:
    calls = ("convert export chaos-mesh network/split-from-clients > workflow.yaml", "convert export litmus mine.yaml")
    app.command(epilog=examples(*calls))(export)
    app.command("import", epilog=examples("convert import pod-kill.yaml --on consul:leader -o mine.yaml"))(import_)


def export(
    to: Annotated[str, typer.Argument(metavar="FORMAT", help="`chaos-mesh` or `litmus`.")],
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Name or path of an experiment.")],
    *,
    cron: Annotated[str, typer.Option(metavar="CRON", help="For chaos-mesh: repeat it as a Schedule.")] = "",
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="For litmus: where the application is; else default.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Print an experiment as an object of Chaos Mesh or Litmus.

    A Workflow or a ChaosEngine, for pods of the official charts.

    What that loses is said on standard error: always the proofs and the verdict. Starts nothing and asks nobody.
    """
    if to not in FORMATS:
        raise UsageError(f"there is no format {to!r}: {near(to, FORMATS)}")
    if cron and to != "chaos-mesh":
        raise UsageError("--cron is for chaos-mesh: Litmus has schedules of its own, around an engine")
    if namespace and to != "litmus":
        raise UsageError("--namespace is for litmus: `kubectl -n NAMESPACE` says where a Workflow is")
    if namespace and not _LABEL.fullmatch(namespace):
        raise UsageError(f"--namespace {namespace!r}: lower case, digits and hyphens, at most 63 of them")
    from hashidrill.core.experiment.library import find_experiment  # noqa: PLC0415 - as above
    from hashidrill.core.experiment.loader import load_experiment  # noqa: PLC0415 - as above
    from hashidrill.gamedays.schedules.cron import cron as read_cron  # noqa: PLC0415 - as above
    from hashidrill.kubernetes.interchange import to_chaos_mesh, to_litmus  # noqa: PLC0415 - for this command alone

    found = load_experiment(find_experiment(experiment))
    name = found.metadata.name
    if to == "chaos-mesh":
        manifest, lost = to_chaos_mesh.workflow(name, found.method, str(read_cron(cron)) if cron else "")
    else:
        manifest, lost = to_litmus.engine(name, found.method, namespace or "default")
    print_json(manifest) if as_json else _print(manifest)
    _say_lost(lost)


def import_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Objects of Chaos Mesh or ChaosEngines of Litmus; `-`: standard input."),
    ],
    *,
    on: Annotated[str, typer.Option(metavar="SELECTOR", help="Whom it breaks, like consul:leader.")] = "",
    from_: Annotated[
        str, typer.Option("--from", metavar="SIDE", help="The other side of network faults, like consul:servers.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there. Never overwrites a file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print an experiment made of objects of Chaos Mesh or Litmus.

    Its faults are proven, as those of any experiment.

    Each key of the file is translated, said on standard error to be lost, or refused with its place. Where the labels
    are not those of the official charts of Consul or Vault, --on says whom it breaks.
    """
    from hashidrill.kubernetes.interchange.reading import imported  # noqa: PLC0415 - for this command alone

    name = "standard input" if str(file) == "-" else str(file)
    try:
        text = sys.stdin.buffer.read().decode() if str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{name}: cannot be read: {why}") from None
    made = imported(name, text, on, from_)
    data = _checked(name, made.text)
    if output is not None:
        _write(output, made.text)
    if as_json:
        print_json(data)
    elif output is None:
        print_text(made.text)
    _say_lost(made.lost)


def _checked(file: str, text: str) -> Any:
    from hashidrill.core.experiment.documents import Document  # noqa: PLC0415 - for this command alone
    from hashidrill.core.experiment.loader import load_document  # noqa: PLC0415 - as above

    document = Document("the experiment", text)
    try:
        load_document(document, near_to=Path(file))
    except HashidrillError as error:
        raise UsageError(f"{file}: it cannot be an experiment as it is:\n{error}") from None
    return document.data


def _write(output: Path, text: str) -> None:
    if output.suffix not in {".yaml", ".yml"}:
        raise UsageError(f"{output}: an experiment is a .yaml file")
    try:
        with output.open("x") as written:
            written.write(text)
    except FileExistsError:
        raise UsageError(f"{output}: already exists; choose another name") from None
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from None


def _print(manifest: Any) -> None:
    from ruamel.yaml import YAML  # noqa: PLC0415 - for this command alone

    yaml = YAML()
    yaml.default_flow_style, yaml.width = False, 120
    yaml.dump(manifest, sys.stdout)


def _say_lost(lost: Any) -> None:
    for text in lost:
        print_text(f"lost: {text}\n", stderr=True)
