"""The capabilities that a carrier adds to a host, implemented by agents and observers that run there."""

import contextlib
import errno
import signal as signals
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hashidrill.core.errors import FaultError, OthersFaultError
from hashidrill.core.protocols import packets
from hashidrill.core.protocols.capabilities import AgentProcess, Barrier, Timing
from hashidrill.core.protocols.packets import Block, PacketRule, Redirect
from hashidrill.core.util.wait import all_at_once, wait_until
from hashidrill.lab.canaries import ANSWERS_WITHIN_S, CPU, NETWORK, CanaryOfHost
from hashidrill.staging.carriers import lease
from hashidrill.staging.carriers.shell import OBSERVERS, Lines, Shell, program


def cut_off(shell: Shell, rules: Sequence[PacketRule]) -> str:
    """Why a host with these rules could no longer be reached; "" if it could."""
    for rule in rules:
        if isinstance(rule, Redirect):
            continue
        whole = not isinstance(rule, Block) or rule.share == 1
        for port in (rule.port,) if isinstance(rule, Block) else rule.ports:
            if why := shell.cuts(rule.addresses, port, whole=whole):
                return why
    return ""


def spare_the_carrier(shell: Shell, host: str, agent: str) -> None:
    """Raises FaultError if that agent is the carrier: a fault on it could not be ended."""
    if agent == shell.carrier:
        raise FaultError(
            f"{host}: {agent} carries faults to this host, so it could not end a fault on itself: carry this one over"
            " SSH (carriers.ssh)"
        )


def wrong_place(shell: Shell) -> str:
    """A hint at a wrong address, for messages."""
    return f"its address in the catalog and in {shell.carrier}" if shell.carrier else "carriers.ssh.addresses"


def cannot(rule: Mapping[str, Any]) -> str:
    """Why strace cannot do this to a disk; "" if it can."""
    others = {*rule["operations"]} - {"fsync"}
    if others:
        return f"strace can slow or fail only fsync: {' and '.join(sorted(others))} would affect sockets too"
    if "bytes_per_s" in rule:
        return "strace cannot limit a disk's bandwidth"
    if rule.get("jitter_s") or rule.get("share", 1.0) < 1:
        return "strace treats all calls alike: it supports neither jitter nor percent"
    return ""


def barriers(items: Iterable[Mapping[str, Any]]) -> list[Barrier]:
    """The rules that drop or refuse packets of the addresses that they name, all or some of them."""
    found: list[Barrier] = []
    for item in items:
        rule = item.get("rule", {})
        parts = rule.get("expr", [])
        if not any("drop" in part or "reject" in part for part in parts):
            continue
        addresses = _matched(parts, "ip", {"saddr", "daddr"})
        ports = _matched(parts, "tcp", {"dport"})
        named: list[int | None] = [int(port) for port in ports]
        found += [Barrier(rule["table"], rule["chain"], frozenset(addresses), port) for port in named or [None]]
    return [barrier for barrier in found if barrier.addresses]


def _matched(parts: Iterable[Mapping[str, Any]], protocol: str, fields: set[str]) -> list[str]:
    """The value, or set of values, that a field of the packet is compared with."""
    for part in parts:
        match = part.get("match", {})
        left = match.get("left", {})
        payload = left.get("payload", {}) if isinstance(left, dict) else {}
        if payload.get("protocol") == protocol and payload.get("field") in fields:
            right = match["right"]
            values = right["set"] if isinstance(right, dict) and "set" in right else [right]
            return [str(value) for value in values if isinstance(value, (str, int))]
    return []


Answers = Callable[[str, float], Awaitable[bool]]
_STOPS, _CONTINUES = signals.SIGSTOP, signals.SIGCONT
_ENDS = {signals.SIGKILL, signals.SIGTERM, signals.SIGINT}
_SYNC = "fsync,fdatasync"
_STARTS_WITHIN_S = 20.0


class CarriedHost(CanaryOfHost):
    """One host. `commands` has the start of each agent's command line; `answers` calls an agent's API from outside."""

    def __init__(
        self,
        name: str,
        shell: Shell,
        commands: Mapping[str, Sequence[str]],
        answers: Answers,
        *,
        terms: lease.Terms,
        tasks: TaskGroup,
        tell: Callable[[str], None],
        data: Mapping[str, str] | None = None,
        listen: Mapping[str, tuple[str, int]] | None = None,
        address: str | None = None,
    ) -> None:
        """`listen`: the address and port of each agent's API, which distinguish two agents on one host.

        `address`: the address that the host must have; None for any.
        """
        self.name, self._shell, self._commands, self._answers = name, shell, commands, answers
        self._terms, self._tasks, self._tell, self._data = terms, tasks, tell, data or {}
        self._listen, self._address = listen or {}, address
        self._observers: dict[str, tuple[Lines, str]] = {}
        self._one = anyio.Lock()
        self._faults: dict[str, lease.LeasedFault] = {}
        self._patience = lease.Patience(terms.waits_s, tell)
        self.cores = 1
        """The host's number of cores, from `facts`."""
        self.peers: Sequence[CarriedHost] = ()
        """The other hosts, whose canaries answer this one's."""

    def act_for(self, run: str) -> None:
        """Applies and reverts faults for that run from now on."""
        self._terms = replace(self._terms, run=run)

    # programs on the host

    async def observers(self, of: str = "") -> tuple[Lines, str]:
        """Starts observers (of the CPU, the network, the disk in that folder, or read-only ones); returns them and
        their process.

        Each one is a separate process, so that a fault on one does not affect the others. Raises FaultError.
        """
        async with self._one:
            if of not in self._observers or self._observers[of][0].over:
                told = {"data": of if of.startswith("/") else "", "listens": of == NETWORK}
                lines = await lease.open_lines(self._shell, program(told, OBSERVERS), self._tasks)
                said = await lines.event("ready", "refused", within_s=_STARTS_WITHIN_S)
                if said is None or said["event"] != "ready":
                    await lines.close()
                    raise FaultError(f"{self._shell.where}: {said['why'] if said else lines.over or 'no answer'}")
                self._observers[of] = lines, said["reference"]
            return self._observers[of]

    async def facts(self) -> dict[str, Any]:
        """The host's abilities: `root`, `python`, and what it `lacks` and why. Raises FaultError."""
        lines = await lease.open_lines(self._shell, program({"data": "", "listens": False}, OBSERVERS), self._tasks)
        try:
            facts = await lines.ask("facts")
            if self._address is not None and (why := (await lines.ask("own", address=self._address))["why"]):
                wrong = wrong_place(self._shell)
                facts["lacks"]["host"] = (
                    f"{self._shell.where} is not confirmed to be {self.name}: {why}; correct {wrong}, or set"
                    " `check_address: false` if hosts do not have their own addresses, as behind NAT"
                )
            for agent in self._commands:
                facts |= await self._of_agent(lines, agent, facts)
        finally:
            await lines.close()
        return facts

    async def _of_agent(self, lines: Lines, agent: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        """`facts` with the abilities for that agent; `restarts` says why an ended agent could not be started again."""
        lacks, why = dict(facts["lacks"]), str(facts.get("restarts", ""))
        try:
            said = await lines.ask("agent", **self._meant(agent))
            if said["pid"] is None:
                lacks["agent"] = f"no process `{' '.join(self._commands[agent])}` of {agent} was found there"
            else:
                process = AgentProcess(said["pid"], said["start_time"], said["state"])
                why = why or (await lines.ask("restarts", reference=process.reference))["why"]
                unset = why or (await lines.ask("settings", pid=process.pid))["why"]
                lacks |= {"settings": unset} if unset else {}
        except FaultError as error:
            lacks["agent"] = str(error)
        return {"lacks": lacks, "restarts": why}

    async def close(self) -> None:
        """Closes standard input, which makes each agent revert what is still in force."""
        for fault in self._faults.values():
            await fault.leave()
        for lines, _ in self._observers.values():
            await lines.close()

    async def _look(self, op: str, *, within_s: float = ANSWERS_WITHIN_S, **request: Any) -> dict[str, Any]:
        return await (await self.observers())[0].ask(op, within_s=within_s, **request)

    async def _apply(self, kind: str, fault_id: str, args: Mapping[str, Any]) -> lease.LeasedFault:
        fault = await lease.apply(
            self._shell, kind, fault_id, args, terms=self._terms, tasks=self._tasks, tell=self._tell
        )
        self._faults[fault_id] = fault
        return fault

    async def _revert(self, fault_id: str, kind: str) -> None:
        """Reverts through the agent that holds the fault, or from the fault's note. Raises FaultError; OthersFaultError
        as `lease.undo_left` does.
        """
        fault = self._faults.pop(fault_id, None)
        if fault is not None:
            with contextlib.suppress(FaultError):  # its agent or the connection is gone: the note says what is left
                return await fault.revert()
        await lease.undo_left(
            self._shell,
            fault_id,
            kind,
            terms=self._terms,
            tasks=self._tasks,
            patience=self._patience,
            observe=self.observers,
        )
        return None

    # PacketFilter

    async def set_packet_rules(self, table: str, rules: Sequence[PacketRule]) -> None:
        if why := cut_off(self._shell, rules):
            raise FaultError(f"{self.name}: {why}")
        await self._rules(table, packets.script(self._terms.named(table), rules))

    async def suspend_packet_rules(self, table: str) -> None:
        await self._rules(table, packets.suspending(self._terms.named(table)))

    async def _rules(self, table: str, script: str) -> None:
        fault = self._faults.get(table)
        if fault is not None and fault.holds and self._shell.changes:
            await fault.change(script)
        else:
            if fault is not None:  # for a moment there are no rules, because its program accepts no others
                with contextlib.suppress(OthersFaultError):
                    await self._revert(table, "packets")
            await self._apply("packets", table, {"table": self._terms.named(table), "script": script})

    async def clear_packet_rules(self, table: str) -> None:
        await self._revert(table, "packets")

    async def packet_tables(self) -> Sequence[str]:
        items = (await self._look("nft", words=["tables"]))["items"]
        return [self._terms.unnamed(item["table"]["name"]) for item in items if "table" in item]

    async def packet_counts(self, table: str) -> Mapping[str, int]:
        if table not in await self.packet_tables():
            return {}
        items = (await self._look("nft", words=["table", "inet", self._terms.named(table)]))["items"]
        rules = [item["rule"] for item in items if "rule" in item]
        return {
            rule["comment"]: part["counter"]["packets"]
            for rule in rules
            if "comment" in rule
            for part in rule["expr"]
            if "counter" in part
        }

    async def packet_barriers(self) -> Sequence[Barrier]:
        found = barriers((await self._look("nft", words=["ruleset"]))["items"])
        return [replace(one, table=self._terms.unnamed(one.table)) for one in found]

    # Processes and ProcessControl

    async def agent_process(self, agent: str) -> AgentProcess | None:
        said = await self._look("agent", **self._meant(agent))
        return None if said["pid"] is None else AgentProcess(said["pid"], said["start_time"], said["state"])

    def _meant(self, agent: str) -> dict[str, Any]:
        address, port = self._listen.get(agent, ("", 0))
        return {"words": list(self._commands[agent]), "address": address, "port": port}

    async def agent_answers(self, agent: str, timeout_s: float) -> bool:
        return await self._answers(agent, timeout_s)

    async def cpu_seconds(self, agent: str) -> float:
        process = await self.agent_process(agent)
        return 0.0 if process is None else float((await self._look("cpu", pid=process.pid))["seconds"])

    async def written_bytes(self, agent: str) -> int:
        return int((await self._look("written", pid=(await self._running(agent)).pid))["bytes"])

    async def _running(self, agent: str) -> AgentProcess:
        process = await self.agent_process(agent)
        if process is None:
            raise FaultError(f"{self.name}: no process `{' '.join(self._commands[agent])}` was found there")
        return process

    async def signal(self, reference: str, signal: int) -> bool:
        """Signals under a lease: if the runner falls silent, stopped processes continue, and ended ones are started."""
        if signal == _CONTINUES:
            await self._revert(f"pause-{reference}", "pause")
            return bool((await self._look("state", reference=reference))["state"])
        if not reference or not (await self._look("state", reference=reference))["state"]:
            return False
        agent = await self._agent_of(reference)
        if signal == _STOPS:
            await self._apply("pause", f"pause-{reference}", {"agent": agent, "reference": reference})
        elif signal in _ENDS:
            name = f"kill-{agent}-{self.name}"
            if (killed := self._faults.get(name)) is not None and killed.holds:
                await killed.change(int(signal))
            else:
                await self._apply("kill", name, {"agent": agent, "reference": reference, "signal": int(signal)})
        else:
            raise FaultError(f"{self.name}: signal {signal} cannot be undone, so it is not sent to this host")
        return True

    async def _agent_of(self, reference: str) -> str:
        for agent in self._commands:
            process = await self.agent_process(agent)
            if process is not None and process.reference == reference:
                spare_the_carrier(self._shell, self.name, agent)
                return agent
        raise FaultError(f"{self.name}: process {reference} is not one of its agents")

    async def start_agent(self, agent: str) -> None:
        await self._revert(f"kill-{agent}-{self.name}", "kill")
        await self._running(agent)

    async def stop_agent(self, agent: str, *, within_s: float = 15.0) -> None:
        process = await self.agent_process(agent)
        if process is None:
            return
        await self.signal(process.reference, signals.SIGTERM)

        async def ended() -> tuple[bool | None, str]:
            now = await self.agent_process(agent)
            return (None, f"process {now.pid} runs") if now is not None and now.state != "Z" else (True, "")

        await wait_until(f"{agent} on {self.name} to end", ended, within_s=within_s)

    # AgentSettings

    async def agent_settings(self, agent: str) -> dict[str, Any]:
        said = await self._look("settings", pid=(await self._running(agent)).pid)
        if said["why"]:
            raise FaultError(f"{self.name}: {said['why']}")
        return dict(said["settings"])

    async def set_agent_settings(
        self, agent: str, settings: Mapping[str, Any], *, restart: bool, check: Sequence[str]
    ) -> None:
        name = f"settings-{agent}-{self.name}"
        spare_the_carrier(self._shell, self.name, agent)
        if (fault := self._faults.get(name)) is not None and fault.holds:
            if self._shell.changes:
                await fault.change(dict(settings))
                return
            with contextlib.suppress(OthersFaultError):
                await self._revert(name, "settings")  # its program accepts no others
        reference = (await self._running(agent)).reference
        by = "restart" if restart else "reload"
        args = {"agent": agent, "reference": reference, "settings": dict(settings), "by": by, "check": list(check)}
        await self._apply("settings", name, args)

    async def clear_agent_settings(self, agent: str) -> None:
        await self._revert(f"settings-{agent}-{self.name}", "settings")

    # CpuControl and CpuCanary

    @property
    def cpus(self) -> int:
        return self.cores

    async def limit_cpu(self, name: str, cores: float) -> None:
        """Limits the agents and the canary together, by stopping and continuing them."""
        agents = [process.reference for process in [await self._running(agent) for agent in self._commands]]
        await self._apply("cpu", name, {"references": [*agents, (await self.observers(CPU))[1]], "cores": cores})

    async def unlimit_cpu(self, name: str) -> None:
        await self._revert(name, "cpu")

    # DiskControl

    async def set_disk_rule(self, rule_id: str, rule: Mapping[str, Any]) -> None:
        if why := cannot(rule):
            raise FaultError(f"{self.name}: {why}")
        what = (
            f"error={errno.errorcode[rule['errno']]}"
            if "errno" in rule
            else f"delay_enter={round(rule['delay_s'] * 1e6)}"
        )
        _, canary = await self.observers(await self._folder())
        agents = [process.reference for process in [await self._running(agent) for agent in self._commands]]
        args = {"references": [*agents, canary], "calls": _SYNC, "inject": what}
        cost = (await self._apply("disk", rule_id, args)).figures
        self._tell(
            f"{self.name}: strace is attached to {', '.join(self._commands)}: that alone makes each system call take"
            f" {cost.get('call_traced_us', 0):g} us instead of {cost.get('call_us', 0):g} us"
        )

    async def clear_disk_rule(self, rule_id: str) -> None:
        await self._revert(rule_id, "disk")

    # DiskCanary

    async def _folder(self) -> str:
        """The folder for disk trials: next to the data of the first agent. Raises FaultError."""
        for agent in self._commands:
            if agent in self._data:
                return self._data[agent]
            if folder := (await self._look("data", pid=(await self._running(agent)).pid))["folder"]:
                return str(folder)
        raise FaultError(
            f"{self.name}: the folder of its agents' data was not found; name it under `data` of its carrier"
        )

    async def canary_disk(self, operation: str, size_bytes: int, trials: int, within_s: float) -> Sequence[Timing]:
        """The canary's own calls. Raises FaultError if only one of canary and agent is traced."""
        observers, canary = await self.observers(await self._folder())
        request = {"operation": operation, "size": size_bytes, "count": trials, "within": within_s}
        answer = await observers.ask("disk", within_s=within_s + ANSWERS_WITHIN_S, **request)
        own = (await self._look("traced", pid=int(canary.partition("@")[0])))["tracers"]
        for agent in self._commands:
            process = await self._running(agent)
            tracers = (await self._look("traced", pid=process.pid))["tracers"]
            if tracers != own:
                raise FaultError(
                    f"{self.name}: the canary's disk says nothing about {agent}'s: threads of {agent} (process"
                    f" {process.pid}) are traced by {tracers}, and those of the canary by {own}"
                )
        return [Timing(seconds, number) for seconds, number in answer["timings"]]

    async def _timing(self, operation: str, size_bytes: int = 0) -> Timing:
        return (await self.canary_disk(operation, size_bytes, 1, ANSWERS_WITHIN_S))[0]

    async def canary_fsync(self) -> Timing:
        return await self._timing("fsync")

    async def canary_write(self, size_bytes: int) -> Timing:
        return await self._timing("write", size_bytes)

    async def canary_read(self, size_bytes: int) -> Timing:
        return await self._timing("read", size_bytes)

    async def free_bytes(self) -> int:
        return int((await (await self.observers(await self._folder()))[0].ask("space"))["free"])

    async def ask_canary(
        self, of: str, op: str, *, within_s: float = ANSWERS_WITHIN_S, **request: Any
    ) -> dict[str, Any]:
        """Asks a canary; the network canary only once the network canaries of all hosts answer."""
        if of == NETWORK:
            await all_at_once(partial(one.observers, NETWORK) for one in self.peers)
        return await (await self.observers(of))[0].ask(op, within_s=within_s, **request)
