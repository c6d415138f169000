"""The smallest service: a product whose agents serve an empty folder over HTTP."""

import signal
from typing import ClassVar

from pydantic import Field

from hashidrill import (
    AgentPlace,
    AgentPlan,
    BaseFault,
    BaseLoad,
    BaseProbe,
    BaseService,
    Evidence,
    FaultError,
    HttpClient,
    NoParams,
    Observer,
    OpenLoop,
    ProcessControl,
    Processes,
    Rate,
    Reply,
    Sample,
    Strict,
    read_error,
    wait_until,
)

PORT = 8080
PYTHON = "/usr/bin/python3"
KNOWS_A_LEADER = (
    "import json, urllib.request as http\n"
    "if not json.load(http.urlopen('http://127.0.0.1:8500/v1/status/leader', timeout=2)): exit('no leader yet')\n"
)
"""Beside a Consul agent, an agent ends at once where that one knows no leader: it is started after it."""
TOKEN = "2d8f6b7c-an-example-of-a-token"
"""What a real product would hand out once it is ready."""
SERVE = "import runpy; runpy.run_module('http.server', run_name='__main__')"


class Spec(Strict):
    """The part of `datacenter:`."""

    agents: int = Field(default=1, ge=1, le=9, description="Number of agents")


class Answers(BaseProbe):
    """`noop.answers`: 1 while the agent's port takes connections."""

    signals: ClassVar = ("noop.answers",)

    def __init__(self, host):
        self.host, self._host = host.name, host

    async def measure(self):
        answers = await self._host.use(Processes).agent_answers("noop", self.timeout_s)
        return [Sample("noop.answers", float(answers), "", self.host)]


class Get(BaseLoad):
    """Asks the agents for their folder, in turn."""

    kind: ClassVar[str] = "noop.get"

    class Params(Strict):
        rate: Rate = Rate("10/s")
        via: str = "noop:agents"

    @classmethod
    def via(cls, params):
        return params.via

    async def run(self, emit):
        async with HttpClient(local_address=self.context.local_address) as http:

            async def get(n, _key, _value):
                url = self.context.endpoints[n % len(self.context.endpoints)]
                answer = await http.request("GET", f"{url}/", timeout_s=10.0)
                return Reply("ok" if answer.status == 200 else "fail", answer.status, read_error(answer))

            c = self.context
            loop = OpenLoop(
                self.name,
                self.params.rate,
                lambda _: ("", ""),
                get,
                c.clock,
                lag=c.lag,
                waiting=c.waiting,
                course=c.course,
            )
            await loop.run(emit)


class Silence(BaseFault[NoParams]):
    """The agent holds its port and says nothing."""

    kind: ClassVar[str] = "noop.silence"
    observer: ClassVar[Observer] = Observer("a request to the agent")

    async def apply(self, undo):
        if not await self._host(undo).use(ProcessControl).signal(undo["reference"], signal.SIGSTOP):
            raise FaultError(f"{undo['host']}: {undo['agent']} was gone already")

    async def verify(self, undo, *, present):
        answers = await self._host(undo).use(Processes).agent_answers(undo["agent"], 0.5)
        asked = "no answer within 0.5s" if present else "an answer"
        return Evidence(answers is not present, asked, "it answers" if answers else "it does not answer")

    async def revert(self, undo):
        await self._host(undo).use(ProcessControl).signal(undo["reference"], signal.SIGCONT)


class NoopService(BaseService):
    """What hashidrill.core.protocols.service.Service asks for, and six of the optional protocols."""

    name, Spec = "noop", Spec
    after = ("consul",)
    address_variable, look = "NOOP_ADDR", "env"
    roles = ("agents",)
    signals: ClassVar = {"noop.answers": None}

    def places(self):
        return [AgentPlace(f"noop-{n}", "agent", beside=("consul",)) for n in range(1, self.spec.agents + 1)]

    def binaries(self):
        return []

    def agent(self, site):
        first = KNOWS_A_LEADER if "consul" in site.roles else ""
        serve = ["-c", f"{first}{SERVE}", str(PORT), "--bind", site.address, "--directory", str(site.data)]
        return AgentPlan({}, [PYTHON, *serve], f"http://{site.address}:{PORT}", "/", environment=self.access())

    def access(self):
        return {"NOOP_TOKEN": TOKEN}

    async def wait_ready(self, hosts, *, within_s, agents_run):
        async def ready():
            await agents_run()
            silent = [h.name for h in hosts.all_hosts() if self.name in h.roles and not await self._answers(h)]
            return (None if silent else True), f"no answer from {', '.join(silent)}"

        await wait_until("the agents to answer", ready, within_s=within_s, gap_s=0.1)

    async def _answers(self, host):
        return await host.use(Processes).agent_answers(self.name, 1.0)

    def probes(self, hosts):
        return [Answers(host) for host in hosts.all_hosts() if self.name in host.roles]

    def describe(self, configs):
        return {"noop": sorted(configs)}
