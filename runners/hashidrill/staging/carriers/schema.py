"""The JSON Schema of a file of `kind: Attach`, for editors that complete and check YAML."""

from __future__ import annotations

import json
from typing import Any

from hashidrill.core.experiment.schema import DIALECT, Untitled
from hashidrill.staging.attach.pods import KUBERNETES, model_of_kubernetes, part_of_pods
from hashidrill.staging.attach.product import attachables
from hashidrill.staging.attach.target import AttachFile
from hashidrill.staging.carriers.settings import Carriers
from hashidrill.staging.interlocks.settings import InterlockSettings

Schema = dict[str, Any]


def attach_schema() -> Schema:
    """The schema, draft 2020-12. It says no more than the reader does: a product's part may be empty."""
    schema = AttachFile.model_json_schema(by_alias=True, schema_generator=Untitled)
    definitions: Schema = schema.pop("$defs", {})
    products = {}
    for name, product in attachables().items():
        part = product.Part.model_json_schema(by_alias=True, schema_generator=Untitled)
        definitions |= part.pop("$defs", {})
        definitions[f"{name}-part"] = part
        products[name] = {"anyOf": [{"$ref": f"#/$defs/{name}-part"}, {"type": "null"}]}
    pods = _of_pods(definitions)
    interlocks = InterlockSettings.model_json_schema(by_alias=True, schema_generator=Untitled)
    definitions |= interlocks.pop("$defs", {})
    definitions["interlocks"] = interlocks
    carriers = Carriers.model_json_schema(by_alias=True, schema_generator=Untitled)
    definitions |= carriers.pop("$defs", {})
    definitions["carriers"] = carriers
    written = schema["properties"]
    written["carriers"] = {"$ref": "#/$defs/carriers", "description": written["carriers"]["description"]}
    for key in ("additionalProperties", "propertyNames"):
        written["datacenter"].pop(key, None)
    written["datacenter"] |= {"properties": {**products, KUBERNETES: pods}, "additionalProperties": False}
    written["interlocks"] = {"$ref": "#/$defs/interlocks", "description": written["interlocks"]["description"]}
    head = {"$schema": DIALECT, "title": "hashidrill attach", "description": schema.pop("description", "")}
    return head | {key: value for key, value in schema.items() if key != "title"} | {"$defs": definitions}


def _of_pods(definitions: Schema) -> Schema:
    """Of the part for products whose agents are pods; each has one of its own, or says nothing."""
    schema = model_of_kubernetes().model_json_schema(by_alias=True, schema_generator=Untitled)
    for name in attachables():
        part = part_of_pods(name).model_json_schema(by_alias=True, schema_generator=Untitled)
        definitions |= part.pop("$defs", {})
        definitions[f"{name}-pods"] = part
        kept = {"description": schema["properties"][name]["description"]}
        schema["properties"][name] = kept | {"anyOf": [{"$ref": f"#/$defs/{name}-pods"}, {"type": "null"}]}
    schema["anyOf"] = [{"required": [name]} for name in attachables()]
    definitions[KUBERNETES] = schema
    return {"$ref": f"#/$defs/{KUBERNETES}"}


def schema_text() -> str:
    """The schema as the text of experiments/schema-attach.json."""
    return json.dumps(attach_schema(), indent=2) + "\n"
