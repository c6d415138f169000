"""The keeper of a datacenter that `hashidrill lab up` started: holds the sandbox, and serves the UIs to this machine.

Outside: `python -m hashidrill.lab.up.keeper` with the request on standard input, started by
hashidrill.lab.up.running. It prints the running datacenter as one JSON line and runs until SIGTERM. Inside the
sandbox the same module runs as `... keeper inside ROOT`, with the same request; a Unix socket, which network
namespaces do not separate, joins the two.
"""

import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import anyio
import anyio.abc
import httpx2

from hashidrill.core.errors import HashidrillError
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.util import syscalls as sc
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.wait import first_cause
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.lab.sandbox.sandbox import Sandbox, read_given, sandbox
from hashidrill.lab.up.running import RunningDatacenter, remember

_DOOR = "s/http"
_NO_UI = "UI is not available in this binary"
_ALL_OPERATIONS = frozenset({"fsync", "write", "read"})


def main() -> None:
    """Ends with the sandbox, or at SIGTERM."""
    request = read_given()
    if sys.argv[1:2] == ["inside"]:
        anyio.run(_inside, request, Path(sys.argv[2]))
        return
    state = Path(request["state"])
    command = [sys.executable, "-m", "hashidrill.lab.up.keeper", "inside", "{root}"]
    environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    try:
        with sandbox(command, environment, state.with_suffix(".log"), given=request) as box:
            anyio.run(_keep, request, state, box)
    except* HashidrillError as errors:  # an error of a task that runs while signals are watched comes in a group
        _say({"error": str(first_cause(errors))})
    finally:
        state.unlink(missing_ok=True)


async def _keep(request: dict[str, Any], state: Path, box: Sandbox) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_until_signal, group.cancel_scope)
        line = await anyio.to_thread.run_sync(box.output.readline, abandon_on_cancel=True)
        answer = json.loads(line or b'{"error": "the sandbox ended at once; see the log beside the state file"}')
        if "error" in answer:
            raise HashidrillError(answer["error"])
        urls: dict[str, str] = {}
        for service, path in answer["pages"].items():
            if service in request["expose"]:
                urls |= await _expose(service, path, request["expose"][service], box.root, group)
        own = sc.process_state(os.getpid())
        one = RunningDatacenter(
            name=request["name"],
            pid=os.getpid(),
            start_time=own[1] if own else 0,
            root=str(box.root),
            consul=request["binaries"].get("consul", ""),
            version=request["versions"].get("consul", ""),
            url=next(iter(urls.values()), ""),
            hosts=answer["hosts"],
            versions=request["versions"],
            binaries=request["binaries"],
            urls=urls,
            without_ui=[name for name in urls if name in answer["without_ui"]],
            environments=answer["environments"],
            left=answer["left"],
        )
        remember(one, state)
        _say(asdict(one))
        await anyio.to_thread.run_sync(box.process.wait, abandon_on_cancel=True)
        group.cancel_scope.cancel()


async def _expose(service: str, path: str, port: int, root: Path, group: anyio.abc.TaskGroup) -> dict[str, str]:
    """Serves a service's page on loopback; port 0 is any free port. Raises HashidrillError if it is in use."""
    try:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    except OSError as error:
        raise HashidrillError(f"cannot use port {port} of this machine ({error.strerror}); try --expose 0") from None
    real_port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - anyio's extra

    async def through(outer: anyio.abc.ByteStream) -> None:
        async with outer, await anyio.connect_unix(str(root / f"{_DOOR}-{service}")) as inner:
            await _splice(outer, inner)

    group.start_soon(listener.serve, _quietly(through))
    return {service: f"http://127.0.0.1:{real_port}{path}"}


async def _inside(request: dict[str, Any], root: Path) -> None:
    spec = DatacenterSpec.model_validate(request["spec"])
    datacenter = LocalDatacenter(
        spec, root, {name: Path(path) for name, path in request["binaries"].items()}, _ALL_OPERATIONS
    )
    failure = None
    try:
        await datacenter.start()
        await datacenter.wait_ready()
    except* HashidrillError as errors:
        failure = first_cause(errors)
    if failure is not None:
        _say({"error": _redactor(request).text(str(failure))})  # it may quote the agent's log
        return
    pages = datacenter.pages()
    async with anyio.create_task_group() as group:
        for service, (agent, _) in pages.items():
            door = await anyio.create_unix_listener(str(root / f"{_DOOR}-{service}"))
            group.start_soon(door.serve, _quietly(partial(_to_agent, urlsplit(agent))))
        group.start_soon(datacenter.keep, lambda _: None)
        environments = {name: datacenter.environment(name) for name in datacenter.hosts}
        hosts = json.loads((root / "hosts.json").read_text())
        shown = {name: page for name, (_, page) in pages.items()}
        without = [
            name for name, (agent, page) in pages.items() if name in request["expose"] and await _no_ui(agent + page)
        ]
        _say(
            {
                "hosts": hosts,
                "environments": environments,
                "pages": shown,
                "left": datacenter.left(),
                "without_ui": without,
            }
        )
        await anyio.sleep_forever()


async def _no_ui(page: str) -> bool:
    """Whether the page says that the agent's binary was built without a UI, as pages of Nomad and Vault can."""
    with contextlib.suppress(httpx2.HTTPError):
        async with httpx2.AsyncClient(trust_env=False, follow_redirects=True) as client:
            return _NO_UI in (await client.get(page)).text
    return False


async def _to_agent(agent: SplitResult, outer: anyio.abc.ByteStream) -> None:
    async with outer, await anyio.connect_tcp(str(agent.hostname), agent.port or 80) as inner:
        await _splice(outer, inner)


def _redactor(request: dict[str, Any]) -> Redactor:
    redactor = Redactor()
    redactor.learn(request["spec"])
    return redactor


async def _splice(one: anyio.abc.ByteStream, other: anyio.abc.ByteStream) -> None:
    """Copies bytes both ways until either side ends."""
    async with anyio.create_task_group() as group:

        async def pump(source: anyio.abc.ByteStream, sink: anyio.abc.ByteStream) -> None:
            try:
                async for chunk in source:
                    await sink.send(chunk)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
            group.cancel_scope.cancel()

        group.start_soon(pump, one, other)
        group.start_soon(pump, other, one)


def _quietly(handler: Any) -> Any:
    async def handle(stream: anyio.abc.ByteStream) -> None:
        try:
            await handler(stream)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    return handle


async def _until_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            return


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
