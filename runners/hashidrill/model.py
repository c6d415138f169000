"""The YAML of an experiment, as pydantic models. Unknown keys are errors; quantities carry their units.

The parameters of a fault (`with:`), a load or an expectation belong to the kind that is named, so they are kept as
they were written here and validated against that kind's own `Params` by `hashidrill.loader`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from hashidrill.conditions import Condition
from hashidrill.loads.profile import Profile
from hashidrill.units import Duration, Size

API_VERSION = "hashidrill/v1"
NAME_PATTERN = r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$"
VERSION_PATTERN = r"^[0-9]+\.[0-9]+\.[0-9]+$"
ISSUE_PATTERN = r"^([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+#[0-9]+|https://[^\s/]+\S*)$"
MOST_ENTRIES = 100
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


class Disk(Strict):
    """The disk under each host. With a size it is a small file system of its own, that can really be full."""

    size: Size | None = None


class DatacenterSpec(Strict):
    """What to start. `local` is the sandbox on this machine."""

    kind: Literal["local"] = "local"
    consul: Consul = Consul()
    disk: Disk = Disk()
    ready_within: Duration = Duration("60s")


class LoadSpec(BaseModel):
    """Traffic: a kind, and that kind's own parameters beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str
    profile: Profile | None = Field(default=None, description="How its level changes once the method has begun")

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


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
        "consul:clients, host:NAME"
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
    known_issue: str | None = Field(
        default=None, pattern=ISSUE_PATTERN, description="owner/repo#123 or an https URL: what is known to break it"
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
    """datacenter + load + steady state + method + guardrails + expectations."""

    api_version: Literal["hashidrill/v1"] = Field(alias="apiVersion")
    kind: Literal["Experiment"]
    metadata: Metadata
    datacenter: DatacenterSpec = DatacenterSpec()
    load: dict[Name, LoadSpec] = Field(min_length=1, max_length=MOST_ENTRIES)
    steady_state: SteadyState
    method: list[Step] = Field(min_length=1, max_length=MOST_ENTRIES)
    guardrails: list[Condition] = Field(default=[], max_length=MOST_ENTRIES)
    recovery: Recovery = Recovery()
    expect: list[Expectation] = Field(min_length=1, max_length=MOST_ENTRIES)
