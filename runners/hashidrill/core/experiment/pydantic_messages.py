"""Translates pydantic's errors into the words of the YAML file."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from hashidrill.core.experiment.documents import Document, Loc, listed
from hashidrill.core.experiment.model import API_VERSION, FIGURE_PATTERN, ISSUE_PATTERN, NAME_PATTERN, STEP_TAGS, PartOf
from hashidrill.core.experiment.strict import VERSION_PATTERN
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Quantity, counted, shown

Model = TypeVar("Model", bound=BaseModel)
_MOST_KEYS = 12
"""A longer list of keys would take a second line in each of ten messages."""
_PATTERNS = {
    NAME_PATTERN: "a name of lower-case words joined by dashes, like slow-leader-disk",
    VERSION_PATTERN: "a version, like 1.22.2",
    ISSUE_PATTERN: "owner/repo#123 or an https URL",
    FIGURE_PATTERN: "the name of a figure, like left_after_s",
}


def validated(document: Document, model: type[Model]) -> Model:
    """A document as that model, strictly, as JSON values. Raises ExperimentError with every problem."""
    try:
        return model.model_validate_json(json.dumps(document.data), strict=True)
    except ValidationError as invalid:
        for error in invalid.errors(include_url=False):
            at = tuple(error["loc"])
            of_key = at[-1:] == ("[key]",)
            place = at[:-1] if error["type"] == "missing" or of_key else at
            document.problem(place, explain(error, model), key=error["type"] == "extra_forbidden" or of_key)
    document.raise_problems()
    raise AssertionError("pydantic refused the document without saying why")


def is_kind(document: Document, kind: str) -> bool:
    """Whether the document's `kind` is this one."""
    return isinstance(document.data, dict) and document.data.get("kind") == kind


def validated_kind(document: Document, model: type[Model], kind: str, what: str) -> Model:
    """Like `validated`, for a document that must have this kind; messages call it `what`, as in `a game day`."""
    if not is_kind(document, kind):
        place = ("kind",) if isinstance(document.data, dict) and "kind" in document.data else ()
        document.problem(place, f"not {what}: it begins with `apiVersion: {API_VERSION}` and `kind: {kind}`")
        document.raise_problems()
    return validated(document, model)


def explain(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    """One sentence: what was expected and what was found. `error` is one of ValidationError.errors() of `model`."""
    kind, ctx, loc = error["type"], error.get("ctx", {}), tuple(error["loc"])
    if kind == "extra_forbidden":
        inner = _model_of(_annotation_at(model, loc[:-1]))
        if why := getattr(inner, "unsupported", {}).get(str(loc[-1])):
            return f"{loc[-1]} is not supported: {why}"
        return f"unknown key {shown(loc[-1])}: {_near_key(str(loc[-1]), model, loc[:-1])}"
    if kind == "missing":
        return f"{loc[-1]} is missing{_hint(field_at(model, loc))}"
    if kind in {"value_error", "assertion_error"}:
        return str(ctx.get("error", error["msg"]))
    if kind in {"literal_error", "enum"}:
        return _not_one_of(error["input"], field_at(model, loc), str(ctx.get("expected", "")))
    say = _EXPECTED.get(kind)
    expected = say(ctx) if say else str(error["msg"]).removeprefix("Input should be ")
    return f"expected {expected}, got {_described(error['input'])}"


_EXPECTED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    **dict.fromkeys(("string_type", "string_sub_type"), lambda _: "text"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), lambda _: "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), lambda _: "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), lambda _: "true or false"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), lambda _: "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), lambda _: "a mapping (`key: value`)"),
    "greater_than_equal": lambda ctx: f"at least {ctx['ge']}",
    "greater_than": lambda ctx: f"more than {ctx['gt']}",
    "less_than_equal": lambda ctx: f"at most {ctx['le']}",
    "less_than": lambda ctx: f"less than {ctx['lt']}",
    "string_pattern_mismatch": lambda ctx: _PATTERNS.get(ctx["pattern"], f"text that matches {ctx['pattern']}"),
    "string_too_short": lambda ctx: f"at least {counted(ctx['min_length'], 'character')}",
    "string_too_long": lambda ctx: f"at most {counted(ctx['max_length'], 'character')}",
    "too_short": lambda ctx: f"at least {counted(ctx['min_length'], 'entry', 'entries')}",
    "too_long": lambda ctx: f"at most {counted(ctx['max_length'], 'entry', 'entries')}",
}


def keys_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys that the mapping at `loc` may have, as YAML spells them."""
    inner = _model_of(_annotation_at(model, loc))
    return [] if inner is None else [field.alias or name for name, field in inner.model_fields.items()]


def _near_key(name: str, model: type[BaseModel], loc: Loc) -> str:
    """Similar keys, or all; of a long list only the optional ones: other messages name the required ones."""
    names = keys_at(model, loc)
    said = near(name, names)
    inner = _model_of(_annotation_at(model, loc))
    if said.startswith("there are") and len(names) > _MOST_KEYS and inner is not None:
        optional = [field.alias or each for each, field in inner.model_fields.items() if not field.is_required()]
        return near(name, optional)
    return said


def field_at(model: type[BaseModel], loc: Loc) -> FieldInfo | None:
    """The field at the end of `loc`, if it is a field."""
    inner = _model_of(_annotation_at(model, loc[:-1])) if loc else None
    return None if inner is None else _field(inner, loc[-1])


def _field(model: type[BaseModel], key: str | int) -> FieldInfo | None:
    return next((field for name, field in model.model_fields.items() if key == (field.alias or name)), None)


def _annotation_at(model: type[BaseModel], loc: Loc) -> Any:
    at: Any = model
    for part in loc:
        if part in STEP_TAGS and set(_flat(at)) >= set(STEP_TAGS.values()):
            at = STEP_TAGS[part]
            continue
        container = next((t for t in _flat(at) if get_origin(t) in {list, dict, tuple}), None)
        if container is not None:
            at = get_args(container)[-1]
        elif (inner := _model_of(at)) is not None and (field := _field(inner, part)) is not None:
            at = field.annotation
        else:
            return None
    return at


def _model_of(annotation: Any) -> type[BaseModel] | None:
    for part in _flat(annotation):
        if isinstance(part, PartOf):
            return part.model
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _flat(annotation: Any) -> Iterator[Any]:
    """The annotation and the parts of `X | None` and Annotated[X, ...]; containers are not opened."""
    if get_origin(annotation) in {list, dict, tuple} or not get_args(annotation):
        yield annotation
        return
    for part in get_args(annotation):
        yield from _flat(part)


def _hint(field: FieldInfo | None) -> str:
    if field is None:
        return ""
    for part in _flat(field.annotation):
        if isinstance(part, type) and issubclass(part, Quantity):
            return f": {part.how()}"
    if get_origin(field.annotation) is not None and (choices := _choices(field)):
        return f": write {listed(choices)}"
    return f": {field.description}" if field.description else ""


def _choices(field: FieldInfo | None) -> list[str]:
    return [str(part) for part in _flat(field.annotation) if isinstance(part, (str, int))] if field else []


def _not_one_of(value: Any, field: FieldInfo | None, expected: str) -> str:
    choices = _choices(field)
    if not isinstance(value, str) or not choices:
        return f"expected {expected or ', '.join(choices)}, got {_described(value)}"
    if len(choices) == 1:
        return f"expected {choices[0]}, got {_described(value)}"
    return f"{shown(value)} is not a valid value: {near(value, choices)}"


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    return shown(value)
