"""Recordings of earlier formats, read as what they would be today. All that knows their ways is here.

| format | what is different |
|---|---|
| 1, 2 | no resolved.json: experiment.yaml is what the run was asked for |
| 1 to 3 | no reason of an operation: how its error begins says it |
| 1 to 3 | `value` holds as JSON what is a detail now (attempts, consul.lock, consul.kv.cas); so do final reads of cas |
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hashidrill.core.errors import ExperimentError, RecordingError
from hashidrill.core.protocols.abc import Detail, Reason
from hashidrill.core.util.foreign import parse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.recording.columns import Operations

_REASONS = {
    "generator overloaded": Reason.OVERLOADED,
    "still in flight when the load was stopped": Reason.CANCELLED,
    "the service ended by itself": Reason.SERVICE_ENDED,
    "the session is gone": "consul.session-gone",
}
"""By how an error began. Of other errors nobody decided anything by their texts: their reason stays empty."""
_ATTEMPTS = ".attempts"
_TABLES = {_ATTEMPTS: "attempt", "consul.lock": "lock", "consul.kv.cas": "cas"}


def experiment(path: Path) -> Experiment:
    """The experiment in experiment.yaml. Raises RecordingError when it does not read."""
    from hashidrill.core.experiment.model import Experiment  # noqa: PLC0415 - as above
    from hashidrill.core.experiment.reading import read_document  # noqa: PLC0415 - a recording is read without it too

    try:
        return Experiment.model_validate(read_document(path).data)
    except ExperimentError as error:
        raise RecordingError(f"not readable: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordingError(f"{path}: not readable: {where}: {first['msg']}") from None


def kind_of(load: str, asked: Callable[[], Experiment]) -> str:
    """The kind of a load, or `.attempts`; empty where it is not known."""
    if load.endswith(_ATTEMPTS):
        return _ATTEMPTS
    try:
        spec = asked().load.get(load)
    except RecordingError:
        return ""
    return "" if spec is None else spec.kind


def operations(found: Operations, kind: str) -> Operations:
    """With the reasons that their errors name, and the details that their values hold."""
    reasons = [
        next((str(code) for text, code in _REASONS.items() if error.startswith(text)), "") for error in found.errors
    ]
    if kind not in _TABLES:
        return replace(found, reasons=reasons)
    rows = [_object(value) for value in found.values]
    details = [None if row is None else Detail(_TABLES[kind], row) for row in rows]
    if kind == _ATTEMPTS:
        details = [
            detail and Detail(detail.table, {**_request(key), "fault": error, **detail.fields})
            for key, error, detail in zip(found.keys, found.errors, details, strict=True)
        ]
    values = [
        value if row is None else str(row.get("value") or "") for value, row in zip(found.values, rows, strict=True)
    ]
    return replace(found, reasons=reasons, details=details, values=values)


def final_reads(found: dict[str, str | None], kind: str) -> dict[str, str | None]:
    """Those of a cas load are steps in JSON: what they read is their value."""
    if kind != "consul.kv.cas":
        return found
    steps = {key: _object(text) for key, text in found.items() if text is not None}
    return {key: step.get("value") for key, step in steps.items() if step is not None}


def _reason(error: str) -> str:
    return next((str(code) for text, code in _REASONS.items() if error.startswith(text)), "")


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = parse(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _request(key: str) -> dict[str, Any]:
    method, _, path = key.partition(" ")
    return {"method": method, "path": path}
