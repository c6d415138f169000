"""A comparison on disk: which recordings of which variants belong together, and their comparisons.

It is a folder with one file, comparison.json, next to the recordings that it names; reports are written into it. The
recordings stay unchanged: each can be judged, reported and healed by itself.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from hashidrill import __version__
from hashidrill.core.errors import ExperimentError, RecordingError
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.judging.comparison import hidden
from hashidrill.core.recording.provenance import HYPOTHESES_NAME
from hashidrill.core.util import safe_json
from hashidrill.core.util.files import COMPARISON_NAME, write_whole
from hashidrill.core.util.redaction import Redactor

FORMAT = 1


@dataclass(frozen=True)
class KeptRound:
    """One round: the variants in the order in which they ran, and the recording of each that has one."""

    order: tuple[str, ...]
    recordings: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """A comparison: the experiment, its variants, and the rounds that were played."""

    path: Path
    experiment: ResolvedExperiment
    variants: Mapping[str, ResolvedExperiment]
    rounds: list[KeptRound]
    hidden: Mapping[tuple[str, str], list[str]] | None = None
    """The places where two variants differ only in secrets, from the comparison's file; None before it is written."""

    def hidden_between(self, one: str, other: str) -> list[str]:
        """The differences of these two variants that no recording shows."""
        return self._hidden.get((min(one, other), max(one, other)), [])

    @cached_property
    def _hidden(self) -> Mapping[tuple[str, str], list[str]]:
        if self.hidden is not None:
            return self.hidden
        pairs = list(combinations(sorted(self.variants), 2))
        return {(a, b): hidden(self.variants[a].experiment, self.variants[b].experiment) for a, b in pairs}

    def write(self) -> None:
        """Writes the comparison's files. Raises OSError."""
        redactor = Redactor()
        redactor.learn_environment(os.environ)
        redactor.learn(self.experiment.data)
        document = {
            "format": FORMAT,
            "hashidrill": __version__,
            "resolved": self.experiment.to_data(),
            "variants": {name: one.to_data() for name, one in self.variants.items()},
            "hidden": [[*pair, places] for pair, places in self._hidden.items() if places],
            "rounds": [
                {
                    "order": list(each.order),
                    "recordings": {name: os.path.relpath(path, self.path) for name, path in each.recordings.items()},
                }
                for each in self.rounds
            ],
        }
        if self.experiment.hypotheses:
            write_whole(self.path / HYPOTHESES_NAME, json.dumps(self.experiment.hypotheses, indent=2) + "\n")
        write_whole(self.path / COMPARISON_NAME, json.dumps(redactor.clean(document), indent=2) + "\n")


def read_comparison(path: Path) -> Kept:
    """Reads a comparison. Raises RecordingError if the folder has none, or if a newer hashidrill wrote it."""
    file = path / COMPARISON_NAME
    try:
        found: Any = safe_json.parse(file.read_bytes())
        if found["format"] > FORMAT:
            raise RecordingError(
                f"{file}: hashidrill {found.get('hashidrill')} wrote this comparison, in a format that {__version__}"
                " does not know; judge it with that version, or a later one"
            )
        return Kept(
            path,
            ResolvedExperiment.from_data(found["resolved"]),
            {str(name): ResolvedExperiment.from_data(one) for name, one in found["variants"].items()},
            [
                KeptRound(
                    tuple(map(str, each["order"])),
                    {str(name): Path(os.path.normpath(path / where)) for name, where in each["recordings"].items()},
                )
                for each in found["rounds"]
            ],
            {(str(a), str(b)): list(map(str, places)) for a, b, places in found.get("hidden", ())},
        )
    except FileNotFoundError:
        raise RecordingError(f"{path}: is not a comparison: it lacks {COMPARISON_NAME}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ExperimentError) as error:
        raise RecordingError(f"{file}: is not readable ({error}): it is not what hashidrill wrote") from None
