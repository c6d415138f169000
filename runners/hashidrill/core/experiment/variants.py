"""Variants: an experiment with a named overlay of its datacenter, load, clients or expectations.

An overlay is merged as `extends` merges: mappings key by key, and the overlay wins; a list or a value replaces the
experiment's; null removes a key. The result is a whole experiment, which is checked again.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hashidrill.core.errors import UnknownNameError, UsageError
from hashidrill.core.experiment.checks import check_sections, written_variants
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import resolve_document
from hashidrill.core.experiment.model import NAME_PATTERN, OF_VARIANTS, SECTIONS
from hashidrill.core.experiment.resolved import ResolvedExperiment, Variant
from hashidrill.core.protocols.registry import near

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
    """The document that a variant is laid over. An experiment from a recording has none, so its data are written
    out.
    """
    if isinstance(given, Document):
        return given.unmarked()
    if given.document is not None:
        return given.document.unmarked()
    return Document(given.provenance.path, json.dumps(given.data, indent=2, ensure_ascii=False))
