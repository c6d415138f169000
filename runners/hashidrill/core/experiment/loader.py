"""Reads an experiment: from YAML to a validated `Experiment`, or one error that names every problem with its place.

The steps: text to plain data (documents), its shape (model), the parameters of each fault, load and hypothesis (each
kind's own `Params`), and what cannot work in this datacenter (rules). Each step checks every part of the file that it
still can, so that one message names everything to fix. Nothing is started.
"""

from __future__ import annotations

import json
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from hashidrill.core.errors import UnknownNameError
from hashidrill.core.experiment import checks as rules
from hashidrill.core.experiment import contrast
from hashidrill.core.experiment.bare import settled
from hashidrill.core.experiment.check_variants import check_variants
from hashidrill.core.experiment.disk import Disk
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.explain import explain
from hashidrill.core.experiment.kept_hypotheses import hypotheses_of
from hashidrill.core.experiment.model import (
    API_VERSION,
    MOST_ENTRIES,
    STEP_TAGS,
    ClientSpec,
    Expectation,
    Experiment,
    LoadSpec,
)
from hashidrill.core.experiment.reading import BASE_KIND, KIND, read_experiment
from hashidrill.core.experiment.resolved import Parameters, Provenance, ResolvedExperiment, Variant, sha256
from hashidrill.core.experiment.running import running
from hashidrill.core.experiment.standing import Attached
from hashidrill.core.experiment.start_order import together
from hashidrill.core.experiment.variant_spec import ROUNDS
from hashidrill.core.protocols import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hashidrill.core.experiment.problems import Loc
    from hashidrill.core.hypothesis import Hypothesis
    from hashidrill.core.protocols.service import Service

Model = TypeVar("Model", bound=BaseModel)


def load_experiment(path: Path | str) -> Experiment:
    """The experiment in a YAML file, with every name and parameter checked.

    Raises ExperimentError: one message with file, line, column and caret of each problem. Raises UsageError when a
    file of hypotheses cannot be imported.
    """
    return _Loading(read_experiment(Path(path)), near_to=Path(path)).experiment()[0]


def load_text(text: str, name: str = "experiment.yaml", *, near_to: Path | None = None) -> Experiment:
    """Like `load_experiment`, for text that is not in a file. `name` is the file name in messages."""
    return _Loading(Document(name, text), near_to=near_to).experiment()[0]


def load_document(document: Document, *, near_to: Path | None = None) -> Experiment:
    """Like `load_experiment`, for a document that was already read."""
    return _Loading(document, near_to=near_to).experiment()[0]


def check_base(document: Document, *, near_to: Path | None = None) -> None:
    """Check what can be told of a base by itself: the shape of its sections and the parameters of each kind.

    Raises ExperimentError.
    """
    _Loading(document, near_to=near_to).check_base()


def resolve(path: Path | str) -> ResolvedExperiment:
    """Like `load_experiment`, with everything that a run, its recording and its judge need: nothing is read again.

    Raises ExperimentError, UsageError, and UnknownNameError.
    """
    return resolve_document(read_experiment(Path(path)), path=path)


def resolve_document(
    document: Document, *, path: Path | str, variant: Variant | None = None, files: int | None = None
) -> ResolvedExperiment:
    """Like `resolve`, for a document that was already read from the file `path`, or made from it as a variant.

    `files` counts those of its files that the experiment itself is read from; default: all.
    """
    experiment, data, draft = _Loading(document, near_to=Path(path)).experiment()
    return ResolvedExperiment(
        experiment,
        data,
        _parameters(draft),
        Provenance(
            path=str(path),
            sha256=sha256(document.text.encode()),
            variant=variant,
            extends={file.name: sha256(file.text.encode()) for file in document.files[1:files]},
        ),
        hypotheses=hypotheses_of(experiment, Path(path)),
        document=document,
    )


def _hypothesis(name: str, get: Callable[[str], Hypothesis], *, compares: bool = False) -> Hypothesis:
    found = get(name)
    if bool(found.sides) != compares:
        belongs = (
            "compares recordings, so it belongs under `compare`" if found.sides else "compares nothing: see `expect`"
        )
        raise UnknownNameError(f"{name} {belongs}")
    return found


def _validated(model: type[Model], data: Any) -> Model:
    """Strict, by way of JSON: YAML's values are JSON's, and neither `true` nor `"3"` is a number there."""
    return model.model_validate_json(json.dumps(data), strict=True)


class _Loading:
    """One file on its way to an Experiment. Every method notes problems in the document and continues."""

    def __init__(self, document: Document, near_to: Path | None) -> None:
        self._document = document
        self._near_to = near_to

    @cached_property
    def _get(self) -> Callable[[str], Hypothesis]:
        from hashidrill.core import hypothesis  # noqa: PLC0415 - numpy, which the other steps can do without

        return hypothesis.getter(self._near_to)

    def experiment(self) -> tuple[Experiment, Mapping[str, Any], rules.Draft]:
        """With the data that it was made of, and the draft, which has the parameters of its kinds.

        Raises ExperimentError.
        """
        self._check_header(self._document.data)
        data = settled(self._document.data)
        experiment = self._check(Experiment, data, ())
        draft = self._draft(data)
        rules.check(draft, self._document.problem)
        self._document.raise_problems()
        if experiment is None:
            raise AssertionError("pydantic refused the document without saying why")
        check_variants(self._document, draft, lambda one: _Loading(one, self._near_to).experiment())
        _remember(experiment, draft)
        return experiment, data, draft

    def check_base(self) -> None:
        """Raises ExperimentError. What only the experiments that extend it can tell is left to them."""
        data = self._document.data
        self._check_header(data, kind=BASE_KIND)
        try:
            _validated(Experiment, {"kind": KIND} | {key: value for key, value in data.items() if key != "kind"})
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                if error["loc"] and not (error["type"] == "missing" and len(error["loc"]) == 1):
                    self._note(error, Experiment, ())
        self._draft(data)  # notes what is wrong with the parameters of each kind
        self._document.raise_problems()

    def _check_header(self, data: Any, kind: str = KIND) -> None:
        """A file that is no experiment gets one message, not one for each of its keys."""
        document = self._document
        if isinstance(data, dict) and "extends" in data:
            document.problem(("extends",), "can be followed only where the experiment is a file", key=True)
        if isinstance(data, dict) and data.get("kind") == BASE_KIND != kind:
            document.problem(("kind",), f"a {BASE_KIND} is not run: name an experiment that extends it")
        elif not isinstance(data, dict):
            document.problem(
                (), "an experiment must be a mapping (`key: value`) at the top; `hashidrill new` writes one"
            )
        elif not {"apiVersion", "kind"} & data.keys():
            document.problem((), f"not an experiment: it begins with `apiVersion: {API_VERSION}` and `kind: {KIND}`")
        else:
            for key, right in (("apiVersion", API_VERSION), ("kind", kind)):
                if key in data and data[key] != right:
                    document.problem((key,), f"expected {right}, got {rules.shown(data[key])}")
            if not document.problems or (data.get("apiVersion") == API_VERSION and data.get("kind") == kind):
                return
        document.raise_problems()

    def _check(self, model: type[Model], data: Any, loc: Loc) -> Model | None:
        """`data` as a model, or None after noting its problems."""
        try:
            return _validated(model, data)
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                self._note(error, model, loc)
            return None

    def _note(self, error: Mapping[str, Any], model: type[BaseModel], base: Loc) -> None:
        found = tuple(error["loc"])
        if found[:1] == ("method",) and found[2:3] and found[2] in STEP_TAGS:
            found = (*found[:2], *found[3:])
        on_key = error["type"] == "extra_forbidden" or found[-1:] == ("[key]",)
        text = explain(error, model)
        if found[-1:] == ("[key]",):
            found = found[:-1]
        if error["type"] == "missing":
            found = found[:-1]
        elif found[:1] in {("expect",), ("compare",)} and found[2:] in {("params",), ("hypothesis",)}:
            return  # _expectation looks at the raw data and says it in YAML's terms
        self._document.problem((*base, *found), text, key=on_key)

    # what the rules look at: each part by itself, so that a mistake in one part does not hide those in another

    def _draft(self, data: Mapping[str, Any]) -> rules.Draft:
        named, clients = (_first(data.get(key, {})) for key in ("load", "clients"))
        return rules.Draft(
            services=_services(_at(data, "datacenter", default={})),
            disk=_maybe(Disk, _at(data, "datacenter", "disk", default={})),
            load_names=None if named is None or clients is None else [*named, *clients],
            loads={name: self._load(name, load) for name, load in (named or {}).items()},
            clients={name: _maybe(ClientSpec, client) for name, client in (clients or {}).items()},
            steps=[self._step(index, step) for index, step in enumerate(_list(data.get("method")))],
            guardrails=[rules.condition(text) for text in _list(data.get("guardrails"))],
            require=[rules.condition(text) for text in _list(_at(data, "steady_state", "require", default=[]))],
            marks={index: self._mark(step) for index, step in enumerate(_list(data.get("method"))) if _marks(step)},
            durations={loc: rules.duration(_at(data, *loc, default=usual)) for loc, usual in rules.DURATIONS.items()},
            expectations=[
                self._expectation(("expect", index), raw) for index, raw in enumerate(_list(data.get("expect")))
            ],
            comparisons=[
                self._expectation(("compare", index), raw) for index, raw in enumerate(_list(data.get("compare")))
            ],
            rounds=rounds if isinstance(rounds := data.get("rounds", ROUNDS), int) else None,
        )

    def _load(self, name: str, data: Any) -> rules.Load | None:
        load = _maybe(LoadSpec, data)
        if load is None:
            return None
        params = self._kind_params(
            lambda: registry.load(load.kind), load.params, ("load", name, "kind"), ("load", name)
        )
        return None if params is None else rules.Load(load.kind, params, load.profile)

    def _step(self, index: int, data: Any) -> rules.Step | None:
        """None if nothing says which fault this is."""
        loc: Loc = ("method", index)
        if _marks(data):
            return None
        kind, raw = _at(data, "fault", default=None), _at(data, "with", default={})
        if not isinstance(kind, str):
            return None
        params: BaseModel | None = None
        if isinstance(raw, dict):
            params = self._kind_params(lambda: registry.fault(kind), raw, (*loc, "fault"), (*loc, "with"))
        on = _at(data, "on", default=None)
        return rules.Step(
            kind,
            params,
            on if isinstance(on, str) else None,
            rules.duration(_at(data, "at", default="0s")),
            rules.duration(_at(data, "for", default=None)),
            name if isinstance(name := _at(data, "name", default=None), str) else None,
            _texts(_at(data, "after", default=[])),
        )

    def _mark(self, data: Any) -> rules.Mark:
        name = _at(data, "mark", default=None)
        return rules.Mark(
            name if isinstance(name, str) else None,
            rules.duration(_at(data, "at", default="0s")),
            rules.duration(_at(data, "for", default=None)),
            _texts(_at(data, "after", default=[])),
        )

    def _expectation(self, loc: Loc, data: Any) -> rules.Expectation | None:
        names = [key for key in data if key != "known_issue"] if isinstance(data, dict) else []
        if len(names) != 1 or names == ["hypothesis"]:
            if names and _maybe(Expectation, data) is not None:  # `hypothesis: NAME` is how we write it, not YAML
                self._document.problem(loc, "an expectation is written like `- writes_recover: {load: kv-writes}`")
            return None
        name, raw = names[0], data[names[0]]
        if raw is not None and not isinstance(raw, dict):
            text = f"expected the parameters of {name} as a mapping (`key: value`), got {rules.shown(raw)}"
            self._document.problem((*loc, name), text)
            return None
        compares, found = loc[0] == "compare", None

        def find() -> Hypothesis:
            nonlocal found
            found = _hypothesis(name, self._get, compares=compares)
            return found

        params = self._kind_params(find, raw or {}, (*loc, name), (*loc, name), name_is_key=True)
        if params is None or found is None:
            return None
        sides = list(self._sides(params, (*loc, name))) if name == contrast.NAME else []
        return rules.Expectation(name, params, sides, found.sides if compares else (), found.never)

    def _sides(self, params: BaseModel, loc: Loc) -> Iterator[rules.Side]:
        """What a contrast passes to another hypothesis, for its good and its bad side."""
        written = params.model_dump()
        for which in contrast.SIDES:
            try:
                found = _hypothesis(written["of"], self._get)
            except UnknownNameError as unknown:
                self._document.problem((*loc, "of"), str(unknown))
                return
            raw = contrast.side(found.Params, written[which], written["params"])
            checked = self._check(found.Params, raw, (*loc, which))
            if checked is not None:
                yield rules.Side((*loc, which), checked, found.never)

    def _kind_params(
        self, find: Callable[[], Any], raw: Mapping[str, Any], kind_loc: Loc, loc: Loc, *, name_is_key: bool = False
    ) -> BaseModel | None:
        try:
            model: type[BaseModel] = find().Params
        except UnknownNameError as unknown:
            self._document.problem(kind_loc, str(unknown), key=name_is_key)
            return None
        return self._check(model, raw, loc)


def _remember(experiment: Experiment, draft: rules.Draft) -> None:
    """Leave the parameters of each kind with the part that they belong to: nobody in this process validates again."""
    steps = zip(experiment.method, draft.steps, strict=True)
    for part, drafted in (*steps, *((load, draft.loads[name]) for name, load in experiment.load.items())):
        if drafted is not None:
            vars(part)["parameters"] = drafted.params  # where the cached property keeps it


def _parameters(draft: rules.Draft) -> Parameters:
    """Only for an experiment without problems: then no part of the draft is missing. A mark has no parameters."""
    return Parameters(
        loads={name: _plain(load.params) for name, load in draft.loads.items() if load},
        steps=[_plain(step.params) if step and step.params else {} for step in draft.steps],
        expectations=[_plain(expectation.params) for expectation in draft.expectations if expectation],
    )


def _plain(params: BaseModel) -> dict[str, Any]:
    return params.model_dump(mode="json", by_alias=True)


def _marks(data: Any) -> bool:
    """Whether a step is a mark."""
    return isinstance(data, dict) and "mark" in data


def _maybe(model: type[Model], data: Any) -> Model | None:
    try:
        return _validated(model, data)
    except ValidationError:
        return None


def _services(data: Any) -> list[Service] | None:
    """The services of a datacenter, or None if the part of one could not be read."""
    written = data if isinstance(data, dict) else {}
    classes = {name: registry.services()[name] for name in running(written)}
    parts = {name: _maybe(cls.Spec, written.get(name, {})) for name, cls in classes.items()}
    attached = _maybe(Attached, written["attached"]) if "attached" in written else None
    return None if None in parts.values() else together(parts, placed=None if attached is None else attached.places())


def _at(data: Any, *keys: str | int, default: Any) -> Any:
    """The value under `keys`, or `default` if a key on the way is missing or holds no mapping."""
    for key in keys:
        if not isinstance(data, dict) or key not in data:
            return default
        data = data[key]
    return data


def _texts(data: Any) -> list[str]:
    return [each for each in _list(data) if isinstance(each, str)]


def _first(data: Any) -> dict[str, Any] | None:
    """The entries of a mapping, at most as many as the model allows; None if it is no mapping."""
    return dict(islice(data.items(), MOST_ENTRIES)) if isinstance(data, dict) else None


def _list(data: Any) -> list[Any]:
    """At most as many entries as the model allows. It refused the rest, and some rules compare every pair."""
    return data[:MOST_ENTRIES] if isinstance(data, list) else []
