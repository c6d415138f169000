"""The YAML of an experiment, as pydantic models. Unknown keys are errors; quantities carry their units.

The parameters of a fault (`with:`), a load or an expectation belong to its kind. These models keep them as written;
`hashidrill.core.experiment.loader` validates them against the kind's own `Params`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    StringConstraints,
    Tag,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue, SkipJsonSchema
from pydantic_core import CoreSchema, core_schema

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.experiment.datacenter import Attached, Disk, running, together
from hashidrill.core.experiment.load_levels import Profile
from hashidrill.core.experiment.moments import Moment
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import SILENT_S, Sampled, probed
from hashidrill.core.units import Duration, Percent, Quantity, Rate, shown

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import Fault
    from hashidrill.core.protocols.service import Service

ISSUE_PATTERN = r"^([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+#[0-9]+|https://[^\s/]+\S*)$"
NEVER = "never"
FIGURE_PATTERN = r"^[a-z][a-z0-9_]*$"
_UNITS: tuple[tuple[str, type[Quantity]], ...] = (("_per_s", Rate), ("_s", Duration), ("_share", Percent))
_PLACE = "owner/repo#123 or an https URL"

Bound = Annotated[Any, WithJsonSchema({"type": ["string", "number"]})]
Bounds = dict[Annotated[str, Field(pattern=FIGURE_PATTERN, max_length=60)], Bound]


class KnownIssue(BaseModel):
    """An issue known to break an expectation, with bounds on how badly."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    issue: str = Field(pattern=ISSUE_PATTERN, description=f"{_PLACE}: the known cause of the failure")
    at_most: Bounds = Field(
        default={}, max_length=20, description="Figures of the hypothesis with their known upper bounds"
    )
    at_least: Bounds = Field(
        default={}, max_length=20, description="Figures of the hypothesis with their known lower bounds"
    )

    @model_validator(mode="after")
    def _bounds_are_read(self) -> Self:
        for figure, bound in [*self.at_most.items(), *self.at_least.items()]:
            _number(figure, bound)
        return self

    @property
    def bounded(self) -> bool:
        return bool(self.at_most or self.at_least)

    def beyond(self, figures: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The figures that exceed the bounds, and those that cannot be compared, as text; both empty if all are within
        bounds.
        """
        worse: list[str] = []
        unknown: list[str] = []
        for figure, words, bound, within in self._limits():
            measured = _measured(figures.get(figure))
            if math.isnan(measured):
                there = ", ".join(name for name, value in figures.items() if not math.isnan(_measured(value)))
                unknown.append(f"{figure} was not measured; the measured figures are: {there or 'none'}")
            elif not within(measured):
                worse.append(f"{figure} is {_words(figure, measured)}, allowed: {words} {bound}")
        return worse, unknown

    def _limits(self) -> Iterator[tuple[str, str, object, Any]]:
        for figure, bound in self.at_most.items():
            yield figure, "at most", bound, _number(figure, bound).__ge__
        for figure, bound in self.at_least.items():
            yield figure, "at least", bound, _number(figure, bound).__le__


def _unit(figure: str) -> type[Quantity] | None:
    return next((unit for ending, unit in _UNITS if figure.endswith(ending)), None)


def _number(figure: str, bound: object) -> float:
    """The bound as a number in the figure's unit. Raises ValueError that says how to write the bound."""
    unit = _unit(figure)
    if bound == NEVER and unit is Duration:
        return math.inf
    if unit is not None:
        if not isinstance(bound, str):
            raise ValueError(f"{figure}: {shown(bound)} has no unit; write {unit.how()}")
        try:
            return float(unit.parse(bound))
        except ValueError as error:
            raise ValueError(f"{figure}: {error}") from None
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound):
        raise ValueError(f"{figure}: expected a number, got {shown(bound)}")
    return float(bound)


def _measured(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return math.inf if value == NEVER else math.nan


def _words(figure: str, value: float) -> str:
    unit = _unit(figure)
    if math.isinf(value):
        return NEVER
    return str(unit(round(value, 4))) if unit is not None and value >= 0 else f"{value:.6g}"


def _from_text(value: Any) -> Any:
    """Turns `known_issue: owner/repo#1` into an issue without bounds."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(ISSUE_PATTERN, value):
        raise ValueError(f"expected {_PLACE}, got {shown(value)}")
    return {"issue": value}


KnownIssueField = Annotated[KnownIssue, BeforeValidator(_from_text)]


API_VERSION = "hashidrill/v1"
NAME_PATTERN = r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$"
MOST_ENTRIES = 100
MOST_RUNS_PER_S = 100
ATTEMPTS = ".attempts"
"""CLIENT.attempts names the attempts that the tap of CLIENT saw; CLIENT alone names its operations."""
SCRIPT = "script"
"""The `via` of a client whose tap answers by itself, without a datacenter behind it."""
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=60)]


OF_VARIANTS = ("variants", "rounds", "compare")
"""Keys of an experiment about its variants; a variant cannot set them."""
MOST_VARIANTS = 10
ROUNDS, MOST_ROUNDS = 3, 50
"""Fewer than three rounds cannot show how much two equal runs differ."""


class Metadata(Strict):
    """The name of the experiment, and why to run it."""

    name: Name = Field(description="Unique short name: lower case, digits, hyphens")
    title: str = Field(min_length=1, max_length=120, description="One line for lists and reports")
    why: str = Field(min_length=1, description="What it teaches, and the incident or issue it comes from")
    tags: list[Name] = Field(default=[], description="Become pytest markers: `pytest experiments -m gate`")


class PartOf:
    """Stands for the `Spec` of a product in an annotation, and imports it when a value is validated."""

    def __init__(self, product: str) -> None:
        self.product = product

    @property
    def model(self) -> type[BaseModel]:
        spec: type[BaseModel] = registry.services()[self.product].Spec
        return spec

    def usual(self) -> Any:
        """The default part of a service that runs if the datacenter names no service."""
        return Field(
            default_factory=lambda: self.model(),  # noqa: PLW0108 - it is imported then
            json_schema_extra=lambda schema: schema.update(default=self.model().model_dump(mode="json")),
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: Any, info: core_schema.ValidationInfo) -> BaseModel:
            if info.mode == "json":  # of a file, see loader
                return self.model.model_validate_json(json.dumps(value), strict=True)
            return self.model.model_validate(value)

        return core_schema.with_info_plain_validator_function(validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self.model.__pydantic_core_schema__)


def _parts() -> dict[str, Any]:
    """One field for each product. A product that does not run by default is None unless named."""
    parts = {name: PartOf(name) for name in registry.services()}
    usual = registry.default_services()
    return {
        name: (Annotated[Any, part] | None, part.usual() if name in usual else Field(default=None))
        for name, part in parts.items()
    }


class _Kind(Strict):
    kind: Literal["local"] = Field(default="local", description="The sandbox on this machine")


if TYPE_CHECKING:
    _Parts = _Kind
else:
    _Parts = create_model("_Parts", __base__=_Kind, **_parts())


class DatacenterSpec(_Parts):
    """The datacenter to start."""

    attached: SkipJsonSchema[Attached | None] = None
    attach: str | dict[str, Any] | None = Field(
        default=None, description="Use an existing datacenter instead: a file of `kind: Attach`, or its content"
    )
    kubernetes: dict[str, Any] | None = Field(
        default=None, description="Use an existing datacenter whose agents are pods: the cluster and its products"
    )
    disk: Disk = Disk()
    ready_within: Duration = Field(
        default=Duration("60s"), description="Give up if it is not ready and makes no progress for this long"
    )

    @property
    def services(self) -> dict[str, BaseModel]:
        """The part of each service that runs: each named service, or the default services if none is named."""
        return {name: getattr(self, name) or registry.services()[name].Spec() for name in running(self._written())}

    @property
    def stands(self) -> str:
        """The key that names an existing datacenter, like `datacenter.attach`; "" for a local one."""
        return next((f"datacenter.{key}" for key in ("attach", "kubernetes") if getattr(self, key) is not None), "")

    @model_validator(mode="after")
    def _in_one_place(self) -> DatacenterSpec:
        if self.attach is not None and self.kubernetes is not None:
            raise ValueError("attach and kubernetes both name an existing datacenter: keep one of them")
        return self

    def _written(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}

    @model_serializer(mode="wrap")
    def _without_others(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Writes missing services as null, so that reading it again runs the same services."""
        written: dict[str, Any] = dump(self)
        for name in ("attached", "attach", "kubernetes"):
            if getattr(self, name) is None:
                written.pop(name, None)
        runs = {key for key in self.services if written.get(key) is not None}
        kept = {key: part for key, part in written.items() if key not in registry.services() or key in runs}
        return kept if self.services else kept | dict.fromkeys(registry.default_services())


def services_of(spec: DatacenterSpec, *, spares: int = 0) -> list[Service]:
    """The services of that datacenter in start order, with the spare hosts that faults need."""
    placed = None if spec.attached is None else spec.attached.places()
    return together(spec.services, spares=spares, placed=placed)


def make_fault(step: Step, hosts: Any) -> Fault:
    """The fault of a step. Raises UnknownNameError, and ExperimentError for parameters that do not fit."""
    built: Fault = registry.fault(step.fault)(step.parameters, hosts)
    return built


def fitted(kind: Any, written: Mapping[str, Any]) -> BaseModel:
    """The parameters as their kind models them. Raises ExperimentError if they do not fit.

    The parameters were valid when the experiment was loaded; the version of the package that defines the kind may have
    changed since.
    """
    try:
        params: BaseModel = kind.Params.model_validate(dict(written))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or kind.kind}: {e['msg']}" for e in error.errors())
        raise ExperimentError(
            f"{kind.kind}: its parameters do not fit the {kind.kind} that is installed here: {wrong};"
            " use the version that they were written for"
        ) from None
    return params


class LoadSpec(BaseModel):
    """Generated traffic: a kind, that kind's parameters, and optionally a `profile`, as for clients."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    kind: str = Field(description="The kind of load; `hashidrill list loads` shows them")
    profile: Profile | None = Field(default=None, description="How the load changes during the method")

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @cached_property
    def parameters(self) -> BaseModel:
        """`params` as the kind models them; validated once. Raises UnknownNameError, and ExperimentError."""
        return fitted(registry.load(self.kind), self.params)


class ProbeSpec(BaseModel):
    """Evidence of your own: a kind of probe, how often it looks, and that kind's parameters."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    kind: str = Field(description="The kind of probe; `hashidrill list probes` shows them")
    every: Duration = Field(default=Duration("1s"), description="Time from one look to the next: 100ms to 10m")
    timeout: Duration = Field(default=Duration("1s"), description="How long a look may take: 10ms to 1m")

    @field_validator("every", "timeout")
    @classmethod
    def _possible(cls, value: Duration, info: ValidationInfo) -> Duration:
        least, most = (Duration("100ms"), Duration("10m")) if info.field_name == "every" else _TIMEOUTS
        if not least <= value <= most:
            raise ValueError(f"{info.field_name} is from {least} to {most}, not {value}")
        return value

    @cached_property
    def parameters(self) -> Any:
        """The parameters as the kind models them; validated once. Raises UnknownNameError, and ExperimentError."""
        return fitted(registry.probe(self.kind), dict(self.model_extra or {}))

    @property
    def silent_s(self) -> float:
        """How long the probe may give no successful sample: it may miss two looks."""
        return max(SILENT_S, 3 * self.every + self.timeout)


_TIMEOUTS = Duration("10ms"), Duration("1m")


class ClientSpec(Strict):
    """A real client: any command that talks to the datacenter's agents through a tap."""

    command: list[str] = Field(
        min_length=1,
        max_length=MOST_ENTRIES,
        description="Program and arguments, no shell; {url} is the tap's address, {python} this Python",
    )
    rate: Rate | None = Field(
        default=None,
        description="Runs to start per second, even while earlier ones still run; each run is an operation",
    )
    service: bool = Field(default=False, description="Run the command all the time, and restart it when it exits")
    reports_every: Duration | None = Field(
        default=None,
        description=(
            "How long a service may report no operation; default: three times as long as in its steady state, "
            "and at least 2s. Operations that it then does not report count as not acknowledged"
        ),
    )
    timeout: Duration = Field(
        default=Duration("10s"), description="Kill a run that takes longer; its outcome is unknown"
    )
    at_once: int = Field(default=50, ge=1, le=1000, description="Maximum number of runs at the same time")
    on: str | None = Field(
        default=None,
        pattern=r"^host:[^\s:/]+$",
        description="The host it runs on, host:NAME; default: the host that loads come from",
    )
    via: str = Field(
        default="consul:clients",
        description="Agents behind the tap, used round robin; `script` lets the tap answer by itself",
    )
    profile: Profile | None = Field(default=None, description="How the rate changes during the method")

    @model_validator(mode="after")
    def _one_of_two(self) -> ClientSpec:
        if (self.rate is None) != self.service:
            raise ValueError("give a client either a rate (`rate: 4/s`: each run is an operation) or `service: true`")
        if self.rate is not None and not 0 < self.rate <= MOST_RUNS_PER_S:
            raise ValueError(
                f"a client's rate must be over 0/s and at most {MOST_RUNS_PER_S}/s (each run is a process), not"
                f" {self.rate}"
            )
        if self.timeout <= 0:
            raise ValueError("the timeout must be longer than 0s")
        if self.reports_every is not None and (not self.service or self.reports_every <= 0):
            raise ValueError("reports_every: only a service can have this, and it must be longer than 0s")
        fields = type(self).model_fields
        extra = [name for name in ("timeout", "at_once", "profile") if getattr(self, name) != fields[name].default]
        if self.service and extra:
            raise ValueError(f"{' and '.join(extra)}: only a client with a rate can have this; this one is a service")
        return self

    @property
    def agents(self) -> str | None:
        """The selector of the agents behind the tap; None when the tap answers from a script."""
        return None if self.via == SCRIPT else self.via


class SteadyState(Strict):
    """The conditions that must hold before the first fault is applied."""

    for_: Duration = Field(default=Duration("10s"), alias="for", description="How long all must hold without a break")
    within: Duration = Field(default=Duration("60s"), description="Give up (INVALID) if they have not held by then")
    require: list[Condition] = Field(min_length=1, max_length=MOST_ENTRIES, description="Conditions that must hold")

    @model_validator(mode="after")
    def _reachable(self) -> SteadyState:
        if self.within < self.for_:
            raise ValueError(f"within ({self.within}) is shorter than for ({self.for_}), so it can never hold")
        return self


_AFTER: list[Name] = Field(
    default=[],
    max_length=MOST_ENTRIES,
    description=(
        "Names of faults that this step waits for, however long that takes on a slow machine: until each is proven, "
        "or gone if it should have ended by then. The method's clock stands still while the step waits"
    ),
)
WITHIN = Duration("30s")
_WHEN: Moment | None = Field(
    default=None,
    description=(
        "The event to begin at: the first one that is not earlier than `at` and comes after `after`. Until it comes, "
        "the method's clock stands still. One of: `leader elected`, `snapshot begins`, `snapshot installed`, "
        "`a server is N entries behind`, `fault NAME proven`, `fault NAME gone`, `load NAME errors`"
    ),
)
_WITHIN: Duration | None = Field(
    default=None,
    gt=0,
    description="How long the step waits for `when` (default: 30s). If it does not come, the run is INVALID",
)


def _bounded(step: Any) -> Any:
    """Raises ValueError for a bound without a moment."""
    if step.within is not None and step.when is None:
        raise ValueError("within: bounds the wait for `when`, and this step has no `when`")
    return step


def _waits_s(step: Any) -> float:
    return 0.0 if step.when is None else float(step.within or WITHIN)


class Step(Strict):
    """One fault of the method: its kind, target, start and duration."""

    name: Name | None = Field(default=None, description="Name of the step, for expectations that refer to it")
    fault: str = Field(description="The kind of fault; `hashidrill list faults` shows them")
    on: str = Field(description="The target, as a selector; client:NAME for faults of a client's tap")
    with_: dict[str, Any] = Field(default={}, alias="with", description="The parameters of the fault")
    at: Duration = Field(default=Duration("0s"), description="When to apply it, counted from the start of the method")
    for_: Duration = Field(alias="for", description="How long the fault stays in force, counted from its application")
    follow: bool = Field(default=False, description="Move the fault when the selector matches another host")
    after: list[Name] = _AFTER
    when: Moment | None = _WHEN
    within: Duration | None = _WITHIN

    _bounds_a_moment = model_validator(mode="after")(_bounded)

    @property
    def waits_s(self) -> float:
        """How long it may wait for its moment, in seconds."""
        return _waits_s(self)

    @cached_property
    def parameters(self) -> BaseModel:
        """The parameters under `with`, as the kind models them; validated once. Raises UnknownNameError, and
        ExperimentError.
        """
        return fitted(registry.fault(self.fault), self.with_)

    @field_validator("for_")
    @classmethod
    def _lasts(cls, value: Duration) -> Duration:
        if value <= 0:
            raise ValueError("a fault must last longer than 0s")
        return value


class Mark(Strict):
    """A step without a fault that names a part of the method, so that expectations can judge that part.

    It has no target, no proof and no revert, and verdicts do not count it as a fault.
    """

    mark: Name = Field(description="What expectations call this part of the method, like `fault: load-grows`")
    at: Duration = Field(default=Duration("0s"), description="When it begins, counted from the start of the method")
    for_: Duration = Field(alias="for", description="How long it lasts")
    after: list[Name] = _AFTER
    when: Moment | None = _WHEN
    within: Duration | None = _WITHIN

    _bounds_a_moment = model_validator(mode="after")(_bounded)

    @property
    def waits_s(self) -> float:
        """How long it may wait for its moment, in seconds."""
        return _waits_s(self)

    @model_validator(mode="before")
    @classmethod
    def _one_of_two(cls, value: Any) -> Any:
        if isinstance(value, dict) and "fault" in value:
            raise ValueError("a step is either a fault or a mark, not both: give the mark its own step")
        return value

    @field_validator("for_")
    @classmethod
    def _lasts(cls, value: Duration) -> Duration:
        if value <= 0:
            raise ValueError("a mark must last longer than 0s")
        return value

    @property
    def name(self) -> str:
        return self.mark


STEP_TAGS = {"|fault": Step, "|mark": Mark}
"""What pydantic adds to the place of an error after the step's number: a fault or a mark."""


def _which(step: Any) -> str:
    marks = "mark" in step if isinstance(step, dict) else isinstance(step, Mark)
    return "|mark" if marks else "|fault"


AnyStep = Annotated[Annotated[Step, Tag("|fault")] | Annotated[Mark, Tag("|mark")], Discriminator(_which)]


class Recovery(Strict):
    """The time after the last fault, in which loads go on so that recovery is measured, not assumed."""

    for_: Duration = Field(
        default=Duration("20s"), alias="for", description="How long the loads continue after the last fault"
    )


class Expectation(BaseModel):
    """One hypothesis with its parameters, as `{name: {parameter: value}}`, and the issue known to break it."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    hypothesis: str
    params: dict[str, Any] = {}
    known_issue: KnownIssueField | None = Field(
        default=None,
        description="The issue known to break it: owner/repo#123, an https URL, or one of these with bounds",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "hypothesis" in value:
            return value
        names = [key for key in value if key != "known_issue"]
        if len(names) != 1:
            raise ValueError("name exactly one hypothesis per expectation, like `- writes_recover: {load: kv-writes}`")
        params = value[names[0]]
        if params is None:
            params = {}
        return {"hypothesis": names[0], "params": params, "known_issue": value.get("known_issue")}

    @property
    def title(self) -> str:
        """The title in pytest and reports: `writes_recover(load=kv-writes, within=10s)`."""
        return f"{self.hypothesis}({', '.join(f'{key}={value}' for key, value in self.params.items())})"


class VariantSpec(Strict):
    """One variant: an overlay, merged over the experiment as an experiment is merged over its base; `{}` changes
    nothing.
    """

    datacenter: dict[str, Any] | None = Field(default=None, description="What differs in the datacenter")
    load: dict[str, Any] | None = Field(default=None, description="The loads that differ, by name")
    clients: dict[str, Any] | None = Field(default=None, description="The clients that differ, by name")
    expect: list[Any] | None = Field(
        default=None, description="What is expected of this variant, instead of the experiment's `expect`"
    )


SECTIONS = tuple(VariantSpec.model_fields)
"""The sections that a variant may overlay."""


CONTRAST = "contrast"
"""The hypothesis that judges two sides by another hypothesis."""
CONTRAST_SIDES = ("good", "bad")


def contrast_side(model: type[BaseModel], named: str | Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one side for that hypothesis; a bare name is its `client`, or its `load` if it has none."""
    if not isinstance(named, str):
        return {**params, **named}
    key = next((key for key in ("client", "load") if key in model.model_fields), "client")
    return {**params, key: named}


class Experiment(Strict):
    """A datacenter, traffic, a steady state, faults over time, guardrails, and expectations."""

    api_version: Literal["hashidrill/v1"] = Field(alias="apiVersion", description="Version of this format")
    kind: Literal["Experiment"] = Field(description="Kind of document")
    metadata: Metadata
    datacenter: DatacenterSpec = DatacenterSpec()
    load: dict[Name, LoadSpec] = Field(default={}, max_length=MOST_ENTRIES, description="Generated traffic, by name")
    clients: dict[Name, ClientSpec] = Field(default={}, max_length=MOST_ENTRIES, description="Real clients, by name")
    probes: dict[Name, ProbeSpec] = Field(
        default={}, max_length=MOST_ENTRIES, description="Evidence of your own, by name: its signals are `NAME.SIGNAL`"
    )
    steady_state: SteadyState
    method: list[AnyStep] = Field(
        min_length=1, max_length=MOST_ENTRIES, description="The faults, and the marks, over time"
    )
    guardrails: list[Condition] = Field(
        default=[], max_length=MOST_ENTRIES, description="When one of these holds, revert all faults and end the method"
    )
    recovery: Recovery = Recovery()
    profiles: Literal["on-breach", "always", "off"] | None = Field(
        default=None,
        description=(
            "When to take Go profiles of the servers: on-breach (a promise is broken for 3s), always (also without a "
            "breach, once for each set of faults and marks in force), off; default: on-breach, where servers give them"
        ),
    )
    breaks_quorum: bool = Field(
        default=False,
        description=(
            "In an existing datacenter, allow the experiment to break a quorum, or to reset all state from a "
            "snapshot, if the arming and `--breaks-quorum` allow it too"
        ),
    )
    expect: list[Expectation] = Field(min_length=1, max_length=MOST_ENTRIES, description="The hypotheses to judge")
    variants: dict[Name, VariantSpec | None] = Field(
        default={}, max_length=MOST_VARIANTS, description="Variants to run instead of the experiment itself, by name"
    )
    rounds: int = Field(
        default=ROUNDS, ge=1, le=MOST_ROUNDS, description="How often each variant runs, in turn (A B B A)"
    )
    compare: list[Expectation] = Field(
        default=[],
        max_length=MOST_ENTRIES,
        description="The comparison hypotheses to judge, with a variant for each side",
    )

    @model_validator(mode="after")
    def _has_traffic(self) -> Experiment:
        if not self.traffic:
            raise ValueError("nothing to measure: add `load:` or `clients:`")
        return self

    @property
    def faults(self) -> list[Step]:
        """The steps of the method that break something: all but its marks."""
        return [step for step in self.method if isinstance(step, Step)]

    @property
    def traffic(self) -> dict[str, LoadSpec | ClientSpec]:
        """Loads and clients by their names."""
        return {**self.load, **self.clients}

    @property
    def declared_signals(self) -> dict[str, type[Quantity] | None]:
        """The signals of the experiment's own probes, with units (None: a plain number). Imports the probes' kinds."""
        kinds = [(name, registry.probe(spec.kind).signals) for name, spec in self.probes.items()]
        return {f"{name}.{what}": unit for name, signals in kinds for what, unit in signals.items()}

    def sampled(self, signals: Iterable[str]) -> list[Sampled]:
        """All probes of a run (hosts', products' and the experiment's own); `signals` are all the signals that they
        sample.
        """
        own: dict[str, list[str]] = {}
        for signal in sorted(signals):
            own.setdefault(signal.partition(".")[0], []).append(signal)
        return [
            *probed(),
            *(
                Sampled(frozenset(own[name]), own[name][0], spec.silent_s)
                for name, spec in self.probes.items()
                if name in own
            ),
        ]

    @property
    def measured(self) -> list[str]:
        """The names under which operations are recorded: loads, clients, and the attempts of clients."""
        return [*self.traffic, *(f"{client}{ATTEMPTS}" for client in self.clients)]
