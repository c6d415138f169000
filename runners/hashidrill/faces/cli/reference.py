"""The reference pages that are generated from the code: commands, experiment keys, and the shipped library.

`python -m hashidrill.faces.cli.reference` rewrites them in playbooks/; a test compares the files with what this
returns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hashidrill.core.experiment.schema import experiment_schema
from hashidrill.faces.cli.app import app
from hashidrill.faces.cli.library import rows_of
from hashidrill.gamedays.gameday.model import gameday_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Schema = dict[str, Any]
_MADE = "Generated from the code by `python -m hashidrill.faces.cli.reference`; do not edit.\n"


def commands_page() -> str:
    context = typer.Context(typer.main.get_command(app), info_name="hashidrill")
    listed: list[str] = []
    sections: list[str] = []
    for name in context.command.list_commands(context):  # type: ignore[attr-defined]  # it is a group
        command = context.command.get_command(context, name)  # type: ignore[attr-defined]
        listed.append(f"| [{name}](#{name}) | {_about(command).partition(chr(10))[0]} |\n")
        sections += _sections(name, command, 2)
    head = f"# Reference: commands\n\n{_MADE}\n`--help` after any command prints the same.\n\n"
    return head + "| command | what it does |\n| --- | --- |\n" + "".join(listed) + "".join(sections)


def _about(command: Any) -> str:
    return (command.help or "").strip()


def _sections(name: str, command: Any, level: int) -> Iterator[str]:
    """That of a command; a group has those of its commands below its own."""
    yield f"\n{'#' * level} {name}\n\n{_about(command)}\n{_parameters(command)}{_examples(command.epilog or '')}"
    for below, one in getattr(command, "commands", {}).items():
        yield from _sections(f"{name} {below}", one, level + 1)


def _parameters(command: Any) -> str:
    rows = []
    for parameter in command.params:
        name = ", ".join(parameter.opts) if parameter.param_type_name == "option" else parameter.metavar
        rows.append((name or parameter.name.upper(), _default(parameter), parameter.help or ""))
    if not rows:
        return ""
    lines = "".join(f"| `{name}` | {default} | {_cell(text)} |\n" for name, default, text in rows)
    return f"\n| argument or option | default | meaning |\n| --- | --- | --- |\n{lines}"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None or value in {"", ()} else f"{getattr(value, 'value', value)}"


def _examples(epilog: str) -> str:
    calls = [line for line in epilog.replace("Example: ", "").splitlines() if line.startswith("hashidrill")]
    return "\n```sh\n" + "\n".join(calls) + "\n```\n" if calls else ""


def keys_page() -> str:
    """Every key of an experiment that does not belong to a fault, a load or a hypothesis."""
    schema = experiment_schema(bases=False)
    head = (
        f"# Reference: the keys of an experiment\n\n{_MADE}\n"
        "The parameters of faults and loads are in [reference-faults.md](reference-faults.md), those of hypotheses in\n"
        "[reference-verdicts.md](reference-verdicts.md). Quantities carry their unit: `500ms`, `50/s`, `4kB`, `30%`.\n"
        "\n"
        "`extends` names a base: a file with `kind: Base`, no `metadata`, and any other section. The experiment is\n"
        "merged over it, key by key. A list replaces that of the base; `null` removes a key of the base. A base may\n"
        "extend another. `hashidrill show --complete EXPERIMENT` prints the result.\n"
        "\n"
        "`variants` names overlays of `datacenter`, `load`, `clients` and `expect`, each merged over the experiment\n"
        "in the same way; `{}` is the experiment as it is. `hashidrill run EXPERIMENT` runs each of them, `rounds`\n"
        "times in turn (A B, B A, ...), and judges `compare` over the recordings\n"
        "([comparisons](reference-verdicts.md#comparisons-of-variants)). `expect` holds for every variant; one with\n"
        "an `expect` of its own is judged by that alone. `hashidrill run EXPERIMENT --variant NAME` runs one variant,\n"
        "and `hashidrill show EXPERIMENT --variant NAME` prints it, complete.\n"
    )
    return head + "".join(_section(title, part, schema["$defs"]) for title, part in _parts("", schema, schema["$defs"]))


def _parts(path: str, schema: Schema, definitions: Schema) -> Iterator[tuple[str, Schema]]:
    """(path, schema) of every mapping with keys of its own, in the order in which a file writes them."""
    yield path, schema
    for key, about in _fields(schema):
        other = about.get("items", {}).get("then", {}).get("$ref", "").removeprefix("#/$defs/")
        for name in _references(about):
            if name in definitions:
                which = f" ({name.lower()})" if name == other else ""
                yield from _parts(f"{path}.{key}{which}".lstrip("."), definitions[name], definitions)


def _fields(schema: Schema) -> list[tuple[str, Schema]]:
    kinds = {branch["required"][0] for branch in schema.get("oneOf", []) if branch and "required" in branch}
    return [(key, about) for key, about in schema.get("properties", {}).items() if key not in kinds]


def _references(about: Any) -> list[str]:
    """The names of the definitions that a field leads to, except those of single kinds."""
    if isinstance(about, list):
        return [name for each in about for name in _references(each)]
    if not isinstance(about, dict):
        return []
    own = [about["$ref"].removeprefix("#/$defs/")] if "$ref" in about else []
    inner = [about[key] for key in ("anyOf", "items", "additionalProperties", "else", "then") if key in about]
    return own + [name for each in (*inner, *about.get("patternProperties", {}).values()) for name in _references(each)]


def _section(path: str, schema: Schema, definitions: Schema) -> str:
    title = f"`{path}`" if path else "The file"
    required = schema.get("required", [])
    rows = []
    for key, about in _fields(schema):
        default = "required" if key in required else _written(about, definitions)
        rows.append(f"| `{key}` | {default} | {_cell(_meaning(about, definitions))} |\n")
    about = schema.get("description", "")
    return f"\n## {title}\n\n{about}\n\n| key | default | meaning |\n| --- | --- | --- |\n{''.join(rows)}"


def _written(about: Schema, definitions: Schema) -> str:
    """A default as YAML would write it; "below" for a mapping that has a section of its own."""
    if any(name in definitions for name in _references(about)):
        return "below" if about.get("default") else "none"
    value = about.get("default")
    if value is None or value in ({}, [], ""):
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def _meaning(about: Schema, definitions: Schema) -> str:
    """The field's description, or that of the definition it leads to, and the values it may have."""
    described = [definitions[name].get("description", "") for name in _references(about) if name in definitions]
    text = about.get("description") or next(iter(described), "")
    plain = [about, about.get("items", {}), *about.get("anyOf", [])]
    limits = [f"{word} {each[key]}" for each in plain for key, word in _LIMITS.items() if key in each]
    fixed = [f"`{each['const']}`" for each in plain if "const" in each]
    like: list[str] = next((each["examples"] for each in plain if "examples" in each), [])
    shown = [f"like {', '.join(f'`{value}`' for value in like)}"] if like else []
    return "; ".join(part for part in (text.rstrip("."), *fixed, ", ".join(limits), *shown) if part)


_LIMITS = {"minimum": "at least", "maximum": "at most"}


def game_day_page() -> str:
    schema = gameday_schema()
    head = (
        f"# Reference: the keys of a game day\n\n{_MADE}\n"
        "A game day is a file of `kind: GameDay`, which `hashidrill gameday run FILE` leads through, and `hashidrill\n"
        "validate FILE` checks. [first-game-day.md](first-game-day.md) shows how a day goes.\n"
    )
    return head + "".join(_section(title, part, schema["$defs"]) for title, part in _parts("", schema, schema["$defs"]))


def library_page() -> str:
    """The shipped experiments, faults, loads and hypotheses, a line each, as `hashidrill list` prints them."""
    head = f"# Reference: the library\n\n{_MADE}"
    return head + "".join(_listed(*each) for each in _LISTS)


_LISTS = (
    ("Experiments", "experiments", "`hashidrill show NAME` prints the file: it says which incident it comes from."),
    ("Faults", "faults", "How each works, its parameters, observer and limits: [faults](reference-faults.md)."),
    ("Loads", "loads", "Their parameters: [loads](reference-faults.md#loads)."),
    (
        "Hypotheses",
        "hypotheses",
        "Definitions, thresholds and sources: [hypotheses](reference-verdicts.md#hypotheses).",
    ),
)


def _listed(title: str, kind: str, more: str) -> str:
    rows = [list(row.values())[:2] for row in rows_of(kind)]
    lines = "".join(f"| `{name}` | {_cell(what)} |\n" for name, what in rows)
    return f"\n## {title}\n\n{more}\n\n| {kind.rstrip('s')} | what it does |\n| --- | --- |\n{lines}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "reference-commands.md": commands_page,
    "reference-gameday.md": game_day_page,
    "reference-keys.md": keys_page,
    "reference-library.md": library_page,
}


def write(folder: Path) -> None:
    """Write every page into `folder`. Raises OSError."""
    for name, page in PAGES.items():
        (folder / name).write_text(page())


if __name__ == "__main__":
    write(Path("playbooks"))
