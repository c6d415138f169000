"""Queries Prometheus' rules, or Alertmanager: which of the named alerts fire?

An alert whose rule is lost is as quiet as a healthy datacenter. So a look is unknown unless each named alert has a
recently evaluated rule (Prometheus), or an alert that always fires has arrived (Alertmanager).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, ClassVar, Literal, TypeVar
from urllib.parse import urlencode

import anyio
import httpx2
from pydantic import AwareDatetime, BaseModel, Field, TypeAdapter, ValidationError, model_validator

from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.declared import Look
from hashidrill.core.probes.http import HttpAsker, Reply, ServerProbe
from hashidrill.core.probes.prometheus import PrometheusAccess, StaleAfter
from hashidrill.core.units import Duration, shown

FIRING = "firing"
_SAME_DATE_S = 2.5
"""A server's `Date` has whole seconds: if it stays the same for longer, the answer comes from a cache."""
_MOST_SHOWN = 200
T = TypeVar("T")
AlertName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_ .:/-]{0,99}$")]


class AlertsParams(PrometheusAccess):
    """The parameters of an alerts probe."""

    alerts: list[AlertName] = Field(min_length=1, max_length=20, description="The names of the alerts to watch")
    via: Literal["prometheus", "alertmanager"] = Field(default="prometheus", description="Which API is at `url`")
    labels: dict[str, str] = Field(default={}, max_length=20, description="Labels that an alert must have to count")
    watchdog: AlertName | None = Field(
        default=None, description="An alert that always fires; Alertmanager needs one, to tell quiet from isolated"
    )
    stale_after: StaleAfter = Field(
        default=Duration("60s"), description="After this time without an evaluation, a rule is unknown"
    )

    @model_validator(mode="after")
    def _can_tell_quiet(self) -> AlertsParams:
        if len({*self.alerts, self.watchdog}) <= len(self.alerts):
            raise ValueError("an alert is named twice")
        if self.via == "alertmanager" and self.watchdog is None:
            raise ValueError(
                "Alertmanager knows only what fires: name an alert that always fires (`watchdog`), like that of a rule"
                " with `expr: vector(1)`"
            )
        return self


class _Alert(BaseModel):
    labels: dict[str, str]
    state: Literal["inactive", "pending", "firing"]
    value: str


class _Rule(BaseModel):
    name: str
    type: str
    health: str
    last_error: str = Field(default="", alias="lastError")
    last_evaluation: AwareDatetime = Field(alias="lastEvaluation")
    alerts: list[_Alert] = []


class _Group(BaseModel):
    rules: list[_Rule]


class _Data(BaseModel):
    groups: list[_Group]


class _Rules(BaseModel):
    status: Literal["success"]
    data: _Data
    warnings: list[str] = []


class _Status(BaseModel):
    state: Literal["active", "suppressed", "unprocessed"]


class _Received(BaseModel):
    labels: dict[str, str]
    status: _Status


_RULES, _ARRIVED = TypeAdapter(_Rules), TypeAdapter(list[_Received])


class AlertsProbe(ServerProbe):
    """Asks Prometheus, or Alertmanager (`via`), which of the named alerts fire.

    Signal: `firing`, the number of named alerts that fire; only alerts with these `labels` count. It is unknown if an
    alert has no rule, lacks one of `labels`, fires twice with the same labels, has no finite value, or is silenced or
    inhibited; if a rule failed or was last evaluated longer than `stale_after` ago; if the `watchdog` does not fire; if
    there is no answer, or it has warnings or comes from a cache. `url` is the address without `/api`.
    """

    kind = "alerts"
    Params: ClassVar = AlertsParams
    signals: ClassVar = {FIRING: None}
    longest_text: ClassVar = 2500
    params: AlertsParams
    _asker: HttpAsker
    _last: tuple[datetime | None, float] = None, 0.0
    """The `Date` of the last answer, and when that answer came."""

    def _opened(self, transport: httpx2.AsyncBaseTransport | None) -> HttpAsker:
        return HttpAsker(self.params, self.context, transport=transport, keeps=True)

    async def look(self) -> Look:
        params = self.params
        names = [*params.alerts, *([params.watchdog] if params.watchdog else [])]
        ask = self._from_rules if params.via == "prometheus" else self._from_alertmanager
        found = await ask(names)
        firing, pending = (self._counted(found[state]) for state in ("firing", "pending"))
        if params.watchdog and not any(each["alertname"] == params.watchdog for each in found["firing"]):
            raise SickError(f"{params.watchdog} should always fire but does not: which other alerts fire is unknown")
        return Look({FIRING: float(len(firing))}, told(firing, pending))

    def _counted(self, alerts: Sequence[Mapping[str, str]]) -> list[str]:
        """The names of the alerts that count. Raises SickError."""
        wanted, seen, counted = self.params.labels, list[Mapping[str, str]](), set[str]()
        for labels in alerts:
            if (name := labels.get("alertname", "")) not in self.params.alerts:
                continue
            if labels in seen:
                raise SickError(f"two rules fire {name} with the labels {shown(dict(labels))}")
            seen.append(labels)
            if lacking := sorted(wanted.keys() - labels.keys()):
                raise SickError(f"{name} has no label {lacking[0]}: its labels are {shown(dict(labels))}")
            if all(labels[key] == value for key, value in wanted.items()):
                counted.add(name)
        return sorted(counted)

    async def _from_rules(self, names: Sequence[str]) -> dict[str, list[dict[str, str]]]:
        query = urlencode([("type", "alert"), *(("rule_name[]", name) for name in names)])
        reply, now = await self._asked(f"/api/v1/rules?{query}")
        answer = _shaped(_RULES, reply)
        if answer.warnings:
            raise SickError(f"Prometheus answered with a warning: {'; '.join(answer.warnings)}")
        rules = [
            rule
            for group in answer.data.groups
            for rule in group.rules
            if rule.name in names and rule.type == "alerting"
        ]
        if missing := sorted({*names} - {rule.name for rule in rules}):
            raise SickError(f"there is no rule for the alert {missing[0]}")
        for rule in rules:
            if rule.health != "ok":
                why = f": {rule.last_error}" if rule.last_error else ""
                raise SickError(f"the rule of {rule.name} is {rule.health}{why}")
            age_s = (now - rule.last_evaluation).total_seconds()
            if age_s > self.params.stale_after:
                raise SickError(
                    f"stale: the rule of {rule.name} was evaluated {age_s:.0f}s ago, over {self.params.stale_after}"
                )
        alerts = [alert for rule in rules for alert in rule.alerts]
        for alert in alerts:
            if alert.state != "inactive" and not _finite(alert.value):
                raise SickError(f"{alert.labels.get('alertname')} has the value {shown(alert.value)}")
        return {
            state: [{"alertname": "", **alert.labels} for alert in alerts if alert.state == state]
            for state in ("firing", "pending")
        }

    async def _from_alertmanager(self, names: Sequence[str]) -> dict[str, list[dict[str, str]]]:
        query = urlencode({"filter": f'alertname=~"{"|".join(names)}"'})
        reply, _ = await self._asked(f"/api/v2/alerts?{query}")
        alerts = [alert for alert in _shaped(_ARRIVED, reply) if alert.labels.get("alertname") in names]
        if quiet := [alert.labels["alertname"] for alert in alerts if alert.status.state == "suppressed"]:
            raise SickError(f"{quiet[0]} is silenced or inhibited: whether it would reach people is unknown")
        return {"firing": [alert.labels for alert in alerts], "pending": []}

    async def _asked(self, path: str) -> tuple[Reply, datetime]:
        """The answer, and the server's time. Raises SickError."""
        reply = await self._asker.send("GET", f"{self.params.url.rstrip('/')}{path}")
        text = shown(reply.body[:_MOST_SHOWN].decode(errors="replace"))
        if reply.status != 200:
            raise SickError(f"HTTP {reply.status}: {text}")
        try:
            date = parsedate_to_datetime(reply.headers.get("Date", "")).replace(tzinfo=UTC)
        except ValueError:
            raise SickError("the answer has no Date, so its age is unknown") from None
        (before, at_s), now_s = self._last, anyio.current_time()
        if before is None or date > before:
            self._last = date, now_s
        elif date < before or now_s - at_s > _SAME_DATE_S:
            raise SickError(
                f"the answer is not newer than the one {now_s - at_s:.0f}s ago: is there a cache in between?"
            )
        return reply, date


def told(firing: Sequence[str], pending: Sequence[str] = ()) -> str:
    """The text of a look: `firing: A, B; pending: C`."""
    states = (("firing", firing), ("pending", pending))
    return "; ".join(f"{state}: {', '.join(names)}" for state, names in states if names)


def named_in(text: str, state: Literal["firing", "pending"]) -> frozenset[str]:
    """The alerts of that state in the text of a look."""
    parts = dict(part.split(": ", 1) for part in text.split("; ") if ": " in part)
    return frozenset(parts[state].split(", ")) if state in parts else frozenset()


def _finite(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def _shaped(shape: TypeAdapter[T], reply: Reply) -> T:
    try:
        return shape.validate_json(reply.body)
    except (ValidationError, RecursionError):
        raise SickError(
            f"not the answer expected: {shown(reply.body[:_MOST_SHOWN].decode(errors='replace'))}"
        ) from None
