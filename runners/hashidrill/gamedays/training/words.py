"""Trainees' words for the parts of a datacenter and their troubles. `disk*` matches any ending."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hashidrill.core.units import Duration
from hashidrill.gamedays.training.scenario import HOST, Diagnosis


def _table(text: str) -> dict[str, list[str]]:
    """Rows of `name: word, phrase of words, ...`; lines with more indentation continue a row."""
    rows = dict(row.split(": ", 1) for row in text.replace("\n        ", " ").strip().splitlines())
    return {name.strip(): [word.strip() for word in words.split(",")] for name, words in rows.items()}


COMPONENTS = _table(
    """
    disk: disk*, storage, volume*, fsync*, fdatasync*, io, i/o, iops, ssd*, nvme, ebs, drive*, filesystem*, file
        system*, fs, block device*, data dir*, data partition, hdd, df, disc, discs, raft log
    network: network*, networking, link*, nic*, cable*, packet*, network switch, the switch, wire*, uplink*,
        interface*, connectivity, partition*, netsplit, split, ethernet, eth0, rack*, firewall*, no connection,
        nic, % loss, loss in
    cpu: cpu*, processor*, cores
    memory: memory, ram, oom*, swap*, heap, leak*
    clock: clock*, ntp, time skew
    database: raft.db, raft db, raftdb, boltdb, bolt*, bbolt, freelist*, free list*, free page*, freepage*, raft
        database, raft store, log store*
    streaming: streaming*, stream*, use_streaming_backend, subscri*, publish*, event buffer*, event publisher,
        event stream*
    locks: lock*, lease*, claim*
    retries: retr*, re-send*, resend*, again and again, resubmi*, re-tr*, repeat*, attempted again, trying again,
        tries again, try again, attempts, sends each one again, sent again, sends again, each one again, again up
        to, sending again
    allocations: alloc*, task*, placement*, scheduler*
    """
)
TROUBLES = _table(
    """
    slow: slow*, sluggish, latenc*, stall*, late, degrad*, delay*, takes ages, take ages, lag*, takes forever,
        crawl*, long time, too long, takes long, waiting for, waits for, wait for, dying, waits on
    full: full, no space*, out of space, enospc, ran out, run out, runs out, filled*, no free space, no room, 0
        bytes, 0 b free, exhausted, no disk space, out of disk, no more free, no more space, no free, no more
        room, at 100%, at 100 %, is 100%, says 100%, 100% on
    lossy: loss*, lossy, loses, losing, lose, lost, drop*, retransm*, flapping, flaky, discard*, throws packets,
        throws away, throwing packets
    cut off: partition*, cut off, cutoff, cut from, cut, unreachable, isolat*, disconnect*, unplugged, separat*,
        split*, netsplit, offline, no route, cannot reach, can't reach, lost contact, island*, can't be reached,
        cannot be reached, can't talk, can talk, no connection, lost their network, lost its network, no network,
        lost the network, is down, powered off, power is off, not reachable, no connectivity, switch port*, not
        reach*
    frozen: frozen, froze, freez*, stopped, paused, suspend*, sigstop*, stop signal, hung, state t, does not run,
        doesn't run, not scheduled, stuck, stopp*, kill -stop, halt*, stoped, kill -cont, signal cont, shows t,
        isn't running, not running, process hang*, agent hang*, consul hang*, sigcont, needs a cont
    bloated: bloat*, huge, oversized, grown, fragment*, freelist*, free page*, free list*, too big, empty pages,
        free space, free pages
    half-open: half-open, half open, halfopen, accept*, deliver*, swallow*, black-hol*, blackhol*, no bytes, no
        data, no answer*, no response*, never answer*, never repl*, no repl*, dead air, nothing comes back,
        nothing back, silent*, never arriv*, never gets, never comes, never get, no reply, without any answer,
        never sends, never send, vanish*, then silence, any answer arrive, eating the data, into a void, hangs
        forever, then hangs
    sealed: seal*, not unsealed, never unsealed, needs unseal*, unsealing, was not unsealed, unseal*, no one has
    failing: black hole*, blackhole*, black-hole*, fails everything, fails all*, fails every*, every* fail*, all
        alloc* fail*, alloc* fail*, task* fail*, read-only, readonly, read only, permission*, everything fails,
        eats*, swallow*, fails instantly, fail* at once, fail* immediately, dies within, die within, dies at once,
        can't create, cannot create, die at once, dies immediately, dies instantly, fails within, none of them
        ever start*, fails each, fail each, never start*, none ever start*, fails 100%, die in a second, dies in a
        second, mounted ro, instant failure*, instantly fail*
    overloaded: overload*, queue*, backlog*, pile*, waits in line, congest*, metastable, storm*, herd, amplif*,
        saturat*, flood*, hammer*, swamp*, too many, too much, stampede, drown*, waiting in line, too many
        request*, in line, can't keep up, cannot keep up, woken
    crashed: crash*, killed, died, dead, exited, restart loop, powered off, power is off, no ping, lost power,
        host is down
    """
)


MOST_WORDS = 60
"""A diagnosis is a sentence or two; more is a list of guesses."""
COMPONENT, TROUBLE, WHERE = "which component", "what is wrong with it", "on which host"
ANOTHER = "another part of the cause"
_DOES_NOT = frozenset({"isn't", "isnt", "aren't", "wasn't", "weren't", "doesn't", "don't", "didn't", "hasn't"})
_NEGATIONS = (
    frozenset({"not", "no", "without", "neither", "nor", "never", "rather", "instead", "than", "compared", "unlike"})
    | _DOES_NOT
)
_VERBS = frozenset({"is", "are", "was", "were", "be", "does", "do", "did", "has"})
"""Before a `not`, they negate the words before them as well: "the network is not the problem"."""
_SUBJECT_WORDS = 4
_WELL = frozenset({"ok", "okay", "fine", "healthy", "innocent", "good", "alike", "normal", "idle", "low", "unaffected"})
"""A clause with one of these blames nothing."""
_SENTENCE = re.compile(r"[.;!?](?:\s|$)|\n")
_CLAUSE = re.compile(
    r":\s|\s-+\s|,|[()]|\b(?:but|while|although|though)\b"
    r"|\band(?= (?:not|never|is|isn't|was|wasn't|did|didn't|does|doesn't|has|nobody|no)\b)"
)
_EFFECT = re.compile(r"\b(?:so|therefore|thus|which|causing|making|leading to|as a result)\b|[-=]>")
"""The words that follow a match describe a consequence."""
_CAUSE = re.compile(r"\b(?:because|since|due to|caused by|as the|as its)\b|<-")
"""The words before a match describe a consequence."""
_TOKEN = re.compile(r"[\w./'%-]+\*?|&")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s?(us|µs|ms|milliseconds?|s|sec|secs|seconds?|m|min|minutes?)\b")
_JOINS = frozenset(
    {
        ",",
        "&",
        "and",
        "or",
        "then",
        "vs",
        "versus",
        "/",
        "also",
        "plus",
        "both",
        "the",
        "on",
        "of",
        "host",
        "server",
        "servers",
    }
)
_ALTERNATIVES = frozenset({"or", "maybe", "perhaps", "possibly", "otherwise", "else", "alternatively", "either"})
_ALIKE = frozenset({"too", "also", "likewise", "same", "similarly"})
"""In a clause about a host, these words blame it like the host before it."""
_HEDGES = (
    (r"\bif not\b|\b(?:could|might|may)(?: also)? be\b", "or"),
    (r"\bas well as\b", "and"),
    (r"\bas well\b", "too"),
)
_EVERY = frozenset({"every", "each", "all", "any", "some", "one"})
_KINDS = frozenset({"host", "server", "node", "machine", "agent", "client", "member", "them"})
_FILL = frozenset({"of", "the", "our", "these", "two", "three", "four", "five", "consul", "nomad", "vault"})
_ROLES = frozenset({"leader", "follower", "active", "standby", "client", "non-leader"})
_VOCABULARY = {**COMPONENTS, **TROUBLES}
_STATES = {
    tuple(part.rstrip("*") for part in word.split()[:2])
    for row in TROUBLES.values()
    for word in row
    if word.split()[0] in _NEGATIONS
}
"""`no space`, `not unsealed`: these deny nothing, they are the trouble."""
_OUTRIGHT = frozenset({"full", "cut off", "frozen", "sealed", "crashed"})
"""Troubles that resemble no others: named instead of the true trouble, they contradict it."""
_NEAR = 2.0
"""A time within this factor of the true one counts as the same finding, because measurements include queueing."""


@dataclass(frozen=True)
class Said:
    """The judgement of a diagnosis. `missing`: parts that were left out; `wrong`: contradictions of the truth."""

    right: bool
    missing: tuple[str, ...] = ()
    """Parts about which the diagnosis says nothing: to tell the trainee reveals nothing."""
    wrong: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    """Parts that the truth has and the diagnosis does not, for the score card."""
    too_long: bool = False


@dataclass(frozen=True)
class _Text:
    """A diagnosis as clauses of words: the clauses that state a cause, and all clauses."""

    causes: list[list[str]] = field(default_factory=list)
    clauses: list[list[str]] = field(default_factory=list)
    amounts_s: list[float] = field(default_factory=list)

    def says(self, words: Iterable[str], *, cause: bool = False) -> bool:
        phrases = [_tokens(word) for word in words]
        return any(_says(clause, phrases) for clause in (self.causes if cause else self.clauses))


def judged(
    text: str, truth: Diagnosis, *, sick: Mapping[str, str] | None = None, known: Mapping[str, str] | None = None
) -> Said:
    """Judges a diagnosis. `sick` maps the hidden fault's hosts to their addresses, and `known` maps all hosts."""
    sick, known = sick or {}, {**(known or {}), **(sick or {})}
    said = _read(text)
    component, trouble = _expanded(truth.component, COMPONENTS), _expanded(truth.trouble, TROUBLES)
    slow = bool(truth.around) and any(_close(each, float(Duration(truth.around))) for each in said.amounts_s)
    also = [[*words, *(known[word] for word in words if known.get(word))] for words in truth.also]
    short = [ANOTHER for words in also if not said.says(words)]
    missing: list[str] = []
    wrong = [word for word in truth.never if said.says(_expanded([word], _VOCABULARY), cause=True)]
    for name, words, held, table in (
        (COMPONENT, component, said.says(component), COMPONENTS),
        (TROUBLE, trouble, slow or said.says(trouble), TROUBLES),
    ):
        own = {*truth.component, *truth.trouble, *truth.beside}
        guess = held and _is_guess(said, words, [row for key, row in table.items() if key not in own])
        if not words or (held and not guess):
            continue
        short.append(name)
        if guess:
            missing.append(name)
            continue
        others = [key for key, row in table.items() if said.says(row, cause=True)]
        missing += [] if others else [name]
        if table is TROUBLES:
            others = [key for key in others if key in _OUTRIGHT]
        wrong += [key for key in others if key not in own]
    if truth.where:
        answer = _where(said, truth.where, sick, known, (component, trouble))
        if answer != _HERE:
            short.append(WHERE)
            (missing if answer == _NOWHERE else wrong).append(WHERE if answer == _NOWHERE else answer)
    too_long = sum(map(len, said.clauses)) > MOST_WORDS
    right = not short and not wrong and not too_long
    return Said(right, tuple(missing), tuple(dict.fromkeys(wrong)), tuple(dict.fromkeys(short)), too_long)


_HERE, _NOWHERE = "here", ""


def _is_guess(said: _Text, words: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether the true words are one of several alternatives: `slow or full`."""
    phrases, wrong = [_tokens(word) for word in words], [[_tokens(word) for word in row] for row in others]
    for clause in said.causes:
        offered = [part for part in _alternatives(clause) if part]
        right = [_says(part, phrases) for part in offered]
        if any(right) and any(
            _says(part, row) for part, is_right in zip(offered, right, strict=True) if not is_right for row in wrong
        ):
            return True
    return False


def _alternatives(clause: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for token in _affirmed(clause):
        if token in _ALTERNATIVES:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _where(
    said: _Text,
    wanted: Sequence[str],
    sick: Mapping[str, str],
    known: Mapping[str, str],
    blame: tuple[Sequence[str], Sequence[str]],
) -> str:
    """`_HERE`; `_NOWHERE` if no place, or more places than are sick, are named; otherwise the wrong host.

    `blame` are the words for the component and for its trouble.
    """
    names = {alias: name for name, address in known.items() for alias in (name, address) if alias}
    own = {names.get(word, word) for word in _hosts_in(wanted, sick)}
    most = max(1, len(sick))
    elsewhere = ""
    for clauses in (said.causes, said.clauses):
        chains = list(_chains(clauses, names, blame))
        blamed = set().union(*_blamed(said.causes, names, blame[1]))
        within = set().union(*(chain for chain in chains if chain <= own))
        if len(blamed) > most or any(_is_every(clause, names, blame) for clause in said.causes):
            return _NOWHERE
        if within and (HOST not in wanted or len(sick) < 2 or within >= {*sick}):
            return _HERE
        wrong = (min(chain) for chain in chains if len(chain) <= most and not chain & own and not within)
        elsewhere = elsewhere or next(wrong, "")
        roles = [word for word in wanted if word != HOST and word not in names]
        if not chains and said.says(roles, cause=clauses is said.causes):
            return _NOWHERE if len(_roles(clauses)) > 1 else _HERE
        if chains:
            break
    return elsewhere


def _is_every(clause: Sequence[str], names: Mapping[str, str], blame: tuple[Sequence[str], Sequence[str]]) -> bool:
    """`the disk of every host is slow`, `one of the servers`: a component, its trouble, and no place."""
    component, trouble = ([_tokens(word) for word in words] for words in blame)
    tokens = [part for token in _affirmed(clause) for part in _parts(token)]
    placed = any(token in names or any(_same(token, role) for role in _ROLES) for token in tokens)
    if placed or (component and not _says(clause, component)) or not _says(clause, trouble):
        return False
    kinds = [*_KINDS, *(phrase[0] for phrase in component if len(phrase) == 1)]
    for at, token in enumerate(tokens):
        after = next((each for each in tokens[at + 1 :] if each not in _FILL), "")
        if token in _EVERY and any(_same(after, kind) for kind in kinds):
            return True
    return False


def _roles(clauses: Iterable[Sequence[str]]) -> set[str]:
    """Roles of servers that are blamed together: `the leader or a follower`, `leader's and followers'`."""
    tokens = [part for clause in clauses for token in (*_affirmed(clause), ",") for part in _parts(token)]
    found: set[str] = set()
    joined = False
    for token in tokens:
        roles = {role for role in _ROLES if _same(token, role)}
        if roles and (joined or not found):
            found |= roles
        elif not roles and found:
            joined = token in {"or", "and", "maybe", "perhaps", "either"} or (
                joined and token in {"a", "the", "any", ","}
            )
    return found


def _blamed(clauses: Iterable[Sequence[str]], names: Mapping[str, str], trouble: Sequence[str]) -> Iterator[set[str]]:
    """The hosts named in each clause that states the trouble, and the hosts in a later clause that says "too"."""
    phrases, after = [_tokens(word) for word in trouble], False
    for clause in clauses:
        said = _affirmed(clause)
        hosts = {names[part] for token in said for part in _parts(token) if part in names}
        if _says(clause, phrases) or (after and _ALIKE & {*said}):
            after = True
            if len(hosts) == 1 or _ALIKE & {
                *said
            }:  # of several hosts, one may be blamed while another waits for it: `_chains` decides
                yield hosts


def _chains(
    clauses: Iterable[Sequence[str]], names: Mapping[str, str], blame: tuple[Sequence[str], Sequence[str]]
) -> Iterator[set[str]]:
    """Hosts in one list, `consul-1, consul-2 or 10.73.0.13`, or alternatives joined by "or".

    The trouble may be between them: `consul-1 disk slow consul-2 disk slow`.
    """
    component, trouble = ([[part] for word in words for part in _tokens(word)] for words in blame)
    stream = [token for clause in clauses for token in (*_affirmed(clause), ",")]
    chain: set[str] = set()
    broken, offered, told = False, False, False
    for at, word in enumerate(stream):
        parts = {names[part] for part in _parts(word) if part in names}
        if parts:
            if chain and broken and not offered:
                yield chain
                chain = set()
            chain |= parts
            broken = offered = told = False
            continue
        offered = offered or word in _ALTERNATIVES
        told = told or _says([word], trouble)
        joins = word in _JOINS or _is_range(stream, at, names) or _says([word], component) or _says([word], trouble)
        broken = broken or not joins or (told and word == ",")
    if chain:
        yield chain


def _is_range(stream: Sequence[str], at: int, names: Mapping[str, str]) -> bool:
    """`consul-1 to consul-3`, and not `from client-1 to consul-3`."""
    before, here, after = stream[max(0, at - 2) : at], stream[at], stream[at + 1 : at + 2]
    between = {*after, *before[-1:]} <= {*names} and not {"from", "between"} & {*before}
    return here in {"to", "till", "through"} and len(before) > 0 and between


def _parts(token: str) -> list[str]:
    return re.split(r"/|'s$|s'$", token)


def _read(text: str) -> _Text:
    """The words in lower case; amounts are converted to seconds, for texts like "its fsync takes 600 ms"."""
    text = text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    text = re.sub(r"\b(?:core|memory|heap) (?:dump|file)", "dump", text).replace("full of", "with much")
    for pattern, word in _HEDGES:
        text = re.sub(pattern, word, text)
    result = _Text()
    for sentence in _SENTENCE.split(text):
        before, because, after = _halves(sentence)
        for part, is_cause in ((before, not because), (after, True)):
            cause, *effects = _EFFECT.split(part)
            for number, segment in enumerate((cause, *effects)):
                for clause in map(_tokens, _CLAUSE.split(segment)):
                    if clause:
                        result.clauses.append(clause)
                        if is_cause and not number:
                            result.causes.append(clause)
        result.amounts_s.extend(_amounts(sentence))
    if not result.causes:
        result.causes.extend(result.clauses)
    return result


def _halves(sentence: str) -> tuple[str, bool, str]:
    found = _CAUSE.search(sentence)
    return (sentence, False, "") if found is None else (sentence[: found.start()], True, sentence[found.end() :])


def _amounts(text: str) -> Iterator[float]:
    for number, unit in _AMOUNT.findall(text):
        scale = (
            1e-6 if unit in {"us", "µs"} else 1e-3 if unit.startswith(("ms", "mil")) else 60 if unit[0] == "m" else 1
        )
        yield float(number) * scale


def _close(value_s: float, true_s: float) -> bool:
    return true_s / _NEAR <= value_s <= true_s * _NEAR


def _expanded(words: Iterable[str], table: Mapping[str, Sequence[str]]) -> list[str]:
    return [each for word in words for each in table.get(word, [word])]


def _hosts_in(words: Iterable[str], hosts: Mapping[str, str]) -> list[str]:
    return [each for word in words for each in ([*hosts, *hosts.values()] if word == HOST else [word])]


def _tokens(text: str) -> list[str]:
    found = (token if token.endswith("*") else token.strip("./'-") for token in _TOKEN.findall(text.lower()))
    return [token for token in found if token]


def _affirmed(tokens: Sequence[str]) -> list[str]:
    """The words that a clause blames: those before its first negation, or none if it reports that all is well."""
    for at, token in enumerate(tokens):
        before = tokens[at - 1] if at else ""
        if token in _WELL and before not in _NEGATIONS:
            return []
        if token in _NEGATIONS and not _is_state(tokens[at : at + 2]):
            of_its_subject = at <= _SUBJECT_WORDS and (token in _DOES_NOT or before in _VERBS)
            return [] if of_its_subject else list(tokens[:at])
    return list(tokens)


def _is_state(pair: Sequence[str]) -> bool:
    return any(pair[0] == word and pair[-1].startswith(state) for word, state in _STATES)


def _says(clause: Sequence[str], phrases: Iterable[Sequence[str]]) -> bool:
    """A phrase that denies something itself (`no space`) is looked for in the whole clause."""
    return any(_occurs(clause if _NEGATIONS & {*phrase} else _affirmed(clause), phrase) for phrase in phrases)


def _occurs(tokens: Sequence[str], phrase: Sequence[str]) -> bool:
    length = len(phrase)
    return any(
        all(_same(token, part) for token, part in zip(tokens[at : at + length], phrase, strict=True))
        for at in range(len(tokens) - length + 1)
    )


def _same(token: str, part: str) -> bool:
    if part.endswith("*"):
        return token.startswith(part[:-1]) or any(half.startswith(part[:-1]) for half in token.split("-")[1:])
    return token in {part, f"{part}s", f"{part}'s", f"{part}es"} or (token.endswith("-" + part) and "-" not in part)
