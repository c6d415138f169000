"""The reference clients: what each one is, what it does by its own source and documentation, and what follows.

`expected` holds the verdicts that a right battery gives, by (verdict, fault). They follow from `facts`, and the facts
were taken from the sources that the comments name, never from what our battery says. Pairs in `undecided` are left out,
each group with its reason: there, a race in the kernel or the deadline decides, and not the client.

A service runs until its time is up and is no case for the battery: `as_service` says what an experiment must find.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from clients.facts import (
    BROKEN,
    EVERYTHING,
    FAIL,
    NEVER,
    NO_CONNECTION,
    PASS,
    STATUSES,
    Expected,
    Facts,
    verdicts,
)

REFUSED_WITHOUT_A_WAIT = (("present", "refused"),)
"""All attempts of a client that never waits are refused within a few ms: no port can be opened after just the first."""


@dataclass(frozen=True)
class ReferenceClient:
    """`argv` has placeholders: `{python}`, `{bin}`, `{clients}`, `{url}`, `{seconds}`; see `prepare.command`."""

    name: str
    kind: str
    """`python`, `go` or `system`."""
    argv: tuple[str, ...]
    why: str
    """What it is here to show."""
    facts: Facts
    undecided: tuple[tuple[str, str], ...] = ()
    as_service: Mapping[str, str] = field(default_factory=dict)

    @property
    def service(self) -> bool:
        """It runs for a while and makes many operations."""
        return bool(self.as_service)

    @property
    def expected(self) -> Expected:
        if self.service:
            return {}
        return {pair: verdict for pair, verdict in verdicts(self.facts).items() if pair not in self.undecided}


def _script(folder: str, name: str, why: str, facts: Facts, *undecided: tuple[str, str]) -> ReferenceClient:
    argv = ("{python}", f"{{clients}}/{folder}/{name}.py", "{url}")
    return ReferenceClient(name.replace("_", "-"), "python", argv, why, facts, undecided)


def _go(name: str, why: str, facts: Facts) -> ReferenceClient:
    return ReferenceClient(name, "go", (f"{{bin}}/{name}", "{url}"), why, facts)


def _system(name: str, line: str, why: str, facts: Facts, *undecided: tuple[str, str]) -> ReferenceClient:
    argv = (*line.split(), "{url}/v1/kv/hashidrill/retry")
    return ReferenceClient(name, "system", argv, why, facts, undecided)


def _service(name: str, why: str, **as_service: str) -> ReferenceClient:
    argv = ("{python}", f"{{clients}}/homemade/{name}.py", "{url}", "{seconds}")
    return ReferenceClient(name.replace("_", "-"), "python", argv, why, Facts(), (), as_service)


# requests: a bare Session has Retry(0, read=False) (requests/adapters.py, DEFAULT_RETRIES). A timeout is for one read
# ("not a time limit on the entire response download", quickstart), so that a body which drips outlives it. The body is
# read after urllib3's Retry has let go of the request: a truncated one is never retried.
#
# urllib3.util.Retry 2.x: no wait before the first retry, then backoff_factor * 2 ** (retries - 1) plus random() *
# backoff_jitter (get_backoff_time); Retry-After is slept instead, for 413, 429 and 503 (sleep, is_retry); connecting is
# retried for any method, everything else for DEFAULT_ALLOWED_METHODS, PUT and DELETE among them (increment).
_URLLIB3 = NO_CONNECTION | BROKEN | {"hang"}
_REQUESTS = [
    _script("python", "requests_bare", "no retry at all must not pass for one", Facts(replays="gives up")),
    _script(
        "python", "requests_retry_total", "errors of the connection retried without any wait; statuses are not",
        Facts(_URLLIB3, 4, (0, 0, 0), timeout=1, obeys_retry_after=True, retry_after_only=True, replays="again"),
        *REFUSED_WITHOUT_A_WAIT,
    ),
    _script(
        "python", "requests_retry_statuses", "the usual recipe: retries, grows, honours Retry-After, has no jitter",
        Facts(_URLLIB3 | STATUSES, 4, (0, 0.4, 0.8), "exponential", timeout=1, obeys_retry_after=True,
              replays="again"),
    ),
    _script(
        "python", "requests_retry_jitter", "the same with jitter: nothing to say against it but the body's timeout",
        Facts(_URLLIB3 | STATUSES, 4, (0, 0.5, 0.9), "exponential", jitter=True, timeout=1, obeys_retry_after=True,
              replays="again"),
    ),
    _script(
        "python", "requests_retry_deaf", "respect_retry_after_header=False",
        Facts(_URLLIB3 | {"429", "503"}, 4, (0, 0.4, 0.8), "exponential", timeout=1, replays="again"),
    ),
    _script(
        "python", "requests_retry_any_method", "allowed_methods=None replays a POST",
        Facts(_URLLIB3 | STATUSES, 4, (0, 0.4, 0.8), "exponential", timeout=1, obeys_retry_after=True,
              writes="plain", replays="again"),
    ),
    _script(
        "python", "requests_put_default_methods", "the default methods replay a PUT",
        Facts(_URLLIB3 | {"429", "503"}, 4, (0, 0.5, 0.9), "exponential", jitter=True, timeout=1,
              obeys_retry_after=True, writes="plain", replays="again"),
    ),
    _script(
        "python", "requests_post_default_methods", "a POST is not replayed by default; connecting is tried again",
        Facts(NO_CONNECTION, 4, (0, 0.5, 0.9), "exponential", jitter=True, timeout=1, writes="plain",
              replays="gives up"),
    ),
]  # fmt: skip

# tenacity/wait.py: wait_exponential_jitter doubles `multiplier` each time and adds uniform(0, jitter). Neither that nor
# wait_fixed knows of Retry-After. What requests raises, for a truncated body too, is raised in the retried function.
_TENACITY = [
    _script(
        "python", "tenacity_exponential_jitter", "a good decorator around everything, deaf to Retry-After",
        Facts(EVERYTHING, 4, (0.15, 0.25, 0.45), "exponential", jitter=True, timeout=1, replays="again"),
    ),
    _script(
        "python", "tenacity_fixed", "a constant gap from a library",
        Facts(EVERYTHING, 4, (0.8, 0.8, 0.8), timeout=1, replays="again"),
    ),
]  # fmt: skip

# httpx: timeouts of 5 s for each of connect, read, write (python-httpx.org, Timeouts), redirects are not followed;
# HTTPTransport(retries=n): only ConnectError and ConnectTimeout, 0 s, 0.5 s, 1 s apart (httpcore, connection.py).
# aiohttp: ClientTimeout(total=300); one replay of an idempotent method after ClientOSError or ServerDisconnectedError,
# on *any* connection, fresh or not, but never of connecting (client.py, retry_persistent_connection).
_ASYNC = [
    _script("python", "httpx_bare", "no retry, but a timeout by default", Facts(timeout=5)),
    _script(
        "python", "httpx_connect_retries", "its «retries» are of connecting only, which a 503 shows",
        Facts(NO_CONNECTION, 4, (0, 0.5, 1), "exponential", timeout=1),
    ),
    _script(
        "python", "aiohttp_bare", "one replay by the transport, on a fresh connection too; none of a status",
        Facts(BROKEN, 2, (0,), timeout=300, whole_timeout=True, replays="again"),
    ),
    _script(
        "python", "aiohttp_total_timeout", "a total timeout ends a body that drips",
        Facts(BROKEN, 2, (0,), timeout=1, whole_timeout=True, replays="again"),
    ),
]  # fmt: skip

# All three go through requests and mount no adapter of their own: py-consul std.py (timeout 30 s since 1.8, none
# before), hvac adapters.py (30 s), python-nomad api/base.py (5 s, and allow_redirects=False).
_HASHICORP_PYTHON = [
    _script("python", "py_consul", "no retry; a timeout too long for the caller's 10 s",
            Facts(timeout=30, replays="gives up")),
    _script("python", "hvac_bare", "no retry; a timeout too long for the caller's 10 s",
            Facts(timeout=30, replays="gives up")),
    _script("python", "python_nomad", "no retry, and a timeout", Facts(timeout=5)),
]  # fmt: skip

# net/http transport.go, shouldRetryRequest: only on a reused connection, only what is idempotent, before the first byte
# of a reply. Neither http.DefaultClient nor consul/api (cleanhttp.DefaultPooledTransport) has a timeout.
# vault/api client.go, DefaultConfig: MaxRetries 2, MinRetryWait 1 s, MaxRetryWait 1.5 s, Timeout 60 s for all attempts,
# RateLimitLinearJitterBackoff (uniform(min, max) * attempt, or Retry-After); retryablehttp's policy, and 412.
# go-retryablehttp client.go: RetryMax 4, min * 2 ** n capped at 30 s, Retry-After on 429 and 503 (both forms); retried
# are errors, 429 and 5xx but 501, in Do: a body is read after it, so that a truncated one is the caller's.
_GO_DO = NO_CONNECTION | BROKEN | STATUSES
_GO = [
    _go("go-net-http", "a replay by the transport is no retry", Facts(replays="again")),
    _go("go-consul-api", "the official client has neither retry nor timeout", Facts(replays="again")),
    _go(
        "go-vault-api", "the official client does retry: three requests, jittered, bounded",
        Facts(_GO_DO, 3, (1.25, 2.5), "linear", jitter=True, timeout=60, whole_timeout=True, obeys_retry_after=True,
              replays="again"),
    ),
    _go(
        "go-retryablehttp", "exponential and attentive by default, without jitter, timeout, or so tight a bound as 3",
        Facts(_GO_DO, 5, (0.3, 0.6, 1.2, 2.4), "exponential", obeys_retry_after=True, replays="again"),
    ),
    _go(
        "go-retryablehttp-tuned", "the same library used well",
        Facts(_GO_DO | {"hang"}, 4, (0.15, 0.3, 0.45), "linear", jitter=True, timeout=1, whole_timeout=True,
              obeys_retry_after=True, replays="again"),
    ),
]  # fmt: skip

# curl(1), --retry: "a timeout, an FTP 4xx response code or an HTTP 408, 429, 500, 502, 503 or 504"; 1 s, then doubling;
# Retry-After since 7.66. tool_operate.c adds a name that does not resolve. There is no timeout without --max-time,
# which is for the whole transfer, and libcurl replays on a reused connection (Curl_retry_request).
# wget(1): --tries 20 "with the exception of fatal errors like «connection refused» or «not found»", and of names that
# do not resolve; --waitretry is linear, up to 10 s; --read-timeout 900 s, for one read; Retry-After is not known to it.
# Its manual does not say that a 504 is tried again like a broken connection (seen with 1.21.3, and no other status is).
_WGET = BROKEN | {"truncated-body", "504"}
_SYSTEM = [
    _system("curl", "curl -fsSL", "no retry; what libcurl replays is of the transport", Facts(replays="again")),
    _system(
        "curl-retry", "curl -fsSL --retry 3", "present on statuses and names, not on resets; no timeout",
        Facts(frozenset({"dns"}) | STATUSES, 4, (1, 2, 4), "exponential", obeys_retry_after=True, replays="again"),
    ),
    _system(
        "curl-retry-all-errors", "curl -fsSL --retry 3 --retry-all-errors --max-time 1", "everything, and a timeout",
        Facts(EVERYTHING, 4, (1, 2, 4), "exponential", timeout=1, whole_timeout=True, obeys_retry_after=True,
              replays="again"),
    ),
    _system(
        "wget", "wget -q -O -", "20 tries when the connection breaks, one for a 503, and 15 minutes for a hang",
        Facts(_WGET, 20, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), "linear", timeout=900, replays="again"),
        # the fourth gap ends 10 s after the first attempt, which is the deadline to within milliseconds
        ("exponential", "reset-after-fresh"),
    ),
    _system(
        "wget-tuned", "wget -q -O - --tries=3 --timeout=1 --retry-on-http-error=503", "bounded, deaf to Retry-After",
        Facts(_WGET | {"hang", "503"}, 3, (1, 2), "linear", timeout=1, replays="again"),
    ),
]  # fmt: skip

# A shell that starts curl again and again: 10 to 60 ms from one to the next, none of them a wait. No timeout.
_LOOP = [
    ReferenceClient(
        "curl-loop", "system", ("sh", "-c", "until curl -fsSL $0; do :; done", "{url}/v1/kv/hashidrill/retry"),
        "natural noise is no jitter, and work that gets slower is no backoff",
        Facts(EVERYTHING - {"hang"}, NEVER, (0.0,) * 100, replays="again"), REFUSED_WITHOUT_A_WAIT,
    ),
]  # fmt: skip

# The rest is home-made, and short enough to be read. urllib uses each connection once.
_CAREFUL = {"timeout": 1, "whole_timeout": True}
_HOMEMADE = [
    _script(
        "homemade", "careful", "what a good client does, in a page",
        Facts(EVERYTHING, 4, (0.075, 0.15, 0.3), "exponential", jitter=True, obeys_retry_after=True, **_CAREFUL),
    ),
    _script(
        "homemade", "tight_loop", "no wait at all", Facts(EVERYTHING, 6, (0, 0, 0, 0, 0), **_CAREFUL),
        *REFUSED_WITHOUT_A_WAIT,
    ),
    _script(
        "homemade", "no_cap", "no end to it; jitter without growth",
        Facts(EVERYTHING, NEVER, (0.2,) * 100, jitter=True, **_CAREFUL),
    ),
    _script("homemade", "constant_gap", "no growth, no jitter", Facts(EVERYTHING, 6, (0.8,) * 5, **_CAREFUL)),
    _script(
        "homemade", "random_gap", "what waits at random honours Retry-After by chance, and grows by chance",
        Facts(EVERYTHING, 4, (1, 1, 1), jitter=True, **_CAREFUL),
    ),
    _script("homemade", "long_gap", "waits longer than it is told, whatever it is told",
            Facts(EVERYTHING, 3, (2.5, 2.5), **_CAREFUL)),
    _script(
        "homemade", "linear_gap", "near miss: it grows, and not exponentially",
        Facts(EVERYTHING, 6, (0.3, 0.6, 0.9, 1.2, 1.5), "linear", **_CAREFUL),
    ),
    _script(
        "homemade", "growth_by_half", "near miss: exponential at 1.5",
        Facts(EVERYTHING, 6, (0.3, 0.45, 0.675, 1.0125, 1.51875), "exponential", **_CAREFUL),
    ),
    _script(
        "homemade", "no_jitter", "exponential, and everybody at the same moment",
        Facts(EVERYTHING, 5, (0.3, 0.6, 1.2, 2.4), "exponential", **_CAREFUL),
    ),
    _script(
        "homemade", "five_percent_jitter", "the least jitter that counts",
        Facts(EVERYTHING, 5, (0.3, 0.6, 1.2, 2.4), "exponential", jitter=True, **_CAREFUL),
    ),
    _script(
        "homemade", "full_jitter", "the most jitter there is",
        Facts(EVERYTHING, 4, (0.075, 0.225, 0.675), "exponential", jitter=True, **_CAREFUL),
    ),
    _script(
        "homemade", "deaf", "ignores Retry-After, and nothing else is wrong",
        Facts(EVERYTHING, 4, (0.075, 0.15, 0.3), "exponential", jitter=True, **_CAREFUL),
    ),
    _script(
        "homemade", "two_layers", "3 x 3 requests",
        Facts(EVERYTHING, 9, (0.075, 0.15, 0.075, 0.075, 0.15, 0.15, 0.075, 0.15), jitter=True, **_CAREFUL),
    ),
    _script(
        "homemade", "no_timeout", "waits for ever for what hangs",
        Facts(EVERYTHING - {"hang"}, 4, (0.075, 0.15, 0.3), "exponential", jitter=True),
    ),
    _script("homemade", "put_once", "a plain PUT, sent once", Facts(writes="plain", **_CAREFUL)),
    _script(
        "homemade", "put_again", "a plain PUT, sent again whatever happened",
        Facts(EVERYTHING, 4, (0.075, 0.15, 0.3), "exponential", jitter=True, writes="plain", **_CAREFUL),
    ),
    _script(
        "homemade", "post_again", "a POST, sent again whatever happened",
        Facts(EVERYTHING, 4, (0.075, 0.15, 0.3), "exponential", jitter=True, writes="plain", **_CAREFUL),
    ),
    _script(
        "homemade", "post_new_key", "a POST with a new Idempotency-Key in each attempt is as good as one without",
        Facts(EVERYTHING, 4, (0.075, 0.15, 0.3), "exponential", jitter=True, writes="plain", **_CAREFUL),
    ),
    _script(
        "homemade", "put_nonce", "a nonce in the query makes no other write",
        Facts(EVERYTHING, 4, (0.075, 0.15, 0.3), "exponential", jitter=True, writes="plain", **_CAREFUL),
    ),
    _script(
        "homemade", "cache_buster", "nor does one make another read",
        Facts(EVERYTHING, 4, (0.075, 0.15, 0.3), "exponential", jitter=True, **_CAREFUL),
    ),
    _script(
        "homemade", "put_when_refused", "a plain PUT, sent again only when it was surely not done",
        Facts(NO_CONNECTION | {"429", "503"}, 4, (0.075, 0.15, 0.3), "exponential", jitter=True, timeout=1,
              writes="plain"),
    ),
    _script(
        "homemade", "put_cas", "a write with check-and-set may be sent again",
        Facts(EVERYTHING, 4, (0.075, 0.15, 0.3), "exponential", jitter=True, writes="keyed", **_CAREFUL),
    ),
    _script("homemade", "watch_resets", "a blocking query that starts again at 0",
            Facts(timeout=2, whole_timeout=True, watches=True)),
    _script("homemade", "watch_never_resets", "a blocking query that waits for an index long gone",
            Facts(timeout=2, whole_timeout=True, watches=False)),
    _script("homemade", "watch_spins", "a blocking query that starts again at 0, and again, and again",
            Facts(timeout=2, whole_timeout=True, watches=False)),
]  # fmt: skip

# Twenty operations a second. `no_breaker` makes three requests for each: under the bound of four, and a storm where
# there is room for no more than twice the operations. `recovers` is not here: it takes an upstream that wastes work.
_SERVICES = [
    _service("breaker", "opens after three failures in a row",
             circuit_breaks=PASS, amplification=PASS, retry_budget=PASS, no_storm=PASS),
    _service("no_breaker", "two retries of everything, whatever comes back",
             circuit_breaks=FAIL, amplification=PASS, retry_budget=FAIL, no_storm=FAIL),
    _service("storm", "retries of retries: nine requests per operation, and operations never wait for each other",
             circuit_breaks=FAIL, amplification=FAIL, retry_budget=FAIL, no_storm=FAIL),
    _service("retry_budget", "one retry in ten operations",
             circuit_breaks=FAIL, amplification=PASS, retry_budget=PASS, no_storm=PASS),
    _service("lock_reacquires", "takes its lock again", lock_reacquired=PASS),
    _service("lock_forgets", "believes that it has its lock", lock_reacquired=FAIL),
]  # fmt: skip

CLIENTS: tuple[ReferenceClient, ...] = (
    *_REQUESTS, *_TENACITY, *_ASYNC, *_HASHICORP_PYTHON, *_GO, *_SYSTEM, *_LOOP, *_HOMEMADE, *_SERVICES,
)  # fmt: skip
