"""Tables of details: what operations of one sort say beside the columns of all, a column for each field.

`detail_lock` has a row for each operation of a lock load: `operation_id` is the `id` of its row in `operations`. A
table and its columns are made when the first such operation is written; a column has the type of its first value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from hashidrill.core.protocols.abc import Detail

PREFIX = "detail_"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
_TYPES = {str: "TEXT", bool: "INTEGER", int: "INTEGER", float: "REAL"}
KEY = "operation_id"


def table_of(detail: Detail) -> str:
    """The table for it. Raises ValueError for a name or a field that is no plain name."""
    names = [detail.table, *detail.fields]
    if odd := [name for name in names if not is_name(name) or name == KEY]:
        raise ValueError(f"a detail and its fields have names like lock_index, not {odd[0]!r}")
    return PREFIX + detail.table


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_table(name: object) -> bool:
    """Whether it is the name of a table of details: only these are ever put into a statement."""
    return isinstance(name, str) and name.startswith(PREFIX) and is_name(name)


class Tables:
    """The tables of details in a database that is being written."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._columns: dict[str, dict[str, None]] = {}

    def insert(self, operation: int | None, detail: Detail, clean: Callable[[str], Any]) -> None:
        """The row of one operation; each text in it goes through `clean`."""
        table = table_of(detail)
        values = {name: clean(value) if isinstance(value, str) else value for name, value in detail.fields.items()}
        self._make(table, values)
        columns = ", ".join(f'"{name}"' for name in (KEY, *values))
        marks = ", ".join("?" * (1 + len(values)))
        statement = f'INSERT INTO "{table}" ({columns}) VALUES ({marks})'  # noqa: S608 - plain names, see table_of
        self._database.execute(statement, (operation, *values.values()))

    def _make(self, table: str, values: dict[str, Any]) -> None:
        if table not in self._columns:
            self._database.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ("{KEY}" INTEGER PRIMARY KEY)')
            there = self._database.execute(f'PRAGMA table_info("{table}")').fetchall()
            self._columns[table] = dict.fromkeys(row[1] for row in there)
        for name in [name for name in values if name not in self._columns[table]]:
            kind = _TYPES.get(type(values[name]), "")
            self._database.execute(f'ALTER TABLE "{table}" ADD COLUMN "{name}" {kind}')
            self._columns[table][name] = None
