"""Makes started servers a usable Vault: initialises and unseals it, and waits until it accepts secrets."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio

from hashidrill.core.errors import DatacenterError
from hashidrill.core.protocols.abc import Host
from hashidrill.core.util.wait import all_at_once, wait_while_it_moves
from hashidrill.products.services import READY_PATIENCE
from hashidrill.products.vault.api import VaultApi
from hashidrill.products.vault.operator import KeyRing, Keys, new_load_token, try_unseal
from hashidrill.products.vault.rights import MOUNT, PROBE_SECRET, allow_loads

_VOTERS, _AUTOPILOT = "sys/storage/raft/configuration", "sys/storage/raft/autopilot/configuration"
_STABLE_SOON = {"server_stabilization_time": "1s"}
"""By default, autopilot makes a server a voter once it has been healthy for 10 s."""
_INIT_WITHIN_S = 30.0
_STEP_WITHIN_S = 10.0
_JOINS_WITHIN_S = 15.0
"""How long a server that accepted the key may take to join the other servers in Raft and to unseal itself.

It looks for Vault's keyring once a second (Core.unsealWithRaft of 1.21.0), and unseals itself even if a second attempt
unsealed it meanwhile. It then waits for leadership twice, and a step-down may reach the wrong one of the two waits: the
server answers 204 and stays active. This happened in 1 of 3 contract runs with two attempts.
"""

Look = tuple[bool | None, str, int | None]
"""The state for `wait_while_it_moves`: whether it is done, what is missing, and the progress."""


async def make_ready(
    hosts: Sequence[Host], ring: KeyRing, *, raft: bool, within_s: float, agents_run: Callable[[], Awaitable[None]]
) -> None:
    """Returns once a secret can be written and every other server could take over. Raises WaitTimeoutError.

    With integrated storage (`raft`), a server needs a vote to take over: autopilot gives a new server its vote some
    time after it has joined.
    """
    async with VaultApi() as api:
        steps = _Steps(api, hosts, ring, raft)
        for what, step in (
            ("vault to be initialised", steps.initialise),
            ("vault to be unsealed", steps.unseal),
            ("vault to have an active server", steps.served),
            ("all servers of vault to have a vote", steps.vote),
            ("vault to accept secrets", steps.take_secrets),
        ):

            async def look(step: Callable[[], Awaitable[Look]] = step) -> Look:
                await agents_run()
                return await step()

            await wait_while_it_moves(what, look, still_s=within_s, within_s=READY_PATIENCE * within_s)


@dataclass(frozen=True)
class _Steps:
    api: VaultApi
    hosts: Sequence[Host]
    ring: KeyRing
    raft: bool
    took: dict[str, float] = field(default_factory=dict)
    """When each server accepted its key, or may have accepted it, by the event loop's clock."""

    async def initialise(self) -> Look:
        """One server makes the keys; the others join it, or find the keys in the storage. Raises DatacenterError."""
        first = self.hosts[0]
        seal = await self.api.seal(first.address)
        if not seal.answered:
            return None, f"{first.name}: {seal}", None
        if seal.initialized:
            raise DatacenterError(f"{first.name}: another person has already initialised this vault, and has its keys")
        shares = {"secret_shares": 1, "secret_threshold": 1}
        said = await self.api.call(first.address, "PUT", "sys/init", shares, timeout_s=_INIT_WITHIN_S)
        if not said.ok:
            return None, f"{first.name}: {said.text}", None
        self.ring.keep(Keys(str(said.data["keys_base64"][0]), str(said.data["root_token"]), new_load_token()))
        return True, "", None

    async def unseal(self) -> Look:
        """Unseals the first server first: the others cannot join before it serves."""
        key = self.ring.keys.unseal
        said: dict[str, str] = {}

        async def open_it(host: Host) -> None:
            seal = await self.api.seal(host.address)
            if not seal.open and seal.answered and not self._joins(host):
                seal = await try_unseal(self.api, host.address, key, timeout_s=_STEP_WITHIN_S)
                if not seal.text or not seal.answered:  # it was not refused
                    self.took[host.name] = anyio.current_time()
            said[host.name] = "" if seal.open else seal.text or str(seal)

        first = self.hosts[0]
        await open_it(first)
        if not said[first.name] and self.raft:  # before the others join
            quick = await self.api.call(first.address, "POST", _AUTOPILOT, _STABLE_SOON, token=self.ring.keys.root)
            said[first.name] = "" if quick.ok else quick.text
        if not said[first.name]:
            await all_at_once(partial(open_it, host) for host in self.hosts[1:])
        missing = [f"{name}: {text}" for name, text in said.items() if text]
        return (None if missing else True), "; ".join(missing), len(said) - len(missing)

    def _joins(self, host: Host) -> bool:
        """Whether the server accepted the key so recently that a second attempt would disturb its own unsealing."""
        took_s = self.took.get(host.name)
        return self.raft and took_s is not None and anyio.current_time() - took_s < _JOINS_WITHIN_S

    async def served(self) -> Look:
        """Whether one server is active, and all others know it."""
        active = await self.api.active(self.hosts)
        if active is None:
            return None, "no server is active", None
        strangers = []
        for host in self.hosts:
            said = await self.api.call(host.address, "GET", "sys/leader")
            if f"//{active.address}:" not in str(said.data.get("leader_address", "")):
                strangers.append(f"{host.name} does not know that {active.name} is active")
        return (None if strangers else True), "; ".join(strangers), len(self.hosts) - len(strangers)

    async def vote(self) -> Look:
        """Whether each server is a voter of Raft: a server without a vote looks like a standby but cannot take over."""
        if not self.raft:
            return True, "", None
        active = await self.api.active(self.hosts)
        if active is None:
            return None, "no server is active", None
        said = await self.api.call(active.address, "GET", _VOTERS, token=self.ring.keys.root)
        servers = said.data.get("data", {}).get("config", {}).get("servers", [])
        voters = {server.get("node_id") for server in servers if server.get("voter")}
        without = [host.name for host in self.hosts if host.name not in voters]
        return (None if without else True), f"without a vote: {', '.join(without)}", len(voters)

    async def take_secrets(self) -> Look:
        """Creates the loads' engine, policy and token, and writes a secret with that token."""
        active = await self.api.active(self.hosts)
        if active is None:
            return None, "no server is active", None
        keys = self.ring.keys
        call = partial(self.api.call, active.address, timeout_s=_STEP_WITHIN_S)
        mounts = await call("GET", "sys/mounts", token=keys.root)
        if f"{MOUNT}/" not in mounts.data.get("data", {}):
            engine = {"type": "kv", "options": {"version": "2"}}
            said = await call("POST", f"sys/mounts/{MOUNT}", engine, token=keys.root)
            if not said.ok:
                return None, said.text, 0
        if not (said := await allow_loads(call, keys.root, keys.load)).ok:
            return None, said.text, 1
        # a new engine takes some moments to be upgraded to version 2, and refuses writes until then
        said = await call("POST", PROBE_SECRET, {"data": {"ready": "ready"}}, token=keys.load)
        return (True if said.ok else None), said.text, 2
