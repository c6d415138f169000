"""The JSON Schema of experiments and bases, for editors that complete and check YAML.

It is generated from the models and from every known fault, load and hypothesis, including their parameters. The
loader checks more than a schema can express, such as missing hosts and faults that collide.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema

from hashidrill.core.experiment.library import BASE_KIND, KIND, NOT_FROM_BASES
from hashidrill.core.experiment.model import ISSUE_PATTERN, NAME_PATTERN, Experiment, KnownIssue, LoadSpec, ProbeSpec
from hashidrill.core.experiment.selectors import forms, selector_pattern
from hashidrill.core.protocols import registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

    from hashidrill.core.hypothesis import Hypothesis

Schema = dict[str, Any]
_TRAFFIC = ("load", "clients")
"""An experiment has at least one of these."""
_PARTS = {
    "steady_state": ("SteadyState", False),
    "load": ("LoadSpec", True),
    "clients": ("ClientSpec", True),
    "probes": ("ProbeSpec", True),
}
"""Sections that a base may hold in part: the definition, and whether the section holds many of them, by name."""
_SHOWN = ("description", "default")
SCHEMA_TITLE = "hashidrill experiment"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def experiment_schema(*, bases: bool = True, named: Path | None = None) -> Schema:
    """The schema of an experiment, draft 2020-12. Raises UsageError when a file of hypotheses cannot be imported.

    Without `bases`, each experiment must be complete by itself.
    """
    from hashidrill.core.hypothesis import all_comparisons, all_hypotheses  # noqa: PLC0415 - numpy, seldom needed

    schema = Experiment.model_json_schema(by_alias=True, schema_generator=Untitled)
    definitions: Schema = schema.pop("$defs")
    for name, product in registry.services().items():
        either = definitions["DatacenterSpec"]["properties"][name]["anyOf"]
        definitions[product.Spec.__name__], either[0] = either[0], {"$ref": f"#/$defs/{product.Spec.__name__}"}
    for traffic in (*_TRAFFIC, "probes"):
        schema["properties"][traffic]["additionalProperties"] = False  # names that do not match the pattern
    schema["properties"]["method"]["items"] = {
        "if": {"type": "object", "required": ["mark"]},
        "then": {"$ref": "#/$defs/Mark"},
        "else": {"$ref": "#/$defs/Step"},
    }
    definitions["Step"] = _steps(definitions["Step"], registry.faults(), definitions)
    profile: Schema = {"profile": {"anyOf": [{"$ref": "#/$defs/Profile"}, {"type": "null"}]}}
    definitions["LoadSpec"] = _kinds("load", LoadSpec, registry.loads(), profile, definitions)
    common = definitions["ProbeSpec"]["properties"]
    times: Schema = {key: common[key] for key in ("every", "timeout")}
    definitions["ProbeSpec"] = _kinds("probe", ProbeSpec, registry.probes(), times, definitions)
    definitions["Expectation"] = _judged(all_hypotheses(named=named), "hypothesis", definitions)
    definitions["Comparison"] = _judged(all_comparisons(named=named), "comparison", definitions)
    schema["properties"]["compare"]["items"] = {"$ref": "#/$defs/Comparison"}
    schema["properties"]["variants"]["additionalProperties"] = False
    schema["properties"]["extends"] = {
        "type": "string",
        "minLength": 1,
        "description": "A file of `kind: Base`, relative to this one, that provides the sections missing here",
        "examples": ["../bases/three-servers.yaml"],
    }
    if bases:
        _extendable(schema, definitions)
        _overlays(definitions["VariantSpec"]["properties"])
    head = {"$schema": DIALECT, "title": SCHEMA_TITLE, "description": schema.pop("description")}
    return head | {key: value for key, value in schema.items() if key != "title"} | {"$defs": definitions}


def schema_text(named: Path | None = None) -> str:
    """The schema as the text of experiments/schema.json."""
    return json.dumps(experiment_schema(named=named), indent=2) + "\n"


def _extendable(schema: Schema, definitions: Schema) -> None:
    """Makes required keys depend on the kind, and on whether a base can provide them.

    A file that extends another may set a section, a load or a client to null (to remove it), and may leave out keys
    that are otherwise required.
    """
    sections = {name: section for name, section in schema["properties"].items() if name not in NOT_FROM_BASES}
    parts: Schema = {}
    for name, (definition, of_each) in _PARTS.items():
        needed = {"required": definitions[definition].pop("required")}
        parts[name] = {"additionalProperties": {"type": "object"} | needed} if of_each else needed
        if of_each:
            entries = sections[name]["patternProperties"]
            entries |= {pattern: {"anyOf": [entry, {"type": "null"}]} for pattern, entry in entries.items()}
    schema["properties"] |= {"kind": {"description": "Kind of document", "enum": [KIND, BASE_KIND]}}
    schema["properties"] |= {
        name: {"anyOf": [section, {"type": "null"}]} | {key: section.pop(key) for key in _SHOWN if key in section}
        for name, section in sections.items()
    }
    own = {name: {"not": {"type": "null"}} | parts.get(name, {}) for name in sections}
    traffic = [{"required": [name], "properties": {name: {"minProperties": 1}}} for name in _TRAFFIC]
    whole = {"required": [name for name in schema["required"] if name in sections], "anyOf": traffic, "properties": own}
    schema["required"] = ["apiVersion", "kind"]
    schema["if"] = {"properties": {"kind": {"const": BASE_KIND}}}
    schema["then"] = {"properties": {"metadata": False}}
    schema["else"] = {"required": ["metadata"], "if": {"not": {"required": ["extends"]}}, "then": whole}


def _overlays(sections: Schema) -> None:
    """The sections of a variant: each may hold a part of the experiment's section, and null removes a key."""
    for name, section in sections.items():
        of_each = {"load": "LoadSpec", "clients": "ClientSpec"}.get(name)
        if of_each:
            entry = {"anyOf": [{"$ref": f"#/$defs/{of_each}"}, {"type": "null"}]}
            shape: Schema = {
                "patternProperties": {NAME_PATTERN: entry},
                "additionalProperties": False,
                "type": "object",
            }
        elif name == "datacenter":
            shape = {"$ref": "#/$defs/DatacenterSpec"}
        else:
            shape = {"type": "array", "items": {"$ref": "#/$defs/Expectation"}, "minItems": 1}
        sections[name] = {"description": section["description"], "anyOf": [shape, {"type": "null"}]}


class Untitled(GenerateJsonSchema):
    """Drops pydantic's title of each field, which repeats its name and hides the description in editors."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


def _steps(step: Schema, kinds: dict[str, Any], definitions: Schema) -> Schema:
    step["properties"]["fault"] |= {"enum": sorted(kinds)}
    step["properties"]["on"] |= {"pattern": selector_pattern(), "examples": forms()}
    step["allOf"] = [
        _when(
            "fault",
            kind,
            {"properties": {"with": _params(f"fault.{kind}", kinds[kind].Params, definitions)}}
            | _required(["with"] if _needed(kinds[kind].Params) else []),
        )
        for kind in sorted(kinds)
    ]
    return step


def _kinds(what: str, spec: type[BaseModel], kinds: dict[str, Any], common: Schema, definitions: Schema) -> Schema:
    """The schema of loads or probes: the parameters of each kind, and those that all kinds have."""
    branches = []
    for kind in sorted(kinds):
        reference = _params(f"{what}.{kind}", kinds[kind].Params, definitions)
        params = definitions[reference["$ref"].removeprefix("#/$defs/")]
        params["properties"] = {"kind": {"const": kind}} | common | params.get("properties", {})
        branches.append(_when("kind", kind, reference))
    return {
        "type": "object",
        "description": spec.__doc__,
        "properties": {
            "kind": {"type": "string", "enum": sorted(kinds), "description": spec.model_fields["kind"].description}
        },
        "required": ["kind"],
        "allOf": branches,
    }


def _judged(hypotheses: dict[str, Hypothesis], what: str, definitions: Schema) -> Schema:
    properties: Schema = {}
    for name, hypothesis in sorted(hypotheses.items()):
        params = _params(f"hypothesis.{name}", hypothesis.Params, definitions)
        properties[name] = params if _needed(hypothesis.Params) else {"anyOf": [params, {"type": "null"}]}
        if hypothesis.doc:
            properties[name] = {"description": hypothesis.doc} | properties[name]
    issue = {"type": "string", "pattern": ISSUE_PATTERN, "description": "The issue known to break it"}
    bounded = _params("KnownIssue", KnownIssue, definitions)
    return {
        "type": "object",
        "description": f"One {what} with its parameters, and the issue known to break it.",
        "properties": properties | {"known_issue": {"anyOf": [issue, bounded, {"type": "null"}]}},
        "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in properties] or [False],
    }


def _params(name: str, model: type[BaseModel], definitions: Schema) -> Schema:
    """A reference to the schema of a kind's parameters, stored as `name` with everything that it refers to."""
    schema = model.model_json_schema(by_alias=True, ref_template=f"#/$defs/{name}.{{model}}", schema_generator=Untitled)
    for inner, definition in schema.pop("$defs", {}).items():
        definitions[f"{name}.{inner}"] = definition
    schema.pop("title", None)
    definitions[name] = schema
    return {"$ref": f"#/$defs/{name}"}


def _needed(model: type[BaseModel]) -> bool:
    return any(field.is_required() for field in model.model_fields.values())


def _when(key: str, value: str, then: Schema) -> Schema:
    return {"if": {"properties": {key: {"const": value}}, "required": [key]}, "then": then}


def _required(names: Iterable[str]) -> Schema:
    return {"required": list(names)} if names else {}
