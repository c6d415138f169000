"""Rules about Nomad's agents and jobs: how agents join, where allocations are retried, and when a job gives up."""

import re
from collections.abc import Iterator

from hashidrill.clients.audit.audited import Agent, Audited, Group, Hit, rule
from hashidrill.clients.audit.sources import Document
from hashidrill.clients.audit.tree import Mapping, is_zero_duration, texts_within

_RETRIES = ("consul_retry", "vault_retry", "nomad_retry")


def _roles(agent: Agent, name: str) -> list[tuple[Document, Mapping]]:
    merged = agent.merged.block(name)
    return agent.bodies(name) if merged is not None and merged.flag("enabled") is True else []


def _joins(bodies: list[tuple[Document, Mapping]], *names: str) -> bool:
    within = [join for _, body in bodies for join in body.blocks("server_join")]
    return any(body.has(*names) for body in [*within, *(body for _, body in bodies)])


@rule("HD201")
def nomad_no_server_join(audited: Audited) -> Iterator[Hit]:
    for agent in audited.nomad_agents:
        servers, clients = _roles(agent, "server"), _roles(agent, "client")
        for bodies, auto in ((servers, "server_auto_join"), (clients, "client_auto_join")):
            if not bodies or (bodies is clients and servers):
                continue  # a client that is also a server needs no other server
            several = any((body.number("bootstrap_expect") or 0) > 1 for _, body in bodies)
            if bodies is servers and not several:
                continue
            consul = [body for _, body in agent.bodies("consul")]
            found = _joins(bodies, "retry_join", "start_join", "servers")
            flags = {} if agent.started is None else dict(agent.started.command.flags)
            by_flag = flags.keys() & {"retry-join", "join", "servers", "dev"}  # for either role
            if not found and not by_flag and not any(body.flag(auto) is not False for body in consul):
                document, body = bodies[0]
                role = "server" if bodies is servers else "client"
                text = f"this Nomad {role} has no setting that says how to find the servers"
                yield Hit(document, body.place, text, muted=agent.unseen)


@rule("HD202")
def nomad_retry_max(audited: Audited) -> Iterator[Hit]:
    for document, join in _all_joins(audited):
        entry, attempts = join.find("retry_max"), join.number("retry_max")
        if entry is not None and attempts is not None and attempts > 0:
            yield Hit(
                document, entry.place, f"after {attempts:g} retries of a failed join this agent exits with code 1"
            )


@rule("HD203")
def nomad_start_join(audited: Audited) -> Iterator[Hit]:
    for document, join in _all_joins(audited):
        entry = join.find("start_join")
        if entry is not None and join.has("start_join"):
            yield Hit(document, entry.place, "start_join is tried once, and if it fails, the agent does not start")


def _all_joins(audited: Audited) -> Iterator[tuple[Document, Mapping]]:
    """`server_join` blocks, and the older form: the same keys directly in `server` and `client`."""
    for agent in audited.nomad_agents:
        for document, body in agent.bodies("server", "client"):
            yield from ((document, join) for join in [body, *body.blocks("server_join")])


@rule("HD204")
def nomad_template_retry_uncapped(audited: Audited) -> Iterator[Hit]:
    for document, retry in _template_retries(audited):
        entry = retry.find("max_backoff")
        if entry is not None and is_zero_duration(entry.value):
            yield Hit(document, entry.place, "max_backoff = 0: the pause between retries doubles without a limit")


@rule("HD205")
def nomad_template_retry_limited(audited: Audited) -> Iterator[Hit]:
    for document, retry in _template_retries(audited):
        entry, attempts = retry.find("attempts"), retry.number("attempts")
        if entry is not None and attempts is not None and attempts > 0:
            yield Hit(document, entry.place, f"after {attempts:g} retries, the tasks with such templates are killed")


def _template_retries(audited: Audited) -> Iterator[tuple[Document, Mapping]]:
    for agent in audited.nomad_agents:
        for document, client in agent.bodies("client"):
            for template in client.blocks("template"):
                yield from ((document, retry) for retry in template.blocks(*_RETRIES))


_ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_QUOTED = re.compile(r"\\?\"[^\"]*\"|`[^`]*`")
_NOMAD = "nomadService|nomadServices|nomadVar|nomadVarExists|nomadVarList|nomadVarListSafe"
_VAULT = "pkiCert|secret|secrets"
_CONSUL = (
    "caLeaf|caRoots|connect|datacenters|exportedServices|key|keyExists|keyOrDefault|ls|node|nodes|partitions|peerings|"
    "safeLs|safeTree|service|services|tree"
)
_READS = re.compile(rf"(?<![.$\w])(?:(?P<nomad>{_NOMAD})|(?P<vault>{_VAULT})|(?P<consul>{_CONSUL}))\b")
"""Template functions that read from Nomad, Vault or Consul: template/template.go of consul-template 0.41.0."""


def _no_reschedule(group: Group) -> bool:
    if group.job.type in {"system", "sysbatch"}:
        return True
    policy = group.policy("reschedule", "ReschedulePolicy")
    if policy is None:
        return False
    # `unlimited` is true by default for a service, unless attempts and interval are set
    return policy.number("attempts") == 0 and policy.flag("unlimited") is not True


@rule("HD211")
def job_artifact_not_retried(audited: Audited) -> Iterator[Hit]:
    for group in audited.groups:
        for task in group.tasks():
            restart, artifacts = group.restart(task), task.blocks("artifact", "Artifacts")
            if restart is None or not artifacts or restart.number("attempts") != 0:
                continue
            left = "nothing" if _no_reschedule(group) else "only a reschedule to another node"
            place = artifacts[0].place
            yield Hit(group.job.document, place, f"restart.attempts = 0: {left} retries this download")


@rule("HD212")
def job_restart_delay(audited: Audited) -> Iterator[Hit]:
    for job in audited.jobs:
        if job.type not in {"service", "batch"}:
            continue
        for body in job.body.walk():
            for restart in body.blocks("restart", "RestartPolicy"):
                entry = restart.find("mode")
                if entry is not None and restart.text("mode") == "delay":
                    yield Hit(job.document, entry.place, "mode = delay: this task never leaves a node that fails it")


@rule("HD213")
def job_batch_reschedule_default(audited: Audited) -> Iterator[Hit]:
    for group in audited.groups:
        once = group.job.type == "batch" and not group.job.calls_itself_again()
        if once and group.policy("reschedule", "ReschedulePolicy") is None:
            message = f"the batch group {group.name} is rescheduled once in 24 hours, by default"
            yield Hit(group.job.document, group.body.place, message)


@rule("HD214")
def job_template_kills_task(audited: Audited) -> Iterator[Hit]:
    configured = {
        name
        for agent in audited.nomad_agents
        for client in agent.merged.blocks("client")
        for template in client.blocks("template")
        for name in ("consul_retry", "vault_retry", "nomad_retry")
        if template.has(name)
    }
    for group in audited.groups:
        for task in group.tasks():
            for template in task.blocks("template", "Templates"):
                asked = _asked(template) - configured
                if asked:
                    names = ", ".join(sorted(name.removesuffix("_retry").capitalize() for name in asked))
                    message = f"this template reads {names}: after about 5 minutes without answers its task is killed"
                    yield Hit(group.job.document, template.place, message)


def _asked(template: Mapping) -> set[str]:
    entry = template.find("data", "EmbeddedTmpl")
    found = set()
    for text, _ in texts_within(entry.value) if entry is not None else ():
        for action in _ACTION.finditer(text):
            called = _READS.finditer(_QUOTED.sub('""', action[1]))
            found |= {f"{call.lastgroup}_retry" for call in called}
    return found


@rule("HD215")
def job_check_without_restart(audited: Audited) -> Iterator[Hit]:
    names = ("check_restart",)
    for group in audited.groups:
        if group.job.type != "service":
            continue
        for service in group.services():
            inherited = _restarts(service.block(*names))
            for check in service.blocks("check", "Checks"):
                own = check.block(*names)
                if not (_restarts(own) if own is not None and own.has("limit") else inherited):
                    yield Hit(group.job.document, check.place, "when this check fails, nothing restarts the task")


def _restarts(block: Mapping | None) -> bool:
    """Whether the block restarts the task. A limit that is unknown before the run counts as a limit."""
    return block is not None and block.has("limit") and block.number("limit") != 0


@rule("HD216")
def job_no_disconnect(audited: Audited) -> Iterator[Hit]:
    for group in audited.groups:
        if group.job.type != "service" or not _keeps_data(group.body):
            continue
        said = any(
            body.has("lost_after", "stop_on_client_after", "StopOnClientAfter")
            for body in group.body.blocks("disconnect")
        )
        if not said and not group.body.has("max_client_disconnect", "stop_after_client_disconnect"):
            message = f"the group {group.name} keeps data, but is marked lost as soon as its node misses heartbeats"
            yield Hit(group.job.document, group.body.place, message)


def _keeps_data(group: Mapping) -> bool:
    disks = group.blocks("ephemeral_disk", "EphemeralDisk")
    return group.has("volume", "Volumes") or any(disk.flag("sticky") or disk.flag("migrate") for disk in disks)


@rule("HD217")
def job_update_without_auto_revert(audited: Audited) -> Iterator[Hit]:
    for job in audited.jobs:
        if job.type != "service":
            continue
        told = set()
        for group in job.groups():
            update = group.policy("update", "Update")
            if update is None or update.number("max_parallel") == 0:
                continue  # 0: there is no deployment to revert
            entry = update.find("auto_revert")
            unknown = entry is not None and update.flag("auto_revert") is None
            if not unknown and update.flag("auto_revert") is not True and update.place not in told:
                told.add(update.place)
                yield Hit(job.document, update.place, "a failed deployment is not reverted: auto_revert is not on")
