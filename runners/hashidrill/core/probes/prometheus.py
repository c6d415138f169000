"""Asks Prometheus, or what speaks its HTTP API, for the value of a query.

Prometheus answers with the last sample of the past five minutes, however old. So a look also asks for the sample's own
time, and lowers the time to look back: a stale value is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import ClassVar
from urllib.parse import urlencode

import httpx2
from pydantic import BaseModel, Field, ValidationError, field_validator

from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.declared import DeclaredProbe, Look, ProbeContext
from hashidrill.core.probes.http import HttpAccess, HttpAsker
from hashidrill.core.units import Duration, shown
from hashidrill.core.util.wait import all_at_once

VALUE = "value"
_SHOWN_SERIES = 2


class PrometheusParams(HttpAccess):
    """The parameters of a prometheus probe."""

    query: str = Field(min_length=1, max_length=8000, description="A PromQL expression with one series as its result")
    labels: dict[str, str] = Field(default={}, max_length=20, description="Labels that this series must have")
    stale_after: Duration = Field(default=Duration("60s"), description="A sample older than this is unknown")
    counter: bool = Field(
        default=False, description="Whether the query is a counter: then `value` is its rate per second"
    )

    @field_validator("url")
    @classmethod
    def _alone(cls, value: str) -> str:
        if "?" in value:
            raise ValueError(f"{shown(value)} has a query: give the address that comes before /api/v1 alone")
        return value

    @field_validator("stale_after")
    @classmethod
    def _some(cls, value: Duration) -> Duration:
        if not 1 <= value <= 3600:
            raise ValueError(f"stale_after is from 1s to 1h, not {value}")
        return value


class _Series(BaseModel):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(BaseModel):
    result_type: str = Field(alias="resultType")
    result: list[_Series]


class _Answer(BaseModel):
    status: str
    data: _Data
    warnings: list[str] = []
    is_partial: bool = Field(default=False, alias="isPartial")


class PrometheusProbe(DeclaredProbe):
    """Asks Prometheus' API for the present value of a query, which must be one series.

    Signal: `value`. It is unknown if there is no series or more than one, if a label differs, for NaN and infinity,
    for a sample older than `stale_after`, for an answer with warnings (a part of the data may be missing), for one that
    Prometheus evaluated before the last look (a cache), and if Prometheus does not answer. `url` is the address without
    `/api/v1`. With `counter`, the first look, the one after a gap, and the one after a reset are unknown. The age of a
    sample is known for a plain selector; an expression is evaluated over samples of that age where Prometheus knows
    `lookback_delta`; what a range like `[1m]` covers is up to you.
    """

    kind = "prometheus"
    Params: ClassVar = PrometheusParams
    signals: ClassVar = {VALUE: None}

    def __init__(
        self,
        name: str,
        params: PrometheusParams,
        context: ProbeContext,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        **times: float,
    ) -> None:
        super().__init__(name, params, context, **times)
        self._asker = HttpAsker(params, context, transport=transport, keeps=True)
        self._evaluated_s = 0.0
        self._last: tuple[float, float] | None = None
        """Of a counter: the time of its last sample, and the value."""
        self._rate: float | None = None

    async def look(self) -> Look:
        last, self._last = self._last, None
        params = self.params
        value: list[tuple[float, float]] = []
        taken: list[tuple[float, float]] = []

        async def ask(query: str, labels: Mapping[str, str], into: list[tuple[float, float]]) -> None:
            into.append(await self._asked(query, labels))

        await all_at_once(
            (
                partial(ask, params.query, params.labels, value),
                partial(ask, f"timestamp({params.query}\n)", {}, taken),
            )
        )
        (evaluated_s, figure), (_, taken_s) = value[0], taken[0]
        before_s, self._evaluated_s = self._evaluated_s, evaluated_s
        if evaluated_s <= before_s:
            raise SickError("the query was not evaluated again since the last look: is there a cache in between?")
        age_s = evaluated_s - taken_s
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

    async def _asked(self, query: str, labels: Mapping[str, str]) -> tuple[float, float]:
        """When Prometheus evaluated it, and the value. Raises SickError."""
        form = {"query": query, "lookback_delta": f"{math.ceil(self.params.stale_after)}s"}
        reply = await self._asker.send(
            "POST",
            f"{self.params.url.rstrip('/')}/api/v1/query",
            body=urlencode(form).encode(),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        if reply.status != 200:
            raise SickError(f"HTTP {reply.status}: {shown(reply.body[:200].decode(errors='replace'))}")
        try:
            answer = _Answer.model_validate_json(reply.body)
        except (ValidationError, RecursionError):
            raise SickError(
                f"not an answer of Prometheus: {shown(reply.body[:200].decode(errors='replace'))}"
            ) from None
        if answer.status != "success" or answer.warnings or answer.is_partial:
            why = "; ".join(answer.warnings) or "a part of the data"
            raise SickError(f"Prometheus answered {answer.status}, with a warning: {why}")
        one = _one(answer.data)
        for label, wanted in labels.items():
            if one.metric.get(label) != wanted:
                raise SickError(f"the label {label} is {shown(one.metric.get(label))}, not {shown(wanted)}")
        evaluated_s, text = one.value
        try:
            return evaluated_s, float(text)
        except ValueError:
            raise SickError(f"{shown(text)} is not a value") from None

    async def aclose(self) -> None:
        await self._asker.aclose()


def _one(data: _Data) -> _Series:
    """Raises SickError."""
    if data.result_type != "vector":
        raise SickError(f"the result is a {data.result_type}, not one series: write vector(...) around a scalar")
    if not data.result:
        raise SickError("the query has no result: no such series, or its samples are stale")
    if len(data.result) > 1:
        some = " and ".join(str(one.metric) for one in data.result[:_SHOWN_SERIES])
        raise SickError(f"the query has {len(data.result)} results ({some}): select one, or aggregate them")
    return data.result[0]
