"""The experiments of a gate: as many of a suite as the time allows, first those that test the changed keys."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from hashidrill.core.errors import UnknownNameError, UsageError
from hashidrill.core.experiment.library import experiment_name, find_experiment, list_experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.protocols.registry import near
from hashidrill.lab.runs.rounds import expected_s
from hashidrill.rollouts.gate.configuration import PRODUCTS, shipped

TAG = "gate"

KeyMap = Mapping[str, Sequence[Mapping[str, Any]]]
"""Product to groups of `keys`, `experiments` and `why`, as in keys.yaml."""


@dataclass(frozen=True)
class Member:
    """One experiment of a suite. `mattering`: the changed keys for which the map names it; `why`: the map's reason."""

    name: str
    path: Path
    experiment: Experiment
    mattering: tuple[str, ...] = ()
    why: str = ""

    @property
    def run_s(self) -> float:
        return expected_s(self.experiment)


Runs = Callable[[Member], int]
"""How many runs of an experiment are probably needed for an answer."""


@dataclass(frozen=True)
class Picked:
    """The experiments to run, in order, and those for which there is no time."""

    members: tuple[Member, ...]
    left: tuple[Member, ...]
    unmapped: tuple[str, ...]
    """Changed keys that no experiment is known to test."""


def suite(names: Sequence[str], product: str) -> list[Member]:
    """The experiments of these names, or with these tags, that have agents of that product.

    Raises UsageError for a suite without experiments, UnknownNameError for a word that is neither a name nor a tag.
    """
    found: dict[str, Member] = {}
    for name in names:
        tagged = _tagged(name)
        for path, experiment in tagged or [_named(name)]:
            member = Member(experiment_name(path), path, experiment)
            if product in experiment.datacenter.services:
                found.setdefault(member.name, member)
            elif not tagged:
                raise UsageError(
                    f"--suite {name}: this experiment has no {product.capitalize()}, so it cannot test this change"
                )
    if not found:
        what = ", ".join(names) or "nothing"
        raise UsageError(f"--suite {what}: no experiment in it has {product.capitalize()}; `hashidrill list` shows all")
    return list(found.values())


def _tagged(tag: str) -> list[tuple[Path, Experiment]]:
    """Tags are in an experiment's own file, never in a base: a file without the word need not be loaded."""
    told = [path for path in list_experiments() if tag.encode() in path.read_bytes()]
    loaded = [(path, load_experiment(path)) for path in told]
    return [(path, experiment) for path, experiment in loaded if tag in experiment.metadata.tags]


def _named(name: str) -> tuple[Path, Experiment]:
    try:
        path = find_experiment(name)
    except UnknownNameError as error:
        tags = sorted({tag for each in list_experiments() for tag in load_experiment(each).metadata.tags})
        raise UnknownNameError(f"--suite {name}: {error}; it is not a tag either: {near(name, tags)}") from None
    return path, load_experiment(path)


def key_map(more: Path | None = None) -> KeyMap:
    """The shipped map, with the user's groups before the shipped ones. Raises UsageError if the user's is invalid."""
    own = shipped("keys.yaml")
    if more is None:
        return dict(own)
    try:
        read = YAML(typ="safe").load(more.read_text())
    except OSError as error:
        raise UsageError(f"{more}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{more}: is not YAML: {str(error).splitlines()[0]}") from None
    checked = _checked(read, more)
    return {product: [*checked.get(product, []), *own[product]] for product in PRODUCTS}


def _checked(read: Any, file: Path) -> dict[str, list[dict[str, Any]]]:
    if not isinstance(read, dict) or not read.keys() <= PRODUCTS.keys():
        raise UsageError(f"{file}: the top-level keys are {', '.join(PRODUCTS)}, each with a list of groups")
    for product, groups in read.items():
        for number, group in enumerate(groups if isinstance(groups, list) else [None], start=1):
            where = f"{file}: {product}, group {number}"
            if not isinstance(group, dict) or not {"keys", "experiments"} <= group.keys() <= {*_GROUP}:
                raise UsageError(f"{where}: a group has only `keys`, `experiments` and `why`")
            for part in ("keys", "experiments"):
                if not isinstance(group[part], list) or not all(isinstance(one, str) for one in group[part]):
                    raise UsageError(f"{where}: `{part}` must be a list of names")
            for name in group["experiments"]:
                try:
                    find_experiment(name)
                except UnknownNameError as error:
                    raise UsageError(f"{where}: {error}") from None
    return dict(read)


_GROUP = ("keys", "experiments", "why")


def picked(
    members: Sequence[Member], product: str, changed: Sequence[str], mapped: KeyMap, *, budget_s: float, runs: Runs
) -> Picked:
    """Picks experiments by importance: first those that the map names for the changed keys, then the rest of the
    suite.

    Experiments that test more of the keys, and that are earlier in their lists, come first. Picks experiments while
    their time, `runs` of each, fits the budget; always picks at least one.
    """
    worth: dict[str, float] = {}
    keys: dict[str, list[str]] = {}
    why: dict[str, str] = {}
    unmapped = []
    for key in changed:
        groups = [group for group in mapped.get(product, ()) if any(_stands_for(each, key) for each in group["keys"])]
        if not groups:
            unmapped.append(key)
        for group in groups[:1]:  # the user's groups come first, then the shipped ones in their order
            for rank, name in enumerate(group["experiments"]):
                worth[name] = worth.get(name, 0.0) + 1 / (1 + rank)
                keys.setdefault(name, []).append(key)
                why.setdefault(name, str(group.get("why", "")))
    ranked = sorted(
        members, key=lambda member: -worth.get(member.name, 0.0)
    )  # stable: equal ones stay in the suite's order
    chosen: list[Member] = []
    left: list[Member] = []
    spent = 0.0
    for member in ranked:
        cost = runs(member) * member.run_s
        ours = replace(member, mattering=tuple(keys.get(member.name, ())), why=why.get(member.name, ""))
        if chosen and spent + cost > budget_s:
            left.append(ours)
        else:
            chosen.append(ours)
            spent += cost
    return Picked(tuple(chosen), tuple(left), tuple(unmapped))


def _stands_for(pattern: str, key: str) -> bool:
    return key == pattern or key.startswith(f"{pattern}.")
