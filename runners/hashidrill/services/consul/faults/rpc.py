"""Connections to the port that Consul's servers share, told apart by what they are for, and cut.

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

from hashidrill.abc import ExchangeRequest, Host
from hashidrill.capabilities import NetworkCanary, PacketFilter
from hashidrill.errors import FaultError
from hashidrill.services.consul import api

RPC_PORT = 8300
_CANARY_PORT = 21_990
_OPENED, _PASSED, _CUT = "0x68640001", "0x68640002", "0x68640003"
_MISSED, _CANARY = 0x00, 0x31
"""First bytes of a new connection that are cut as well: the rules missed that byte, or it is the canary's."""
_RAFT, _GRPC = 0x01, 0x08
_REQUEST_VOTE, _REQUEST_PRE_VOTE = 0x01, 0x04
"""First bytes of requests on an older Raft connection."""
_TRIAL = ExchangeRequest(upload_bytes=1, download_bytes=1, timeout_s=1.0)
_PAYLOADS = (("tcp doff 5", 160), ("tcp doff 8", 256))
"""Where the first byte is, in bits: without TCP options and with timestamps, all that a connection's data carries."""


def cut_votes(table: str, addresses: Sequence[str]) -> str:
    """An nft script for the server that shall not be elected; `addresses` are those of the other servers."""
    older = [
        f"{doff} {_byte(at)} {number:#04x}" for doff, at in _PAYLOADS for number in (_REQUEST_VOTE, _REQUEST_PRE_VOTE)
    ]
    return _cut(table, "votes", addresses, _RAFT, older)


def cut_streams(table: str, addresses: Sequence[str]) -> str:
    """An nft script for an agent that shall have no streams from the servers with these addresses.

    An older connection is known by its first frame that follows: HTTP/2's begin with three bytes of length, of which
    the third is not 0 in a short one; in yamux's, of all other connections, that byte is of flags that do not exist.
    """
    older = [f"{doff} @th,{at},16 0x0000 {_byte(at + 16)} != 0x00" for doff, at in _PAYLOADS]
    return _cut(table, "streams", addresses, _GRPC, older)


def _byte(at: int) -> str:
    return f"@th,{at},8"


def _cut(table: str, chain: str, addresses: Sequence[str], first: int, older: Sequence[str]) -> str:
    """Connections to these that begin with that byte, and those from before the rules, once data like this is seen."""
    to_others = (
        f"add rule inet {table} {chain} ip daddr {{ {', '.join(addresses)} }} "
        f"tcp dport {{ {RPC_PORT}, {_CANARY_PORT} }}"
    )
    cut = f"ct mark set {_CUT} reject with tcp reset"
    data = "tcp flags & psh == psh"
    firsts = (first, _MISSED, _CANARY)
    rules = [
        "tcp flags & rst == rst accept",  # by which the other side learns of it when it sends something
        f"ct mark {_CUT} reject with tcp reset",
        f"ct mark {_PASSED} accept",
        f"tcp flags & (syn | ack) == syn ct mark set {_OPENED} accept",
        *(
            f"{data} ct mark {_OPENED} {doff} {_byte(at)} {number:#04x} {cut}"
            for doff, at in _PAYLOADS
            for number in firsts
        ),
        f"{data} ct mark {_OPENED} ct mark set {_PASSED} accept",
        # connections that are older than the rules: what they are for is seen when they are used
        *(f"{data} ct mark 0 {what} {cut}" for what in older),
    ]
    return "\n".join(
        [
            *_anew(table),
            f"add chain inet {table} {chain} {{ type filter hook output priority -10; policy accept; }}",
            *(f"{to_others} {rule}" for rule in rules),
        ]
    ) + "\n"  # fmt: skip


def cut_off(table: str, addresses: Sequence[str]) -> str:
    """An nft script for a leader that shall lose its office: no Raft and no RPC with the other servers, either way."""
    others = f"{{ {', '.join(addresses)} }}"
    return "\n".join(
        [
            *_anew(table),
            *(
                f"add chain inet {table} {chain} {{ type filter hook {chain} priority -10; policy accept; }}"
                for chain in ("input", "output")
            ),
            f"add rule inet {table} input ip saddr {others} tcp dport {RPC_PORT} drop",
            f"add rule inet {table} output ip daddr {others} tcp dport {RPC_PORT} drop",
        ]
    ) + "\n"  # fmt: skip


def _anew(table: str) -> list[str]:
    return [f"add table inet {table}", f"delete table inet {table}", f"add table inet {table}"]


async def remove(host: Host, table: str) -> None:
    """Nothing when it is not there. Raises FaultError."""
    if table in await host.use(PacketFilter).nft_tables():
        await host.use(PacketFilter).nft(f"add table inet {table}\ndelete table inet {table}\n")


async def is_cut(host: Host, other: Host) -> bool:
    """Whether a connection of that host that begins like those meant is reset on its way to the other server.

    Raises FaultError when it is neither reset nor answered.
    """
    await other.use(NetworkCanary).canary_listen(_CANARY_PORT)
    [seen] = await host.use(NetworkCanary).exchange(other.address, _CANARY_PORT, _TRIAL)
    if seen.errno not in (0, errno.ECONNRESET):
        name = errno.errorcode.get(seen.errno, str(seen.errno))
        raise FaultError(f"{host.name}: the canary of {other.name} did not answer: {name}")
    return seen.errno == errno.ECONNRESET


async def check_readable(host: Host) -> None:
    """Raises FaultError where RPC is encrypted: what a connection is for cannot be seen from outside then."""
    debug_config = (await api.agent_self(host))["DebugConfig"]
    old, new = debug_config.get("VerifyOutgoing"), debug_config.get("TLS", {}).get("InternalRPC", {})  # since 1.12
    if old or new.get("VerifyOutgoing"):
        raise FaultError(f"{host.name}: its RPC is encrypted: what its connections are for cannot be told")
