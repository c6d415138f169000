"""Moments at which a step of the method begins: `leader elected`, `fault slow proven`, `load writes errors`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from hashidrill.core.protocols.service import BEHIND, LEADER_ELECTED, SNAPSHOT_BEGINS, SNAPSHOT_INSTALLED
from hashidrill.core.units import shown, text_schema, ungrouped

PROVEN, GONE, ERRORS = "proven", "gone", "errors"
_NAME = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
_PATTERN = re.compile(
    rf"(?:(?P<seen>{LEADER_ELECTED}|{SNAPSHOT_BEGINS}|{SNAPSHOT_INSTALLED})"
    rf"|a server is (?P<entries>[1-9][0-9]{{0,8}}) entries behind)(?: in (?P<product>[a-z][a-z0-9_]*))?"
    rf"|fault (?P<fault>{_NAME}) (?P<state>{PROVEN}|{GONE})"
    rf"|load (?P<load>{_NAME}) {ERRORS}"
)
FORMS = (
    LEADER_ELECTED,
    SNAPSHOT_BEGINS,
    SNAPSHOT_INSTALLED,
    "a server is 100 entries behind",
    "fault NAME proven",
    "fault NAME gone",
    "load NAME errors",
)
"""How each moment is written; the first four can name the product that shows it: `leader elected in nomad`."""


@dataclass(frozen=True)
class Moment:
    """An event that a step waits for.

    `kind` is one of a product's moments (hashidrill.core.protocols.service: LEADER_ELECTED, ...), `proven`, `gone` or
    `errors`. `name` is the step or the load to which the last three refer; `product` is "" if the datacenter has only
    one that shows the moment; `entries` belongs to BEHIND.
    """

    text: str
    kind: str
    name: str = ""
    product: str = ""
    entries: int = 0

    @classmethod
    def parse(cls, text: str) -> Moment:
        """Reads a moment. Raises ValueError that shows how to write one."""
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{shown(text)} is not a moment; write one of: {', '.join(FORMS)}")
        if match["fault"]:
            return cls(text.strip(), match["state"], match["fault"])
        if match["load"]:
            return cls(text.strip(), ERRORS, match["load"])
        kind = match["seen"] or BEHIND
        return cls(text.strip(), kind, product=match["product"] or "", entries=int(match["entries"] or 0))

    @property
    def of_product(self) -> bool:
        """Whether a product shows the moment; otherwise the run itself knows it."""
        return self.kind not in (PROVEN, GONE, ERRORS)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return text_schema(cls, f"a moment; write one of: {', '.join(FORMS)}")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^({ungrouped(_PATTERN.pattern)})$", "examples": list(FORMS[:4])}
