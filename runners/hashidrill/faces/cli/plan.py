"""`hashidrill run --plan`: the actions of a run, and whether the interlocks would allow it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import InterlockError
from hashidrill.core.experiment.model import make_fault
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import NeedsRights
from hashidrill.core.units import Duration
from hashidrill.faces.cli.common import print_json, print_line
from hashidrill.staging.attach.plan import digest_of
from hashidrill.staging.generators.settings import engine_rights, settings_of
from hashidrill.staging.generators.spawners import PREFIX
from hashidrill.staging.interlocks.settings import settings_of as interlocks_of

if TYPE_CHECKING:
    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.experiment.resolved import ResolvedExperiment
    from hashidrill.staging.attach.plan import Action, Plan
    from hashidrill.staging.runs.launch_attached import Attached


_REFUSED = InterlockError.exit_code


def show(there: Sequence[Attached | None], resolved: Sequence[ResolvedExperiment], *, as_json: bool) -> int:
    """Prints the plans and the interlocks' decisions. Returns 0, or 2 if they would refuse one. Touches nothing."""
    told: list[dict[str, Any]] = []
    code = 0
    for place, each in zip(there, resolved, strict=True):
        if place is None:
            continue
        plan, refused = place.plan(each), ""
        try:
            place.allowed(each)
        except InterlockError as error:
            code, refused = _REFUSED, str(error)
        digest = digest_of(plan.experiment, interlocks_of(place.target.interlocks, place.target.path))
        told.append({**plan_data(plan), "digest": digest, "refused": refused})
        if not as_json:
            for line in plan_lines(plan):
                print_line(line)
            print_line(f"Digest by which `hashidrill staging arm` allows it: {digest}")
            print_line(f"The interlocks refuse it: {refused}" if refused else "The interlocks let it run.")
    if as_json:
        print_json(told)
    sys.stdout.flush()
    return code


_JOB = "nomad job"


def plan_data(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data, for scripts. Raises AttachError for an invalid `engine`."""
    return {
        "experiment": plan.experiment.metadata.name,
        "datacenter": plan.target.name,
        "actions": [*_workers(plan), *(_data(action, plan.experiment) for action in plan.actions)],
    }


def plan_lines(plan: Plan) -> Iterator[str]:
    data = plan_data(plan)
    yield f"{data['experiment']} in {data['datacenter']} would touch, in this order:"
    for number, one in enumerate(data["actions"], start=1):
        yield f"{number}. {_when(one)}: {one['what']} {one['where']}"
        if one["params"]:
            yield f"   with {', '.join(f'{key}: {value}' for key, value in one['params'].items())}"
        if one["reverted"]:
            yield f"   reverted: {one['reverted']}"
        if one["observer"]:
            yield f"   proven by {one['observer']}"
        yield f"   needs {'; '.join(one['rights']) or 'no right of a product'}"


def _when(one: Mapping[str, Any]) -> str:
    if one["verb"] == "start":
        return "before the loads"
    if one["verb"] == "offer":
        return f"from the steady state to {Duration(one['until_s'])}"
    return f"{Duration(one['at_s'])} to {Duration(one['until_s'])} of the method"


def _workers(plan: Plan) -> Iterator[dict[str, Any]]:
    """The job of the workers that offer the loads, if the attach file names an `engine`."""
    nomad = settings_of(plan.target.engine, plan.target.path).nomad
    if nomad is None or "nomad" not in plan.target.logins:
        return
    hosts = [host.name for host in plan.estate.having("nomad") if host.roles["nomad"] == "client"]
    number = f"{nomad.workers} worker{'' if nomad.workers == 1 else 's'}"
    rights = engine_rights(plan.target.logins["nomad"].params.get("namespace", "default"))
    yield {
        "verb": "start",
        "what": _JOB,
        "on": "nomad:clients",
        "hosts": hosts,
        "at_s": 0.0,
        "until_s": max((action.at_s + action.for_s for action in plan.actions), default=0.0),
        "where": f"{PREFIX}{plan.run_id or 'RUN'}, {number} on as many of {', '.join(hosts) or 'no host'}",
        "params": {"lease": str(nomad.lease)},
        "reverted": "the job is removed with the run; workers whose runner is silent end within their lease",
        "observer": "",
        "rights": [f"{right.service}: {right}" for right in rights],
    }


def _data(action: Action, experiment: Experiment) -> dict[str, Any]:
    many = "all of" if action.many else "one of"
    hosts = ", ".join(action.hosts) or "no host"
    where = f"on {action.on}" + ("" if len(action.hosts) == 1 and action.on.endswith(hosts) else f" ({many} {hosts})")
    common = {
        "verb": action.verb,
        "what": action.what,
        "on": action.on,
        "hosts": list(action.hosts),
        "at_s": action.at_s,
        "until_s": action.at_s + action.for_s,
    }
    if action.verb == "offer":
        load = experiment.load[action.name]
        rights = registry.load(load.kind).rights(action.name, load.parameters)
        said = f"through {action.on} ({hosts}), as {action.name}"
        return {
            **common,
            "where": said,
            "params": load.params,
            "reverted": "",
            "observer": "",
            "rights": [f"{right.service}: {right}" for right in rights],
        }
    step = experiment.method[action.step]
    fault = make_fault(step, None)  # type: ignore[arg-type]  # actions that apply are steps with faults
    params = getattr(step, "with_", {})
    return {
        **common,
        "where": where + (", following it" if getattr(step, "follow", False) else ""),
        "params": params,
        "reverted": _first_line(inspect.getdoc(fault.revert) or "it removes its own effect"),
        "observer": fault.observer.through if fault.observer else "",
        "rights": [f"{one.service}: {one}" for one in (fault.rights() if isinstance(fault, NeedsRights) else ())],
    }


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip(".")
