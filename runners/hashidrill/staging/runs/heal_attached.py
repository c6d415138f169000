"""Heals runs against an attached datacenter: reverts faults left in force, and removes data of their loads.

Each action leaves audit lines in Consul and in the recording, as a run's own actions do.

Faults that this machine recorded (hashidrill.core.recording.signed_runs) were admitted when they were applied, so no
interlock delays their revert. The keys of loads have the names of the loads, so no other run may be in progress
while they are removed.

A revert is an action too, and another machine's journal may ask for any revert. So heal acts on such a journal only if
the operator confirms each host, and every interlock admits its experiment now: armed, released, alone, within the
blast radius. Heal uses no address from that recording, and does not remove the data of its loads.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hashidrill.core.engine.inject import open_faults, settle
from hashidrill.core.errors import HashidrillError, InterlockError, JournalHeldError
from hashidrill.core.experiment.model import DatacenterSpec, Experiment
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.protocols.abc import Hosts
from hashidrill.core.protocols.rights import Left
from hashidrill.core.recording.journal import KEPT, Clock, Journal, LineKey, signed_lines
from hashidrill.core.recording.signed_runs import AUDIT_NAME, LINKED, OurRun, forget_open
from hashidrill.core.recording.writer import RESOLVED_NAME
from hashidrill.core.util import safe_json
from hashidrill.core.util.files import HEAL_NAME
from hashidrill.lab.runs.heal import Healed, began_in, entries_of, heal_run, in_doubt, whose
from hashidrill.staging.attach.datacenter import AttachedDatacenter, attach
from hashidrill.staging.attach.discovery import Estate, FoundHost
from hashidrill.staging.attach.http import Wire
from hashidrill.staging.attach.interlocks import Interlocks, alone, open_interlocks, witnessed
from hashidrill.staging.attach.leftovers import Told, leavings, shared_leavings, sweep
from hashidrill.staging.attach.links import TOXIPROXY, remove_toxics_of_runs, toxics_of_runs
from hashidrill.staging.attach.plan import Plan, plan_of
from hashidrill.staging.attach.product import in_kubernetes
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.carriers.host import CarriedHost
from hashidrill.staging.carriers.nomad_jobs import remove_jobs
from hashidrill.staging.generators.spawners import remove_left

_APPLIES_NOTHING_S = 1.0
"""How long a host would keep a fault: heal only reverts faults."""
_SHOWN = 200
"""How many characters of a fault's parameters a question shows."""
_NO_RUN = "heal"
"""Replaces the run's id in the lock and in audit lines if there is no recording here."""
Look = Callable[["AttachTarget", AsyncExitStack], Awaitable[tuple["Estate", dict[str, "Wire"]]]]
Confirm = Callable[[str, str], bool]
"""Asks the operator about one host: its name, the faults to revert there, and the reason."""


async def heal_attached(
    target: AttachTarget,
    runs: Sequence[Path],
    tell: Callable[[str], None],
    *,
    confirm: Confirm | None = None,
    look: Look = attach,
    datacenter: Callable[..., AttachedDatacenter] = AttachedDatacenter,
    connect: Callable[..., Any] | None = None,
    open_guard: Callable[..., Interlocks] = open_interlocks,
) -> list[Healed | None]:
    """The result for each run; None if it needs no healing. Without `confirm`, leaves other machines' runs alone."""
    healed: list[Healed | None] = []
    target = replace(target, undoing=True)
    known = {run: whose(run) for run in runs}
    ours = {run: one for run, one in known.items() if isinstance(one, OurRun)}
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(in_kubernetes().reached(target, tell))
        estate, wires = await look(target, stack)
        theirs = {run: _asked(run, why, target, estate, confirm) for run, why in known.items() if isinstance(why, str)}
        estate = with_lost(estate, target, ours, tell)
        faulted = {name for one in ours.values() for name in _faulted(one, target.name)}
        faulted |= {str(undo["host"]) for one in theirs.values() if isinstance(one, _Confirmed) for undo in one.undos}
        spec = DatacenterSpec.model_validate(estate.as_datacenter())
        parts = await stack.enter_async_context(
            in_kubernetes().held(
                target,
                estate,
                wires,
                deadline_s=_APPLIES_NOTHING_S,
                tell=tell,
                undoing=True,
                connect=connect,
                awaited=faulted & {*estate.hosts},
            )
        )
        hosts = await stack.enter_async_context(datacenter(spec, target, estate, wires, carried=parts))
        carrying = {host for part in parts.values() for host in part.values() if isinstance(host, CarriedHost)}
        for run, one in (ours | theirs).items():
            if one is None or isinstance(one, Healed):
                healed.append(one)
                continue
            for host in carrying:
                host.act_for(one.id)
            hosts.keep_artifacts(run / "artifacts")
            if isinstance(one, OurRun):
                healed.append(await _heal(run, one, hosts, target, wires, tell=tell))
            else:
                plan, guard = plan_of(one.experiment, target, estate), open_guard(target, estate, wires)
                healed.append(await _heal_other(one, hosts, plan, guard, tell))
        healed += await _without_recording(target, estate, wires, tell, connect)
    return healed


async def _without_recording(
    target: AttachTarget,
    estate: Estate,
    wires: Mapping[str, Wire],
    tell: Callable[[str], None],
    connect: Callable[..., Any] | None,
) -> list[Healed]:
    """Removes toxics and Kubernetes objects of runs without a recording here, because no lease ends them.

    It removes only toxics of proxies that lead to hosts of this datacenter, and objects with hashidrill's labels.
    The lock shows that no run needs them.
    """
    proxies = {proxy for host in estate.hosts.values() for proxy in host.links}

    async def remove_toxics(done: Healed, note: Told) -> None:
        for proxy, name in await remove_toxics_of_runs(wires[TOXIPROXY], proxies):
            note("clean-up", TOXIPROXY, proxy, note=f"removed {name}")
            done.cleaned.append(f"the toxic {name} from {proxy}")

    async def remove_all_objects(done: Healed, note: Told) -> None:
        def removed(name: str) -> None:
            note("clean-up", "kubernetes", name)
            done.cleaned.append(name)

        done.left.extend(await in_kubernetes().remove_objects(target, removed, connect, tell))

    wanted: list[tuple[str, str, Callable[[], Awaitable[object]], Callable[[Healed, Told], Awaitable[None]]]] = [
        ("kubernetes", "objects", lambda: in_kubernetes().objects_left(target, tell, connect), remove_all_objects)
    ]
    if TOXIPROXY in wires:
        wanted.insert(0, (TOXIPROXY, "toxics", lambda: toxics_of_runs(wires[TOXIPROXY], proxies), remove_toxics))
    healed = []
    for where, what, found, remove in wanted:
        done = Healed(Path(where), died=False)
        try:
            if await found():
                async with witnessed(target, wires, _NO_RUN, _NO_RUN, tell=tell, recording=None) as note:
                    await alone(target, wires, _NO_RUN, _NO_RUN, do=partial(remove, done, note), tell=tell)
        except HashidrillError as error:
            done.left.append(f"{what} of runs that have no recording here: {error}")
        if done.cleaned or done.left:
            healed.append(done)
    return healed


@dataclass(frozen=True)
class _Confirmed:
    """The reverts that another machine's recording asks for, as far as the operator and this datacenter allow them."""

    run: Path
    id: str
    why: str
    """Why this machine does not recognise the recording as its own."""
    experiment: Experiment
    undos: Sequence[Mapping[str, Any]]
    refused: Mapping[str, str]
    """Why a fault is not reverted, by the fault's id."""


def _asked(
    run: Path, why: str, target: AttachTarget, estate: Estate, confirm: Confirm | None
) -> _Confirmed | Healed | None:
    """The admitted part of another machine's recording; Healed or None if no part is. Writes nothing."""
    entries = entries_of(run)
    began = began_in(entries)
    undos = open_faults(entries)
    if not undos or (began.get("attached") or {}).get("name") != target.name:
        return Healed(run, died=False, refused=why) if began and in_doubt(entries) else None
    if any((run / name).is_symlink() for name in LINKED):
        return Healed(run, refused=why)  # heal writes next to the journal
    if confirm is None:
        return Healed(run, refused=f"{why}; if you trust it, name it and confirm each host")
    try:
        experiment = ResolvedExperiment.from_data(safe_json.parse((run / RESOLVED_NAME).read_text())).experiment
        actions = plan_of(experiment, target, estate).actions
    except (HashidrillError, OSError, ValueError) as error:
        return Healed(run, refused=f"{why}; its experiment cannot be read: {error}")
    method = {(action.what, host) for action in actions if action.verb == "apply" for host in action.hosts}
    refused: dict[str, str] = {}
    for host in sorted({str(undo.get("host")) for undo in undos}):
        there = [undo for undo in undos if str(undo.get("host")) == host]
        what = ", ".join(f"{undo.get('kind')} {json.dumps(undo.get('params'))[:_SHOWN]}" for undo in there)
        lacking = _not_admitted(there, host, estate, method)
        if lacking or not confirm(host, f"{run}: {why}. It lists as still in force: {what}"):
            refused |= {str(undo["fault_id"]): lacking or f"{host} was not confirmed (--yes {host})" for undo in there}
    wanted = [undo for undo in undos if undo["fault_id"] not in refused]
    if not wanted:
        return Healed(run, refused=f"{why}; {'; '.join(dict.fromkeys(refused.values()))}")
    return _Confirmed(run, str(began.get("id", run.name)), why, experiment, wanted, refused)


def _not_admitted(
    undos: Sequence[Mapping[str, Any]], host: str, estate: Estate, method: Collection[tuple[str, str]]
) -> str:
    """Why a confirmation is not enough; "" if it is."""
    if host not in estate.hosts:
        return f"{host} is not a host of {estate.name}, and no address of that recording is used"
    for undo in undos:
        if (undo.get("kind"), host) not in method:
            return f"its experiment never applies {undo.get('kind')} on {host}"
        if KEPT in undo:
            return f"the undo of {undo.get('kind')} on {host} has secrets, which only the machine that wrote it keeps"
    return ""


async def _heal_other(
    one: _Confirmed, hosts: AttachedDatacenter, plan: Plan, guard: Interlocks, tell: Callable[[str], None]
) -> Healed:
    done = Healed(one.run)
    try:
        async with guard.hold(replace(plan, run_id=one.id), tell, None) as held:
            with Journal(one.run / HEAL_NAME, Clock()) as journal:
                for undo in one.undos:
                    held.note("revert", str(undo["kind"]), str(undo["host"]), note=f"confirmed by hand: {one.why}")
                    how = await settle(dict(undo), hosts, journal)
                    held.note(
                        {"reverted": "gone", "others": "ended"}.get(how, how), str(undo["kind"]), str(undo["host"])
                    )
                    getattr(done, how).append(str(undo["fault_id"]))
    except (InterlockError, JournalHeldError, OSError) as error:
        return Healed(one.run, refused=f"{one.why}; none of its faults is reverted: {error}")
    done.left.extend(f"{fault_id}: {why}" for fault_id, why in one.refused.items())
    done.left.append("the data of its loads is not removed: heal the run on the machine that ran it")
    return done


async def _heal(
    run: Path,
    known: OurRun,
    hosts: Hosts,
    target: AttachTarget,
    wires: Mapping[str, Wire],
    *,
    tell: Callable[[str], None],
) -> Healed | None:
    began = began_in(known.entries)
    name, run_id = str(began.get("experiment", "")), known.id
    async with witnessed(target, wires, run_id, name, tell=tell, recording=run, key=known.key) as note:
        done = await heal_run(run, hosts, attached=target.name, told=partial(_note, note, name), ours=known)
        ours = (began.get("attached") or {}).get("name") == target.name
        if ours and (done is None or not done.refused) and unswept(run, known.key):
            if done is None:
                done = Healed(run, died=False)
                note("heal", name)
            await _clean(run, run_id, target, wires, done=done, note=note, tell=tell)
        if ours and (done is None or not done.refused) and "nomad" in wires:
            for job in await remove_left(wires["nomad"], run_id):
                tell(f"removed the job {job} of the run's workers")
                note("clean-up", "nomad job", job)
            for job in await remove_jobs(wires["nomad"], run_id):
                tell(f"removed the job {job}, which carried the run's faults")
                note("clean-up", "nomad job", job)
        if done is not None and not done.refused:
            note("end", name, note=_finished(done))
    if ours and (done is None or not (done.refused or done.stuck or done.left)):
        forget_open(run_id)
    return done


async def _clean(
    run: Path,
    run_id: str,
    target: AttachTarget,
    wires: Mapping[str, Wire],
    *,
    done: Healed,
    note: Told,
    tell: Callable[[str], None],
) -> None:
    """Fills `cleaned` and `left` of the result. Data with the run's own name can be removed at any time."""

    async def do(found: Mapping[Left, str]) -> None:
        cleaned, left = await sweep(found, wires, note)
        done.cleaned.extend(cleaned)
        done.left.extend(left)

    try:
        experiment = ResolvedExperiment.from_data(safe_json.parse((run / RESOLVED_NAME).read_text())).experiment
        found = leavings(experiment, run_id, wires)
        common = shared_leavings(experiment, run_id, wires)
        shared = {left: kind for left, kind in found.items() if left in common}
        await do({left: kind for left, kind in found.items() if left not in shared})
        if shared:
            await alone(target, wires, run_id, experiment.metadata.name, do=partial(do, shared), tell=tell)
    except (HashidrillError, OSError, ValueError) as error:
        why = f"the data of its loads was not touched: {error}"
        note("left", note=why)
        done.left.append(why)


def unswept(run: Path, key: LineKey) -> bool:
    """Whether data of the run's loads may remain: the run or its last heal did not end, or left something behind.

    Lines that this machine did not sign do not count.
    """
    try:
        lines, missing = signed_lines(run / AUDIT_NAME, key)
    except OSError:
        return False
    ended, left = True, False
    for verb in (str(safe_json.parse(line)["verb"]) for line in lines):
        if verb in {"begin", "heal"}:
            ended, left = False, False
        elif verb == "left":
            left = True
        elif verb == "end":
            ended = True
    return left or not ended or bool(missing)


def _faulted(known: OurRun, datacenter: str) -> set[str]:
    """The hosts on which a fault of that run may still be in force, and the hosts that prove it gone."""
    if (began_in(known.entries).get("attached") or {}).get("name") != datacenter:
        return set()
    undos = open_faults(known.entries)
    return {str(name) for undo in undos for name in (undo.get("host", ""), *undo.get("peers", ()))}


def _note(note: Told, experiment: str, verb: str, undo: Mapping[str, Any]) -> None:
    note(verb, str(undo.get("kind", experiment)), str(undo.get("host", "")), note=str(undo.get("why", "")))


def _finished(done: Healed) -> str:
    """The text of the last audit line: the faults that heal reverted, and those it could not revert."""
    said = [
        f"{what}: {', '.join(names)}"
        for names, what in (
            (done.reverted, "reverted"),
            (done.others, "another run's now"),
            (done.stuck, "still in force"),
            (done.cleaned, "removed"),
            (done.left, "left"),
        )
        if names
    ]
    return "; ".join(said) or "there was nothing to do"


def with_lost(estate: Estate, target: AttachTarget, runs: Mapping[Path, OurRun], tell: Callable[[str], None]) -> Estate:
    """Adds each lost host on which a fault of these runs may be in force, at the address that the run discovered.

    That address gets the operator's tokens, so it is read from resolved.json as this machine wrote it.
    """
    hosts = dict(estate.hosts)
    for run, known in runs.items():
        for found in _hosts_of(run, known, target):
            if found.name not in hosts and all(found.address != host.address for host in hosts.values()):
                hosts[found.name] = found
                tell(
                    f"{found.name} is not a member of {target.name} any more: a fault may have removed it; its faults"
                    f" are reverted at {found.address}, where {run.name} found it"
                )
    return replace(estate, hosts=hosts)


def _hosts_of(run: Path, known: OurRun, target: AttachTarget) -> Iterator[FoundHost]:
    if (began_in(known.entries).get("attached") or {}).get("name") != target.name:
        return
    faulted = {str(undo.get("host", "")) for undo in open_faults(known.entries)}
    for name, one in _recorded(run).items():
        if name in faulted:
            roles = {service: str(role) for service, role in one["agents"].items() if service in target.logins}
            urls = {service: target.logins[service].url_of(name, str(one["address"])) for service in roles}
            yield FoundHost(name, str(one["address"]), roles, urls)


def _recorded(run: Path) -> Mapping[str, Any]:
    """The recorded hosts by name, address and agents; empty for a run that ended before resolving its experiment."""
    try:
        hosts = safe_json.parse((run / RESOLVED_NAME).read_text())["experiment"]["datacenter"]["attached"]["hosts"]
        return {str(name): {"address": one["address"], "agents": dict(one["agents"])} for name, one in hosts.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
