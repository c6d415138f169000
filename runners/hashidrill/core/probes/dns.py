"""Asks one DNS server for one name."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import anyio
import dns.asyncquery
import dns.exception
import dns.inet
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
from pydantic import Field, field_validator

from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.declared import OK, Address, DeclaredProbe, Look, ProbeContext, ProbeParams, UnservedError
from hashidrill.core.units import Duration, shown

_EXPECTED = {"answer": "an answer", "nodata": "no record of this type", "nxdomain": "no such name"}
_MOST_TEXTS = 5


class DnsParams(ProbeParams):
    """The parameters of a dns probe."""

    name: str = Field(min_length=1, max_length=253, description="The name, complete, like consul.service.consul")
    type: Literal["A", "AAAA", "SRV", "TXT", "CNAME", "NS", "PTR", "SOA", "MX"] = Field(
        default="A", description="The type of the records"
    )
    server: Address = Field(description="HOST:PORT of the only server that is asked, like client-1:8600")
    expect: Literal["answer", "nodata", "nxdomain"] = Field(default="answer", description="What a good answer is")
    answers: list[str] = Field(
        default=[], max_length=50, description="Records that a good answer must contain, as text: 10.73.0.11"
    )

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            dns.name.from_text(value)
        except (dns.exception.DNSException, UnicodeError) as error:
            raise ValueError(f"{shown(value)} is not a DNS name: {error}") from None
        return value

    def hosts(self) -> Sequence[str]:
        return [self.server.rpartition(":")[0]]


class DnsProbe(DeclaredProbe):
    """Asks a DNS server for a name: `ok` is 1 if the answer matches `expect` and `answers`.

    Signals: `ok`, `latency`, `rcode` (0 NOERROR, 2 SERVFAIL, 3 NXDOMAIN, 5 REFUSED), `answers` (the number of records
    of that name and type, also behind CNAMEs; unknown unless the server answered NOERROR or NXDOMAIN). Asks over UDP,
    and again over TCP if the answer is truncated. Without an answer, `ok` is 0 and the others are unknown. If the reply
    is to another question, all are unknown.
    """

    kind = "dns"
    Params: ClassVar = DnsParams
    signals: ClassVar = {OK: None, "latency": Duration, "rcode": None, "answers": None}

    def __init__(self, name: str, params: Any, context: ProbeContext, **times: float) -> None:
        super().__init__(name, params, context, **times)
        self._name = dns.name.from_text(params.name)
        self._type = dns.rdatatype.from_text(params.type)

    async def look(self) -> Look:
        host, _, port = self.params.server.rpartition(":")
        question = dns.message.make_query(self._name, self._type)
        began_s = anyio.current_time()
        address = await _numeric(self.context.address(host))
        try:
            reply, _ = await dns.asyncquery.udp_with_fallback(
                question, address, port=int(port), source=self.context.local_address, ignore_unexpected=True
            )
        except (OSError, EOFError) as error:
            raise UnservedError(str(error) or type(error).__name__) from None
        except (dns.exception.DNSException, ValueError) as error:
            raise SickError(f"the reply is not an answer to the question: {error or type(error).__name__}") from None
        took_s, rcode = anyio.current_time() - began_s, reply.rcode()
        values = {"latency": took_s, "rcode": float(rcode)}
        text = dns.rcode.to_text(rcode)
        if rcode not in {dns.rcode.NOERROR, dns.rcode.NXDOMAIN}:
            return Look({OK: 0.0, **values}, text)
        try:
            chain = cast("dns.message.QueryMessage", reply).resolve_chaining()
            records = sorted(record.to_text() for record in chain.answer or ())
        except dns.exception.DNSException as error:
            raise SickError(f"{text}: its CNAMEs lead nowhere: {error}") from None
        kind = "nxdomain" if rcode == dns.rcode.NXDOMAIN else "answer" if records else "nodata"
        missing = [one for one in self.params.answers if one not in records]
        text = f"{text}: {', '.join(records[:_MOST_TEXTS]) or _EXPECTED[kind]}" + (
            f"; without {missing[0]}" if missing else ""
        )
        return Look(
            {OK: float(kind == self.params.expect and not missing), **values, "answers": float(len(records))}, text
        )


async def _numeric(host: str) -> str:
    """The address of a name outside the datacenter, by the system's resolver. Raises SickError."""
    if dns.inet.is_address(host):
        return host
    try:
        found = await anyio.getaddrinfo(host, None)
    except OSError as error:
        raise SickError(f"the server's name {host} has no address: {error.strerror or error}") from None
    return str(found[0][4][0])
