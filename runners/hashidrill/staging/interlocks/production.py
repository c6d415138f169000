"""Whether a datacenter looks like production: by its names, its tags, and its nodes' meta data.

A false refusal costs a line in the attach file, a false admission costs production. So `prod` and `prd` count
anywhere in a name (`PRODeu1`, `k8sprod`, `euprod1`), except in known other words (`product`, `producer`,
`reproduction`) and after `non`, `not` or `pre` (`non-prod`, `preProduction`). List a whole name that is refused by
mistake under `interlocks.production.not_production`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hashidrill.core.errors import InterlockError

_MEANS_IT = re.compile(r"prod|prd")
_ENVIRONMENT_KEYS = frozenset({"environment", "env", "stage", "tier"})
_ALSO_ENVIRONMENTS = frozenset({"live"})
"""Values that mean production under one of these keys of a node's meta."""
_OTHER_WORDS = re.compile(r"(?:re|by)?produc(?:tivity|tive|t(?!ion)|er|ed|es|e|ing|ib)|reproduction")
_OPPOSITES = r"(?<![a-z])(?:non|not|pre)[^a-z0-9]?"
_NOT_IT = re.compile(rf"{_OPPOSITES}(?:production|prod|prd)|{_OTHER_WORDS.pattern}")
_HUMP, _HUMPS = "\0", re.compile(r"(?<=[a-z])(?=[A-Z])")
_RUNS = (re.compile(r"[a-z0-9]+"), re.compile(r"[a-z]+"))
_FALSE = frozenset({"", "0", "false", "no", "off", "none"})
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Named:
    """A name, and what it names: `Named("host", "web-1")`."""

    what: str
    name: str


def looks_like_production(name: str, words: Iterable[str] = ()) -> bool:
    """Whether the name contains `prod` or `prd`, or a part of it, letters alone, begins or ends with a word."""
    humps = _HUMPS.sub(_HUMP, name).lower()
    if _MEANS_IT.search(_NOT_IT.sub(" ", humps).replace(_HUMP, "")):
        return True
    for word in words:
        left = re.sub(_OPPOSITES + re.escape(word), " ", humps)
        texts = (left, left.replace(_HUMP, ""))
        runs = {run for text in texts for each in _RUNS for run in each.findall(text)}
        if any(run.startswith(word) or run.endswith(word) for run in runs):
            return True
    return False


@dataclass(frozen=True)
class DenyList:
    """The words for production here. `words` come from the attach file, in addition to `prod` and `prd`."""

    words: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    """Whole names that only look like production, and such entries of node meta: `stage: prod-copy`."""

    @classmethod
    def of(cls, words: Iterable[str], names: Iterable[str], allowed: Iterable[str]) -> DenyList:
        return cls(
            frozenset(word.lower() for word in words),
            frozenset(name.lower() for name in names),
            frozenset(name.lower() for name in allowed),
        )

    def denies(self, name: str) -> bool:
        """Whether the name is denied; the deny list wins over `allowed`."""
        if name.lower() in self.names:
            return True
        return name.lower() not in self.allowed and looks_like_production(name, self.words)

    def troubles(self, names: Iterable[Named], metas: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
        """The signs of production. `metas`: the meta of each node; a key may begin with a product: `consul.env`."""
        for each in dict.fromkeys(names):
            if self.denies(each.name):
                yield f"{each.what} {each.name!r}"
        for node, meta in metas.items():
            for key, value in meta.items():
                said = f"{key}: {value}"
                if said.lower() not in self.allowed and self._is_production(key.lower(), value):
                    yield f"node {node} says {said}"

    def _is_production(self, key: str, value: str) -> bool:
        words = self.words | (_ALSO_ENVIRONMENTS if key.rpartition(".")[2] in _ENVIRONMENT_KEYS else frozenset())
        if value.lower() in self.names or looks_like_production(value, words):
            return True
        return looks_like_production(key) and value.strip().lower() not in _FALSE


def check(deny: DenyList, names: Iterable[Named], metas: Mapping[str, Mapping[str, str]], where: str) -> None:
    """Raises InterlockError that lists what looks like production."""
    if found := list(deny.troubles(names, metas)):
        more = f", and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
        raise InterlockError(
            f"{where} looks like production: {', '.join(found[:_MOST_SHOWN])}{more}; nothing runs there. If it is"
            " not, list each name as it is written here under interlocks.production.not_production of the attach file"
        )
