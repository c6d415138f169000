"""An experiment, loaded, resolved and checked once: one object for launcher, engine, recording, judge and reports.

`hashidrill.core.experiment.loader.resolve` makes it from YAML. `to_data` and `from_data` carry it into the sandbox
and the recording (`resolved.json`); their readers read no YAML and look up no kind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import complete
from hashidrill.core.experiment.model import Experiment


class Parameters(BaseModel):
    """The parameters of each kind, validated, with defaults filled in: plain data, quantities with their units."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    loads: dict[str, dict[str, Any]] = {}
    steps: list[dict[str, Any]] = []
    expectations: list[dict[str, Any]] = []


class Variant(BaseModel):
    """The variant that an experiment is: its name, and its overlay."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: str
    overlay: dict[str, Any] = {}


class Provenance(BaseModel):
    """The origin of the experiment: its file and that file's SHA-256, and the same for the files that it extends."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    path: str
    sha256: str
    extends: dict[str, str] = {}
    variant: Variant | None = None


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    experiment: dict[str, Any]
    parameters: Parameters
    provenance: Provenance


@dataclass(frozen=True)
class ResolvedExperiment:
    """The experiment as a model and as the plain data of its file, with the results of resolving it."""

    experiment: Experiment
    data: Mapping[str, Any]
    parameters: Parameters
    provenance: Provenance
    hypotheses: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The content of hypotheses.json: origin and source of each hypothesis that the experiment names."""
    document: Document | None = field(default=None, compare=False, repr=False)
    """The place of each value, for messages; None after `from_data`."""

    @property
    def path(self) -> Path:
        return Path(self.provenance.path)

    @property
    def text(self) -> str:
        """The complete YAML, with its bases merged in; "" after `from_data`."""
        return complete(self.document) if self.document is not None else ""

    @property
    def name(self) -> str:
        return self.experiment.metadata.name

    @property
    def variant(self) -> str:
        """The name of the variant; "" for the experiment itself."""
        return self.provenance.variant.name if self.provenance.variant else ""

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON, without `text` and `hypotheses`: a recording keeps these in separate files."""
        kept = _Kept(experiment=dict(self.data), parameters=self.parameters, provenance=self.provenance)
        return kept.model_dump(mode="json")

    @classmethod
    def from_data(cls, data: Any) -> ResolvedExperiment:
        """The reverse of `to_data`. Raises ExperimentError for other data."""
        try:
            kept = _Kept.model_validate(data)
            experiment = Experiment.model_validate(kept.experiment)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ExperimentError(f"{where}: {first['msg']}") from None
        return cls(experiment, kept.experiment, kept.parameters, kept.provenance)


def sha256(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()
