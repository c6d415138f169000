"""Cuts connections to Consul's server port, selected by their protocol.

A connection to port 8300 begins with a byte that says what it is for: 0x01 is Raft's, of which a follower has none to
open but to ask for votes; 0x08 is gRPC's, by which agents stream; others are for RPC, like the writes that a follower
forwards and the blocking queries of agents. The rules look at that byte and remember it as the connection's mark.

So there can be a server that votes for others, gets the log from the leader and answers RPC, and never wins an
election. It takes no restart, costs the others nothing, and is exact. The configuration meant for slow machines,
performance.raft_multiplier 10, does not do it. A follower with it believes for 10 to 20 s that a dead leader lives, and
until then refuses to vote for others. Measured with three servers under writes, ten elections each: elections took 11
to 24 s instead of 2 to 4 s, and on 1.22.2 the server to be avoided won all five that followed a killed leader; with
these rules it won none of ten on either version.

The rules hold for one port more, on which canaries listen: a canary's request that begins with the digit 1 is cut as if
it were one of those meant, so that the observer sees the rules at work on a connection of its own.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import ExchangeRequest, Host
from hashidrill.core.protocols.capabilities import NetworkCanary
from hashidrill.core.protocols.packets import PAYLOADS, Block, Cut, Word
from hashidrill.products.consul import api

RPC_PORT = 8300
CANARY_PORT = 21_990
_MISSED, _CANARY = 0x00, 0x31
"""First bytes of a new connection that are cut as well: the rules missed that byte, or it is the canary's."""
RAFT, _GRPC = 0x01, 0x08
_REQUEST_VOTE, _REQUEST_PRE_VOTE = 0x01, 0x04
"""First bytes of requests on an older Raft connection."""
_TRIAL = ExchangeRequest(upload_bytes=1, download_bytes=1, timeout_s=1.0)


def cut_votes(addresses: Sequence[str]) -> Cut:
    """The rules of a server that is not to be elected; `addresses` are those of the other servers."""
    older: list[tuple[Word, ...]] = [
        (("doff", doff), ("data", at, 8, True, number))
        for doff, at in PAYLOADS
        for number in (_REQUEST_VOTE, _REQUEST_PRE_VOTE)
    ]
    return _cut("votes", addresses, RAFT, older)


def cut_streams(addresses: Sequence[str]) -> Cut:
    """The rules of an agent that is to have no streams from the servers with these addresses.

    An older connection is known by its first frame that follows: HTTP/2's begin with three bytes of length, of which
    the third is not 0 in a short one; in yamux's, of all other connections, that byte is of flags that do not exist.
    """
    older: list[tuple[Word, ...]] = [
        (("doff", doff), ("data", at, 16, True, 0), ("data", at + 16, 8, False, 0)) for doff, at in PAYLOADS
    ]
    return _cut("streams", addresses, _GRPC, older)


def _cut(name: str, addresses: Sequence[str], first: int, older: Sequence[tuple[Word, ...]]) -> Cut:
    return Cut(name, tuple(addresses), (RPC_PORT, CANARY_PORT), (first, _MISSED, _CANARY), tuple(older))


def cut_off(addresses: Sequence[str]) -> list[Block]:
    """The rules of a leader that is to lose the leadership: no Raft and no RPC with the other servers, either way."""
    return [Block("input", tuple(addresses), RPC_PORT), Block("output", tuple(addresses), RPC_PORT)]


async def is_cut(host: Host, other: Host) -> bool:
    """Whether a connection of that host that begins like those meant is reset on its way to the other server.

    Raises FaultError when it is neither reset nor answered.
    """
    await other.use(NetworkCanary).canary_listen(CANARY_PORT)
    [seen] = await host.use(NetworkCanary).exchange(other.address, CANARY_PORT, _TRIAL)
    if seen.errno not in (0, errno.ECONNRESET):
        name = errno.errorcode.get(seen.errno, str(seen.errno))
        raise FaultError(f"{host.name}: the canary of {other.name} did not answer: {name}")
    return seen.errno == errno.ECONNRESET


async def check_readable(host: Host) -> None:
    """Raises FaultError where RPC is encrypted: what a connection is for cannot be seen from outside then."""
    debug_config = (await api.agent_self(host))["DebugConfig"]
    old, new = debug_config.get("VerifyOutgoing"), debug_config.get("TLS", {}).get("InternalRPC", {})  # since 1.12
    if old or new.get("VerifyOutgoing"):
        raise FaultError(
            f"{host.name}: its RPC is encrypted, so packet rules cannot tell its connections apart; turn TLS off"
        )
