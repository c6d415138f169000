"""Counts the good and the bad events of an OpenSLO objective in Prometheus. `slo_met` judges them."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import httpx2
from pydantic import Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.declared import Look
from hashidrill.core.probes.http import ServerProbe
from hashidrill.core.probes.prometheus import OneMoment, PrometheusAccess
from hashidrill.core.units import shown

GOOD, TOTAL, VALUE = "good", "total", "value"
_HOLDS = {"lte": operator.le, "gte": operator.ge, "lt": operator.lt, "gt": operator.gt}
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_COMPOSITE = "a composite SLO has several indicators; write an SLO for each"
_SLICES = "events are counted, not slices of time"


class _OpenSlo(Strict):
    """A part of OpenSLO, under OpenSLO's names; `unsupported` holds OpenSLO's keys that are refused, and why."""

    model_config = Strict.model_config | {"alias_generator": to_camel}
    unsupported: ClassVar[Mapping[str, str]] = {}


class _Named(_OpenSlo):
    model_config = _OpenSlo.model_config | {"extra": "ignore"}

    name: str = Field(min_length=1, max_length=200)


class _Query(_OpenSlo):
    query: str = Field(min_length=1, max_length=8000)

    @field_validator("query")
    @classmethod
    def _whole(cls, value: str) -> str:
        if "{{" in value:
            raise ValueError(f"{shown(value)} is a template: write the query that Prometheus gets")
        return value


class _Source(_OpenSlo):
    metric_source_ref: str | None = None
    type: Literal["Prometheus", "prometheus"] | None = None
    spec: _Query


class _Metric(_OpenSlo):
    metric_source: _Source


class _Ratio(_OpenSlo):
    unsupported: ClassVar = dict.fromkeys(("raw", "rawType"), "a ratio does not say how many events there were")

    counter: bool = False
    good: _Metric | None = None
    bad: _Metric | None = None
    total: _Metric | None = None

    @model_validator(mode="after")
    def _complete(self) -> _Ratio:
        if (self.good is None) == (self.bad is None) or self.total is None:
            raise ValueError("a ratio needs `total`, and either `good` or `bad`")
        return self


class _Indicator(_OpenSlo):
    threshold_metric: _Metric | None = None
    ratio_metric: _Ratio | None = None

    @model_validator(mode="after")
    def _one(self) -> _Indicator:
        if (self.threshold_metric is None) == (self.ratio_metric is None):
            raise ValueError("an indicator has either `thresholdMetric` or `ratioMetric`")
        return self

    @property
    def queries(self) -> dict[str, str]:
        """The queries by what they count: `good` or `bad`, and `total`; or by `value`, for one that is compared."""
        metrics = {VALUE: self.threshold_metric}
        if (ratio := self.ratio_metric) is not None:
            metrics = {GOOD: ratio.good, "bad": ratio.bad, TOTAL: ratio.total}
        return {what: one.metric_source.spec.query for what, one in metrics.items() if one is not None}


class _Sli(_OpenSlo):
    api_version: Literal["openslo/v1"] = "openslo/v1"
    kind: Literal["SLI"] = "SLI"
    metadata: _Named | None = None
    spec: _Indicator


class _Window(_OpenSlo):
    unsupported: ClassVar = {"calendar": "a run does not cover calendar months; write a rolling window"}

    duration: str = Field(pattern=r"^[1-9][0-9]{0,5}[a-zA-Z]$")
    is_rolling: bool = False

    @model_validator(mode="after")
    def _of_seconds(self) -> _Window:
        if self.duration[-1] not in _SECONDS:
            raise ValueError(f"a duration of {self.duration} is not supported; write it in m (minutes), h, d or w")
        if not self.is_rolling:
            raise ValueError("isRolling: only rolling windows are supported")
        return self


class _Objective(_OpenSlo):
    unsupported: ClassVar = {
        **dict.fromkeys(("timeSliceTarget", "timeSliceWindow"), _SLICES),
        **dict.fromkeys(("indicator", "indicatorRef", "compositeWeight"), _COMPOSITE),
    }

    display_name: str = ""
    op: Literal["lte", "gte", "lt", "gt"] | None = None
    value: float | None = None
    target: float | None = Field(default=None, gt=0, lt=1)
    target_percent: float | None = Field(default=None, gt=0, lt=100)

    @model_validator(mode="after")
    def _one_target(self) -> _Objective:
        if (self.target is None) == (self.target_percent is None):
            raise ValueError("give either `target` or `targetPercent`")
        return self

    def is_good(self, value: float) -> bool:
        """Whether a threshold metric with this value is a good event."""
        assert self.op is not None
        assert self.value is not None
        return bool(_HOLDS[self.op](value, self.value))


class _Spec(_OpenSlo):
    description: str = ""
    service: str = ""
    indicator: _Sli | None = None
    indicator_ref: str | None = None
    time_window: Annotated[list[_Window], Field(min_length=1, max_length=1)]
    budgeting_method: Literal["Occurrences"]
    objectives: Annotated[list[_Objective], Field(min_length=1, max_length=1)]
    alert_policies: Any = None

    @model_validator(mode="after")
    def _fits(self) -> _Spec:
        if self.indicator is None:
            raise ValueError("needs an `indicator`, or the `indicatorRef` of an SLI in the same file")
        [objective] = self.objectives
        compared = [each is not None for each in (self.indicator.spec.threshold_metric, objective.op, objective.value)]
        if any(compared) and not all(compared):
            raise ValueError("an objective has `op` and `value` if its metric is a threshold, and only then")
        return self


class OpenSlo(_OpenSlo):
    """An SLO of OpenSLO v1: one rolling window, one objective, occurrences, and queries that Prometheus answers."""

    api_version: Literal["openslo/v1"]
    kind: Literal["SLO"]
    metadata: _Named
    spec: _Spec

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Also allows a file's name; the file is read before this model is built (core.experiment.openslo)."""
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(schema)]}

    @property
    def indicator(self) -> _Indicator:
        assert self.spec.indicator is not None
        return self.spec.indicator.spec

    @property
    def objective(self) -> _Objective:
        return self.spec.objectives[0]

    @property
    def window(self) -> str:
        """The length of the window, as written."""
        return self.spec.time_window[0].duration

    @property
    def window_s(self) -> float:
        return int(self.window[:-1]) * _SECONDS[self.window[-1]]

    @property
    def bad_share(self) -> float:
        """The error budget: the share of events that may be bad."""
        target = self.objective.target
        return 1 - (float(self.objective.target_percent or 0) / 100 if target is None else target)


class SloParams(PrometheusAccess):
    """The parameters of an slo probe."""

    slo: OpenSlo = Field(description="A file of OpenSLO v1, relative to this one, or its content")


class SloProbe(ServerProbe):
    """Asks Prometheus for the events of an OpenSLO objective, which `slo_met` judges.

    Signals: `good` and `total`, the events since the last look. For counters (`counter: true`), these are the increases
    of the counters; they are unknown at the first look, after a failed one, and after a reset. Without `counter`, they
    are the queries' current values. For a threshold metric, each look is one event, good if the value satisfies `op`.
    Both are unknown if there is no data, more than one series, or an answer with warnings; if a count is NaN, infinite
    or negative; and if Prometheus has not evaluated the query since the last look.
    """

    kind = "slo"
    Params: ClassVar = SloParams
    signals: ClassVar = {GOOD: None, TOTAL: None}
    params: SloParams
    _asker: OneMoment
    _last: Mapping[str, float] | None = None
    """The counters at the last look."""

    def _opened(self, transport: httpx2.AsyncBaseTransport | None) -> OneMoment:
        params, self._queries = self.params, self.params.slo.indicator.queries
        return OneMoment(params, self.context, self._queries, look_back_s=params.stale_after, transport=transport)

    async def look(self) -> Look:
        last, self._last = self._last, None
        found, now, slo = await self._asker.series(), {}, self.params.slo
        for what in self._queries:
            if what not in found:
                raise SickError(f"no data: the query of {what} has no result")
            if not math.isfinite(figure := found[what].figure):
                raise SickError(f"the query of {what} gave {figure}")
            now[what] = figure
        if (ratio := slo.indicator.ratio_metric) is None:
            return Look({GOOD: float(slo.objective.is_good(now[VALUE])), TOTAL: 1.0}, f"{now[VALUE]:g}")
        if min(now.values()) < 0:
            raise SickError(f"a count is negative: {now}")
        if not ratio.counter:
            return _events(now)
        self._last = now
        if last is None:
            return Look({}, "a counter's increase is known from the second look on")
        for what, count in now.items():
            if count < last[what]:
                return Look({}, f"the counter of {what} events was reset: from {last[what]:g} to {count:g}")
        return _events({what: count - last[what] for what, count in now.items()})


def _events(counts: Mapping[str, float]) -> Look:
    total = counts[TOTAL]
    good = counts[GOOD] if GOOD in counts else total - counts["bad"]
    return Look({GOOD: good, TOTAL: total}, f"{total - good:g} of {total:g} bad")
