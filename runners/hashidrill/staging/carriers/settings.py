"""The part `carriers:` of an Attach file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.pydantic_messages import explain
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration


class _CarrierSettings(Strict):
    python: str = Field(default="python3", description="Python 3.8 or later on the hosts")
    lease: Duration = Field(default=Duration("15s"), description="Silence of the runner after which a host reverts")
    notes: str = Field(
        default="/run/hashidrill",
        pattern="^/",
        description="Folder on hosts for notes, for root alone; empty after a restart",
    )
    check_address: bool = Field(
        default=True, description="Whether a host itself must have its address; false behind NAT: then check it by hand"
    )
    data: dict[str, str] = Field(
        default={}, description="Folder of a product's data on its hosts; default: where its process writes"
    )

    @field_validator("lease")
    @classmethod
    def _sane(cls, value: Duration) -> Duration:
        if not 3 <= value <= 300:
            raise ValueError("lease must be from 3s to 5m: a runner renews it three times in that time")
        return value


class SshSettings(_CarrierSettings):
    """Access to hosts over SSH."""

    user: str | None = Field(default=None, description="User to log in as (default: yours); needs sudo -n unless root")
    port: int = Field(default=22, ge=1, le=65535, description="Port of sshd, unless `addresses` has another")
    key_file: str | None = Field(default=None, description="Private key without a passphrase; default: the SSH agent's")
    agent: bool = Field(default=True, description="Whether keys of the SSH agent (SSH_AUTH_SOCK) are tried")
    known_hosts: str = Field(default="~/.ssh/known_hosts", description="File with the hosts' keys; always checked")
    jump: str | None = Field(default=None, description="Jump host, like ops@bastion.example:22")
    addresses: dict[str, str] = Field(
        default={}, description="ADDRESS or ADDRESS:PORT for SSH, by host, if not the host's own"
    )

    def place_of(self, host: str, address: str) -> tuple[str, int]:
        """(address, port) of the sshd of that host."""
        named, _, port = self.addresses.get(host, address).rpartition(":")
        if named and port.isdigit() and (":" not in named or named.startswith("[")):
            return named.strip("[]"), int(port)
        return self.addresses.get(host, address).strip("[]"), self.port

    def file(self, path: str, attach_file: str) -> Path:
        """The path, relative to the Attach file."""
        return Path(attach_file).parent / Path(os.path.expanduser(path))  # noqa: PTH111 - HOME may be unset


class NomadSettings(_CarrierSettings):
    """Access to hosts by Nomad jobs with the driver raw_exec."""

    python: str = Field(default="python3", description="Python 3.8 or later on the clients")
    placed_within: Duration = Field(
        default=Duration("30s"), description="How long Nomad may take to run a job; if it is late, no fault is applied"
    )

    @field_validator("placed_within")
    @classmethod
    def _bounded(cls, value: Duration) -> Duration:
        if not 1 <= value <= 300:
            raise ValueError("placed_within must be from 1s to 5m")
        return value


class Carriers(Strict):
    """Carriers of faults to hosts: SSH for a host that it reaches, otherwise Nomad."""

    ssh: SshSettings | None = Field(default=None, description="Carry faults over SSH")
    nomad: NomadSettings | None = Field(default=None, description="Carry faults by Nomad jobs on Nomad's clients")


CAPABILITIES = ("list-jobs", "read-job", "submit-job", "alloc-lifecycle", "read-logs", "alloc-exec", "alloc-node-exec")


def carrier_rights(carriers: Carriers, namespace: str = "default") -> tuple[Right, ...]:
    """The rights that Nomad's token needs for carrier jobs; empty if Nomad is not a carrier."""
    if carriers.nomad is None:
        return ()
    return (
        Right("nomad", "node"),
        *(Right("nomad", "namespace", namespace, capability) for capability in CAPABILITIES),
    )


def carriers_of(written: Mapping[str, Any], path: str) -> Carriers:
    """Raises AttachError that names each key that is wrong."""
    try:
        return Carriers.model_validate(dict(written))
    except ValidationError as invalid:
        told = "".join(
            f"\n  {'.'.join(map(str, ('carriers', *error['loc'])))}: {explain(error, Carriers)}"
            for error in invalid.errors(include_url=False)
        )
        raise AttachError(f"{path}: the carriers cannot be read:{told}") from None
