"""Imports files of Chaos Mesh and Litmus, and prints a table: imported, or refused and why; which keys are lost.

python tests/support/foreign_files.py SELECTOR SIDE FILE...

For public files, by hand: `examples` of chaos-mesh/chaos-mesh, each `engine.yaml` of litmuschaos/chaos-charts.
An error that `import` would not print as one ends this script with a traceback.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from hashidrill.core.errors import HashidrillError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import load_document
from hashidrill.kubernetes.interchange.reading import Imported, imported


def outcome(path: Path, on: str, side: str) -> Imported | str:
    """What the file is imported as, or why it is refused; `side` counts where a fault has another side."""
    for sides in (side, ""):
        try:
            made = imported(path.name, path.read_text(), on, sides)
            load_document(Document(path.name, made.text))
        except HashidrillError as error:
            if sides and "none of its faults has another side" in str(error):
                continue
            return str(error).removeprefix(f"{path.name}: ")
        return made
    raise AssertionError


def main(on: str, side: str, files: list[str]) -> None:
    lost = Counter[str]()
    told = Counter[str]()
    for path in map(Path, files):
        made = outcome(path, on, side)
        told["imported" if isinstance(made, Imported) else "refused"] += 1
        print(f"{path}: {', '.join(step.fault for step in made.steps) if isinstance(made, Imported) else made}")
        if isinstance(made, Imported):
            lost.update(line.partition(": ")[0].partition(" (")[0] for line in made.lost)
    print(*(f"{count:4} {what}" for what, count in [*told.items(), *lost.most_common()]), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
