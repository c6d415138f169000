"""The sources of the hypotheses that an experiment names, so that its recording shows which ones the run used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashidrill import __version__
from hashidrill.core.experiment import contrast
from hashidrill.core.experiment.resolved import sha256

if TYPE_CHECKING:
    from pathlib import Path

    from hashidrill.core.experiment.model import Experiment


def hypotheses_of(experiment: Experiment, near_to: Path | None) -> dict[str, Any]:
    """The content of hypotheses.json: where each hypothesis came from, by name, and every source file once.

    Raises UnknownNameError, or UsageError for a file that does not load.
    """
    from hashidrill.core import hypothesis  # noqa: PLC0415 - numpy, which loading can do without
    from hashidrill.core.hypothesis.files import is_shipped, source_of  # noqa: PLC0415 - as above

    found: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    get = hypothesis.getter(near_to)
    for name in names_of(experiment):
        one = get(name)
        source = source_of(one)
        digest = sha256(source)
        sources[digest] = source.decode(errors="backslashreplace")
        found[name] = {"file": str(one.path), "line": one.line, "sha256": digest, "shipped": is_shipped(one.path)}
    return {"hashidrill": __version__, "hypotheses": found, "sources": sources}


def names_of(experiment: Experiment) -> list[str]:
    """Every hypothesis that the experiment names, those that a contrast or its variants are compared by included."""
    names = [each.hypothesis for each in (*experiment.expect, *experiment.compare)]
    inner = [each.params.get("of") for each in experiment.expect if each.hypothesis == contrast.NAME]
    return list(dict.fromkeys([*names, *(name for name in inner if isinstance(name, str))]))
