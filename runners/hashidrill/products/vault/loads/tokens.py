"""`vault.token.churn`: creates tokens and revokes some; Vault must neither lose these leases nor keep them too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext, LoadRate, Timeout
from hashidrill.core.loads.http_client import HttpClient, for_each, insist
from hashidrill.core.loads.schedule import Reply, detail_as, stamp
from hashidrill.core.protocols.abc import Detail, EmitOperation
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Percent
from hashidrill.products.vault import rights
from hashidrill.products.vault.loads.base import VaultLoad, Via, body_of, listed_names, read_json, write_reply

MOST_READ = 20_000
"""The most tokens that are looked up at the end."""
FINAL_READS_WITHIN_S = 60.0
STILL_VALID = "still valid"
"""Marks a revoked token that is still valid, in the place of its stamp."""
TABLE = "lease"
_GONE = ("invalid accessor", "bad token")
"""Vault's answers about an unknown accessor, and about an accessor whose token or lease is gone."""
_DENIED = "permission denied"
"""Another possible answer about a token that is gone; also Vault's answer when it refuses the load's own token."""
_ALL = "auth/token/accessors"
_LOOKUP, _REVOKE, _SELF = (f"auth/token/{path}" for path in ("lookup-accessor", "revoke-accessor", "lookup-self"))


@dataclass(frozen=True, slots=True)
class Lease:
    """One token: its `Operation.detail`. `ttl_s` is the time that Vault granted, not the requested one."""

    ttl_s: float
    revoked: bool

    def detail(self) -> Detail:
        return Detail(TABLE, asdict(self))

    @classmethod
    def of(cls, detail: Detail | None) -> Lease:
        """Raises ValueError for a detail that is not a lease of this load."""
        return detail_as(cls, detail, TABLE, TokenChurn.kind)


class TokenChurn(VaultLoad):
    """Creates tokens, revokes a share of them at once, and looks up at the end which of them Vault still knows.

    An operation is one token: it is `ok` once the token was created, and revoked if it was chosen for that. The
    recording holds the token's accessor, which identifies the token but grants nothing, and never the token itself.

    A token that Vault knows from memory although its storage lost it counts as missing, and in `LOAD.unlisted`.
    """

    kind: ClassVar[str] = "vault.token.churn"
    signals: ClassVar = {"unlisted": None}  # tokens that were known at the end, but are not listed by the storage

    class Params(Strict):
        """`rate` tokens a second, each valid for `ttl`; the share `revoked` is revoked at once."""

        rate: LoadRate
        ttl: Annotated[
            Duration, Field(description="How long a token may live: one that expires before the end cannot be checked")
        ] = Duration("1h")
        revoked: Annotated[
            Percent, Field(ge=0, le=1, description="Share of tokens that are revoked right after their creation")
        ] = Percent("50%")
        via: Via = "vault:servers"
        timeout: Timeout = Duration("30s")

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - the signature of all loads
        return rights.TOKENS

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._owed = 0.0
        self._to_revoke: set[int] = set()
        self._accessors: dict[int, str] = {}
        """By operation, the accessor of each token whose state at the end is known: it must exist, or be revoked."""

    def _key(self, n: int) -> str:
        return f"{self.name}/{n}"

    def _plan(self, n: int) -> tuple[str, str]:
        self._owed += float(self.params.revoked)
        if self._owed >= 1 - 1e-9:
            self._owed -= 1
            self._to_revoke.add(n)
        return self._key(n), stamp(self.context.run_id, n)

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as client:

            async def churn(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - they are not sent
                wanted = {"ttl": f"{int(self.params.ttl)}s", "renewable": False, "display_name": "churn"}
                reply, answer = await self._post(client, n, "auth/token/create", wanted)
                if reply.outcome != "ok":
                    return reply
                made = read_json(answer)["auth"]
                accessor = str(made["accessor"])
                if n in self._to_revoke:
                    reply, _ = await self._post(client, n, _REVOKE, {"accessor": accessor})
                    if reply.outcome != "ok":  # the token was created, and may or may not be revoked
                        return replace(reply, outcome="unknown")
                self._accessors[n] = accessor
                return replace(reply, detail=Lease(float(made["lease_duration"]), n in self._to_revoke).detail())

            await self.open_loop(self._plan, churn).run(emit)

    async def _post(self, client: HttpClient, n: int, path: str, body: object) -> tuple[Reply, Answer]:
        answer = await client.request("POST", self.url(n, path), body=body_of(body), timeout_s=self._timeout_s)
        return write_reply(answer), answer

    async def final_reads(self, *, within_s: float = FINAL_READS_WITHIN_S) -> Mapping[str, str | None]:
        """The stamp of each acknowledged token that is in the right state (known, or revoked).

        None for a token that Vault has lost, and `STILL_VALID` for a revoked token that it still knows. Vault looks
        tokens up in its memory: a token that its storage does not list is lost, and counted in `LOAD.unlisted`. Raises
        WaitTimeoutError with the last answer.
        """
        found: dict[str, str | None] = {}
        kept: dict[str, str] = {}
        async with self.client() as client:

            async def look_up(item: tuple[int, str]) -> None:
                n, accessor = item
                body, path = body_of({"accessor": accessor}), f"/v1/{_LOOKUP}"
                known = await insist(client, self.context.endpoints, "POST", path, _known, within_s=within_s, body=body)
                if known == _DENIED:  # if the load's own token is allowed, the other token is gone
                    await insist(client, self.context.endpoints, "GET", f"/v1/{_SELF}", _allowed, within_s=within_s)
                    known = False
                right = stamp(self.context.run_id, n)
                wrong = STILL_VALID if n in self._to_revoke else None
                if known and n not in self._to_revoke:
                    kept[self._key(n)] = accessor
                found[self._key(n)] = right if known is not (n in self._to_revoke) else wrong

            await for_each(list(self._accessors.items())[:MOST_READ], look_up)
            listed = await insist(
                client,
                self.context.endpoints,
                "GET",
                f"/v1/{_ALL}",
                listed_names,
                within_s=within_s,
                params={"list": "true"},
            )
        there = {*listed}
        unlisted = [key for key, accessor in kept.items() if accessor not in there]
        self.context.sample("unlisted", float(len(unlisted)), ", ".join(unlisted[:3]))
        return {**found, **dict.fromkeys(unlisted)}


def _known(answer: Answer) -> bool | str | None:
    """Whether the accessor is known; None if no answer came, `_DENIED` if the load's own token may be refused."""
    if answer.status == 200:
        return True
    if not 400 <= answer.status < 500:
        return None
    said = " ".join(map(str, read_json(answer).get("errors") or []))
    if any(words in said for words in _GONE):
        return False
    return _DENIED if answer.status == 403 and _DENIED in said else None


def _allowed(answer: Answer) -> bool | None:
    return True if answer.status == 200 else None
