"""The two sides of a contrast, for the hypothesis `contrast` and for the loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

NAME = "contrast"
SIDES = ("good", "bad")
_OF_A_SIDE = ("client", "load")


def side(model: type[BaseModel], named: str | Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one side for a hypothesis with that model; a bare name is its client, otherwise its load."""
    if not isinstance(named, str):
        return {**params, **named}
    key = next((key for key in _OF_A_SIDE if key in model.model_fields), _OF_A_SIDE[0])
    return {**params, key: named}
