"""The JSON Schema of a game day, for editors. `hashidrill schema gameday` prints it; playbooks/ keeps a copy."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from hashidrill.core.experiment.schema import DIALECT
from hashidrill.gamedays.gameday.model import GameDay

_ONE_OF = ("check", "condition", "confirm")


class _Untitled(GenerateJsonSchema):
    """Without pydantic's title for each field, which hides the description in editors."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


def gameday_schema() -> dict[str, Any]:
    """Draft 2020-12. The loader checks more: experiments that are not there, names that nobody has."""
    schema = GameDay.model_json_schema(by_alias=True, schema_generator=_Untitled)
    definitions = schema.pop("$defs")
    definitions["GoCheck"]["oneOf"] = [{"required": [name]} for name in _ONE_OF]
    head = {"$schema": DIALECT, "title": "hashidrill game day", "description": schema.pop("description")}
    return head | {key: value for key, value in schema.items() if key != "title"} | {"$defs": definitions}


def schema_text() -> str:
    """The schema as text."""
    return json.dumps(gameday_schema(), indent=2) + "\n"
