"""What a client does, as its source and its documentation say, and the verdicts that follow from the definitions.

Nothing here comes from the tap or the battery: facts are written down by hand in `manifest`, they are checked against a
scripted server in tests/contract/clients/test_reference_clients.py, and `verdicts` applies the catalogue's
definitions to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.tap.catalogue import (
    AMBIGUOUS_WRITES,
    BACKOFF_GROWTH,
    CONFUSION_DEADLINE_S,
    FAULTS,
    FEWEST_BACKOFF_GAPS,
    FEWEST_EXPONENTIAL_GAPS,
    LASTING,
    MOST_RETRIES,
    RETRY_AFTER,
    SHORTEST_GAP_S,
    SHORTEST_WAIT_S,
    TRANSIENT,
)

PASS, FAIL, INVALID = str(Verdict.PASS), str(Verdict.FAIL), str(Verdict.INVALID)
Expected = Mapping[tuple[str, str], str]

NO_CONNECTION = frozenset({"refused", "dns"})
BROKEN = frozenset({"reset-before-fresh", "reset-after-fresh", "reply-dropped"})
"""The connection came about and broke before the first byte of a reply."""
STATUSES = frozenset({"429", "500", "502", "503", "504"})
EVERYTHING = frozenset(TRANSIENT)
NEVER = float("inf")


@dataclass(frozen=True)
class Facts:
    """Times are in seconds."""

    retries_on: frozenset[str] = frozenset()
    """Faults after which it sends again by itself."""
    attempts: float = 1
    """Requests for one operation when what it retries on lasts, the first one included."""
    gaps: tuple[float, ...] = ()
    """Between those attempts, in the middle of their spread; the first few, where there are many."""
    growth: str = "none"
    """How the gaps grow: `none`, `linear` or `exponential`."""
    jitter: bool = False
    timeout: float = NEVER
    """After so long without a byte it gives an attempt up."""
    whole_timeout: bool = False
    """That timeout is for the attempt as a whole: a body that drips meets it too."""
    obeys_retry_after: bool = False
    retry_after_only: bool = False
    """It retries a 429 or a 503 only when there is a Retry-After."""
    writes: str = ""
    """`plain`, `keyed` (with cas), or an empty string for one that only reads."""
    replays: str = ""
    """On a reset of a connection that it used before: `again` (it sends again) or `gives up`. An empty string: it never
    uses a connection twice, or does not follow the redirect that would lead it to."""
    watches: bool | None = None
    """Whether it makes blocking queries, and resets its index without spinning."""


def verdicts(facts: Facts, deadline_s: float = CONFUSION_DEADLINE_S) -> dict[tuple[str, str], str]:
    """The verdict of each pair that the battery judges, by the definitions of the catalogue."""
    return {
        **{("present", fault): _present(facts, fault) for fault in TRANSIENT},
        ("transport_only", "reset-after-reused"): _transport_only(facts),
        **{("bounded", fault): _bounded(facts, fault, deadline_s) for fault in LASTING},
        ("timeout_present", "hang"): _good(facts.timeout < deadline_s),
        ("timeout_present", "slow-body"): _good(facts.whole_timeout and facts.timeout < deadline_s),
        **_timing(facts),
        **{("retry_after_honoured", fault): _retry_after(facts, fault) for fault in RETRY_AFTER},
        **{("idempotent_only", fault): _idempotent(facts, fault) for fault in AMBIGUOUS_WRITES},
        ("watch_resets", "index-backwards"): INVALID if facts.watches is None else _good(facts.watches),
    }


def _good(yes: bool) -> str:
    return PASS if yes else FAIL


def _present(facts: Facts, fault: str) -> str:
    if facts.writes == "plain" and FAULTS[fault].ambiguous:
        return INVALID
    return _good(fault in facts.retries_on)


def _transport_only(facts: Facts) -> str:
    if facts.retries_on & {"503", "reset-before-fresh", "reset-after-fresh"}:
        return PASS
    return FAIL if facts.replays == "again" else INVALID


def _bounded(facts: Facts, fault: str, deadline_s: float) -> str:
    if fault not in facts.retries_on:
        return INVALID
    return _good(facts.attempts - 1 <= MOST_RETRIES and sum(facts.gaps) < deadline_s)


def _timing(facts: Facts) -> dict[tuple[str, str], str]:
    """On 503, or else on the first of the lasting faults that it retries on."""
    on = next((fault for fault in LASTING if fault in facts.retries_on), "")
    if not on:
        return {(verdict, "503"): INVALID for verdict in ("backoff", "exponential", "jitter")}
    waits = [gap for gap in facts.gaps if gap >= SHORTEST_GAP_S]
    grows = bool(waits) and max(waits) >= BACKOFF_GROWTH * waits[0]
    # a client that never waits has no curve, and no excuse either
    enough = len(waits or facts.gaps) >= FEWEST_EXPONENTIAL_GAPS
    return {
        ("backoff", on): INVALID if len(facts.gaps) < FEWEST_BACKOFF_GAPS else _good(grows),
        ("exponential", on): _good(facts.growth == "exponential") if enough else INVALID,
        ("jitter", on): _good(facts.jitter) if max(facts.gaps, default=0.0) >= SHORTEST_WAIT_S else INVALID,
    }


def _retry_after(facts: Facts, fault: str) -> str:
    retries = FAULTS[fault].status and str(FAULTS[fault].status) in facts.retries_on
    return _good(facts.obeys_retry_after) if retries or facts.retry_after_only else INVALID


def _idempotent(facts: Facts, fault: str) -> str:
    return _good(fault not in facts.retries_on) if facts.writes == "plain" else INVALID
