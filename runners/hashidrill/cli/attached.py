"""What commands do with `--attach`: look at the datacenter, and resolve experiments over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hashidrill.cli.common import warn_of_deprecated
from hashidrill.errors import UsageError
from hashidrill.experiment.library import find_experiment
from hashidrill.experiment.loader import resolve
from hashidrill.experiment.variants import variant_of

if TYPE_CHECKING:
    from hashidrill.engine.launch_attached import Attached
    from hashidrill.experiment.resolved import ResolvedExperiment


AttachTo = Annotated[
    Path | None,
    typer.Option("--attach", metavar="FILE", help="Use this existing datacenter (a file of `kind: Attach`)."),
]


def attached(path: Path, *said: str) -> Attached:
    """The existing datacenter that a file names, as it is now. Raises ExperimentError, AttachError."""
    from hashidrill.engine.launch_attached import Attached  # noqa: PLC0415 - httpx, and what most runs do not need

    return Attached.read(path, *said)


def for_run(path: Path | None, *, plan: bool, breaks_quorum: bool) -> Attached | None:
    """None for a run in a datacenter of our own. Raises UsageError for options that only an existing one has."""
    if path is not None:
        return attached(path, *(["breaks-quorum"] if breaks_quorum else []))
    if plan or breaks_quorum:
        raise UsageError("--plan and --breaks-quorum are about an existing datacenter: name it with --attach FILE")
    return None


def resolve_all(experiments: list[str], there: Attached | None, variant: str | None) -> list[ResolvedExperiment]:
    """All of them, before any runs. Raises ExperimentError, UsageError, AttachError."""
    paths = [find_experiment(name) for name in experiments]
    resolved = [resolve(path) if there is None else there.over(path) for path in paths]
    resolved = _selected(resolved, variant, attached=there is not None)
    for each in resolved:
        if each.document is not None:
            warn_of_deprecated(each.document)
    return resolved


def _selected(resolved: list[ResolvedExperiment], variant: str | None, *, attached: bool) -> list[ResolvedExperiment]:
    """The variant of each that is to run, if one is. Raises UsageError, and UnknownNameError for one that is not."""
    if attached and (varying := [each for each in resolved if each.experiment.variants]):
        raise UsageError(
            f"{varying[0].path}: its variants differ in the datacenter or its traffic, and --attach changes no"
            " datacenter: run it without --attach"
        )
    return resolved if variant is None else [variant_of(each, variant) for each in resolved]
