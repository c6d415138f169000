"""Recordings of earlier formats, read as what they would be today. All that knows their ways is here.

| format | what is different |
|---|---|
| 1, 2 | no resolved.json: experiment.yaml is what the run was asked for |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from hashidrill.errors import ExperimentError, RecordingError

if TYPE_CHECKING:
    from pathlib import Path

    from hashidrill.experiment.model import Experiment


def experiment(path: Path) -> Experiment:
    """The experiment in experiment.yaml. Raises RecordingError when it does not read."""
    from hashidrill.experiment.documents import read_document  # noqa: PLC0415 - a recording is read without it too
    from hashidrill.experiment.model import Experiment  # noqa: PLC0415 - as above

    try:
        return Experiment.model_validate(read_document(path).data)
    except ExperimentError as error:
        raise RecordingError(f"not readable: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordingError(f"{path}: not readable: {where}: {first['msg']}") from None
