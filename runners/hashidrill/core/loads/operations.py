"""Operations in the JSON form that the load generator sends to the engine, and their details as objects."""

from __future__ import annotations

from typing import Any, TypeVar

from hashidrill.core.protocols.abc import Detail, Operation


def packed(op: Operation) -> tuple[Any, ...]:
    return op if op.detail is None else (*op.plain, (op.detail.table, op.detail.fields))


def unpacked(line: list[Any]) -> Operation:
    if (detail := line[-1]) is not None:
        line = [*line[:-1], Detail(*detail)]
    return Operation._make(line)


Row = TypeVar("Row")


def detail_as(cls: type[Row], detail: Detail | None, table: str, kind: str) -> Row:
    """The row as an object of `cls`. Raises ValueError for a detail of another load."""
    if detail is None or detail.table != table:
        what = "without a detail" if detail is None else f"of the sort {detail.table!r}"
        raise ValueError(f"an operation {what} is not an operation of a {kind} load")
    try:
        return cls(**detail.fields)
    except TypeError as error:
        raise ValueError(f"{dict(detail.fields)!r} is not an operation of a {kind} load: {error}") from None
