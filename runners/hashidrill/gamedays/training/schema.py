"""The JSON Schemas of a scenario and of a campaign, for editors. `hashidrill schema scenario` prints one; playbooks/
keeps copies.

The schema of experiments checks what a scenario has in common with an experiment (datacenter, loads, steps,
expectations). There, `${name}` may replace any value: the seed chooses the value.
"""

import copy
import json
from typing import Any

from hashidrill.core.experiment.schema import DIALECT, Schema, Untitled, experiment_schema
from hashidrill.gamedays.training.campaign import Campaign
from hashidrill.gamedays.training.scenario import Scenario

_OF_EXPERIMENTS = "experiment."
_CHOSEN = "Chosen"
_SCALARS = {"string", "integer", "number", "boolean"}
_MANY = ("properties", "patternProperties")
_ONE = ("items", "additionalProperties", "then", "else")
_LISTS = ("anyOf", "oneOf", "allOf")
_SHOWN = ("description", "default", "examples")


def scenario_schema() -> Schema:
    """Draft 2020-12. The loader also checks each truth's experiment, and every `${name}`."""
    schema = Scenario.model_json_schema(by_alias=True, schema_generator=Untitled)
    definitions: Schema = schema.pop("$defs")
    experiment = experiment_schema(bases=False)
    definitions |= {f"{_OF_EXPERIMENTS}{name}": _open(_renamed(each)) for name, each in experiment["$defs"].items()}
    for name in ("Step", "Mark"):
        lasting = copy.deepcopy(definitions[f"{_OF_EXPERIMENTS}{name}"])
        lasting["required"] = [key for key in lasting.get("required", []) if key != "for"]
        definitions[f"{_OF_EXPERIMENTS}{name} of a game"] = lasting
    definitions[_CHOSEN] = {
        "type": "string",
        "pattern": r"\$\{[^}]+\}",
        "description": "Chosen by the seed: a name of `choose`",
    }
    sections = schema["properties"]
    for name in ("datacenter", "load", "clients", "steady_state"):
        sections[name] = _open(_renamed(experiment["properties"][name])) | {
            "description": sections[name]["description"]
        }
    truth = definitions["Truth"]["properties"]
    sections["before"]["items"] = _step("")
    truth["method"]["items"] = _step(" of a game")
    for herring in sections["herrings"]["items"]["anyOf"]:
        if herring.get("type") == "array":
            herring["items"] = _step(" of a game")
    truth["repaired"]["items"] = {"$ref": f"#/$defs/{_OF_EXPERIMENTS}Expectation"}
    for kept in truth["kept"]["anyOf"]:
        if kept.get("type") == "array":
            kept["items"] = {"$ref": f"#/$defs/{_OF_EXPERIMENTS}Expectation"}
    return _whole("hashidrill training scenario", schema, _used(schema, definitions))


def campaign_schema() -> Schema:
    """Draft 2020-12. The loader also reports missing scenarios and pages."""
    schema = Campaign.model_json_schema(by_alias=True, schema_generator=Untitled)
    return _whole("hashidrill training campaign", schema, schema.pop("$defs"))


def schema_text(kind: str) -> str:
    """The schema of scenarios or of campaigns, as text."""
    return json.dumps(scenario_schema() if kind == "scenario" else campaign_schema(), indent=2) + "\n"


def _whole(title: str, schema: Schema, definitions: Schema) -> Schema:
    head = {"$schema": DIALECT, "title": title, "description": schema.pop("description")}
    return head | {key: value for key, value in schema.items() if key != "title"} | {"$defs": definitions}


def _step(which: str) -> Schema:
    return {
        "if": {"type": "object", "required": ["mark"]},
        "then": {"$ref": f"#/$defs/{_OF_EXPERIMENTS}Mark{which}"},
        "else": {"$ref": f"#/$defs/{_OF_EXPERIMENTS}Step{which}"},
    }


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: each.replace("#/$defs/", f"#/$defs/{_OF_EXPERIMENTS}") if key == "$ref" else _renamed(each)
            for key, each in value.items()
        }
    return [_renamed(each) for each in value] if isinstance(value, list) else value


def _open(schema: Any) -> Any:
    """The schema, with `${name}` allowed in place of any single value. The condition that chooses a branch is kept."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key in _MANY:
        if key in made:
            made[key] = {name: _open(each) for name, each in made[key].items()}
    for key in _ONE:
        if key in made:
            made[key] = _open(made[key])
    for key in _LISTS:
        if key in made:
            made[key] = [_open(each) for each in made[key]]
    kinds = made.get("type", [])
    if _SCALARS & {*([kinds] if isinstance(kinds, str) else kinds)} or "enum" in made:
        shown = {key: made.pop(key) for key in _SHOWN if key in made}
        return shown | {"anyOf": [made, {"$ref": f"#/$defs/{_CHOSEN}"}]}
    return made


def _used(schema: Schema, definitions: Schema) -> Schema:
    found: set[str] = set()
    left = [schema]
    while left:
        text = json.dumps(left.pop())
        names = {each.partition('"')[0] for each in text.split('"$ref": "#/$defs/')[1:]} - found
        found |= names
        left += [definitions[name] for name in names]
    return {name: each for name, each in definitions.items() if name in found}
