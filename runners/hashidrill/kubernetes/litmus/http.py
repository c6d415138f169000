"""Faults by Litmus on the HTTP API of an agent, by a proxy that its helper puts in front of a port of the pod."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, P
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.protocols.capabilities import AgentApi, LitmusPod
from hashidrill.core.units import Duration
from hashidrill.kubernetes.answers import OF_ANSWERS, Changed
from hashidrill.kubernetes.litmus.fault import LitmusFault, milliseconds
from hashidrill.kubernetes.litmus.seen import Container, Delay
from hashidrill.kubernetes.observing import OF_AGENT, Effect, Silent, Slow
from hashidrill.staging.attach.product import attachables

Port = Annotated[int, Field(ge=1, le=65535)]
Code = Literal[200, 201, 202, 204, 300, 301, 302, 304, 307, 400, 401, 403, 404, 500, 501, 502, 503, 504]
"""Those that Litmus knows."""
_PLAIN = r"^[A-Za-z0-9 _.,:;/+=-]{1,200}$"
"""Litmus puts it into a command line without quoting it."""


class HttpParams(Strict):
    """Which port of the pod, and where Litmus's proxy listens in it."""

    port: Port | None = None
    """Of the pod; none: that of the product's API, like 8500."""
    proxy: Port = 20000
    """A free port of the pod, on which the proxy listens."""
    container: Container | None = None
    """The container whose network is meant; none: that of the product."""


class _Http(LitmusFault[P]):
    """Its parameters have what HttpParams has."""

    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({LitmusPod, AgentApi})

    def env(self, agent: str) -> Mapping[str, str]:
        params: HttpParams = self.params  # type: ignore[assignment]
        return {
            "TARGET_SERVICE_PORT": str(params.port or attachables([agent])[agent].port),
            "PROXY_PORT": str(params.proxy),
            "TOXICITY": "100",
            "TARGET_CONTAINER": params.container or agent,
            **self.toxic(),
        }

    def toxic(self) -> Mapping[str, str]:
        raise NotImplementedError


class HttpLatencyParams(HttpParams):
    """How much later answers leave the pod."""

    delay: Delay
    """From 20ms to 2s."""


class PodHttpLatency(_Http[HttpLatencyParams]):
    """Delays every answer from a port of the agent's pod.

    Limits: plain HTTP: over TLS, the proxy sees no answers. A port that is not the API's cannot be seen: the run is
    INVALID.
    """

    kind: ClassVar[str] = "litmus.pod_http_latency"
    Params: ClassVar[type[Strict]] = HttpLatencyParams
    observer: ClassVar[Observer] = Observer("the agent's own API, asked from this machine")
    experiment: ClassVar[str] = "pod-http-latency"
    cases: ClassVar[Cases] = Cases(each=({"delay": "300ms", "port": 8500},))

    def toxic(self) -> Mapping[str, str]:
        return {"LATENCY": milliseconds(self.params.delay)}

    def effect(self, agent: str) -> Effect:
        return Slow(float(self.params.delay))


class HttpResetParams(HttpParams):
    """When a connection is reset."""

    after: Annotated[Duration, Field(le=1.0)] = Duration("0s")
    """How long after its first request a connection is reset, up to 1s."""


class PodHttpResetPeer(_Http[HttpResetParams]):
    """Resets every connection to a port of the agent's pod.

    Limits: those of `litmus.pod_http_latency`.
    """

    kind: ClassVar[str] = "litmus.pod_http_reset_peer"
    Params: ClassVar[type[Strict]] = HttpResetParams
    observer: ClassVar[Observer] = Observer(OF_AGENT)
    experiment: ClassVar[str] = "pod-http-reset-peer"

    def toxic(self) -> Mapping[str, str]:
        return {"RESET_TIMEOUT": milliseconds(self.params.after)}

    def effect(self, agent: str) -> Effect:
        return Silent()


class HttpStatusParams(HttpParams):
    """Which status each answer has."""

    code: Code
    """One that Litmus knows, like `503`."""


class PodHttpStatusCode(_Http[HttpStatusParams]):
    """Gives every answer from a port of the agent's pod another status.

    Limits: those of `litmus.pod_http_latency`.
    """

    kind: ClassVar[str] = "litmus.pod_http_status_code"
    Params: ClassVar[type[Strict]] = HttpStatusParams
    observer: ClassVar[Observer] = Observer(OF_ANSWERS)
    experiment: ClassVar[str] = "pod-http-status-code"
    cases: ClassVar[Cases] = Cases(each=({"code": 503},))

    def toxic(self) -> Mapping[str, str]:
        return {"STATUS_CODE": str(self.params.code), "MODIFY_RESPONSE_BODY": "true"}

    def effect(self, agent: str) -> Effect:
        return Changed(f"the status {self.params.code}", lambda answer: answer.status == self.params.code)


class HttpHeaderParams(HttpParams):
    """Which header each answer has."""

    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,60}$")]
    """The name of the header that is changed."""
    value: Annotated[str, Field(pattern=_PLAIN)]
    """Its value, in plain characters."""


class PodHttpModifyHeader(_Http[HttpHeaderParams]):
    """Sets a header of every answer from a port of the agent's pod.

    Limits: those of `litmus.pod_http_latency`.
    """

    kind: ClassVar[str] = "litmus.pod_http_modify_header"
    Params: ClassVar[type[Strict]] = HttpHeaderParams
    observer: ClassVar[Observer] = Observer(OF_ANSWERS)
    experiment: ClassVar[str] = "pod-http-modify-header"
    cases: ClassVar[Cases] = Cases(each=({"header": "X-Drill", "value": "yes"},))

    def toxic(self) -> Mapping[str, str]:
        return {"HEADERS_MAP": json.dumps({self.params.header: self.params.value}), "HEADER_MODE": "response"}

    def effect(self, agent: str) -> Effect:
        name, value = self.params.header.lower(), self.params.value
        return Changed(f"{self.params.header}: {value}", lambda answer: answer.headers.get(name) == value)


class HttpBodyParams(HttpParams):
    """What each answer says."""

    body: Annotated[str, Field(pattern=_PLAIN)]
    """What each answer says, in plain characters."""


class PodHttpModifyBody(_Http[HttpBodyParams]):
    """Replaces the body of every answer from a port of the agent's pod.

    Limits: those of `litmus.pod_http_latency`.
    """

    kind: ClassVar[str] = "litmus.pod_http_modify_body"
    Params: ClassVar[type[Strict]] = HttpBodyParams
    observer: ClassVar[Observer] = Observer(OF_ANSWERS)
    experiment: ClassVar[str] = "pod-http-modify-body"
    cases: ClassVar[Cases] = Cases(each=({"body": "not this time"},))

    def toxic(self) -> Mapping[str, str]:
        return {"RESPONSE_BODY": self.params.body, "CONTENT_TYPE": "text/plain"}

    def effect(self, agent: str) -> Effect:
        body = self.params.body
        return Changed(f"the body {body!r}", lambda answer: answer.body.decode(errors="replace").strip() == body)
