"""Did two sides run something different? A variant that did not take effect would pass for one that does no harm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hashidrill.core.judging.comparison import differences
from hashidrill.core.util.nested import dotted, leaves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from hashidrill.core.recording.reader import Recording

_OF_AGENTS = re.compile(r"datacenter\.(\w+)\.(version|servers|clients|config|server_config|client_config)\b\.?([^[]*)")
"""What must be seen in the agents that were started: their versions, their number, their configuration."""
_MOST_SHOWN = 4


def ran_the_same(
    one: Recording, other: Recording, *, hidden: Sequence[str] = (), each: bool = False, but: Collection[str] = ()
) -> str:
    """Why two recordings show no difference, or nothing.

    They are runs of the same experiment with the same configuration; or of two that differ in their agents, of which
    the run's own list says that they were started the same. The rest is as for `took_no_effect`.
    """
    if not _differs(one, other) and not hidden:
        return "both ran the same experiment with the same configuration"
    return took_no_effect(one, other, hidden=hidden, each=each, but=but)


def took_no_effect(
    one: Recording, other: Recording, *, hidden: Sequence[str] = (), each: bool = False, but: Collection[str] = ()
) -> str:
    """Why what differs between two experiments did not reach their agents, or nothing.

    `hidden`: where they differ in secrets alone (`hashidrill.core.judging.comparison.hidden`), which are in no
    recording. Of those it says no more than whether agents had something there. `each`: one key without effect is
    enough. `but`: keys of which it is known already that they have none.
    """
    differs = [at for at in dict.fromkeys([*_differs(one, other), *hidden]) if _key(at) not in but]
    idle = [at for at in differs if _idle(at, one, other, secret=at in hidden)]
    if not idle or (len(idle) < len(differs) and not each):
        return ""
    if len(idle) < len(differs):
        return f"{_shown(idle)} took no effect: there, the agents of both were started with the same"
    return f"{_shown(idle)} took no effect: both started the same agents with the same configuration"


def _shown(places: Sequence[str]) -> str:
    more = f" and {len(places) - _MOST_SHOWN} more" if len(places) > _MOST_SHOWN else ""
    return f"{', '.join(places[:_MOST_SHOWN])}{more}"


def _differs(one: Recording, other: Recording) -> list[str]:
    return [line.partition(":")[0] for line in differences(one.experiment, other.experiment)]


def _key(at: str) -> str:
    found = _OF_AGENTS.match(at)
    return found[3] if found else at


def _idle(at: str, one: Recording, other: Recording, *, secret: bool) -> bool:
    """Whether both runs say of their agents that they were the same there. What they do not say may differ."""
    found = _OF_AGENTS.match(at)
    if found is None:
        return False
    product, what, key = found.groups()
    if what == "version":
        return _same_binary(product, one, other)
    if what in {"servers", "clients"}:
        first, second = one.run.get("hosts"), other.run.get("hosts")
        return first is not None and first == second
    started = [_started(product, each) for each in (one, other)]
    if None in started:
        return False
    there = [dict(_below(each or {}, key)) for each in started]
    return there[0] == there[1] and not (secret and any(there))


def _same_binary(product: str, one: Recording, other: Recording) -> bool:
    """By what was run, not by the version that it was called."""
    for section, part in (("binaries", "sha256"), ("versions", "")):
        values = [(each.run.get(section) or {}).get(product) for each in (one, other)]
        known = [value.get(part) if isinstance(value, dict) else value for value in values]
        if all(known):
            return bool(known[0] == known[1])
    return False


def _started(product: str, recording: Recording) -> Mapping[str, Any] | None:
    """The configuration of each agent of a product, by host; None where the run does not say."""
    of = recording.run if product == "consul" else recording.run.get(product)
    found = of.get("config") if isinstance(of, dict) else None
    return found if isinstance(found, dict) and found else None


def _below(started: Mapping[str, Any], key: str) -> Iterator[tuple[tuple[str, str], Any]]:
    """What each agent had at a dotted key, and below it. A name may have dots of its own."""
    for host, config in started.items():
        for path, value in leaves(config) if isinstance(config, dict) else ():
            if dotted(path) == key or dotted(path).startswith(f"{key}."):
                yield (host, dotted(path)), value
