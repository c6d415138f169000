"""The reference pages, generated from the code: commands, keys, faults, loads, hypotheses, and the shipped library.

`python -m hashidrill.faces.cli.reference` rewrites them in playbooks/; a test compares the files with these functions'
results.
"""

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from hashidrill.core import hypothesis
from hashidrill.core.experiment.schema import experiment_schema
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Observer
from hashidrill.faces.cli.app import app
from hashidrill.faces.cli.library import COMMON, parameters
from hashidrill.faces.cli.listing import rows_of
from hashidrill.gamedays.gameday.plan import gameday_schema

Schema = dict[str, Any]
Shown = dict[str, tuple[str, str]]
"""The first section of each line, or "" for the top of the page, and the default of the line there."""
_DEFAULTS = "Defaults are in brackets; a value without a default is left out, and a switch without one is off."
_OPTIONAL = "Defaults are in brackets; a parameter that ends in `?` may be left out."
_OBSERVED = "`Observed` says what proves a fault, and `shared` what this proof has in common with the injector."
_MANY = 4
"""An option, or a parameter of loads, that is used this often or more is explained before all others."""
_MADE = "Generated from the code by `python -m hashidrill.faces.cli.reference`; do not edit.\n"


def commands_page() -> str:
    context = typer.Context(typer.main.get_command(app), info_name="hashidrill")
    names = context.command.list_commands(context)  # type: ignore[attr-defined]  # it is a group
    commands = {name: context.command.get_command(context, name) for name in names}  # type: ignore[attr-defined]
    used = Counter(_option(each) for command in commands.values() for each in _options(command))
    common = [line for line, times in used.items() if times >= _MANY]
    shown = _explained(common)
    head = (
        f"# Reference: commands\n\n{_MADE}\n`--help` prints the same, with examples. {_DEFAULTS}\n"
        f"Options of many commands:\n\n{''.join(common)}"
    )
    return head + "".join(text for name, one in commands.items() for text in _sections(name, one, 2, shown))


def _about(command: Any) -> str:
    return (command.help or "").strip()


def _sections(name: str, command: Any, level: int, shown: Shown) -> Iterator[str]:
    """The help of a command; a group's help includes the help of its commands."""
    yield f"\n{'#' * level} {name}\n\n{_about(command)}\n{_parameters(name, command, shown)}"
    for below, one in getattr(command, "commands", {}).items():
        yield from _sections(f"{name} {below}", one, level + 1, shown)


def _parameters(name: str, command: Any, shown: Shown) -> str:
    """One line for each parameter, except for options that an earlier command explains in the same words."""
    lines = _unsaid(
        name, [_option(each) for each in command.params], shown, lambda first: f"[{first}](#{first.replace(' ', '-')})"
    )
    return f"\n{lines}" if lines else ""


def _option(parameter: Any) -> str:
    opts = ", ".join(parameter.opts) if parameter.param_type_name == "option" else parameter.metavar
    return _item(opts or parameter.name.upper(), _default(parameter), parameter.help or "")


def _options(command: Any) -> Iterator[Any]:
    yield from command.params
    for below in getattr(command, "commands", {}).values():
        yield from _options(below)


def _unsaid(name: str, lines: list[str], shown: Shown, refer: Callable[[str], str]) -> str:
    """The lines, except those that an earlier section has in the same words: one line names their parameters."""
    told, again = "", dict[str, list[str]]()
    for line in lines:
        key, default = _without_default(line)
        first, its = shown.setdefault(key, (name, default))
        if first == name:
            told += line
        else:
            named = f"`{line.split('`')[1]}`" if line[2] == "`" else "the observer"
            again.setdefault(first, []).append(named + default * (default != its))
    parts = [f"{', '.join(those)}{f' as for {refer(first)}' if first else ''}" for first, those in again.items()]
    return told + (f"- Also {'; '.join(parts)}.\n" if parts else "")


def _explained(common: Iterable[str]) -> Shown:
    """Lines at the top of the page."""
    return {key: ("", default) for key, default in map(_without_default, common)}


def _without_default(line: str) -> tuple[str, str]:
    """What identifies a line, which is its text without default and examples, and its default."""
    said = line.partition("; like ")[0].strip()
    found = re.match(r"- `[^`]*`( \([^)]*\))", said)
    default = found[1] if found else ""
    return said.replace(default, "", 1), default


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if isinstance(value, bool):
        return "on" if value else ""
    return "" if value is None or value in {"", ()} else f"{getattr(value, 'value', value)}"


def keys_page() -> str:
    """Every key of an experiment that does not belong to a fault, a load or a hypothesis."""
    schema = experiment_schema(bases=False)
    head = (
        f"# Reference: the keys of an experiment\n\n{_MADE}\n"
        "The parameters of faults, loads and probes are in [reference-faults.md](reference-faults.md), the parameters\n"
        "of hypotheses in [reference-verdicts.md](reference-verdicts.md). Quantities carry their unit: `500ms`,\n"
        f"`50/s`, `4kB`, `30%`. {_DEFAULTS}\n"
        "\n"
        "`extends` names a base: a file with `kind: Base`, no `metadata`, and any other section. The experiment is\n"
        "merged over it, key by key. A list replaces the base's list; `null` removes a key of the base. A base may\n"
        "extend another base. `hashidrill show --complete EXPERIMENT` prints the result.\n"
        "\n"
        "`variants` names overlays of `datacenter`, `load`, `clients` and `expect`, each merged over the experiment\n"
        "in the same way; `{}` is the experiment unchanged. [Comparisons](verdicts.md#comparisons-of-variants) says\n"
        "how variants are run and judged. `--variant NAME` of `hashidrill run` and `show` selects one variant.\n"
    )
    return head + _key_sections(schema)


def _key_sections(schema: Schema) -> str:
    """A section for each mapping. Text that two sections share is only in the first. Examples are at the first key of
    their type, and the description of a mapping is at the key that leads to it.
    """
    sections, shown, said, definitions = "", Shown(), set[str](), schema["$defs"]
    for path, part in _parts("", schema, definitions):
        title = f"`{path}`" if path else "The file"
        required = part.get("required", [])
        about = part.get("description", "")
        told = "" if about in said else f"{about}\n\n"
        lines = [
            _item(
                key, "required" if key in required else _written(field, definitions), _meaning(field, definitions, said)
            )
            for key, field in _fields(part)
        ]
        sections += f"\n## {title}\n\n{told}{_unsaid(title, lines, shown, str)}"
    return sections


def _parts(path: str, schema: Schema, definitions: Schema) -> Iterator[tuple[str, Schema]]:
    """(path, schema) of every mapping that has its own keys, in the order of a file."""
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
    """The names of the definitions that a field leads to, except definitions of single kinds."""
    if isinstance(about, list):
        return [name for each in about for name in _references(each)]
    if not isinstance(about, dict):
        return []
    own = [about["$ref"].removeprefix("#/$defs/")] if "$ref" in about else []
    inner = [about[key] for key in ("anyOf", "items", "additionalProperties", "else", "then") if key in about]
    return own + [name for each in (*inner, *about.get("patternProperties", {}).values()) for name in _references(each)]


def _written(about: Schema, definitions: Schema) -> str:
    """A default as YAML would write it; "below" for a mapping that has its own section."""
    if any(name in definitions for name in _references(about)):
        return "below" if about.get("default") else ""
    value = about.get("default")
    if value is None or value in ({}, [], "", False):
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _meaning(about: Schema, definitions: Schema, said: set[str]) -> str:
    """The field's description, or the description of its definition, and the values that the field may have."""
    described = [definitions[name].get("description", "") for name in _references(about) if name in definitions]
    text = about.get("description") or next(iter(described), "")
    plain = [about, about.get("items", {}), *about.get("anyOf", [])]
    limits = [f"{word} {each[key]}" for each in plain for key, word in _LIMITS.items() if key in each]
    fixed = [f"`{each['const']}`" for each in plain if "const" in each]
    examples: list[str] = next((each["examples"][:_EXAMPLES] for each in plain if "examples" in each), [])
    like = f"like {', '.join(f'`{value}`' for value in examples)}" if examples else ""
    parts = (text.rstrip("."), *fixed, ", ".join(limits), "" if like in said or "One of: " in text else like)
    said |= {text, like}
    return "; ".join(part for part in parts if part)


_EXAMPLES = 6
_LIMITS = {"minimum": "at least", "maximum": "at most"}


def game_day_page() -> str:
    schema = gameday_schema()
    head = (
        f"# Reference: the keys of a game day\n\n{_MADE}\n"
        "A game day is a file of `kind: GameDay`. `hashidrill gameday run FILE` leads through it; `hashidrill\n"
        f"validate FILE` checks it. [first-game-day.md](first-game-day.md) shows how a day goes. {_DEFAULTS}\n"
    )
    return head + _key_sections(schema)


def library_page() -> str:
    """The shipped experiments, a line each, as `hashidrill list` prints them."""
    rows = [list(row.values())[:2] for row in rows_of("experiments")]
    lines = "".join(f"| `{name}` | {_cell(what)} |\n" for name, what in rows)
    return (
        f"# Reference: the library\n\n{_MADE}\n"
        "`hashidrill show NAME` prints the file, which says on which incident the experiment is based.\n"
        f"\n## Experiments\n\n| experiment | what it does |\n| --- | --- |\n{lines}"
    )


def faults_page() -> str:
    """All loads and probes, and all faults except Kubernetes' faults, as `hashidrill show KIND` prints them."""
    shown: Shown = {}
    faults = _faults(shown, of_kubernetes=False)
    lines = [line for cls in registry.loads().values() for line in _told(cls.Params)]
    used = Counter(_without_default(line)[0] for line in lines)
    # the most frequent line of each name comes last
    by_name = {
        line.split("`")[1]: line for line in sorted(lines, key=lines.count) if used[_without_default(line)[0]] >= _MANY
    }
    shown |= _explained(by_name.values())
    loads = [_kind(kind, cls.__doc__, cls.Params, shown) for kind, cls in registry.loads().items()]
    probes = [_kind(kind, cls.__doc__, cls.Params, shown) for kind, cls in registry.probes().items()]
    return (
        f"# Reference: faults, loads and probes\n\n{_MADE}\n"
        "[Steps and proofs](steps-and-proofs.md) says how a fault is aimed, applied, proven and reverted.\n"
        f"{_OPTIONAL} {_OBSERVED}\n"
        "The faults that Chaos Mesh or Litmus inject are in [faults of Kubernetes](reference-kubernetes-faults.md).\n"
        f"\n## Faults\n{faults}\n## Loads\n\n"
        "Loads are open loop: an operation starts when it is due, however slow earlier ones are, and its latency\n"
        "counts from that moment. Any of them can have a [profile](steps-and-proofs.md#load-profiles).\n"
        f"Parameters of many loads:\n\n{''.join(by_name.values())}"
        f"{''.join(loads)}\n## Probes\n\n"
        "An experiment names probes under `probes:`, with `every` (1s) and `timeout` (1s). [Your own\n"
        "evidence](your-own-evidence.md) says how.\n"
        f"{''.join(probes)}"
    )


def kubernetes_page() -> str:
    """The faults that Chaos Mesh and Litmus inject."""
    return (
        f"# Reference: faults of Kubernetes\n\n{_MADE}\n"
        "[Chaos Mesh](reference-kubernetes.md) and [Litmus](reference-litmus.md) inject them; these two pages say\n"
        f"what each tool needs. {_OPTIONAL} {_OBSERVED}\n{_faults({}, of_kubernetes=True)}"
    )


def _faults(shown: Shown, *, of_kubernetes: bool) -> str:
    return "".join(
        _kind(kind, cls.__doc__, cls.Params, shown, cls.observer)
        for kind, cls in registry.faults().items()
        if cls.__module__.startswith("hashidrill.kubernetes") == of_kubernetes
    )


def _kind(name: str, doc: str | None, params: Any, shown: Shown, observer: Observer | None = None) -> str:
    """The section of a fault, a load or a probe. Text that an earlier section has in the same words is not repeated;
    `shown` maps it to that section.
    """
    told = _told(params)
    if observer is not None:
        told.append(f"- Observed: {observer.through}{f'; shared: {observer.shares}' if observer.shares else ''}.\n")
    lines = _unsaid(name, told, shown, lambda first: f"`{first}`")
    return f"\n### `{name}`\n\n{inspect.cleandoc(doc or '')}\n" + (f"\n{lines}" if lines else "")


def _told(params: Any) -> list[str]:
    return [f"- {_parameter(key, default)}: {text}\n" for key, default, text in parameters(params)]


def verdicts_page() -> str:
    """Every shipped hypothesis, as `hashidrill show NAME` prints it."""
    common = "".join(f"| `{name}` | {text} |\n" for name, text in COMMON.items())
    parts = (("Hypotheses", hypothesis.all_hypotheses()), ("Comparisons", hypothesis.all_comparisons()))
    return (
        f"# Reference: hypotheses\n\n{_MADE}\n"
        "[Verdicts](verdicts.md) says what PASS, FAIL and INVALID mean. A failed operation counts as infinitely slow.\n"
        f"A fault is in force from the moment it was applied until it was reverted. {_OPTIONAL}\n"
        "Parameters of many hypotheses:\n"
        f"\n| parameter | meaning |\n| --- | --- |\n{common}"
        + "".join(
            f"\n## {title}\n" + "".join(_hypothesis(name, one.doc, one.Params) for name, one in found.items())
            for title, found in parts
        )
    )


READS = {
    'recording.operations("kv-writes")': {
        "intended_ns": "when it was due",
        "start_ns": "when the generator started it",
        "end_ns": "when it ended",
        "latency_s": "from `intended_ns` to `end_ns`",
        "lag_s": "from `intended_ns` to `start_ns`: how late the generator was",
        "outcome": "`ok`, `fail` (not done) or `unknown` (maybe done)",
        "ok": "`outcome` is `ok`",
        "status": "HTTP status; 0 without an answer",
        "keys": "what it wrote or read",
        "values": "what it wrote",
        "errors": "why it was not ok, in words",
        "reasons": "why it was not ok, as a code, like `timeout`",
        "details": "fields that only loads of this kind record, or None",
    },
    'recording.series("raft.leader")': {
        "t_ns": "when the probe looked",
        "value": "in the unit of the signal; NaN where the look failed",
        "text": "the value in words, or why the look failed",
        "host": "where it looked",
        "ok": "the look succeeded",
    },
    "measure.faults(recording)[0]": {
        "kind": "the kind of the fault",
        "host": "the host it was put on",
        "params": "its `with`",
        "intent_ns": "before anything changed",
        "applied_ns": "`apply` returned",
        "proven_ns": "its effect was measured",
        "still_ns": "its effect was measured again, just before the revert",
        "reverted_ns": "`revert` returned",
        "gone_ns": "its effect was measured to be gone",
        "proven": "times are None for events that did not happen",
    },
    "recording": {
        "loads": "the loads with operations",
        "signals": "the sampled signals",
        "phases": "when each phase began and ended: start, ready, steady, method, recovery, quiesce",
        "faults": "one for each target of each step, including unproven faults",
        "marks": "the marks of the method",
        "outcome": "how the run ended, like `complete`",
        'final_reads("kv-writes")': "the value of each key at the end; None for an absent one",
        'events("phase")[0].data': "an entry of the journal ([events](reference-events.md))",
        "run": "versions, configuration, hosts and machine",
    },
}
"""The columns that a hypothesis can read, and their meaning. `recording_page` adds their types and examples."""
_EXAMPLE_CHARACTERS = 46


def recording_page() -> str:
    """What a hypothesis may read of a recording, shown for a small recording."""
    import tempfile  # noqa: PLC0415 - only this page needs a recording

    from hashidrill.core.judging import measure  # noqa: PLC0415 - as above
    from hashidrill.testing import RecordingBuilder  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as folder:
        built = RecordingBuilder(Path(folder) / "run").fault(
            "disk.latency", "consul-1", at=10, until=30, params={"delay": "500ms"}
        )
        built.mark("load-grows", at=32, until=40)
        built.load("kv-writes", rate=2, keys=9, outcome=lambda at: "fail" if at < 5 else "ok").final_reads("kv-writes")
        names = {"recording": built.series("raft.leader", 1.0, host="consul-1").build(), "measure": measure}
        lines = [
            (
                f"# Reference: what a hypothesis may read\n\n{_MADE}\n"
                "`int[]` is a numpy array and `list[str]` a list, with a row for each operation or look.\n"
                "Times are nanoseconds since the run began. [How to write one](extend.md#a-hypothesis).\n"
            )
        ]
        for of, parts in READS.items():
            whole = eval(of, names)  # noqa: S307 - of the table above
            lines.append(f"\n`{of}`:\n\n| part | type | meaning |\n| --- | --- | --- |\n")
            for part, meaning in parts.items():
                shape, example = _shape(eval(f"whole.{part}", {"whole": whole}))  # noqa: S307 - as above
                lines.append(f"| `{part}` | {shape} | {meaning}{example} |\n")
    return "".join(lines)


def _shape(value: Any) -> tuple[str, str]:
    """The type, and an example unless it is long, empty or a number: the value, or the first one of several."""
    column = hasattr(value, "dtype")
    first = value[0] if column or isinstance(value, list) else value
    first = next(iter(first.items())) if isinstance(first, dict) else first.item() if column else first
    kind = "dict" if isinstance(value, dict) else type(first).__name__
    shown = _cell(repr(first)) if first and not isinstance(first, (int, float)) else ""
    return (f"{kind}[]" if column else f"list[{kind}]" if isinstance(value, list) else kind), (
        f", like `{shown}`" if 0 < len(shown) <= _EXAMPLE_CHARACTERS else ""
    )


def _hypothesis(name: str, doc: str, params: Any) -> str:
    takes = [_parameter(key, default) for key, default, _ in parameters(params)]
    return f"\n### `{name}`\n\n{inspect.cleandoc(doc)}\n\nTakes {', '.join(takes) or 'no parameters'}.\n"


def _parameter(name: str, default: str) -> str:
    return {"required": f"`{name}`", "none": f"`{name}?`"}.get(default, f"`{name}` ({default})")


def _item(name: str, default: str, text: str) -> str:
    """A line that explains a parameter, an option or a key."""
    return f"- `{name}`{f' ({default})' if default else ''}: {' '.join(text.split())}\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "reference-commands.md": commands_page,
    "reference-faults.md": faults_page,
    "reference-gameday.md": game_day_page,
    "reference-keys.md": keys_page,
    "reference-kubernetes-faults.md": kubernetes_page,
    "reference-library.md": library_page,
    "reference-recording.md": recording_page,
    "reference-verdicts.md": verdicts_page,
}


def write(folder: Path) -> None:
    """Write every page into `folder`. Raises OSError."""
    for name, page in PAGES.items():
        (folder / name).write_text(page())


if __name__ == "__main__":
    write(Path("playbooks"))
