"""The YAML of an experiment, as pydantic models. Unknown keys are errors; quantities carry their units.

The parameters of a fault (`with:`), a load or an expectation belong to the kind that is named, so they are kept as
they were written here and validated against that kind's own `Params` by `hashidrill.experiment.loader`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from hashidrill.experiment.conditions import Condition
from hashidrill.experiment.known_issue import KnownIssueField
from hashidrill.experiment.profile import Profile
from hashidrill.units import Duration, Rate, Size

API_VERSION = "hashidrill/v1"
NAME_PATTERN = r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$"
VERSION_PATTERN = r"^[0-9]+\.[0-9]+\.[0-9]+$"
MOST_ENTRIES = 100
MOST_RUNS_PER_S = 100
ATTEMPTS = ".attempts"
"""CLIENT.attempts: what its tap saw, beside the operations of CLIENT."""
SCRIPT = "script"
"""`via` of a client without a datacenter behind its tap."""
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=60)]


class Strict(BaseModel):
    """Base of everything a user writes: unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Metadata(Strict):
    """Who this experiment is, and why anyone should run it."""

    name: Name
    title: str = Field(min_length=1, max_length=120)
    why: str = Field(min_length=1, description="What this teaches, and which incident or tracker issue it comes from")
    tags: list[Name] = []


class Consul(Strict):
    """The Consul agents of a local datacenter."""

    version: str = Field(default="1.22.2", pattern=VERSION_PATTERN)
    binary: str | None = Field(default=None, description="Path of a consul binary to use, whatever PATH and cache hold")
    servers: int = Field(default=3, ge=1, le=9)
    clients: int = Field(default=1, ge=0, le=20)
    config: dict[str, Any] = Field(default={}, description="Agent configuration, passed through to servers and clients")
    server_config: dict[str, Any] = Field(default={}, description="The same, for servers alone")
    client_config: dict[str, Any] = Field(default={}, description="The same, for clients alone")


LEAST_DISK = Size("1MB")


class Disk(Strict):
    """The disk under each host. With a size it is a small file system of its own, that can really be full."""

    size: Size | None = None

    @field_validator("size")
    @classmethod
    def _limited(cls, value: Size | None) -> Size | None:
        if value is not None and value < LEAST_DISK:
            raise ValueError(f"a disk has at least {LEAST_DISK}: to the kernel, a size of 0 means no limit")
        return value


class DatacenterSpec(Strict):
    """What to start. `local` is the sandbox on this machine."""

    kind: Literal["local"] = "local"
    consul: Consul = Consul()
    disk: Disk = Disk()
    ready_within: Duration = Field(
        default=Duration("60s"), description="Give up when it is not ready, and nothing has moved for so long"
    )


class LoadSpec(BaseModel):
    """Traffic: a kind, and that kind's own parameters beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str
    profile: Profile | None = Field(default=None, description="How its level changes once the method has begun")

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ClientSpec(Strict):
    """A real client: any command, with a tap in front of the datacenter's agents."""

    command: list[str] = Field(
        min_length=1,
        max_length=MOST_ENTRIES,
        description="Program and arguments, without a shell; {url} is the tap's address, {python} this Python",
    )
    rate: Rate | None = Field(default=None, description="Runs offered a second, whatever comes back: each an operation")
    service: bool = Field(default=False, description="It runs all the time; it is started again when it ends by itself")
    timeout: Duration = Field(default=Duration("10s"), description="A run that takes longer is ended: outcome unknown")
    at_once: int = Field(default=50, ge=1, le=1000, description="How many runs there may be at one time")
    on: str | None = Field(
        default=None,
        pattern=r"^host:[^\s:]+$",
        description="The host it runs on, host:NAME; else where loads come from",
    )
    via: str = Field(
        default="consul:clients",
        description="Selector of the agents behind the tap, in turn; or script: the tap answers by itself",
    )
    profile: Profile | None = Field(default=None, description="How its rate changes once the method has begun")

    @model_validator(mode="after")
    def _one_of_two(self) -> ClientSpec:
        if (self.rate is None) != self.service:
            raise ValueError("a client has either a rate (`rate: 4/s`: each run is an operation) or `service: true`")
        if self.rate is not None and not 0 < self.rate <= MOST_RUNS_PER_S:
            raise ValueError(f"a rate is over 0/s and at most {MOST_RUNS_PER_S}/s (each is a process), not {self.rate}")
        if self.timeout <= 0:
            raise ValueError("a timeout is longer than 0s")
        fields = type(self).model_fields
        extra = [name for name in ("timeout", "at_once", "profile") if getattr(self, name) != fields[name].default]
        if self.service and extra:
            raise ValueError(f"{' and '.join(extra)}: that is about runs at a rate, of which a service has none")
        return self

    @property
    def agents(self) -> str | None:
        """The selector of the agents behind the tap; None when the tap answers from a script."""
        return None if self.via == SCRIPT else self.via


class SteadyState(Strict):
    """What must hold, and for how long, before the first fault is applied."""

    for_: Duration = Field(default=Duration("10s"), alias="for")
    within: Duration = Field(default=Duration("60s"), description="Give up (INVALID) when it has not held by then")
    require: list[Condition] = Field(min_length=1, max_length=MOST_ENTRIES)

    @model_validator(mode="after")
    def _reachable(self) -> SteadyState:
        if self.within < self.for_:
            raise ValueError(f"within ({self.within}) is shorter than for ({self.for_}): it could never hold")
        return self


class Step(Strict):
    """One fault of the method: what, on which target, when after the method began, and for how long."""

    name: Name | None = Field(default=None, description="So that expectations can name this step among several alike")
    fault: str
    on: str = Field(
        description="A selector: consul:leader, consul:followers, consul:one-follower, consul:servers, "
        "consul:clients, host:NAME; client:NAME for what a tap does"
    )
    with_: dict[str, Any] = Field(default={}, alias="with")
    at: Duration = Duration("0s")
    for_: Duration = Field(alias="for")
    follow: bool = Field(default=False, description="Move the fault along when the selector matches another host")

    @field_validator("for_")
    @classmethod
    def _lasts(cls, value: Duration) -> Duration:
        if value <= 0:
            raise ValueError("a fault lasts longer than 0s")
        return value


class Recovery(Strict):
    """How long the loads go on after the last fault, so that recovery is measured and not assumed."""

    for_: Duration = Field(default=Duration("20s"), alias="for")


class Expectation(BaseModel):
    """One hypothesis with its parameters, as `{name: {parameter: value}}`, and what is known to break it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hypothesis: str
    params: dict[str, Any] = {}
    known_issue: KnownIssueField | None = Field(
        default=None, description="owner/repo#123 or an https URL: what is known to break it; or that with bounds"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "hypothesis" in value:
            return value
        names = [key for key in value if key != "known_issue"]
        if len(names) != 1:
            raise ValueError("an expectation names exactly one hypothesis, like `- writes_recover: {load: kv-writes}`")
        params = value[names[0]]
        if params is None:
            params = {}
        return {"hypothesis": names[0], "params": params, "known_issue": value.get("known_issue")}

    @property
    def title(self) -> str:
        """As pytest and reports show it: `writes_recover(load=kv-writes, within=10s)`."""
        return f"{self.hypothesis}({', '.join(f'{key}={value}' for key, value in self.params.items())})"


class Experiment(Strict):
    """datacenter + load and clients + steady state + method + guardrails + expectations."""

    api_version: Literal["hashidrill/v1"] = Field(alias="apiVersion")
    kind: Literal["Experiment"]
    metadata: Metadata
    datacenter: DatacenterSpec = DatacenterSpec()
    load: dict[Name, LoadSpec] = Field(default={}, max_length=MOST_ENTRIES)
    clients: dict[Name, ClientSpec] = Field(default={}, max_length=MOST_ENTRIES)
    steady_state: SteadyState
    method: list[Step] = Field(min_length=1, max_length=MOST_ENTRIES)
    guardrails: list[Condition] = Field(default=[], max_length=MOST_ENTRIES)
    recovery: Recovery = Recovery()
    expect: list[Expectation] = Field(min_length=1, max_length=MOST_ENTRIES)

    @model_validator(mode="after")
    def _has_traffic(self) -> Experiment:
        if not self.traffic:
            raise ValueError("without any load or client nothing would be measured: add `load:` or `clients:`")
        return self

    @property
    def traffic(self) -> dict[str, LoadSpec | ClientSpec]:
        """Loads and clients by their names."""
        return {**self.load, **self.clients}

    @property
    def measured(self) -> list[str]:
        """The names that operations are recorded under: loads, clients, and the attempts of clients."""
        return [*self.traffic, *(f"{client}{ATTEMPTS}" for client in self.clients)]
