"""Loads on the sample's programs: `sample.get` sends requests, `sample.logs` log lines, `sample.checks` sets checks."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.base import AgentLoad, LoadContext, Timeout
from hashidrill.core.loads.http_client import HttpClient, insist
from hashidrill.core.loads.schedule import OpenLoop, Reply, stamp
from hashidrill.core.protocols.abc import EmitOperation
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Percent, Quantity, Rate
from hashidrill.core.util.safe_json import parse
from hashidrill.core.util.wait import wait_until
from hashidrill.products.sample.program import COUNTS, KEYS

WITHIN_S, SAMPLE_WITHIN_S = 60.0, 5.0
_LINE = '10.0.0.1 - - [28/Oct/2021:13:37:00 +0000] "GET / HTTP/1.1" 200 612'

Via = Annotated[
    str,
    Field(pattern=r"^(sample:[a-z]+|host:[a-z][a-z0-9-]*)$", description="The programs to send to, in rotation"),
]


class _SampleLoad(AgentLoad):
    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - the signature of all loads
        return ()


class Get(_SampleLoad):
    """Requests `keys` items of its own in rotation. The share `fresh` of the requests is for new items."""

    divides: ClassVar[bool] = True
    kind: ClassVar[str] = "sample.get"
    asks: ClassVar[str] = "program of the sample"

    class Params(Strict):
        """The requested items; fresh items are in no cache."""

        rate: Rate = Field(gt=0, le=1000)
        """Requests offered, like `50/s`, whatever the answers."""
        keys: Annotated[int, Field(ge=1, le=10_000, description="How many items, in turn")] = 20
        fresh: Annotated[Percent, Field(le=1, description="The share of requests for new items")] = Percent("0%")
        via: Via
        timeout: Timeout = Duration("30s")

    params: Params

    async def run(self, emit: EmitOperation) -> None:
        context = self.context
        async with context.http() as http:

            async def get(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - nothing is written
                url = context.endpoints[n % len(context.endpoints)].rstrip("/")
                answer = await http.request("GET", f"{url}/{key}", timeout_s=float(self.params.timeout))
                if answer.status == 200:
                    return Reply("ok", status=200)
                return Reply("fail", status=answer.status, error=read_error(answer), reason=answer.why)

            await self.open_loop(self._plan, get).run(emit)

    def _plan(self, n: int) -> tuple[str, str]:
        fresh = int((n + 1) * self.params.fresh) > int(n * self.params.fresh)
        return f"{self.name}/" + (f"fresh-{self.context.run_id}-{n}" if fresh else f"item-{n % self.params.keys}"), ""


class Logs(_SampleLoad):
    """Sends batches of log lines to a node, and at the end reads which of them the log of record holds.

    An operation is a batch. The log of record is the archive or, without an archive, search. The signals are what the
    pipeline has counted since the load began: `LOAD.indexed` in search, `LOAD.rejected` by search, `LOAD.dropped` by a
    full buffer of the node, `LOAD.shed` on purpose by the tier, `LOAD.waiting` in all queues.
    """

    kind: ClassVar[str] = "sample.logs"
    asks: ClassVar[str] = "node of the pipeline of logs"
    signals: ClassVar[Mapping[str, None]] = dict.fromkeys(("indexed", "rejected", "dropped", "shed", "waiting"))

    class Params(Strict):
        """`rate` batches a second, of `lines` lines each."""

        rate: Rate = Field(gt=0, le=1000)
        """Batches offered, like `5/s`, whatever the answers."""
        lines: Annotated[int, Field(ge=1, le=1000, description="Lines in each batch")] = 20
        via: Via = "sample:nodes"
        timeout: Timeout = Duration("10s")

    params: Params

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._before: dict[str, int] = {}
        self._planned = 0

    async def prepare(self, *, within_s: float = WITHIN_S) -> None:
        """Raises WaitTimeoutError."""
        async with self.client() as http:
            self._before = await insist(http, self.context.endpoints, "GET", COUNTS, _object, within_s=within_s)

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as http, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample(http))

            async def put(n: int, key: str, value: str) -> Reply:
                body = "\n".join([value, *[_LINE] * self.params.lines]).encode()
                url = f"{self.endpoint(n)}{key}"
                answer = await http.request("PUT", url, body=body, timeout_s=float(self.params.timeout))
                if answer.status == 200:
                    return Reply("ok", status=200)
                # a full node stored nothing; after any other answer, it is unknown what was stored
                refused = answer.status == 429 or not answer.sent
                outcome = "fail" if refused else "unknown"
                return Reply(outcome, status=answer.status, error=read_error(answer), reason=answer.why)

            await self.open_loop(self._plan, put).run(emit)

    def _plan(self, n: int) -> tuple[str, str]:
        self._planned = n + 1
        return self._key(n), stamp(self.context.run_id, n)

    def _key(self, n: int) -> str:
        return f"/{self.name}/{self.context.run_id}/{n}"

    async def _sample(self, http: HttpClient) -> None:
        while True:
            answer = await http.request("GET", self.endpoint(0) + COUNTS, timeout_s=SAMPLE_WITHIN_S)
            self._counted(_object(answer))
            await asyncio.sleep(1.0)

    def _counted(self, counts: Mapping[str, int] | None) -> None:
        """Samples all counts, or None for each if the pipeline did not answer."""
        for what in self.signals:
            before = 0 if what == "waiting" else self._before.get(what, 0)
            self.context.sample(what, None if counts is None else float(counts.get(what, 0) - before))

    async def final_reads(self, *, within_s: float = WITHIN_S) -> Mapping[str, str | None]:
        """What the log of record holds once the queues are empty. Raises WaitTimeoutError if they do not empty."""
        async with self.client() as http:

            async def drained() -> tuple[dict[str, int] | None, str]:
                counts = _object(await http.request("GET", self.endpoint(0) + COUNTS, timeout_s=within_s))
                return (counts if counts is not None and not counts["waiting"] else None), f"counts: {counts}"

            self._counted(await wait_until("the queues of the pipeline to be empty", drained, within_s=within_s))
            kept = await insist(http, self.context.endpoints, "GET", KEYS, _object, within_s=within_s)
        ours = [self._key(n) for n in range(self._planned)]
        return {key: kept.get(key) for key in ours}


class Checks(_SampleLoad):
    """Tells checkers how many targets to check, and asks them for their results: each operation is such a call.

    The load's profile scales `checks`. The signals are `LOAD.checks`, `LOAD.down` (the share of checks that are down),
    `LOAD.unknown`, and `LOAD.late`, the longest time by which a result was late since the last call.
    """

    kind: ClassVar[str] = "sample.checks"
    asks: ClassVar[str] = "checker"
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = {
        "checks": None,
        "down": Percent,
        "unknown": None,
        "late": Duration,
    }

    class Params(Strict):
        """How many checks; `rate` calls a second, whatever the answers."""

        checks: Annotated[int, Field(ge=1, le=100_000, description="How many checks each checker makes")] = 800
        rate: Rate = Field(default=Rate(2), gt=0, le=10)
        """Calls to each checker, like `2/s`, whatever the answers."""
        via: Via = "sample:checkers"
        timeout: Timeout = Duration("10s")

    params: Params

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as http:

            async def call(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - nothing is written
                wanted = round(self.params.checks * self.context.course.at(self.context.clock.now_ns()))
                timeout_s = float(self.params.timeout)
                answer = await http.request(
                    "PUT", f"{self.endpoint(n)}/checks", body=str(wanted).encode(), timeout_s=timeout_s
                )
                refused = answer.status == 429
                known = await http.request("GET", self.endpoint(n) + COUNTS, timeout_s=timeout_s) if refused else answer
                self._known(_object(known))
                if answer.status == 200:
                    return Reply("ok", status=200)
                return Reply("fail", status=answer.status, error=read_error(answer), reason=answer.why)

            # the level scales the checks, not these calls
            loop = OpenLoop(
                self.name,
                self.params.rate,
                lambda n: (self.endpoint(n), ""),
                call,
                self.context.clock,
                lag=self.context.lag,
                waiting=self.context.waiting,
            )
            await loop.run(emit)

    def _known(self, counts: Mapping[str, int] | None) -> None:
        """Samples what a checker knows, or failed samples if it did not answer."""
        scale = {"down": max(1, counts["checks"]) if counts else 1, "late": 1000}
        of = {"late": "late_ms"}
        for what in self.signals:
            value = None if counts is None else counts[of.get(what, what)] / scale.get(what, 1)
            self.context.sample(what, value)


def _object(answer: Answer) -> dict[str, Any] | None:
    if answer.status != 200:
        return None
    found = parse(answer.body)
    return found if isinstance(found, dict) else None
