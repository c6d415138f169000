"""What the loads on Consul share: where they write, the mark of a change in what they write, and honest outcomes."""

from __future__ import annotations

import re

from hashidrill.core.loads.answer import Answer, shown_body
from hashidrill.core.loads.base import AgentLoad
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.protocols.rights import Left
from hashidrill.products.consul.leftovers import BELOW, KEY, SERVICE


class ConsulLoad(AgentLoad):
    """A load on Consul's agents."""


def left(place: str) -> Left:
    """A key that a load leaves; or all of a folder, where `place` ends in a slash."""
    return Left(SERVICE, BELOW if place.endswith("/") else KEY, place)


_MARK = re.compile(rb"@hd([0-9]{1,19})@")


def mark(sent_ns: int) -> str:
    """What goes into a change that is sent at that moment of the run's clock."""
    return f"@hd{sent_ns}@"


def newest_ns(told: bytes) -> int:
    """When the newest change in there was sent; 0 when there is no mark in it."""
    return max((int(found) for found in _MARK.findall(told)), default=0)


def write_reply(answer: Answer) -> Reply:
    """The outcome of a KV write.

    `ok` is 200 with the body `true`. `fail` is what certainly was not applied: no connection, a request that Consul
    refused (4xx, rate limits included), or the body `false`. All else is `unknown`: a timeout, a connection lost after
    the request may have left, and every 5xx. "No cluster leader" is one of these: the agent that answers it may have
    forwarded the write to a leader that lost leadership while it replicated.
    """
    if not answer.sent:
        return Reply("fail", error=answer.error, reason=answer.why)
    if answer.status == 0:
        return Reply("unknown", error=answer.error, reason=answer.why)
    said = answer.body.strip()
    if answer.status == 200:
        if said == b"true":
            return Reply("ok", status=200)
        if said == b"false":
            return Reply("fail", status=200, error="Consul answered false", reason=Reason.REFUSED)
        return Reply("unknown", status=200, error=f"neither true nor false: {shown_body(said)}", reason=answer.why)
    # 408 is the one 4xx that speaks of the exchange, not of the request
    refused = 400 <= answer.status < 500 and answer.status != 408
    return Reply("fail" if refused else "unknown", status=answer.status, error=shown_body(said), reason=answer.why)
