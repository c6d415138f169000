"""Checks variants: each is an experiment that loads, no two are the same, and comparisons name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.check_expectations import check_named, param
from hashidrill.core.experiment.draft import Side
from hashidrill.core.experiment.variant_spec import OF_VARIANTS, SECTIONS, written_variants
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hashidrill.core.experiment.documents import Document
    from hashidrill.core.experiment.draft import Draft, Expectation
    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.experiment.problems import Loc

Loaded = tuple["Experiment", Any, "Draft"]


def check_variants(document: Document, draft: Draft, load: Callable[[Document], Loaded]) -> None:
    """Raises ExperimentError with every problem of every variant. `load` loads one as an experiment of its own."""
    variants = written_variants(document)
    _check_number(document, variants)
    loaded: dict[str, Loaded] = {}
    for name, one in variants.items():
        try:
            loaded[name] = load(one)
        except ExperimentError:
            document.problems += one.problems
    _check_different(document, {name: experiment for name, (experiment, _, _) in loaded.items()})
    drafts = {name: each for name, (_, _, each) in loaded.items()}
    for index, comparison in enumerate(draft.comparisons):
        if comparison is not None and variants:
            loc = ("compare", index, comparison.name)
            _check_comparison(document, loc, comparison, list(variants), drafts)
            for key, text in comparison.never(comparison.params, draft) if comparison.never else ():
                document.problem((*loc, key), text)
    document.raise_problems()


def _check_number(document: Document, variants: Mapping[str, Document]) -> None:
    if len(variants) == 1:
        text = "one variant has nothing to be compared with: add another, like `as-it-is: {}`"
        document.problem(("variants",), text, key=True)
    for key in OF_VARIANTS:
        if key in document.data and not variants:
            document.problem((key,), "there is nothing to compare: name two `variants:` or more", key=True)


def _check_comparison(
    document: Document, loc: Loc, comparison: Expectation, variants: list[str], drafts: Mapping[str, Draft]
) -> None:
    """Its sides are variants, and each of them has what the comparison names."""
    named = {side: param(comparison.params, side) for side in comparison.compares}
    for side, name in named.items():
        if name not in variants:
            document.problem((*loc, side), f"there is no variant {shown(name)}: {near(str(name), variants)}")
        elif name in drafts:
            check_named(Side(loc, comparison.params), drafts[name], document.problem)
    if len(set(named.values())) < len(named):
        document.problem(loc, "compares a variant with itself: name a different one for each side")


def _check_different(document: Document, loaded: Mapping[str, Experiment]) -> None:
    """Two variants that run the same would show a difference by luck alone."""
    seen: dict[str, str] = {}
    for name, experiment in loaded.items():
        runs = repr(experiment.model_dump(mode="json", by_alias=True, include=set(SECTIONS) - {"expect"}))
        if runs in seen:
            text = f"runs the same as the variant {seen[runs]}: what differs in its datacenter, load or clients?"
            document.problem(("variants", name), text, key=True)
        seen.setdefault(runs, name)
