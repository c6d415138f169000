"""Details of operations as the dataclasses of the loads that write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import Detail

Row = TypeVar("Row")


def detail_as(cls: type[Row], detail: Detail | None, table: str, kind: str) -> Row:
    """The row as an object of `cls`. Raises ValueError where it is no detail of such a load."""
    if detail is None or detail.table != table:
        what = "without a detail" if detail is None else f"of the sort {detail.table!r}"
        raise ValueError(f"an operation {what} is no operation of a {kind} load")
    try:
        return cls(**detail.fields)
    except TypeError as error:
        raise ValueError(f"{dict(detail.fields)!r} is no operation of a {kind} load: {error}") from None
