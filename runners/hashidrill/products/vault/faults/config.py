"""Changes a server's configuration and restarts the server, because Vault reads most of its file only at its start."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, Cases
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Observer, Place, Restarts, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi, AgentFiles, ProcessControl, Processes
from hashidrill.core.protocols.claims import AGENT, START, needs, takes
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration
from hashidrill.core.util.nested import merge
from hashidrill.core.util.wait import wait_until
from hashidrill.products.vault import rights
from hashidrill.products.vault.faults import servers
from hashidrill.products.vault.operator import VaultKeys, VaultOperator

_DURATIONS = frozenset({"default_lease_ttl", "max_lease_ttl", "default_max_request_duration"})
KEYS = _DURATIONS | {"cache_size", "disable_cache", "log_level", "raw_storage_endpoint", "introspection_endpoint"}
"""The keys that Vault shows at sys/config/state/sanitized. No other can be set: Vault silently ignores unknown keys."""
_STARTED_WITHIN_S = 20.0
_KNOWS_WITHIN_S = 60.0
"""With `storage: consul`, no server is active for up to 45 s after the active server died."""
_TURN = "vault.config"
"""The turn in which servers restart, so that no two are away at once."""


class ConfigParams(Strict):
    """Which configuration keys to set."""

    set_: dict[str, Any] = Field(alias="set", min_length=1)
    """Keys as in Vault's configuration file: `{default_lease_ttl: 10m}`."""

    @field_validator("set_")
    @classmethod
    def _can_be_set(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key, wanted in value.items():
            if key not in KEYS:
                raise ValueError(f"{key} cannot be set: Vault would not show whether it applied it; {near(key, KEYS)}")
            if key in _DURATIONS:
                try:
                    Duration(str(wanted))
                except ValueError as error:
                    raise ValueError(f"{key} is a duration, like 30s: {error}") from None
            elif wanted is None or isinstance(wanted, (dict, list)):
                raise ValueError(f"{key} has no value; write one")
        return value


class VaultConfig(BaseFault[ConfigParams]):
    """Changes configuration keys of a server and restarts it; several servers restart one after the other.

    Limits: a standby forwards the configuration query to the active server, so for a standby only the file and the
    new process are proof.
    """

    kind: ClassVar[str] = "vault.config"
    at_a_time: ClassVar[int | None] = 1
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset(
        {AgentApi, AgentFiles, ProcessControl, Processes, VaultKeys, VaultOperator}
    )
    observer: ClassVar[Observer] = Observer(
        "the server's process and seal status, and the configuration that it shows while it is active",
        "the injector reads the file back; a standby shows the active server's configuration, so only its "
        "file and a new process prove it",
    )
    restarts: ClassVar[Restarts | None] = Restarts(_STARTED_WITHIN_S, end=True)
    Params: ClassVar[type[Strict]] = ConfigParams
    observed_within_s = 60.0
    """With `storage: consul`, no server is active for up to 45 s after the active server restarted."""
    cases: ClassVar[Cases] = Cases(
        on=(
            ("vault:active", {"set": {"default_lease_ttl": "10m", "log_level": "debug"}}),
            ("vault:one-standby", {"set": {"default_lease_ttl": "10m", "log_level": "debug"}}),
        )
    )

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), takes(AGENT), needs(START))

    def troubles(self, place: Place) -> Iterable[Trouble]:
        return servers.only_on_vault(self.kind, place)

    def rights(self) -> Sequence[Right]:
        return rights.path("sys/config/state/sanitized", "read")

    async def prior(self, target: Target) -> Mapping[str, Any]:
        host = self.hosts.host(target.host)
        config = await host.use(AgentFiles).agent_config(servers.VAULT)
        if merge(config, self.params.set_) == config:
            raise FaultError(
                f"{host.name}: its configuration file already sets this, so the fault would change nothing"
            )
        seal = await host.use(VaultOperator).seal_status()
        if not seal.open:
            raise FaultError(f"{host.name}: its vault is {seal}, so it could not show that it has restarted")
        return {"config": config}

    async def apply(self, undo: Undo) -> None:
        await self._restart(self._host(undo), merge(undo["prior"]["config"], self.params.set_))

    async def _restart(self, host: Host, config: Mapping[str, Any]) -> None:
        """Restarts with that file; returns once the server knows the active server: then the next one may restart.

        A process that runs while the original file is on disk has read only the original file.
        """
        async with self.hosts.turn(_TURN):
            await host.use(ProcessControl).stop_agent(servers.VAULT)
            await host.use(AgentFiles).set_agent_config(servers.VAULT, config)
            await host.use(ProcessControl).start_agent(servers.VAULT)

            async def answers() -> tuple[bool | None, str]:
                seal = await host.use(VaultOperator).seal_status()
                return (True if seal.answered and seal.initialized else None), str(seal)

            await wait_until(f"vault on {host.name} to start again", answers, within_s=_STARTED_WITHIN_S)
            await host.use(VaultKeys).unseal()
            await wait_until(
                f"vault on {host.name} to know the active server",
                lambda: servers.knows_active(host),
                within_s=_KNOWS_WITHIN_S,
            )

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        host, prior = self._host(undo), undo["prior"]["config"]
        wanted = merge(prior, self.params.set_) if present else prior
        in_file = await host.use(AgentFiles).agent_config(servers.VAULT) == wanted
        process = await host.use(Processes).agent_process(servers.VAULT)
        new = process is not None and process.reference != undo["reference"]
        seal = await host.use(VaultOperator).seal_status()
        shown = await self._shown(host)
        lying = [key for key, value in shown.items() if not _agrees(key, wanted.get(key), value)]
        words = [
            f"its file {'has' if in_file else 'lacks'} these values",
            "a new process" if new else "the same process",
            str(seal),
            *(f"{key} {value}" for key, value in shown.items()),
        ]
        asked = ", ".join(
            f"{key} {self.params.set_[key] if present else prior.get(key, 'as by default')}" for key in self.params.set_
        )
        # when reverted, the process is a new one too, unless the fault was never applied
        return Evidence(in_file and seal.open and (new or not present) and not lying, asked, ", ".join(words))

    async def _shown(self, host: Host) -> dict[str, Any]:
        """Each key's value on this server; empty unless it is active, because a standby forwards the query."""
        if host.name not in await servers.actives(self.hosts):
            return {}
        said = await host.use(VaultOperator).ask("GET", "sys/config/state/sanitized")
        data = said.data.get("data")
        return {key: data[key] for key in self.params.set_ if key in data} if isinstance(data, Mapping) else {}

    async def revert(self, undo: Undo) -> None:
        host, config = self._host(undo), undo["prior"]["config"]
        process = await host.use(Processes).agent_process(servers.VAULT)
        if process is None or await host.use(AgentFiles).agent_config(servers.VAULT) != config:
            await self._restart(host, config)


def _agrees(key: str, asked: Any, shown: Any) -> bool:
    """Whether the server shows that value. For keys missing in the file it shows defaults, which are unknown here."""
    if asked is None:
        return True
    if key in _DURATIONS:
        return float(Duration(str(asked))) == float(shown)
    return str(asked).lower() == str(shown).lower()
