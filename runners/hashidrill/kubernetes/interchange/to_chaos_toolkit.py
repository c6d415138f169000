"""Writes an experiment of Chaos Toolkit that runs a hashidrill experiment and reports its verdict."""

from typing import Any

from hashidrill.core.experiment.model import Metadata
from hashidrill.kubernetes.interchange.from_chaos_toolkit import MODULE

NEEDED = "hashidrill in the Python environment of Chaos Toolkit, and this experiment where `chaos run` is called"


def experiment(metadata: Metadata, named: str) -> dict[str, Any]:
    """The Chaos Toolkit experiment; no part of ours is lost. `named`: the argument of `hashidrill run`.

    A failed action does not change the result of `chaos run`, which continues and exits with 0. So the hypothesis
    checks the verdict, only after the method; if another strategy is chosen, the control decides.
    """

    def provider(func: str) -> dict[str, Any]:
        return {"type": "python", "module": MODULE, "func": func, "arguments": {"experiment": named}}

    verdict = {"type": "probe", "name": "verdict", "tolerance": "PASS", "provider": provider("verdict")}
    return {
        "version": "1.0.0",
        "title": metadata.title,
        "description": metadata.why,
        "tags": list(metadata.tags),
        "runtime": {"hypothesis": {"strategy": "after-method-only"}},
        "controls": [{"name": "hashidrill", "provider": {"type": "python", "module": MODULE}}],
        "steady-state-hypothesis": {"title": f"hashidrill run {named} ends with PASS", "probes": [verdict]},
        "method": [{"type": "action", "name": metadata.name, "provider": provider("run")}],
        "rollbacks": [],
    }
