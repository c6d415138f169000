"""The base of loads on Consul: the keys they leave, the send time in each change, and the outcome of each write."""

import re

from hashidrill.core.loads.answer import Answer, shown_body
from hashidrill.core.loads.base import AgentLoad
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.protocols.rights import Left
from hashidrill.products.consul.leftovers import BELOW, KEY, SERVICE

NOWHERE = "192.0.2.1"
"""An address reserved for documentation (RFC 5737); no host has it."""


class ConsulLoad(AgentLoad):
    """A load on Consul's agents."""


def left(place: str) -> Left:
    """A key that a load leaves; or a whole folder, if `place` ends in a slash."""
    return Left(SERVICE, BELOW if place.endswith("/") else KEY, place)


_WRITTEN = Reply("ok", status=200)
_MARK = re.compile(rb"@hd([0-9]{1,19})@")


def mark(sent_ns: int) -> str:
    """The text that marks a change with its send time on the run's clock."""
    return f"@hd{sent_ns}@"


def newest_ns(told: bytes) -> int:
    """The latest send time marked in the text; 0 if no time is marked."""
    return max((int(found) for found in _MARK.findall(told)), default=0)


def write_reply(answer: Answer) -> Reply:
    """The outcome of a KV write.

    `ok` is 200 with the body `true`. `fail` means that the write was certainly not applied: there was no connection,
    Consul refused the request (4xx, rate limits included), or the body is `false`. Any other result is `unknown`: a
    timeout, a connection lost after the request may have left, and every 5xx, even "No cluster leader": the agent
    that says so may have forwarded the write to a leader that lost leadership while it replicated the write.
    """
    if not answer.sent:
        return Reply("fail", error=answer.error, reason=answer.why)
    if answer.status == 0:
        return Reply("unknown", error=answer.error, reason=answer.why)
    said = answer.body.strip()
    if answer.status == 200:
        if said == b"true":
            return _WRITTEN
        if said == b"false":
            return Reply("fail", status=200, error="Consul answered false", reason=Reason.REFUSED)
        return Reply("unknown", status=200, error=f"neither true nor false: {shown_body(said)}", reason=answer.why)
    # 408 is the one 4xx about the exchange, not about the request
    refused = 400 <= answer.status < 500 and answer.status != 408
    return Reply("fail" if refused else "unknown", status=answer.status, error=shown_body(said), reason=answer.why)
