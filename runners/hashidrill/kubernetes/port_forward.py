"""Local ports that lead to ports of pods through the API server, for a runner without a route to pods' addresses.

Each connection to a local port is one WebSocket to the API server; the pod's kubelet joins the WebSocket to the port
inside the pod. The protocol is `v4.channel.k8s.io`: a message begins with its channel, 0 for data and 1 for errors, and
the first message of each channel is the port (k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go, 1.34). The pod
is addressed by its name: a connection that begins after the pod was replaced leads to the new pod.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import httpx2
from anyio.abc import ByteStream, Listener, SocketAttribute
from httpx2.websockets import AsyncWebSocketSession, WebSocketDisconnect, WebSocketNetworkError, WebSocketUpgradeError

from hashidrill.core.errors import AttachError
from hashidrill.core.util.wait import beside, first_cause, pause
from hashidrill.kubernetes.client import Cluster, ClusterError, Connect, cluster_of, connected
from hashidrill.kubernetes.pods import successor
from hashidrill.staging.attach.target import PODS_PLACE, AttachTarget

Tell = Callable[[str], None]
_PROTOCOL = "v4.channel.k8s.io"
_DATA, _CHANNELS = 0, 2
_PIECE_BYTES, _LARGEST_MESSAGE_BYTES = 32 << 10, 16 << 20
_ALIVE_EVERY_S = 10.0
_AGAIN_WITHIN_S, _AGAIN_AFTER_S = 3.0, 0.3
"""How long a connection to a pod is retried before it fails: an API server may be changing its leader."""
_REFUSED, _OF_POD = (401, 403), (404, 500)


class ForwardError(ClusterError):
    """A connection to a port of a pod failed, or broke.

    `of_pod`: the reason is the pod (it is gone, or nothing listens in it), not the network on the way to it.
    """

    def __init__(self, text: str, status: int = 0, *, of_pod: bool = False) -> None:
        super().__init__(text, status)
        self.of_pod = of_pod


class Forwarder:
    """Forwards with one login. `tell` is called once when the way to the pods breaks, and once when it works again."""

    def __init__(self, cluster: Cluster, client: httpx2.AsyncClient, tell: Tell) -> None:
        self._cluster, self._client, self._tell = cluster, client, tell
        self._broken = False
        self.keepers: dict[str, str] = {}
        """For each pod: its DaemonSet and node (hashidrill.kubernetes.pods.keeper)."""
        self._names: dict[str, str] = {}
        """For each pod: the pod that its DaemonSet now runs on that node."""

    async def _replaced(self, pod: str) -> bool:
        """Whether the pod's DaemonSet now runs another pod on that node; connections then lead to that one."""
        if not self.keepers.get(pod):
            return False
        found = successor(await self._cluster.listed("v1", "Pod"), self.keepers[pod])
        before = self._names.get(pod, pod)
        if found is not None:
            self._names[pod] = found["metadata"]["name"]
        return self._names.get(pod, pod) != before

    async def check(self, pod: str, port: int) -> None:
        """Opens one connection and closes it. Raises ForwardError."""
        async with self._dialled(pod, port):
            pass

    async def join(self, pod: str, port: int, stream: ByteStream) -> None:
        """Joins a local connection to the port, and closes both when either side ends."""
        async with stream:
            try:
                await self._joined(pod, port, stream)
            except ForwardError as error:
                if not error.of_pod and not self._broken:
                    self._broken = True
                    self._tell(f"{error}; each new connection tries again")

    async def _joined(self, pod: str, port: int, stream: ByteStream) -> None:
        began_s = anyio.current_time()
        while True:
            opened = False
            try:
                async with self._dialled(pod, port) as session:
                    opened = True
                    if self._broken:
                        self._broken = False
                        self._tell(f"Kubernetes {self._cluster.server} forwards to pods again")
                    async with beside(partial(_send, stream, session)):
                        await _receive(stream, session)
            except ForwardError as error:
                late = anyio.current_time() - began_s > _AGAIN_WITHIN_S
                if error.absent and not opened and await self._replaced(pod):
                    continue
                if opened or error.of_pod or error.status in _REFUSED or late:
                    raise
                await pause(_AGAIN_AFTER_S)
            else:
                return

    @asynccontextmanager
    async def _dialled(self, pod: str, port: int) -> AsyncIterator[AsyncWebSocketSession]:
        """A connection whose channels are open. Raises ForwardError, also if the connection breaks in the block."""
        try:
            async with self._client.websocket(
                f"/api/v1/namespaces/{self._cluster.namespace}/pods/{self._names.get(pod, pod)}/portforward",
                params={"ports": str(port)},
                subprotocols=[_PROTOCOL],
                max_message_size_bytes=_LARGEST_MESSAGE_BYTES,
                keepalive_ping_interval_seconds=_ALIVE_EVERY_S,
                keepalive_ping_timeout_seconds=_ALIVE_EVERY_S,
            ) as session:
                for _ in range(_CHANNELS):
                    await session.receive_bytes()  # the port
                yield session
        except Exception as error:  # noqa: BLE001 - httpx2 passes on errors of its own libraries, also in groups
            raise self._error(pod, port, first_cause(error)) from None

    def _error(self, pod: str, port: int, error: BaseException) -> ForwardError:
        if isinstance(error, ForwardError):
            return error
        where = f"Kubernetes {self._cluster.server}: forward to port {port} of pod {pod}"
        if not isinstance(error, WebSocketUpgradeError):
            return ForwardError(f"{where}: {str(error) or type(error).__name__}")
        status = error.response.status_code
        if status in _REFUSED:
            return ForwardError(
                f"{where}: HTTP {status}: our role lacks get or create on pods/portforward; `hashidrill staging acl"
                " kubernetes EXPERIMENT` prints a role that has both",
                status,
            )
        return ForwardError(f"{where}: HTTP {status}", status, of_pod=status in _OF_POD)


async def _send(stream: ByteStream, session: AsyncWebSocketSession) -> None:
    """Sends until the local side ends, and then closes the WebSocket, which ends `_receive`."""
    try:
        while True:
            await session.send_bytes(bytes([_DATA]) + await stream.receive(_PIECE_BYTES))
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await session.close()


async def _receive(stream: ByteStream, session: AsyncWebSocketSession) -> None:
    """Receives until the pod's side ends. Raises ForwardError for a message on the error channel."""
    while True:
        try:
            message = await session.receive_bytes()
        except (WebSocketDisconnect, WebSocketNetworkError):  # kubelets send no close frame
            return
        if message[0] != _DATA:
            raise ForwardError(message[1:].decode(errors="replace"), of_pod=True)
        try:
            await stream.send(message[1:])
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return


@asynccontextmanager
async def forwarded(target: AttachTarget, connect: Connect | None, tell: Tell) -> AsyncIterator[AttachTarget]:
    """The target with a local URL for each pod that `located` found no route to; the URLs work inside the block.

    A cancelled run reverts over these URLs. `tell` receives one line for each product. Raises AttachError if
    connections are refused, unless the file has an address of the product.
    """
    unrouted = target.kubernetes["unrouted"]
    logins, admitted = dict(target.logins), dict[str, dict[str, Any]]()
    scopes: list[anyio.CancelScope] = []
    calls = []
    local_port = SocketAttribute.local_port
    async with connected(target.kubernetes, connect or cluster_of) as cluster, cluster.streams() as client:
        forwarder = Forwarder(cluster, client, tell)
        for product, one in unrouted.items():
            try:
                await forwarder.check(one["first"], one["ports"][one["first"]])
            except ForwardError as error:
                said = f"{PODS_PLACE}.{product}: {one['why']}, and forwarding failed: {error}"
                if product not in target.kubernetes["entrances"]:
                    raise AttachError(f"{target.path}: {said}; or run hashidrill in a pod of that cluster") from None
                tell(said)
            else:
                tell(f"{PODS_PLACE}.{product}: {one['why']}: forwarded through {cluster.server}")
                admitted[product] = one
        for product, one in admitted.items():
            forwarder.keepers |= one["keepers"]
            urls = {}
            for pod, port in one["ports"].items():
                listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
                urls[pod] = f"{one['scheme']}://127.0.0.1:{listener.extra(local_port)}"  # noqa: S610 - no Django
                scopes.append(anyio.CancelScope(shield=True))
                calls.append(partial(_serve, listener, partial(forwarder.join, pod, port), scopes[-1]))
            by_address = {address: urls[pod] for pod, address in one["addresses"].items()}
            logins[product] = replace(logins[product], forwards={**urls, **by_address})
            if product not in target.kubernetes["entrances"]:
                own = replace(logins[product], address=urls[one["first"]], of_agents=logins[product].address)
                logins[product] = own
        async with beside(*calls):
            try:
                yield replace(target, logins=logins)
            finally:
                for scope in scopes:
                    scope.cancel()


async def _serve(listener: Listener[ByteStream], join: Callable[[ByteStream], Any], scope: anyio.CancelScope) -> None:
    with scope:
        async with listener:
            await listener.serve(join)
