"""Comparisons name figures: do both of their sides have them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hashidrill.core.compare.figures import figure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hashidrill.core.experiment.resolved import ResolvedExperiment

FIGURE = "figure"
"""The parameter of a comparison that names a figure of both sides."""


def check_figures(resolved: ResolvedExperiment, variants: Mapping[str, ResolvedExperiment]) -> None:
    """Raises UsageError for a comparison of a figure that one of its sides does not have."""
    for comparison in resolved.experiment.compare:
        named = comparison.params.get(FIGURE)
        sides = [variants[each] for each in comparison.params.values() if isinstance(each, str) and each in variants]
        for side in sides if isinstance(named, str) else ():
            figure(str(named), side.experiment)
