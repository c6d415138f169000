"""The faults of the tap and the verdicts on retries, by name: only data, read by code, docs and tests.

An *operation* is one task of the caller (one run of a command, one call of a client library). An *attempt* is one
request, connection or name lookup made for it. Every attempt of an operation after the first one is a *retry*.
"""

from dataclasses import dataclass

# thresholds, each with its source in playbooks/reference-retries.md
MOST_RETRIES = 3
"""`bounded`: the most retries (4 requests in all), like `curl --retry 3`, AWS SDKs and Polly's default."""
UNBOUNDED_ATTEMPTS = 90
"""`bounded`: a client that makes this many attempts has no bound at all."""
FEWEST_BACKOFF_GAPS = 2
BACKOFF_GROWTH = 1.4
"""`backoff`: the least ratio of the longest typical gap to the first one. 1 is a constant gap, 2 is one doubling."""
FEWEST_EXPONENTIAL_GAPS = 4
EXPONENTIAL_SLOPE = 0.5
"""`exponential`: the least number of doublings of the gap per retry; 1 doubles each time, 0.58 is a factor of 1.5."""
EXPONENTIAL_CERTAINTY = 7.0
"""`exponential`: by how much (in chi square) one of two curves must fit better."""
JITTER_CLIENTS = 20
JITTER_VARIATION = 0.008
"""`jitter`: how far the coefficient of variation is above the reference's; 5 % of uniform jitter has 0.014 to 0.029."""
SHORTEST_GAP_S = 0.02
"""Shorter gaps do not count as waits: the client continued at once."""
SHORTEST_WAIT_S = 0.1
"""`jitter`: a client whose longest typical gap is shorter hardly waits. To start a process takes 10 to 60 ms."""
RETRY_AFTER_S = 2
SHORT_RETRY_AFTER_S = 1
RETRY_AFTER_TOLERANCE_S = 0.1
RETRY_AFTER_FACTOR, RETRY_AFTER_MARGIN_S = 1.25, 0.4
"""`retry_after_honoured`: the requested wait is at least the client's longest other wait times the factor, plus the
margin.
"""
FEWEST_OTHER_WAITS, FEWEST_TOLD_WAITS = 12, 3
"""A client that ignores Retry-After and sleeps at random passes in 4 of 10,000 batteries (in a simulation of ten
distributions: uniform, exponential, log-normal, Pareto, two values).
"""
FEWEST_CLIENTS = 5
"""`backoff`, `exponential`: the fewest operations that give a typical gap."""
RETRY_BUDGET = 0.2
"""`retry_budget`: retries over all attempts. Finagle and Linkerd allow 20 % by default, Google's SRE book 10 %."""
AMPLIFICATION = 4.0
"""`amplification`: the most requests for each operation while a fault lasts: one layer with 3 retries."""
DEADLINE_S = 30.0
"""The time limit of one operation, unless the caller declares another."""


@dataclass(frozen=True)
class FaultClass:
    """One way in which the tap can fail an attempt.

    `reaches_upstream`: the request was passed on, whatever the client saw. `ambiguous`: the client cannot know
    whether its request was carried out. A scripted reply has the `status` and `retry_after`.
    """

    name: str
    meaning: str
    reaches_upstream: bool = False
    ambiguous: bool = False
    status: int = 0
    retry_after: str = ""
    """`seconds` or `date` (an HTTP-date)."""


_FAULTS = [
    FaultClass(
        "refused", "connection refused: no process listens on the port (a real refusal: the kernel answers the SYN)"
    ),
    FaultClass("dns", "the name that the client was given does not resolve (NXDOMAIN)"),
    FaultClass(
        "reset-before-fresh",
        "RST on a new connection as its first request arrives; it is not carried out",
        ambiguous=True,
    ),
    FaultClass(
        "reset-before-reused",
        "RST on a kept-alive connection as the next request arrives; it is not carried out",
        ambiguous=True,
    ),
    FaultClass("reset-after-fresh", "RST after the whole request was read, on a new connection", ambiguous=True),
    FaultClass("reset-after-reused", "RST after the whole request was read, on a reused connection", ambiguous=True),
    FaultClass("hang", "the request is read, and no reply ever comes", ambiguous=True),
    FaultClass(
        "slow-body",
        "the reply's head comes at once, its body at one byte every half second, without end",
        ambiguous=True,
    ),
    FaultClass(
        "truncated-body",
        "the connection is closed in the middle of the reply's body",
        reaches_upstream=True,
        ambiguous=True,
    ),
    FaultClass(
        "reply-dropped",
        "the upstream applied the request; the connection is closed instead of its reply",
        reaches_upstream=True,
        ambiguous=True,
    ),
    FaultClass("429", "too many requests, without Retry-After", status=429),
    FaultClass("429-retry-after", "too many requests, Retry-After in seconds", status=429, retry_after="seconds"),
    FaultClass("429-retry-after-date", "too many requests, Retry-After as a date", status=429, retry_after="date"),
    FaultClass("503", "service unavailable, without Retry-After", status=503),
    FaultClass("503-retry-after", "service unavailable, Retry-After in seconds", status=503, retry_after="seconds"),
    FaultClass("503-retry-after-date", "service unavailable, Retry-After as a date", status=503, retry_after="date"),
    FaultClass("500", "internal server error (what Consul says without a leader)", status=500, ambiguous=True),
    FaultClass("502", "bad gateway", status=502, ambiguous=True),
    FaultClass("504", "gateway timeout", status=504, ambiguous=True),
    FaultClass("index-backwards", "X-Consul-Index of a blocking query is smaller than the previous index"),
]
FAULTS: dict[str, FaultClass] = {fault.name: fault for fault in _FAULTS}

TRANSIENT = (
    "refused",
    "dns",
    "reset-before-fresh",
    "reset-after-fresh",
    "hang",
    "truncated-body",
    "reply-dropped",
    "429",
    "503",
    "500",
    "502",
    "504",
)
"""The faults on which `present` is judged: the first attempt fails, the next one passes."""
RETRY_AFTER = ("429-retry-after", "429-retry-after-date", "503-retry-after", "503-retry-after-date")
LASTING = ("503", "refused", "reset-after-fresh")
"""The faults on which `bounded` is judged: every attempt fails."""
AMBIGUOUS_WRITES = ("reply-dropped", "reset-after-fresh", "hang")


@dataclass(frozen=True)
class VerdictClass:
    """One question about a client. PASS is always the good answer."""

    name: str
    definition: str
    invalid_when: str
    source: str
    battery_faults: tuple[str, ...]
    """The battery judges it on each of these faults; empty: only an experiment can (the battery says INVALID)."""
    baseline: tuple[str, ...] = ()
    """The battery also injects these faults, whatever was selected, for comparison."""


_VERDICTS = [
    VerdictClass(
        "present",
        "PASS: after one failed attempt there is a second one, and the caller succeeds (exit status 0).",
        "the tap could not apply the fault; or the operation is a write without a key or CAS and the fault is"
        " ambiguous, so a replay would be wrong (see idempotent_only)",
        "RFC 9110 section 9.2.2; Google SRE book, Handling Overload",
        TRANSIENT,
    ),
    VerdictClass(
        "transport_only",
        "FAIL: the client is transport_only: a request is replayed after a reset on a reused connection, and neither"
        " after a 503 nor after a reset on a fresh one. The HTTP library only replaced a stale connection;"
        " that is not a retry, and counts as not present. PASS: the client retries after a 503 or a reset on a fresh"
        " connection.",
        "nothing is ever replayed (present says so), or no connection was ever reused; in an experiment, a 503 or a"
        " reset on a fresh connection was not injected",
        "Go net/http Transport; aiohttp client; RFC 9112 section 9.3.1",
        ("reset-after-reused",),
        ("503", "reset-after-fresh"),
    ),
    VerdictClass(
        "bounded",
        f"PASS: with a fault that lasts, the client gives up after at most {MOST_RETRIES} retries"
        f" ({MOST_RETRIES + 1} attempts; --attempts) and within the declared deadline. FAIL: it makes more"
        f" retries; it is unbounded with {UNBOUNDED_ATTEMPTS} attempts, or if it still retries at the deadline.",
        "the client did not retry on this fault (there is nothing to bound), or had neither retried nor given up at the"
        " deadline",
        "Google SRE book, Addressing Cascading Failures; AWS Builders' Library",
        LASTING,
    ),
    VerdictClass(
        "timeout_present",
        "PASS: the client itself ends an attempt that hangs (or whose body drips without end) within the declared"
        " deadline. FAIL: the connection is still open at the deadline.",
        "the command made no request",
        "AWS Builders' Library, Timeouts, retries and backoff with jitter",
        ("hang", "slow-body"),
    ),
    VerdictClass(
        "backoff",
        f"PASS: the longest typical gap between attempts is at least {BACKOFF_GROWTH} times the first gap in which"
        " the client waits (typical: mean over the clients, without a tenth at either end); earlier retries without"
        " a wait are reported. FAIL: constant gaps, shrinking gaps, or no waits at all.",
        f"fewer than {FEWEST_BACKOFF_GAPS} gaps, or they scatter too much to decide; fewer than {FEWEST_CLIENTS}"
        " operations",
        "AWS Architecture Blog, Exponential Backoff And Jitter; Polly",
        ("503",),
    ),
    VerdictClass(
        "exponential",
        f"PASS: log2 of the uncapped gaps rises by at least {EXPONENTIAL_SLOPE} per retry, and growth by a factor fits"
        " the gaps clearly better than a straight line, a square, a cube or a fourth power. FAIL: one of those fits"
        " better, or constant gaps, or no waits at all.",
        f"fewer than {FEWEST_EXPONENTIAL_GAPS} uncapped gaps (waits under {SHORTEST_GAP_S} s do not count), or they"
        f" scatter too much to distinguish two curves; fewer than {FEWEST_CLIENTS} operations",
        "AWS Architecture Blog, Exponential Backoff And Jitter",
        ("503",),
    ),
    VerdictClass(
        "jitter",
        f"PASS: over {JITTER_CLIENTS} independent clients, the coefficient of variation of the gaps is more than"
        f" {JITTER_VARIATION:.1%} above what this machine adds: to the gaps of a reference client that sleeps the same"
        " gaps at the same time, and to the client's own work. FAIL: all clients retry at the same moment.",
        f"the client did not retry; or it hardly waits (all gaps are under {SHORTEST_WAIT_S} s, or a third of them is"
        " its own work), so that there is no wait to spread; or the machine is too busy to decide",
        "AWS Architecture Blog, Exponential Backoff And Jitter",
        ("503",),
    ),
    VerdictClass(
        "retry_after_honoured",
        f"PASS: the next attempt comes no sooner than Retry-After says (minus {RETRY_AFTER_TOLERANCE_S} s),"
        f" {FEWEST_TOLD_WAITS} times in a row, and these waits are longer than each of {FEWEST_OTHER_WAITS} waits of"
        " this client with a shorter Retry-After, or without one. FAIL: the attempt comes sooner.",
        "the client did not retry; or it may wait that long anyway, and a longer wait does not fit into the deadline;"
        " or it waited too seldom to decide",
        "RFC 9110 section 10.2.3; RFC 6585 section 4",
        RETRY_AFTER,
    ),
    VerdictClass(
        "idempotent_only",
        "PASS: a POST, PATCH or plain PUT is not sent again after an ambiguous fault, unless it carries an idempotency"
        " key (the same in each attempt), a precondition, or Consul's cas, acquire or release. FAIL: it is sent again.",
        "the command sent no such write (a GET, HEAD, DELETE or a write with a key may be replayed), its precondition"
        " changed between attempts, or the command still ran at the deadline",
        "RFC 9110 section 9.2.2; Consul KV API",
        AMBIGUOUS_WRITES,
    ),
    VerdictClass(
        "amplification",
        f"PASS: while the fault lasts, there are at most {AMPLIFICATION:g} requests for each operation (or the declared"
        " product of the layers' attempts).",
        "no operation was due while a fault was in force",
        "Google SRE book, Handling Overload",
        (),
    ),
    VerdictClass(
        "retry_budget",
        f"PASS: retries are at most {RETRY_BUDGET:.0%} of the attempts.",
        "no attempts",
        "Google SRE book, Handling Overload; Finagle RetryBudget",
        (),
    ),
    VerdictClass(
        "no_storm",
        "PASS: retries never push the rate of attempts over the declared capacity; operations alone stay under it.",
        "the operations alone exceed the capacity",
        "Google SRE book, Addressing Cascading Failures",
        (),
    ),
    VerdictClass(
        "recovers",
        "PASS: after the trigger is gone, with constant load, goodput comes back and stays, with retries unrestricted.",
        "the load did not stay constant, or nothing was measured after the fault",
        "Bronson et al., Metastable Failures in Distributed Systems, HotOS 2021",
        (),
    ),
    VerdictClass(
        "circuit_breaks",
        "PASS: while the fault lasts, the rate of attempts falls to at most a fifth of the rate of operations.",
        "no operations, or the fault was too short",
        "Nygard, Release It!; Polly; Envoy outlier detection",
        (),
    ),
    VerdictClass(
        "watch_resets",
        "PASS: after an index went backwards, the next blocking query starts at index 0 (or without an index), and the"
        " client does not spin (more than 10 queries in a second).",
        "the command made no blocking query",
        "Consul API documentation, Blocking Queries",
        ("index-backwards",),
    ),
    VerdictClass(
        "lock_reacquired",
        "PASS: the client acquires a lock again that it lost to a fault.",
        "no lock was held, or no lock was lost",
        "Consul API documentation, Sessions",
        (),
    ),
]
FIXES = {
    "present": "try again, a few times, after a failed connection, a timeout, 429, 500, 502, 503 and 504",
    "transport_only": "retry in your code: the HTTP library only replaces stale connections, which is not a retry",
    "bounded": "give up after a few attempts, and at a deadline",
    "timeout_present": "set a timeout for each attempt, and a deadline for the whole operation",
    "backoff": "wait longer before each attempt than before the previous one",
    "exponential": "double the wait each time, up to a limit",
    "jitter": "make the waits random, between 0 and the backoff",
    "retry_after_honoured": "wait as long as Retry-After says: a number of seconds, or a date",
    "idempotent_only": "send a write again only if it carries an idempotency key or a check-and-set",
    "watch_resets": "begin again at index 0 when the index goes backwards",
}
"""What a client that fails a verdict of the battery should do."""
FIX_OF_WRITES = (
    "try again, a few times, only if the write was surely not carried out: after a refused connection, an unknown"
    " name, 429 and 503 (when Retry-After says); after any other fault only with an {key}"
)
"""The fix for `present` if a write may be applied twice: retry only what `idempotent_only` allows."""
VERDICTS: dict[str, VerdictClass] = {verdict.name: verdict for verdict in _VERDICTS}

BATTERY_PAIRS: tuple[tuple[str, str], ...] = tuple((v.name, f) for v in _VERDICTS for f in v.battery_faults)
"""Every (verdict, fault) that the battery judges. The timing verdicts (backoff, exponential, jitter) are judged on 503
if the client retries on it, otherwise on the first fault of LASTING on which it retries, and named after that fault."""
EXPERIMENT_ONLY: tuple[str, ...] = tuple(v.name for v in _VERDICTS if not v.battery_faults)
"""The battery reports these as (name, "-") INVALID: one process for one operation cannot show them."""

# The confusion test runs a reference client with `hashidrill retry --timeout 10s`: one operation a run, and the exit
# status says whether the caller succeeded. So a client that should PASS bounded gives up within 10 s, a client with a
# timeout sets 2 s or less, and gaps to be judged are 0.1 s or longer (a first gap of 0 is fine).
CONFUSION_DEADLINE_S = 10.0
