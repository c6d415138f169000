"""Existing datacenters for commands (`--attach`, `datacenter.attach`): discovers them, and resolves experiments for
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.attached import inline
from hashidrill.core.experiment.library import find_experiment, read_experiment
from hashidrill.core.experiment.loader import resolve, variant_of

if TYPE_CHECKING:
    from hashidrill.core.experiment.resolved import ResolvedExperiment
    from hashidrill.staging.runs.launch_attached import Attached

BREAKS_QUORUM = "breaks-quorum"
"""The option's name in a target (hashidrill.staging.attach.interlocks)."""
AttachTo = Annotated[
    Path | None,
    typer.Option("--attach", metavar="FILE", help="Use this existing datacenter (a file of `kind: Attach`)."),
]


def attached(path: Path, *said: str, undoing: bool = False) -> Attached:
    """The current state of the datacenter that an Attach file names. Raises ExperimentError, AttachError.

    `undoing`: faults are only reverted there.
    """
    from hashidrill.staging.runs.launch_attached import Attached  # noqa: PLC0415 - httpx2 and more, which most runs do not need

    return Attached.read(path, *said, undoing=undoing)


def for_run(experiments: Sequence[str], path: Path | None, *, plan: bool, breaks_quorum: bool) -> list[Attached | None]:
    """The attached datacenter of each experiment; None for a local one. The option takes precedence over the file.

    Raises UsageError if an option needs an attached datacenter and there is none; ExperimentError; AttachError.
    """
    said = [BREAKS_QUORUM] if breaks_quorum else []
    if path is not None:
        return [attached(path, *said)] * len(experiments)
    paths = [find_experiment(name) for name in experiments]
    there = [attached(each, *said) if stands(each) else None for each in paths]
    if None in there and (plan or breaks_quorum):
        raise UsageError("--plan and --breaks-quorum are about an existing datacenter: name it with --attach FILE")
    return there


def stands(path: Path) -> bool:
    """Whether an experiment's own file names an existing datacenter. Raises ExperimentError."""
    return inline(read_experiment(path)) is not None


def resolve_all(
    experiments: Sequence[str], there: Sequence[Attached | None], variant: str | None
) -> list[ResolvedExperiment]:
    """Resolves all experiments before the first one runs. Raises ExperimentError, UsageError, AttachError."""
    paths = [find_experiment(name) for name in experiments]
    return [
        _selected(resolve(path) if place is None else place.over(path), variant, attached=place is not None)
        for path, place in zip(paths, there, strict=True)
    ]


def allow_all(resolved: Sequence[ResolvedExperiment], there: Sequence[Attached | None]) -> None:
    """Checks the interlocks for several experiments before the first begins, so that no later one is refused midway.

    A single one is checked at its start. Raises InterlockError, AttachError.
    """
    for each, place in zip(resolved, there, strict=True) if len(resolved) > 1 else ():
        if place is not None:
            place.allowed(each)


def _selected(resolved: ResolvedExperiment, variant: str | None, *, attached: bool) -> ResolvedExperiment:
    """The chosen variant, or the whole experiment. Raises UsageError, and UnknownNameError for an unknown variant."""
    if attached and resolved.experiment.variants:
        raise UsageError(
            f"{resolved.path}: its variants differ in the datacenter or its traffic, but --attach must not change a"
            " datacenter: run it without --attach"
        )
    return resolved if variant is None else variant_of(resolved, variant)
