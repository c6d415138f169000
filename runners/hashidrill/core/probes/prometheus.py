"""Asks Prometheus, or a server with its HTTP API: for the value of a query, and whether series are still recorded.

Prometheus answers with the last sample of the past five minutes, however old. So a look also asks for the sample's own
time, and limits how far Prometheus looks back: a stale value is unknown.

A `metrics` probe checks the contract of a dashboard or an alert: named series exist, with these labels, and their
newest samples are recent. It asks Prometheus, or reads the page on which an agent exposes its metrics.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlencode

import httpx2
from pydantic import AfterValidator, BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from hashidrill.core.experiment.documents import printable
from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.declared import OK, Look, ProbeContext, UnservedError
from hashidrill.core.probes.http import HttpAccess, HttpAsker, ServerProbe, check_pattern
from hashidrill.core.units import Duration, shown
from hashidrill.core.util.safe_json import parse

LAG = "lag"
_NAME, _LABEL, _TEXT = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r"[a-zA-Z_][a-zA-Z0-9_]*", r'"(?:[^"\\\n]|\\.)*"'
_NUMBER = r"(?i:[-+]?(?:nan|inf|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?))"
_SELECTOR = re.compile(rf"({_NAME})\s*(?:\{{(.*)\}})?")
_MATCHER = re.compile(rf"\s*({_LABEL})\s*(=~|!~|!=|=)\s*({_TEXT})\s*(?:,|$)")
_LINE = re.compile(rf"({_NAME})(?:\{{((?:[^\"{{}}]|{_TEXT})*)\}})?\s+(?:{_NUMBER})(?:\s+(-?\d+))?\s*")
_PAIR = re.compile(rf"\s*({_LABEL})\s*=\s*({_TEXT})\s*(?:,|$)")
_ESCAPE = re.compile(r"\\(.)")
_AHEAD_S = 1.0
"""By how much a sample may be newer than the time at which Prometheus evaluated the query."""
_MOST_SELECTORS = 100


@dataclass(frozen=True)
class Selector:
    """Selects one or more series of one name; `matchers` are (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Raises ValueError."""
        found = _SELECTOR.fullmatch(text.strip())
        matchers, rest = [], (found[2] or "").strip() if found else ""
        while rest and (one := _MATCHER.match(rest)):
            matchers.append((one[1], one[2], _plain(one[3])))
            rest = rest[one.end() :]
        if found is None or rest:
            raise ValueError(f'{shown(text)} is not a series; write it like consul_kvs_apply_count{{job="consul"}}')
        for _, operator, value in matchers:
            if "~" in operator:
                check_pattern(value)
        return cls(found[1], tuple(matchers))

    def having(self, label: str, value: str) -> Selector:
        return Selector(self.name, (*self.matchers, (label, "=", value)))

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return name == self.name and all(
            _holds(operator, value, labels.get(label, "")) for label, operator, value in self.matchers
        )

    def __str__(self) -> str:
        written = ", ".join(
            f"{label}{operator}{json.dumps(value, ensure_ascii=False)}" for label, operator, value in self.matchers
        )
        return f"{self.name}{{{written}}}" if written else self.name


def _plain(quoted: str) -> str:
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], quoted[1:-1])


def _holds(operator: str, wanted: str, value: str) -> bool:
    same = re.fullmatch(wanted, value) is not None if "~" in operator else value == wanted
    return same != operator.startswith("!")


class MetricsParams(HttpAccess):
    """The parameters of a metrics probe."""

    source: Literal["prometheus", "page"] = Field(
        default="prometheus",
        description="What `url` is: the address of Prometheus without /api/v1, or a page in Prometheus' text format",
    )
    series: list[str] = Field(
        min_length=1, max_length=50, description='The series that must exist, like `consul_kvs_apply_count{job="a"}`'
    )
    each: dict[str, list[str]] = Field(
        default={},
        max_length=1,
        description="A label and its values: every series must exist with each, like `instance: [old:8500, new:8500]`",
    )
    look_back: Annotated[Duration, between("10s", "1h")] = Field(
        default=Duration("5m"), description="How far back Prometheus looks for the newest sample: 10s to 1h"
    )

    @model_validator(mode="after")
    def _fits(self) -> MetricsParams:
        if self.source == "prometheus" and "?" in self.url:
            raise ValueError(f"{shown(self.url)} has a query: give only the address that comes before /api")
        if self.source == "page" and self.each:
            raise ValueError("`each` needs Prometheus: a page belongs to one agent, so write a probe for each page")
        if len(self.selectors) > _MOST_SELECTORS:
            raise ValueError(f"{len(self.selectors)} series, over {_MOST_SELECTORS}: write another probe for some")
        return self

    @property
    def selectors(self) -> list[Selector]:
        """Raises ValueError."""
        named = [Selector.parse(each) for each in self.series]
        if not self.each:
            return named
        [(label, values)] = self.each.items()
        return [one.having(label, value) for one in named for value in values]


class MetricsProbe(ServerProbe):
    """Checks that named series exist, in Prometheus or on an agent's page of metrics: a contract with dashboards.

    Signals: `ok` (1 if all exist, otherwise 0; the sample names the missing ones), and `lag` (the age in seconds of
    each series' newest sample, for the oldest one). A series whose value is NaN exists. In Prometheus, a series exists
    while its target is scraped; `lag` looks back further, by `look_back`, and grows while a target is down. `lag` is
    unknown if a series has no sample in that time, if a sample is from the future, and for a page. Both signals are
    unknown if the answer is missing or partial, or if Prometheus has not evaluated the query since the last look.
    """

    kind = "metrics"
    Params: ClassVar = MetricsParams
    signals: ClassVar = {OK: None, LAG: Duration}
    silence_is_down: ClassVar[bool] = False
    params: MetricsParams
    _asker: HttpAsker | OneMoment

    def _opened(self, transport: httpx2.AsyncBaseTransport | None) -> HttpAsker | OneMoment:
        params, self._selectors = self.params, self.params.selectors
        if params.source == "page":
            return HttpAsker(params, self.context, transport=transport)
        queries = dict(_queries(self._selectors, params.look_back))
        return OneMoment(params, self.context, queries, look_back_s=params.look_back, transport=transport)

    async def look(self) -> Look:
        if isinstance(self._asker, HttpAsker):
            return await self._page(self._asker)
        found = await self._asker.series()
        now_s, figures = next(iter(found.values())).evaluated_s, {name: one.figure for name, one in found.items()}
        ids = range(len(self._selectors))
        missing = [self._selectors[at] for at in ids if f"{at} exists" not in figures]
        oldest = [figures[f"{at} oldest"] for at in ids if f"{at} oldest" in figures]
        if any(figures.get(f"{at} newest", 0.0) > now_s + _AHEAD_S for at in ids):
            return _found(missing, text="a sample is from the future: two clocks differ")
        if len(oldest) < len(ids):
            return _found(missing, text=f"a series has no sample in the last {self.params.look_back}")
        return _found(missing, lag_s=max(0.0, now_s - min(oldest)))

    async def _page(self, asker: HttpAsker) -> Look:
        try:
            reply = await asker.send("GET", self.params.url)
        except UnservedError as error:
            raise SickError(str(error)) from None
        if reply.status != 200:
            raise SickError(f"HTTP {reply.status}")
        there = list(_series(reply.body.decode(errors="replace")))
        missing = [one for one in self._selectors if not any(one.matches(*series) for series in there)]
        return _found(missing, text="a page has no times")


def _found(missing: list[Selector], *, lag_s: float | None = None, text: str = "") -> Look:
    said = f"missing: {', '.join(map(str, missing))}" if missing else ""
    values = {OK: float(not missing)} | ({} if lag_s is None else {LAG: lag_s})
    return Look(values, "; ".join(filter(None, (said or "all series exist", text))))


def _queries(selectors: list[Selector], look_back: Duration) -> Iterator[tuple[str, str]]:
    """For each selector: how many series it has now, and the times of their newest samples.

    Unlike a selector, a subquery also finds the samples of a series whose target is down.
    """
    for at, one in enumerate(selectors):
        newest = f"timestamp({one}) or max_over_time(timestamp({one})[{int(look_back)}s:1s])"
        yield from ((f"{at} exists", f"count({one})"), (f"{at} oldest", f"min({newest})"))
        yield f"{at} newest", f"max({newest})"


def _series(page: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Name and labels of each series on a page. Raises SickError for text that is not Prometheus' format."""
    there = False
    for number, line in enumerate(page.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        pairs = list(_PAIR.finditer(found[2] or "")) if found else []
        if found is None or "".join(pair[0] for pair in pairs) != (found[2] or ""):
            raise SickError(f"line {number} is not in Prometheus' text format: {shown(line[:80])}")
        there = True
        yield found[1], {pair[1]: _plain(pair[2]) for pair in pairs}
    if not there:
        raise SickError("the page has no series at all")


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
