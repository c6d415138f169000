"""Requests to one Kubernetes API server. Each request has a time limit, and each error says what to do.

Objects are plain dicts, as in the API. lightkube reads kubeconfigs, contexts, certificates, tokens, login programs
and the service account of a pod, and accepts any kind of resource.
"""

from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import anyio
import httpx2

from hashidrill.core.errors import AttachError, FaultError
from hashidrill.core.protocols.registry import near
from hashidrill.core.util.extras import extra
from hashidrill.core.util.safe_json import parse
from hashidrill.core.util.wait import first_cause, pause
from hashidrill.kubernetes.vocabulary import plural_of
from hashidrill.staging.attach.http import Login, UnansweredError, Wire
from hashidrill.staging.attach.product import attachables
from hashidrill.staging.attach.target import PLACE

with extra("kubernetes", PLACE):
    from lightkube import ApiError, AsyncClient, KubeConfig
    from lightkube.config.client_adapter import ConnectionParams
    from lightkube.core.exceptions import ConfigError
    from lightkube.generic_resource import create_global_resource, create_namespaced_resource
    from lightkube.models.meta_v1 import Status
    from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
    from lightkube.resources.core_v1 import Namespace, Node, Pod
    from lightkube.types import PatchType

T = TypeVar("T")
ANSWERS_WITHIN_S = 10.0
"""How long one request may take, including the login."""
ROUTE_WITHIN_S = 2.0
"""How long an agent may take to answer at the address of its pod."""
_OF_AGENT = (200, 500)
"""The statuses with which agents answer a request for their health; 500 without a leader."""
BUSY_WITHIN_S = 15.0
"""How long a request is repeated while the server answers HTTP 429: less than the time of one attempt to revert."""
_RETRY_AFTER_S = 1.0
"""The wait if a server names none; API servers usually name one second."""
_STDOUT, _ENDED = 1, 3
"""Channels of a command that runs in a container."""
_FORBIDDEN, _GONE, _CONFLICT, _BUSY = 403, 404, 409, 429
Connect = Callable[[Mapping[str, Any]], "Cluster"]


class ClusterError(FaultError):
    """The API server refused, or did not answer. `status` is its HTTP status; 0 without an answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status

    @property
    def absent(self) -> bool:
        return self.status == _GONE

    @property
    def forbidden(self) -> bool:
        return self.status == _FORBIDDEN

    @property
    def exists(self) -> bool:
        return self.status == _CONFLICT


class _BusyError(Exception):
    """HTTP 429: the server asks to repeat the request later."""

    def __init__(self, text: str, response: httpx2.Response) -> None:
        super().__init__(text)
        said = response.headers.get("retry-after", "")
        self.retry_after_s = float(said) if said.isdecimal() and int(said) else _RETRY_AFTER_S


class Cluster:
    """One API server and one namespace. `context` is for messages and commands; "" if hashidrill runs in a pod."""

    def __init__(self, client: AsyncClient, namespace: str, context: str, server: str) -> None:
        self._client, self.namespace, self.context, self.server = client, namespace, context, server
        self.tell: Callable[[str], None] = lambda _: None
        """Called with the reason of a long wait."""
        self.deleted_s: dict[tuple[str, str], float] = {}
        """When the deletion of each object was first requested; several connections to one server may share this."""
        self.unrouted: Callable[[Login, str], Awaitable[str]] = _no_answer
        """Why an agent does not answer this machine at the URL of its pod's own address; "" if it does."""

    def since_deletion_s(self, kind: str, name: str) -> float:
        """Seconds since the first request to delete the object; repeated attempts share one waiting time."""
        now_s = anyio.current_time()
        return now_s - self.deleted_s.setdefault((kind, name), now_s)

    async def aclose(self) -> None:
        await self._client.aclose()

    def streams(self) -> httpx2.AsyncClient:
        """A client with the same login for long connections, any number of them at once."""
        params = ConnectionParams(httpx2.Timeout(ANSWERS_WITHIN_S), trust_env=False)
        return httpx2.AsyncClient(
            **params.httpx_params(self._client.config), limits=httpx2.Limits(max_connections=None)
        )

    def kubectl(self, command: str) -> str:
        """`kubectl --context staging -n consul COMMAND`: what a person may type."""
        context = f"--context {self.context} " if self.context else ""
        return f"kubectl {context}-n {self.namespace} {command}"

    async def get(self, api: str, kind: str, name: str) -> dict[str, Any] | None:
        """The object in the namespace; None if there is none. Raises ClusterError."""
        try:
            return await self._ask(f"read {kind} {name}", lambda: self._client.get(_namespaced(api, kind), name))
        except ClusterError as error:
            if error.absent:
                return None
            raise

    async def listed(self, api: str, kind: str, labels: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """All objects of this kind in the namespace with these labels. Raises ClusterError."""

        async def every() -> dict[str, Any]:
            of = self._client.list(_namespaced(api, kind), labels=dict(labels or {}), chunk_size=200)
            return {"items": [_plain(one) async for one in of]}

        found: list[dict[str, Any]] = (await self._ask(f"list {kind}", every))["items"]
        return found

    async def create(self, api: str, kind: str, made: Mapping[str, Any]) -> dict[str, Any]:
        """Creates the object; returns it as the server keeps it. Raises ClusterError."""
        resource = _namespaced(api, kind)
        body = resource({**made, "apiVersion": api, "kind": kind})
        return await self._ask(f"create {kind} {made['metadata']['name']}", lambda: self._client.create(body))

    async def patch(self, api: str, kind: str, name: str, change: Mapping[str, Any]) -> None:
        """Merges the change into the object; ignores a missing one. Raises ClusterError."""

        async def asked() -> dict[str, Any]:
            await self._client.patch(_namespaced(api, kind), name, dict(change), patch_type=PatchType.MERGE)
            return {}

        try:
            await self._ask(f"change {kind} {name}", asked)
        except ClusterError as error:
            if not error.absent:
                raise

    async def delete(self, api: str, kind: str, name: str) -> bool:
        """Requests the object's deletion; False if missing. It vanishes after its finalizers. Raises ClusterError."""

        async def asked() -> dict[str, Any]:
            await self._client.delete(_namespaced(api, kind), name)
            return {}

        try:
            await self._ask(f"delete {kind} {name}", asked)
        except ClusterError as error:
            if error.absent:
                return False
            raise
        return True

    async def definition(self, plural: str, group: str) -> dict[str, Any] | None:
        """A CustomResourceDefinition; None if the cluster has none of that name. Raises ClusterError."""
        resource = create_global_resource(
            "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"
        )
        return await self._of_cluster(resource, "CustomResourceDefinition", f"{plural}.{group}")

    async def node(self, name: str) -> dict[str, Any] | None:
        """A node; None if the cluster has none of that name. Raises ClusterError."""
        return await self._of_cluster(Node, "Node", name)

    async def namespace_there(self) -> bool:
        """Whether the cluster has the namespace. Raises ClusterError, also if the right to read it is missing."""
        return await self._of_cluster(Namespace, "Namespace", self.namespace) is not None

    async def run(self, pod: str, container: str, command: Sequence[str]) -> str:
        """What a command in a container prints, however it ends. Raises ClusterError.

        Like `kubectl exec`, it uses the WebSocket protocol `v4.channel.k8s.io`: a message begins with its channel.
        """
        what = f"run {command[0]} in the container {container} of pod {pod}"
        asked = {"container": container, "stdout": "true", "stderr": "true", "command": list(command)}
        path, printed, why = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/exec", b"", ""
        try:
            with anyio.fail_after(ANSWERS_WITHIN_S):
                async with (
                    self.streams() as client,
                    client.websocket(path, params=asked, subprotocols=["v4.channel.k8s.io"]) as session,
                ):
                    while True:
                        message = await session.receive_bytes()
                        if message[0] == _STDOUT:
                            printed += message[1:]
                        elif message[0] == _ENDED:
                            why = str(parse(message[1:]).get("message", ""))
                            break
        except TimeoutError:
            raise ClusterError(f"{self._where}: {what}: no answer within {ANSWERS_WITHIN_S:g}s") from None
        except Exception as error:  # noqa: BLE001 - httpx2 passes on errors of its own libraries, also in groups
            raise self._not_run(what, first_cause(error)) from None
        if not printed:
            raise ClusterError(f"{self._where}: {what}: it printed nothing; {why or 'it ended'}")
        return printed.decode(errors="replace")

    def _not_run(self, what: str, error: BaseException) -> ClusterError:
        response = getattr(error, "response", None)
        if response is None:
            return ClusterError(f"{self._where}: {what}: {str(error) or type(error).__name__}")
        helps = "`hashidrill staging acl kubernetes EXPERIMENT` prints the role with get and create on pods/exec"
        helps = f"; {helps}" if response.status_code == _FORBIDDEN else ""
        return ClusterError(f"{self._where}: {what}: HTTP {response.status_code}{helps}", response.status_code)

    async def may(self, verb: str, resource: str, name: str = "") -> bool:
        """Whether we may do that to a `resource` like pods or podchaos.chaos-mesh.org; True if the server cannot tell.

        `name`: one object without a namespace.
        """
        plural, _, group = resource.partition(".")
        of_cluster = bool(name) or plural == "nodes"
        plural, _, part = plural.partition("/")
        about = {"verb": verb, "resource": plural, "subresource": part, "group": group, "name": name}
        about |= {} if of_cluster else {"namespace": self.namespace}
        asked = SelfSubjectAccessReview.from_dict({"spec": {"resourceAttributes": about}})
        try:
            said = await self._ask(f"ask whether we may {verb} {resource}", lambda: self._client.create(asked))
        except ClusterError:
            return True
        return bool((said.get("status") or {}).get("allowed", True))

    async def _of_cluster(self, resource: Any, kind: str, name: str) -> dict[str, Any] | None:
        try:
            return await self._ask(f"read {kind} {name}", lambda: self._client.get(resource, name))
        except ClusterError as error:
            if error.absent:
                return None
            raise

    async def _ask(self, what: str, ask: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        """Sends the request, and repeats it when a busy server says so. Raises ClusterError, like `_asked`."""
        began_s = anyio.current_time()
        while True:
            try:
                return await self._asked(what, ask)
            except _BusyError as error:
                waited_s = anyio.current_time() - began_s
                if waited_s + error.retry_after_s > BUSY_WITHIN_S:
                    raise ClusterError(
                        f"{error}; it said so for {waited_s:.0f}s, and to wait {error.retry_after_s:g}s more: it limits"
                        " our requests; try again when it is less busy",
                        _BUSY,
                    ) from None
                await pause(error.retry_after_s)

    async def _asked(self, what: str, ask: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        try:
            with anyio.fail_after(ANSWERS_WITHIN_S):
                return _plain(await ask())
        except (TimeoutError, httpx2.TimeoutException):
            raise ClusterError(f"{self._where}: {what}: no answer within {ANSWERS_WITHIN_S:g}s") from None
        except ApiError as error:
            if error.response is not None and error.response.status_code == _BUSY:
                raise _BusyError(f"{self._where}: {what}: {self._refused(error.status)}", error.response) from None
            raise ClusterError(
                f"{self._where}: {what}: {self._refused(error.status)}", error.status.code or 0
            ) from None
        except httpx2.HTTPStatusError as error:
            status = error.response.status_code
            if status == _BUSY:
                raise _BusyError(f"{self._where}: {what}: HTTP {status}", error.response) from None
            raise ClusterError(f"{self._where}: {what}: HTTP {status}; is this an API server?", status) from None
        except (httpx2.HTTPError, OSError, ConfigError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise ClusterError(f"{self._where}: {what}: {why}; does `{self.kubectl('get pods')}` work?") from None

    @property
    def _where(self) -> str:
        return f"Kubernetes {self.server}"

    def _refused(self, status: Status) -> str:
        said = status.message or status.reason or f"HTTP {status.code}"
        if status.code == 401:
            why = _expired(self._client.config)
            return f"{said}: it does not accept our login;{why} log in again with `{self.kubectl('get pods')}`"
        if status.code == 403 and "is being terminated" in said:
            return f"{said}: the namespace is being deleted"
        if status.code == 403 and "denied the request" not in said:  # a refusal by admission, which no role changes
            return f"{said}; `hashidrill staging acl kubernetes EXPERIMENT` prints the role that allows it"
        if status.code == 404 and (status.details is None or status.details.kind in (None, "", "namespaces")):
            no_kind = status.details is None or not status.details.kind
            missing = "its CustomResourceDefinition" if no_kind else f"the namespace {self.namespace}"
            return f"{said}; does {missing} exist?"
        return said


async def _no_answer(login: Login, url: str) -> str:
    """Why the agent itself does not answer. A connection is not enough: a proxy may accept each, even with TLS.

    The request has no token, because a stranger may answer.
    """
    product = attachables([login.service])[login.service]
    async with Wire(Login(login.service, url, login.tls)) as wire:
        try:
            answer = await wire.request("GET", product.health, timeout_s=ROUTE_WITHIN_S)
        except UnansweredError as error:
            return str(error).rpartition(f"{product.health}: ")[2]
        return "" if answer.status in _OF_AGENT else f"HTTP {answer.status}"


def _expired(one: Any) -> str:
    """Says that the client certificate of a kubeconfig's user has expired; "" if it has not, or is unreadable."""
    from cryptography import x509  # noqa: PLC0415 - only for a login that is refused

    user = one.user
    try:
        said = b64decode(user.client_cert_data or "") or one.abs_file(user.client_cert).read_bytes()
        ends = x509.load_pem_x509_certificate(said).not_valid_after_utc
    except (OSError, ValueError, TypeError, ConfigError):
        return ""
    return f" its client certificate expired on {ends:%Y-%m-%d %H:%M} UTC;" if ends < datetime.now(UTC) else ""


def _plain(found: Any) -> dict[str, Any]:
    return dict(found if isinstance(found, Mapping) else found.to_dict())


def _namespaced(api: str, kind: str) -> Any:
    if (api, kind) == ("v1", "Pod"):
        return Pod
    group, _, version = api.rpartition("/")
    return create_namespaced_resource(group, version, kind, plural_of(kind))


def cluster_of(settings: Mapping[str, Any], *, transport: httpx2.AsyncBaseTransport | None = None) -> Cluster:
    """The cluster of an attach file; sends no request. Raises AttachError for an unusable kubeconfig."""
    file, context = settings["kubeconfig"], settings.get("context")
    where, place = file or "the service account of our own pod", settings.get("place", PLACE)
    found: KubeConfig | None = None
    try:
        found = KubeConfig.from_file(file) if file else KubeConfig.from_service_account()
        one = found.get(context)
    except ConfigError as error:
        helps = _other_contexts(found, str(context), place) if found and context else ""
        helps = helps if file else f"; name a `kubeconfig` under {place}, or set KUBECONFIG"
        raise AttachError(f"{where}: {error}{helps}") from None
    except KeyError as error:
        raise AttachError(f"{where}: it lacks {error}, which a context or a pod needs") from None
    except Exception as error:  # noqa: BLE001 - any person may have written the file, and a library parses it
        raise AttachError(f"{where}: not a kubeconfig: {type(error).__name__}: {error}") from None
    if one is None or one.user is None:
        raise AttachError(f"{where}: the context {context or found.current_context} names no user to log in as")
    namespace = settings.get("namespace") or one.namespace
    try:
        limits = httpx2.Timeout(ANSWERS_WITHIN_S)
        client = AsyncClient(one, namespace=namespace, timeout=limits, trust_env=False, transport=transport)
    except (ConfigError, OSError, ValueError) as error:
        raise AttachError(f"{where}: {error}") from None
    name = "" if not file else one.context_name
    return Cluster(client, namespace, name, one.cluster.server)


def _other_contexts(found: KubeConfig, context: str, place: str) -> str:
    return f"; {place}.context: {near(context, found.contexts)}" if found.contexts else "; it has no context"


@asynccontextmanager
async def connected(settings: Mapping[str, Any], connect: Connect = cluster_of) -> AsyncIterator[Cluster]:
    """The cluster of an attach file, closed at the end of the block. Raises AttachError."""
    cluster = connect(settings)
    try:
        yield cluster
    finally:
        with anyio.CancelScope(shield=True):
            await cluster.aclose()
