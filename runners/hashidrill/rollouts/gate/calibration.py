"""What difference this machine can show: rounds of an experiment against itself, kept for later comparisons.

Kept in the cache directory, by machine, versions, experiment and size of its datacenter:
`$XDG_CACHE_HOME/hashidrill/calibration/KEY.json`. The configuration of the agents is no part of the key. It is what
changes in a comparison, and the noise comes from the machine, the number of agents, the faults and the loads.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from hashidrill import __version__
from hashidrill.core.compare.comparison import paired
from hashidrill.core.compare.statistics import ALARMS, Paired, Prior, smallest_difference
from hashidrill.core.errors import RecordingError
from hashidrill.core.util.cores import usable_cores
from hashidrill.core.util.files import private_folder, write_whole
from hashidrill.core.util.foreign import parse
from hashidrill.core.util.run_origin import here
from hashidrill.lab.provision.binaries import cache_root
from hashidrill.lab.runs.launch import binaries_for

if TYPE_CHECKING:
    from hashidrill.core.compare.comparison import Round
    from hashidrill.core.compare.measured import Figure
    from hashidrill.core.experiment.model import Experiment

FOLDER = "calibration"
FEWEST_ROUNDS = 3
"""With fewer rounds, there is no telling how noisy a figure is."""
STALE_DAYS = 30
_RUN_BY = {"load", "clients", "method", "recovery", "steady_state"}
_NO_SIZE = {"version", "binary", "config", "server_config", "client_config"}
_LEAST_SD = 1e-3


@dataclass(frozen=True)
class Calibration:
    """The noise of each figure that was measured, and when."""

    experiment: str
    at: dt.datetime
    priors: Mapping[str, Prior]

    def age_days(self, now: dt.datetime) -> float:
        return (now - self.at).total_seconds() / 86_400

    def smallest(self, rounds: int) -> dict[str, float]:
        """The smallest ratio of each figure that this number of rounds usually shows: 1.2 is 20 %."""
        share = ALARMS / max(1, len(self.priors))
        return {name: smallest_difference(prior, rounds, alarms=share) for name, prior in self.priors.items()}


def calibrated(
    experiment: Experiment, rounds: Sequence[Round], figures: Sequence[Figure], *, now: dt.datetime
) -> Calibration:
    """From rounds of an experiment against itself. A figure that was measured in fewer than 3 of them is left out."""
    found = {}
    for figure in figures:
        pairs = [
            paired(figure, one.measured[figure.name], other.measured[figure.name], seed=each.number)
            for each in rounds
            for one, other in [each.sides]
        ]
        known = [each for each in pairs if each is not None]
        if len(known) >= FEWEST_ROUNDS:
            found[figure.name] = noise(known)
    return Calibration(experiment.metadata.name, now, found)


def noise(pairs: Sequence[Paired]) -> Prior:
    """How far equal sides lie apart: around 1, which is known, so each round is a degree of freedom."""
    sd = math.sqrt(float(np.mean([each.log**2 for each in pairs])))
    return Prior(max(sd, _LEAST_SD), len(pairs))


def key_of(experiment: Experiment) -> str:
    """By machine, versions and what is run, with how many agents."""
    machine = {
        **{name: here()[name] for name in ("host", "machine")},
        "cpus": usable_cores(),
        "memory": psutil.virtual_memory().total,
        "kernel": os.uname().release,
    }
    said = experiment.model_dump(mode="json", by_alias=True, include=_RUN_BY)
    what = [machine, __version__, binaries_for(experiment), experiment.metadata.name, said, _datacenter(experiment)]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _datacenter(experiment: Experiment) -> dict[str, Any]:
    """All of it but its agents' configuration, and their versions, which are those of the binaries."""
    said = experiment.datacenter.model_dump(mode="json", by_alias=True)
    return {
        part: {key: value for key, value in of.items() if key not in _NO_SIZE} if isinstance(of, dict) else of
        for part, of in said.items()
    }


def keep(experiment: Experiment, calibration: Calibration, folder: Path | None = None) -> Path:
    """Writes it; returns the file. Raises RecordingError where it cannot be written."""
    file = _file(experiment, folder)
    document = {
        "experiment": calibration.experiment,
        "at": calibration.at.isoformat(timespec="seconds"),
        "figures": {name: {"sd": prior.sd, "rounds": prior.degrees} for name, prior in calibration.priors.items()},
    }
    try:
        private_folder(file.parent)
        write_whole(file, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise RecordingError(f"{file}: the calibration cannot be kept: {error.strerror or error}") from None
    return file


def kept(experiment: Experiment, folder: Path | None = None) -> Calibration | None:
    """The last one of this machine, these versions and this experiment; None where none is, or none that reads."""
    try:
        document: dict[str, Any] = parse(_file(experiment, folder).read_bytes())
        priors = {name: Prior(float(each["sd"]), int(each["rounds"])) for name, each in document["figures"].items()}
        return Calibration(str(document["experiment"]), dt.datetime.fromisoformat(document["at"]), priors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _file(experiment: Experiment, folder: Path | None) -> Path:
    return (cache_root() / FOLDER if folder is None else folder) / f"{key_of(experiment)}.json"
