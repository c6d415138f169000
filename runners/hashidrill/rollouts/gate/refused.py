"""Asks the agent itself about a configuration before anything runs. Its own words are the message."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from hashidrill.core.errors import UsageError
from hashidrill.core.util.redaction import Redactor
from hashidrill.rollouts.gate.configuration import Configuration


class Refusal(Protocol):
    """`refusal` of `hashidrill.products.PRODUCT.refusal`."""

    def __call__(self, binary: Path, files: Sequence[Path], settings: Mapping[str, Any], work: Path) -> str: ...


def refusal_of(product: str) -> Refusal:
    """How that product is asked."""
    found: Refusal = import_module(f"hashidrill.products.{product}.refusal").refusal
    return found


def check_taken(
    side: str, config: Configuration, version: str, binary: Path, *, ask: Callable[[str], Refusal] = refusal_of
) -> None:
    """Raises UsageError with the agent's words for a configuration that it refuses. `side`: baseline or candidate."""
    if not config.sources:
        return
    with tempfile.TemporaryDirectory(prefix="hashidrill-gate-") as folder:
        work = Path(folder)
        words = ask(config.product)(binary, [source.path for source in config.sources], config.settings, work)
        for source in config.sources:
            words = words.replace(str(source.path.absolute()), source.shown).replace(str(source.path), source.shown)
    if words:
        redact = Redactor()
        redact.learn(config.settings)
        told = "\n".join(f"  {line}" for line in redact.text(words).splitlines())
        raise UsageError(f"{config.product.capitalize()} {version} refuses the {side} configuration:\n{told}")
