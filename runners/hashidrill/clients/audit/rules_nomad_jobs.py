"""Rules about Nomad jobs: what is tried again, where, and what gives up."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hashidrill.clients.audit.audited import Audited
from hashidrill.clients.audit.jobs import Group
from hashidrill.clients.audit.rule import Hit, Severity, rule
from hashidrill.clients.audit.tree import Mapping, texts_within

_TESTS = "tests/live/test_audit_claims_jobs.py"
_AGENT_TESTS = "tests/live/test_audit_claims_nomad.py"
_SPEC = "https://developer.hashicorp.com/nomad/docs/job-specification"
_STRUCTS = "nomad 1.10.5, nomad/structs/structs.go"
_ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_QUOTED = re.compile(r"\\?\"[^\"]*\"|`[^`]*`")
_NOMAD = "nomadService|nomadServices|nomadVar|nomadVarExists|nomadVarList|nomadVarListSafe"
_VAULT = "pkiCert|secret|secrets"
_CONSUL = (
    "caLeaf|caRoots|connect|datacenters|exportedServices|key|keyExists|keyOrDefault|ls|node|nodes|partitions|peerings|"
    "safeLs|safeTree|service|services|tree"
)
_READS = re.compile(rf"(?<![.$\w])(?:(?P<nomad>{_NOMAD})|(?P<vault>{_VAULT})|(?P<consul>{_CONSUL}))\b")
"""Functions that ask Nomad, Vault or Consul: template/template.go of consul-template 0.41.0."""


def _no_reschedule(group: Group) -> bool:
    """Whether nothing places a failed allocation again."""
    if group.job.type in {"system", "sysbatch"}:
        return True
    policy = group.policy("reschedule", "ReschedulePolicy")
    if policy is None:
        return False
    # `unlimited` is true by default for a service, unless attempts and interval are said
    return policy.number("attempts") == 0 and policy.flag("unlimited") is not True


@rule(
    "HD211",
    "job-artifact-not-retried",
    Severity.WARNING,
    what="A task with an `artifact` and `restart { attempts = 0 }`.",
    why="Nomad's client downloads an artifact once; what repeats a failed download is the restart policy. With 0 "
    "attempts the first hiccup of the network fails the allocation: a build service lost hundreds of builds a day "
    "that way (tfs-2013). What is left is the reschedule policy, which goes to another node and starts over.",
    default="2 attempts in 30 minutes for services, 3 in 24 hours for batch jobs.",
    fix='Allow restarts: `restart { attempts = 3  delay = "15s" }`. A task that must run once only can fetch in a '
    "prestart task of its own, which may be restarted.",
    link=f"{_SPEC}/artifact",
    source="nomad 1.10.5, client/allocrunner/taskrunner/artifact_hook.go and restarts/restarts.go",
    verified=f"{_TESTS}::test_an_artifact_is_downloaded_once_unless_the_task_is_restarted",
)
def job_artifact_not_retried(audited: Audited) -> Iterator[Hit]:
    for group in audited.groups:
        for task in group.tasks():
            restart, artifacts = group.restart(task), task.blocks("artifact", "Artifacts")
            if restart is None or not artifacts or restart.number("attempts") != 0:
                continue
            left = "nothing" if _no_reschedule(group) else "only a reschedule to another node"
            place = artifacts[0].place
            yield Hit(group.job.document, place, f"restart.attempts = 0: {left} retries this download")


@rule(
    "HD212",
    "job-restart-delay",
    Severity.WARNING,
    what='`restart { mode = "delay" }` in a service or batch job.',
    why="After its attempts the task waits for the next interval and starts again on the same node, for ever: the "
    "allocation never fails, so it is never rescheduled away from a node that is the cause.",
    default='`mode = "fail"`: the allocation fails, and `reschedule` moves it.',
    fix="Leave `mode` out. In a system job, which is never rescheduled, `delay` is right and is not reported.",
    link=f"{_SPEC}/restart#mode-values",
    source="nomad 1.10.5, client/allocrunner/taskrunner/restarts/restarts.go",
    verified=f"{_TESTS}::test_a_task_with_restart_mode_delay_never_leaves_its_node",
)
def job_restart_delay(audited: Audited) -> Iterator[Hit]:
    for job in audited.jobs:
        if job.type not in {"service", "batch"}:
            continue
        for body in job.body.walk():
            for restart in body.blocks("restart", "RestartPolicy"):
                entry = restart.find("mode")
                if entry is not None and restart.text("mode") == "delay":
                    yield Hit(job.document, entry.place, "mode = delay: this task never leaves a node that fails it")


@rule(
    "HD213",
    "job-batch-reschedule-default",
    Severity.INFO,
    what="A batch job that is run once (neither periodic nor parameterized) without a `reschedule` block.",
    why="Nomad places a failed allocation of a batch job again once in 24 hours, 5 s later. One bad node and one bad "
    "minute are enough for the job to end as failed.",
    default="1 attempt in 24 h, delay 5 s, constant.",
    fix='Say it: `reschedule { attempts = 5  interval = "1h"  delay = "30s"  delay_function = "exponential" '
    ' max_delay = "10m"  unlimited = false }`.',
    link=f"{_SPEC}/reschedule#parameter-defaults",
    source=f"{_STRUCTS}, DefaultBatchJobReschedulePolicy",
    verified=f"{_TESTS}::test_a_batch_job_is_rescheduled_once_a_day_by_default",
)
def job_batch_reschedule_default(audited: Audited) -> Iterator[Hit]:
    for group in audited.groups:
        once = group.job.type == "batch" and not group.job.calls_itself_again()
        if once and group.policy("reschedule", "ReschedulePolicy") is None:
            message = f"the batch group {group.name} is rescheduled once in 24 hours, by default"
            yield Hit(group.job.document, group.body.place, message)


@rule(
    "HD214",
    "job-template-kills-task",
    Severity.INFO,
    what="A `template` that asks Consul, Vault or Nomad, where no audited client configuration sets the retry for it.",
    why="When what it asks is away, the client tries 12 times, from 250 ms doubling to 1 min, without jitter: 5 "
    "minutes in all. Then the task is killed, also one that has long been running with what it has, unless all its "
    'templates have `change_mode = "noop"`. All clients do so at once.',
    default="12 retries, backoff 250 ms, at most 1 min.",
    fix="In the clients' configuration: `client { template { consul_retry { attempts = 0 } vault_retry { attempts = "
    "0 } nomad_retry { attempts = 0 } } }`; 0 is without limit.",
    link="https://developer.hashicorp.com/nomad/docs/configuration/client#template-parameters",
    source="nomad 1.10.5, client/config/config.go and client/allocrunner/taskrunner/template/template.go; "
    "consul-template 0.41.0, config/retry.go",
    verified=f"{_AGENT_TESTS}::test_a_running_task_is_killed_when_the_retries_of_its_template_are_used_up",
)
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
                    message = f"this template asks {names}: after about 5 minutes without an answer its task is killed"
                    yield Hit(group.job.document, template.place, message)


def _asked(template: Mapping) -> set[str]:
    """The retry blocks that hold for what a template asks, from the functions that it calls."""
    entry = template.find("data", "EmbeddedTmpl")
    found = set()
    for text, _ in texts_within(entry.value) if entry is not None else ():
        for action in _ACTION.finditer(text):
            called = _READS.finditer(_QUOTED.sub('""', action[1]))
            found |= {f"{call.lastgroup}_retry" for call in called}
    return found


@rule(
    "HD215",
    "job-check-without-restart",
    Severity.INFO,
    what="A service check without `check_restart` (nor one in its service) in a service job.",
    why="A check that fails takes the instance out of discovery, and nothing more: a task that hangs stays, out of "
    "use, until a person sees it.",
    default="`limit` is 0: a failing check restarts nothing.",
    fix='`check_restart { limit = 3  grace = "90s" }`, where a restart is what you would do by hand.',
    link=f"{_SPEC}/check_restart",
    source="nomad 1.10.5, website/content/docs/job-specification/check_restart.mdx",
    verified=f"{_TESTS}::test_a_failing_check_restarts_nothing_by_itself",
)
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
    """A limit that is not known before the run counts as one."""
    return block is not None and block.has("limit") and block.number("limit") != 0


@rule(
    "HD216",
    "job-no-disconnect",
    Severity.INFO,
    what="A group of a service job that keeps data (a volume, or a sticky or migrated ephemeral disk) and does not say "
    "what happens when its node is cut off: no `disconnect { lost_after }` nor `stop_on_client_after`.",
    why="A client that misses its heartbeats has its allocations marked lost: they are replaced, and restarted when it "
    "comes back, although they may never have been unwell.",
    default="No `disconnect` block: lost after `heartbeat_grace`.",
    fix='`disconnect { lost_after = "1h"  replace = false }`, or `stop_on_client_after` where two must never run'
    " at once.",
    link=f"{_SPEC}/disconnect",
    source="nomad 1.10.5, website/content/docs/job-specification/disconnect.mdx",
    verified=f"{_AGENT_TESTS}::test_without_disconnect_an_allocation_is_lost_with_its_node_and_replaced",
)
def job_no_disconnect(audited: Audited) -> Iterator[Hit]:
    for group in audited.groups:
        if group.job.type != "service" or not _keeps_data(group.body):
            continue
        said = any(
            body.has("lost_after", "stop_on_client_after", "StopOnClientAfter")
            for body in group.body.blocks("disconnect")
        )
        if not said and not group.body.has("max_client_disconnect", "stop_after_client_disconnect"):
            message = f"the group {group.name} keeps data, and is marked lost as soon as its node misses heartbeats"
            yield Hit(group.job.document, group.body.place, message)


def _keeps_data(group: Mapping) -> bool:
    disks = group.blocks("ephemeral_disk", "EphemeralDisk")
    return group.has("volume", "Volumes") or any(disk.flag("sticky") or disk.flag("migrate") for disk in disks)


@rule(
    "HD217",
    "job-update-without-auto-revert",
    Severity.WARNING,
    what="A service job whose `update` rolls out in deployments and does not set `auto_revert = true`.",
    why="A deployment that fails stops where it is: part of the instances run what does not work, until a person acts.",
    default="`auto_revert = false`.",
    fix="`auto_revert = true`.",
    link=f"{_SPEC}/update#auto_revert",
    source=f"{_STRUCTS}, DefaultUpdateStrategy",
    verified=f"{_TESTS}::test_a_failed_deployment_stays_unless_auto_revert_is_on",
)
def job_update_without_auto_revert(audited: Audited) -> Iterator[Hit]:
    for job in audited.jobs:
        if job.type != "service":
            continue
        told = set()
        for group in job.groups():
            update = group.policy("update", "Update")
            if update is None or update.number("max_parallel") == 0:
                continue  # 0: no deployment, so that there is nothing to revert
            entry = update.find("auto_revert")
            unknown = entry is not None and update.flag("auto_revert") is None
            if not unknown and update.flag("auto_revert") is not True and update.place not in told:
                told.add(update.place)
                yield Hit(job.document, update.place, "a deployment that fails is left as it is: auto_revert is not on")
