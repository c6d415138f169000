"""Files that may be no experiment, by number: the same number is always the same file."""

import json
import random

import places
from hashidrill.core.experiment.library import complete, list_bases, list_experiments, read_experiment

CORPUS = places.MALFORMED
WORDS = [
    "",
    "0s",
    "-1s",
    "10s",
    "50/s",
    "5",
    "all",
    "consul:leader",
    "host:",
    "kv-writes",
    "noop",
    "disk.latency",
    "%",
    "<<",
    "*a",
    "&a",
    "!x",
    "kv-writes.errors < 1%",
    "known_issue",
    "hypothesis",
    "\u2028",
    "true",
    "x" * 300,
    "fault",
    "with",
    "load",
    "client-1",
    "1.22.2",
    "999999h",
    "1e309",
    "-0",
    "0x7fffffffffffffffffff",
    "\ud83d",
    "{url}",
    "/etc/passwd",
    "ops",
    "for",
    "at",
    "script",
    "999999999999999999GB",
    "4000GB",
    "\u0000",
    "None",
    "a.b < 1 for 1s",
]
SIGNS = "ab1:-?,[]{}#&*!|>'\"%@` \n\t~<=\\./\r\u0085\u2029é\x00\x1b"
DEEP = 40


def seeds() -> list[str]:
    """Good experiments, as they are and with what they extend, and the malformed ones that were thought of."""
    whole = [complete(read_experiment(path)) for path in list_experiments()]
    files = [*list_experiments(), *list_bases(), *sorted(CORPUS.glob("*.yaml"))]
    return [*whole, *(path.read_text() for path in files)]


def good_data() -> list[dict]:
    return [read_experiment(path).data for path in list_experiments()]


def generated(number: int, texts: list[str], documents: list[dict]) -> tuple[bytes, bool]:
    """The file, and whether it is JSON, so that the schema can judge it too."""
    chance = random.Random(number)
    make = (_broken_data, _broken_data, _broken_lines, _broken_text, _broken_bytes, _heap)[number % 6]
    return make(chance, texts, documents)


def _broken_data(chance, _texts, documents):
    data = chance.choice(documents)
    for _ in range(chance.randint(1, 4)):
        data = _mutated(chance, data, chance.choice(list(_paths(data))))
    return json.dumps(data, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass"), True


def _paths(data, prefix=()):
    yield prefix
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from _paths(value, (*prefix, key))


def _mutated(chance, data, path):
    """A copy in which the value at `path` was deleted, replaced, given a sibling, doubled, renamed, or wrapped."""
    if not path:
        return data if chance.random() < 0.9 else _junk(chance)
    head, *rest = path
    copy = dict(data) if isinstance(data, dict) else list(data)
    how = chance.randrange(6)
    if rest:
        copy[head] = _mutated(chance, data[head], tuple(rest))
    elif how == 0:
        del copy[head]
    elif how == 1:
        copy.update({_key(chance): _junk(chance)}) if isinstance(copy, dict) else copy.insert(head, _junk(chance))
    elif how == 2:
        copy[head] = [copy[head], _junk(chance)]
    elif how == 3 and isinstance(copy, dict):
        copy[_key(chance)] = copy.pop(head)
    elif how == 4 and isinstance(copy, list):
        copy += copy * chance.choice([1, 40])
    else:
        copy[head] = _junk(chance)
    return copy


def _key(chance):
    return (
        chance.choice(WORDS) if chance.random() < 0.5 else "".join(chance.choices("abz-_.1 é", k=chance.randrange(9)))
    )


def _junk(chance, depth=0):
    numbers = [0, -1, 1, 7, 2**31, -(2**63), 2**64, 10**30, 0.0, -0.5, 1e300, 5e-324, chance.random()]
    sort = chance.randrange(6) if depth < 4 else 0
    if sort == 4:
        return [_junk(chance, depth + 1) for _ in range(chance.randrange(4))]
    if sort == 5:
        return {_key(chance): _junk(chance, depth + 1) for _ in range(chance.randrange(4))}
    return chance.choice([None, True, False, _key(chance)] if sort < 3 else numbers)


def _broken_lines(chance, texts, _documents):
    """Lines that were dropped, doubled, moved, indented, or come from another file."""
    lines, others = chance.choice(texts).splitlines(), chance.choice(texts).splitlines() or [""]
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(lines) + 1)
        how = chance.randrange(5)
        if how == 0:
            del lines[at : at + chance.randint(1, 3)]
        elif how == 1:
            lines[at:at] = lines[at : at + 3] * chance.choice([1, 1, 200])
        elif how == 2:
            lines.insert(at, chance.choice(others))
        elif how == 3:
            lines.insert(at, " " * chance.randrange(DEEP) + chance.choice(WORDS) + ": " + chance.choice(WORDS))
        else:
            lines[at : at + 1] = [" " * chance.randrange(6) + line for line in lines[at : at + 1]]
    return "\n".join(lines).encode("utf-8", "surrogatepass"), False


def _broken_text(chance, texts, _documents):
    text = chance.choice(texts)
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(text) + 1)
        new = chance.choice([*WORDS, "".join(chance.choices(SIGNS, k=chance.randrange(12)))])
        text = text[:start] + new + text[start + chance.choice([0, 1, 3, 60]) :]
    return text.encode("utf-8", "surrogatepass"), False


def _broken_bytes(chance, texts, _documents):
    raw = bytearray(chance.choice(texts).encode())
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(raw) + 1)
        how = chance.randrange(4)
        if how == 0:
            raw[at:] = b""
        elif how == 1:
            raw[at:at] = chance.randbytes(chance.choice([1, 4, 200]))
        elif how == 2 and at < len(raw):
            raw[at] ^= 1 << chance.randrange(8)
        else:
            del raw[at : at + chance.randint(1, 20)]
    encoding = chance.randrange(20)
    if encoding == 0:
        return raw.decode("utf-8", "replace").encode("utf-16"), False
    return (b"\xef\xbb\xbf" if encoding == 1 else b"") + bytes(raw), False


def _heap(chance, _texts, _documents):
    """What never was an experiment: signs, brackets without end, anchors that name each other."""
    sort = chance.randrange(5)
    if sort == 0:
        return "".join(chance.choices(SIGNS, k=chance.randrange(200))).encode(), False
    if sort == 1:
        part = chance.choice(["[", "{a: ", "- ", "? ", "&a [", "!!map {", "'", '"', "|\n ", "*a ", ":", "a: ", "%"])
        return (part * chance.choice([1, 50, 5000])).encode(), False
    if sort == 2:
        layers = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * chance.randint(1, 9))}]\n" for n in range(1, 12)]
        return ("a0: &a0 [lol]\n" + "".join(layers)).encode(), False
    if sort == 3:
        return chance.randbytes(chance.choice([0, 1, 10, 3000])), False
    head = "apiVersion: hashidrill/v1\nkind: Experiment\n"
    return (head + json.dumps(_junk(chance))).encode("utf-8", "surrogatepass"), False
