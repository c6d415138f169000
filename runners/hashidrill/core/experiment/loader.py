"""Reads an experiment: from YAML to a validated `Experiment`, or one error that names every problem with its place.

The steps: text to plain data (documents), its shape (model), the parameters of each fault, load and hypothesis (each
kind's own `Params`), and what cannot work in this datacenter (checks). Nothing is started.

A variant is an experiment with a named overlay of its datacenter, load, clients or expectations. An overlay is merged
as `extends` merges: mappings key by key, and the overlay wins; a list or a value replaces the experiment's; null
removes a key. The result is a whole experiment, which is checked again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from hashidrill import __version__
from hashidrill.core.errors import UnknownNameError, UsageError
from hashidrill.core.experiment.checks import Expected, check, check_sections, check_variants, written_variants
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import BASE_KIND, KIND, read_experiment
from hashidrill.core.experiment.model import (
    API_VERSION,
    CONTRAST,
    CONTRAST_SIDES,
    MOST_ENTRIES,
    NAME_PATTERN,
    OF_VARIANTS,
    SCRIPT,
    SECTIONS,
    STEP_TAGS,
    Experiment,
    Step,
    contrast_side,
)
from hashidrill.core.experiment.pydantic_messages import explain
from hashidrill.core.experiment.resolved import Parameters, Provenance, ResolvedExperiment, Variant, sha256
from hashidrill.core.experiment.selectors import CLIENT_PREFIX
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hashidrill.core.experiment.documents import Loc
    from hashidrill.core.hypothesis import Hypothesis


__all__ = ["SECTIONS", "variant_of", "variants_of", "varied"]


def varied(
    given: ResolvedExperiment | Document, overlay: Mapping[str, Any], *, name: str, source: str | None = None
) -> ResolvedExperiment:
    """The experiment with `overlay` over it, resolved and checked as if it had been written out.

    `given` is the experiment (from `resolve`), or its document (from `read_experiment`). `overlay` is plain data of
    the sections SECTIONS; `name` names the variant, in messages and in the recording of its run. `source` names the
    overlay in messages, which quote it as JSON with line and column; default: `variant NAME`.

    Raises ExperimentError as `resolve` does, and for a section that cannot vary; UsageError for a bad name.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(f"{name!r} cannot name a variant: write lower-case words joined by dashes, like new-config")
    document = _document_of(given)
    over = Document(source or f"variant {name}", json.dumps(overlay, indent=2, ensure_ascii=False))
    check_sections(over, name)
    path = given.path if isinstance(given, ResolvedExperiment) else Path(given.name)
    variant = Variant(name=name, overlay=over.data)
    return resolve_document(
        document.under(over, without=OF_VARIANTS, variant=name), path=path, variant=variant, files=len(document.files)
    )


def variants_of(given: ResolvedExperiment) -> dict[str, ResolvedExperiment]:
    """The `variants:` of an experiment by name; empty if it has none.

    Raises ExperimentError for an experiment from a recording that can no longer be resolved here.
    """
    document = _document_of(given)
    overlays = document.data.get("variants") or {}
    return {
        name: resolve_document(one, path=given.path, variant=Variant(name=name, overlay=overlays[name] or {}))
        for name, one in written_variants(document).items()
    }


def variant_of(given: ResolvedExperiment, name: str) -> ResolvedExperiment:
    """One variant. Raises UnknownNameError if the experiment has none of that name."""
    found = variants_of(given)
    if name not in found:
        has = near(name, found) if found else "it has no variants"
        raise UnknownNameError(f"{given.path}: {given.name} has no variant {name!r}: {has}")
    return found[name]


def _document_of(given: ResolvedExperiment | Document) -> Document:
    """The document that a variant is laid over. An experiment from a recording has none: its data are written out."""
    if isinstance(given, Document):
        return given.unmarked()
    if given.document is not None:
        return given.document.unmarked()
    return Document(given.provenance.path, json.dumps(given.data, indent=2, ensure_ascii=False))


Model = TypeVar("Model", bound=BaseModel)


def load_experiment(path: Path | str) -> Experiment:
    """The experiment in a YAML file, with every name and parameter checked.

    Raises ExperimentError: one message with file, line, column and caret of each problem. Raises UsageError when a
    file of hypotheses cannot be imported.
    """
    return _Loading(read_experiment(Path(path)), near_to=Path(path)).experiment()


def load_text(text: str, name: str = "experiment.yaml", *, near_to: Path | None = None) -> Experiment:
    """Like `load_experiment`, for text that is not in a file. `name` is the file name in messages."""
    return _Loading(Document(name, text), near_to=near_to).experiment()


def load_document(document: Document, *, near_to: Path | None = None) -> Experiment:
    """Like `load_experiment`, for a document that was already read."""
    return _Loading(document, near_to=near_to).experiment()


def check_base(document: Document, *, near_to: Path | None = None) -> None:
    """Checks a base by itself: the shape of its sections and the parameters of each kind. Raises ExperimentError."""
    _Loading(document, near_to=near_to).check_base()


def resolve(path: Path | str) -> ResolvedExperiment:
    """Like `load_experiment`, with everything that a run, its recording and its judge need: nothing is read again.

    Raises ExperimentError, UsageError, and UnknownNameError.
    """
    return resolve_document(read_experiment(Path(path)), path=path)


def resolve_document(
    document: Document, *, path: Path | str, variant: Variant | None = None, files: int | None = None
) -> ResolvedExperiment:
    """Like `resolve`, for a document that was read from the file `path`, or made from it as a variant.

    `files` is how many of the document's files belong to the experiment itself; default: all.
    """
    loading = _Loading(document, near_to=Path(path))
    experiment = loading.experiment()
    return ResolvedExperiment(
        experiment,
        loading.data,
        _parameters(experiment, loading.expected),
        Provenance(
            path=str(path),
            sha256=sha256(document.text.encode()),
            variant=variant,
            extends={file.name: sha256(file.text.encode()) for file in document.files[1:files]},
        ),
        hypotheses=hypothesis_sources(experiment, Path(path)),
        document=document,
    )


def hypothesis_sources(experiment: Experiment, near_to: Path | None) -> dict[str, Any]:
    """The content of hypotheses.json: the origin of each hypothesis, by name, and every source file once.

    Raises UnknownNameError, or UsageError for a file that does not load.
    """
    from hashidrill.core import hypothesis  # noqa: PLC0415 - numpy, which loading can do without
    from hashidrill.core.hypothesis.files import is_shipped, source_of  # noqa: PLC0415 - as above

    names = [each.hypothesis for each in (*experiment.expect, *experiment.compare)]
    names += [str(each.params.get("of")) for each in experiment.expect if each.hypothesis == CONTRAST]
    found: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    get = hypothesis.getter(near_to)
    for name in dict.fromkeys(names):
        one = get(name)
        source = source_of(one)
        digest = sha256(source)
        sources[digest] = source.decode(errors="backslashreplace")
        found[name] = {"file": str(one.path), "line": one.line, "sha256": digest, "shipped": is_shipped(one.path)}
    return {"hashidrill": __version__, "hypotheses": found, "sources": sources}


class _Loading:
    """One file on its way to an Experiment. Methods note problems in the document and continue."""

    data: Mapping[str, Any]
    expected: Sequence[Expected]

    def __init__(self, document: Document, near_to: Path | None) -> None:
        self._document = document
        self._near_to = near_to

    @cached_property
    def _get(self) -> Callable[[str], Hypothesis]:
        from hashidrill.core import hypothesis  # noqa: PLC0415 - numpy, which the other steps can do without

        return hypothesis.getter(self._near_to)

    def experiment(self) -> Experiment:
        """The experiment; `data` and `expected` are set on the way. Raises ExperimentError."""
        self._check_header(self._document.data)
        self.data = _with_services(self._document.data)
        experiment = self._check(Experiment, self.data, ())
        loads, steps, probes = self._kinds(self.data)
        self.expected = self._all_expected(self.data, "expect")
        comparisons = self._all_expected(self.data, "compare")
        self._document.raise_problems()
        if experiment is None:
            raise AssertionError("pydantic refused the document without saying why")
        # stored where the cached properties look, so that they are not validated again
        for name, load in experiment.load.items():
            vars(load)["parameters"] = loads[name]
        for name, probe in experiment.probes.items():
            vars(probe)["parameters"] = probes[name]
        for index, step in enumerate(experiment.method):
            if isinstance(step, Step):
                vars(step)["parameters"] = steps[index]
        check(experiment, self.expected, self._document.problem)
        self._document.raise_problems()
        check_variants(self._document, experiment, comparisons, lambda one: _Loading(one, self._near_to).experiment())
        return experiment

    def check_base(self) -> None:
        """Checks what a base alone can show. Raises ExperimentError."""
        data = self._document.data
        self._check_header(data, kind=BASE_KIND)
        try:
            _validated(Experiment, {"kind": KIND} | {key: value for key, value in data.items() if key != "kind"})
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                if error["loc"] and not (error["type"] == "missing" and len(error["loc"]) == 1):
                    self._note(error, Experiment, ())
        self._kinds(data)
        self._all_expected(data, "expect")
        self._all_expected(data, "compare")
        self._document.raise_problems()

    def _check_header(self, data: Any, kind: str = KIND) -> None:
        """Reports a file that is not an experiment with one message, instead of one for each key."""
        document = self._document
        if isinstance(data, dict) and "extends" in data:
            document.problem(("extends",), "can be followed only if the experiment is a file", key=True)
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
                    document.problem((key,), f"expected {right}, got {shown(data[key])}")
            if not document.problems or (data.get("apiVersion") == API_VERSION and data.get("kind") == kind):
                return
        document.raise_problems()

    def _check(self, model: type[Model], data: Any, loc: Loc) -> Model | None:
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
            return  # _expected reads the raw data and reports it in YAML's terms
        self._document.problem((*base, *found), text, key=on_key)

    def _kinds(
        self, data: Mapping[str, Any]
    ) -> tuple[dict[str, BaseModel | None], list[BaseModel | None], dict[str, BaseModel | None]]:
        loads = {
            name: self._params(load, "kind", _without(load, "kind", "profile"), ("load", name))
            for name, load in _named(data.get("load")).items()
        }
        probes = {
            name: self._params(probe, "kind", _without(probe, "kind", "every", "timeout"), ("probes", name))
            for name, probe in _named(data.get("probes")).items()
        }
        steps = [
            self._params(step, "fault", _with(step), ("method", index))
            for index, step in enumerate(_list(data.get("method")))
        ]
        return loads, steps, probes

    def _params(self, part: Any, key: str, raw: Any, loc: Loc) -> BaseModel | None:
        kind = part.get(key) if isinstance(part, dict) else None
        if not isinstance(kind, str) or not isinstance(raw, dict):
            return None
        try:
            found = registry.fault if key == "fault" else registry.probe if loc[0] == "probes" else registry.load
            model: type[BaseModel] = found(kind).Params
        except UnknownNameError as unknown:
            self._document.problem((*loc, key), str(unknown))
            return None
        return self._check(model, raw, loc if key == "kind" else (*loc, "with"))

    def _all_expected(self, data: Mapping[str, Any], section: str) -> list[Expected]:
        each = [self._expected((section, index), raw) for index, raw in enumerate(_list(data.get(section)))]
        return [one for one in each if one is not None]

    def _expected(self, loc: Loc, data: Any) -> Expected | None:
        names = [key for key in data if key != "known_issue"] if isinstance(data, dict) else []
        if names and "hypothesis" in data:  # `hypothesis: NAME` is not how YAML writes it
            self._document.problem(loc, "an expectation is written like `- writes_recover: {load: kv-writes}`")
        if len(names) != 1 or "hypothesis" in data:
            return None
        name, raw = names[0], data[names[0]]
        loc = (*loc, name)
        if raw is not None and not isinstance(raw, dict):
            text = f"expected the parameters of {name} as a mapping (`key: value`), got {shown(raw)}"
            self._document.problem(loc, text)
            return None
        compares = loc[0] == "compare"
        try:
            found = self._hypothesis(name, compares=compares)
        except UnknownNameError as unknown:
            self._document.problem(loc, str(unknown), key=True)
            return None
        if (params := self._check(found.Params, raw or {}, loc)) is None:
            return None
        sides = list(self._sides(params, loc)) if name == CONTRAST else []
        return Expected(loc, params, found.never, sides, found.sides if compares else ())

    def _sides(self, params: BaseModel, loc: Loc) -> Iterator[Expected]:
        written = params.model_dump()
        try:
            found = self._hypothesis(written["of"])
        except UnknownNameError as unknown:
            self._document.problem((*loc, "of"), str(unknown))
            return
        for which in CONTRAST_SIDES:
            raw = contrast_side(found.Params, written[which], written["params"])
            if (checked := self._check(found.Params, raw, (*loc, which))) is not None:
                yield Expected((*loc, which), checked, found.never)

    def _hypothesis(self, name: str, *, compares: bool = False) -> Hypothesis:
        found = self._get(name)
        if bool(found.sides) != compares:
            alone, both = "compares nothing: write it under `expect`", "compares recordings: write it under `compare`"
            raise UnknownNameError(f"{name} {both if found.sides else alone}")
        return found


def _validated(model: type[Model], data: Any) -> Model:
    """Validates strictly, as JSON: neither `true` nor `"3"` is a number."""
    return model.model_validate_json(json.dumps(data), strict=True)


def _parameters(experiment: Experiment, expected: Sequence[Expected]) -> Parameters:
    steps = [step.parameters if isinstance(step, Step) else None for step in experiment.method]
    return Parameters(
        loads={name: _plain(load.parameters) for name, load in experiment.load.items()},
        steps=[{} if params is None else _plain(params) for params in steps],
        expectations=[_plain(one.params) for one in expected],
    )


def _plain(params: BaseModel) -> dict[str, Any]:
    return params.model_dump(mode="json", by_alias=True)


def _without(part: Any, *keys: str) -> Any:
    return {key: value for key, value in part.items() if key not in keys} if isinstance(part, dict) else None


def _named(part: Any) -> Mapping[str, Any]:
    return part if isinstance(part, dict) else {}


def _with(step: Any) -> Any:
    return step.get("with", {}) if isinstance(step, dict) and "mark" not in step else None


def _list(data: Any) -> list[Any]:
    """At most as many entries as the model allows; the model has already refused longer lists."""
    return data[:MOST_ENTRIES] if isinstance(data, list) else []


def _with_services(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The experiment as read, with `consul: null` added under `datacenter:` if it needs no host at all.

    Loads, targets, agents behind a tap, probes and their signals need hosts. Clients whose taps answer from a script,
    and faults of these taps, need none: nothing is started for them.
    """
    written = data.get("datacenter", {})
    named = {"attach", *registry.services()}
    if not isinstance(written, dict) or written.keys() & named or any(_needs(data)):
        return data
    return {**data, "datacenter": {**written, **dict.fromkeys(registry.default_services())}}


def _needs(data: Mapping[str, Any]) -> Iterator[bool]:
    yield bool(data.get("load") or data.get("probes"))
    for client in _entries(data.get("clients")):
        yield client.get("via") != SCRIPT or client.get("on") is not None
        yield _compares(client.get("profile"))
    for step in _entries(data.get("method")):
        yield "fault" in step and not str(step.get("on")).startswith(CLIENT_PREFIX)
    yield _compares(data.get("steady_state"))
    yield _compares(data.get("guardrails"))


def _entries(part: Any) -> Iterator[Mapping[str, Any]]:
    """The mappings in a list or in a mapping's values; for any other value an empty mapping, which needs hosts."""
    each = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return (one if isinstance(one, dict) else {} for one in each)


def _compares(part: Any) -> bool:
    if isinstance(part, dict):
        return any(_compares(each) for each in part.values())
    if isinstance(part, list):
        return any(_compares(each) for each in part)
    signals = [signal for name in registry.default_services() for signal in registry.services()[name].signals]
    return isinstance(part, str) and any(part.startswith(f"{signal.partition('.')[0]}.") for signal in signals)
