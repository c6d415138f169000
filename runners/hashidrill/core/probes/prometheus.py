"""Asks Prometheus, or a server with its HTTP API, for the value of a query.

Prometheus answers with the last sample of the past five minutes, however old. So a look also asks for the sample's own
time, and limits how far Prometheus looks back: a stale value is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar
from urllib.parse import urlencode

import httpx2
from pydantic import AfterValidator, BaseModel, Field, ValidationError, ValidationInfo, field_validator

from hashidrill.core.experiment.documents import printable
from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.declared import Look, ProbeContext, UnservedError
from hashidrill.core.probes.http import HttpAccess, HttpAsker, ServerProbe
from hashidrill.core.units import Duration, shown
from hashidrill.core.util.safe_json import parse

VALUE = "value"
_WHAT, _ASKED = "hashidrill", "asked"
"""The label that distinguishes the series of several queries; its value for the query that always has a series."""


def between(least: str, most: str) -> AfterValidator:
    """A validator of durations within these limits."""

    def check(value: Duration, info: ValidationInfo) -> Duration:
        if not Duration(least) <= value <= Duration(most):
            raise ValueError(f"{info.field_name} is from {least} to {most}, not {value}")
        return value

    return AfterValidator(check)


StaleAfter = Annotated[Duration, between("1s", "1h")]


class PrometheusAccess(HttpAccess):
    """How to reach Prometheus, and which of its samples count."""

    stale_after: StaleAfter = Field(default=Duration("60s"), description="A sample older than this is unknown")

    @field_validator("url")
    @classmethod
    def _alone(cls, value: str) -> str:
        if "?" in value:
            raise ValueError(f"{shown(value)} has a query: give only the address that comes before /api")
        return value


class PrometheusParams(PrometheusAccess):
    """The parameters of a prometheus probe."""

    query: str = Field(min_length=1, max_length=8000, description="A PromQL expression with one series as its result")
    labels: dict[str, str] = Field(default={}, max_length=20, description="Labels that this series must have")
    counter: bool = Field(
        default=False, description="Whether the query is a counter: then `value` is its rate per second"
    )


class Series(BaseModel):
    """A series in an answer: its labels, when it was evaluated (seconds since 1970), and its value as text."""

    metric: dict[str, str]
    value: tuple[float, str]

    @property
    def evaluated_s(self) -> float:
        return self.value[0]

    @property
    def figure(self) -> float:
        """Raises SickError for text that is not a number."""
        try:
            return float(self.value[1])
        except ValueError:
            raise SickError(f"{shown(self.value[1])} is not a value") from None


class _Data(BaseModel):
    result_type: str = Field(alias="resultType")
    result: list[Series]


class _Answer(BaseModel):
    status: str
    data: _Data
    warnings: list[str] = []
    is_partial: bool = Field(default=False, alias="isPartial")


class PrometheusProbe(ServerProbe):
    """Asks Prometheus' API for the current value of a query, whose result must be one series.

    Signal: `value`. It is unknown if there is no answer, or one with warnings, or one evaluated before the last look (a
    cache); if there is no series or more than one; if a label differs; if the value is NaN or infinite, or its sample
    is older than `stale_after`. `url` is the address without `/api/v1`. With `counter`, the value is also unknown at
    the first look, after a gap and after a reset. The age of a sample is known for a plain selector. An expression is
    evaluated over samples at most `stale_after` old, if Prometheus supports `lookback_delta`; a range like `[1m]`
    covers its own time.
    """

    kind = "prometheus"
    Params: ClassVar = PrometheusParams
    signals: ClassVar = {VALUE: None}
    params: PrometheusParams
    _asker: OneMoment
    _last: tuple[float, float] | None = None
    """The time and the value of a counter's last sample."""
    _rate: float | None = None

    def _opened(self, transport: httpx2.AsyncBaseTransport | None) -> OneMoment:
        params = self.params
        queries = {VALUE: params.query, "taken": f"timestamp({params.query}\n)"}
        return OneMoment(params, self.context, queries, look_back_s=params.stale_after, transport=transport)

    async def look(self) -> Look:
        last, self._last = self._last, None
        params = self.params
        found = await self._asker.series()
        if not found.keys() >= {VALUE, "taken"}:
            raise SickError("the query has no result: no such series, or its samples are stale")
        one, taken_s = found[VALUE], found["taken"].figure
        for label, wanted in params.labels.items():
            if one.metric.get(label) != wanted:
                raise SickError(f"the label {label} is {shown(one.metric.get(label))}, not {shown(wanted)}")
        figure, age_s = one.figure, one.evaluated_s - taken_s
        if age_s > params.stale_after:
            raise SickError(f"stale: the sample is {age_s:.0f}s old, over {params.stale_after}")
        if not params.counter:
            return Look({VALUE: figure}, f"{age_s:.0f}s old" if age_s >= 1 else "")
        self._last = taken_s, figure
        return self._rate_since(last, taken_s, figure)

    def _rate_since(self, last: tuple[float, float] | None, taken_s: float, figure: float) -> Look:
        known, self._rate = self._rate, None
        if last is None:
            return Look({}, "a counter's rate is known from the second look on")
        if taken_s == last[0] and figure == last[1]:
            self._rate = known
            return Look({} if known is None else {VALUE: known}, "the same sample as at the last look")
        if figure < last[1] or taken_s <= last[0]:
            return Look({}, f"the counter was reset: from {last[1]:g} to {figure:g}")
        self._rate = (figure - last[1]) / (taken_s - last[0])
        return Look({VALUE: self._rate})


class OneMoment:
    """Asks Prometheus for several queries' results at one moment, in one request; each must be one series."""

    def __init__(
        self,
        params: HttpAccess,
        context: ProbeContext,
        queries: Mapping[str, str],
        *,
        look_back_s: float,
        transport: httpx2.AsyncBaseTransport | None,
    ) -> None:
        self._asker = HttpAsker(params, context, transport=transport, keeps=True)
        self._url = f"{params.url.rstrip('/')}/api/v1/query"
        # vector(1) always has a value
        parts = {_ASKED: "vector(1)", **queries}
        query = " or ".join(f'label_replace(({part}\n), "{_WHAT}", "{name}", "", "")' for name, part in parts.items())
        self._body = urlencode({"query": query, "lookback_delta": f"{math.ceil(look_back_s)}s"}).encode()
        self._evaluated_s = 0.0

    async def series(self) -> dict[str, Series]:
        """The series of each query that has a result, by the query's name; evaluated since the last look.

        Raises SickError.
        """
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            reply = await self._asker.send("POST", self._url, body=self._body, headers=headers)
        except UnservedError as error:
            raise SickError(str(error)) from None
        said = shown(reply.body[:200].decode(errors="replace"))
        if reply.status != 200:
            raise SickError(f"HTTP {reply.status}: {_error(reply.body) or said}")
        try:
            answer = _Answer.model_validate_json(reply.body)
        except (ValidationError, RecursionError):
            raise SickError(f"not an answer of Prometheus: {said}") from None
        if answer.status != "success" or answer.warnings or answer.is_partial:
            why = "; ".join(answer.warnings) or "a part of the data"
            raise SickError(f"Prometheus answered {answer.status}, with a warning: {why}")
        found: dict[str, Series] = {}
        for one in answer.data.result:
            name = one.metric.get(_WHAT, "")
            if name in found:
                some = f"{found[name].metric} and {one.metric}"
                raise SickError(f"a query has several results ({some}): select one, or aggregate them")
            found[name] = one
        if answer.data.result_type != "vector" or _ASKED not in found:
            raise SickError(f"not an answer to the query: {said}")
        before_s, self._evaluated_s = self._evaluated_s, found[_ASKED].evaluated_s
        if self._evaluated_s <= before_s:
            raise SickError("the query was not evaluated again since the last look: is there a cache in between?")
        return found

    async def aclose(self) -> None:
        await self._asker.aclose()


def _error(body: bytes) -> str:
    """Prometheus' error message about a query that it refuses; "" for another body."""
    try:
        found = parse(body)
    except ValueError:
        return ""
    return printable(str(found.get("error", ""))) if isinstance(found, dict) else ""
