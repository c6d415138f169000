"""convert export and import: experiments to and from Chaos Mesh, Litmus and Chaos Toolkit; profiles for speedscope."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.protocols.registry import near
from hashidrill.faces.cli.common import Json, examples, find_recording, print_json, print_text

FORMATS = ("chaos-mesh", "chaos-toolkit", "litmus", "speedscope")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def register(app: typer.Typer) -> None:
    calls = (
        "convert export chaos-mesh network/split-from-clients > workflow.yaml",
        "convert export litmus mine.yaml",
        "convert export chaos-toolkit raft/slow-leader-disk --json > experiment.json",
        "convert export speedscope last > profiles.speedscope.json",
    )
    app.command(epilog=examples(*calls))(export)
    app.command("import", epilog=examples("convert import pod-kill.yaml --on consul:leader -o mine.yaml"))(import_)


def export(
    to: Annotated[
        str, typer.Argument(metavar="FORMAT", help="`chaos-mesh`, `chaos-toolkit`, `litmus` or `speedscope`.")
    ],
    experiment: Annotated[
        str,
        typer.Argument(metavar="EXPERIMENT", help="Name or path of an experiment; for speedscope, of a recording."),
    ],
    *,
    cron: Annotated[str, typer.Option(metavar="CRON", help="For chaos-mesh: repeat it as a Schedule.")] = "",
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="For litmus: the application's namespace (default: default).")
    ] = "",
    as_json: Json = False,
) -> None:
    """Print an experiment, or a recording's profiles, for another tool.

    Chaos Mesh gets a Workflow, Litmus a ChaosEngine. Standard error names what is lost: always proofs and verdict.

    For Chaos Toolkit, prints an experiment whose action runs hashidrill and whose hypothesis is the verdict: `chaos
    run` exits with 0 only after a PASS, and its journal has the proofs.

    For speedscope, prints the Go profiles of a recording as one JSON file for https://www.speedscope.app.
    """
    if to not in FORMATS:
        raise UsageError(f"there is no format {to!r}: {near(to, FORMATS)}")
    if cron and to != "chaos-mesh":
        raise UsageError("--cron is for chaos-mesh: Litmus has its own schedules, which contain an engine")
    if namespace and to != "litmus":
        raise UsageError("--namespace is for litmus: `kubectl -n NAMESPACE` says where a Workflow is")
    if namespace and not _LABEL.fullmatch(namespace):
        raise UsageError(f"--namespace {namespace!r}: lower case, digits and hyphens, at most 63 of them")
    if to == "speedscope":
        _speedscope(experiment)
        return
    from hashidrill.core.experiment.library import find_experiment  # noqa: PLC0415 - as above
    from hashidrill.core.experiment.loader import load_experiment  # noqa: PLC0415 - as above
    from hashidrill.gamedays.schedules.jobs import cron as read_cron  # noqa: PLC0415 - as above
    from hashidrill.kubernetes.interchange import (  # noqa: PLC0415 - for this command alone
        to_chaos_mesh,
        to_chaos_toolkit,
        to_litmus,
    )
    from hashidrill.kubernetes.interchange.document import as_yaml  # noqa: PLC0415 - as above

    found = load_experiment(find_experiment(experiment))
    name = found.metadata.name
    if to == "chaos-mesh":
        manifest, lost = to_chaos_mesh.workflow(name, found.method, str(read_cron(cron)) if cron else "")
    elif to == "chaos-toolkit":
        manifest, lost = to_chaos_toolkit.experiment(found.metadata, experiment), []
        _say("needed", [to_chaos_toolkit.NEEDED])
    else:
        manifest, lost = to_litmus.engine(name, found.method, namespace or "default")
    print_json(manifest) if as_json else print_text(as_yaml(manifest))
    _say("lost", lost)


def _speedscope(recording: str) -> None:
    """Raises UsageError for a recording without a readable profile, and RecordingError."""
    from hashidrill.core.recording.reader import Recording  # noqa: PLC0415 - as above
    from hashidrill.lab.runs.launch import RUNS_DIR  # noqa: PLC0415 - as above
    from hashidrill.reports.flame import speedscope  # noqa: PLC0415 - as above

    path = find_recording(recording, RUNS_DIR)
    document, lost = speedscope(Recording(path))
    if not document["profiles"]:
        raise UsageError(f"{path}: it has no profiles: {'; '.join(lost[:3]) or 'the run took none'}")
    print_json(document)
    _say("lost", lost)


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Chaos Mesh objects, Litmus ChaosEngines or a Chaos Toolkit experiment; `-`: standard input.",
        ),
    ],
    *,
    on: Annotated[str, typer.Option(metavar="SELECTOR", help="The agents it breaks, like consul:leader.")] = "",
    from_: Annotated[
        str, typer.Option("--from", metavar="SIDE", help="The other side of network faults, like consul:servers.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there. Never overwrites a file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert an experiment of another tool and print the result.

    FILE holds objects of Chaos Mesh, engines of Litmus, or an experiment of Chaos Toolkit.

    Each key of the file is translated, reported as lost, or refused with its place. If the labels differ from the
    official charts' labels, --on says which agents to break. An action of Chaos Toolkit without an equivalent becomes a
    placeholder, which `validate` and `run` refuse.
    """
    from hashidrill.core.experiment.documents import Document  # noqa: PLC0415 - for this command alone
    from hashidrill.kubernetes.interchange.reading import imported  # noqa: PLC0415 - as above

    name = "standard input" if str(file) == "-" else str(file)
    try:
        text = sys.stdin.buffer.read().decode() if str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"{name}: cannot be read: {why}") from None
    made = imported(name, text, on, from_)
    written = _checked(name, made)
    if output is not None:
        _write(output, written)
    if as_json:
        print_json(Document("the experiment", written).data)
    elif output is None:
        print_text(written)
    _say("lost", made.lost)
    _say("to fill in", made.to_fill)


def _checked(file: str, made: Any) -> str:
    """The text of the experiment, or of the hashidrill experiment that the file runs.

    Raises UsageError if the result is not a valid experiment, or if that hashidrill experiment is missing or invalid.
    """
    from hashidrill.core.experiment.documents import Document  # noqa: PLC0415 - for this command alone
    from hashidrill.core.experiment.library import find_experiment  # noqa: PLC0415 - as above
    from hashidrill.core.experiment.loader import load_document, load_experiment  # noqa: PLC0415 - as above

    own = made.reading.own
    try:
        if own:
            load_experiment(path := find_experiment(own))
            ours = Document(str(path), path.read_text("utf-8"))
            if "extends" in ours.data:
                _say("needed", [f"{ours.data['extends']}, the file that it extends, next to {path}"])
            return ours.text
        load_document(Document("the experiment", made.filled), near_to=Path(file))
    except HashidrillError as error:
        what = f"it runs {own}" if own else "the result is not a valid experiment"
        raise UsageError(f"{file}: {what}:\n{error}") from None
    return str(made.text)


def _write(output: Path, text: str) -> None:
    from hashidrill.faces.cli.init import write_new  # noqa: PLC0415 - for this command alone

    if output.suffix not in {".yaml", ".yml"}:
        raise UsageError(f"{output}: an experiment is a .yaml file")
    if not write_new(output, text):
        raise UsageError(f"{output}: already exists; choose another name")


def _say(what: str, texts: Iterable[str]) -> None:
    for text in texts:
        print_text(f"{what}: {text}\n", stderr=True)
