"""An operation on its way from the load generator to the engine: a list that JSON can hold, and back."""

from __future__ import annotations

from typing import Any

from hashidrill.core.protocols.abc import Detail, Operation


def packed(op: Operation) -> tuple[Any, ...]:
    detail = None if op.detail is None else (op.detail.table, op.detail.fields)
    return (
        op.load,
        op.intended_ns,
        op.start_ns,
        op.end_ns,
        op.outcome,
        op.key,
        op.value,
        op.status,
        op.error,
        op.reason,
        detail,
    )


def unpacked(line: list[Any]) -> Operation:
    load, intended_ns, start_ns, end_ns, outcome, key, value, status, error, reason, detail = line
    return Operation(
        load,
        intended_ns,
        start_ns,
        end_ns,
        outcome,
        key,
        value,
        status,
        error,
        reason,
        None if detail is None else Detail(*detail),
    )
