"""An experiment without its faults: does its steady state hold, do its probes answer, and what is the noise?"""

import json

from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import resolve_document
from hashidrill.core.experiment.model import OF_VARIANTS
from hashidrill.core.experiment.resolved import ResolvedExperiment, Variant
from hashidrill.core.units import Duration

NAME = "no-faults"
"""The name of the variant, and of the mark that stands in for the faults."""
_ANY = ">= -999999999999999"
"""The condition for a probe that only measures: every number meets it."""


def without_faults(given: ResolvedExperiment) -> ResolvedExperiment:
    """The same datacenter, loads, clients, probes and guardrails for the same time, without faults.

    The variant expects the steady state to hold throughout, and every probe under `probes:` to be good. Raises
    ExperimentError.
    """
    experiment = given.experiment
    lasts = Duration(max(step.at + step.for_ for step in experiment.method))
    signals = experiment.declared_signals
    first = {name: next(each for each in signals if each.startswith(f"{name}.")) for name in experiment.probes}
    well = [f"{name}.ok == 1" if f"{name}.ok" in signals else f"{first[name]} {_ANY}" for name in experiment.probes]
    answers = [{"signal_stays": {"condition": condition, "during": "run"}} for condition in well]
    overlay = {"method": [{"mark": NAME, "for": str(lasts)}], "expect": [{"steady_state_holds": {}}, *answers]}
    over = Document(f"variant {NAME}", json.dumps(overlay, indent=2))
    document = given.document or Document(str(given.path), json.dumps(given.data))
    return resolve_document(
        document.unmarked().under(over, without={*OF_VARIANTS, "breaks_quorum"}, variant=NAME),
        path=given.path,
        variant=Variant(name=NAME, overlay=overlay),
        files=len(document.files),
    )
