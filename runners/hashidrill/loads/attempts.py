"""Attempts as operations of a recording, and back: load `CLIENT.attempts`, key `METHOD path`, value compact JSON.

The caller's own operations are those of load `CLIENT`. Where an attempt's operation is known, `Attempt.operation` is
the `key` of that operation.
"""

from __future__ import annotations

import json
from dataclasses import fields

from hashidrill.abc import Operation
from hashidrill.errors import HypothesisInvalidError
from hashidrill.experiment.model import ATTEMPTS
from hashidrill.recording.reader import Operations
from hashidrill.retry.attempts import Attempt
from hashidrill.util.foreign import parse

SUFFIX = ATTEMPTS
_COLUMNS = {"start_ns", "end_ns", "method", "path", "fault", "status"}
_DEFAULTS = {field.name: field.default for field in fields(Attempt) if field.name not in _COLUMNS}


def to_operation(client: str, attempt: Attempt, *, origin_ns: int = 0) -> Operation:
    """The operation that stands for an attempt. `origin_ns`: the tap's clock at the zero of the recording's clock."""
    extra = {name: getattr(attempt, name) for name in _DEFAULTS if getattr(attempt, name) != _DEFAULTS[name]}
    if attempt.fault or not attempt.status:
        outcome = "unknown" if attempt.upstream else "fail"
    else:
        outcome = "ok" if attempt.status < 400 else "fail"
    return Operation(
        load=client + SUFFIX,
        intended_ns=attempt.start_ns - origin_ns,
        start_ns=attempt.start_ns - origin_ns,
        end_ns=attempt.end_ns - origin_ns,
        outcome=outcome,
        key=f"{attempt.method} {attempt.path}",
        value=json.dumps(extra, separators=(",", ":"), sort_keys=True),
        status=attempt.status,
        error=attempt.fault,
    )


def from_operations(operations: Operations) -> list[Attempt]:
    """The attempts behind the operations of a load `CLIENT.attempts`, in order.

    Raises HypothesisInvalidError for operations that are no attempts.
    """
    found = []
    for index in range(len(operations)):
        method, _, path = operations.keys[index].partition(" ")
        try:
            extra = parse(operations.values[index])
            attempt = Attempt(
                start_ns=int(operations.start_ns[index]), end_ns=int(operations.end_ns[index]), method=method,
                path=path, fault=operations.errors[index], status=int(operations.status[index]), **extra,
            )  # fmt: skip
        except (ValueError, TypeError):
            raise HypothesisInvalidError(
                f"operation {index + 1} of this load is no attempt at a tap: its value is {operations.values[index]!r};"
                f" name the client, without {SUFFIX}"
            ) from None
        found.append(attempt)
    return found
