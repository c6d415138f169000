"""Go or no-go: what is looked at before a day begins. It starts nothing, and breaks nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from hashidrill.core.engine.requirements import available_bytes
from hashidrill.core.errors import HashidrillError
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.experiment.variants import variants_of
from hashidrill.core.units import Size
from hashidrill.core.util.cores import usable_cores
from hashidrill.gamedays.gameday.conduct import Looked
from hashidrill.gamedays.gameday.model import MACHINE, GoCheck
from hashidrill.gamedays.gameday.plan import Plan
from hashidrill.gamedays.gameday.playing import Standing
from hashidrill.lab.provision import machine
from hashidrill.lab.runs.launch import check_machine, prepare
from hashidrill.reports.text import counted, human_bytes, human_number

Say = Callable[[str], None]


def look_at(plan: Plan, check: GoCheck, folder: Path, say: Say, there: Standing | None = None) -> Looked:
    """What a check finds here. `folder` is where the recordings will be; `say` is told what takes long.

    In a datacenter that stands, its interlocks are asked instead of this machine.
    """
    if check.condition is not None:
        return condition_holds(check.condition, machine_figures(folder))
    if check.check == "doctor":
        return _doctor()
    return _fits(plan, say) if there is None else _allowed(plan, there)


def machine_figures(folder: Path) -> Mapping[str, float]:
    """What MACHINE names, of this machine now. Bytes, CPUs, and the load of a minute for each CPU."""
    return {
        "memory_available": float(available_bytes()),
        "disk_free": float(shutil.disk_usage(folder).free),
        "cpus": usable_cores(),
        "load": os.getloadavg()[0] / (os.cpu_count() or 1),
    }


def condition_holds(condition: Condition, figures: Mapping[str, float]) -> Looked:
    """Whether it does, and what was measured."""
    value = figures[condition.what]
    shown = human_bytes(value) if MACHINE[condition.what] is Size else human_number(round(value, 2))
    return condition.holds(value, unknown=False), f"it is {shown}"


def _fits(plan: Plan, say: Say) -> Looked:
    try:
        for run in plan.runs:
            for resolved in variants_of(run.resolved).values() if run.spec.compare else [run.resolved]:
                check_machine(resolved)
                prepare(resolved, say)
    except HashidrillError as error:
        return False, f"{run.name}: {' '.join(str(error).split())}"
    return True, f"{counted(len(plan.runs), 'experiment')}, with all that they need"


def _allowed(plan: Plan, there: Standing) -> Looked:
    try:
        for run in plan.runs:
            there.allowed(run.resolved)
    except HashidrillError as error:
        return False, f"{run.name}: {' '.join(str(error).split())}"
    return True, f"{counted(len(plan.runs), 'experiment')}, which the interlocks let in"


def _doctor() -> Looked:
    found = machine.detect()
    lacking = [each for each in found if each.required and not each.ok]
    if lacking:
        said = "; ".join(f"{each.name} is missing: {each.fix or each.detail}" for each in lacking)
        return False, f"{said}; see `hashidrill doctor`"
    return True, "`hashidrill doctor` finds nothing missing that a run needs"
