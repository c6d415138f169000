"""What the probes under `probes:` share: parameters, addresses, secrets, and looks at which a value may be unknown.

A kind implements `look`, which returns the measured values. Any other signal becomes a failed sample with the reason,
and so do NaN and infinity: an unknown value can never satisfy a condition by accident.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import anyio
from pydantic import AfterValidator, BaseModel, Field, model_validator

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.probes.base import SickError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Sample
from hashidrill.core.units import Quantity, shown
from hashidrill.core.util.tls import Tls, TlsFileError

if TYPE_CHECKING:
    from hashidrill.core.experiment.documents import Loc
    from hashidrill.core.experiment.model import Experiment

OK = "ok"
"""The signal that says whether the target served as expected: 1 or 0."""
_LATE_S = 0.25
"""If the event loop notices a deadline this late, the timeout says nothing about the target."""
_MOST_SECRET = 65536


class Source(Strict):
    """Where a secret is: the experiment names the place, and the value is in no recording or report."""

    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="An environment variable")
    file: str | None = Field(default=None, min_length=1, description="A file; its last line break is left out")
    prefix: str = Field(default="", max_length=40, description="Text before the secret, like `Bearer `")

    @model_validator(mode="after")
    def _one_of_two(self) -> Source:
        if (self.env is None) == (self.file is None):
            raise ValueError("name either a variable (`env: NAME`) or a file (`file: PATH`)")
        return self

    @property
    def place(self) -> str:
        return f"the variable {self.env}" if self.env else f"the file {self.file}"

    def read(self) -> str:
        """The secret itself. Raises UsageError."""
        if self.env:
            value = os.environ.get(self.env, "")
        else:
            try:
                with Path(str(self.file)).expanduser().open(encoding="utf-8") as file:
                    value = file.read(_MOST_SECRET).rstrip("\r\n")
            except (OSError, ValueError) as error:
                raise UsageError(f"{self.place} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if not value:
            raise UsageError(f"{self.place} is {'not set' if self.env else 'empty'}")
        if not value.isprintable():
            raise UsageError(f"{self.place} holds more than one line, or characters that no header can have")
        return value


class TlsFiles(Strict):
    """Certificates that a probe trusts and presents, as in the options of HashiCorp's command lines."""

    ca_file: str = Field(default="", description="Trusted certificates (PEM); default: those of the system")
    cert_file: str = Field(default="", description="The client certificate (PEM)")
    key_file: str = Field(default="", description="Its private key (PEM)")
    server_name: str = Field(default="", description="The name that the server's certificate must have")
    verify: bool = Field(default=True, description="Whether the server's certificate is checked")

    def files(self) -> Tls:
        return Tls(**self.model_dump())


TLS = Field(default=None, description="Certificates: `ca_file`, `cert_file` and `key_file`, `server_name`, `verify`")


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not re.fullmatch(r"\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+", host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{shown(value)} is not an address; write HOST:PORT, like consul-1:8300")
    return value


Address = Annotated[str, AfterValidator(_address)]


class ProbeParams(Strict):
    """Base of the parameters of each kind of probe."""

    def hosts(self) -> Sequence[str]:
        """The hosts that the probe connects to, by name or address."""
        return ()

    def lacking(self) -> str:
        """What this machine lacks for the probe; "" if nothing."""
        return ""


@dataclass(frozen=True)
class ProbeContext:
    """What a probe gets from its run: the addresses of the datacenter's hosts, and the secrets by place."""

    addresses: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    local_address: str | None = None
    """The source address of connections: the loads' own, which faults on `clients` affect; None: the kernel chooses."""

    def address(self, host: str) -> str:
        """The address of a host of the datacenter; any other name or address unchanged."""
        return self.addresses.get(host, host.strip("[]"))

    def secret(self, source: Source) -> str:
        return source.prefix + self.secrets[source.place]

    def filled(self, values: Mapping[str, str | Source]) -> dict[str, str]:
        """Headers or variables, with each source replaced by its secret."""
        return {name: self.secret(one) if isinstance(one, Source) else one for name, one in values.items()}


class UnservedError(SickError):
    """The target surely did not serve: `ok` is 0, and nothing else is known."""


@dataclass(frozen=True)
class Look:
    """What one look measured. `values` are by signal; a missing signal is unknown, for the reason in `text`."""

    values: Mapping[str, float]
    text: str = ""


class DeclaredProbe:
    """A probe that is declared under `probes:`. It samples each of its signals, `NAME.SIGNAL`, at every look."""

    kind: ClassVar[str]
    Params: ClassVar[type[ProbeParams]]
    signals: ClassVar[Mapping[str, type[Quantity] | None]]
    """The unit of each signal, by its name without the probe's; None: a plain number."""
    silence_is_down: ClassVar[bool] = True
    """Whether a look that takes longer than its timeout shows that the target does not serve."""
    longest_text: ClassVar[int] = 200

    def __init__(
        self, name: str, params: Any, context: ProbeContext, *, every_s: float = 1.0, timeout_s: float = 1.0
    ) -> None:
        self.name, self.params, self.context = name, params, context
        self.interval_s, self.timeout_s = every_s, timeout_s

    async def look(self) -> Look:
        """Raises SickError if nothing is known, UnservedError if the target did not serve."""
        raise NotImplementedError

    async def sample(self) -> Sequence[Sample]:
        """A sample of each signal, failed if its value is unknown. Never raises for a sick target."""
        began_s = anyio.current_time()
        try:
            with anyio.fail_after(self.timeout_s):
                look = await self.look()
        except TimeoutError:
            late_s = anyio.current_time() - began_s - self.timeout_s
            if late_s > _LATE_S:
                look = Look({}, f"the runner itself was {late_s:.2f}s late: nothing is known about the target")
            else:
                look = Look(self._down if self.silence_is_down else {}, f"no answer within {self.timeout_s:g}s")
        except UnservedError as error:
            look = Look(self._down, str(error))
        except (SickError, OSError) as error:
            look = Look({}, str(error) or type(error).__name__)
        return [self._sampled(signal, look) for signal in self.signals]

    @property
    def _down(self) -> Mapping[str, float]:
        return {OK: 0.0} if OK in self.signals else {}

    def _sampled(self, signal: str, look: Look) -> Sample:
        name, value = f"{self.name}.{signal}", look.values.get(signal)
        if value is None:
            return Sample(name, None, look.text[: self.longest_text] or "not measured", ok=False)
        if not math.isfinite(value):
            return Sample(name, None, f"{value} is not a value", ok=False)
        return Sample(name, float(value), look.text[: self.longest_text])

    async def aclose(self) -> None:
        """Closes the probe's connections. Idempotent."""


def make_probes(experiment: Experiment, context: ProbeContext) -> list[DeclaredProbe]:
    """The probes of an experiment. Raises UnknownNameError, ExperimentError, and UsageError for a TLS file."""
    made = []
    for name, spec in experiment.probes.items():
        try:
            kind = registry.probe(spec.kind)
            made.append(kind(name, spec.parameters, context, every_s=spec.every, timeout_s=spec.timeout))
        except TlsFileError as error:
            raise UsageError(f"probes.{name}: {error}") from None
    return made


def read_secrets(experiment: Experiment) -> dict[str, str]:
    """The secrets of the experiment's probes, by place.

    Raises UsageError that names the probe, also for an unusable TLS file or a program that this machine lacks.
    """
    found: dict[str, str] = {}
    for name, spec in experiment.probes.items():
        if lacking := spec.parameters.lacking():
            raise UsageError(f"probes.{name}: {lacking}")
        for part in _parts(spec.parameters):
            try:
                if isinstance(part, Source):
                    found[part.place] = part.read()
                elif isinstance(part, TlsFiles):
                    part.files().context()
            except (UsageError, TlsFileError) as error:
                raise UsageError(f"probes.{name}: {error}") from None
    return found


def _parts(value: Any) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from _parts(getattr(value, name))
    elif isinstance(value, Mapping):
        for below in value.values():
            yield from _parts(below)


def outside(experiment: Experiment, hosts: Collection[str], network: str) -> Iterator[tuple[Loc, str]]:
    """The probes of hosts outside a sandbox's network: their places in the document, and what is wrong."""
    inside = ipaddress.ip_network(network)
    for name, spec in experiment.probes.items():
        for host in spec.parameters.hosts():
            try:
                there = host in hosts or ipaddress.ip_address(host.strip("[]")) in inside
            except ValueError:
                there = False
            if not there:
                keys = [key for key, value in spec.parameters if isinstance(value, str) and host in value.lower()]
                near = registry.near(host, hosts)
                yield (
                    ("probes", name, *keys[:1]),
                    f"{host} cannot be reached from the local datacenter, which has only its own network: {near}",
                )
