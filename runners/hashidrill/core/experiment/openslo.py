"""The OpenSLO files that probes name: `slo: FILE` becomes the SLO in that file, with the indicator that it refers to.

A file may hold several documents. Each value keeps its place in the file, for messages.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hashidrill.core.experiment.documents import Document, Loc

KIND = "slo"
"""The kind of the probes that name an OpenSLO file, and the name of their parameter."""
_BREAK = re.compile(r"^---[ \t]*(?:#.*)?$", re.MULTILINE)


def with_slos(document: Document, read_text: Callable[[Path], str]) -> Document:
    """The experiment with each SLO in place of the name of its file, whose text `read_text` returns.

    Raises ExperimentError for a file that is missing or does not hold exactly one SLO, and what `read_text` raises.
    """
    for loc, written in slo_files(document):
        document = _with_slo(document, loc, written, read_text)
    return document


def slo_files(document: Document) -> list[tuple[Loc, str]]:
    """The place and the text of each `slo: FILE` in an experiment."""
    probes = document.data.get("probes") if isinstance(document.data, dict) else None
    return [
        (("probes", name, KIND), probe[KIND])
        for name, probe in (probes.items() if isinstance(probes, dict) else ())
        if isinstance(probe, dict) and probe.get("kind") == KIND and isinstance(probe.get(KIND), str)
    ]


def _with_slo(document: Document, loc: Loc, written: str, read_text: Callable[[Path], str]) -> Document:
    """The path is relative to the file that names it."""
    path = Path(document.file_of(loc)).parent / written
    if not path.is_file():
        document.problem(loc, f"{written}: there is no such file (the path is relative to this one)")
        document.raise_problems()
    parts = list(_documents(path, read_text(path)))
    slos = [part for part in parts if _at(part, "kind") == "SLO"]
    if len(slos) != 1:
        document.problem(loc, f"{written}: has {len(slos)} documents of the kind SLO; name a file with one")
        document.raise_problems()
    [slo] = slos
    for part in parts:
        if _at(part, "kind") == "DataSource" and str(_at(part, "spec", "type")).lower() != "prometheus":
            part.problem(("spec", "type"), "this data source is not supported: only Prometheus is")
            part.raise_problems()
    wanted = _at(slo, "spec", "indicatorRef")
    slis = [part for part in parts if _at(part, "kind") == "SLI" and _at(part, "metadata", "name") == wanted]
    if isinstance(wanted, str) and len(slis) != 1:
        slo.problem(("spec", "indicatorRef"), f"this file has {len(slis)} documents of the kind SLI with that name")
        slo.raise_problems()
    return document.with_value(loc, slo.with_value(("spec", "indicator"), slis[0]) if slis else slo)


def _documents(path: Path, text: str) -> Iterator[Document]:
    """The documents in a file, each at its own lines. Raises ExperimentError."""
    start = 0
    for end in [*(found.end() for found in _BREAK.finditer(text)), len(text)]:
        part = _BREAK.sub("", text[start:end])
        if any(line.strip() and not line.lstrip().startswith("#") for line in part.splitlines()):
            one = Document(str(path), "\n" * text.count("\n", 0, start) + part)
            one.raise_problems()
            yield one
        start = end


def _at(part: Document, *keys: str) -> Any:
    data = part.data
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data
