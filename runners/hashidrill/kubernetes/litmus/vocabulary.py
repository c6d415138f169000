"""The words of Litmus that faults need before any cluster is asked. Light to import: `validate` does."""

from collections.abc import Mapping
from typing import Any

from hashidrill.kubernetes.kubernetes.plurals import System

LITMUS = System("Litmus", "litmuschaos.io", "v1alpha1", closed=True)
"""Its definition of a ChaosEngine keeps fields that it does not know, and its operator reads none of them."""
ENGINE, EXPERIMENT, RESULT = "ChaosEngine", "ChaosExperiment", "ChaosResult"


def one(experiment: str, env: Mapping[str, str]) -> dict[str, Any]:
    """One experiment of an engine. Every value of an environment is a text."""
    listed = [{"name": name, "value": value} for name, value in env.items()]
    return {"name": experiment, "spec": {"components": {"env": listed}}}
