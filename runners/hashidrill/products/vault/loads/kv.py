"""Loads on secrets: `vault.kv.write` and `vault.kv.read`, in a KV engine (version 2) of their own."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import Keys, LoadContext, LoadRate, Timeout
from hashidrill.core.loads.http_client import for_each, insist
from hashidrill.core.loads.schedule import Reply, Turns, stamp
from hashidrill.core.protocols.abc import EmitOperation
from hashidrill.core.protocols.rights import Left, Right
from hashidrill.core.units import Duration, Percent, Size
from hashidrill.products.vault import rights
from hashidrill.products.vault.leftovers import left_by
from hashidrill.products.vault.loads.base import (
    VaultLoad,
    Via,
    body_of,
    data_path,
    listed_names,
    read_json,
    read_reply,
    write_reply,
)
from hashidrill.products.vault.rights import MOUNT

ONCE_KEYS = 5_000
"""After this many secrets that are written once, the share of such writes shrinks, because each is read at the end."""
MAX_SECRET_BYTES = 256 * 1024
"""Integrated storage accepts entries of up to 1 MiB, Consul of up to 512 KiB; an entry is larger than its secret."""
FINAL_READS_WITHIN_S = 60.0
PREPARE_WITHIN_S = 60.0
_LEAVE_WITHIN_S = 5.0
_SEED_BYTES = 64


def _sane_secret(size: Size) -> Size:
    if not 1 <= size <= MAX_SECRET_BYTES:
        raise ValueError(f"a secret is 1B to 256KiB (Vault's storage accepts little more), not {size}")
    return size


def _secret(identity: str, size_bytes: int) -> bytes:
    return body_of({"data": {"id": identity, "filler": "x" * size_bytes}})


def identity_of(answer: Answer) -> str | None:
    """The identity of the write that made this secret; None if it has none."""
    data = read_json(answer).get("data")
    secret = data.get("data") if isinstance(data, dict) else None
    identity = secret.get("id") if isinstance(secret, dict) else None
    return identity if isinstance(identity, str) else None


class _KvLoad(VaultLoad):
    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - the signature of all loads
        return rights.SECRETS

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:  # noqa: ARG003 - the signature of all loads
        return (left_by(name, run_id),)


class KvWrite(_KvLoad):
    """Writes unique secrets, and at the end reads them back and checks that Vault's storage lists them.

    A secret that is not listed counts as missing, and in `LOAD.unlisted`, because Vault reads from memory what its
    storage may have lost. After the final reads the load deletes its secrets; if that takes over 5 s, the signal
    `LOAD.left` says how many remain.
    """

    kind: ClassVar[str] = "vault.kv.write"
    divides: ClassVar[bool] = True
    signals: ClassVar = {"unlisted": None}  # secrets that were read at the end, but are not listed by the storage

    class Params(Strict):
        """`rate` writes a second, each of a secret of `value` bytes that is unique in the run.

        `once` is the share of writes to keys that nothing overwrites; the other writes go to `keys` keys in turn.
        """

        rate: LoadRate
        keys: Keys = 100
        value: Annotated[Size, AfterValidator(_sane_secret)] = Size("512B")
        """Size of each secret."""
        once: Annotated[
            Percent,
            Field(ge=0, le=1, description="Share of writes to keys that are written only once, which reveal a loss"),
        ] = Percent("90%")
        via: Via = "vault:servers"
        timeout: Timeout = Duration("30s")

    params: Params

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._turns = Turns(params.once, params.keys, ONCE_KEYS)

    def _place(self, *, once: bool) -> str:
        """A path with the run's id, so that it is unused."""
        return f"{self.name}/{self.context.run_id}/{'once' if once else 'turn'}"

    def _plan(self, n: int) -> tuple[str, str]:
        self._turns.skip_to(n)
        once, number = self._turns.next()
        return f"{self._place(once=once)}/{number}", stamp(self.context.run_id, n)

    async def run(self, emit: EmitOperation) -> None:
        size_bytes = int(self.params.value)
        async with self.client() as client:

            async def put(n: int, key: str, value: str) -> Reply:
                url, body = self.url(n, data_path(key)), _secret(value, size_bytes)
                return write_reply(await client.request("POST", url, body=body, timeout_s=self._timeout_s))

            await self.open_loop(self._plan, put).run(emit)

    def reached(self, n: int) -> None:
        self._turns.skip_to(n)

    async def final_reads(self, *, within_s: float = FINAL_READS_WITHIN_S) -> Mapping[str, str | None]:
        """For each key that the load tried to write, the identity of its secret now (None: absent).

        The active server answers, from its memory if it can; a secret that its storage does not list is None, and
        counted in `LOAD.unlisted`. Retries until `within_s` seconds are over, then raises WaitTimeoutError with the
        last answer.
        """
        numbers = {True: self._turns.once, False: min(self._turns.in_turn, self.params.keys)}
        keys = [f"{self._place(once=once)}/{number}" for once, most in numbers.items() for number in range(most)]
        found: dict[str, str | None] = {}
        async with self.client() as client:

            async def read(key: str) -> None:
                path = f"/v1/{data_path(key)}"
                [found[key]] = await insist(client, self.context.endpoints, "GET", path, _entry, within_s=within_s)

            await for_each(keys, read)
            listed: set[str] = set()
            for once in numbers:
                path = f"/v1/{MOUNT}/metadata/{self._place(once=once)}"
                names = await insist(
                    client,
                    self.context.endpoints,
                    "GET",
                    path,
                    listed_names,
                    within_s=within_s,
                    params={"list": "true"},
                )
                listed |= {f"{self._place(once=once)}/{name}" for name in names}
        unlisted = [key for key, value in found.items() if value is not None and key not in listed]
        self.context.sample("unlisted", float(len(unlisted)), ", ".join(unlisted[:3]))
        return {key: None if key in unlisted else value for key, value in found.items()}

    async def clean_up(self) -> None:
        """Deletes the secrets. Gives up after 5 s, so that it does not wait for a sick server."""
        left = self._turns.once + min(self._turns.in_turn, self.params.keys)
        numbers = {True: self._turns.once, False: min(self._turns.in_turn, self.params.keys)}
        keys = [f"{self._place(once=once)}/{number}" for once, most in numbers.items() for number in range(most)]
        gone = 0
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S), self.client() as client:

                async def delete(key: str) -> None:
                    nonlocal gone
                    url = self.url(0, f"{MOUNT}/metadata/{key}")
                    gone += (await client.request("DELETE", url, timeout_s=_LEAVE_WITHIN_S)).status in {200, 204}

                await for_each(keys, delete)
        except TimeoutError:
            pass
        if gone < left:
            self.context.sample("left", float(left - gone), f"{left - gone} secrets were not deleted")


def _entry(answer: Answer) -> tuple[str | None] | None:
    if answer.status == 404:
        return (None,)
    return (identity_of(answer),) if answer.status == 200 else None


class KvRead(_KvLoad):
    """Reads `keys` secrets round robin. The secrets exist before the load starts, so a missing one is an error."""

    kind: ClassVar[str] = "vault.kv.read"
    divides: ClassVar[bool] = True

    class Params(Strict):
        """`rate` reads a second over `keys` secrets."""

        rate: LoadRate
        keys: Keys = 100
        via: Via = "vault:servers"
        timeout: Timeout = Duration("30s")

    params: Params

    def _key(self, n: int) -> str:
        return f"{self.name}/{self.context.run_id}/{n % self.params.keys}"

    async def prepare(self, *, within_s: float = PREPARE_WITHIN_S) -> None:
        async with self.client() as client:

            async def seed(n: int) -> None:
                body, path = _secret(stamp(self.context.run_id, n), _SEED_BYTES), f"/v1/{data_path(self._key(n))}"
                await insist(client, self.context.endpoints, "POST", path, _accepted, within_s=within_s, body=body)

            await for_each(range(self.params.keys), seed)

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as client:

            async def get(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - a read has no value
                answer = await client.request("GET", self.url(n, data_path(key)), timeout_s=self._timeout_s)
                return read_reply(answer, identity_of(answer))

            await self.open_loop(lambda n: (self._key(n), ""), get).run(emit)


def _accepted(answer: Any) -> bool | None:
    """Raises AttachError if Vault has no secrets engine for the loads; each Vault of the lab has one."""
    if answer.status == 404 and b"no handler for route" in answer.body:
        raise AttachError(
            f"Vault has no secrets engine at {MOUNT}/, where the loads write: create one with `vault secrets enable"
            f" -path={MOUNT} -version=2 kv`"
        )
    return True if answer.status in {200, 204} else None
