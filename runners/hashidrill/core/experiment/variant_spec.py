"""What YAML says of variants: the overlay of each, and what an experiment says about all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from hashidrill.core.experiment.problems import listed
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.registry import near

if TYPE_CHECKING:
    from hashidrill.core.experiment.documents import Document

OF_VARIANTS = ("variants", "rounds", "compare")
"""What an experiment says about its variants; no variant has it."""
MOST_VARIANTS = 10
ROUNDS, MOST_ROUNDS = 3, 50
"""With fewer than three rounds, what two equal runs differ by is not known."""


class VariantSpec(Strict):
    """One variant: what is laid over the experiment, as an experiment is laid over its base; `{}` is the experiment."""

    datacenter: dict[str, Any] | None = Field(default=None, description="What differs in the datacenter")
    load: dict[str, Any] | None = Field(default=None, description="The loads that differ, by name")
    clients: dict[str, Any] | None = Field(default=None, description="The clients that differ, by name")
    expect: list[Any] | None = Field(
        default=None, description="What is expected of this variant, instead of the experiment's `expect`"
    )


SECTIONS = tuple(VariantSpec.model_fields)
"""What a variant may lay over its experiment."""


def check_sections(over: Document, name: str) -> None:
    """Raises ExperimentError where an overlay holds what cannot vary."""
    if not isinstance(over.data, dict):
        over.problem((), f"the overlay of the variant {name} must be a mapping of {listed(SECTIONS)}")
    else:
        for key in over.data:
            if key not in SECTIONS:
                over.problem((key,), f"{key} cannot vary: {near(key, SECTIONS)}", key=True)
    over.raise_problems()


def written_variants(document: Document) -> dict[str, Document]:
    """Each variant that a document has, by its name, as a whole document without what is said about variants."""
    written = document.data.get("variants") if isinstance(document.data, dict) else None
    names = list(written) if isinstance(written, dict) else []
    return {name: document.variant_of(("variants", name), without=OF_VARIANTS, variant=name) for name in names}
