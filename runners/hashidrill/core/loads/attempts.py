"""Turns attempts into operations of a recording, and back: load `CLIENT.attempts`, key `METHOD path`, a detail.

The load `CLIENT` has the caller's own operations. If an attempt's operation is known, `Attempt.operation` is the
`key` of that operation.
"""

from __future__ import annotations

from dataclasses import fields

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.experiment.model import ATTEMPTS
from hashidrill.core.loads.operations import detail_as
from hashidrill.core.protocols.abc import Detail, Operation, Reason
from hashidrill.core.recording.reader import Operations
from hashidrill.core.tap.attempts import Attempt

SUFFIX = ATTEMPTS
TABLE = "attempt"
_COLUMNS = {"start_ns", "end_ns", "status"}
_TRUTHS = {field.name for field in fields(Attempt) if str(field.type).startswith("bool")}
"""The boolean fields of an attempt; a database keeps them as 0 and 1."""


def to_operation(client: str, attempt: Attempt, *, origin_ns: int = 0) -> Operation:
    """The operation that records an attempt. `origin_ns`: the tap's clock when the recording's clock is zero."""
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
        status=attempt.status,
        error=attempt.fault,
        reason="" if outcome == "ok" else _reason(attempt),
        detail=Detail(
            TABLE, {each.name: getattr(attempt, each.name) for each in fields(Attempt) if each.name not in _COLUMNS}
        ),
    )


def _reason(attempt: Attempt) -> str:
    if attempt.status >= 400:
        return Reason.REFUSED if attempt.status < 500 else Reason.SERVER_ERROR
    return Reason.NO_ANSWER


def from_operations(operations: Operations) -> list[Attempt]:
    """The attempts behind the operations of a load `CLIENT.attempts`, in order.

    Raises HypothesisInvalidError for operations that are not attempts.
    """
    times = zip(operations.start_ns.tolist(), operations.end_ns.tolist(), operations.status.tolist(), strict=True)
    found = []
    for index, ((start_ns, end_ns, status), detail) in enumerate(zip(times, operations.details, strict=True)):
        try:
            noted = detail_as(dict, detail, TABLE, "client")
            noted |= {name: None if noted[name] is None else bool(noted[name]) for name in _TRUTHS & noted.keys()}
            found.append(Attempt(start_ns=start_ns, end_ns=end_ns, status=status, **noted))
        except (TypeError, ValueError):
            raise HypothesisInvalidError(
                f"operation {index + 1} of this load is not an attempt at a tap: its key is {operations.keys[index]!r};"
                f" name the client, without {SUFFIX}"
            ) from None
    return found
