"""The `interlocks:` section of an attach file. Every default is the careful choice."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from hashidrill.core.errors import InterlockError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Percent

PREFIX = "hashidrill-interlocks"
"""The prefix of the interlocks' keys in Consul's KV store, apart from those of loads, which are below `hashidrill`."""
ANCHOR_KEY = f"{PREFIX}/anchor"
"""The values that the datacenter fixes at its first arming (hashidrill.staging.interlocks.anchor). No file can rename
this key.
"""
TAKEN_BACK_KEY = f"{PREFIX}/taken-back"
"""The nonces of revoked armings, until their planned end."""
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]+$", max_length=40)]
Key = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]*[A-Za-z0-9]$", max_length=200)]


class ArmingSettings(Strict):
    """The place of the arming, and its longest duration. With a public key it must be signed, wherever it is."""

    key: Key = Field(default=f"{PREFIX}/armed", description="The Consul KV key that `hashidrill staging arm` writes")
    file: str | None = Field(default=None, description="A signed file instead of the KV key; needs `public_key`")
    public_key: str | None = Field(
        default=None,
        description="The Ed25519 key that must have signed the arming (`ed25519:` and 32 bytes in Base64), as the"
        " datacenter fixed it at its first arming",
    )
    longest: Duration = Field(default=Duration("24h"), description="An arming may not last longer than this")
    clock_skew: Duration = Field(
        default=Duration("60s"), description="How far the clocks of runner, Consul and the person who arms may differ"
    )

    @model_validator(mode="after")
    def _signed(self) -> ArmingSettings:
        if self.file is not None and self.public_key is None:
            raise ValueError(
                "an arming in a file must be signed: pin the signer's key as `public_key`, or leave out"
                " `file` to use the Consul KV key"
            )
        return self


class ProductionSettings(Strict):
    """Words that mean production in addition to `prod` and `prd`, and names that only look like production."""

    words: list[Word] = Field(default=[], max_length=100, description="More words that mean production, like `live`")
    names: list[str] = Field(default=[], max_length=1000, description="Whole names that are production, like `eu-1`")
    not_production: list[str] = Field(
        default=[],
        max_length=1000,
        description="Whole names, or entries of a node's meta (`stage: prod-copy`), that only look like it",
    )


class BlastRadiusSettings(Strict):
    """The share of the datacenter that may be disturbed at one time."""

    servers: int | None = Field(
        default=None, ge=1, le=100, description="Most servers of a product hit at once (default: a third, at least one)"
    )
    clients: Percent = Field(default=Percent("20%"), description="Most clients of a product hit at once, at least one")

    @field_validator("clients")
    @classmethod
    def _a_share(cls, value: Percent) -> Percent:
        if not 0 < value <= 1:
            raise ValueError("must be over 0% and at most 100%")
        return value


class LockSettings(Strict):
    """The Consul session that keeps a second game day out."""

    key: Key = Field(default=f"{PREFIX}/lock", description="The Consul KV key that the session locks")
    ttl: Duration = Field(
        default=Duration("30s"), description="How long the lock outlives a runner that died; Consul accepts 10s to 24h"
    )

    @field_validator("ttl")
    @classmethod
    def _as_consul_takes_it(cls, value: Duration) -> Duration:
        if not 10 <= value <= 86400:
            raise ValueError("Consul accepts 10s to 24h for a session's TTL")
        return value


class StopSettings(Strict):
    """The stop button."""

    key: Key = Field(default=f"{PREFIX}/stop", description="The Consul KV key that `hashidrill staging stop` writes")
    within: Duration = Field(default=Duration("2s"), description="How long a pressed stop button may go unseen")

    @field_validator("within")
    @classmethod
    def _bounded(cls, value: Duration) -> Duration:
        if not 0.2 <= value <= 30:
            raise ValueError("give 200ms to 30s: a stop button that is checked less often stops no run in time")
        return value


class AuditSettings(Strict):
    """The destinations of audit lines, besides the recording."""

    prefix: Key = Field(default="hashidrill-audit", description="The folder of Consul's KV store for audit lines")
    runs: int = Field(default=50, ge=1, le=1000, description="How many runs' lines are kept; older ones are removed")
    webhook: str | None = Field(
        default=None, pattern=r"^https?://[^\s]+$", description="A URL that gets each line as JSON, by POST"
    )


class InterlockSettings(Strict):
    """The conditions for touching anything here, and for ending a run."""

    arming: ArmingSettings = ArmingSettings()
    production: ProductionSettings = ProductionSettings()
    blast_radius: BlastRadiusSettings = BlastRadiusSettings()
    lock: LockSettings = LockSettings()
    stop: StopSettings = StopSettings()
    audit: AuditSettings = AuditSettings()


def interlock_rights(settings: InterlockSettings, *, sets_back: bool = False) -> tuple[Right, ...]:
    """The rights that a run's token needs for its interlocks. This token may not arm: arming needs another token.

    `sets_back`: a fault may undo a pressed stop button; the run presses it again.
    """
    right = partial(Right, "consul")
    return (
        right("key", settings.arming.key),
        right("key", ANCHOR_KEY),
        right("key", TAKEN_BACK_KEY),
        right("key", settings.stop.key, "write" if sets_back else "read"),
        right("key", settings.lock.key, "write"),
        right("key_prefix", f"{settings.audit.prefix}/", "write"),
        right("session_prefix", "", "write"),
        right("service_prefix"),
    )


def settings_of(written: Any, where: str) -> InterlockSettings:
    """The section's settings as written. Raises InterlockError that names each wrong key."""
    try:
        return InterlockSettings.model_validate(dict(written or {}))
    except (ValidationError, ValueError, TypeError) as error:
        if not isinstance(error, ValidationError):
            raise InterlockError(f"{where}: interlocks: must be a mapping of settings") from None
        wrong = "; ".join(
            f"{'.'.join(map(str, ('interlocks', *each['loc'])))}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors()
        )
        raise InterlockError(f"{where}: {wrong}") from None
