"""Whether a datacenter looks like production: by its names, its tags, and what its nodes say of themselves.

A name is taken apart into words: `prod-eu-1` and `euProd01` have the word `prod`, `product-search-staging` does not. A
word after `non`, `not` or `pre` says the opposite: `non-prod`, `pre-production`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hashidrill.errors import InterlockError

WORDS = frozenset({"prod", "prd", "production"})
"""Words that mean production anywhere."""
_ENVIRONMENT_KEYS = frozenset({"environment", "env"})
_ENVIRONMENTS = WORDS | {"live"}
"""What `environment` in a node's meta may not say."""
_OPPOSITES = frozenset({"non", "not", "pre"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Named:
    """A name of something: `Named("host", "web-1")`."""

    what: str
    name: str


def words_of(name: str) -> list[str]:
    """The words of a name, in lower case: `euProd01.Web` has eu, prod, 01, web."""
    return [word.lower() for word in _WORD.findall(name)]


def looks_like_production(name: str, words: frozenset[str] = WORDS) -> bool:
    """Whether one of its words means production, and the word before it does not say the opposite."""
    found = words_of(name)
    return any(word in words and (index == 0 or found[index - 1] not in _OPPOSITES) for index, word in enumerate(found))


@dataclass(frozen=True)
class DenyList:
    """What means production here. `words` are those of the attach file, beside WORDS."""

    words: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    """Whole names that only look like it."""

    @classmethod
    def of(cls, words: Iterable[str], names: Iterable[str], allowed: Iterable[str]) -> DenyList:
        return cls(
            frozenset(word.lower() for word in words),
            frozenset(name.lower() for name in names),
            frozenset(name.lower() for name in allowed),
        )

    def denies(self, name: str) -> bool:
        """A name of the list is denied even where `allowed` has it too."""
        if name.lower() in self.names:
            return True
        return name.lower() not in self.allowed and looks_like_production(name, WORDS | self.words)

    def troubles(self, names: Iterable[Named], metas: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
        """What looks like production. `metas`: the meta of each node; a key may begin with a product: `consul.env`."""
        for each in dict.fromkeys(names):
            if self.denies(each.name):
                yield f"{each.what} {each.name!r}"
        for node, meta in metas.items():
            for key, value in meta.items():
                if key.lower().rpartition(".")[2] in _ENVIRONMENT_KEYS and self._is_production(value):
                    yield f"node {node} says {key}: {value}"

    def _is_production(self, environment: str) -> bool:
        words = set(words_of(environment))
        return bool(words & (_ENVIRONMENTS | self.words)) and not words & _OPPOSITES


def check(deny: DenyList, names: Iterable[Named], metas: Mapping[str, Mapping[str, str]], where: str) -> None:
    """Raises InterlockError that names what looks like production."""
    if found := list(deny.troubles(names, metas)):
        more = f", and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
        raise InterlockError(
            f"{where} looks like production: {', '.join(found[:_MOST_SHOWN])}{more}; nothing runs there. If a name only"
            " looks like it, list it whole under interlocks.production.not_production of the attach file"
        )
