"""Heals runs against an attached datacenter: reverts what they left in force, and takes away what their loads left.

Everything that it does leaves audit lines in Consul and in the recording, as a run's own actions do. No interlock holds
up a revert. The keys of loads have the names of the loads, so nobody's run may go on while they are removed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.backends.reached import held, objects_left, remove_objects
from hashidrill.carriers.host import CarriedHost
from hashidrill.carriers.nomad_jobs import remove_jobs
from hashidrill.datacenter.attach.datacenter import AttachedDatacenter, attach
from hashidrill.datacenter.attach.interlocks import alone, witnessed
from hashidrill.datacenter.attach.leftovers import Told, leavings, sweep
from hashidrill.datacenter.attach.links import TOXIPROXY, remove_toxics_of_runs, toxics_of_runs
from hashidrill.datacenter.interlocks.guard import AUDIT_NAME
from hashidrill.engine.heal import Healed, entries_of, heal_run, open_faults
from hashidrill.engine.heal_lost import with_lost
from hashidrill.errors import HashidrillError
from hashidrill.experiment.model import DatacenterSpec
from hashidrill.experiment.resolved import ResolvedExperiment
from hashidrill.generators.nomad_spawner import remove_left
from hashidrill.recording.journal import read_journal
from hashidrill.recording.writer import RESOLVED_NAME
from hashidrill.util import foreign
from hashidrill.util.files import JOURNAL_NAME

if TYPE_CHECKING:
    from hashidrill.abc import Hosts
    from hashidrill.backends.kubernetes.client import Connect
    from hashidrill.datacenter.attach.estate import Estate
    from hashidrill.datacenter.attach.target import AttachTarget
    from hashidrill.datacenter.attach.wire import Wire
    from hashidrill.rights import Left

_APPLIES_NOTHING_S = 1.0
"""How long a host would keep a fault of ours: heal only takes faults away."""
_NO_RUN = "heal"
"""What stands for a run in the lock and in audit lines about what no recording here is about."""
Look = Callable[["AttachTarget", AsyncExitStack], Awaitable[tuple["Estate", dict[str, "Wire"]]]]


async def heal_attached(
    target: AttachTarget, runs: Sequence[Path], tell: Callable[[str], None], *, look: Look = attach,
    datacenter: Callable[..., AttachedDatacenter] = AttachedDatacenter, connect: Connect | None = None,
) -> list[Healed | None]:  # fmt: skip
    """What was done for each run; None where there was nothing to do. `tell` hears what it does, as it does it."""
    healed = []
    target = replace(target, undoing=True)
    async with AsyncExitStack() as stack:
        estate, wires = await look(target, stack)
        estate = with_lost(estate, target, runs, tell)
        spec = DatacenterSpec.model_validate(estate.as_datacenter())
        parts = await stack.enter_async_context(
            held(
                target, estate, wires, deadline_s=_APPLIES_NOTHING_S, tell=tell, undoing=True, connect=connect,
                awaited={name for run in runs for name in _faulted(run, target.name)} & {*estate.hosts},
            )
        )  # fmt: skip
        hosts = await stack.enter_async_context(datacenter(spec, target, estate, wires, carried=parts))
        carrying = {host for part in parts.values() for host in part.values() if isinstance(host, CarriedHost)}
        for run in runs:
            for host in carrying:
                host.act_for(_id_of(run))
            hosts.keep_artifacts(run / "artifacts")
            healed.append(await _heal(run, hosts, target, wires, tell))
        if TOXIPROXY in wires:
            healed += await _without_recording(target, estate, wires, tell)
        healed += await _objects_without_recording(target, wires, tell, connect)
    return healed


async def _without_recording(
    target: AttachTarget, estate: Estate, wires: Mapping[str, Wire], tell: Callable[[str], None]
) -> list[Healed]:
    """Removes toxics of runs whose recordings are elsewhere, or gone: a toxic has no lease, and stays for ever.

    Only from proxies that lead to hosts of this datacenter: its lock says that no run goes on that needs them.
    """
    proxies = {proxy for host in estate.hosts.values() for proxy in host.links}
    done = Healed(Path(TOXIPROXY), died=False)

    async def remove(note: Told) -> None:
        for proxy, name in await remove_toxics_of_runs(wires[TOXIPROXY], proxies):
            note("clean-up", TOXIPROXY, proxy, note=f"removed {name}")
            done.cleaned.append(f"the toxic {name} from {proxy}")

    try:
        if await toxics_of_runs(wires[TOXIPROXY], proxies):
            async with witnessed(target, wires, _NO_RUN, _NO_RUN, tell=tell, recording=None) as note:
                await alone(target, wires, _NO_RUN, _NO_RUN, do=partial(remove, note), tell=tell)
    except HashidrillError as error:
        done.left.append(f"toxics of runs that have no recording here: {error}")
    return [done] if done.cleaned or done.left else []


async def _objects_without_recording(
    target: AttachTarget, wires: Mapping[str, Wire], tell: Callable[[str], None], connect: Connect | None
) -> list[Healed]:
    """Deletes objects of runs whose recordings are elsewhere, or gone, found by their labels alone."""
    done = Healed(Path("kubernetes"), died=False)

    async def remove(note: Told) -> None:
        def removed(name: str) -> None:
            note("clean-up", "kubernetes", name)
            done.cleaned.append(name)

        done.left.extend(await remove_objects(target, removed, connect, tell))

    try:
        if await objects_left(target, tell, connect):
            async with witnessed(target, wires, _NO_RUN, _NO_RUN, tell=tell, recording=None) as note:
                await alone(target, wires, _NO_RUN, _NO_RUN, do=partial(remove, note), tell=tell)
    except HashidrillError as error:
        done.left.append(f"objects of runs that have no recording here: {error}")
    return [done] if done.cleaned or done.left else []


async def _heal(
    run: Path, hosts: Hosts, target: AttachTarget, wires: Mapping[str, Wire], tell: Callable[[str], None]
) -> Healed | None:
    began = _began(run)
    name, run_id = str(began.get("experiment", "")), _id_of(run)
    async with witnessed(target, wires, run_id, name, tell=tell, recording=run) as note:
        done = await heal_run(run, hosts, attached=target.name, told=partial(_note, note, name))
        ours = (began.get("attached") or {}).get("name") == target.name
        if ours and (done is None or not done.refused) and unswept(run):
            if done is None:
                done = Healed(run, died=False)
                note("heal", name)
            await _clean(run, run_id, target, wires, done=done, note=note, tell=tell)
        if ours and (done is None or not done.refused) and "nomad" in wires:
            for job in await remove_left(wires["nomad"], run_id):
                tell(f"removed the job {job} of its workers")
                note("clean-up", "nomad job", job)
            for job in await remove_jobs(wires["nomad"], run_id):
                tell(f"removed the job {job}, which carried its faults")
                note("clean-up", "nomad job", job)
        if done is not None and not done.refused:
            note("end", name, note=_finished(done))
    return done


async def _clean(
    run: Path, run_id: str, target: AttachTarget, wires: Mapping[str, Wire], *, done: Healed, note: Told,
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Fills `cleaned` and `left` of what was done. What has the name of the run is in nobody else's way."""

    async def do(found: Mapping[Left, str]) -> None:
        cleaned, left = await sweep(found, wires, note)
        done.cleaned.extend(cleaned)
        done.left.extend(left)

    try:
        experiment = ResolvedExperiment.from_data(foreign.parse((run / RESOLVED_NAME).read_text())).experiment
        found = leavings(experiment, run_id, wires)
        shared = {left: kind for left, kind in found.items() if run_id not in left.name}
        await do({left: kind for left, kind in found.items() if left not in shared})
        if shared:
            await alone(target, wires, run_id, experiment.metadata.name, do=partial(do, shared), tell=tell)
    except (HashidrillError, OSError, ValueError) as error:
        why = f"what its loads left was not touched: {error}"
        note("left", note=why)
        done.left.append(why)


def unswept(run: Path) -> bool:
    """Whether what its loads left may still be there: it, or the last heal, did not end, or left something."""
    ended, left = True, False
    for verb in _verbs(run / AUDIT_NAME):
        if verb in {"begin", "heal"}:
            ended, left = False, False
        elif verb == "left":
            left = True
        elif verb == "end":
            ended = True
    return left or not ended


def _verbs(path: Path) -> list[str]:
    """The verbs of the audit lines that the recording holds. A line that was torn, as its engine died, says nothing."""
    verbs = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            verbs.append(str(foreign.parse(line)["verb"]))
        except (ValueError, KeyError, TypeError):
            continue
    return verbs


def _faulted(run: Path, datacenter: str) -> set[str]:
    """The hosts on which a fault of that run may still be in force, and those from which it is proven gone."""
    if (_began(run).get("attached") or {}).get("name") != datacenter:
        return set()
    undos = open_faults(entries_of(run))
    return {str(name) for undo in undos for name in (undo.get("host", ""), *undo.get("peers", ()))}


def _began(run: Path) -> Mapping[str, Any]:
    path = run / JOURNAL_NAME
    entries = read_journal(path) if path.is_file() else []
    return next((entry.data for entry in entries if entry.event == "run"), {})


def _id_of(run: Path) -> str:
    return str(_began(run).get("id", run.name))


def _note(note: Told, experiment: str, verb: str, undo: Mapping[str, Any]) -> None:
    note(verb, str(undo.get("kind", experiment)), str(undo.get("host", "")), note=str(undo.get("why", "")))


def _finished(done: Healed) -> str:
    """For the last audit line: what heal finished, and what it could not."""
    said = [
        f"{what}: {', '.join(names)}"
        for names, what in (
            (done.reverted, "reverted"), (done.others, "another run's now"), (done.stuck, "still in force"),
            (done.cleaned, "removed"), (done.left, "left"),
        )
        if names
    ]  # fmt: skip
    return "; ".join(said) or "there was nothing to do"
