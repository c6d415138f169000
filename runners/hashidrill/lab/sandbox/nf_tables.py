"""Packet rules by netlink: replaces the content of a table, and reads from the kernel the content of any table.

It speaks nf_tables' own protocol (linux/netfilter/nf_tables.h), so it needs neither the `nft` program nor a library:
only the standard library, because it also runs next to a trainee's shell. It reads the rules from the kernel's dump,
and does not rely on what it wrote before.
"""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from hashidrill.core.protocols.packets import Chain, Statement, Word

T = TypeVar("T")

_NETLINK_NETFILTER, _SUBSYSTEM, _INET, _IPV4 = 12, 10, 1, 2
_ERROR, _DONE, _BATCH_BEGIN, _BATCH_END = 2, 3, 0x10, 0x11
_REQUEST, _ACK, _DUMP, _CREATE, _APPEND, _INTERRUPTED = 1, 4, 0x300, 0x400, 0x800, 0x10
_NEW_TABLE, _GET_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE, _GET_RULE, _DELETE_RULE = 0, 1, 2, 3, 6, 7, 8
_NEW_SET, _NEW_ELEMENTS, _GET_ELEMENTS, _GET_GENERATION = 9, 12, 13, 16
_NESTED, _KIND = 0x8000, 0x3FFF
_HOOKS = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}
_VERDICT, _FIRST, _SECOND = 0, 1, 2
"""Registers."""
_NETWORK, _TRANSPORT = 1, 2
_EQUAL, _UNEQUAL, _LESS = 0, 1, 2
_DROP, _ACCEPT, _ADDRESS, _PORT = 0, 1, (7, 4), (13, 2)
"""Verdicts, then the types of a set's elements: nft's number of the type, and its size in bytes."""
_FIELDS = {(_NETWORK, 12, 4): "address", (_NETWORK, 16, 4): "address", (_TRANSPORT, 2, 2): "port"}
_SIZES = {"address": 4, "port": 2, "protocol": 1}
"""In bytes. A set may have longer keys, which combine several fields."""
_L4PROTO, _NFPROTO, _TCP = 16, 15, b"\x06"
_BUFFER_BYTES, _ATTEMPTS, _WITHIN_S = 1 << 20, 50, 10.0


@dataclass(frozen=True)
class SeenRule:
    """A rule in the kernel's form. `addresses` and `ports` are what a packet is compared with."""

    table: str
    chain: str
    comment: str
    packets: int | None
    """The packets that its counter counted; None without a counter."""
    drops: bool
    """Whether the rule drops or refuses the TCP packets that it matches."""
    addresses: frozenset[str]
    ports: frozenset[int]


def replace(table: str, chains: Sequence[Chain], statements: Sequence[Statement]) -> None:
    """Replaces the table's content by these chains and statements, in one transaction.

    Raises OSError that names the refused part; the table is then unchanged.
    """
    made = [*_gone(table), _new_table(table)]
    made += [_new_chain(table, chain) for chain in chains]
    numbers = count(1)
    for chain, words in statements:
        made += _new_rule(table, chain, words, numbers)
    _transact(made)


def suspend(table: str, redirecting: Chain, blocking: Chain) -> None:
    """Makes `redirecting` accept before it redirects, and empties `blocking`, in one transaction. Raises OSError."""
    [accept] = _new_rule(table, redirecting, [("accept",)], count(1), flags=_CREATE)
    emptied = ("chain", _DELETE_RULE, 0, b"".join(_attributes(table, blocking.name)))
    _transact([_new_table(table), _new_chain(table, redirecting), _new_chain(table, blocking), emptied, accept])


def remove(table: str) -> None:
    """Removes the table; ignores a missing one. Raises OSError."""
    _transact(_gone(table))


def tables() -> list[str]:
    """The names of all tables. Raises OSError."""
    return _read(lambda kernel: [_text(table[1]) for _, table in _dump(kernel, _GET_TABLE, 0)])


def rules() -> list[SeenRule]:
    """The rules of all tables. Raises OSError."""
    return _read(lambda kernel: [_seen(kernel, family, rule) for family, rule in _dump(kernel, _GET_RULE, 0)])


_Message = tuple[str, int, int, bytes]
"""A message's subject, type, flags and attributes."""


def _attribute(kind: int, value: int | str | bytes | Sequence[bytes]) -> bytes:
    """Encodes a number as big-endian, 32 bits; a sequence as attributes."""
    if isinstance(value, int):
        value = struct.pack("!I", value & 0xFFFF_FFFF)
    elif isinstance(value, str):
        value = value.encode() + b"\0"
    elif not isinstance(value, bytes):
        kind, value = kind | _NESTED, b"".join(value)
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(*values: int | str | bytes | Sequence[bytes] | None) -> list[bytes]:
    """The values as attributes, numbered from 1; None is left out, but counted."""
    return [_attribute(kind, value) for kind, value in enumerate(values, 1) if value is not None]


def _expression(name: str, *values: int | bytes | str | Sequence[bytes] | None) -> bytes:
    return _attribute(1, _attributes(name, _attributes(*values)))


def _gone(table: str) -> list[_Message]:
    """Removes the table; makes it first, because a missing table cannot be removed."""
    return [_new_table(table), (f"table {table}", _DELETE_TABLE, 0, b"".join(_attributes(table)))]


def _new_table(table: str) -> _Message:
    return f"table {table}", _NEW_TABLE, _CREATE, b"".join(_attributes(table))


def _new_chain(table: str, chain: Chain) -> _Message:
    hook = _attributes(_HOOKS[chain.hook], chain.priority)
    attributes = _attributes(table, None, chain.name, hook, _ACCEPT, None, chain.kind)
    return f"chain {chain.name}", _NEW_CHAIN, _CREATE, b"".join(attributes)


def _new_rule(
    table: str, chain: Chain, words: Sequence[Word], numbers: Iterator[int], *, flags: int = _CREATE | _APPEND
) -> Iterator[_Message]:
    """The messages that make a rule; the sets for its lookups come first."""
    about = f"rule `{' '.join(word[0] for word in words)}` in chain {chain.name}"
    expressions, comment = list[bytes](), None
    if {word[0] for word in words} & _OF_TCP:
        expressions += [_expression("meta", _FIRST, _L4PROTO), _compared(_TCP)]
    if {word[0] for word in words} & _OF_IPV4:
        expressions += [_expression("meta", _FIRST, _NFPROTO), _compared(bytes([_IPV4]))]
    for name, *values in words:
        if name == "comment":
            text = str(values[0]).encode() + b"\0"
            comment = bytes([0, len(text)]) + text
        elif name in _LOOKED_UP:
            load, kind, packed = _LOOKED_UP[name]
            number, elements = next(numbers), [packed(each) for each in values[0]]
            yield from _new_set(about, table, number, kind, elements)
            expressions += [load, _expression("lookup", "__set%d", _FIRST, None, number)]
        else:
            expressions += _EXPRESSIONS[name](*values)
    attributes = _attributes(table, chain.name, None, expressions, None, None, comment)
    yield about, _NEW_RULE, flags, b"".join(attributes)


def _new_set(
    about: str, table: str, number: int, kind: tuple[int, int], elements: Sequence[bytes]
) -> Iterator[_Message]:
    anonymous, constant = 1, 2
    made = _attributes(table, "__set%d", anonymous | constant, *kind, None, None, None, None, number)
    yield about, _NEW_SET, _CREATE, b"".join(made)
    listed = [_attribute(1, _attributes([_attribute(1, element)])) for element in elements]
    yield about, _NEW_ELEMENTS, _CREATE, b"".join(_attributes(table, "__set%d", listed, number))


def _loaded(base: int, offset: int, size: int) -> bytes:
    return _expression("payload", _FIRST, base, offset, size)


def _compared(data: bytes, how: int = _EQUAL) -> bytes:
    return _expression("cmp", _FIRST, how, [_attribute(1, data)])


def _masked(mask: bytes) -> bytes:
    return _expression("bitwise", _FIRST, _FIRST, len(mask), [_attribute(1, mask)], [_attribute(1, bytes(len(mask)))])


def _set_register(register: int, data: bytes) -> bytes:
    return _expression("immediate", register, [_attribute(1, data)])


def _verdict(code: int) -> bytes:
    return _expression("immediate", _VERDICT, [_attribute(2, [_attribute(1, code)])])


def _port(number: int) -> bytes:
    return struct.pack("!H", number)


def _network(text: str) -> bytes:
    """The bytes of a network such as `10.75.0.0/24` that are compared."""
    address, _, bits = text.partition("/")
    return socket.inet_aton(address)[: int(bits) // 8]


def _translation(kind: int, address: str, port: int | None = None) -> list[bytes]:
    """`kind`: 0 translates the source, 1 the destination."""
    said = [_set_register(_FIRST, socket.inet_aton(address))]
    if port is not None:
        said.append(_set_register(_SECOND, _port(port)))
    return [*said, _expression("nat", kind, _IPV4, _FIRST, None, None if port is None else _SECOND)]


_LOOKED_UP: Mapping[str, tuple[bytes, tuple[int, int], Callable[[object], bytes]]] = {
    "saddr": (_loaded(_NETWORK, 12, 4), _ADDRESS, lambda address: socket.inet_aton(str(address))),
    "daddr": (_loaded(_NETWORK, 16, 4), _ADDRESS, lambda address: socket.inet_aton(str(address))),
    "dport": (_loaded(_TRANSPORT, 2, 2), _PORT, lambda port: _port(int(str(port)))),
}
_EXPRESSIONS: Mapping[str, Callable[..., list[bytes]]] = {
    "tcp": list,
    "to": lambda network: [_loaded(_NETWORK, 16, len(_network(network))), _compared(_network(network))],
    "first to": lambda address: [_expression("ct", _FIRST, 20, bytes([0])), _compared(socket.inet_aton(address))],
    "doff": lambda words: [_loaded(_TRANSPORT, 12, 1), _masked(b"\xf0"), _compared(bytes([words << 4]))],
    "flags": lambda mask, value: [_loaded(_TRANSPORT, 13, 1), _masked(bytes([mask])), _compared(bytes([value]))],
    "data": lambda at, size, same, value: [
        _loaded(_TRANSPORT, at // 8, size // 8),
        _compared(value.to_bytes(size // 8, "big"), _EQUAL if same else _UNEQUAL),
    ],
    "chance": lambda millionths: [
        _expression("numgen", _FIRST, 1_000_000, 1),
        _expression("byteorder", _FIRST, _FIRST, 1, 4, 4),  # numbers are compared in the order of their bytes
        _compared(struct.pack("!I", millionths), _LESS),
    ],
    "turn": lambda modulus: [_expression("numgen", _FIRST, modulus, 0), _compared(bytes(4))],
    "mark": lambda mark: [_expression("ct", _FIRST, 3), _compared(struct.pack("=I", mark))],
    "set mark": lambda mark: [_set_register(_FIRST, struct.pack("=I", mark)), _expression("ct", None, 3, None, _FIRST)],
    "counter": lambda: [_expression("counter")],
    "redirect": lambda port: [_set_register(_FIRST, _port(port)), _expression("redir", _FIRST, None, 2)],
    "dnat": lambda address, port=None: _translation(1, address, port),
    "snat": lambda address: _translation(0, address),
    "reset": lambda: [_expression("reject", 1)],
    "drop": lambda: [_verdict(_DROP)],
    "accept": lambda: [_verdict(_ACCEPT)],
}
_OF_TCP = {"tcp", "dport", "doff", "flags", "data", "reset"}
_OF_IPV4 = {"saddr", "daddr", "to", "first to"}


def _kernel() -> socket.socket:
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER)
    kernel.settimeout(_WITHIN_S)
    kernel.bind((0, 0))
    return kernel


def _answers(kernel: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """(type, flags, sequence number, payload) of each message."""
    while True:
        data = kernel.recv(_BUFFER_BYTES)
        while data:
            size, kind, flags, sequence, _ = struct.unpack_from("=IHHII", data)
            yield kind, flags, sequence, data[16:size]
            data = data[size + -size % 4 :]


def _message(kind: int, flags: int, sequence: int, body: bytes, *, family: int = _INET, resource: int = 0) -> bytes:
    head = struct.pack("=IHHII", 20 + len(body), kind, _REQUEST | flags, sequence, 0)
    return head + struct.pack("!BBH", family, 0, resource) + body


def _transact(messages: Sequence[_Message]) -> None:
    """Applies all messages, in this order, or none. Only the last one requests an acknowledgement."""
    last = len(messages)
    batch = [_message(_BATCH_BEGIN, 0, 0, b"", family=0, resource=_SUBSYSTEM)]
    for number, (_, kind, flags, body) in enumerate(messages, 1):
        batch.append(_message(_SUBSYSTEM << 8 | kind, flags | (_ACK if number == last else 0), number, body))
    batch.append(_message(_BATCH_END, 0, last + 1, b"", family=0, resource=_SUBSYSTEM))
    with _kernel() as kernel:
        kernel.send(b"".join(batch))
        for kind, _, sequence, data in _answers(kernel):
            assert kind == _ERROR, kind
            refusal = _refusal(data, f" ({messages[sequence - 1][0] if 0 < sequence <= last else 'the transaction'})")
            if refusal.errno:
                raise refusal
            if sequence == last:
                return


class _ChangedError(Exception):
    """The rules changed while they were read."""


def _read(work: Callable[[socket.socket], T]) -> T:
    """Reads one generation of the rules; tries again if other processes change the rules meanwhile."""
    with _kernel() as kernel:
        for _ in range(_ATTEMPTS):
            try:
                before = _generation(kernel)
                seen = work(kernel)
                if _generation(kernel) == before:
                    return seen
            except _ChangedError:
                continue
    raise OSError(errno.EINTR, f"the packet rules changed {_ATTEMPTS} times while they were read")


def _generation(kernel: socket.socket) -> bytes:
    kernel.send(_message(_SUBSYSTEM << 8 | _GET_GENERATION, 0, 1, b"", family=0))
    kind, _, _, data = next(_answers(kernel))
    if kind == _ERROR:
        raise _refusal(data)
    return _parsed(data[4:])[1]


def _refusal(data: bytes, about: str = "") -> OSError:
    number = -struct.unpack_from("=i", data)[0]
    return OSError(number, os.strerror(number) + about)


def _dump(kernel: socket.socket, kind: int, family: int, body: bytes = b"") -> Iterator[tuple[int, dict[int, bytes]]]:
    found, changed = list[tuple[int, dict[int, bytes]]](), False
    kernel.send(_message(_SUBSYSTEM << 8 | kind, _DUMP, 1, body, family=family))
    for said, flags, _, data in _answers(kernel):
        changed = changed or bool(flags & _INTERRUPTED)
        if said == _ERROR:
            raise _refusal(data)
        if said == _DONE:
            break
        found.append((data[0], _parsed(data[4:])))
    if changed:
        raise _ChangedError
    return iter(found)


# reading


def _pairs(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        size, kind = struct.unpack_from("=HH", data)
        yield kind & _KIND, data[4:size]
        data = data[size + -size % 4 :]


def _parsed(data: bytes) -> dict[int, bytes]:
    return dict(_pairs(data))


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _seen(kernel: socket.socket, family: int, rule: Mapping[int, bytes]) -> SeenRule:
    table, chain, drops, packets = _text(rule[1]), _text(rule[2]), False, None
    found = {field: set[bytes]() for field in _SIZES}
    loaded = None
    for _, each in _pairs(rule.get(4, b"")):
        expression = _parsed(each)
        name, what = _text(expression[1]), _parsed(expression.get(2, b""))
        match name:
            case "meta":
                loaded = "protocol" if _number(what[2]) == _L4PROTO else None
                continue
            case "payload":
                loaded = _FIELDS.get((_number(what[2]), _number(what[3]), _number(what[4])))
                continue
            case "lookup" if loaded:
                found[loaded] |= _elements(kernel, family, table, _text(what[1]))
            case "cmp" if loaded and _number(what[2]) == _EQUAL:
                found[loaded].add(_parsed(what[3])[1])
            case "counter":
                packets = _number(what[2])
            case "reject":
                drops = True
            case "immediate" if 2 in (verdict := _parsed(what[2])):
                drops = drops or _number(_parsed(verdict[2])[1]) == _DROP
        loaded = None
    for field, values in found.items():
        values -= {value for value in values if len(value) != _SIZES[field]}
    drops = drops and (not found["protocol"] or _TCP in found["protocol"])
    addresses = frozenset(socket.inet_ntoa(address) for address in found["address"])
    comment = _commented(rule.get(7, b""))
    return SeenRule(table, chain, comment, packets, drops, addresses, frozenset(map(_number, found["port"])))


def _elements(kernel: socket.socket, family: int, table: str, name: str) -> set[bytes]:
    try:
        sets = list(_dump(kernel, _GET_ELEMENTS, family, b"".join(_attributes(table, name))))
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise _ChangedError from None
        raise
    listed = [element for _, one in sets for _, element in _pairs(one.get(3, b""))]
    return {_parsed(_parsed(element)[1])[1] for element in listed}


def _commented(data: bytes) -> str:
    """A rule's comment. Type (0: comment), length and value alternate; type and length have one byte each."""
    while data and data[0] != 0:
        data = data[2 + data[1] :]
    return _text(data[2 : 2 + data[1]]) if data else ""
