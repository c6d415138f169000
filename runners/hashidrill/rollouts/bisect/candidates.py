"""What can be bisected: candidates by their names, and the experiment that each one is run as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hashidrill.core.errors import BinaryError, UsageError
from hashidrill.core.experiment.model import services_of
from hashidrill.core.experiment.variants import varied

if TYPE_CHECKING:
    from collections.abc import Callable

    from hashidrill.core.experiment.resolved import ResolvedExperiment


class RefusedError(Exception):
    """A candidate that cannot be run: the agent refuses its configuration, it cannot be had, or it cannot be built."""


@dataclass(frozen=True)
class Alike:
    """What of two candidates is the same, though it should differ. `sure`: nothing else of them can differ."""

    why: str
    sure: bool = False


class Candidates(Protocol):
    """What a search chooses from."""

    @property
    def question(self) -> dict[str, Any]:
        """What the answer depends on."""

    def shown(self, name: str) -> str:
        """A candidate, for a person."""

    def resolved(self, name: str) -> ResolvedExperiment:
        """The experiment as it is run with a candidate. Raises RefusedError."""

    def alike(self, one: str, other: str) -> Alike | None:
        """What of two candidates that were resolved is the same, as far as can be told without their runs."""


class Listed(Candidates, Protocol):
    """Candidates in an order, the good end first."""

    @property
    def names(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Versions:
    """Versions of one product, from a good one to a bad one."""

    given: ResolvedExperiment
    product: str
    names: Sequence[str]
    ensure: Callable[[str, str], object]
    """Gets a binary of a version. Raises BinaryError."""

    @classmethod
    def of(
        cls,
        given: ResolvedExperiment,
        names: Sequence[str],
        *,
        product: str | None,
        ensure: Callable[[str, str], object],
    ) -> Versions:
        """Raises UsageError: too few, one that is there twice, or nothing that says of which product they are."""
        if len(names) < 2:
            raise UsageError("--versions needs two or more: the good one first, the bad one last, like 1.10.3 1.22.2")
        twice = sorted({name for name in names if list(names).count(name) > 1})
        if twice:
            raise UsageError(f"--versions: {', '.join(twice)} is there more than once")
        built = {each.name: [b.name for b in each.binaries()] for each in services_of(given.experiment.datacenter)}
        products = [name for name, binaries in built.items() if name in binaries]
        if product is None and len(products) != 1:
            raise UsageError(f"{given.name} runs {' and '.join(products) or 'no product'}: say which with --product")
        if product is not None and product not in products:
            raise UsageError(f"--product {product}: {given.name} does not run it: it runs {', '.join(products)}")
        return cls(given, product or products[0], tuple(names), ensure)

    @property
    def question(self) -> dict[str, Any]:
        return {"product": self.product, "versions": list(self.names)}

    def shown(self, name: str) -> str:
        return f"{self.product} {name}"

    def resolved(self, name: str) -> ResolvedExperiment:
        try:
            self.ensure(self.product, name)
        except BinaryError as error:
            raise RefusedError(str(error).splitlines()[0]) from None
        layer = {"datacenter": {self.product: {"version": name}}}
        return varied(self.given, layer, name="candidate", source=f"--versions {name}")

    def alike(self, one: str, other: str) -> Alike | None:  # noqa: ARG002 - two versions never are
        return None
