"""A server that cannot be elected: its Raft connections to other servers are cut, and nothing else of it.

A Consul server opens connections to the others' port 8300 for two things: Raft's (the first byte is 0x01), of which a
follower has none to open but to ask for votes; and RPC (other first bytes), like the writes that it forwards. The rules
tell them apart by that byte and remember it as the connection's mark. Votes for others, the log from the leader and all
RPC pass; the server is a full voter that never wins. It takes no restart, costs the others nothing, and is exact.

The configuration that is meant for slow machines, performance.raft_multiplier 10, does not do it. A follower with it
believes for 10 to 20 s that a dead leader lives, and until then refuses to vote for others. Measured with three
servers under writes, ten elections each: elections took 11 to 24 s instead of 2 to 4 s, and on 1.22.2 the server to be
avoided won all five that followed a killed leader; with these rules it won none of ten on either version.

The rules hold for one port more, on which canaries listen: a canary's request that begins with the digit 1 is cut as if
it were Raft's, so that the observer sees the rules at work on a connection of its own.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from hashidrill.abc import ExchangeRequest, Host
from hashidrill.errors import FaultError

RPC_PORT = 8300
_CANARY_PORT = 21_990
_OPENED, _PASSED, _CUT = "0x68640001", "0x68640002", "0x68640003"
_FIRST = ("0x01", "0x00", "0x31")
"""First bytes of a new connection that are cut: Raft's, one of which the rules missed that byte, and the canary's."""
_VOTES = ("0x01", "0x04")
"""First bytes of requests on an older Raft connection: RequestVote and RequestPreVote."""
_TRIAL = ExchangeRequest(upload_bytes=1, download_bytes=1, timeout_s=1.0)
_PAYLOADS = ("tcp doff 5 @th,160,8", "tcp doff 8 @th,256,8")
"""Where the first byte is, without TCP options and with timestamps, which are all that a connection's data carries."""


def cut_votes(table: str, addresses: Sequence[str]) -> str:
    """An nft script for the server that shall not be elected; `addresses` are those of the other servers."""
    to_others = (
        f"add rule inet {table} votes ip daddr {{ {', '.join(addresses)} }} tcp dport {{ {RPC_PORT}, {_CANARY_PORT} }}"
    )
    cut = f"ct mark set {_CUT} reject with tcp reset"
    data = "tcp flags & psh == psh"
    rules = [
        f"ct mark {_CUT} reject with tcp reset",
        f"ct mark {_PASSED} accept",
        f"tcp flags & (syn | ack) == syn ct mark set {_OPENED} accept",
        *(f"{data} ct mark {_OPENED} {at} {first} {cut}" for at in _PAYLOADS for first in _FIRST),
        f"{data} ct mark {_OPENED} ct mark set {_PASSED} accept",
        # connections that are older than the rules: what they are for is seen when they are used
        *(f"{data} ct mark 0 {at} {first} {cut}" for at in _PAYLOADS for first in _VOTES),
    ]
    return "\n".join(
        [
            *_anew(table),
            f"add chain inet {table} votes {{ type filter hook output priority -10; policy accept; }}",
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
    if table in await host.nft_tables():
        await host.nft(f"add table inet {table}\ndelete table inet {table}\n")


async def is_cut(host: Host, other: Host) -> bool:
    """Whether a connection of that host that begins like Raft's is reset on its way to the other server.

    Raises FaultError when it is neither reset nor answered.
    """
    await other.canary_listen(_CANARY_PORT)
    [seen] = await host.exchange(other.address, _CANARY_PORT, _TRIAL)
    if seen.errno not in (0, errno.ECONNRESET):
        name = errno.errorcode.get(seen.errno, str(seen.errno))
        raise FaultError(f"{host.name}: the canary of {other.name} did not answer: {name}")
    return seen.errno == errno.ECONNRESET
