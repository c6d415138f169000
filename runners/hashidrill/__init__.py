"""hashidrill: game days for the HashiStack. Users' packages may import the names listed here; other names may move.

    from hashidrill import BaseFault, Duration, Held, hypothesis, measure, require

Each name is imported when it is first used. `hashidrill.testing` has the tools for testing such packages.
`hashidrill.core.engine.run` numbers the steps of a run.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashidrill.core.errors import FaultError as FaultError
    from hashidrill.core.errors import HashidrillError as HashidrillError
    from hashidrill.core.errors import HypothesisInvalidError as HypothesisInvalidError
    from hashidrill.core.experiment.strict import Strict as Strict
    from hashidrill.core.faults import significance as significance
    from hashidrill.core.faults.base import BaseFault as BaseFault
    from hashidrill.core.faults.base import NoParams as NoParams
    from hashidrill.core.faults.disk import acts_on as acts_on
    from hashidrill.core.hypothesis import Broken as Broken
    from hashidrill.core.hypothesis import Held as Held
    from hashidrill.core.hypothesis import comparison as comparison
    from hashidrill.core.hypothesis import hypothesis as hypothesis
    from hashidrill.core.hypothesis import require as require
    from hashidrill.core.judging import measure as measure
    from hashidrill.core.loads.answer import read_error as read_error
    from hashidrill.core.loads.base import BaseLoad as BaseLoad
    from hashidrill.core.loads.http_client import HttpClient as HttpClient
    from hashidrill.core.loads.schedule import OpenLoop as OpenLoop
    from hashidrill.core.loads.schedule import Reply as Reply
    from hashidrill.core.probes.base import BaseProbe as BaseProbe
    from hashidrill.core.protocols import capabilities as capabilities
    from hashidrill.core.protocols import claims as claims
    from hashidrill.core.protocols import packets as packets
    from hashidrill.core.protocols import rights as rights
    from hashidrill.core.protocols.abc import Claim as Claim
    from hashidrill.core.protocols.abc import Evidence as Evidence
    from hashidrill.core.protocols.abc import Fault as Fault
    from hashidrill.core.protocols.abc import Load as Load
    from hashidrill.core.protocols.abc import Observer as Observer
    from hashidrill.core.protocols.abc import Place as Place
    from hashidrill.core.protocols.abc import Probe as Probe
    from hashidrill.core.protocols.abc import Requires as Requires
    from hashidrill.core.protocols.abc import Sample as Sample
    from hashidrill.core.protocols.abc import Undo as Undo
    from hashidrill.core.protocols.capabilities import DiskCanary as DiskCanary
    from hashidrill.core.protocols.capabilities import DiskControl as DiskControl
    from hashidrill.core.protocols.capabilities import PacketFilter as PacketFilter
    from hashidrill.core.protocols.capabilities import ProcessControl as ProcessControl
    from hashidrill.core.protocols.capabilities import Processes as Processes
    from hashidrill.core.protocols.service import AgentPlace as AgentPlace
    from hashidrill.core.protocols.service import AgentPlan as AgentPlan
    from hashidrill.core.protocols.service import BaseService as BaseService
    from hashidrill.core.protocols.service import Wanted as Wanted
    from hashidrill.core.recording.reader import FaultWindow as FaultWindow
    from hashidrill.core.recording.reader import Operations as Operations
    from hashidrill.core.recording.reader import Recording as Recording
    from hashidrill.core.recording.reader import Series as Series
    from hashidrill.core.units import Bandwidth as Bandwidth
    from hashidrill.core.units import Duration as Duration
    from hashidrill.core.units import Level as Level
    from hashidrill.core.units import Percent as Percent
    from hashidrill.core.units import Rate as Rate
    from hashidrill.core.units import Size as Size
    from hashidrill.core.util.wait import wait_until as wait_until

__version__ = "0.1.0"

_NAMES = {
    "hashidrill.core.errors": "FaultError HashidrillError HypothesisInvalidError",
    "hashidrill.core.experiment.strict": "Strict",
    "hashidrill.core.faults.base": "BaseFault NoParams",
    "hashidrill.core.faults.disk": "acts_on",
    "hashidrill.core.hypothesis": "Broken Held comparison hypothesis require",
    "hashidrill.core.loads.answer": "read_error",
    "hashidrill.core.loads.base": "BaseLoad",
    "hashidrill.core.loads.http_client": "HttpClient",
    "hashidrill.core.loads.schedule": "OpenLoop Reply",
    "hashidrill.core.probes.base": "BaseProbe",
    "hashidrill.core.protocols.abc": "Claim Evidence Fault Load Observer Place Probe Requires Sample Undo",
    "hashidrill.core.protocols.capabilities": "DiskCanary DiskControl PacketFilter ProcessControl Processes",
    "hashidrill.core.protocols.service": "AgentPlace AgentPlan BaseService Wanted",
    "hashidrill.core.recording.reader": "FaultWindow Operations Recording Series",
    "hashidrill.core.units": "Bandwidth Duration Level Percent Rate Size",
    "hashidrill.core.util.wait": "wait_until",
}
"""The public names, by module."""
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = {
    "capabilities": "hashidrill.core.protocols",
    "claims": "hashidrill.core.protocols",
    "measure": "hashidrill.core.judging",
    "packets": "hashidrill.core.protocols",
    "rights": "hashidrill.core.protocols",
    "significance": "hashidrill.core.faults",
}
"""Modules that are public as a whole, with the package of each."""
__all__ = [*_MODULES, *_PLACES]  # noqa: PLE0604 - they are all text


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{_MODULES[name]}.{name}")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"hashidrill has no {name}; public are: {', '.join(__all__)}")
