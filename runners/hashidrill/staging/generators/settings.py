"""The `engine:` section of an attach file: where the loads of a run are offered, if not on the runner's machine."""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import partial
from typing import Any

from pydantic import Field, ValidationError, model_validator

from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration
from hashidrill.staging.attach.http import Login


class NomadSettings(Strict):
    """Loads run as a batch job of the datacenter's own Nomad."""

    workers: int = Field(ge=1, le=100, description="Number of load generators, each on another client")
    lease: Duration = Field(
        default=Duration("15s"), description="A worker whose runner is silent for longer ends by itself"
    )
    lost_after: Duration = Field(
        default=Duration("10s"), description="A worker that is silent for longer is lost, and the run INVALID"
    )

    @model_validator(mode="after")
    def _found_again(self) -> NomadSettings:
        if not 1 <= self.lost_after < self.lease <= 300:
            raise ValueError(
                "`lost_after` is at least 1s and shorter than `lease`, which is 5m at most: a worker whose connection"
                " drops must still be there when its runner comes back"
            )
        return self


class EngineSettings(Strict):
    """Where loads run."""

    nomad: NomadSettings | None = Field(default=None, description="On clients of Nomad")


def settings_of(written: Any, where: str) -> EngineSettings:
    """The section's settings as written. Raises AttachError that names each wrong key."""
    try:
        return EngineSettings.model_validate(dict(written or {}))
    except (ValidationError, ValueError, TypeError) as error:
        if not isinstance(error, ValidationError):
            raise AttachError(f"{where}: engine: must be a mapping of settings") from None
        wrong = "; ".join(
            f"{'.'.join(map(str, ('engine', *each['loc'])))}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors()
        )
        raise AttachError(f"{where}: {wrong}") from None


def workers_of(written: Any, products: Container[str], where: str) -> NomadSettings | None:
    """None if loads run on this machine. Raises AttachError if Nomad is not among the attached `products`."""
    nomad = settings_of(written, where).nomad
    if nomad is not None and "nomad" not in products:
        raise AttachError(f"{where}: engine.nomad: Nomad is not attached; name it under `datacenter`")
    return nomad


def fleet_of(written: Any, logins: Mapping[str, Login], where: str) -> dict[str, Any] | None:
    """The settings of a LoadGenerator's workers, tokens included; None if loads run on this machine.

    Raises AttachError.
    """
    nomad = workers_of(written, logins, where)
    return (
        None
        if nomad is None
        else {
            "spawner": "nomad",
            "workers": nomad.workers,
            "lease_s": float(nomad.lease),
            "lost_after_s": float(nomad.lost_after),
            "login": logins["nomad"].handed_over(),
        }
    )


def worker_count(written: Any, where: str) -> int:
    """The number of workers; 0 if loads run on this machine. Raises AttachError."""
    nomad = settings_of(written, where).nomad
    return 0 if nomad is None else nomad.workers


def engine_rights(namespace: str = "default") -> tuple[Right, ...]:
    """The rights that the Nomad token needs for the workers' job."""
    work = partial(Right, "nomad", "namespace", namespace)
    wanted = ("submit-job", "read-job", "list-jobs", "read-logs")
    return (Right("nomad", "node"), *(work(each) for each in wanted))
