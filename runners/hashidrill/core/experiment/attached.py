"""Experiments over an existing datacenter: the discovered hosts replace the `datacenter:` of the file."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import resolve_document
from hashidrill.core.experiment.resolved import ResolvedExperiment

KIND = "Attach"
_OURS = ("kind", "attach", "kubernetes", "disk", "ready_within")
"""Keys of `datacenter:` that are not products."""
_LONGEST_NAME = 60
"""The same limit as in hashidrill.core.experiment.model.Name."""


def attached_to(
    document: Document, found: Mapping[str, Any], *, name: str, path: Path | str | None = None
) -> ResolvedExperiment:
    """The experiment with `found` as its `datacenter:`, resolved and checked as if its file said so.

    `found` is plain data: `attached`, and a part for each product. `name` names the datacenter in messages. Raises
    ExperimentError as `resolve` does, also for a host or a role that the attached datacenter lacks.
    """
    standing = {**found["attached"], "left_out": list(asked_of_ours(document))}
    there = {"datacenter": {**found, "attached": standing}}
    over = Document(f"attached datacenter {name}", json.dumps(there, indent=2))
    whole = document.under(over, variant="", without=("datacenter",))
    return resolve_document(whole, path=path or document.name, files=len(document.files))


def check_no_variants(document: Document, path: Path) -> None:
    """Raises AttachError if the experiment has variants, because an attached datacenter cannot be changed."""
    if isinstance(document.data, dict) and document.data.get("variants"):
        raise AttachError(f"{path}: has variants, which change the configuration: only a local datacenter can run them")


def inline(document: Document) -> str | Mapping[str, Any] | None:
    """The content of an experiment's `datacenter.attach` or `datacenter.kubernetes`; None for a local datacenter."""
    data = document.data if isinstance(document.data, dict) else {}
    written = data.get("datacenter") if data.get("kind") != KIND else None
    said = written if isinstance(written, dict) else {}
    if isinstance(pods := said.get("kubernetes"), dict):
        return {"metadata": {"name": _name_of(pods)}, "datacenter": {"kubernetes": pods}}
    found = said.get("attach")
    return found if isinstance(found, str | dict) else None


def said_in(document: Document) -> str:
    """The key of the experiment that `inline` read."""
    return f"datacenter.{'kubernetes' if isinstance(document.data['datacenter'].get('kubernetes'), dict) else 'attach'}"


def _name_of(pods: Mapping[str, Any]) -> str:
    text = f"kubernetes-{pods.get('context', '')}-{pods.get('namespace', '')}".lower()
    name = re.sub(r"[^a-z0-9]+", "-", text).strip("-")
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - len(digest) - 1].strip('-')}-{digest}"


def asked_of_ours(document: Document) -> Iterator[str]:
    """Settings of the experiment that an attached datacenter ignores, like `consul.config`."""
    written = document.data.get("datacenter") if isinstance(document.data, dict) else None
    for product, part in (written if isinstance(written, dict) else {}).items():
        if product in _OURS or not isinstance(part, dict):
            continue
        yield from (f"{product}.{key}" for key in part)
