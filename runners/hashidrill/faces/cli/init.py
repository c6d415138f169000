"""init, new: write files to start from into your own repository. Neither command overwrites a file."""

import os
import re
from collections.abc import Mapping
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.documents import Document, Loc, child_of
from hashidrill.core.experiment.library import (
    FOLDER as EXPERIMENTS,
)
from hashidrill.core.experiment.library import (
    SUFFIXES,
    base_at,
    complete,
    find_experiment,
    library_name,
    own_experiments,
    read_document,
    read_experiment,
)
from hashidrill.core.experiment.load_levels import recorded_files
from hashidrill.core.experiment.model import NAME_PATTERN
from hashidrill.core.experiment.openslo import slo_files
from hashidrill.core.experiment.schema import SCHEMA_TITLE
from hashidrill.core.protocols.registry import near
from hashidrill.core.util.folders import PLAYBOOKS, both, find_playbook, shipped
from hashidrill.core.util.safe_json import parse
from hashidrill.faces.cli.common import Json, console, examples, print_json
from hashidrill.reports.live import display as live

HYPOTHESES, TESTS = "hypotheses", "tests"
WORKFLOW = ".github/workflows/hashidrill.yml"
PLACEHOLDER = "git+https://github.com/OWNER/hashidrill@COMMIT"
"""What the CI file installs if this hashidrill was installed from files that exist only on this machine."""
_FOLDERS = {
    "experiment": EXPERIMENTS,
    "hypothesis": HYPOTHESES,
    "gameday": PLAYBOOKS,
    "runbook": PLAYBOOKS,
    "fault": "",
}
_SUFFIXES = {"hypothesis": (".py",), "runbook": (".md",), "fault": (".py",)}
_EXAMPLES = "extend.md"
"""The page whose examples `new hypothesis` and `new fault` write. Tests run them there."""
_RUNBOOK = "runbook-slow-leader"
_SCHEMA_LINE = re.compile(r"\A# yaml-language-server:.*\n")
_REHEARSED = re.compile(r"^> Rehearsed .*\n\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)[^)]*\)")


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("init", "init our-drills"))(init)
    calls = (
        "new experiments/raft/my-experiment.yaml",
        "new --from raft/killed-leader our-killed-leader",
        "new gameday spring-day --from first-game-day",
        "new hypothesis patience",
    )
    app.command(epilog=examples(*calls))(new)


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it.")] = Path(),
    as_json: Json = False,
) -> None:
    """Write a repository of experiments to start from.

    An experiment, a hypothesis, a game day, a CI file and a README.

    Never overwrites a file: says which files it wrote, and which existed already.
    """
    if (folder / EXPERIMENTS).resolve() == shipped(EXPERIMENTS).resolve():
        raise UsageError("this is the checkout of hashidrill itself: run `hashidrill init` in a folder of your own")
    requirement = _requirement()
    expects = "  # of your own: hypotheses/patience.py\n  - nobody_waits_longer_than: {load: kv-writes, limit: 10s}\n"
    day = f"{PLAYBOOKS}/game-day.yaml"
    texts = {
        f"{EXPERIMENTS}/first-experiment.yaml": _template("experiment.yaml", schema="", name="first-experiment")
        + expects,
        f"{HYPOTHESES}/patience.py": _example("hypotheses/patience.py"),
        day: _template("gameday.yaml", name="game-day", path=day, experiment="first-experiment"),
        WORKFLOW: _template("workflow.yml", requirement=requirement),
        "README.md": _template("README.md"),
        ".gitignore": ".hashidrill/\n",
    }
    there = [name for name, text in texts.items() if not write_new(folder / name, text)]
    if as_json:
        print_json({"wrote": [name for name in texts if name not in there], "kept": there})
        return
    say, at = console(), "" if folder == Path() else f"cd {folder} && "
    for name in texts:
        live.say(say, f"{'kept ' if name in there else 'wrote'} {folder / name}")
    live.say(say, "next:")
    steps = {
        f"{at}hashidrill run": "run what is in experiments/",
        "hashidrill show last --hypotheses hypotheses": "the last verdict",
        "hashidrill new --from raft/killed-leader ours": "copy a shipped experiment",
        f"hashidrill gameday run {day}": "lead a team through it",
    }
    width = max(map(len, steps)) + 2
    for command, meaning in steps.items():
        live.say(say, f"  {command:<{width}}{meaning}")
    if WORKFLOW not in there and requirement == PLACEHOLDER:
        live.say(say, "CI cannot get the files that you installed hashidrill from: set HASHIDRILL in")
        live.say(say, f"{WORKFLOW}")
    if ".gitignore" in there and ".hashidrill" not in (folder / ".gitignore").read_text(errors="replace"):
        live.say(say, "Add .hashidrill/ to .gitignore: recordings are written there.")


def new(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="[KIND] NAME|FILE",
            help=f"KIND is one of {', '.join(_FOLDERS)} (default: experiment). A NAME is written into the folder of"
            " its kind.",
        ),
    ],
    copied: Annotated[
        str | None,
        typer.Option("--from", metavar="NAME", help="The experiment, game day or runbook to copy, with its comments."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a new experiment, or another file, to start from.

    A hypothesis, a game day, a runbook or a fault. Never overwrites a file.

    A copied experiment keeps what it extends; outside a folder `experiments/`, all of that is merged in.
    """
    kind, name = what if len(what) == 2 else ("experiment", what[0])
    if len(what) > 2 or kind not in _FOLDERS:
        raise UsageError(f"there is no kind {kind!r} of new file: {near(kind, _FOLDERS)}")
    path = _path(kind, name)
    if re.fullmatch(NAME_PATTERN, stem := _named(path)) is None:
        raise UsageError(
            f"{path.stem!r} cannot name an experiment or another file: use small letters, digits and hyphens, as in"
            " our-disk"
        )
    if copied is not None and kind in {"hypothesis", "fault"}:
        raise UsageError(
            f"--from copies experiments, game days and runbooks; `hashidrill new {kind} NAME` has an example"
        )
    texts = _texts(kind, path, stem, copied)
    for each in texts:
        if each.exists():
            raise UsageError(f"{each}: already exists; choose another name")
    for each, text in texts.items():
        if not write_new(each, text):
            raise UsageError(f"{each}: already exists; choose another name")
    then = _next(kind, list(texts), stem)
    if as_json:
        print_json({"wrote": [*map(str, texts)], "next": then})
    else:
        live.say(console(), f"wrote {' and '.join(map(str, texts))}; next: {then}")


def _path(kind: str, name: str) -> Path:
    """Where the file goes. Raises UsageError for a name that is invalid for its kind, or if the folder is missing."""
    suffixes = _SUFFIXES.get(kind, SUFFIXES)
    path = Path(name)
    if path.suffix == "" and path.parent == Path():
        return Path(_FOLDERS[kind], name + suffixes[0])
    if path.suffix not in suffixes:
        raise UsageError(f"{path}: the file of a new {kind} ends in {suffixes[0]}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; create it first")
    if kind == "hypothesis" and path.absolute().parent.name != HYPOTHESES:
        raise UsageError(f"{path}: experiments find hypotheses in a folder named {HYPOTHESES}/: put it there")
    return path


def _named(path: Path) -> str:
    return "-".join(part for part in path.stem.lower().replace("_", "-").split("-") if part)


def _texts(kind: str, path: Path, name: str, copied: str | None) -> dict[Path, str]:
    """The files to write, with their content. Raises HashidrillError for an experiment that cannot be copied."""
    word = name.replace("-", "_")
    if kind == "hypothesis":
        test = Path(*path.parts[:-2], TESTS, f"test_{word}.py")
        renamed = {"nobody_waits_longer_than": word, "patience": word}
        return {
            path: _example("hypotheses/patience.py", renamed),
            test: _example("test_patience.py", renamed),
        }
    if kind == "fault":
        renamed = {"readonly_disk": word, "DiskReadonly": _class_name(word), "disk.readonly": f"own.{word}"}
        path = path.with_stem(word)  # the test imports it
        return {
            path: _example("readonly_disk.py", renamed),
            path.with_name(f"test_{word}.py"): _example("test_readonly_disk.py", renamed),
        }
    if kind == "runbook":
        text = find_playbook(copied or _RUNBOOK, _SUFFIXES[kind]).read_text()
        text = _LINK.sub(r"\1", _REHEARSED.sub("", text))  # the copy's folder lacks the linked pages
        text = re.sub(r"^runbook: .*$", f"runbook: {name}", text, count=1, flags=re.MULTILINE)
        return {path: text.replace(f"{PLAYBOOKS}/{copied or _RUNBOOK}.md", str(path))}
    if copied is None:
        own = _own_or_shipped() if kind == "gameday" else ""
        values = {"schema": _schema_line(path)} if kind == "experiment" else {"path": str(path), "experiment": own}
        return {path: _template(f"{kind}.yaml", name=name, **values)}
    if kind == "gameday":
        file = find_playbook(copied, SUFFIXES)
        text = _changed(read_document(file), {("metadata", "name"): name})
        return {path: text.replace(f"{PLAYBOOKS}/{file.name}", str(path))}
    return _copied_experiment(find_experiment(copied), path, name)


def _copied_experiment(source: Path, path: Path, name: str) -> dict[Path, str]:
    """The experiment under another name, with the OpenSLO and CSV files that it names. The path in `extends` is
    adapted to the new place, or the base and these files are merged in if no path leads to the base.
    """
    document = read_document(source)
    changes: dict[Loc, str] = {("metadata", "name"): name}
    if (extends := document.data.get("extends") if isinstance(document.data, dict) else None) is not None:
        if (moved := _moved(base_at(source.parent / extends), path)) is None:
            _, _, whole = complete(read_experiment(source)).partition("\n")  # the first line is the path of the source
            renamed = re.sub(r"^(  name: ).*$", rf"\g<1>{name}", whole, count=1, flags=re.MULTILINE)
            return {path: _schema_line(path) + renamed}
        changes[("extends",)] = moved
    beside = {}
    for loc, written in (*slo_files(document), *recorded_files(document)):
        changes[loc] = f"{path.stem}-{Path(written).name}"
        beside[path.with_name(changes[loc])] = (source.parent / written).read_text()
    return {path: _schema_line(path) + _SCHEMA_LINE.sub("", _changed(document, changes)), **beside}


def _moved(base: Path, path: Path) -> str | None:
    """How an experiment at `path` names the base; None if the base would not be found from there."""
    real, new = base.resolve(), path.absolute()
    library = next((each for each in new.parents if each.name == EXPERIMENTS), None)
    inside = next(
        (real.relative_to(root.resolve()) for root in both(EXPERIMENTS) if real.is_relative_to(root.resolve())), None
    )
    return None if library is None or inside is None else os.path.relpath(library / inside, new.parent)


def _changed(document: Document, changes: Mapping[Loc, str]) -> str:
    """The text of a document with these scalars changed. Places that it lacks are ignored."""
    text = document.text
    places = []
    for loc, value in changes.items():
        node = document.root
        for part in loc:
            found = child_of(node, part)
            if found is None:
                break
            node = found
        else:
            quotes = 2 if text[node.offset] in "\"'" else 0
            places.append((node.offset, len(str(node.value)) + quotes, value))
    for offset, length, value in sorted(places, reverse=True):
        text = text[:offset] + value + text[offset + length :]
    return text


def _own_or_shipped() -> str:
    """The user's first own experiment by name; without one, a shipped experiment."""
    own = own_experiments()
    return library_name(own[0]) or "raft/slow-leader-disk" if own else "raft/slow-leader-disk"


def _next(kind: str, paths: list[Path], name: str) -> str:
    word = name.replace("-", "_")
    match kind:
        case "hypothesis":
            return f"write `- {word}: {{load: kv-writes}}` under `expect` of an experiment; pytest {paths[1]} tests it"
        case "fault":
            return (
                f'pytest {paths[1].name}; to register it: [project.entry-points."hashidrill.faults"] {word} ='
                f' "{word}:{_class_name(word)}" in pyproject.toml'
            )
        case "gameday":
            return f"hashidrill gameday run {paths[0]}"
        case "runbook":
            return f"hashidrill rehearse {paths[0]}"
    return f"hashidrill validate {paths[0]}"


def _class_name(word: str) -> str:
    return "".join(part.capitalize() for part in word.split("_"))


def _template(file: str, **values: str) -> str:
    text = (files("hashidrill.faces.cli") / "templates" / file).read_text(encoding="utf-8")
    return re.sub(r"@@(\w+)@@", lambda found: values[found[1]], text)


def _example(file: str, renamed: Mapping[str, str] | None = None) -> str:
    """An example from playbooks/extend.md, without the line that names its file."""
    page = (shipped(PLAYBOOKS) / _EXAMPLES).read_text(encoding="utf-8")
    text = page.partition(f"```python runnable\n# {file}\n")[2].partition("```\n")[0]
    for old, word in (renamed or {}).items():
        text = text.replace(old, word)
    return text


def write_new(path: Path, text: str) -> bool:
    """Writes a new file; returns False if it already exists. Raises UsageError if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot be a folder: {error.strerror}") from None
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return True


def _schema_line(path: Path) -> str:
    """The comment by which editors find the schema, if a schema.json is in the file's folder or up to two above."""
    for up in ("", "../", "../../"):
        file = path.parent / up / "schema.json"
        if file.is_file() and SCHEMA_TITLE in file.read_text(errors="replace"):
            return f"# yaml-language-server: $schema={up}schema.json\n"
    return ""


def _requirement() -> str:
    """The requirement that installs this same hashidrill elsewhere, from the installer's record (PEP 610): an index
    version or a commit.
    """
    installed = metadata.distribution("hashidrill")
    noted = installed.read_text("direct_url.json")
    if noted is None:
        return f"hashidrill=={installed.version}"
    about = parse(noted)
    commit, url = about.get("vcs_info", {}).get("commit_id"), str(about.get("url"))
    shown = commit and url.startswith("https://") and "@" not in url  # a login before the @ must not get into a file
    return f"git+{url}@{commit}" if shown else PLACEHOLDER
