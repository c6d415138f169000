"""`hashidrill staging arm`, `disarm` and `stop`: an operator's commands for an existing datacenter."""

import datetime as dt
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import anyio
import typer

from hashidrill.core.errors import InterlockError, UsageError
from hashidrill.core.experiment.library import SUFFIXES, find_experiment, read_document
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.util.folders import PLAYBOOKS
from hashidrill.core.util.folders import located as lookup
from hashidrill.faces.cli.common import AttachFile, Json, duration_s, examples, print_json, print_text
from hashidrill.gamedays.gameday.plan import is_game_day, read_plan
from hashidrill.kubernetes.attach_capabilities import located, reached
from hashidrill.staging.attach.http import Wire
from hashidrill.staging.attach.interlocks import who
from hashidrill.staging.attach.plan import digest_of, lines_of
from hashidrill.staging.attach.target import AttachTarget, read_target
from hashidrill.staging.interlocks import arming, operate
from hashidrill.staging.interlocks.arming import Armed
from hashidrill.staging.interlocks.kv import Kv
from hashidrill.staging.interlocks.settings import InterlockSettings, settings_of

T = TypeVar("T")
By = Annotated[
    str,
    typer.Option(
        "--by", metavar="NAME", help="The person who takes responsibility (default: your user on this machine)."
    ),
]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, stored with it.")]
KeyFile = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="Ed25519 key (PEM) that signs, if FILE pins a key.")
]


def register(app: typer.Typer) -> None:
    calls = (
        "staging arm raft/slow-leader-disk --attach staging.yaml --for 2h",
        "staging arm raft/slow-leader-disk --attach staging.yaml --for 2h --key me.pem",
        "staging arm state/snapshot-reset --attach staging.yaml --breaks-quorum",
        "staging arm --new-key me.pem",
    )
    app.command(epilog=examples(*calls))(arm)
    app.command(epilog=examples("staging disarm --attach staging.yaml"))(disarm)
    app.command(epilog=examples("staging stop --attach staging.yaml", "staging stop --attach staging.yaml --release"))(
        stop
    )


def arm(
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="EXPERIMENT", help="Experiments, or game days: all their experiments.")
    ] = None,
    *,
    attach: Annotated[
        Path | None,
        typer.Option("--attach", metavar="FILE", help="The existing datacenter (a file of `kind: Attach`)."),
    ] = None,
    for_: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long, like 30m or 2h.")] = "1h",
    by: By = "",
    why: Why = "",
    key: KeyFile = None,
    breaks_quorum: Annotated[
        bool,
        typer.Option(
            "--breaks-quorum", help="Experiments with `breaks_quorum: true` may break a quorum or restore old state."
        ),
    ] = False,
    new_key: Annotated[
        Path | None, typer.Option("--new-key", metavar="FILE", help="Write a new signing key to FILE; arm nothing.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Allow experiments in an existing datacenter.

    An experiment that is not armed does not run there. The arming ends after the time that --for gives.

    Writes who armed it, for which experiments, and until when: to a Consul key, or to a signed file. A digest limits
    the arming to the experiments' present actions: if an experiment changes, arm it again.
    """
    if new_key is not None:
        _new_key(new_key, as_json=as_json)
        return
    if not experiments or attach is None:
        raise UsageError("say what to arm and where: hashidrill staging arm EXPERIMENT... --attach FILE --for 2h")
    found = [one for name in experiments for one in _experiments(name)]
    target, settings = _read(attach)
    armed = []
    for each in {digest_of(one, settings): one for one in found}.values():
        wide = each.breaks_quorum and breaks_quorum
        armed.append(Armed(each.metadata.name, digest_of(each, settings), wide))
        print_text("".join(f"{line}\n" for line in lines_of(each, settings)))
        if each.breaks_quorum and not wide:
            print_text("  not armed for breaking a quorum or restoring old state: that needs --breaks-quorum\n")
    text = operate.made(
        settings,
        armed,
        target.name,
        by=by or who(),
        for_s=duration_s("--for", for_),
        now=_now(),
        why=why,
        private_key=None if key is None else _bytes(key),
    )
    folder = Path(target.path).parent
    where = _with_consul(
        target, lambda kv: operate.arm(kv, settings, folder, text, datacenter=target.name, said_by=target.path)
    )
    if as_json:
        print_json({"datacenter": target.name, "where": where, "for": for_, "armed": [vars(each) for each in armed]})
        return
    names = dict.fromkeys(each.name for each in armed)
    print_text(f"armed {', '.join(names)} in {target.name} for {for_} ({where})\n")


def disarm(attach: AttachFile, as_json: Json = False) -> None:
    """Revoke an arming.

    A run in progress in that datacenter reverts its faults and stops. Waits until the run has stopped, and disarms
    again if the run restores an earlier state of Consul.
    """
    target, settings = _read(attach)
    folder = Path(target.path).parent
    where = _with_consul(target, lambda kv: operate.disarm(kv, settings, folder, _now(), _tell))
    if as_json:
        print_json({"datacenter": target.name, "where": where, "armed": []})
    else:
        print_text(f"disarmed {target.name} ({where})\n")


def stop(
    attach: AttachFile,
    *,
    by: By = "",
    why: Why = "",
    release: Annotated[bool, typer.Option("--release", help="Release the button: runs may start again.")] = False,
    as_json: Json = False,
) -> None:
    """Press the stop button of an existing datacenter.

    Every run there reverts its faults and stops, and no run starts.

    The button stays pressed until it is released. Waits until the run in progress has reverted its faults, and presses
    again if that run restores an earlier state of Consul.
    """
    target, settings = _read(attach)
    if release:
        over = True
        _with_consul(target, lambda kv: operate.release(kv, settings))
    else:
        over = _with_consul(target, lambda kv: operate.press(kv, settings, by or who(), _now(), why, tell=_tell))
    if as_json:
        print_json({"datacenter": target.name, "pressed": not release, "runs_go_on": not over})
        return
    if release:
        print_text(f"the stop button of {target.name} is released\n")
        return
    said = ", and no run is in progress there" if over else ""
    print_text(
        f"the stop button of {target.name} is pressed{said}; release it with"
        f" `hashidrill staging stop --attach {target.path} --release`\n"
    )


def _experiments(name: str) -> Iterator[Experiment]:
    """The experiment of that name or path, or all experiments of a game day."""
    path = lookup(Path(name), PLAYBOOKS, SUFFIXES)
    if path is not None and is_game_day(read_document(path)):
        yield from (run.resolved.experiment for run in read_plan(path).runs)
    else:
        yield resolve(find_experiment(name)).experiment


def _tell(text: str) -> None:
    print_text(f"{text}\n")


def _read(path: Path) -> tuple[AttachTarget, InterlockSettings]:
    target = anyio.run(located, read_target(path))
    return target, settings_of(target.interlocks, target.path)


def _with_consul(target: AttachTarget, do: Callable[[Kv], Awaitable[T]]) -> T:
    """Runs `do` with Consul's key-value store. Raises InterlockError if Consul is missing or does not answer."""
    if "consul" not in target.logins:
        raise InterlockError(f"{target.path}: Consul keeps the stop button and the arming; add Consul to the file")

    async def done() -> T:
        async with reached(target) as now, Wire(now.logins["consul"]) as wire:
            return await do(Kv(wire))

    return anyio.run(done)


def _new_key(path: Path, *, as_json: bool) -> None:
    key = arming.new_key()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(f"{path}: no key was made: {error.strerror}") from None
    with os.fdopen(fd, "wb") as file:
        file.write(key)
    if as_json:
        print_json({"key": str(path), "public_key": arming.public_of(key)})
        return
    print_text(f"Only you can read {path}. Pin this in the attach file, under interlocks.arming:\n")
    print_text(f"  public_key: {arming.public_of(key)}\n")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"--key {path}: cannot be read: {error.strerror}") from None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(microsecond=0)
